"""Who has a file open for writing."""

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import suppress


def is_written(fd: int) -> bool | None:
    """Whether any process has the file open for writing; ``fd`` is open for reading only.

    None: it cannot be told, since the file belongs to another user, or its file system has no
    leases.
    """
    # The kernel grants a lease for reading only while nobody has the file open for writing. We give
    # it back at once; should somebody come in between, the signal for that is one without effect.
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as fault:
        return True if fault.errno == errno.EAGAIN else None
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def overwriter(found: os.stat_result) -> int | None:
    """The id of a process that writes the file where it is in it, and not at its end.

    Such a one goes on at its old place after the file was emptied, and zeros fill the gap. Only
    processes that this user may look into are seen.
    """
    for pid in _others():
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                if _overwrites(pid, name, found):
                    return pid
    return None


def _others() -> Iterator[int]:
    own = os.getpid()
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != own:
                yield int(name)


def _overwrites(pid: int, name: str, found: os.stat_result) -> bool:
    try:
        if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), found):
            return False
        with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as info:
            (flags,) = (line.split()[1] for line in info if line.startswith("flags:"))
    except (OSError, ValueError):
        # Closed, or the process has ended, in between.
        return False
    mode = int(flags, 8)
    return mode & os.O_ACCMODE != os.O_RDONLY and not mode & os.O_APPEND
