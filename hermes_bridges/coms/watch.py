"""Tells that something was put into a directory: by inotify, or by its mtime where that fails.

A watch is a hint that a scan is worth its time now; the caller's own full scan stays the truth
(contract, section 2, ``--poll-ms``).
"""

import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

LOOK = 0.25  # seconds between two looks while there is no inotify watch
RECHECK = 1.0  # seconds between two checks that the path still names the watched directory

_IN_CLOSE_WRITE = 0x8
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100  # links, FIFOs and directories come with no other event
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_UNMOUNT = 0x2000
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x1000000
_IN_EXCL_UNLINK = 0x4000000  # a writer that closes a file which is already removed is no news

# Nothing here is raised by a removal, so taking answers away does not wake the one who took them.
_ARRIVED = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
_GONE = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT | _IN_IGNORED
_MASK = _ARRIVED | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR | _IN_EXCL_UNLINK

_EVENT = struct.Struct("iIII")
_READ = 64 * 1024
_READS = 32  # a flood is left in the queue, and the descriptor readable, after this many

_log = logging.getLogger("hermes_bridges.coms.watch")


class DirectoryWatch:
    """Watches one directory, which may be missing, be deleted, moved away or replaced at any time.

    Belongs to one thread. Nothing here blocks, and no method but the constructor logs.
    ``clock`` is the one that the ``now`` of the methods is read from; ``inotify=False`` asks for
    the looks at the mtime.
    """

    def __init__(
        self, path: str, *, clock: Callable[[], float] = time.monotonic, inotify: bool = True
    ) -> None:
        self._path = path
        self._libc: Any = None
        self._fd: int | None = None
        self._wd: int | None = None  # None: nothing is watched, so the mtime is looked at
        self._seen: tuple[int, int, int] | None = None
        self._again = True  # the next look reports news whatever it finds; so does the first
        self._next_check = clock()
        if inotify:
            self._open()
        self._attach()

    def fileno(self) -> int | None:
        """Readable when the directory changed; None without inotify. The same until ``close``."""
        return self._fd

    def due(self, now: float) -> float | None:
        """When to call ``changed`` even if nothing is readable; None while inotify reports."""
        return None if self._wd is not None else max(now, self._next_check)

    def changed(self, now: float) -> bool:
        """True when something may have come since the last call, and at the first call.

        Takes in all that is readable.
        """
        news = False
        recheck = now >= self._next_check
        for wd, mask in self._events():
            if mask & _IN_Q_OVERFLOW:
                news = recheck = True
            elif wd != self._wd:
                continue
            elif mask & _GONE:
                news = recheck = True
                if mask & _IN_IGNORED:
                    self._wd = None
            else:
                news = True
        if recheck:
            news = self._look(now) or news
        return news

    def close(self) -> None:
        """Ends the watch; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._wd = None

    def _open(self) -> None:
        try:
            import ctypes  # costs memory and start time, so only where it is used

            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except (ImportError, AttributeError, OSError) as error:
            _log.info("no inotify (%s): %s is looked at every %g s", error, self._path, LOOK)
            return
        self._fd = fd

    def _look(self, now: float) -> bool:
        """Watches what the path names now; where that cannot be, compares it with the last look."""
        watched, before = self._wd, self._seen
        self._attach()
        self._next_check = now + (RECHECK if self._wd is not None else LOOK)
        moved = self._wd != watched or (self._wd is None and self._seen != before)
        news = moved or self._again
        # The mtime moves in clock ticks: what comes later in this very tick leaves no other trace.
        self._again = moved and self._wd is None
        return news

    def _attach(self) -> None:
        if self._fd is not None:
            # The same directory gives the same number again, without a trace; inode numbers would
            # not do to tell, since a directory that is made anew often gets the old one's.
            wd = self._libc.inotify_add_watch(self._fd, os.fsencode(self._path), _MASK)
            if self._wd is not None and wd != self._wd:
                self._libc.inotify_rm_watch(self._fd, self._wd)
            self._wd = wd if wd >= 0 else None
        self._seen = self._stamp() if self._wd is None else None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def _events(self) -> Iterator[tuple[int, int]]:
        for _ in range(_READS if self._fd is not None else 0):
            try:
                data = os.read(self._fd or 0, _READ)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                wd, mask, _cookie, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                yield wd, mask
