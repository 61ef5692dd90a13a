"""Files that change hands: written whole or not at all, read with a limit, kept to their owner."""

import errno
import itertools
import os
import re
import stat
from contextlib import suppress

from hermes_bridges.errors import FileRefused

_CHUNK = 65536
_TEMP_NAME = re.compile(r"\..+\.([1-9][0-9]{0,6})-[0-9]+\.tmp", re.DOTALL)

_serial = itertools.count(1)


def write_atomic(path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Make ``path`` hold exactly ``data``: a reader sees the old content or the new, never a part.

    The temporary file is ``.<name>.<pid>-<n>.tmp`` beside it. ``durable`` also carries the content
    and the name through a power loss. The mode is exact whatever the umask. A symlink at ``path``
    is replaced, not followed. Raises OSError, and then leaves neither a temporary file nor a change
    (except when only the last step, the directory's sync, failed: the new content is in place).
    """
    directory, name = os.path.split(path)
    fd, temp = _create_temp(directory, name)
    placed = False
    try:
        try:
            os.fchmod(fd, mode)
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temp, path)
        placed = True
    finally:
        if not placed:
            with suppress(OSError):
                os.unlink(temp)
    if durable:
        sync_dir(directory)


def _create_temp(directory: str, name: str) -> tuple[int, str]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        temp = os.path.join(directory, f".{name}.{os.getpid()}-{next(_serial)}.tmp")
        # A killed process may have had our pid: in a container it is the same one every time.
        with suppress(FileExistsError):
            return os.open(temp, flags, 0o600), temp


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def append(path: str, lines: bytes, *, durable: bool = True) -> int:
    """Append whole lines to a file, which is made with mode 0600; its size afterwards.

    What a crash left without a line end gets one first. ``durable`` carries the lines, and a new
    name, through a power loss. Raises OSError, and then no part of the lines is left behind.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        size = found.st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        try:
            _write_all(fd, lines)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    if durable and not size:
        sync_dir(os.path.dirname(path))
    return size + len(lines)


def sync_dir(path: str) -> None:
    """Put the names in a directory on the disk; where the file system cannot do that, do nothing.

    An empty path is the working directory. Raises OSError.
    """
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as fault:
        if fault.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def remove_stale_temps(directory: str) -> int:
    """Remove what killed writers left behind in a directory, and say how many files that were.

    Only names of ``write_atomic`` whose process is gone or had our own pid: call it before this
    process writes there. One that cannot be removed stays, as it does no harm. A directory that is
    not there holds none. Raises OSError when it cannot be listed.
    """
    removed = 0
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return 0
    for name in names:
        match = _TEMP_NAME.fullmatch(name)
        if match and not _runs_beside_us(int(match[1])):
            with suppress(OSError):
                removed += remove(os.path.join(directory, name))
    return removed


def _runs_beside_us(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def read_capped(path: str, limit: int, *, dir_fd: int | None = None, own: bool = True) -> bytes:
    """The whole content of a regular file of at most ``limit`` bytes.

    Never follows a symlink at ``path``, never waits on a FIFO, and never holds more than ``limit``
    bytes even while the file grows. With ``own`` the file must belong to this process's user.
    Raises FileRefused, or OSError (FileNotFoundError and the like).
    """
    # Looked at before it is opened, so that a FIFO's writer or a device notices nothing, and again
    # once it is open, since it may have been exchanged in between.
    _judge(os.stat(path, dir_fd=dir_fd, follow_symlinks=False), path, limit, own)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except OSError as fault:
        if fault.errno == errno.ELOOP:
            raise FileRefused("symlink", path) from None
        if fault.errno == errno.ENXIO:
            raise FileRefused("not_regular", path) from None
        raise
    try:
        _judge(os.fstat(fd), path, limit, own)
        content = bytearray()
        while len(content) <= limit:
            piece = os.read(fd, min(_CHUNK, limit + 1 - len(content)))
            if not piece:
                return bytes(content)
            content += piece
    finally:
        os.close(fd)
    raise FileRefused("too_large", path)


def _judge(found: os.stat_result, path: str, limit: int, own: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise FileRefused("symlink", path)
    if not stat.S_ISREG(found.st_mode):
        raise FileRefused("not_regular", path)
    if own and found.st_uid != os.geteuid():
        raise FileRefused("foreign_owner", path)
    if found.st_size > limit:
        raise FileRefused("too_large", path)


def private_dir(path: str) -> None:
    """Make sure that ``path`` is a directory of ours that nobody else can enter.

    It and its missing parents are made with mode 0700; one that is there keeps the owner's bits and
    loses those of everybody else. A symlink to a directory of ours will do. Raises OSError when it
    is no directory, belongs to another user or cannot be made.
    """
    _make_dirs(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            owner = f"Directory belongs to another user (uid {found.st_uid})"
            raise PermissionError(errno.EPERM, owner, path)
        if found.st_mode & 0o077:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~0o077)
    finally:
        os.close(fd)


def _make_dirs(path: str) -> None:
    try:
        _make_dir(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):
            raise
        _make_dirs(parent)
        _make_dir(path)


def _make_dir(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    # The umask may have taken bits that its owner needs.
    os.chmod(path, 0o700)


def set_aside(path: str) -> str:
    """Rename a bad file (or directory) to ``<path>.bad-<n>``, and return that name.

    Nothing is ever overwritten. Raises OSError.
    """
    is_dir = stat.S_ISDIR(os.lstat(path).st_mode)
    n = 1
    # The name is taken first, with something empty that the rename may then replace.
    while not _take(aside := f"{path}.bad-{n}", is_dir):
        n += 1
    try:
        os.rename(path, aside)
    except OSError:
        with suppress(OSError):
            (os.rmdir if is_dir else os.unlink)(aside)
        raise
    return aside


def _take(path: str, as_dir: bool) -> bool:
    try:
        if as_dir:
            os.mkdir(path, 0o700)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def remove(path: str, *, dir_fd: int | None = None) -> bool:
    """Remove a file; False when there was none. Raises OSError for anything else."""
    try:
        os.unlink(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True
