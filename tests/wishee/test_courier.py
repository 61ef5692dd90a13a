import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes_bridges.wishee.courier import Courier
from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.outbox import Outbox


class Stage:
    """A courier between an outbox and a link that takes ``room`` frames."""

    def __init__(self, path: Path, disk: Disk) -> None:
        loop = asyncio.get_running_loop()
        self.disk = disk
        self.room = 100
        self.told: list[tuple[str, Callable[[bool], None]]] = []
        self.order: list[str] = []
        self.outbox = Outbox(str(path), disk)
        self.outbox.load()
        post = loop.call_soon_threadsafe
        self.courier = Courier(self.outbox, disk, self._offer, post, self._kept)

    def _kept(self, key: str) -> None:
        self.order.append(f"kept {key}")

    def _offer(self, frame: bytes, *, confirmed: Any = None, **more: Any) -> bool:
        if len(self.told) >= self.room:
            return False
        run_id = json.loads(frame)["payload"]["runId"]
        self.order.append(run_id)
        self.told.append((run_id, confirmed))
        return True

    def send(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.courier.send(run_id, "task-result", {"runId": run_id}, "u")

    def confirm(self, good: bool = True) -> None:
        told, self.told = self.told, []
        for _, confirmed in told:
            confirmed(good)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def stage(path: Path) -> AsyncIterator[Stage]:
    disk = Disk()
    try:
        yield Stage(path / "outbox.jsonl", disk)
    finally:
        assert disk.stop(5)


def test_W1_an_event_is_on_the_disk_before_it_goes_out(short_tmp: Path):
    async def scene() -> None:
        async with stage(short_tmp) as s:
            s.send("run-1")
            s.courier.pump()
            assert s.order == []
            await s.courier.saved(5)
            assert s.order == ["kept run-1", "run-1"]
            assert "run-1" in (short_tmp / "outbox.jsonl").read_text()

    asyncio.run(scene())


def test_W1_events_go_out_in_order_and_stay_until_they_are_confirmed(short_tmp: Path):
    async def scene() -> None:
        async with stage(short_tmp) as s:
            s.send("run-1", "run-2")
            await s.courier.saved(5)
            s.courier.pump()
            assert [one for one, _ in s.told] == ["run-1", "run-2"], "each one once"
            s.confirm(False)
            assert len(s.outbox) == 2
            await asyncio.sleep(0.01)
            s.courier.pump()
            assert [one for one, _ in s.told] == ["run-1", "run-2"]
            s.confirm()
            s.courier.pump()
            await s.until(lambda: len(s.outbox) == 0)
            await asyncio.sleep(0.02)
            s.courier.pump()
            assert s.told == []

    asyncio.run(scene())


def test_W1_what_found_no_room_follows_when_there_is_some(short_tmp: Path):
    async def scene() -> None:
        async with stage(short_tmp) as s:
            s.room = 2
            s.send(*(f"run-{n}" for n in range(5)))
            await s.courier.saved(5)
            for expected in (["run-0", "run-1"], ["run-2", "run-3"], ["run-4"]):
                await s.until(lambda: s.told)
                assert [one for one, _ in s.told] == expected
                s.confirm()
            await s.until(lambda: len(s.outbox) == 0)

    asyncio.run(scene())


def test_what_is_not_saved_yet_is_not_overtaken(short_tmp: Path):
    async def scene() -> None:
        async with stage(short_tmp) as s:
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()
            s.disk.submit(lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(5))
            s.send("run-1", "run-2")
            s.courier.pump()
            assert s.told == []
            await s.courier.saved(0.01)
            gate.set()
            await s.until(lambda: len(s.told) == 2)

    asyncio.run(scene())


def test_a_disk_that_is_gone_keeps_nothing_back(short_tmp: Path):
    async def scene() -> None:
        async with stage(short_tmp) as s:
            assert s.disk.stop(5)
            s.send("run-1")
            await s.courier.saved(5)
            assert [one for one, _ in s.told] == ["run-1"]
            s.confirm()
            await s.until(lambda: len(s.outbox) == 0)

    asyncio.run(scene())
