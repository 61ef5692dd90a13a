"""A loopback stand-in for a model server that speaks the OpenAI chat protocol.

What it says is decided by a ``brain``: a function from the request to a reply, so that an agent can
be driven through a turn word by word. A request without tools is a side request (for a title, say)
and gets a short plain reply.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

MODEL = "standin-1"
CONTEXT = 200_000  # tokens


class Reply(NamedTuple):
    """A text, or a text and one call of a tool; with another status, a failure that says it.

    ``tokens`` is how long the conversation is said to be by now.
    """

    text: str
    tool: str | None = None
    arguments: Mapping[str, object] = {}
    status: int = 200
    finish: str = "stop"
    tokens: int = 100


class Request(NamedTuple):
    """What a brain looks at: the messages, texts made plain, and the tools that are offered."""

    messages: tuple["Said", ...]
    tools: frozenset[str]


class Said(NamedTuple):
    """One message: who says it (system, user, assistant, tool), and what."""

    role: str
    text: str


Brain = Callable[[Request], Reply]


class ModelApi:
    """Serves until ``close``. ``requests`` holds what the brain was asked, for any thread."""

    def __init__(self, brain: Brain) -> None:
        self.requests: list[Request] = []
        self._brain = brain
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="model-http", daemon=True
        )
        self._thread.start()

    def reply(self, body: Mapping[str, Any]) -> Reply:
        """What the model says to the body of one request."""
        tools = frozenset(str(tool["function"]["name"]) for tool in body.get("tools") or ())
        if not tools:
            return Reply("A short reply")
        messages = tuple(Said(one["role"], _plain(one.get("content"))) for one in body["messages"])
        request = Request(messages, tools)
        self.requests.append(request)
        return self._brain(request)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nothing to tell."""


def _handler(api: ModelApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            card: dict[str, object] = {"id": MODEL, "object": "model", "owned_by": "standin"}
            card |= {"context_length": CONTEXT, "max_model_len": CONTEXT}
            if self.path.rstrip("/").endswith("/models"):
                self._send(200, {"object": "list", "data": [card]})
            else:
                self._send(200, card)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            if not self.path.endswith("/chat/completions"):
                self._send(404, {"error": {"message": "not found"}})
                return
            reply = api.reply(body)
            if reply.status != 200:
                self._send(reply.status, {"error": {"message": reply.text, "code": reply.status}})
                return
            message: dict[str, Any] = {"role": "assistant", "content": reply.text}
            finish = reply.finish
            if reply.tool is not None:
                finish = "tool_calls"
                call = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
                message["tool_calls"] = [
                    {"id": f"call_{uuid.uuid4().hex[:20]}", "type": "function", "function": call}
                ]
            if body.get("stream"):
                self._stream(message, finish, _usage(reply.tokens))
            else:
                choice = {"index": 0, "message": message, "finish_reason": finish}
                self._send(200, _completion("chat.completion", [choice]) | _usage(reply.tokens))

        def _send(self, status: int, body: Mapping[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, message: dict[str, Any], finish: str, usage: dict[str, Any]) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for index, call in enumerate(message.get("tool_calls", ())):
                call["index"] = index
            for delta, end in ((message, None), ({}, finish)):
                choice = {"index": 0, "delta": delta, "finish_reason": end}
                self._event(_completion("chat.completion.chunk", [choice]))
            self._event(_completion("chat.completion.chunk", []) | usage)
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, body: Mapping[str, object]) -> None:
            self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    return Handler


def _usage(tokens: int) -> dict[str, Any]:
    used = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
    return {"usage": used}


def _completion(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
        "choices": choices,
    }


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
