import threading
import time

import pytest

from hermes_bridges.core.bell import Bell


def test_a_ring_before_the_wait_is_not_lost():
    bell = Bell()
    bell.ring()
    assert bell.wait(30) is True
    assert bell.wait(0) is False


def test_many_rings_are_one():
    bell = Bell()
    for _ in range(1000):
        bell.ring()
    assert bell.wait() is True
    assert bell.wait(0) is False


def test_another_thread_ends_the_wait():
    bell = Bell()
    timer = threading.Timer(0.05, bell.ring)
    timer.start()
    before = time.monotonic()
    assert bell.wait() is True
    assert time.monotonic() - before < 5
    timer.join()


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 0.0001, 0.05])
def test_a_wait_lasts_its_time_and_never_less(timeout):
    before = time.monotonic()
    assert Bell().wait(timeout) is False
    assert timeout <= time.monotonic() - before < timeout + 5


@pytest.mark.parametrize("timeout", [1e12, float("inf")])
def test_a_timeout_beyond_what_a_lock_can_count(timeout):
    bell = Bell()
    bell.ring()
    assert bell.wait(timeout) is True
