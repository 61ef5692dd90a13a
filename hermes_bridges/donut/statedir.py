"""The files of the state directory: whose they are, whether they look sound, moving them aside."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_bridges.core.files import private_dir, sync_dir
from hermes_bridges.errors import BridgeError

_DATABASE = "donut.sqlite3"
_LOCK = "donut.lock"
_COMPANIONS = ("-wal", "-shm", "-journal")
_MAGIC = b"SQLite format 3\0"
_PASSING = {errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
_RESET = "use another BRIDGE_STATE_DIR, or --reset-state, which moves it aside"
_KEEP = "nothing is wrong with what it holds: keep it, and start again when that is mended"


class StateUnusable(BridgeError):
    """The state cannot be used (contract section 5); its text names the file and a way out.

    ``transient``: a later start may succeed (exit 1), as when another bridge holds it. Otherwise
    a restart cannot mend it (exit 78). Nothing was deleted or changed.
    """

    def __init__(self, path: str, why: str, *, transient: bool = False, hint: str = "") -> None:
        self.transient = transient
        hint = hint or (_KEEP if transient else _RESET)
        super().__init__(f"state file {path} {why}; {hint}")


def refusal(path: str, fault: OSError) -> StateUnusable:
    """What to raise when the system does not let us use a file."""
    passing = fault.errno in _PASSING
    name = os.fspath(fault.filename) if isinstance(fault.filename, str) else path
    return StateUnusable(name, f"cannot be used: {fault.strerror}", transient=passing)


def database(directory: str) -> str:
    """The path of the database in a state directory."""
    return os.path.join(directory, _DATABASE)


def claim(directory: str) -> int:
    """Make the directory ours, and hold it until the returned descriptor is closed.

    Raises StateUnusable.
    """
    with _refusing(directory):
        private_dir(directory)
    path = os.path.join(directory, _LOCK)
    with _refusing(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise StateUnusable(
                database(directory),
                "is in use by another bridge",
                transient=True,
                hint="stop that one first (--reset-state does not move it before)",
            ) from None
        except OSError:
            os.close(fd)
            raise
    return fd


def exists(path: str) -> bool:
    """Whether there is a database to open, as far as can be seen without opening it.

    False: it is to be made; an empty file counts as none. Raises StateUnusable for what is no
    database that we may use.
    """
    with _refusing(path):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            found = None
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise StateUnusable(path, "is not a regular file")
        if found is None or found.st_size == 0:
            # SQLite would delete a log that lies beside an empty database, and what it holds.
            if os.path.lexists(f"{path}-wal"):
                raise StateUnusable(path, "is corrupt: it is empty, but its -wal is there")
            return False
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            head = os.read(fd, len(_MAGIC))
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
    if head != _MAGIC:
        raise StateUnusable(path, "is corrupt: it is no SQLite database")
    return True


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Give the name of an empty private file that takes the place of ``path`` in the end.

    Raises OSError. What an earlier try left behind is removed; it never was anybody's state.
    """
    temp = f"{path}.new"
    for suffix in ("", *_COMPANIONS):
        if os.path.lexists(temp + suffix):
            os.unlink(temp + suffix)
    os.close(os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    yield temp
    fd = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temp, path)
    sync_dir(os.path.dirname(path))


def reset_state(directory: str) -> str | None:
    """Move the state aside, whatever it is; the new path of the database, None without a state.

    The database and what SQLite keeps beside it stay together, so that it can still be read.
    Raises StateUnusable when a bridge uses it, or when it cannot be moved.
    """
    if not os.path.lexists(directory):
        return None
    lock = claim(directory)
    try:
        path = database(directory)
        with _refusing(path):
            suffixes = [s for s in ("", *_COMPANIONS) if os.path.lexists(path + s)]
            if not suffixes:
                return None
            n = 1
            while any(os.path.lexists(f"{path}.bad-{n}{s}") for s in ("", *_COMPANIONS)):
                n += 1
            # The database goes first: a log that is left alone is noticed, a database without
            # its log is not.
            for suffix in suffixes:
                os.rename(path + suffix, f"{path}.bad-{n}{suffix}")
            sync_dir(directory)
            return f"{path}.bad-{n}"
    finally:
        os.close(lock)


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise refusal(path, fault) from None
