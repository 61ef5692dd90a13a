import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.core.backoff import Backoff, retry_after

NOON = 784_887_151.0  # Tue, 15 Nov 1994 08:12:31 GMT


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


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("Tue, 15 Nov 1994 08:12:41 GMT", 10.0),
        ("Tuesday, 15-Nov-94 08:12:41 GMT", 10.0),
        ("Tue Nov 15 08:12:41 1994", 10.0),
        ("Tue, 15 Nov 1994 09:12:41 +0100", 10.0),
        ("Tue, 15 Nov 1994 08:12:41 -0000", 10.0),
        ("Tue, 15 Nov 1994 08:12:21 GMT", 0.0),
    ],
)
def test_a_retry_after_header_is_a_number_or_a_date(value: str, seconds: float) -> None:
    assert retry_after(value, NOON) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None, "", "  ", "-1", "nan", "inf", "1e3", "1_0", "٣", "9" * 4000, "soon", "1 2",
        "Tue, 15 Nov 1994", "Tue, 99 Nov 1994 08:12:41 GMT", "Tue, 15 Nov 1994 25:00:00 GMT",
        "Tue, 15 Nov 1994 08:12:41 +9999", "Tue, 15 Nov 1994 08:12:41 GMT" + " " * 99 + "x",
    ],
)  # fmt: skip
def test_a_retry_after_header_that_cannot_be_read_says_nothing(value: str | None) -> None:
    assert retry_after(value, NOON) is None


@given(st.text() | st.from_regex(r"\w{0,9}, ?\d\d? \w{3} \d{1,5} \d\d:\d\d:\d\d .{0,9}"))
def test_no_retry_after_header_is_fatal_or_negative(value: str) -> None:
    seconds = retry_after(value, NOON)
    assert seconds is None or 0 <= seconds < float("inf")
