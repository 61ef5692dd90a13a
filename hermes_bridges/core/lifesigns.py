"""What a daemon's status file tells those who find it: who wrote it, when, and how it went.

The values, for the operator command: ``started_at``; ``process_start`` (clock ticks since boot,
which together with the pid names one process); ``state`` (``running``, ``stopping``, ``stopped``);
``beat`` (monotonic seconds, the same clock for every process of a host); ``stuck_seconds`` (since
a thread makes no progress, 0 while all do); ``last_error`` and ``last_warning`` (``at``, ``text``).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping

from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.status import Status

UNWATCHED = 30.0
"""Seconds that stand for the watchdog's interval where no manager gives one."""
TEXT_MOST = 500
_LOGGER = logging.getLogger("hermes_bridges")


class Lifesigns(Notifier):
    """Tells the service manager what ``Notifier`` does, and the status file the same and more.

    Its ``watchdog`` is never None, so that the threads are looked after under any manager. Errors
    and warnings of our loggers are noted until ``close``. Owned by the main thread.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        status: Status,
        redact: Callable[[str], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environ)
        self._watched = self.watchdog is not None
        self._expected = self.watchdog = self.watchdog or UNWATCHED
        self._status = status
        self._clock = clock
        self._progress = clock()
        status.set("started_at", iso_now())
        status.set("process_start", process_start("self"))
        self._faults = _Faults(status, redact)
        _LOGGER.addHandler(self._faults)

    def ready(self, status: str) -> None:
        self._status.set("state", "running")
        super().ready(status)

    def watchdog_ping(self) -> None:
        self._progress = self._clock()
        if self._watched:
            super().watchdog_ping()

    def beat(self, now: float) -> None:
        """Note that the main thread runs; to be called before the status file is written."""
        idle = now - self._progress
        # It is pinged three times in an interval: by then two are missing.
        self._status.set("stuck_seconds", math.ceil(idle) if idle > self._expected * 0.8 else 0)
        self._status.set("beat", round(now, 3))

    def stopping(self) -> None:
        super().stopping()
        self._status.set("state", "stopping")
        self._status.write()

    def stopped(self, code: int) -> None:
        """The last thing that the status file tells, where it is left behind."""
        self._status.set("state", "stopped")
        self._status.set("exit_code", code)
        self._status.write()

    def close(self) -> None:
        """Take note of nothing more."""
        _LOGGER.removeHandler(self._faults)


class _Faults(logging.Handler):
    """The last error and the last warning of the log, as values of the status."""

    def __init__(self, status: Status, redact: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._status = status
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        kind = "last_error" if record.levelno >= logging.ERROR else "last_warning"
        fault = {"at": iso_now(), "text": self._redact(text)[:TEXT_MOST]}
        self._status.set(kind, fault)


def process_start(pid: int | str) -> int | None:
    """When a process was started, in clock ticks since boot; None when that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it, in brackets, may hold anything.
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
