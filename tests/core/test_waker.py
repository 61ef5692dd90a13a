import os
import select
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from hermes_bridges.core.waker import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def test_a_wake_before_the_wait_is_not_lost(waker: Waker) -> None:
    waker.wake()
    assert waker.wait(None) is True
    assert waker.wait(0) is False


def test_many_wakes_are_one(waker: Waker) -> None:
    for _ in range(10_000):
        waker.wake()
    assert waker.wait(0) is True
    assert waker.wait(0) is False


def test_a_full_pipe_neither_blocks_nor_raises(waker: Waker) -> None:
    for _ in range(100_000):
        waker.wake()
    with pytest.raises(BlockingIOError):
        os.write(waker.signal_fd(), b"x")
    assert waker.drain() is True
    assert waker.wait(0) is False


def test_another_thread_ends_the_wait(waker: Waker) -> None:
    timer = threading.Timer(0.05, waker.wake)
    timer.start()
    before = time.monotonic()
    assert waker.wait(30) is True
    assert time.monotonic() - before < 5
    timer.join()


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 0.0001, 0.05])
def test_a_wait_lasts_its_time_and_never_less(waker: Waker, timeout: float) -> None:
    before = time.monotonic()
    assert waker.wait(timeout) is False
    assert timeout <= time.monotonic() - before < timeout + 5


@pytest.mark.parametrize("timeout", [1e12, float("inf")])
def test_a_timeout_beyond_what_poll_can_count(waker: Waker, timeout: float) -> None:
    waker.wake()
    assert waker.wait(timeout) is True


def test_pending_is_seen_from_several_threads_and_drains_nothing(waker: Waker) -> None:
    seen: list[bool] = []
    assert waker.pending() is False
    waker.wake()
    threads = [threading.Thread(target=lambda: seen.append(waker.pending())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8
    assert waker.wait(0) is True
    assert waker.pending() is False


def test_pending_while_another_thread_waits(waker: Waker) -> None:
    thread = threading.Thread(target=waker.wait, args=(30,))
    thread.start()
    for _ in range(100):
        assert waker.pending() is False
    waker.wake()
    thread.join(5)
    assert not thread.is_alive()


def test_its_descriptor_works_in_a_select(waker: Waker) -> None:
    assert select.select([waker.fileno()], [], [], 0) == ([], [], [])
    waker.wake()
    assert select.select([waker], [], [], 0) == ([waker], [], [])
    assert waker.drain() is True
    assert waker.drain() is False


def test_a_signal_wakes_through_the_wakeup_descriptor(waker: Waker) -> None:
    former = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    former_fd = signal.set_wakeup_fd(waker.signal_fd())
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert waker.wait(5) is True
    finally:
        signal.set_wakeup_fd(former_fd)
        signal.signal(signal.SIGUSR1, former)


def test_children_do_not_inherit_it(waker: Waker) -> None:
    assert not os.get_inheritable(waker.fileno())
    assert not os.get_inheritable(waker.signal_fd())
    assert not os.get_blocking(waker.signal_fd())


def test_close_is_final_and_can_be_repeated() -> None:
    waker = Waker()
    fds = (waker.fileno(), waker.signal_fd())
    waker.close()
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)
    waker.close()
    waker.wake()
