import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_bridges.wishee import requests
from hermes_bridges.wishee.history import HistoryFailed
from hermes_bridges.wishee.protocol import BadParams, Request
from hermes_bridges.wishee.requests import AT_ONCE, BYTES_MAX, OWN_LANE, WAITING_MAX, Reply


class Stage:
    """``slow`` waits for ``gate``; ``fault`` raises what its params are."""

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.gate = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.done: list[str] = []
        self.busy = self.most = 0
        handlers = {
            "slow": self._slow,
            "quick": self._quick,
            "fault": self._fault,
            OWN_LANE: self._quick,
        }
        self.requests = requests.Requests(
            handlers, self._offer, loop.call_soon_threadsafe, seconds=seconds
        )

    def _offer(self, frame: bytes, **more: Any) -> bool:
        self.sent.append(json.loads(frame))
        return True

    async def _slow(self, params: object) -> Reply:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await self.gate.wait()
        finally:
            self.busy -= 1
        return Reply("slow")

    async def _quick(self, params: object) -> Reply:
        return Reply(params, lambda: self.done.append(f"behind {len(self.sent)}"))

    async def _fault(self, params: Any) -> Reply:
        raise params

    def ask(self, id: object, method: str, params: object = None, size: int = 10) -> None:
        self.requests.take(Request(id, method, params), size)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def stage(seconds: float = 50.0) -> AsyncIterator[Stage]:
    made = Stage(seconds)
    yield made
    await made.requests.stop(5)


def test_a_request_is_answered_and_what_follows_comes_behind_the_res():
    async def scene() -> None:
        async with stage() as s:
            s.ask({"any": ["value"]}, "quick", {"a": 1})
            await s.until(lambda: s.done)
            (res,) = s.sent
            assert res == {"type": "res", "id": {"any": ["value"]}, "ok": True, "payload": {"a": 1}}
            assert s.done == ["behind 1"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (BadParams("limit: must be a number"), "limit: must be a number"),
        (HistoryFailed("state.db: locked"), "state.db: locked"),
        (KeyError("a secret"), "internal fault: KeyError"),
    ],
)
def test_W26_a_fault_is_an_error_res(fault: Exception, told: str):
    async def scene() -> None:
        async with stage() as s:
            s.ask(1, "fault", fault)
            s.ask(2, "nonsense")
            await s.until(lambda: len(s.sent) == 2)
            assert s.sent[0] == {"type": "res", "id": 1, "ok": False, "error": {"message": told}}
            assert s.sent[1]["error"]["message"] == "unknown method: nonsense"

    asyncio.run(scene())


def test_W18_sixteen_at_once_and_an_answer_to_a_card_does_not_wait_behind_them():
    async def scene() -> None:
        async with stage() as s:
            for number in range(AT_ONCE + 4):
                s.ask(number, "slow")
            s.ask("later", "quick")
            s.ask("card", OWN_LANE)
            await s.until(lambda: s.sent)
            assert [res["id"] for res in s.sent] == ["card"] and s.most == AT_ONCE
            s.gate.set()
            await s.until(lambda: len(s.sent) == AT_ONCE + 6)
            assert s.most == AT_ONCE

    asyncio.run(scene())


def test_W18_a_slow_request_holds_up_no_other():
    async def scene() -> None:
        async with stage() as s:
            s.ask(1, "slow")
            s.ask(2, "quick")
            await s.until(lambda: s.sent)
            assert [res["id"] for res in s.sent] == [2]

    asyncio.run(scene())


def test_each_request_is_answered_in_time():
    async def scene() -> None:
        async with stage(seconds=0.05) as s:
            s.ask(1, "slow")
            await s.until(lambda: s.sent)
            assert s.sent[0]["error"]["message"] == "this took too long" and s.busy == 0

    asyncio.run(scene())


def test_what_is_too_much_is_refused_at_once_and_there_is_room_again_later():
    async def scene() -> None:
        async with stage() as s:
            for number in range(AT_ONCE + WAITING_MAX + 2):
                s.ask(number, "slow")
            assert [res["id"] for res in s.sent] == [
                AT_ONCE + WAITING_MAX,
                AT_ONCE + WAITING_MAX + 1,
            ]
            assert all(not res["ok"] for res in s.sent)
            s.gate.set()
            await s.until(lambda: len(s.sent) == AT_ONCE + WAITING_MAX + 2)
            s.sent.clear()
            s.ask("a", "slow", size=BYTES_MAX)
            s.ask("b", "slow", size=1)
            await s.until(lambda: len(s.sent) == 2)
            assert [(res["id"], res["ok"]) for res in s.sent] == [("b", False), ("a", True)]

    asyncio.run(scene())


def test_a_stop_gives_up_what_is_in_hand():
    async def scene() -> None:
        async with stage() as s:
            for number in range(AT_ONCE + 4):
                s.ask(number, "slow")
            await s.until(lambda: s.busy == AT_ONCE)
            await s.requests.stop(5)
            assert s.busy == 0 and s.sent == []

    asyncio.run(scene())
