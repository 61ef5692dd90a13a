import gc
import logging
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hermes_bridges.core.chats import Chats, Lane, WorkerDied
from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.service import Service
from tests.conftest import wait


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert wait(lambda: set(threading.enumerate()) <= before, 3), threading.enumerate()


class Rig:
    """Chats whose handler writes down what it gets, and can be held back."""

    def __init__(self, limit: int = 20, idle: float = 30.0, **options) -> None:
        self.done: list[tuple[str, Any]] = []
        self.drained: list[str] = []
        self.threads: dict[str, set[str]] = defaultdict(set)
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Semaphore(0)
        self.act: Callable[[Lane, object], object] = lambda lane, item: None
        self.chats: Chats = Chats(
            self.handle, limit, idle, on_drained=self.drained.append, **options
        )

    def handle(self, lane: Lane, item: object) -> None:
        self.inside.release()
        self.gate.wait()
        self.threads[lane.key].add(threading.current_thread().name)
        self.act(lane, item)
        self.done.append((lane.key, item))

    def hold(self, *keys: str) -> None:
        """Have each of these keys busy with an item, ``held``, until ``gate`` is set."""
        self.gate.clear()
        for key in keys:
            assert self.chats.put(key, "held") is None
            assert self.inside.acquire(timeout=5)

    def all_done(self, n: int) -> bool:
        return wait(lambda: len(self.done) >= n and self.chats.busy == 0, 10, 0.002)

    def end(self) -> None:
        self.gate.set()
        self.chats.stop()
        self.chats.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.end()


def test_the_limit_is_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        Chats(print, 0, 1)


def test_the_order_of_a_key_is_kept_and_it_has_one_item_in_hand():
    rig = Rig(limit=1000)
    inside: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    rand = random.Random(1)

    def act(lane, item):
        inside[lane.key] += 1
        most[lane.key] = max(most[lane.key], inside[lane.key])
        if rand.random() < 0.05:
            time.sleep(0.001)
        inside[lane.key] -= 1

    rig.act = act
    keys = [f"k{n}" for n in range(20)]
    for number in range(100):
        for key in keys:
            assert rig.chats.put(key, number) is None
    assert rig.all_done(2000)
    for key in keys:
        assert [item for k, item in rig.done if k == key] == list(range(100))
        assert most[key] == 1
        assert len(rig.threads[key]) == 1
    assert rig.chats.workers == 20
    rig.end()


def test_keys_run_side_by_side(rig: Rig):
    rig.hold("a", "b", "c")
    assert (rig.chats.busy, rig.chats.queued, rig.chats.workers) == (3, 0, 3)
    rig.gate.set()
    assert rig.all_done(3)
    names = set().union(*rig.threads.values())
    assert names == {"chat-1", "chat-2", "chat-3"}


def test_a_full_queue_gives_up_the_one_that_has_waited_longest():
    rig = Rig(limit=3)
    rig.hold("a")
    assert [rig.chats.put("a", n) for n in range(6)] == [None, None, None, 0, 1, 2]
    assert rig.chats.queued == 3
    assert rig.chats.put("b", "other") is None
    rig.gate.set()
    assert rig.all_done(5)
    assert [item for key, item in rig.done if key == "a"] == ["held", 3, 4, 5]
    rig.end()


def test_a_forced_item_gives_up_none():
    rig = Rig(limit=3)
    rig.hold("a")
    assert [rig.chats.put("a", n, force=True) for n in range(10)] == [None] * 10
    assert rig.chats.queued == 10
    rig.gate.set()
    assert rig.all_done(11)
    assert [item for _, item in rig.done] == ["held", *range(10)]
    rig.end()


def test_what_was_forced_in_is_not_given_up_for_what_comes_after_it():
    rig = Rig(limit=2)
    rig.hold("a")
    for number in range(3):
        assert rig.chats.put("a", number, force=True) is None
    assert [rig.chats.put("a", n) for n in range(3, 7)] == [None, None, 3, 4]
    assert rig.chats.put("a", 7, force=True) is None
    assert rig.chats.queued == 6
    assert rig.chats.put("a", 8) == 5
    rig.gate.set()
    assert rig.all_done(7)
    assert [item for _, item in rig.done] == ["held", 0, 1, 2, 6, 7, 8]
    rig.end()


def test_drained_is_told_after_the_last_item_only(rig: Rig):
    rig.hold("a")
    for number in range(5):
        rig.chats.put("a", number)
    assert rig.drained == []
    rig.gate.set()
    assert rig.all_done(6)
    assert wait(lambda: rig.drained == ["a"], 5)
    rig.chats.poke("a")
    assert rig.all_done(7)
    rig.chats.put("a", "more")
    assert rig.all_done(8)
    assert wait(lambda: rig.drained == ["a", "a"], 5)


def test_a_poke_comes_before_the_next_item_and_takes_no_place():
    rig = Rig(limit=2)
    rig.hold("a")
    assert rig.chats.put("a", 1) is None
    for _ in range(5):
        rig.chats.poke("a")
    assert rig.chats.queued == 1
    assert rig.chats.put("a", 2) is None
    rig.gate.set()
    assert rig.all_done(4)
    assert [item for _, item in rig.done] == ["held", None, 1, 2]
    rig.end()


def test_a_poke_starts_a_worker_and_wakes_one_that_idles(rig: Rig):
    rig.chats.poke("a")
    assert rig.all_done(1)
    assert wait(lambda: rig.chats.workers == 1, 1)
    rig.chats.poke("a")
    assert rig.all_done(2)
    assert rig.done == [("a", None)] * 2
    assert rig.threads["a"] == {"chat-1"}


def test_a_worker_retires_after_the_idle_time_and_not_before():
    rig = Rig(idle=0.3)
    before = time.monotonic()
    rig.chats.put("a", 1)
    assert wait(lambda: rig.chats.workers == 0, 5)
    assert time.monotonic() - before > 0.29
    rig.chats.put("a", 2)
    assert rig.all_done(2)
    assert rig.threads["a"] == {"chat-1", "chat-2"}
    rig.end()


def test_at_most_so_many_workers_idle():
    rig = Rig(most_idle=5)
    keys = [f"k{n}" for n in range(30)]
    rig.hold(*keys)
    assert rig.chats.workers == 30
    rig.gate.set()
    assert rig.all_done(30)
    assert wait(lambda: rig.chats.workers == 5, 5)
    assert not wait(lambda: rig.chats.workers != 5, 0.1)
    for key in keys:
        rig.chats.put(key, "again")
    assert rig.all_done(60)
    assert wait(lambda: rig.chats.workers == 5, 5)
    rig.end()


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize("idle", [0.0, 0.0001, 0.001])
def test_KH10_nothing_is_lost_between_the_last_look_and_the_exit(counts, idle):
    times = counts(2500, 50_000)
    handled = threading.Semaphore(0)
    got: list[int] = []
    rand = random.Random(int(idle * 10_000))

    def handle(lane, item):
        if item is not None:
            got.append(item)
        handled.release()

    chats: Chats = Chats(handle, 20, idle)
    for number in range(times):
        if number % 4:
            assert chats.put("a", number) is None
        else:
            chats.poke("a")
        assert handled.acquire(timeout=10), f"item {number} was left behind"
        # Spread around the moment in which the worker goes.
        spin(rand.random() * 2 * idle)
    assert got == [number for number in range(times) if number % 4]
    chats.stop()
    chats.close()


def test_many_threads_put_for_the_same_new_key():
    """Each may start a worker: one of them gets the key, and the others end."""
    for _ in range(50):
        rig = Rig(limit=1000)
        barrier = threading.Barrier(8)

        def put(number, rig=rig, barrier=barrier):
            barrier.wait(10)
            for item in range(5):
                assert rig.chats.put("a", (number, item)) is None

        threads = [threading.Thread(target=put, args=(n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert rig.all_done(40)
        for number in range(8):
            mine = [item for _, item in rig.done if item[0] == number]
            assert mine == [(number, item) for item in range(5)]
        assert len(rig.threads["a"]) == 1
        assert rig.chats.workers == 1
        rig.end()


ENDS: list[BaseException] = [ValueError("odd"), SystemExit(3), KeyboardInterrupt(), MemoryError()]


@pytest.mark.parametrize("fault", ENDS, ids=lambda fault: type(fault).__name__)
def test_KH10_whatever_ends_a_handler_ends_the_stage(fault, caplog):
    rig = Rig()
    rig.hold("a", "b")
    rig.chats.put("a", "next")
    rig.chats.put("b", "next")

    def act(lane, item):
        if lane.key == "a":
            lane.expect(0)
            raise fault

    rig.act = act
    assert rig.chats.step(time.monotonic()) is None
    rig.gate.set()
    before = time.monotonic()
    rig.chats.wait(30)
    assert time.monotonic() - before < 5
    with pytest.raises(WorkerDied):
        rig.chats.step(time.monotonic())
    # What waits behind it stays unhandled: nothing overtakes it.
    assert wait(lambda: ("b", "held") in rig.done, 5)
    assert rig.chats.put("c", "late") == "late"
    assert rig.chats.put("a", "late") == "late"
    rig.chats.close()
    assert all(key != "a" for key, _ in rig.done)
    assert not rig.chats.overdue(time.monotonic() + 1)
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info and record.exc_info[1] is fault
    assert "worker of chat a died" in record.getMessage()


def test_an_exception_of_on_drained_ends_the_stage_too(caplog):
    def fail(key):
        raise ValueError

    chats: Chats = Chats(lambda lane, item: None, 1, 30, on_drained=fail)
    chats.put("a", 1)
    chats.wait(5)
    with pytest.raises(WorkerDied):
        chats.step(time.monotonic())
    chats.close()


def test_a_death_after_the_stop_is_seen_by_close(caplog):
    rig = Rig()
    rig.hold("a")

    def act(lane, item):
        raise ValueError

    rig.act = act
    rig.chats.stop()
    assert rig.chats.step(time.monotonic()) is None
    rig.gate.set()
    with pytest.raises(WorkerDied):
        rig.chats.close()


def test_a_death_ends_the_service_with_70(caplog):
    rig = Rig()

    def act(lane, item):
        raise SystemExit(0)

    rig.act = act
    service = Service("x", Notifier({}))
    service.add("x.chats", rig.chats, 1)
    code = service.run(lambda: rig.chats.put("a", 1) and None)
    assert code == 70
    assert not service.hung


def test_stop_begins_nothing_and_lets_the_one_in_hand_end(rig: Rig):
    rig.hold("a", "b")
    for number in range(3):
        rig.chats.put("a", number)
    rig.chats.poke("b")
    rig.chats.stop()
    assert rig.chats.put("a", "late") == "late"
    assert rig.chats.put("new", "late") == "late"
    rig.chats.poke("new")
    assert not wait(lambda: rig.done, 0.1)
    rig.gate.set()
    rig.chats.close()
    assert sorted(rig.done) == [("a", "held"), ("b", "held")]
    assert rig.chats.queued == 3
    assert (rig.chats.busy, rig.chats.workers) == (0, 0)


def test_stop_ends_the_waits_at_once():
    rig = Rig()
    keys = [f"k{n}" for n in range(50)]
    for key in keys:
        rig.chats.put(key, 1)
    assert rig.all_done(50)
    before = time.monotonic()
    rig.chats.stop()
    rig.chats.wait(None)
    rig.chats.close()
    assert time.monotonic() - before < 2


def test_puts_against_the_stop_come_back_or_wait_and_none_is_begun():
    for _ in range(100):
        rig = Rig(limit=1000)
        put_back: list[int] = []
        taken: list[int] = []
        begun = threading.Event()

        def put(rig=rig, put_back=put_back, taken=taken, begun=begun):
            for number in range(50):
                (put_back if rig.chats.put(f"k{number % 7}", number) is not None else taken).append(
                    number
                )
                begun.set()

        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        begun.wait()
        rig.chats.stop()
        rig.chats.close()
        finished = len(rig.done)
        thread.join(10)
        assert len(put_back) + len(taken) == 50
        assert len(rig.done) == finished
        assert len(taken) == finished + rig.chats.queued
        assert rig.chats.busy == 0


def test_no_thread_to_be_had(rig: Rig, caplog):
    old = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        assert rig.chats.put("a", "first") == "first"
        rig.chats.poke("a")
    finally:
        threading.stack_size(old)
    assert (rig.chats.workers, rig.chats.queued) == (0, 0)
    assert "no worker for chat a" in caplog.text
    assert rig.chats.put("a", "second") is None
    assert rig.all_done(1)
    assert rig.done == [("a", "second")]


def test_overdue_is_who_takes_longer_than_it_told():
    now = [100.0]
    lanes: dict[str, Lane] = {}
    told, go = threading.Event(), threading.Event()

    def handle(lane, item):
        lanes[lane.key] = lane
        lane.expect(5)
        told.set()
        go.wait()

    chats: Chats = Chats(handle, 20, 30, clock=lambda: now[0])
    assert not chats.overdue(1e9)
    chats.put("a", 1)
    assert told.wait(5)
    assert not chats.overdue(105.0)
    assert chats.overdue(105.1)
    now[0] = 103
    lanes["a"].expect(5)
    assert not chats.overdue(107.9)
    lanes["a"].expect(None)
    assert not chats.overdue(1e9)
    lanes["a"].expect(1)
    go.set()
    assert wait(lambda: chats.busy == 0, 5)
    assert not chats.overdue(1e9)
    chats.stop()
    chats.close()


def rss() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_10_000_keys_seen_and_threads_and_memory_are_back_to_base(counts):
    rig = Rig(idle=0.2, most_idle=50)
    threads = threading.active_count()
    seen = 0

    def see(times):
        nonlocal seen
        for number in range(times):
            rig.chats.put(f"chat {seen + number}", number)
            # Not more than the pool of a bridge would run at once.
            while rig.chats.workers > 200:
                time.sleep(0.001)
        seen += times
        assert rig.all_done(seen)
        assert wait(lambda: rig.chats.workers == 0, 10)
        assert wait(lambda: threading.active_count() == threads, 5)
        rig.threads.clear()

    see(2000)
    before = rss()
    see(8000)
    gc.collect()
    lanes = [found for found in gc.get_objects() if isinstance(found, Lane)]
    assert not [lane for lane in lanes if lane.key.startswith("chat ")]
    # Most of it is the test's own list, and what a measured coverage keeps for each thread.
    assert rss() - before < 24 << 20
    rig.end()


def test_1000_idle_workers_cost_little():
    rig = Rig(most_idle=1000)
    before = rss()
    for number in range(1000):
        rig.chats.put(f"chat {number}", number)
    assert rig.all_done(1000)
    assert wait(lambda: rig.chats.workers == 1000, 5)
    assert rss() - before < 40 << 20
    rig.end()
