"""The questions on disk: ``pending/<qid>.json``, one small file each (contract section 6).

A file holds one JSON object a line, a whole record each, and the last complete line counts. It
begins with one line, put there by rename; every later state is appended in one write, which costs a
hundredth of that. What has to be carried through a power loss is synced when there is time. Once
its question is closed it is brought back to one small line.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hermes_bridges.coms.envelope import is_ulid
from hermes_bridges.coms.registry import lock_file
from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused

VERSION = 1
# Seconds that a start waits for another one that adopts.
ADOPT_PATIENCE = 5.0
# Five states of the largest question: options of 64 Ki units, and an answer as long.
RECORD_MAX = 8 * 1024 * 1024
# Bytes from which a record is brought back to one line when it is taken over.
RECORD_GROWN = 256 * 1024

Body = dict[str, object]

_log = logging.getLogger("hermes_bridges.coms")


class Owner(NamedTuple):
    """The daemon that answers for a question."""

    project: str
    name: str
    session: str


NOBODY = Owner("", "", "")


class Record(NamedTuple):
    """A record that was read: whose it is, and all its fields."""

    qid: str
    owner: Owner
    state: str
    body: Body


class Records:
    """The record files of all daemons under one HOME; each writes only its own.

    A daemon holds a lock file for its whole life, ``.owner-<session>.lock``: an owner whose lock
    is free is dead, however it ended and whoever has its process number now.
    Owned by the coms.desk thread once that runs.
    """

    def __init__(self, directory: str, owner: Owner, count: Callable[[str], None]) -> None:
        self.directory = directory
        self.owner = owner
        self.count = count
        self._lock_fd = -1
        self._failing = False
        self._told: set[str] = set()
        # Files that are not to be appended to: the next write replaces them.
        self._torn: set[str] = set()

    def open(self) -> None:
        """Make the directory, take the owner's lock, clear temporary files. Raises OSError."""
        files.private_dir(self.directory)
        files.remove_stale_temps(self.directory)
        self._lock_fd = self._claim()

    def dead_sessions(self) -> list[str]:
        """The sessions of daemons that ended without removing their lock file."""
        dead = []
        for file_name in os.listdir(self.directory):
            session = file_name.removeprefix(".owner-").removesuffix(".lock")
            if file_name == f".owner-{session}.lock" and is_ulid(session):
                if session != self.owner.session and not self.is_alive(session):
                    dead.append(session)
        return dead

    def forget(self, session: str) -> None:
        """Remove a dead daemon's lock file, the last thing that tells of it."""
        with contextlib.suppress(OSError):
            files.remove(self._lock_path(session))

    def close(self) -> None:
        """Give the owner's lock back; the records stay."""
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                files.remove(self._lock_path(self.owner.session))
            os.close(self._lock_fd)
            self._lock_fd = -1

    @contextlib.contextmanager
    def adopting(self) -> Iterator[None]:
        """Hold the lock under which records change owner; TimeoutError after 5 s."""
        path = os.path.join(self.directory, ".adopt.lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            lock_file(fd, path, ADOPT_PATIENCE)
            yield
        finally:
            os.close(fd)

    def adoptable(self) -> list[Record]:
        """The records of this project and name whose owner is dead; call under ``adopting()``."""
        mine = []
        alive: dict[str, bool] = {self.owner.session: True}
        for file_name in os.listdir(self.directory):
            qid, _, ending = file_name.partition(".")
            if ending != "json" or not is_ulid(qid):
                continue
            record = self.find(qid)
            if record is None or record.owner[:2] != self.owner[:2]:
                continue
            session = record.owner.session
            if session not in alive:
                alive[session] = self.is_alive(session)
            if not alive[session]:
                if self._is_unfit(qid):
                    self._torn.add(qid)
                mine.append(record)
        return mine

    def find(self, qid: str) -> Record | None:
        """The record of a question, whoever owns it; a damaged one is moved aside.

        One that must not be touched (unreadable, or of a newer version) belongs to ``NOBODY``.
        """
        path = self._path(qid)
        try:
            raw = files.read_capped(path, RECORD_MAX)
        except FileNotFoundError:
            return None
        except (OSError, FileRefused) as error:
            self._tell(qid, f"record of question {qid} cannot be read: {error}")
            return Record(qid, NOBODY, "unreadable", {})
        try:
            return decode(qid, raw)
        except NewerVersion:
            self._tell(qid, f"record of question {qid} is of a newer version and is left alone")
            return Record(qid, NOBODY, "newer", {})
        except ValueError as error:
            self.damaged(qid, str(error))
            return None

    def damaged(self, qid: str, reason: str) -> None:
        """Move a record aside that is not what it must be."""
        self.count("record_damaged")
        with contextlib.suppress(OSError):
            aside = files.set_aside(self._path(qid))
            _log.error("record of question %s is damaged (%s); moved to %s", qid, reason, aside)

    def create(self, qid: str, state: str, body: Body) -> bool:
        """Write the first record of a question; False when that is not possible now."""
        return self._told_once(qid, lambda: self._replace(qid, state, body, durable=False))

    def append(self, qid: str, state: str, body: Body) -> bool:
        """Write the next state of a question; False when that is not possible now."""
        if qid in self._torn:
            return self._told_once(qid, lambda: self._replace(qid, state, body, durable=True))
        return self._told_once(qid, lambda: self._append(qid, state, body))

    def sync_names(self) -> None:
        """Carry the names of the records through a power loss."""
        with contextlib.suppress(OSError):
            files.sync_dir(self.directory)

    def sync(self, qid: str) -> bool:
        """Carry the content of a record through a power loss."""
        try:
            fd = os.open(
                self._path(qid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError:
            self.count("record_failed")
            return False
        return True

    def tidy(self, qid: str, state: str, body: Body) -> bool:
        """Bring the file of a question back to this one line."""
        return self._told_once(qid, lambda: self._replace(qid, state, body, durable=False))

    def _told_once(self, qid: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            # What stands at the end of the file now, if anything, is no line to go on from.
            self._torn.add(qid)
            self.count("record_failed")
            if not self._failing:
                self._failing = True
                _log.error("questions cannot be recorded, they are kept in memory: %s", error)
            return False
        self._torn.discard(qid)
        if self._failing:
            self._failing = False
            _log.warning("questions can be recorded again")
        return True

    def _replace(self, qid: str, state: str, body: Body, *, durable: bool) -> None:
        line = self._line(qid, state, body)
        try:
            files.write_atomic(self._path(qid), line, durable=durable)
        except FileNotFoundError:
            # Somebody removed the whole directory.
            files.private_dir(self.directory)
            files.write_atomic(self._path(qid), line, durable=durable)

    def _append(self, qid: str, state: str, body: Body) -> None:
        line = self._line(qid, state, body)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._path(qid), flags)
        except FileNotFoundError:
            self._replace(qid, state, body, durable=False)
            return
        try:
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)

    def _is_unfit(self, qid: str) -> bool:
        """Whether a dead owner's file ends within a line, or has grown through many starts."""
        try:
            with open(self._path(qid), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                return size > RECORD_GROWN or file.read(1) != b"\n"
        except OSError:
            return True

    def _line(self, qid: str, state: str, body: Body) -> bytes:
        owner = self.owner._asdict()
        whole = {"v": VERSION, "qid": qid, "state": state, "owner": owner, **body}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        # Text was cleaned on its way in; "replace" is for what an old record may hold.
        return text.encode("utf-8", "replace") + b"\n"

    def remove(self, qid: str) -> None:
        """Forget a closed question."""
        self._torn.discard(qid)
        with contextlib.suppress(OSError):
            files.remove(self._path(qid))

    def is_alive(self, session: str) -> bool:
        """Whether the daemon of that session still runs."""
        try:
            fd = os.open(self._lock_path(session), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            # Shared, so that two daemons that look at once do not take each other for the owner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _claim(self) -> int:
        path = self._lock_path(self.owner.session)
        # The name of a temporary file, so that it is cleared if we are killed here.
        made = os.path.join(self.directory, f".owner.{os.getpid()}-0.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(made, flags, 0o600)
        # Locked before it has its name: nobody ever sees it free while this daemon lives.
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.rename(made, path)
        return fd

    def _path(self, qid: str) -> str:
        return os.path.join(self.directory, f"{qid}.json")

    def _lock_path(self, session: str) -> str:
        return os.path.join(self.directory, f".owner-{session}.lock")

    def _tell(self, qid: str, message: str) -> None:
        if qid not in self._told:
            self._told.add(qid)
            self.count("record_unreadable")
            _log.error("%s", message)


class NewerVersion(BridgeError):
    """A record that a later release wrote."""


def decode(qid: str, raw: bytes) -> Record:
    """Read the content of a record file.

    ValueError when no line of it is a record of this question, NewerVersion when its last complete
    line is of a later release.
    """
    fault = "empty"
    for line in reversed(raw.split(b"\n")):
        if not line.strip(b"\0 \r\t"):
            continue
        try:
            return _record(qid, line)
        except ValueError as error:
            # A line that was being written when the power or the space went.
            fault = str(error)
    raise ValueError(fault)


def _record(qid: str, line: bytes) -> Record:
    try:
        body = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    version = body.get("v")
    if isinstance(version, int) and version > VERSION:
        raise NewerVersion
    owner, state = body.get("owner"), body.get("state")
    if version != VERSION or body.get("qid") != qid or not isinstance(state, str):
        raise ValueError("not a record of this question")
    if not isinstance(owner, dict):
        raise ValueError("no owner")
    parts = [owner.get(part) for part in Owner._fields]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("owner is incomplete")
    return Record(qid, Owner(*(str(part) for part in parts)), state, body)
