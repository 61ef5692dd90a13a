"""The questions directory: what lies there, since when, and taking it away (contract section 5)."""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hermes_bridges.core import files

SUFFIX = ".answer.json"
ANSWER_MAX = 1024 * 1024

# What tells one state of a file from another: inode, size, mtime.
_Look = tuple[int, int, int]


class Found(NamedTuple):
    """One entry of the directory, as it was when it was looked at."""

    name: str
    regular: bool
    directory: bool
    age: float
    """Seconds since this process first saw the entry in exactly this state (monotonic)."""
    mtime: float
    """Last change of the content, wall clock."""


class Answers:
    """Owned by the coms.desk thread; it opens nothing unless told to."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._since: dict[str, tuple[_Look, float]] = {}
        self._ignored: dict[str, _Look] = {}

    def scan(self, now: float) -> list[Found]:
        """Every entry except those that are ignored; empty when there is no directory."""
        seen: dict[str, tuple[_Look, float]] = {}
        ignored: dict[str, _Look] = {}
        found = []
        for name, status in self._entries():
            look = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._ignored.get(name) == look:
                ignored[name] = look
                continue
            known = self._since.get(name)
            since = known[1] if known is not None and known[0] == look else now
            seen[name] = (look, since)
            kind = status.st_mode
            found.append(
                Found(name, stat.S_ISREG(kind), stat.S_ISDIR(kind), now - since, status.st_mtime)
            )
        # A name that went away starts anew when it comes back.
        self._since = seen
        self._ignored = ignored
        return found

    def read(self, name: str) -> bytes:
        """The content of a regular file of ours, 1 MiB at most; FileRefused or OSError else."""
        return files.read_capped(os.path.join(self.directory, name), ANSWER_MAX)

    def remove(self, name: str) -> bool:
        """Take an entry away; False when that cannot be done: then it is ignored from now on."""
        try:
            files.remove(os.path.join(self.directory, name))
        except OSError:
            self.ignore(name)
            return False
        self._since.pop(name, None)
        self._ignored.pop(name, None)
        return True

    def ignore(self, name: str) -> None:
        """Pass over an entry until it changes."""
        with contextlib.suppress(OSError):
            status = os.lstat(os.path.join(self.directory, name))
            self._ignored[name] = (status.st_ino, status.st_size, status.st_mtime_ns)

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(self.directory) as entries:
                listed = list(entries)
        except OSError:
            return
        for entry in listed:
            with contextlib.suppress(OSError):
                yield entry.name, entry.stat(follow_symlinks=False)
