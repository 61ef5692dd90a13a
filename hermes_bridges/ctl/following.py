"""Reads a log that others append to, rename away, truncate or delete, line by line."""

import os
from collections import deque
from collections.abc import Iterator

from hermes_bridges.ctl.logfile import LogFile, Look, identity_of, open_log, open_quietly

_COPIES_MOST = 4  # rotated files that are looked at


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
        self._open: LogFile | None = None
        # The last ones that were read. They stay open: whoever has one open too may still write
        # to it, and no other file gets its identity.
        self._older: deque[LogFile] = deque()
        # The copies that were there at the last look, as far as they tell of a truncation.
        self._known: set[Look] = set()
        found = open_log(path)
        if found is not None:
            self._open = LogFile(found)
            self._open.go_to_last(last)
            self._known = self._looks()

    def lines(self) -> list[bytes]:
        """What has come since the last call."""
        recovered: list[bytes] = []
        if self._open is not None and self._was_truncated(self._open):
            recovered = [*self._recover(self._open), *self._open.begin_anew()]
        later = [] if self._is_current() else self._later()
        current = [] if self._open is None else [self._open]
        # The latest file is read first: whoever writes to two of them writes to the older one
        # first, and what is read is told in that order.
        sources = (*self._older, *current, *later)
        read = {id(reader): list(reader.lines()) for reader in reversed(sources)}
        found = [line for old in self._older for line in (*read[id(old)], *old.flush())]
        found += recovered
        found += [line for reader in (*current, *later) for line in read[id(reader)]]
        if later:
            self._older += [*current, *later[:-1]]
            self._open = later[-1]
            found += self._let_go()
        self._known = self._looks()
        return found

    def close(self) -> list[bytes]:
        """Let go of the files; what has no line end yet comes as a line."""
        if self._open is not None:
            self._older.append(self._open)
            self._open = None
        return self._let_go(keep=0)

    def _let_go(self, keep: int = _COPIES_MOST) -> list[bytes]:
        rest: list[bytes] = []
        while len(self._older) > keep:
            reader = self._older.popleft()
            rest += reader.flush()
            reader.close()
        return rest

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return self._open is not None and self._open.identity == identity_of(found)

    def _later(self) -> "list[LogFile]":
        """What came after the file that was renamed or deleted; nothing: go on with that one."""
        fresh = open_log(self._path)
        later = [] if fresh is None else [LogFile(fresh)]
        return later if self._open is None else [*self._in_between(self._open, later), *later]

    def _in_between(self, old: "LogFile", later: "list[LogFile]") -> "Iterator[LogFile]":
        for reader in self._others(*later):
            if reader.is_newer_than(old):
                yield reader
            else:
                reader.close()

    def _was_truncated(self, reader: "LogFile") -> bool:
        if reader.position:
            return reader.was_truncated()
        if not self._is_current():
            return False
        # Nothing of it was read yet: only a copy that was made meanwhile tells, unless what it
        # holds is still to be read.
        fresh = self._fresh_copies()
        truncated = any(not reader.begins_like(copy) for copy in fresh)
        for copy in fresh:
            copy.close()
        return truncated

    def _recover(self, reader: "LogFile") -> Iterator[bytes]:
        """After a truncation: what was added after our last look is in the copy, if at all."""
        copies = self._others() if reader.position else self._fresh_copies()
        for copy in reversed(copies):
            if copy.starts_at(reader.position, reader.mark):
                copy.rest, reader.rest = reader.rest, b""
                yield from copy.lines()
                reader.rest = copy.rest
                break
        for copy in copies:
            copy.close()

    def _fresh_copies(self) -> "list[LogFile]":
        """Those that were made, or written to, since the last look."""
        found = []
        for copy in self._others():
            if copy.look() in self._known:
                copy.close()
            else:
                found.append(copy)
        return found

    def _others(self, *more: "LogFile") -> "list[LogFile]":
        """Rotated files that were not read under the name that is followed."""
        found = []
        read = {reader.identity for reader in (*self._older, self._open, *more) if reader}
        for copy in self._copies():
            if copy.identity in read:
                copy.close()
            else:
                found.append(copy)
        return found

    def _looks(self) -> "set[Look]":
        copies = self._copies()
        looks = {copy.look() for copy in copies}
        for copy in copies:
            copy.close()
        return looks

    def _copies(self) -> "list[LogFile]":
        """The last files that rotation has made of this one, the latest at the end."""
        directory, base = os.path.split(self._path)
        begin = (f"{base}.", f"{base}-")
        try:
            names = os.listdir(directory)
        except OSError:
            return []
        paths = [
            os.path.join(directory, name)
            for name in names
            if name.startswith(begin) and not name.endswith(".gz")
        ]
        latest = sorted(paths, key=_written)[-_COPIES_MOST:]
        return [LogFile(fd) for path in latest if (fd := open_quietly(path)) is not None]


def _written(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
