"""What the bridge has yet to confirm: results and withdrawals, on the disk before they are sent.

The file (contract, section 10) has a line for each: ``{"v":1,"key","event","payload","user","at"}``
with ``at`` in epoch seconds, and ``{"v":1,"done":key}`` for one that is settled.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from hermes_bridges.core import files
from hermes_bridges.wishee.disk import Disk, Saver
from hermes_bridges.wishee.recordfile import VERSION, Newer, RecordFile, check_version

ENTRIES_MAX = 1000
BYTES_MAX = 32 * 1024 * 1024
AGE_MAX = 7 * 86_400.0

# The file is written anew when it holds this much more than twice what is alive in it.
_SLACK = 64 * 1024
_FILE_MAX = 2 * BYTES_MAX + 16 * _SLACK

_log = logging.getLogger("hermes_bridges.wishee")


class Entry(NamedTuple):
    """An event that is still to be confirmed; ``at`` is wall clock, ``size`` in bytes."""

    key: str
    name: str
    payload: Mapping[str, Any]
    user: str
    at: float
    size: int


class Outbox:
    """The entries, in order, by their key; for any thread.

    At most ENTRIES_MAX of them and BYTES_MAX bytes; past it, and after seven days, the oldest are
    dropped. ``dropped`` counts them by reason: ``full``, ``old`` and ``user``. Nothing here waits
    for the disk but ``load``, which comes first, and once.
    """

    def __init__(self, path: str, disk: Disk, *, wall: Callable[[], float] = time.time) -> None:
        self.dropped = {"full": 0, "old": 0, "user": 0}
        self._file = RecordFile(path, _FILE_MAX, "results")
        self._wall = wall
        self._saver = Saver(disk, self._write)
        # Guards what follows.
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        # Not on the disk yet.
        self._lines: list[bytes] = []
        self._lines_size = 0
        self._durable = False
        # The file is not what we last made of it: it is written anew from the entries.
        self._stale = False
        self._size = 0

    def load(self) -> int:
        """Read the file; how many entries that makes. What cannot be used is said in the log."""
        raw = self._file.read() or b""
        fine = whole = True
        entries: dict[str, Entry] = {}
        for number, line in enumerate(lines := raw.split(b"\n")):
            try:
                _replay(line, entries)
            except Newer:
                self._file.seal("was written by a newer version")
                return len(self._entries)
            except ValueError:
                whole = False
                torn = number == len(lines) - 1
                fine = fine and torn
                what = "unfinished" if torn else "unreadable"
                _log.warning("line %d of %s is %s and skipped", number + 1, self._file.path, what)
        if not fine:
            self._file.set_aside()
        with self._lock:
            # What was added before stays behind what is older.
            newer = {key: entry for key, entry in self._entries.items() if key not in entries}
            self._entries = {**entries, **newer}
            self._bytes = sum(entry.size for entry in self._entries.values())
            self._size = len(raw) if fine else 0
            self._stale = self._stale or not whole
            self._trim()
            count = len(self._entries)
        if not whole:
            self._saver.soon()
        return count

    def add(self, key: str, name: str, payload: Mapping[str, Any], user: str) -> "Future[None]":
        """Keep an event for that user; the future tells that it is on the disk.

        When the future fails (a full disk, a newer version's file) the event is in memory only; it
        is to be sent all the same. An event with the key of another one takes its place.
        """
        entry = Entry(key, name, payload, user, self._wall(), 0)
        line = _entry_line(entry)
        with self._lock:
            self._forget(key)
            self._entries[key] = entry._replace(size=len(line))
            self._bytes += len(line)
            self._note(line)
            self._durable = True
            self._trim()
        return self._saver.soon()

    def remove(self, key: str) -> bool:
        """Forget an event that is settled; False when there is none of that key."""
        with self._lock:
            if not self._forget(key):
                return False
            self._note(_line({"done": key}))
        # Not waited for: an event that comes back after a crash is sent twice, which is allowed.
        self._saver.soon()
        return True

    def pending(self) -> list[Entry]:
        """What is still to be confirmed, the oldest first."""
        with self._lock:
            unsaved = self._trim() or self._stale
            entries = list(self._entries.values())
        if unsaved:
            self._saver.soon()
        return entries

    def keep_only(self, user: str) -> int:
        """Drop what belongs to another user; how many entries that were."""
        with self._lock:
            others = [entry.key for entry in self._entries.values() if entry.user != user]
            self._drop(others, "user")
        if others:
            self._saver.soon()
        return len(others)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def _trim(self) -> bool:
        oldest = self._wall() - AGE_MAX
        old = [entry.key for entry in self._entries.values() if entry.at < oldest]
        self._drop(old, "old")
        over, left, size = [], len(self._entries), self._bytes
        for entry in self._entries.values():
            # The last one stays, whatever its size: it is the answer that somebody waits for.
            if left <= 1 or (left <= ENTRIES_MAX and size <= BYTES_MAX):
                break
            over.append(entry.key)
            left, size = left - 1, size - entry.size
        self._drop(over, "full")
        return bool(old or over)

    def _drop(self, keys: Iterable[str], reason: str) -> None:
        for key in keys:
            self._forget(key)
            self._note(_line({"done": key}))
            self.dropped[reason] += 1

    def _note(self, line: bytes) -> None:
        self._lines.append(line)
        self._lines_size += len(line)
        if self._lines_size > BYTES_MAX:
            # The disk does not keep up: the entries themselves are less to write.
            self._stale = True
            self._lines, self._lines_size = [], 0

    def _forget(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        self._bytes -= entry.size if entry else 0
        return entry is not None

    def _write(self) -> None:
        """Bring the file up to date, on the disk's thread. Raises OSError or Sealed."""
        path = self._file.path
        short = self._is_short()
        with self._lock:
            lines, self._lines, self._lines_size = b"".join(self._lines), [], 0
            durable, self._durable = self._durable, False
            grown = self._size + len(lines)
            anew = short or self._stale or grown > 2 * self._bytes + _SLACK
            self._stale = False
            entries = list(self._entries.values()) if anew else []
        if not anew and not lines:
            return
        whole = b"".join(map(_entry_line, entries))
        try:
            if anew:
                self._file.change(partial(files.write_atomic, path, whole, durable=durable))
                size = len(whole)
            else:
                size = self._file.change(partial(files.append, path, lines, durable=durable))
        except OSError:
            with self._lock:
                self._stale = self._durable = True
            raise
        with self._lock:
            self._size = size

    def _is_short(self) -> bool:
        """Whether somebody has removed or cut the file."""
        try:
            return os.stat(self._file.path).st_size < self._size
        except OSError:
            return self._size > 0


def _replay(line: bytes, entries: dict[str, Entry]) -> None:
    """Do what a line says. Raises Newer, or ValueError for one that is unreadable."""
    if not line.strip():
        return
    try:
        record = json.loads(line)
        check_version(record["v"])
        if "done" in record:
            entries.pop(record["done"], None)
            return
        key, name, payload = record["key"], record["event"], record["payload"]
        user, at = record["user"], record["at"]
    except (KeyError, TypeError, RecursionError):
        raise ValueError from None
    texts = all(isinstance(text, str) for text in (key, name, user))
    if not texts or not isinstance(payload, dict) or not isinstance(at, int | float):
        raise ValueError
    entries.pop(key, None)
    entries[key] = Entry(key, name, payload, user, at, len(line) + 1)


def _entry_line(entry: Entry) -> bytes:
    return _line(
        {
            "key": entry.key,
            "event": entry.name,
            "payload": entry.payload,
            "user": entry.user,
            "at": entry.at,
        }
    )


def _line(record: Mapping[str, Any]) -> bytes:
    # All ASCII: no half character, and no line end but ours.
    text = json.dumps({"v": VERSION, **record}, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"
