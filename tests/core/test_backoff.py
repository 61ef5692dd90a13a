import pytest

from hermes_bridges.core.backoff import Backoff


def make(rand: float = 1.0, floor: float = 0.0, healthy: float = 30.0, cap: float = 60.0):
    return Backoff(1.0, cap, healthy=healthy, floor=floor, rand=lambda: rand)


def test_delays_double_up_to_the_cap() -> None:
    backoff = make()
    assert [backoff.next_delay() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_cap_holds_for_ever_without_overflow() -> None:
    backoff = make(cap=10.0)
    assert {backoff.next_delay() for _ in range(5000)} == {1, 2, 4, 8, 10}


def test_full_jitter_draws_from_the_whole_range_above_the_floor() -> None:
    draws = iter([0.0, 0.5, 0.25, 1.0])
    backoff = Backoff(2.0, 100.0, floor=0.5, rand=lambda: next(draws))
    assert [backoff.next_delay() for _ in range(4)] == [0.5, 2.5, 2.5, 16.5]


def test_the_default_random_stays_in_range() -> None:
    for _ in range(200):
        assert 0.1 <= Backoff(1.0, 5.0, floor=0.1).next_delay() <= 1.1


def test_KH07_a_peer_that_accepts_and_closes_at_once_does_not_reset_the_delays() -> None:
    backoff = make(floor=0.1)
    now = 0.0
    delays = []
    for _ in range(10):
        backoff.succeeded(now)
        now += 0.01
        backoff.failed(now)
        delays.append(backoff.next_delay())
        now += delays[-1]
    assert delays == [1.1, 2.1, 4.1, 8.1, 16.1, 32.1, 60.1, 60.1, 60.1, 60.1]
    # Then it behaves: after the healthy time a single drop is followed by a short delay.
    backoff.succeeded(now)
    backoff.failed(now + 3600)
    assert backoff.next_delay() == 1.1


@pytest.mark.parametrize(("lasted", "delay"), [(29.9, 4.0), (30.0, 1.0)])
def test_the_healthy_time_is_counted_from_the_first_success(lasted: float, delay: float) -> None:
    backoff = make()
    backoff.next_delay(), backoff.next_delay()
    backoff.succeeded(100.0)
    backoff.succeeded(100.0 + lasted / 2)
    backoff.failed(100.0 + lasted)
    assert backoff.next_delay() == delay


def test_a_success_that_goes_on_resets_without_a_failure() -> None:
    backoff = make()
    backoff.next_delay(), backoff.next_delay()
    backoff.succeeded(0.0)
    backoff.succeeded(31.0)
    assert backoff.next_delay() == 1.0


def test_a_failure_ends_the_good_time() -> None:
    backoff = make()
    backoff.next_delay()
    backoff.succeeded(0.0)
    backoff.failed(1.0)
    backoff.failed(100.0)
    assert backoff.next_delay() == 2.0
    backoff.succeeded(200.0)
    backoff.failed(229.0)
    assert backoff.next_delay() == 4.0


def test_its_own_clock_is_used_when_no_time_is_given() -> None:
    now = [0.0]
    backoff = Backoff(1.0, 8.0, rand=lambda: 1.0, clock=lambda: now[0])
    backoff.next_delay(), backoff.next_delay()
    backoff.succeeded()
    now[0] = 31.0
    backoff.failed()
    assert backoff.next_delay() == 1.0


def test_reset() -> None:
    backoff = make()
    backoff.next_delay(), backoff.next_delay()
    backoff.succeeded(0.0)
    backoff.reset()
    assert backoff.next_delay() == 1.0
    backoff.failed(100.0)
    assert backoff.next_delay() == 2.0


@pytest.mark.parametrize(("first", "cap"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_nonsense_is_refused(first: float, cap: float) -> None:
    with pytest.raises(ValueError):
        Backoff(first, cap)
