"""The one thread that writes the journals, in order; nobody else ever waits for the disk."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hermes_bridges.errors import BridgeError

_JOBS_MAX = 1024

_log = logging.getLogger("hermes_bridges.wishee")


class DiskRefused(BridgeError):
    """A job that will not be done: the disk is stopped, or too slow for what it is asked."""


class Disk:
    """Does jobs one after the other on its thread ``wishee.disk``."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue(
            _JOBS_MAX
        )
        # Guards _stopped, so that no job comes behind the last one.
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="wishee.disk", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        """Have a job done, from any thread. Never blocks and never raises.

        The future gets what the job returns or raises, on the disk's thread, or at once DiskRefused
        with the job not done.
        """
        future: Future[Any] = Future()
        with self._lock:
            try:
                if not self._stopped:
                    self._jobs.put_nowait((job, future))
                    return future
                why = "the disk's thread has ended"
            except queue.Full:
                why = "too many writes wait for the disk"
        future.set_exception(DiskRefused(why))
        return future

    def stop(self, seconds: float) -> bool:
        """Do what was submitted, and end; False when that took longer than ``seconds``."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                # A queue that is full ends as well: see _run.
                if not self._jobs.full():
                    self._jobs.put_nowait(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            found = self._jobs.get()
            if found is None:
                return
            self._do(*found)
            if self._stopped and self._jobs.empty():
                return

    def _do(self, job: Callable[[], Any], future: "Future[Any]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = job()
        except (OSError, BridgeError) as fault:
            future.set_exception(fault)
        except Exception as fault:
            _log.exception("a fault of a job for the disk")
            future.set_exception(fault)
        else:
            future.set_result(result)


class Saver:
    """Has ``write`` called on the disk's thread: once for all changes that came before it.

    ``write`` raises OSError or BridgeError when it fails.
    """

    def __init__(self, disk: Disk, write: Callable[[], None]) -> None:
        self._disk = disk
        self._write = write
        # Guards _waiting.
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []

    def soon(self) -> "Future[None]":
        """Write the state as it is now, or a later one; the future tells that it is on the disk.

        From any thread; never blocks and never raises. The future fails as ``Disk.submit`` tells.
        """
        future: Future[None] = Future()
        with self._lock:
            self._waiting.append(future)
            first = len(self._waiting) == 1
        if first:
            job = self._disk.submit(self._flush)
            if job.done() and isinstance(fault := job.exception(), DiskRefused):
                for waiting in self._take():
                    waiting.set_exception(fault)
        return future

    def _flush(self) -> None:
        waiting = self._take()
        try:
            self._write()
        except BaseException as fault:
            for future in waiting:
                future.set_exception(fault)
            raise
        for future in waiting:
            future.set_result(None)

    def _take(self) -> list["Future[None]"]:
        with self._lock:
            taken, self._waiting = self._waiting, []
        return [future for future in taken if future.set_running_or_notify_cancel()]
