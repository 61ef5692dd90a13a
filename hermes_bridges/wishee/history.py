"""Hermes's own database, state.db, of the schemas 11 to 31: read, and never written.

All methods block, for some milliseconds as a rule and for ``busy`` seconds where somebody keeps
the database locked: they belong into threads of ours. Each opens a connection that can only read.
"""

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from hermes_bridges.errors import BridgeError
from hermes_bridges.wishee import listing, recall, transcript
from hermes_bridges.wishee.cleaning import (
    STEER_END,
    STEER_OLD,
    Entry,
    Row,
    Strip,
    clean,
    is_machine_written,
)
from hermes_bridges.wishee.leases import lives
from hermes_bridges.wishee.listing import LIST_MAX, Details
from hermes_bridges.wishee.recall import Recall
from hermes_bridges.wishee.routing import Route, RoutesFile, decode_route
from hermes_bridges.wishee.sessionkeys import is_ours
from hermes_bridges.wishee.transcript import BUDGET, Lease, Stored
from hermes_bridges.wishee.windows import windows

_ROWS_MAX = 5_000  # of a user or an assistant, for one answer
_ANCESTORS_MAX = 100  # compressions of one conversation


class HistoryFailed(BridgeError):
    """The database could not be read; the text names no content of it."""


class Usage(NamedTuple):
    """What all sessions have used, in tokens and dollars; ``model`` is the newest one's."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0
    model: str = ""


class History:
    """What is stored in a home of Hermes. Any thread may call it; raises HistoryFailed."""

    def __init__(
        self, home: str, *, busy: float = 5.0, wall: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._path = os.path.join(home, "state.db")
        folder = os.path.join(home, "sessions")
        self._scope = os.path.realpath(folder)
        self._file = RoutesFile(folder)
        self._busy = busy
        self._wall = wall

    def max_message_id(self) -> int:
        """The highest id of any stored message; 0 when there is none."""
        with self._open() as db:
            return _whole(db.value("SELECT max(id) FROM messages")) if db.has("messages") else 0

    def route(self, *keys: str) -> Route | None:
        """The session of the first of these keys that is known."""
        with self._open() as db:
            for key in keys:
                found = self._route(db, key)
                if found is not None:
                    return found
        return None

    def history(self, session_id: str | None, limit: int) -> list[dict[str, Any]]:
        """The messages of a session for chat.history, the oldest first."""
        if session_id is None:
            return []
        with self._open() as db:
            entries, _ = _read(db, session_id, str.strip, _Messages(limit))
        return transcript.messages(entries, limit)

    def turns(
        self, session_id: str | None, limit: int, recalls: Sequence[Recall], strip: Strip
    ) -> list[dict[str, Any]]:
        """The turns of a session for chat.turns; ``recalls`` are what is remembered of it."""
        if session_id is None:
            return transcript.turns(Stored("", (), True), recalls, limit)
        with self._open() as db:
            end = recall.rows_end(recalls)
            entries, whole = _read(db, session_id, strip, _Starts(limit), end)
            lease = self._lease(db, session_id)
        return transcript.turns(Stored(session_id, entries, whole, lease), recalls, limit)

    def sessions(self, working: Collection[str], *, ours: bool = False) -> list[dict[str, Any]]:
        """The sessions for sessions.list, the newest first; ``ours`` leaves out other platforms'.

        ``working`` are the stored keys of the sessions in which a run of ours goes on.
        """
        with self._open() as db:
            routes = self._newest(db, ours)
            found = _details(db, [route.session_id for _, route in routes])
            leased = self._leased(db)
        sizes = windows(self._home) if found else {}
        return listing.sessions(routes, found, sizes, working, leased)

    def usage(self) -> Usage:
        """What was used in all, for agent-usage."""
        with self._open() as db:
            if not db.has("sessions"):
                return Usage()
            columns = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
            sums = ", ".join(f"sum({db.column('sessions', name, '0')})" for name in columns)
            actual = db.column("sessions", "actual_cost_usd", "NULL")
            guess = db.column("sessions", "estimated_cost_usd", "NULL")
            row = db.rows(f"SELECT {sums}, sum(coalesce({actual}, {guess})) FROM sessions")[0]
            model = db.value(
                "SELECT model FROM sessions WHERE model <> '' ORDER BY started_at DESC LIMIT 1"
            )
        tokens = [_whole(value) for value in row[:4]]
        return Usage(
            tokens[0], tokens[1], tokens[2], tokens[3], max(_number(row[4]), 0.0), _text(model)
        )

    def context(self, *keys: str) -> tuple[int, int] | None:
        """The tokens used and the window of a session, None unless both are known."""
        with self._open() as db:
            route = next((found for key in keys if (found := self._route(db, key))), None)
            if route is None or not route.used or not db.has("sessions"):
                return None
            model = db.value("SELECT model FROM sessions WHERE id = ?", route.session_id)
        window = windows(self._home).get(_text(model), 0)
        return (route.used, window) if window else None

    @contextmanager
    def _open(self) -> "Iterator[_Database]":
        # Nothing but SQLite may ever open that file in this process: the locks that Hermes has on
        # it would be lost when it is closed.
        try:
            if not os.path.exists(self._path):
                # Hermes has never run here.
                with closing(sqlite3.connect(":memory:")) as connection:
                    yield _Database(connection)
                return
            address = f"file:{quote(self._path)}?mode=ro"
            with closing(sqlite3.connect(address, timeout=self._busy, uri=True)) as connection:
                connection.text_factory = _decoded
                yield _Database(connection)
        except sqlite3.Error as fault:
            raise HistoryFailed(f"state.db: {fault}") from fault

    def _route(self, db: "_Database", key: str) -> Route | None:
        if db.has("gateway_routing"):
            sql = "SELECT entry_json FROM gateway_routing WHERE scope = ? AND session_key = ?"
            found = decode_route(_text(db.value(sql, self._scope, key)))
            if found is not None:
                return found
        return self._file.routes().get(key)

    def _newest(self, db: "_Database", ours: bool) -> list[tuple[str, Route]]:
        """The routes whose sessions were used last."""
        db.teach("is_ours", is_ours)
        wanted = "WHERE is_ours(key)" if ours else ""
        newest = f"""SELECT key, entry, coalesce(
                (SELECT max(timestamp) FROM messages WHERE session_id = sid),
                (SELECT started_at FROM sessions WHERE id = sid)) AS at
            FROM (%s) {wanted} ORDER BY at DESC LIMIT {LIST_MAX}"""
        if db.has("gateway_routing", "messages", "sessions"):
            source = """SELECT session_key AS key, entry_json AS entry,
                CASE WHEN json_valid(entry_json) THEN json_extract(entry_json, '$.session_id') END
                AS sid FROM gateway_routing WHERE scope = ?"""
            rows = db.rows(newest % source, self._scope)
            if rows:
                found = [(_text(row[0]), decode_route(_text(row[1])), row[2]) for row in rows]
                return [(k, r._replace(at=_number(at))) for k, r, at in found if r is not None]
        routes = sorted(self._file.routes().items(), key=lambda one: one[1].at, reverse=True)
        return [(key, route) for key, route in routes if not ours or is_ours(key)][:LIST_MAX]

    def _lease(self, db: "_Database", session_id: str) -> Lease | None:
        """Who works on a session, or on what it was before it was compressed."""
        if not db.has("session_turn_leases", "sessions"):
            return None
        sql = f"""WITH RECURSIVE line(id, n) AS (
                VALUES (?, 0) UNION ALL
                SELECT parent.id, n + 1 FROM line
                    JOIN sessions AS child ON child.id = line.id
                    JOIN sessions AS parent ON parent.id = child.parent_session_id
                    WHERE parent.end_reason = 'compression' AND n < {_ANCESTORS_MAX})
            SELECT holder, acquired_at FROM line
            JOIN session_turn_leases ON conversation_id = line.id WHERE expires_at > ?"""
        found = db.rows(sql, session_id, self._wall())
        return next(
            (Lease(_number(since)) for holder, since in found if lives(_text(holder))), None
        )

    def _leased(self, db: "_Database") -> set[str]:
        """The sessions that somebody works on."""
        if not db.has("session_turn_leases", "sessions"):
            return set()
        sql = f"""WITH RECURSIVE line(id, holder, n) AS (
                SELECT conversation_id, holder, 0 FROM session_turn_leases WHERE expires_at > ?
                UNION ALL
                SELECT child.id, holder, n + 1 FROM line
                    JOIN sessions AS parent ON parent.id = line.id
                    JOIN sessions AS child ON child.parent_session_id = parent.id
                    WHERE parent.end_reason = 'compression' AND n < {_ANCESTORS_MAX})
            SELECT id, holder FROM line"""
        return {_text(id) for id, holder in db.rows(sql, self._wall()) if lives(_text(holder))}


class _Database:
    """A connection that knows which tables and columns there are."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = self.rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'index')")
        self._names = {_text(name) for (name,) in names}
        self._columns: dict[str, set[str]] = {}

    def has(self, *names: str) -> bool:
        """Whether there are tables or indexes of these names."""
        return self._names.issuperset(names)

    def column(self, table: str, name: str, instead: str) -> str:
        """The name of a column, or an expression for a schema that has none such."""
        if table not in self._columns:
            rows = self.rows("SELECT name FROM pragma_table_info(?)", table)
            self._columns[table] = {_text(found) for (found,) in rows}
        return name if name in self._columns[table] else instead

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def value(self, sql: str, *values: object) -> object:
        """The first column of the first row, None without one."""
        with closing(self._connection.execute(sql, values)) as found:
            row = found.fetchone()
        return row[0] if row else None

    def each(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """One row after the other, each read when it is asked for."""
        with closing(self._connection.execute(sql, values)) as found:
            yield from found

    def teach(self, name: str, function: Callable[[str], bool]) -> None:
        self._connection.create_function(name, 1, function, deterministic=True)


class _Messages:
    """How far back chat.history reads."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def is_over(self, entry: Entry) -> bool:
        self._left -= len(entry.texts)
        return self._left <= 0

    def may_end_with(self, entry: Entry) -> bool:
        return True


class _Starts:
    """How far back chat.turns reads: one turn more than wanted tells that there are older ones."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def is_over(self, entry: Entry) -> bool:
        self._left -= entry.role == "user"
        return self._left < 0

    def may_end_with(self, entry: Entry) -> bool:
        return entry.role == "user"


def _read(
    db: _Database,
    session_id: str,
    strip: Strip,
    wanted: _Messages | _Starts,
    end: int | None = None,
) -> tuple[list[Entry], bool]:
    """The newest entries of a session, the oldest of them first; and whether these are all."""
    if not db.has("messages"):
        return [], True
    found: list[Entry] = []
    size = 0
    for n, row in enumerate(_rows(db, session_id, end), 1):
        entry = clean(row, strip)
        if entry is not None:
            if size > BUDGET:
                # Of the rest, only where the turn begins is of use.
                if entry.role != "user":
                    continue
                entry = entry._replace(texts=())
            found.append(entry)
            size += sum(map(len, entry.texts))
            if wanted.is_over(entry) or (size > BUDGET and wanted.may_end_with(entry)):
                break
        if n == _ROWS_MAX:
            break
    else:
        return sorted(found), True
    return sorted(found), False


def _rows(db: _Database, session_id: str, end: int | None) -> Iterator[Row]:
    """The rows of a session that may hold words of the user or the assistant, the newest first."""
    active = db.column("messages", "active", "1")
    kind = db.column("messages", "display_kind", "NULL")
    items = db.column("messages", "codex_message_items", "NULL")
    # Hermes orders by id. Its older schemas have no index for that, but in a session the stamps
    # have the same order.
    index, order = ("idx_messages_session_id", "id")
    if not db.has(index):
        index, order = ("idx_messages_session", "timestamp DESC, id")
    by = f"INDEXED BY {index}" if db.has(index) else ""
    sql = f"""SELECT id, role, CASE WHEN {active} IS 0 THEN '' ELSE content END, timestamp,
            {kind}, CASE role WHEN 'assistant' THEN {items} END, {active} IS NOT 0
        FROM messages {by} WHERE session_id = ? AND id <= ? AND (role IN ('user', 'assistant')
            OR (role = 'tool' AND (instr(content, ?) OR instr(content, ?))))
        ORDER BY {order} DESC LIMIT {_ROWS_MAX}"""
    last = sys.maxsize if end is None else end
    for id, role, content, at, kind, items, active in db.each(
        sql, session_id, last, STEER_END, STEER_OLD
    ):
        yield Row(id, role, _text(content), _number(at), _text(kind), _text(items), bool(active))


def _details(db: _Database, session_ids: Sequence[str]) -> Mapping[str, Details]:
    """What a list tells of these sessions; ``waits``: the last word was the user's."""
    if not session_ids or not db.has("messages", "sessions"):
        return {}
    active = db.column("messages", "active", "1")
    kind = db.column("messages", "display_kind", "NULL")
    sql = f"""SELECT s.id, s.title, s.model, s.message_count, m.role,
            CASE m.role WHEN 'user' THEN m.content END, m.{kind}
        FROM sessions AS s LEFT JOIN messages AS m ON m.id = (
            SELECT id FROM messages WHERE session_id = s.id AND {active} IS NOT 0
                AND role IN ('user', 'assistant') ORDER BY timestamp DESC, id DESC LIMIT 1)
        WHERE s.id IN ({", ".join("?" * len(session_ids))}) LIMIT {LIST_MAX}"""
    sql = sql.replace("m.NULL", "NULL")
    found = {}
    for id, title, model, count, role, content, shown in db.rows(sql, *session_ids):
        waits = role == "user" and not is_machine_written(_text(content), _text(shown))
        found[_text(id)] = Details(_text(title), _text(model), _whole(count), waits)
    return found


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return _decoded(value)
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
