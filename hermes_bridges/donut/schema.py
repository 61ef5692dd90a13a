"""The tables of the state database. Message text is in ``outbox`` and ``kept`` only."""

from collections.abc import Callable
from typing import Any

VERSION = 1
"""Grows with each change of the tables; a database of a higher one is refused."""
_APPLICATION_ID = 0x446F6E74  # tells our databases from those of other programs
_TABLES = {
    # The cursor, and the bot that the state belongs to.
    "facts": "(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # n is the order in which they were settled, without gaps.
    "settled": """(n INTEGER PRIMARY KEY, chat TEXT NOT NULL, message TEXT NOT NULL,
        at REAL NOT NULL, UNIQUE (chat, message))""",
    "chats": """(chat TEXT PRIMARY KEY, session TEXT, generation INTEGER NOT NULL DEFAULT 0,
        first_person TEXT, several INTEGER NOT NULL DEFAULT 0, bot_run INTEGER NOT NULL DEFAULT 0,
        fallback_at REAL NOT NULL DEFAULT 0) WITHOUT ROWID""",
    # Messages that were begun and are not settled.
    "turns": """(chat TEXT NOT NULL, message TEXT NOT NULL, attempts INTEGER NOT NULL,
        began_at REAL NOT NULL, session TEXT NOT NULL, named INTEGER NOT NULL,
        PRIMARY KEY (chat, message)) WITHOUT ROWID""",
    # Parts that are to be posted, in the order of id. The ids for the wire are JSON texts, so
    # that they keep their types.
    "outbox": """(id INTEGER PRIMARY KEY, chat TEXT NOT NULL, chat_id TEXT NOT NULL,
        thread_id TEXT NOT NULL, reply_to TEXT NOT NULL, key TEXT NOT NULL, answer TEXT NOT NULL,
        number INTEGER NOT NULL, text TEXT NOT NULL, created_at REAL NOT NULL)""",
    # Messages of a hub that cannot replay them, as JSON texts.
    "kept": """(n INTEGER PRIMARY KEY, chat TEXT NOT NULL, message TEXT NOT NULL,
        body TEXT NOT NULL, UNIQUE (chat, message))""",
}
_INDEXES = ("CREATE INDEX outbox_of_chat ON outbox (chat, id)",)

_Run = Callable[..., Any]


def create(run: _Run) -> None:
    """Make the tables in an empty database."""
    run("BEGIN")
    for name, columns in _TABLES.items():
        run(f"CREATE TABLE {name} {columns}")
    for index in _INDEXES:
        run(index)
    run(f"PRAGMA application_id = {_APPLICATION_ID}")
    run(f"PRAGMA user_version = {VERSION}")
    run("COMMIT")


def fault(run: _Run) -> str | None:
    """What is wrong with a database, if it cannot be used; only reads."""
    if run("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        return "is not a state file of this bridge"
    version = run("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        return f"is from a newer version of this bridge (format {version}, known is {VERSION})"
    tables = {name for (name,) in run("SELECT name FROM sqlite_master")}
    if run("PRAGMA quick_check(1)").fetchone()[0] != "ok" or not tables >= set(_TABLES):
        return "is corrupt"
    return None
