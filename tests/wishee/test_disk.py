import threading
import time
from concurrent.futures import CancelledError, Future
from functools import partial

import pytest

from hermes_bridges.wishee.disk import Disk, DiskRefused, Saver
from tests.conftest import wait


@pytest.fixture
def disk():
    made = Disk()
    yield made
    assert made.stop(5)


class Held:
    """A job that lasts until it is let go."""

    def __init__(self, disk: Disk) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.future = disk.submit(self._hold)
        assert self.begun.wait(5)

    def _hold(self) -> None:
        self.begun.set()
        assert self.go.wait(10)


def test_jobs_are_done_in_order_on_one_thread(disk):
    done: list = []

    def job(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return number * 2

    futures = [disk.submit(partial(job, n)) for n in range(200)]
    assert [future.result(5) for future in futures] == [n * 2 for n in range(200)]
    assert done == [(n, "wishee.disk") for n in range(200)]


def test_a_job_that_fails_fails_alone(disk, caplog):
    def fail(fault: Exception) -> None:
        raise fault

    expected = disk.submit(lambda: fail(OSError(28, "No space left on device")))
    assert isinstance(expected.exception(5), OSError)
    assert not caplog.records
    odd = disk.submit(lambda: fail(RuntimeError("odd")))
    assert isinstance(odd.exception(5), RuntimeError)
    assert "Traceback" in caplog.text
    assert disk.submit(lambda: 1).result(5) == 1


def test_nobody_waits_for_a_disk_that_hangs(disk):
    held = Held(disk)
    start = time.monotonic()
    futures = [disk.submit(lambda: None) for _ in range(3_000)]
    assert time.monotonic() - start < 1
    refused = [future for future in futures if future.done()]
    assert len(refused) == 3_000 - 1024, "what waits is bounded"
    assert all(isinstance(future.exception(), DiskRefused) for future in refused)
    held.go.set()
    assert wait(lambda: all(future.done() for future in futures), 5)
    assert disk.submit(lambda: 1).result(5) == 1


def test_a_job_that_is_no_longer_wanted_is_left_out(disk):
    held = Held(disk)
    done: list = []
    future = disk.submit(lambda: done.append(1))
    assert future.cancel()
    held.go.set()
    assert disk.submit(lambda: 1).result(5) == 1
    assert not done


def test_stop_does_what_was_submitted():
    disk = Disk()
    held = Held(disk)
    done: list = []
    for number in range(50):
        disk.submit(partial(done.append, number))
    assert not disk.stop(0.01)
    assert isinstance(disk.submit(lambda: 1).exception(), DiskRefused)
    held.go.set()
    assert disk.stop(5)
    assert done == list(range(50))


def test_stop_ends_a_disk_with_a_full_queue():
    disk = Disk()
    held = Held(disk)
    while not disk.submit(lambda: None).done():
        pass
    held.go.set()
    assert disk.stop(5)


def test_stop_with_nothing_to_do():
    disk = Disk()
    assert disk.stop(5)
    assert disk.stop(0)


# --- changes that share a write


class Book:
    def __init__(self, disk: Disk) -> None:
        self.changes = 0
        self.saved: list[int] = []
        self.fault: Exception | None = None
        self.saver = Saver(disk, self._write)

    def change(self) -> "Future[None]":
        self.changes += 1
        return self.saver.soon()

    def _write(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.saved.append(self.changes)


def test_changes_that_wait_are_written_once(disk):
    book = Book(disk)
    held = Held(disk)
    futures = [book.change() for _ in range(500)]
    assert not any(future.done() for future in futures)
    held.go.set()
    for future in futures:
        assert future.result(5) is None
    assert book.saved == [500]


def test_a_future_never_tells_of_a_write_from_before_its_change(disk):
    book = Book(disk)
    late: list = []

    def judge(wanted: int, future: "Future[None]") -> None:
        if book.saved[-1] < wanted:
            late.append(wanted)

    for number in range(1, 300):
        book.change().add_done_callback(partial(judge, number))
    book.change().result(5)
    assert not late


def test_a_write_that_fails_fails_for_all_who_wait(disk):
    book = Book(disk)
    book.fault = OSError(28, "No space left on device")
    held = Held(disk)
    futures = [book.change() for _ in range(3)]
    held.go.set()
    assert [type(future.exception(5)) for future in futures] == [OSError] * 3
    book.fault = None
    assert book.change().result(5) is None


def test_who_no_longer_waits_does_not_disturb_the_others(disk):
    book = Book(disk)
    held = Held(disk)
    first, second = book.change(), book.change()
    assert first.cancel()
    held.go.set()
    assert second.result(5) is None
    with pytest.raises(CancelledError):
        first.result(0)


def test_a_change_after_the_end_fails_at_once():
    disk = Disk()
    book = Book(disk)
    disk.stop(5)
    for _ in range(2):
        assert isinstance(book.change().exception(0), DiskRefused)
