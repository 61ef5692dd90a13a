"""The wire of the Wishee bridge: its frames as bytes and values, and what their parameters may be.

Every detail that the contract's sections 1 to 3 leave open is decided here.
"""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from hermes_bridges.core.clusters import clean_text

MAIN = "agent:main:main"
"""The session of a request that names none."""
LIMIT = 20
"""How many messages or turns are told when the request does not say."""

_KEY_MAX = 256  # bytes
_MESSAGE_MAX = 256 * 1024  # bytes
_LIMIT_MAX = 200
_ID_DEPTH = 16
_METHOD_MAX = 64  # characters


class BadParams(ValueError):
    """Parameters that cannot be used; the text names the parameter, and may go to the bridge."""


class Welcome(NamedTuple):
    """The bridge knows us; ``user_id`` is empty where it told none."""

    user_id: str


class Request(NamedTuple):
    """A ``req``. ``id`` goes back as it came; ``params`` too is as it came, but {} for none."""

    id: object
    method: str
    params: object


class Ignored(NamedTuple):
    """A frame without an effect; ``reason`` quotes nothing of it."""

    reason: str


class ChatSend(NamedTuple):
    """The parameters of ``chat.send``."""

    session_key: str
    message: str


def hello(agent_id: str, secret: str, version: str) -> bytes:
    """Build the first frame; ``version`` is that of Hermes."""
    return _json(
        {
            "type": "hello",
            "agentId": agent_id,
            "secret": secret,
            "agentType": "hermes",
            "version": version,
        }
    )


def res(id: object, payload: object) -> bytes:
    """Build the answer to a request."""
    return _json({"type": "res", "id": id, "ok": True, "payload": payload})


def error(id: object, message: str) -> bytes:
    """Build the answer to a request that failed."""
    return _json({"type": "res", "id": id, "ok": False, "error": {"message": message}})


def event(name: str, payload: Mapping[str, object]) -> bytes:
    """Build an event."""
    return _json({"type": "event", "event": name, "payload": payload})


def parse(raw: bytes) -> Welcome | Request | Ignored:
    """Read one frame of the bridge. Never raises."""
    try:
        frame = _DECODER.decode(raw.decode())
    # Nesting is followed as deep as the interpreter can.
    except (ValueError, RecursionError):
        return Ignored("not JSON")
    if not isinstance(frame, dict):
        return Ignored("no object")
    kind = frame.get("type")
    if kind == "welcome":
        return Welcome(_user(frame.get("userId")))
    if kind != "req":
        return Ignored("of an unknown type")
    id, params = frame.get("id"), frame.get("params")
    if _is_deep(id, _ID_DEPTH):
        return Ignored("a request whose id is nested too deep")
    method = frame.get("method")
    method = clean_text(method[:_METHOD_MAX]) if isinstance(method, str) else ""
    return Request(id, method, {} if params is None else params)


def id_of_head(head: bytes) -> object | None:
    """Return the id of a request of which only the beginning is known.

    None where it is not in that part, or is null.
    """
    try:
        text = head.decode("utf-8", "ignore")
        at = _skip(text, 0, "{")
        while True:
            key, at = _DECODER.raw_decode(text, _skip(text, at))
            value, at = _DECODER.raw_decode(text, _skip(text, at, ":"))
            # What stands at the very end may go on behind it.
            at = _skip(text, at, ",")
            if key == "id":
                return None if _is_deep(value, _ID_DEPTH) else value
    except (ValueError, RecursionError):
        return None


def chat_send(params: object) -> ChatSend:
    """Read the parameters of ``chat.send``. Raises BadParams."""
    fields = _fields(params)
    message = _text(fields, "message", _MESSAGE_MAX)
    if message is None:
        raise BadParams("message: is missing")
    if not message.strip():
        raise BadParams("message: must not be empty")
    return ChatSend(_key(fields, "sessionKey") or MAIN, message)


def history(params: object) -> tuple[str, int]:
    """Read the session key and limit of ``chat.history`` and ``chat.turns``. Raises BadParams."""
    fields = _fields(params)
    limit = fields.get("limit")
    if limit is None:
        limit = LIMIT
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LIMIT_MAX:
        raise BadParams(f"limit: must be a whole number from 1 to {_LIMIT_MAX}")
    return _key(fields, "sessionKey") or MAIN, limit


def reset(params: object) -> str:
    """Read the session key of ``sessions.reset``. Raises BadParams."""
    fields = _fields(params)
    key, session_key = _key(fields, "key"), _key(fields, "sessionKey")
    return key or session_key or MAIN


def _fields(params: object) -> Mapping[str, object]:
    if not isinstance(params, dict):
        raise BadParams("params: must be an object")
    return params


def _key(fields: Mapping[str, object], name: str) -> str | None:
    key = _text(fields, name, _KEY_MAX)
    if key == "":
        raise BadParams(f"{name}: must not be empty")
    return key


def _text(fields: Mapping[str, object], name: str, limit: int) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadParams(f"{name}: must be a text")
    text = clean_text(value)
    if len(text.encode()) > limit:
        raise BadParams(f"{name}: must be at most {limit} bytes")
    if "\0" in text:
        raise BadParams(f"{name}: must not hold a NUL")
    return text


def _user(value: object) -> str:
    if isinstance(value, str):
        return clean_text(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _is_deep(value: object, left: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and (left == 0 or any(_is_deep(v, left - 1) for v in value))


def _skip(text: str, at: int, sign: str = "") -> int:
    """The place behind white space, the sign and more white space. Raises ValueError."""
    at = _blank_end(text, at)
    if not text.startswith(sign, at):
        raise ValueError
    return _blank_end(text, at + len(sign))


def _blank_end(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS:
        at += 1
    return at


_BLANKS = (" ", "\t", "\n", "\r")


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("out of range")
    return number


def _constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_constant)


def _json(frame: Mapping[str, object]) -> bytes:
    text = json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return clean_text(text).encode()
