"""Reads a log that others append to, rename away, truncate or delete, line by line."""

import os
import stat
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from hermes_bridges.errors import BridgeError

LINE_MOST = 1024 * 1024
"""Bytes of a line that are kept; the rest of a longer one is left out."""
_PIECE = 65536
_MARK = 512  # bytes before the place that was read to, by which a file is known again
_BACK_MOST = 16 * 1024 * 1024  # how far back the last lines are looked for
_COPIES_MOST = 4  # rotated files that are looked at
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Follower:
    """The lines of the file that bears this name, as bytes without their ends.

    After a rename the rest of the old file comes first, then the new one from its beginning; what
    came and went between two looks is looked for under the names that rotation gives
    (``<path>.1``, ``<path>-20261130``), and so is, after a truncation, what was not read yet.
    ``lines`` gives what is there now and never waits. Raises BridgeError for what is no regular
    file; OSError.
    """

    def __init__(self, path: str, last: int) -> None:
        """Begin with at most that many of the lines that are there already."""
        self._path = path
        self._open: _Reader | None = None
        self._before: _Reader | None = None
        # Files that were read already, the last few of them.
        self._read: deque[_Identity] = deque(maxlen=_COPIES_MOST)
        found = _open(path)
        if found is not None:
            self._open = _Reader(found)
            self._open.go_to_last(last)

    def lines(self) -> Iterator[bytes]:
        """What has come since the last call."""
        before, self._before = self._before, None
        if before is not None:
            # Whoever had it open while it was renamed may have written to it a moment longer.
            yield from before.lines()
            yield from before.close()
        if self._open is not None:
            yield from self._recover(self._open)
            yield from self._open.lines()
        if self._is_current():
            return
        old = self._open
        fresh = _open(self._path)
        if fresh is None:
            # Renamed, and nothing new is there yet: the old one is still written to.
            return
        self._open = _Reader(fresh)
        if old is not None:
            yield from old.lines()
            self._before = old
            self._read.append(old.identity)
            yield from self._in_between(old, self._open)
        yield from self._open.lines()

    def close(self) -> Iterator[bytes]:
        """Let go of the files; what has no line end yet comes as a line."""
        for reader in (self._before, self._open):
            if reader is not None:
                yield from reader.close()
        self._before = self._open = None

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            # The old one may come back, or its writer goes on with it.
            return True
        return self._open is not None and self._open.identity == _identity(found)

    def _recover(self, reader: "_Reader") -> Iterator[bytes]:
        """After a truncation: what was added after our last look is in the copy, if at all."""
        if not reader.was_truncated():
            return
        mark, position = reader.mark, reader.position
        for copy in reversed(self._copies()):
            other = _Reader(copy)
            if other.identity != reader.identity and other.starts_at(position, mark):
                other.rest, reader.rest = reader.rest, b""
                yield from other.lines()
                yield from other.close()
                break
            yield from other.close()
        yield from reader.begin_anew()

    def _in_between(self, old: "_Reader", new: "_Reader") -> Iterator[bytes]:
        for copy in self._copies():
            reader = _Reader(copy)
            if reader.identity not in (*self._read, new.identity) and reader.is_newer_than(old):
                self._read.append(reader.identity)
                yield from reader.lines()
            yield from reader.close()

    def _copies(self) -> list[int]:
        """The last files that rotation has made of this one, open, the latest at the end."""
        directory, base = os.path.split(self._path)
        begin = (f"{base}.", f"{base}-")
        names = [n for n in os.listdir(directory) if n.startswith(begin) and not n.endswith(".gz")]
        paths = [os.path.join(directory, name) for name in names]
        latest = sorted(paths, key=_written)[-_COPIES_MOST:]
        return [fd for path in latest if (fd := _open_quietly(path)) is not None]


class _Reader:
    """One open file, and how far it was read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.identity = _identity(os.fstat(fd))
        self.position = 0
        self.rest = b""
        self.mark = b""
        self._skipping = False

    def go_to_last(self, count: int) -> None:
        """Go to where the last so many lines begin."""
        end = os.fstat(self._fd).st_size
        start, found = end, 0
        while count and 0 < start and end - start < _BACK_MOST:
            size = min(_PIECE, start)
            piece = os.pread(self._fd, size, start - size)
            # The end of the last line ends none of those that are wanted.
            at = len(piece) - (start == end and piece.endswith(b"\n"))
            while found < count and (at := piece.rfind(b"\n", 0, at)) >= 0:
                found += 1
            if found == count:
                self._set(start - size + at + 1)
                return
            start -= size
        self._set(start)
        # Where that is within a line, the rest of it is not for us.
        self._skipping = start > 0 and not self.mark.endswith(b"\n")

    def _set(self, position: int) -> None:
        self.position = position
        size = min(_MARK, position)
        self.mark = os.pread(self._fd, size, position - size)

    def lines(self) -> Iterator[bytes]:
        while piece := os.pread(self._fd, _PIECE, self.position):
            self.position += len(piece)
            self.mark = (self.mark + piece)[-_MARK:]
            *whole, self.rest = (self.rest + piece).split(b"\n")
            for line in whole:
                if not self._skipping:
                    yield line[:LINE_MOST]
                self._skipping = False
            if len(self.rest) > LINE_MOST:
                if not self._skipping:
                    yield self.rest[:LINE_MOST]
                self.rest, self._skipping = b"", True

    def was_truncated(self) -> bool:
        """Whether what stands before the place that was read to is no longer the same."""
        size = os.fstat(self._fd).st_size
        return size < self.position or not self.starts_at(self.position, self.mark)

    def starts_at(self, position: int, mark: bytes) -> bool:
        """Whether these bytes stand before that place; if so, reading goes on there."""
        if os.pread(self._fd, len(mark), position - len(mark)) != mark:
            return False
        self.position, self.mark = position, mark
        return True

    def begin_anew(self) -> Iterator[bytes]:
        """Read from the beginning again; what was left of a line comes as one."""
        if self.rest and not self._skipping:
            yield self.rest
        self.position, self.rest, self.mark, self._skipping = 0, b"", b"", False

    def is_newer_than(self, other: "_Reader") -> bool:
        mine, others = os.fstat(self._fd), os.fstat(other._fd)
        return mine.st_mtime_ns >= others.st_mtime_ns

    def close(self) -> Iterator[bytes]:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.rest and not self._skipping:
            yield self.rest
        self.rest = b""


class _Identity(NamedTuple):
    device: int
    inode: int


def _identity(found: os.stat_result) -> _Identity:
    return _Identity(found.st_dev, found.st_ino)


def _written(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _open(path: str) -> int | None:
    """The file, None when it is not there."""
    try:
        # Looked at first, so that the writer of a FIFO notices nothing.
        _must_be_regular(os.stat(path, follow_symlinks=False), path)
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    try:
        _must_be_regular(os.fstat(fd), path)
    except BridgeError:
        os.close(fd)
        raise
    return fd


def _open_quietly(path: str) -> int | None:
    try:
        return _open(path)
    except (OSError, BridgeError):
        return None


def _must_be_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BridgeError(f"{path} is no regular file")
