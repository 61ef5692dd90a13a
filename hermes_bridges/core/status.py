"""What a daemon says about itself: counters and values, rewritten to a file every few seconds."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable

from hermes_bridges import __version__
from hermes_bridges.core import files
from hermes_bridges.core.eventlog import iso_now

_log = logging.getLogger("hermes_bridges.status")


class Status:
    """Counters by reason and named values, from any thread; written and removed by one.

    ``every`` is the shortest time in seconds between two writes of ``write_if_due``. Without a
    path nothing is written. The file is 0600: ``{"at","pid","version","counters","values"}``.
    """

    def __init__(
        self,
        path: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        every: float = 5.0,
    ) -> None:
        self._path = path
        self._clock = clock
        self._every = every
        self._due = float("-inf")
        self._failing = False
        # Guards the two dicts; nothing is called while it is held.
        self._lock = threading.Lock()
        self._counters: dict[str, int] = {}
        self._values: dict[str, object] = {}

    def count(self, reason: str, n: int = 1) -> None:
        """Add ``n`` to the counter of that name."""
        with self._lock:
            self._counters[reason] = self._counters.get(reason, 0) + n

    def set(self, name: str, value: object) -> None:
        """Replace a value: anything that JSON can hold, not changed by the caller afterwards."""
        with self._lock:
            self._values[name] = value

    def write_if_due(self, now: float) -> float:
        """Write when it is time; return when it is next (``now`` and the answer on ``clock``)."""
        if now >= self._due:
            self._write(now)
        return self._due

    def write(self) -> None:
        """Write now. Like ``write_if_due`` it never raises: a failure is counted as
        ``status_not_written``, told when the trouble begins, and tried again when next due."""
        self._write(self._clock())

    def remove(self) -> None:
        """Take the file away: the mark of a clean exit. Never raises."""
        if self._path is None:
            return
        try:
            files.remove(self._path)
        except OSError as fault:
            _log.warning("status file %s cannot be removed: %s", self._path, fault.strerror)

    def _write(self, now: float) -> None:
        self._due = now + self._every
        if self._path is None:
            return
        with self._lock:
            counters, values = dict(self._counters), dict(self._values)
        whole = {
            "at": iso_now(),
            "pid": os.getpid(),
            "version": __version__,
            "counters": counters,
            "values": values,
        }
        try:
            _replace(self._path, json.dumps(whole, allow_nan=False).encode() + b"\n")
        except (OSError, TypeError, ValueError, RecursionError) as fault:
            self.count("status_not_written")
            if not self._failing:
                reason = getattr(fault, "strerror", None) or fault
                _log.warning("status file %s cannot be written: %s", self._path, reason)
            self._failing = True
        else:
            if self._failing:
                _log.info("status file %s is written again", self._path)
            self._failing = False


def _replace(path: str, data: bytes) -> None:
    try:
        files.write_atomic(path, data, durable=False)
    except FileNotFoundError:
        files.private_dir(os.path.dirname(path) or ".")
        files.write_atomic(path, data, durable=False)
