"""Answer files: as the hub-liaison skill writes them, and in every bad way.

`Answers` writes one file at a time and notes it in `answers.ndjson`: `valid` says whether the
daemon must take it, so that the judge knows which answers must not be lost. `Phone` is a thread
that plays the human: it answers whatever the fake `hermes` delivered.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from . import wire
from .daemon import Call, Hermes, Home
from .journal import Journal

Fields = dict[str, Any]


def document(qid: str, text: str, **more: Any) -> Fields:
    """An answer document; keywords replace or add fields, a value of None leaves one out."""
    fields = {"qid": qid, "answer": text, "answered_by": "telegram:tester", "at": wire.iso()}
    fields.update(more)
    return {name: value for name, value in fields.items() if value is not None}


def no_follow(path: str, flags: int) -> int:
    """For `open`: tests leave links about and may run as root; none is ever written through."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


class Answers:
    def __init__(self, home: Home, directory: str | None = None) -> None:
        self.directory = directory or home.questions
        self.journal = Journal(os.path.join(home.journals, "answers.ndjson"))
        self._lock = threading.Lock()  # guards _count, for temp names that are never used twice
        self._count = 0

    def path(self, qid: str) -> str:
        return os.path.join(self.directory, qid + ".answer.json")

    def _temp(self, qid: str) -> str:
        with self._lock:
            self._count += 1
            return os.path.join(self.directory, f".{qid}.answer.json.{self._count}.tmp")

    def note(self, qid: str, text: str | None, how: str, valid: bool) -> None:
        self.journal.note("answer", qid=qid, text=text, how=how, valid=valid)

    def write(self, qid: str, text: str, **more: Any) -> None:
        """Atomically, as the skill does: a temp name in the same directory, then rename."""
        self.put(qid, json.dumps(document(qid, text, **more)).encode(), text)

    def put(self, qid: str, data: bytes, text: str | None = None, how: str = "atomic") -> None:
        """Any bytes, atomically. `text` is what the asker must get; None: not a valid answer."""
        temp = self._temp(qid)
        with open(temp, "xb") as file:
            file.write(data)
        self.note(qid, text, how, valid=text is not None)  # before: nobody may know it earlier
        os.rename(temp, self.path(qid))
        self.journal.note("written", qid=qid)

    def in_place(self, qid: str, text: str, **more: Any) -> None:
        """A plain open and write at the final name."""
        self.note(qid, text, "in place", valid=True)
        with open(self.path(qid), "wb", opener=no_follow) as file:
            file.write(json.dumps(document(qid, text, **more)).encode())
        self.journal.note("written", qid=qid)

    def with_bom(self, qid: str, text: str) -> None:
        self.put(qid, b"\xef\xbb\xbf" + json.dumps(document(qid, text)).encode(), text, "bom")

    def with_raw_newline(self, qid: str, text: str) -> None:
        """`text` holds newlines, and they stand raw inside the JSON string."""
        data = json.dumps(document(qid, text)).replace("\\n", "\n").encode()
        self.put(qid, data, text, "raw newline")

    def partial(self, qid: str, text: str, keep: float = 0.5) -> None:
        """The first part of a document and nothing more."""
        data = json.dumps(document(qid, text)).encode()
        self.note(qid, None, "partial", valid=False)
        with open(self.path(qid), "wb", opener=no_follow) as file:
            file.write(data[: max(1, int(len(data) * keep))])

    def slowly(self, qid: str, text: str, pieces: int = 5) -> SlowAnswer:
        """At the final name, piece by piece, each when the test says so."""
        return SlowAnswer(self, qid, text, pieces)

    def symlink(self, qid: str, target: str) -> None:
        self.note(qid, None, "symlink", valid=False)
        os.symlink(target, self.path(qid))

    def fifo(self, qid: str) -> None:
        self.note(qid, None, "fifo", valid=False)
        os.mkfifo(self.path(qid))

    def sparse(self, qid: str, size: int) -> None:
        """A file of that size that takes no room."""
        self.note(qid, None, "sparse", valid=False)
        temp = self._temp(qid)
        with open(temp, "xb") as file:
            file.truncate(size)
        os.rename(temp, self.path(qid))

    def stray(self, name: str, data: bytes = b"x") -> str:
        """A file of any other name, for instance a writer's temp file; returns its path."""
        path = os.path.join(self.directory, name)
        with open(path, "wb", opener=no_follow) as file:
            file.write(data)
        return path

    def waiting(self, qid: str) -> bool:
        """Whether the file still lies there."""
        return os.path.lexists(self.path(qid))

    def close(self) -> None:
        self.journal.close()


class SlowAnswer:
    """A document written in pieces. The answer counts as written with its last piece."""

    def __init__(self, answers: Answers, qid: str, text: str, pieces: int) -> None:
        data = json.dumps(document(qid, text)).encode()
        size = -(-len(data) // pieces)
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)]
        self.answers, self.qid, self.text = answers, qid, text
        self.file = open(answers.path(qid), "wb", buffering=0, opener=no_follow)

    def step(self) -> bool:
        """Writes the next piece; False when that was the last one."""
        if len(self.pieces) == 1:
            self.answers.note(self.qid, self.text, "slow", valid=True)
        self.file.write(self.pieces.pop(0))
        if not self.pieces:
            self.file.close()
        return bool(self.pieces)


class Phone(threading.Thread):
    """Plays the human: answers each question once, when the fake `hermes` has delivered it.

    reply: text for a call, or None to leave that question alone; called on this thread.
    delay: (low, high) seconds between delivery and answer, drawn from `seed`.
    write: how; default `Answers.write`.
    """

    def __init__(
        self,
        hermes: Hermes,
        answers: Answers,
        reply: Callable[[Call], str | None],
        *,
        delay: tuple[float, float] = (0.0, 0.0),
        seed: int = 0,
        write: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(name="phone", daemon=True)
        self.hermes, self.answers, self.reply = hermes, answers, reply
        self.delay, self.random = delay, random.Random(seed)
        self.write = write or answers.write
        self.answered: set[str] = set()
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._offset = 0
        self._begun: dict[int, Fields] = {}
        self._due: list[tuple[float, str, str]] = []

    def run(self) -> None:
        try:
            while not self._ended.wait(0.005):
                self._look()
                self._answer()
        except BaseException as error:
            self.error = error
            raise

    def _look(self) -> None:
        lines = []
        with contextlib.suppress(FileNotFoundError), open(self.hermes.journal, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            complete = data.rfind(b"\n") + 1
            self._offset += complete
            lines = data[:complete].split(b"\n")[:-1]
        for line in lines:
            note = json.loads(line)
            if note["what"] == "begin":
                self._begun[note["call"]] = note
            elif note["what"] == "end" and note["code"] == 0:
                self._delivered(Call(self._begun.pop(note["call"])), note["t"])

    def _delivered(self, call: Call, at: float) -> None:
        if call.kind != "question" or call.qid is None or call.qid in self.answered:
            return
        text = self.reply(call)
        if text is not None:
            self.answered.add(call.qid)
            self._due.append((at + self.random.uniform(*self.delay), call.qid, text))

    def _answer(self) -> None:
        now = time.monotonic()
        due = [item for item in self._due if item[0] <= now]
        self._due = [item for item in self._due if item[0] > now]
        for _, qid, text in due:
            self.write(qid, text)

    @property
    def idle(self) -> bool:
        return not self._due

    def close(self) -> None:
        """Ends the thread; what is due but not written yet is never written."""
        self._ended.set()
        self.join(10)
        if self.error is not None:
            raise self.error
