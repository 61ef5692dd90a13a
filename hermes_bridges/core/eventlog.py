"""The event log: one JSON line an event, in a file that several processes may share."""

import errno
import fcntl
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable

from hermes_bridges.core import files

_FLAGS = (
    os.O_RDWR
    | os.O_APPEND
    | os.O_CREAT
    | os.O_NOFOLLOW
    | os.O_NONBLOCK
    | os.O_NOCTTY
    | os.O_CLOEXEC
)

_log = logging.getLogger("hermes_bridges.eventlog")


def iso_now() -> str:
    """The wall clock in UTC as ``YYYY-MM-DDTHH:MM:SS.mmmZ``."""
    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ns // 1_000_000:03d}Z"


class EventLog:
    """Appends events to ``path``, 0600, from any thread (contract, sections 5 and 6).

    The file may be renamed, truncated or deleted by others, with its directory too, and other
    processes may append to it: each line is one write to the file that bears the name at that time.
    Above ``limit`` bytes it becomes ``<path>.1``, so both together stay below twice the limit.
    A line that a crash or a full disk left unfinished is ended before the next one is written;
    readers skip lines that are blank or no JSON.

    An event that cannot be written never raises: it is counted in ``lost``, ``on_fault`` (default:
    a warning in the program's log) is told when the trouble begins, and the next event tries again.
    """

    def __init__(
        self,
        path: str,
        *,
        limit: int = 10 * 1024 * 1024,
        now_iso: Callable[[], str] = iso_now,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        self.lost = 0
        self._path = path
        self._limit = limit
        self._now_iso = now_iso
        self._on_fault = on_fault or _log.warning
        # Guards what follows and `lost`; only system calls on the file are made while it is held.
        self._lock = threading.Lock()
        self._fd = -1
        self._identity = (0, 0)
        self._trouble = ""

    def append(self, event: str, qid: str, detail: object = None) -> bool:
        """Write one event; False when it was lost. ``detail`` is anything that JSON can hold."""
        record: dict[str, object] = {"at": self._now_iso(), "qid": qid, "event": event}
        if detail is not None:
            record["detail"] = detail
        try:
            # All ASCII: no reader's idea of a line end and no half character can get in.
            line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            with self._lock:
                rotation_fault = self._write(line)
        except (OSError, TypeError, ValueError, RecursionError) as fault:
            self._settle("cannot be written, events are lost", fault, lost=1)
            return False
        self._settle("cannot be rotated and grows" if rotation_fault else "", rotation_fault)
        return True

    def close(self) -> None:
        """Give the descriptor back; a later ``append`` opens the file anew."""
        with self._lock:
            self._drop()

    def _settle(self, trouble: str, fault: Exception | None, lost: int = 0) -> None:
        with self._lock:
            before, self._trouble = self._trouble, trouble
            self.lost += lost
            total = self.lost
        if trouble == before:
            return
        if trouble:
            reason = getattr(fault, "strerror", None) or fault
            self._on_fault(f"event log {self._path} {trouble}: {reason}")
        else:
            _log.info("event log %s is well again; %d events lost so far", self._path, total)

    def _write(self, line: bytes) -> OSError | None:
        """Write the line; what kept the file from being rotated is returned, all else is raised."""
        rotation_fault = None
        try:
            size = self._current_size()
            if size and size + len(line) > self._limit:
                rotation_fault = self._rotate()
                size = self._current_size()
            if self._is_torn(size):
                line = b"\n" + line
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, "Only a part of the line fitted")
        except OSError:
            self._drop()
            raise
        return rotation_fault

    def _current_size(self) -> int:
        """Have the file open that bears the name now; return its size in bytes."""
        if self._fd >= 0:
            try:
                found = os.stat(self._path, follow_symlinks=False)
            except FileNotFoundError:
                pass
            else:
                if (found.st_dev, found.st_ino) == self._identity:
                    return found.st_size
            self._drop()
        try:
            self._fd = os.open(self._path, _FLAGS, 0o600)
        except FileNotFoundError:
            files.private_dir(os.path.dirname(self._path) or ".")
            self._fd = os.open(self._path, _FLAGS, 0o600)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"Belongs to another user (uid {found.st_uid})")
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(self._fd, 0o600)
        self._identity = (found.st_dev, found.st_ino)
        return found.st_size

    def _is_torn(self, size: int) -> bool:
        for _ in range(3):
            if not size or os.pread(self._fd, 1, size - 1) == b"\n":
                return False
            # Perhaps another process is in the middle of its write. The kernel lets nobody set the
            # mode until that is over, so the next look sees the whole line.
            os.fchmod(self._fd, 0o600)
            size = os.fstat(self._fd).st_size
        return True

    def _rotate(self) -> OSError | None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process is at it; this line still goes to the file that we both have open.
            return None
        try:
            found = os.stat(self._path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._identity:
                os.replace(self._path, f"{self._path}.1")
        except FileNotFoundError:
            # It was rotated away between our two looks.
            pass
        except OSError as fault:
            return fault
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return None

    def _drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
