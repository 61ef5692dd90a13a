"""What is done from time to time: the outbox of section 4, the ages of section 5."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.chats import Chats, Lane
from hermes_bridges.core.status import Status
from hermes_bridges.donut.store import Part, Store
from hermes_bridges.donut.turns import Ask
from hermes_bridges.donut.upkeep import OUTBOX_EVERY, PRUNE_EVERY, Upkeep
from tests.conftest import wait
from tests.donut.rig import LONG, NOON, Rig, counters, running

DAY = 24 * 3600.0


class House:
    """The upkeep, turned by hand, of a store and of chats that only note that they were woken."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now, self.wall = 1000.0, NOON
        self.woken: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.store = Store(str(root), wall=lambda: self.wall)
        self.chats: Chats[Ask] = Chats(self._handle, 20, 60.0)
        self.status = Status(str(root / "status.json"))
        self.upkeep = Upkeep(self.store, self.chats, self.status, wall=lambda: self.wall)

    def _handle(self, worker: Lane, ask: Ask | None) -> None:
        assert ask is None
        self.woken.append(worker.key)
        assert self.gate.wait(LONG)

    def fill(self, chat: str, text: str = "an answer") -> None:
        part = Part(0, chat, chat, None, None, f"{chat}:k:1", f"{chat}:k", 1, text, self.wall)
        self.store.settle(chat, f"m{self.wall}", parts=[part])

    def turn(self, later: float = 0.0) -> float:
        """Seconds until the next step."""
        self.now += later
        self.wall += later
        due = self.upkeep.step(self.now)
        assert due is not None
        return due - self.now

    def since(self) -> list[str]:
        """The chats that were woken since the last call."""
        assert wait(lambda: not self.chats.busy, LONG) or self.chats.busy > 32
        found, self.woken[:] = sorted(self.woken), []
        return found

    def count(self, name: str) -> int:
        return counters(self.status, self.root / "status.json").get(name, 0)

    def close(self) -> None:
        self.gate.set()
        self.chats.stop()
        self.chats.close()
        self.store.close()


@pytest.fixture
def house(tmp_path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_the_outbox_is_tried_at_the_start_and_every_60_seconds(house) -> None:
    house.fill("a")
    house.fill("b")
    house.upkeep.begin()
    assert house.turn() == OUTBOX_EVERY == 60.0
    assert wait(lambda: len(house.woken) == 2, LONG) and house.since() == ["a", "b"]
    house.turn(59.9)
    assert house.since() == []
    house.turn(0.1)
    assert wait(lambda: len(house.woken) == 2, LONG) and house.since() == ["a", "b"]


def test_nothing_is_posted_before_it_is_known_whose_state_it_is(house) -> None:
    house.fill("a")
    for _ in range(3):
        house.turn(100.0)
    assert house.chats.workers == 0
    house.upkeep.begin()
    house.upkeep.wait(LONG)
    house.turn()
    assert wait(lambda: house.woken, LONG)
    # Other connections of the same hub bring nothing forward.
    house.upkeep.begin()
    assert house.turn(1.0) == 59.0


def test_a_long_outbox_wakes_a_handful_at_a_time(house) -> None:
    for number in range(80):
        house.fill(f"{number:03}")
    house.upkeep.begin()
    assert house.turn() == 1.0
    assert wait(lambda: len(house.woken) == 32, LONG) and len(house.since()) == 32
    assert house.turn(1.0) == 1.0
    assert wait(lambda: len(house.woken) == 32, LONG)
    assert house.since() == [f"{number:03}" for number in range(32, 64)]
    # The last ones; the next round begins a minute later.
    assert house.turn(1.0) == 60.0
    assert wait(lambda: len(house.woken) == 16, LONG)


def test_no_further_handful_while_too_many_chats_are_busy(house) -> None:
    for number in range(80):
        house.fill(f"{number:03}")
    house.gate.clear()
    house.chats.poke("busy")
    house.upkeep.begin()
    house.turn()
    assert wait(lambda: house.chats.busy == 33, LONG)
    for _ in range(5):
        assert house.turn(1.0) == 1.0
    assert house.chats.busy == 33
    house.gate.set()
    assert wait(lambda: not house.chats.busy, LONG)
    house.turn(1.0)
    assert wait(lambda: len(house.woken) == 65, LONG)


def test_an_answer_is_given_up_after_a_day(house, caplog) -> None:
    house.fill("old", "sesame")
    house.turn(DAY - 60)
    house.fill("new")
    house.turn(120.0 + PRUNE_EVERY)
    assert [house.store.outbox_size(), house.count("expired")] == [1, 1]
    assert house.store.outbox_chats(9) == ["new"]
    assert "chat old" in caplog.text and "sesame" not in caplog.text


def test_what_was_settled_is_forgotten_after_a_day(house) -> None:
    house.store.settle("a", "1")
    house.turn(DAY - 60)
    assert house.store.is_settled("a", "1")
    house.store.settle("a", "2")
    house.turn(PRUNE_EVERY + 120)
    assert not house.store.is_settled("a", "1") and house.store.is_settled("a", "2")


def test_the_stop_ends_its_wait(house) -> None:
    house.turn()
    house.upkeep.stop()
    house.upkeep.wait(LONG)
    assert house.upkeep.step(house.now) is None


# --- with a hub


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    with running(tmp_path) as rig:
        yield rig


def test_what_a_hub_did_not_take_is_posted_by_the_next_start(rig) -> None:
    rig.hub.send_status(503, times=None)
    rig.ask("one")
    rig.ask("two", chat=2)
    rig.reopen()
    rig.hub.heal()
    chats: Any = rig.chats()
    upkeep = Upkeep(rig.store, chats, rig.status, wall=rig.time.wall)
    upkeep.begin()
    upkeep.step(0.0)
    assert rig.until(lambda: rig.said() == ["re: one"] and rig.said(2) == ["re: two"])
    chats.stop()
    chats.close()
    assert rig.store.outbox_size() == 0 and len({n["key"] for n in rig.sends()}) == 2
