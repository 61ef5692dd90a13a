"""The state that survives: what is settled, begun, said and yet to be posted (SQLite)."""

import dataclasses
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import quote

from hermes_bridges.donut import outbox, progress, schema, statedir
from hermes_bridges.donut.outbox import Part
from hermes_bridges.donut.progress import ChatState, Turn
from hermes_bridges.donut.protocol import Id, Message
from hermes_bridges.donut.statedir import StateUnusable, reset_state
from hermes_bridges.errors import BridgeError

__all__ = ["ChatState", "Part", "StateFailed", "StateUnusable", "Store", "Turn", "reset_state"]

SETTLED_AGE = 24 * 3600.0
"""Seconds for which the id of a settled message is kept."""
SETTLED_MOST = 50_000
OUTBOX_AGE = 24 * 3600.0
"""Seconds for which an answer is tried to be posted."""
_A_BITE = 1_000  # rows that are pruned at once; others may commit in between
_BUSY = 5.0  # seconds to wait for another program that writes the database
_BUSY_AT_START = 0.5
_REASONS = {
    sqlite3.SQLITE_BUSY: "is locked by another program",
    sqlite3.SQLITE_CORRUPT: "is corrupt",
    sqlite3.SQLITE_LOCKED: "is locked by another program",
    sqlite3.SQLITE_NOTADB: "is corrupt",
}
_PASSING = {  # a later start may find it otherwise
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}

_Run = Callable[..., sqlite3.Cursor]


class StateFailed(BridgeError):
    """A running bridge could not read or commit its state; nothing of that commit is stored.

    There is no way on without the state: the process has to end (exit 70).
    """


class Store:
    """The state in a directory that no other bridge can use meanwhile (contract section 5).

    Any thread may call it. Each writing method is one commit, which survives the process; the
    last ones may be lost in a power cut. Raises StateUnusable when it can't be opened, and
    StateFailed later on. ``wall`` gives the time that is stored.
    """

    def __init__(self, directory: str, *, wall: Callable[[], float] = time.time) -> None:
        self._path = statedir.database(directory)
        self._wall = wall
        # Guards the connection: one statement or transaction at a time.
        self._lock = threading.Lock()
        self._claim: int | None = statedir.claim(directory)
        try:
            self._sql = _open(self._path)
        except StateUnusable:
            self._release()
            raise

    def close(self) -> None:
        """Leave nothing but the database behind, and let others use the directory."""
        with self._lock:
            if self._claim is not None:
                with suppress(sqlite3.Error):
                    _checkpoint(self._sql)
                self._sql.close()
                self._release()

    def _release(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    # Facts of the whole

    def cursor(self) -> str | None:
        """The id of the event after which the hub is to replay."""
        return self._fact("cursor")

    def set_cursor(self, event_id: str | None) -> None:
        self._set_fact("cursor", event_id)

    def bot(self) -> str | None:
        """The id of the bot whose state this is."""
        return self._fact("bot")

    def set_bot(self, bot: str) -> None:
        self._set_fact("bot", bot)

    def _fact(self, name: str) -> str | None:
        with self._alone() as run:
            row = run("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set_fact(self, name: str, value: str | None) -> None:
        with self._commit() as run:
            if value is None:
                run("DELETE FROM facts WHERE name = ?", (name,))
            else:
                run("REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))

    # Chats, and their messages from begin to end

    def chat(self, chat: str) -> ChatState:
        with self._alone() as run:
            return progress.chat(run, chat)

    def is_settled(self, chat: str, message: str) -> bool:
        with self._alone() as run:
            return progress.is_settled(run, chat, message)

    def turn(self, chat: str, message: str) -> Turn | None:
        """How a message was begun; None when it was not, or is settled."""
        with self._alone() as run:
            return progress.turn(run, chat, message)

    def begin(
        self, chat: str, message: str, session: str, named: bool, chat_state: ChatState
    ) -> Turn:
        """Count an attempt, before its request is sent.

        What the first one noted as ``session`` and ``named`` stays, since a repeat has to send the
        same. Of ``chat_state`` the people seen and ``bot_run`` are stored.
        """
        with self._commit() as run:
            progress.store_people(run, chat, chat_state)
            return progress.begin(run, chat, message, self._wall(), session, named)

    def settle(
        self,
        chat: str,
        message: str,
        *,
        session: str | None = None,
        parts: Sequence[Part] = (),
        chat_state: ChatState | None = None,
    ) -> None:
        """A message has its end; its answer's parts go into the outbox in the same commit.

        A ``session`` is taken over for the chat, unless it is empty. Of ``chat_state`` the people
        seen and ``bot_run`` are stored.
        """
        with self._commit() as run:
            if chat_state is not None:
                progress.store_people(run, chat, chat_state)
            if session:
                progress.store_session(run, chat, session)
            progress.settle(run, chat, message, self._wall())
            outbox.append(run, parts)

    def reset(self, chat: str, message: str) -> int:
        """Begin a new session of a chat by a message that is settled by it; its new generation."""
        with self._commit() as run:
            progress.settle(run, chat, message, self._wall())
            return progress.next_generation(run, chat)

    def note_fallback(self, chat: str, at: float) -> None:
        """A fallback or a notice is told to a chat; wall clock, 0 takes it back."""
        with self._commit() as run:
            progress.store_fallback(run, chat, at)

    def keep(self, message: Message) -> None:
        """Store a message that the hub cannot send again, until it is settled or forgotten."""
        body = json.dumps(dataclasses.asdict(message))
        with self._commit() as run:
            progress.keep(run, message.chat, message.message, body)

    def kept(self) -> list[Message]:
        """What was kept and not settled, in the order in which it was kept."""
        with self._alone() as run:
            return [Message(**json.loads(body)) for body in progress.kept(run)]

    def forget(self, chat: str, message: str) -> None:
        """A kept message is lost: it is neither settled nor kept any longer."""
        with self._commit() as run:
            progress.forget(run, chat, message)

    # The outbox

    def outbox(self, chat: str, limit: int = 100) -> list[Part]:
        """The first parts that are to be posted to a chat, in their order."""
        with self._alone() as run:
            return outbox.first(run, chat, limit)

    def outbox_chats(self, limit: int, after: str | None = None) -> list[str]:
        """Chats for which something is to be posted, in a fixed order; those after a chat."""
        with self._alone() as run:
            return outbox.chats(run, limit, after or "")

    def outbox_size(self) -> int:
        """How many parts are to be posted."""
        with self._alone() as run:
            return outbox.size(run)

    def posted(self, part: Part, thread_id: Id | None = None) -> None:
        """Remove a part; the rest of its answer goes into that thread, unless it is None."""
        if thread_id is None:
            self.drop_part(part)
            return
        with self._commit() as run:
            outbox.remove(run, part)
            outbox.move_rest(run, part, thread_id)

    def drop_part(self, part: Part) -> None:
        """Remove a part of which nobody knows whether it was posted."""
        with self._alone() as run:
            outbox.remove(run, part)

    def give_up(self, part: Part) -> int:
        """Remove a part that was refused and the rest of its answer; how many parts that were."""
        with self._commit() as run:
            return outbox.remove_rest(run, part)

    def expire_outbox(self) -> list[tuple[str, str]]:
        """Remove what is older than a day; the chat and the key of each answer."""
        with self._commit() as run:
            return outbox.expire(run, self._wall() - OUTBOX_AGE)

    # Housekeeping

    def prune(self, now: float) -> None:
        """Forget what was settled, or begun without an end, more than a day ago (wall clock).

        Of the settled ids at most 50,000 stay, the last ones. Content that was removed is also
        wiped from the write-ahead log.
        """
        oldest = now - SETTLED_AGE
        removed = _A_BITE
        while removed == _A_BITE:
            with self._commit() as run:
                removed = progress.prune_settled(run, oldest, SETTLED_MOST, _A_BITE)
        with self._commit() as run:
            progress.prune_turns(run, oldest)
        with self._alone():
            _checkpoint(self._sql)

    @contextmanager
    def _alone(self) -> Iterator[_Run]:
        """For reading, or for one statement that is a commit by itself."""
        with self._lock:
            try:
                yield self._sql.execute
            except sqlite3.Error as fault:
                raise StateFailed(f"state file {self._path} fails: {fault}") from fault

    @contextmanager
    def _commit(self) -> Iterator[_Run]:
        """One transaction: all that is run in it is stored in the end, or nothing."""
        with self._alone():
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield self._sql.execute
                self._sql.execute("COMMIT")
            except BaseException:
                # Some failures have ended the transaction already.
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise


def _open(path: str) -> sqlite3.Connection:
    """Open the database, made anew if there is none; nothing is changed in one that is refused."""
    try:
        if not statedir.exists(path):
            _create(path)
        _inspect(path)
        sql = _connect(path, "rw")
        try:
            sql.execute("BEGIN IMMEDIATE")  # fails while another program writes
            sql.execute("COMMIT")
            _checkpoint(sql)
        except sqlite3.Error:
            sql.close()
            raise
    except OSError as fault:
        raise statedir.refusal(path, fault) from None
    except sqlite3.Error as fault:
        code = getattr(fault, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        why = _REASONS.get(code, f"cannot be used: {fault}")
        raise StateUnusable(path, why, transient=code in _PASSING) from None
    return sql


def _connect(path: str, mode: str) -> sqlite3.Connection:
    sql = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_AT_START,
        isolation_level=None,
        check_same_thread=False,
    )
    sql.execute("PRAGMA synchronous = NORMAL")
    sql.execute("PRAGMA secure_delete = ON")
    return sql


def _create(path: str) -> None:
    """Make an empty database; under its name there is a whole one or none at any moment."""
    with statedir.replacing(path) as temp:
        sql = _connect(temp, "rw")
        try:
            if sql.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise StateUnusable(path, "cannot be used: no write-ahead log is possible there")
            schema.create(sql.execute)
        finally:
            sql.close()


def _inspect(path: str) -> None:
    # For reading only: closing it then leaves a log as it is, whatever is wrong.
    sql = _connect(path, "ro")
    try:
        fault = schema.fault(sql.execute)
    finally:
        sql.close()
    if fault is not None:
        raise StateUnusable(path, fault)


def _checkpoint(sql: sqlite3.Connection) -> None:
    """Bring the log into the database and empty it, unless another program reads right now."""
    sql.execute("PRAGMA busy_timeout = 0")
    try:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        sql.execute(f"PRAGMA busy_timeout = {int(_BUSY * 1000)}")
