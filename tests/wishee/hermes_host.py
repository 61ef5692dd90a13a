"""A Hermes for the tests of the connector's own side: a host that does what a test says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hermes_bridges.wishee.runs import Run
from hermes_bridges.wishee.sessionkeys import Chat

SHORT = "agent:main:main"
STORED = "agent:main:wishee:dm:agent:main:main"


def build(chat: Chat) -> str:
    thread = f":{chat.thread_id}" if chat.thread_id else ""
    return f"agent:main:wishee:{chat.chat_type}:{chat.chat_id}{thread}"


class FakeHost:
    """Each turn waits in ``turns`` until ``answer`` gives it what it returns or raises.

    ``at_once`` are the texts that are answered at once, with what.
    """

    version = "0.22.0"

    def __init__(self) -> None:
        self.resumes_within = 0.0
        self.ready = True
        self.stopping = False
        self.goes_on = True
        self.turns: dict[str, asyncio.Future[str]] = {}
        self.at_once: dict[str, str] = {}
        self.handled: list[tuple[Chat, str]] = []
        self.were_reset: list[tuple[str, Run | None]] = []
        self.sessions = {STORED}

    def build(self, chat: Chat) -> str:
        return build(chat)

    async def handle(self, chat: Chat, text: str, message_id: str) -> str:
        self.handled.append((chat, text))
        if text in self.at_once:
            return self.at_once[text]
        future = self.turns[text] = asyncio.get_running_loop().create_future()
        return await future

    def answer(self, text: str, result: str | Exception) -> None:
        future = self.turns.pop(text)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def is_ready(self) -> bool:
        return self.ready

    def is_stopping(self) -> bool:
        return self.stopping

    def resumes(self) -> bool:
        return self.goes_on

    async def reset(self, stored: str, run: Run | None, read: Callable[..., Any]) -> bool:
        self.were_reset.append((stored, run))
        return stored in self.sessions


class FakeReads:
    """Reads that answer with what a test has put there; ``fault`` is raised by all of them."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.asked: list[tuple[Any, ...]] = []

    def _note(self, *what: Any) -> None:
        self.asked.append(what)
        if self.fault is not None:
            raise self.fault

    def session_id(self, *keys: str) -> str | None:
        self._note("session_id", *keys)
        return "s1"

    def max_message_id(self) -> int:
        self._note("max_message_id")
        return 7

    def history(self, keys: Sequence[str], limit: int) -> list[dict[str, Any]]:
        self._note("history", tuple(keys), limit)
        return [{"role": "user", "content": "a"}]

    def turns(self, keys: Sequence[str], limit: int, recalls: Sequence[Any]) -> list[Any]:
        self._note("turns", tuple(keys), limit, [one.message for one in recalls])
        return []

    def sessions(self, working: set[str], ours: bool) -> list[dict[str, Any]]:
        self._note("sessions", working, ours)
        return []

    def usage(self) -> dict[str, Any]:
        self._note("usage")
        names = ("input", "output", "cacheRead", "cacheWrite", "total")
        return {**dict.fromkeys(names, 0), "costUsd": 0.0, "model": "m"}

    def context(self, stored: str) -> dict[str, Any] | None:
        self._note("context", stored)
        return {"usedTokens": 1, "contextWindow": 2}
