import threading
import time
from contextlib import suppress

import pytest

from hermes_bridges.core.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A breaker that trips after 3 failures for 30 s; a probe may take 120 s."""

    def __init__(self, threshold: int = 3) -> None:
        self.clock = Clock()
        self.told: list[str] = []
        self.breaker = Breaker(threshold, 30.0, 120.0, clock=self.clock, on_change=self.told.append)

    def admit(self):
        permit = self.breaker.admit()
        assert permit is not None
        return permit

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.admit().done(False)

    def half_open(self) -> None:
        self.fail(3)
        self.clock.now += 30


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_threshold_is_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        Breaker(0, 1, 1)


def test_it_opens_at_the_threshold_and_not_before(rig: Rig):
    rig.fail(2)
    assert rig.breaker.state == "closed"
    rig.clock.now += 5
    rig.fail()
    assert rig.breaker.state == "open"
    assert rig.breaker.since == 1005
    assert rig.breaker.admit() is None


def test_only_failures_in_a_row_count(rig: Rig):
    for _ in range(10):
        rig.fail(2)
        rig.admit().done(True)
    assert rig.breaker.state == "closed"
    assert rig.told == []


def test_a_call_without_a_verdict_counts_as_nothing(rig: Rig):
    rig.fail(2)
    rig.admit().release()
    with rig.admit():
        pass
    assert rig.breaker.state == "closed"
    rig.fail()
    assert rig.breaker.state == "open"


def test_calls_run_side_by_side(rig: Rig):
    permits = [rig.admit() for _ in range(100)]
    for permit in permits:
        permit.done(True)
    assert rig.breaker.state == "closed"


def test_it_admits_nothing_until_the_cooldown_is_over(rig: Rig):
    rig.fail(3)
    rig.clock.now += 29.9
    assert rig.breaker.admit() is None
    assert rig.breaker.state == "open"
    rig.clock.now += 0.2
    assert rig.breaker.admit() is not None
    assert rig.breaker.state == "half_open"


def test_the_probe_closes_it(rig: Rig):
    rig.half_open()
    probe = rig.admit()
    assert rig.breaker.admit() is None
    probe.done(True)
    assert rig.breaker.state == "closed"
    rig.fail(2)
    assert rig.breaker.state == "closed"


def test_the_probe_opens_it_again_for_a_whole_cooldown(rig: Rig):
    rig.half_open()
    probe = rig.admit()
    rig.clock.now += 7
    probe.done(False)
    assert rig.breaker.state == "open"
    rig.clock.now += 29.9
    assert rig.breaker.admit() is None
    rig.clock.now += 0.2
    assert rig.breaker.admit() is not None


def test_each_transition_is_told_once(rig: Rig):
    rig.half_open()
    rig.admit().done(False)
    rig.clock.now += 30
    rig.admit().release()
    rig.admit().done(True)
    assert rig.told == ["open", "half_open", "open", "half_open", "closed"]


def test_on_change_may_ask_the_breaker(rig: Rig):
    seen = []
    breaker = Breaker(1, 30, 120, on_change=lambda state: seen.append((state, breaker.admit())))
    permit = breaker.admit()
    assert permit is not None
    permit.done(False)
    assert seen == [("open", None)]


def test_a_released_probe_leaves_it_half_open_and_the_next_caller_is_the_probe(rig: Rig):
    rig.half_open()
    rig.admit().release()
    assert rig.breaker.state == "half_open"
    probe = rig.admit()
    assert rig.breaker.admit() is None
    probe.done(True)
    assert rig.breaker.state == "closed"


@pytest.mark.parametrize("ok", [True, False])
def test_permits_from_before_the_last_trip_change_nothing(rig: Rig, ok: bool):
    old = [rig.admit() for _ in range(12)]
    rig.fail(3)
    for permit in old[:4]:
        permit.done(ok)
    assert rig.breaker.state == "open"
    rig.clock.now += 30
    probe = rig.admit()
    for permit in old[4:8]:
        permit.done(ok)
    assert rig.breaker.state == "half_open"
    assert rig.breaker.admit() is None
    probe.done(True)
    rig.fail(2)
    for permit in old[8:]:
        permit.done(ok)
    assert rig.breaker.state == "closed"
    rig.fail()
    assert rig.breaker.state == "open"


@pytest.mark.parametrize("ok", [True, False])
def test_a_permit_is_settled_once(rig: Rig, ok: bool):
    rig.fail(2)
    permit = rig.admit()
    permit.done(True)
    permit.done(False)
    permit.release()
    rig.fail(2)
    assert rig.breaker.state == "closed"
    with rig.admit() as permit:
        permit.done(ok)
    assert rig.breaker.state == ("closed" if ok else "open")


def test_a_probe_that_was_over_changes_nothing(rig: Rig):
    rig.half_open()
    late = [rig.admit()]
    for _ in range(3):
        rig.clock.now += 120
        late.append(rig.admit())
    probe = late.pop()
    late[0].done(True)
    late[1].done(False)
    assert rig.breaker.state == "half_open"
    assert rig.breaker.admit() is None
    probe.done(True)
    for _ in range(3):
        late[2].done(False)
    rig.fail(2)
    assert rig.breaker.state == "closed"


def raise_in_decoding(rig: Rig) -> None:
    with pytest.raises(ValueError), rig.admit():
        raise ValueError("not JSON")


def end_in_404(rig: Rig) -> None:
    with rig.admit() as permit:
        permit.release()


def hang(rig: Rig) -> None:
    rig.admit()


def lose_its_thread(rig: Rig) -> None:
    def die() -> None:
        with suppress(SystemExit), rig.admit():
            raise SystemExit

    thread = threading.Thread(target=die, daemon=True)
    thread.start()
    thread.join()


@pytest.mark.parametrize("end", [raise_in_decoding, end_in_404, hang, lose_its_thread])
def test_KH15_after_a_probe_without_a_verdict_there_is_a_new_one(rig: Rig, end):
    rig.half_open()
    end(rig)
    assert rig.breaker.state == "half_open"
    if end is hang:
        rig.clock.now += 119.9
        assert rig.breaker.admit() is None
        rig.clock.now += 0.2
    probes = at_once(rig.breaker, 20)
    assert len(probes) == 1
    probes[0].done(True)
    assert rig.breaker.state == "closed"


def at_once(breaker: Breaker, callers: int, meanwhile=lambda: None) -> list:
    """The permits that so many threads get which ask at the same moment."""
    barrier = threading.Barrier(callers + 1)
    permits = []

    def ask() -> None:
        barrier.wait(10)
        permits.append(breaker.admit())

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    barrier.wait(10)
    meanwhile()
    for thread in threads:
        thread.join(10)
    assert len(permits) == callers
    return [permit for permit in permits if permit is not None]


def test_KH15_exactly_one_of_20_callers_is_the_probe():
    for _ in range(20):
        rig = Rig()
        rig.half_open()
        probes = at_once(rig.breaker, 20)
        assert len(probes) == 1
        assert rig.told == ["open", "half_open"]
        assert at_once(rig.breaker, 20) == []
        probes[0].release()
        assert len(at_once(rig.breaker, 20)) == 1


def test_50_threads_ask_while_the_probe_is_settled():
    for _ in range(10):
        rig = Rig()
        rig.half_open()
        probe = rig.admit()
        found = at_once(rig.breaker, 50, probe.release)
        # One at most: those that asked before the release were refused.
        assert len(found) <= 1
        probe = found[0] if found else rig.admit()
        assert at_once(rig.breaker, 50, lambda probe=probe: probe.done(False)) == []
        rig.clock.now += 30
        probe = rig.admit()
        for permit in at_once(rig.breaker, 50, lambda probe=probe: probe.done(True)):
            permit.done(True)
        assert rig.breaker.state == "closed"
        assert rig.told == ["open", "half_open", "open", "half_open", "closed"]


def test_under_50_threads_each_trip_has_its_half_open_time():
    """A peer that fails and recovers by turns; real time, very short cool-downs."""
    told: list[str] = []
    breaker = Breaker(5, 0.002, 10.0, on_change=told.append)
    end = time.monotonic() + 2
    healthy = True
    admitted = [0] * 50
    faults: list[Exception] = []

    def work(number: int) -> None:
        try:
            while time.monotonic() < end:
                permit = breaker.admit()
                if permit is not None:
                    admitted[number] += 1
                    time.sleep(0.0002)
                    if number % 5 == 0:
                        permit.release()
                    else:
                        permit.done(healthy)
                time.sleep(0.0005)
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(50)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(0.02)
        healthy = not healthy
    for thread in threads:
        thread.join(10)
    assert not faults
    assert all(admitted)
    healthy_again = breaker.admit()
    while healthy_again is None:
        time.sleep(0.005)
        healthy_again = breaker.admit()
    healthy_again.done(True)
    assert breaker.state == "closed"
    assert told.count("closed") > 1
    assert told.count("open") == told.count("half_open") >= told.count("closed")
