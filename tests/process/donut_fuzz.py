"""Seeded nonsense for the stream: frames that are nearly events, and frames that are nothing."""

from __future__ import annotations

import json
import random
from typing import Any

ODD_TEXTS = [
    "",
    " ",
    "\x00",
    "\ud83d",
    "\udc80 alone",
    "é" * 50,
    "\u2028\u2029\u0085",
    "\ufeff@helper",
    "@helper",
    "@HELPER: /new",
    "/reset",
    "https://x/?token=1",
    "a\r\nX-Injected: 1",
    "👩‍👩‍👧‍👦" * 40,
    "x" * 5000,
    "../../etc/passwd",
    "%s %d {0}",
]
ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**30,
    -(2**63),
    [],
    {},
    [[]],
    {"id": 1},
    "NaN",
    *ODD_TEXTS,
]
ODD_FRAMES = [
    b"",
    b"null",
    b"true",
    b"0",
    b'""',
    b"[]",
    b"{}",
    b"NaN",
    b"-Infinity",
    b"\xff\xfe\xfd",
    b"\xef\xbb\xbf{}",
    b'{"type":"message.new"',
    b'{"type":"p\xffng"}',
    b'{"type":{}}',
    b'{"type":[]}',
    b'{"type":"connected","bot":null}',
    b'{"type":"connected","bot":[77]}',
    b'{"type":"connected","bot":{"id":77,"username":5},"last_event_id":[],"replay":7}',
    b"1e999999",
    b"1" * 5000,
    b'{"event_id":' + b"9" * 5000 + b',"type":"x"}',
    b"[" * 20_000,
    b"[" * 20_000 + b"]" * 20_000,
    b'{"a":' * 9_000 + b"1" + b"}" * 9_000,
    b'{"type":"message.new","chat_id":"' + b"\\ud800" * 100 + b'"}',
    b"\x00" * 100,
    b'{"type":"x","pad":"' + b"x" * 300_000 + b'"}',
]
TYPES = [
    *["message.new"] * 8,
    "message.edited",
    "reaction.added",
    "member.added",
    "",
    "MESSAGE.NEW",
]


class Frames:
    """`chats` are those that exist at the hub, so that an answer finds its way."""

    def __init__(self, seed: int, chats: list[int]) -> None:
        self.random = random.Random(seed)
        self.chats = chats
        self._number = 0

    def next(self) -> tuple[bytes, bool]:
        """A frame, and whether it is to go as a binary one."""
        return self._frame(), self.random.random() < 0.1

    def _frame(self) -> bytes:
        chance = self.random.random()
        if chance < 0.15:
            return self.random.choice(ODD_FRAMES)
        if chance < 0.2:
            return self.random.randbytes(self.random.randint(0, 300))
        raw = json.dumps(self._event(), ensure_ascii=self.random.random() < 0.8)
        data = raw.encode("utf-8", "surrogatepass")
        return self._damaged(data) if chance < 0.4 else data

    def _event(self) -> dict[str, Any]:
        self._number += 1
        sender: dict[str, Any] = {"id": 5, "type": "user", "username": "ana"}
        message: dict[str, Any] = {"id": self._number, "content": "hi", "content_type": "TX"}
        event: dict[str, Any] = {"type": self.random.choice(TYPES), "chat_id": self._chat()}
        if self.random.random() < 0.5:
            event["event_id"] = f"f{self._number}"
        for fields in (sender, message, event):
            for _ in range(self.random.choice([0, 0, 0, 1, 2])):
                name = self.random.choice([*fields, "id", "event_id", "thread_id", "extra"])
                if self.random.random() < 0.3:
                    fields.pop(name, None)
                else:
                    fields[name] = self.random.choice(ODD_VALUES)
        message.setdefault("sender", sender)
        event.setdefault("message", message)
        wrapper = self.random.choice([None, None, None, "payload", "data"])
        if wrapper is not None:
            return {"type": event.pop("type", None), wrapper: event}
        return event

    def _chat(self) -> Any:
        if self.random.random() < 0.8:
            return self.random.choice(self.chats)
        return self.random.choice(ODD_VALUES)

    def _damaged(self, body: bytes) -> bytes:
        data = bytearray(body)
        for _ in range(self.random.randint(1, 6)):
            at = self.random.randrange(len(data)) if data else 0
            kind = self.random.random()
            if kind < 0.4 and data:
                data[at] = self.random.randrange(256)
            elif kind < 0.7:
                del data[at : at + self.random.randint(1, 10)]
            else:
                data[at:at] = self.random.randbytes(self.random.randint(1, 10))
        return bytes(data)
