"""Rotating one log: by rename, or by copying and emptying it, and what becomes of the old ones.

Whoever rotates holds the lock that the event log takes for its own rotation (flock on the file that
bears the name), so neither another one of us nor a bridge comes in between.
"""

import errno
import fcntl
import os
import re
import select
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from hermes_bridges.core import files
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.ctl import archive, holders
from hermes_bridges.errors import BridgeError

# Appending, so that we are not taken for somebody who would leave zeros behind.
_LOG_FLAGS = os.O_RDWR | os.O_APPEND
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_GZIP = 31  # of zlib: the format of gzip
_LOCK_SECONDS = 30.0
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", re.ASCII)
_FIRST_LINE_MAX = 4096


class Rules(NamedTuple):
    """When a log is rotated, and how.

    ``size`` in bytes, ``age`` in seconds; None is no limit. Either is enough. ``keep`` is how many
    rotated ones stay. ``force``: whatever its size and age. An empty log is never rotated.
    """

    size: int | None
    age: float | None
    keep: int
    compress: bool = True
    copytruncate: bool = False
    force: bool = False


class Log:
    """One log, and what was rotated of it; ``tell`` gets a line for each thing done."""

    def __init__(
        self,
        path: str,
        rules: Rules,
        *,
        tell: Callable[[str], None] = lambda line: None,
        now_iso: Callable[[], str] = iso_now,
    ) -> None:
        self._path = path
        self._directory, self._name = os.path.split(path)
        self._rules = rules
        self._tell = tell
        self._now_iso = now_iso
        # Of the directory, while `rotate` runs: what is done is done there, whatever becomes of
        # the path.
        self._dir = -1

    def rotate(self) -> None:
        """Rotate the log if it is due, remove what is beyond ``keep``, and compress the rest.

        A log that is not there is no fault. Raises BridgeError and OSError; then no line is lost,
        and what could not be done is left to the next time.
        """
        try:
            self._dir = os.open(self._directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._tell(f"{self._path}: is not there")
            return
        try:
            self._rotate()
            self._remove_old()
            if self._rules.compress:
                self._compress_all()
        finally:
            os.close(self._dir)

    def _rotate(self) -> None:
        with self._held() as fd:
            if fd < 0:
                self._tell(f"{self._path}: is not there")
                return
            self._take_over()
            found = os.fstat(fd)
            why = self._due(fd, found)
            if not why:
                self._tell(f"{self._path}: is not due")
                return
            target = self._new_name()
            if self._rules.copytruncate:
                self._copy_and_empty(fd, found, target)
            else:
                os.rename(self._name, target, src_dir_fd=self._dir, dst_dir_fd=self._dir)
            self._tell(f"{self._path}: rotated to {target} ({why})")

    @contextmanager
    def _held(self) -> Iterator[int]:
        """The log that bears the name, open and locked; -1 when there is none."""
        while True:
            try:
                fd = self._open(self._name, _LOG_FLAGS)
            except FileNotFoundError:
                yield -1
                return
            try:
                self._lock(fd)
                if self._bears(self._name, fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file with one name, in our directory. Raises OSError and BridgeError."""
        # Looked at first, so that no reader or writer of a FIFO and no device notices us.
        self._judge(name, os.stat(name, dir_fd=self._dir, follow_symlinks=False))
        fd = os.open(name, flags | _SAFE_FLAGS, dir_fd=self._dir)
        try:
            self._judge(name, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _judge(self, name: str, found: os.stat_result) -> None:
        path = os.path.join(self._directory, name)
        if stat.S_ISLNK(found.st_mode):
            raise BridgeError(f"{path}: is a symbolic link, and is left alone")
        if not stat.S_ISREG(found.st_mode):
            raise BridgeError(f"{path}: is no regular file, and is left alone")
        if found.st_nlink > 1:
            raise BridgeError(f"{path}: has another name too (a hard link), and is left alone")

    def _bears(self, name: str, fd: int) -> bool:
        try:
            named = os.stat(name, dir_fd=self._dir, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(fd))

    def _lock(self, fd: int) -> None:
        end = time.monotonic() + _LOCK_SECONDS
        while not _locked(fd):
            if time.monotonic() > end:
                raise BridgeError(f"{self._path}: another process holds its lock, and goes on so")
            select.select([], [], [], 0.05)

    def _take_over(self) -> None:
        """What a bridge rotated by itself would be written over by the next time it does."""
        own = f"{self._name}.1"
        if not self._name.endswith(".ndjson"):
            return
        try:
            self._judge(own, os.stat(own, dir_fd=self._dir, follow_symlinks=False))
        except FileNotFoundError:
            return
        target = self._new_name()
        os.rename(own, target, src_dir_fd=self._dir, dst_dir_fd=self._dir)
        self._tell(f"{self._path}: {own} is kept as {target}")

    def _parts(self) -> list[archive.Part]:
        return archive.parts(self._name, os.listdir(self._dir))

    def _new_name(self) -> str:
        """A name that is free: they are given only while the log is locked."""
        newest = next((part.stamp for part in self._parts()), None)
        return f"{self._name}-{archive.next_stamp(self._now(), newest)}"

    def _now(self) -> datetime:
        return datetime.fromisoformat(self._now_iso())

    def _due(self, fd: int, found: os.stat_result) -> str:
        if not found.st_size:
            return ""
        if self._rules.force:
            return "as asked"
        if self._rules.size is not None and found.st_size >= self._rules.size:
            return "its size"
        if self._rules.age is not None:
            age = self._age(fd)
            if age is None:
                # From now on it can be told.
                return "its age is not known"
            if age >= self._rules.age:
                return "its age"
        return ""

    def _age(self, fd: int) -> float | None:
        """Seconds since its first line, as that tells itself, or else since the last rotation."""
        now = self._now()
        first = os.pread(fd, _FIRST_LINE_MAX, 0).partition(b"\n")[0]
        match = _TIME.search(first)
        told = archive.age(match[0].decode("ascii"), now) if match else None
        if told is not None:
            return told
        newest = next((part.stamp for part in self._parts()), None)
        return None if newest is None else archive.age(newest, now)

    def _copy_and_empty(self, fd: int, found: os.stat_result, target: str) -> None:
        pid = holders.overwriter(found)
        if pid is not None:
            raise BridgeError(
                f"{self._path}: process {pid} does not append to it, so that zeros would fill what"
                " was emptied; have it append (>> in a shell, append: in a unit)"
            )
        temp = f".{self._name}.copy.tmp"
        copy = self._create(temp, found)
        named = temp
        try:
            offset = _pour(fd, copy, 0)
            os.fsync(copy)
            os.rename(temp, target, src_dir_fd=self._dir, dst_dir_fd=self._dir)
            named = target
            files.sync_dir(self._directory)
            offset = _pour(fd, copy, offset)
            if os.pread(fd, 1, offset - 1) != b"\n":
                # Somebody may be in the middle of a line; the mode can be set once that is over.
                os.fchmod(fd, stat.S_IMODE(found.st_mode))
                offset = _pour(fd, copy, offset)
            # A line that is written between the last look, which found nothing, and this is lost.
            os.ftruncate(fd, 0)
        except OSError:
            # The log is still whole. An interruption leaves both: better twice than not at all.
            files.remove(named, dir_fd=self._dir)
            raise
        finally:
            os.close(copy)

    def _create(self, name: str, like: os.stat_result) -> int:
        """A new file with the owner and the mode of another; one of that name is a leftover."""
        files.remove(name, dir_fd=self._dir)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS
        fd = os.open(name, flags, 0o600, dir_fd=self._dir)
        try:
            own = os.fstat(fd)
            if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
        except OSError:
            os.close(fd)
            files.remove(name, dir_fd=self._dir)
            raise
        return fd

    def _remove_old(self) -> None:
        for part in self._parts()[self._rules.keep :]:
            if part.plain is None:
                self._remove(part)
                continue
            with self._settled(part.plain, newest=False) as fd:
                # The room of one that is written to would not come back either.
                if fd >= 0:
                    files.remove(_packing(part.plain), dir_fd=self._dir)
                    self._remove(part)

    def _remove(self, part: archive.Part) -> None:
        for name in part.names:
            if files.remove(name, dir_fd=self._dir):
                self._tell(f"{self._path}: {name} is removed")

    def _compress_all(self) -> None:
        for number, part in enumerate(self._parts()):
            if part.plain is not None:
                with self._settled(part.plain, newest=number == 0) as fd:
                    if fd >= 0:
                        self._compress(fd, part.plain)

    @contextmanager
    def _settled(self, name: str, *, newest: bool) -> Iterator[int]:
        """A rotated log, open and locked; -1 for one that has to wait, or that is gone.

        Where it is hidden whether somebody still writes to one, the newest has to wait.
        """
        try:
            fd = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            yield -1
            return
        try:
            # Another one of us may be at it, or just have done it.
            if not _locked(fd) or not self._bears(name, fd):
                yield -1
                return
            written = holders.is_written(fd)
            if newest if written is None else written:
                self._tell(f"{self._path}: {name} stays as it is: a process may write to it")
                yield -1
            else:
                yield fd
        finally:
            os.close(fd)

    def _compress(self, fd: int, name: str) -> None:
        found = os.fstat(fd)
        temp = _packing(name)
        packed = self._create(temp, found)
        try:
            packer = zlib.compressobj(wbits=_GZIP)
            offset = 0
            while piece := os.pread(fd, _CHUNK, offset):
                offset += len(piece)
                _write_all(packed, packer.compress(piece))
            _write_all(packed, packer.flush())
            os.utime(packed, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(packed)
            os.rename(temp, f"{name}.gz", src_dir_fd=self._dir, dst_dir_fd=self._dir)
            files.sync_dir(self._directory)
            os.unlink(name, dir_fd=self._dir)
        except OSError:
            files.remove(temp, dir_fd=self._dir)
            raise
        finally:
            os.close(packed)
        self._tell(f"{self._path}: {name} is compressed")


def _packing(name: str) -> str:
    """Where a rotated log is compressed to; only the holder of its lock does that."""
    return f".{name}.gz.tmp"


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as fault:
        if fault.errno == errno.EBADF:
            # NFS locks only what is open for writing; there two of us may do the same work.
            return True
        raise
    return True


def _pour(source: int, target: int, offset: int) -> int:
    """Append what the source holds from ``offset`` on; returns where it ended."""
    while piece := os.pread(source, _CHUNK, offset):
        _write_all(target, piece)
        offset += len(piece)
    return offset


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
