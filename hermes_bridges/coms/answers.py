"""The questions directory: what lies there, since when, and taking it away (contract section 5)."""

import contextlib
import os
import stat
from typing import NamedTuple

from hermes_bridges.core import files

SUFFIX = ".answer.json"
ANSWER_MAX = 1024 * 1024
# Seconds between two looks at entries whose name is no answer's.
STRAYS = 2.0

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
        self._strays_due = float("-inf")

    def scan(self, now: float) -> list[Found]:
        """Every entry except those that are ignored, and strays only now and then.

        A directory that is gone is made again; one that cannot be read now tells nothing.
        """
        try:
            with os.scandir(self.directory) as entries:
                listed = list(entries)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                files.private_dir(self.directory)
            return []
        except OSError:
            return []
        strays = now >= self._strays_due
        if strays:
            self._strays_due = now + STRAYS
        found = [
            self._look(entry, now) for entry in listed if strays or entry.name.endswith(SUFFIX)
        ]
        # A name that went away starts anew when it comes back.
        names = {entry.name for entry in listed}
        self._since = {name: since for name, since in self._since.items() if name in names}
        self._ignored = {name: look for name, look in self._ignored.items() if name in names}
        return [entry for entry in found if entry is not None]

    def _look(self, entry: "os.DirEntry[str]", now: float) -> Found | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        look = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._ignored.get(entry.name) == look:
            return None
        known = self._since.get(entry.name)
        since = known[1] if known is not None and known[0] == look else now
        self._since[entry.name] = (look, since)
        kind = status.st_mode
        return Found(
            entry.name, stat.S_ISREG(kind), stat.S_ISDIR(kind), now - since, status.st_mtime
        )

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
