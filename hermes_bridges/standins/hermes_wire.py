"""What the scripted Hermes reads and says, word for word as a real one (0.22) does."""

import hashlib
import json
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from hermes_bridges.standins.hermes_runs import BY_RESULT, Answer
from hermes_bridges.standins.http_loop import JSON, PLAIN

VERSION = "0.22.2.post1"
BODY_LIMIT = 10_000_000  # bytes
TEXT_LIMIT = 65_536  # characters; what is longer is cut without a word
HEADER_LIMIT = 256  # characters of a session id, and of a session key
_MARKED = ("model", "messages", "tools", "tool_choice", "stream")  # what makes a body the same
_SESSION = re.compile(r"[A-Za-z0-9._-]+")


class Reply(NamedTuple):
    """The answer to one request."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = JSON


class Wanted(NamedTuple):
    """A request for a turn. ``mark`` is equal for bodies that count as the same."""

    model: str
    text: str
    session: str
    session_key: str | None
    key: str | None
    mark: str


def dump(body: object) -> bytes:
    return json.dumps(body).encode()


def error(status: int, message: str, *headers: tuple[str, str], **more: str | None) -> Reply:
    """A refusal; ``more`` are ``code``, ``param`` and another ``type``, where there are any."""
    said = {"message": message, "type": "invalid_request_error"} | more
    return Reply(status, dump({"error": said}), headers)


NOT_FOUND = Reply(404, b"404: Not Found", content_type=PLAIN)
NO_PROFILE = Reply(404, b'{"error": "Unknown or unconfigured profile"}')
TOO_LARGE = error(413, "Request body too large.", param=None, code="body_too_large")
UNAUTHORIZED = error(
    401,
    "Invalid gateway API key (API_SERVER_KEY)",
    type="gateway_auth_error",
    code="gateway_auth_failed",
)
DRAINING = error(
    503,
    "Gateway is draining existing work; retry shortly.",
    ("Retry-After", "1"),
    param=None,
    code="gateway_draining",
)
_NO_JSON = error(400, "Invalid JSON in request body", param=None, code=None)
_NO_MESSAGES = error(400, "Missing or invalid 'messages' field")
_NO_TEXT = error(400, "No user message found in messages")
_NO_STREAM = error(501, "This stand-in does not stream")


def wrong_method(allowed: str) -> Reply:
    return Reply(405, b"405: Method Not Allowed", (("Allow", allowed),), PLAIN)


def too_many(cap: int) -> Reply:
    return error(
        429,
        f"Too many concurrent runs (max {cap})",
        ("Retry-After", "1"),
        type="rate_limit_error",
        param=None,
        code="rate_limit_exceeded",
    )


def models(created: int) -> Reply:
    card = {"id": "hermes-agent", "object": "model", "created": created, "owned_by": "hermes"}
    card |= {"permission": [], "root": "hermes-agent", "parent": None}
    return Reply(200, dump({"object": "list", "data": [card]}))


def read(headers: Mapping[str, str], body: bytes) -> Wanted | Reply:
    """What a request for a chat completion asks for, or why it is refused."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return _NO_JSON
    messages = asked.get("messages") if isinstance(asked, dict) else None
    if not messages or not isinstance(messages, list):
        return _NO_MESSAGES
    text = ""
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            return _NO_MESSAGES
        if message.get("role") in ("user", "assistant"):
            said = _text(message.get("content"))
            if said is None:
                return _no_files(index)
            text = said
    if not text.strip():
        return _NO_TEXT
    session_key = headers.get("x-hermes-session-key") or None
    if session_key is not None and len(session_key) > HEADER_LIMIT:
        return error(400, "Session key too long")
    session = headers.get("x-hermes-session-id", "")
    if session and (_SESSION.fullmatch(session) is None or ".." in session):
        return error(400, "Invalid session ID")
    if len(session) > HEADER_LIMIT:
        return error(400, "Session ID too long")
    if asked.get("stream"):
        return _NO_STREAM
    marked = repr({name: asked.get(name) for name in _MARKED}).encode(errors="surrogatepass")
    return Wanted(
        str(asked.get("model", "hermes-agent")),
        text,
        # Without an id it follows from how the conversation began.
        session or f"api-{hashlib.sha256(repr(messages[0]).encode()).hexdigest()[:16]}",
        session_key,
        headers.get("idempotency-key") or None,
        hashlib.sha256(marked).hexdigest(),
    )


def _text(content: object) -> str | None:
    """The text of a message; None when there is a part in it that is not accepted."""
    if isinstance(content, str):
        return content[:TEXT_LIMIT]
    if not isinstance(content, list):
        return ""
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("text", "")))
        elif kind != "image_url":
            return None
    return "\n".join(texts)[:TEXT_LIMIT]


def _no_files(index: int) -> Reply:
    return error(
        400,
        "Inline image inputs are supported, but uploaded files and document inputs are not"
        " supported on this endpoint.",
        param=f"messages[{index}].content",
        code="unsupported_content_type",
    )


def completion(answer: Answer, wanted: Wanted, session: str) -> Reply:
    """How the end of a run is told: a failed one too is a 200 as long as it has some text."""
    headers = {"X-Hermes-Session-Id": session}
    if wanted.session_key is not None:
        headers["X-Hermes-Session-Key"] = wanted.session_key
    bad = answer.failed or answer.partial
    if bad:
        headers["X-Hermes-Completed"] = "false"
        headers["X-Hermes-Partial"] = "true" if answer.partial else "false"
    hermes: dict[str, object] = {
        "completed": not bad,
        "partial": answer.partial,
        "failed": answer.failed,
    }
    if answer.body is not None:
        return _reply(answer, answer.body, headers)
    if bad and not answer.text:
        message = answer.error or "Agent run did not produce a response."
        said: dict[str, object] = {"message": message, "type": "server_error", "param": None}
        said |= {"code": "agent_incomplete", "hermes": hermes}
        return _reply(answer._replace(status=502), dump({"error": said}), headers)
    finish = answer.finish_reason
    if finish == BY_RESULT:
        cut = answer.partial and "truncat" in (answer.error or "").lower()
        finish = "length" if cut else "error" if bad else "stop"
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text},
        "finish_reason": finish,
    }
    if finish is None:
        del choice["finish_reason"]
    body: dict[str, object] = {
        "id": f"chatcmpl-{uuid.uuid4().hex[:29]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": wanted.model,
        "choices": [choice],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    if bad:
        code = "output_truncated" if finish == "length" else "agent_error"
        body["hermes"] = hermes | {"error": answer.error, "error_code": code}
        if answer.error:
            headers["X-Hermes-Error"] = answer.error
    return _reply(answer, dump(body), headers)


def _reply(answer: Answer, body: bytes, headers: dict[str, str]) -> Reply:
    return Reply(answer.status, body, tuple((headers | dict(answer.headers)).items()))
