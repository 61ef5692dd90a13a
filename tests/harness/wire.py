"""The coms wire by hand: envelopes, and exchanges of one line on a Unix socket.

Deliberately plain: `json.dumps`, sockets, deadlines. Nothing is checked here, so that a test can
send what it likes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
Fields = dict[str, Any]


def ulid() -> str:
    number = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def iso(seconds: float | None = None) -> str:
    at = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def question(text: str, options: list[Any] | None = None, context: str | None = None) -> str:
    """The JSON prompt of ask-user-remote: options always an array, context only when given."""
    body: Fields = {"question": text, "options": options or []}
    if context is not None:
        body["context"] = context
    return json.dumps(body, ensure_ascii=False)


def prompt(qid: str, text: str, endpoint: str, **more: Any) -> Fields:
    """A prompt envelope; keywords replace or add fields, a value of None leaves one out."""
    fields: Fields = {
        "type": "prompt",
        "msg_id": qid,
        "prompt": text,
        "sender_session": more.pop("sender_session", "session-of-" + qid),
        "sender_endpoint": endpoint,
        "sender_name": "tester",
        "sender_cwd": "/tmp/project",
        "hops": 0,
        "timestamp": iso(),
    }
    fields.update(more)
    return {name: value for name, value in fields.items() if value is not None}


def cancel(ref: str, sender: str = "ask-user-remote", to: str = "user-remote") -> Fields:
    return {
        "type": "cancel",
        "msg_id": ulid(),
        "from": sender,
        "to": to,
        "created_at": iso(),
        "ref_msg_id": ref,
    }


def ping(msg_id: str = "ping-1") -> Fields:
    return {"type": "ping", "msg_id": msg_id, "from": "tester", "timestamp": iso()}


def encode(fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


class Line:
    """One raw connection to the daemon. Reads raise TimeoutError at their deadline."""

    def __init__(self, endpoint: str, limit: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(limit)
        try:
            self.socket.connect(endpoint)
        except BaseException:
            self.socket.close()
            raise
        self.buffer = b""
        self.ended = False

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def read_line(self, limit: float = 5.0) -> bytes | None:
        """The next line without its newline; None when the daemon has ended its side."""
        deadline = time.monotonic() + limit
        while b"\n" not in self.buffer:
            if self.ended:
                return None
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self.socket.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.ended = True
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def read_json(self, limit: float = 5.0) -> Fields:
        line = self.read_line(limit)
        if line is None:
            raise ConnectionError("the daemon ended the connection without a reply")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError(f"the reply is no object: {line[:200]!r}")
        return reply

    def read_all(self, limit: float = 5.0) -> list[Fields]:
        """Every reply until the daemon ends its side."""
        replies = []
        while (line := self.read_line(limit)) is not None:
            replies.append(json.loads(line))
        return replies

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def exchange(endpoint: str, data: bytes | Fields, limit: float = 5.0) -> Fields:
    """Sends one line on a connection of its own and returns the reply to it."""
    with Line(endpoint, limit) as line:
        line.send(data if isinstance(data, bytes) else encode(data))
        return line.read_json(limit)
