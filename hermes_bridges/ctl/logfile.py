"""One open log file, read piece by piece; others may rename, truncate or delete it meanwhile."""

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hermes_bridges.errors import BridgeError

LINE_MOST = 1024 * 1024
"""Bytes of a line that are kept; the rest of a longer one is left out."""
_PIECE = 65536
_MARK = 512  # bytes before the place that was read to, by which a file is known again
_BACK_MOST = 16 * 1024 * 1024  # how far back the last lines are looked for
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Identity(NamedTuple):
    device: int
    inode: int


class Look(NamedTuple):
    identity: Identity
    written: int
    size: int


def identity_of(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


class LogFile:
    """One open file, and how far it was read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.identity = identity_of(os.fstat(fd))
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
        return os.pread(self._fd, len(self.mark), self.position - len(self.mark)) != self.mark

    def begins_like(self, other: "LogFile") -> bool:
        """Whether both begin with the same bytes; an empty file begins like no other."""
        mine, others = os.pread(self._fd, _MARK, 0), os.pread(other._fd, _MARK, 0)
        size = min(len(mine), len(others))
        return size > 0 and mine[:size] == others[:size]

    def starts_at(self, position: int, mark: bytes) -> bool:
        """Whether these bytes stand before that place; if so, reading goes on there."""
        if os.pread(self._fd, len(mark), position - len(mark)) != mark:
            return False
        self.position, self.mark = position, mark
        return True

    def begin_anew(self) -> Iterator[bytes]:
        """Read from the beginning again; what was left of a line comes as one."""
        yield from self.flush()
        self.position, self.mark, self._skipping = 0, b"", False

    def is_newer_than(self, other: "LogFile") -> bool:
        return os.fstat(self._fd).st_mtime_ns >= os.fstat(other._fd).st_mtime_ns

    def look(self) -> Look:
        found = os.fstat(self._fd)
        return Look(identity_of(found), found.st_mtime_ns, found.st_size)

    def flush(self) -> Iterator[bytes]:
        """What has no line end comes as a line."""
        if self.rest and not self._skipping:
            yield self.rest
        self.rest = b""

    def close(self) -> None:
        os.close(self._fd)


def open_log(path: str) -> int | None:
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


def open_quietly(path: str) -> int | None:
    """The same; None too where it cannot be opened."""
    try:
        return open_log(path)
    except (OSError, BridgeError):
        return None


def _must_be_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BridgeError(f"{path} is no regular file")
