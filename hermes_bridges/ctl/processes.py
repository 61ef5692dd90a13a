"""Whether a daemon is there: by its process, and by the lock that it holds for its whole life."""

import fcntl
import os
import re
import stat
from enum import Enum
from typing import NamedTuple

from hermes_bridges.core.lifesigns import process_start

_PROC = "/proc"
_LOCKS = "/proc/locks"
# 3: FLOCK  ADVISORY  WRITE 7118 fe:00:2351280 0 EOF
_FLOCK = re.compile(
    r"\d+: FLOCK +\S+ +\S+ (?P<pid>-?\d+) (?P<device>[0-9a-f]+:[0-9a-f]+):(?P<inode>\d+) ",
    re.ASCII,
)


class Life(Enum):
    """What is to be seen of a process."""

    RUNNING = "running"
    PAUSED = "paused"
    """Stopped by a signal, or by a debugger."""
    GONE = "gone"
    """No such process, or another one has its number now."""
    UNSURE = "unsure"
    """There is one of that number; whether it is the same cannot be seen."""


class Holder(NamedTuple):
    """``held``: None when it cannot be told; ``pid``: None too when that alone is not known."""

    held: bool | None
    pid: int | None = None


def life(pid: int, start: int | None) -> Life:
    """How the process of that number does which was started then (ticks since boot)."""
    if pid <= 0:
        return Life.GONE
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            state = file.read(4096).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        # Perhaps only hidden: a host can keep the processes of others to themselves.
        return Life.UNSURE if _exists(pid) else Life.GONE
    if state in (b"Z", b"X", b"x"):
        return Life.GONE
    if start is None:
        return Life.UNSURE
    if process_start(pid) != start:
        return Life.GONE
    return Life.PAUSED if state in (b"T", b"t") else Life.RUNNING


def uptime(pid: int) -> float | None:
    """Seconds since a process was started; None when that cannot be seen."""
    start = process_start(pid)
    if start is None:
        return None
    try:
        with open(f"{_PROC}/uptime", "rb") as file:
            return float(file.read(100).split()[0]) - start / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def lock_holder(path: str, *, probe: bool) -> Holder:
    """Who holds the ``flock`` of a file, as the kernel lists it; nothing is done to the file.

    With ``probe`` the lock is tried for a moment, shared, where the list does not tell: only for
    a lock that nobody else would take in that moment.
    """
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return Holder(False)
    except OSError:
        return Holder(None)
    if not stat.S_ISREG(found.st_mode):
        return Holder(False)
    listed = _listed(found)
    if probe and not listed.held:
        return Holder(_try(path))
    return listed


def _listed(found: os.stat_result) -> Holder:
    try:
        with open(_LOCKS, encoding="ascii", errors="replace") as file:
            locks = [match for line in file if (match := _FLOCK.match(line))]
    except OSError:
        return Holder(None)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    same = [match for match in locks if int(match["inode"]) == found.st_ino]
    for match in same:
        if match["device"] == device:
            return Holder(True, int(match["pid"]))
    # Some file systems show people another device than the kernel's own.
    return Holder(None if same else False)


def _try(path: str) -> bool | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
