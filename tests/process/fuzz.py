"""Seeded nonsense for the daemon's two inputs: lines on the socket, files in the directory."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from typing import Any

from tests.harness import wire
from tests.harness.answers import document

CAP = 65536
ODD_TEXTS = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud83d",
    "\udc80 alone",
    "\ud83d\ude00",
    "é" * 50,
    "\u2028\u2029\u0085\x1c",
    "\ufeff",
    "MEDIA:/etc/passwd",
    "[[as_document]] [[audio_as_voice]]",
    "--to",
    "-h",
    "../../../etc/passwd",
    "HUB-Q:00000000000000000000000000: yes",
    "👩‍👩‍👧‍👦" * 40,
    "x" * 5000,
]
ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**400,
    [],
    {},
    [[]],
    {"a": None},
    "NaN",
    *ODD_TEXTS,
]
ODD_LINES = [
    b"null",
    b"true",
    b"0",
    b'""',
    b"[]",
    b"{}",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'{"type":"ping"} {"type":"ping"}',
    b'{"type":"ping","type":"cancel"}',
    b'\xef\xbb\xbf{"type":"ping"}',
    b'\xff\xfe{"type":"ping"}',
    b'{"type":"ping"',
    b'{"type":"p\xffng"}',
    b"1e999999",
    b"1" * 5000,
    b'{"msg_id":' + b"9" * 5000 + b',"type":"ping"}',
    b"[" * 20000,
    b"[" * 20000 + b"]" * 20000,
    b'{"a":' * 9000 + b"1" + b"}" * 9000,
    b'{"type":"ping","msg_id":"' + b"\\ud800" * 100 + b'"}',
    b"GET / HTTP/1.1",
    b"\x00" * 100,
]
TYPES: list[Any] = ["prompt", "cancel", "ping", "response", "ack", "", "PROMPT", None, 1, [], {}]


@dataclass
class Case:
    data: bytes
    pieces: int  # writes it is sent in
    whole: bool  # one line that is complete, not blank and within the cap: it gets one reply


class Lines:
    """Cases for the socket. `endpoints` are what a sender may claim to be."""

    def __init__(self, seed: int, endpoints: list[str]) -> None:
        self.random = random.Random(seed)
        self.endpoints = [
            *endpoints,
            "/nonexistent/x.sock",
            "/dev/null",
            "/tmp",
            "relative.sock",
            "",
            "\x00abstract",
            "/tmp/" + "long" * 100,
            "/tmp/\ud800",
        ]
        self.qids = [wire.ulid() for _ in range(20)]

    def case(self) -> Case:
        chance = self.random.random()
        if chance < 0.1:
            return self._long()
        if chance < 0.2:
            return self._several()
        body = self._body()
        blank = not body.strip(b" \t\r")
        if chance < 0.25:
            return Case(body, self.random.randint(1, 4), False)  # not terminated
        whole = b"\n" not in body and not blank and self._units(body) < CAP
        ending = b"\r\n" if self.random.random() < 0.1 else b"\n"
        return Case(body + ending, self.random.randint(1, 4), whole)

    @staticmethod
    def _units(body: bytes) -> int:
        text = body.decode("utf-8", "replace")
        return len(text.encode("utf-16-le", "replace")) // 2 + 2

    def _body(self) -> bytes:
        chance = self.random.random()
        if chance < 0.2:
            return self.random.choice(ODD_LINES)
        if chance < 0.3:
            return self.random.randbytes(self.random.randint(0, 300)).replace(b"\n", b"")
        body = wire.encode(self._envelope())[:-1]
        if chance < 0.5:
            return self._damage(body)
        return body

    def _envelope(self) -> dict[str, Any]:
        chance = self.random.random()
        known = self.random.choice(self.qids)
        if chance < 0.25:
            envelope = wire.ping(self.random.choice(ODD_TEXTS))
        elif chance < 0.5:
            envelope = wire.cancel(self.random.choice([known, "", "x"]))
        else:
            qid = self.random.choice([known, "not-a-ulid", "", known.lower(), known + "0"])
            text = self.random.choice(ODD_TEXTS)
            if self.random.random() < 0.5:
                text = json.dumps(
                    {"question": text, "options": self._values(), "context": self._value()}
                )
            envelope = wire.prompt(qid, text, self.random.choice(self.endpoints))
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            name = self.random.choice([*envelope, "reply_timeout_ms", "extra", "type"])
            if self.random.random() < 0.3:
                envelope.pop(name, None)
            else:
                envelope[name] = self.random.choice(TYPES) if name == "type" else self._value()
        return envelope

    def _value(self) -> Any:
        return self.random.choice(ODD_VALUES)

    def _values(self) -> Any:
        if self.random.random() < 0.2:
            return self._value()
        options = [self._value(), {"title": self._value(), "description": self._value()}, "A"]
        return options * self.random.choice([1, 1, 1, 60])

    def _damage(self, body: bytes) -> bytes:
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
        return bytes(data).replace(b"\n", b"")

    def _long(self) -> Case:
        """Around the cap, in characters of one, two, three and four bytes."""
        sign = self.random.choice(["a", "é", "漢", "🙂"])
        units = 2 if sign == "🙂" else 1
        size = self.random.choice([CAP // 2, CAP - 200, CAP - 100, CAP, CAP + 1, 3 * CAP])
        ping = wire.ping("p")
        ping["pad"] = sign * (size // units - 40)
        body = wire.encode(ping)[:-1]
        return Case(body + b"\n", self.random.randint(1, 8), self._units(body) < CAP)

    def _several(self) -> Case:
        lines = [self._body().replace(b"\n", b"") for _ in range(self.random.randint(2, 12))]
        return Case(b"\n".join(lines) + b"\n", self.random.randint(1, 6), False)


def _opener(path: str, flags: int) -> int:
    """Never through a link that lies there already, and no waiting for the reader of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)


class Files:
    """Cases for the questions directory."""

    def __init__(self, seed: int, directory: str, outside: str) -> None:
        """`outside` is a file of the test's own, which links point to."""
        self.random = random.Random(seed)
        self.directory = os.fsencode(directory)
        self.outside = outside
        self._count = 0

    def put(self, open_qids: list[str]) -> None:
        """Leaves one odd thing there, under a name of an answer file or nearly so."""
        path = os.path.join(self.directory, self._name(open_qids))
        chance = self.random.random()
        try:
            if chance < 0.03:
                os.mkfifo(path)
            elif chance < 0.06:
                os.symlink(self.random.choice([self.outside, "nowhere", ".", "loop"]), path)
            elif chance < 0.08:
                os.mkdir(path)
            elif chance < 0.10:
                with open(path, "xb") as file:
                    file.truncate(self.random.choice([2**20, 2**20 + 1, 2**30]))
            elif chance < 0.6:
                self._count += 1
                temp = path + b".%d.tmp" % self._count
                with open(temp, "xb") as file:
                    file.write(self._content(open_qids))
                os.rename(temp, path)
            else:
                with open(path, "wb", opener=_opener) as file:
                    file.write(self._content(open_qids))
        except OSError:
            pass  # the name is too long, or taken by a directory, or a pipe without a reader

    def _name(self, open_qids: list[str]) -> bytes:
        qid = self.random.choice([*open_qids, wire.ulid(), "0" * 26, "x"])
        return self.random.choice(
            [
                f"{qid}.answer.json".encode(),
                f"{qid}.answer.json".encode(),
                f"{qid}.answer.json".encode(),
                f"{wire.ulid()}.answer.json".encode(),
                f"{wire.ulid()}.answer.json".encode(),
                f"{qid.lower()}.answer.json".encode(),
                f"{qid}x.answer.json".encode(),
                b".answer.json",
                b"..answer.json",
                b"\xff\xfe%d.answer.json" % self.random.randrange(1000),
                b"line\nfeed%d.answer.json" % self.random.randrange(1000),
                b"n" * 243 + b".answer.json",
                "\U0001f642.answer.json".encode(),
            ]
        )

    def _content(self, open_qids: list[str]) -> bytes:
        qid = self.random.choice([*open_qids, wire.ulid()])
        fields = document(qid, self.random.choice(ODD_TEXTS))
        for _ in range(self.random.choice([0, 1, 1, 2])):
            name = self.random.choice([*fields, "extra"])
            if self.random.random() < 0.3:
                fields.pop(name, None)
            else:
                fields[name] = self.random.choice(ODD_VALUES)
        data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
        chance = self.random.random()
        if chance < 0.15:
            return self.random.choice(ODD_LINES)
        if chance < 0.3:
            return data[: self.random.randint(0, len(data))]
        if chance < 0.4:
            return self.random.randbytes(self.random.randint(0, 2000))
        return data
