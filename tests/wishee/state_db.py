"""Databases and files as the Hermes versions make them, for the tests of what reads them."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

VERSIONS = {"0.14.0": 14, "0.19.0": 19, "0.21.5.post2": 21, "0.22.2.post1": 22}
SCHEMAS = {14: 11, 19: 22, 21: 30, 22: 31}

# What each version has: the number is the version since when.
TABLES = {
    "sessions": """
14 id TEXT PRIMARY KEY
14 source TEXT NOT NULL
22 created_source TEXT
14 user_id TEXT
19 session_key TEXT
19 chat_id TEXT
19 chat_type TEXT
19 thread_id TEXT
19 display_name TEXT
19 origin_json TEXT
19 expiry_finalized INTEGER DEFAULT 0
14 model TEXT
14 model_config TEXT
14 system_prompt TEXT
21 system_prompt_hash TEXT
14 parent_session_id TEXT
14 started_at REAL NOT NULL
14 ended_at REAL
14 end_reason TEXT
14 message_count INTEGER DEFAULT 0
14 tool_call_count INTEGER DEFAULT 0
14 input_tokens INTEGER DEFAULT 0
14 output_tokens INTEGER DEFAULT 0
14 cache_read_tokens INTEGER DEFAULT 0
14 cache_write_tokens INTEGER DEFAULT 0
14 reasoning_tokens INTEGER DEFAULT 0
19 cwd TEXT
19 git_branch TEXT
19 git_repo_root TEXT
21 git_metadata_generation INTEGER NOT NULL DEFAULT 0
14 billing_provider TEXT
14 billing_base_url TEXT
14 billing_mode TEXT
14 estimated_cost_usd REAL
14 actual_cost_usd REAL
14 cost_status TEXT
14 cost_source TEXT
14 pricing_version TEXT
14 title TEXT
21 title_source TEXT
21 last_activity_at REAL
21 last_activity_description TEXT
21 last_activity_provenance TEXT
14 api_call_count INTEGER DEFAULT 0
14 handoff_state TEXT
14 handoff_platform TEXT
14 handoff_error TEXT
19 compression_failure_cooldown_until REAL
19 compression_failure_error TEXT
19 compression_fallback_streak INTEGER NOT NULL DEFAULT 0
21 compression_ineffective_count INTEGER NOT NULL DEFAULT 0
21 compression_recovery_deadline REAL
22 compression_overload_streak INTEGER NOT NULL DEFAULT 0
19 profile_name TEXT
21 transport_profile TEXT
19 rewind_count INTEGER NOT NULL DEFAULT 0
19 archived INTEGER NOT NULL DEFAULT 0
22 auto_archived INTEGER NOT NULL DEFAULT 0
21 pinned INTEGER NOT NULL DEFAULT 0
21 hidden INTEGER NOT NULL DEFAULT 0
21 last_read_at REAL
21 tool_names TEXT
""",
    "messages": """
14 id INTEGER PRIMARY KEY AUTOINCREMENT
14 session_id TEXT NOT NULL
14 role TEXT NOT NULL
14 content TEXT
14 tool_call_id TEXT
14 tool_calls TEXT
14 tool_name TEXT
19 effect_disposition TEXT
14 timestamp REAL NOT NULL
14 token_count INTEGER
14 finish_reason TEXT
14 reasoning TEXT
14 reasoning_content TEXT
14 reasoning_details TEXT
14 codex_reasoning_items TEXT
14 codex_message_items TEXT
19 platform_message_id TEXT
19 observed INTEGER DEFAULT 0
21 _compressed_summary INTEGER NOT NULL DEFAULT 0
19 active INTEGER NOT NULL DEFAULT 1
19 compacted INTEGER NOT NULL DEFAULT 0
19 api_content TEXT
21 display_kind TEXT
21 display_metadata TEXT
21 display_identity BLOB
21 display_order INTEGER
22 message_uid TEXT
22 absorbed_message_uids TEXT
22 tool_call_uids TEXT
22 tool_call_uid TEXT
""",
    "gateway_routing": """
19 scope TEXT NOT NULL DEFAULT ''
19 session_key TEXT NOT NULL
19 entry_json TEXT NOT NULL
19 updated_at REAL NOT NULL
19 PRIMARY KEY (scope, session_key)
""",
    "session_turn_leases": """
21 conversation_id TEXT PRIMARY KEY
21 holder TEXT NOT NULL
21 acquired_at REAL NOT NULL
21 expires_at REAL NOT NULL
""",
}
INDEXES = """
14 CREATE INDEX idx_messages_session ON messages(session_id, timestamp)
14 CREATE INDEX idx_sessions_parent ON sessions(parent_session_id)
14 CREATE INDEX idx_sessions_source ON sessions(source)
14 CREATE INDEX idx_sessions_started ON sessions(started_at DESC)
14 CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL
19 CREATE INDEX idx_messages_active_null ON messages(active) WHERE active IS NULL
19 CREATE INDEX idx_messages_session_active ON messages(session_id, active, timestamp)
19 CREATE INDEX idx_sessions_handoff_state ON sessions(handoff_state, started_at)
19 CREATE INDEX idx_sessions_session_key ON sessions(session_key, started_at DESC)
19 CREATE INDEX idx_sessions_source_id ON sessions(source, id)
21 CREATE INDEX idx_messages_session_id ON messages(session_id, id)
21 CREATE INDEX idx_sessions_system_prompt_hash ON sessions(system_prompt_hash)
21 CREATE INDEX idx_sessions_tool_names ON sessions(tool_names)
22 CREATE INDEX idx_messages_session_uid ON messages(session_id, message_uid) WHERE active = 1
"""


def columns(table: str, version: int) -> list[str]:
    """What stands in the parentheses of CREATE TABLE; nothing for a table that is not there."""
    lines = [line.split(" ", 1) for line in TABLES[table].split("\n") if line]
    return [column for since, column in lines if int(since) <= version]


class StateDb:
    """A home of Hermes with a state.db of one version, which may be told what to hold."""

    def __init__(self, home: Path, version: int, journal: str = "") -> None:
        self.home = home
        self.version = version
        self.path = home / "state.db"
        self.scope = os.path.realpath(home / "sessions")
        (home / "sessions").mkdir(parents=True)
        with self.write() as db:
            db.execute(f"PRAGMA journal_mode = {journal or ('wal' if version < 21 else 'delete')}")
            for table in TABLES:
                if found := columns(table, version):
                    db.execute(f"CREATE TABLE {table} ({', '.join(found)})")
            for line in INDEXES.split("\n"):
                since, _, sql = line.partition(" ")
                if since and int(since) <= version:
                    db.execute(sql)
            db.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
            db.execute("INSERT INTO schema_version VALUES (?)", (SCHEMAS[version],))

    def write(self) -> "closing[sqlite3.Connection]":
        """A connection whose statements commit by themselves."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        return closing(connection)

    def insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        with self.write() as db:
            db.execute("BEGIN")
            for row in rows:
                marks = ", ".join("?" * len(row))
                sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
                db.execute(sql, tuple(row.values()))
            db.execute("COMMIT")

    def session(self, id: str, started_at: float = 1_796_000_000.0, **more: Any) -> None:
        row = {"id": id, "source": "wishee", "started_at": started_at, "model": "m", **more}
        self.insert("sessions", [row])

    def say(
        self, session_id: str, *said: tuple[str, str], at: float = 1_796_000_000.0
    ) -> list[int]:
        """Messages of (role, content), a second each; their ids."""
        rows = [
            {"session_id": session_id, "role": role, "content": content, "timestamp": at + n}
            for n, (role, content) in enumerate(said)
        ]
        self.insert("messages", rows)
        with self.write() as db:
            last = db.execute("SELECT max(id) FROM messages").fetchone()[0]
        return list(range(last - len(rows) + 1, last + 1))

    def change(self, sql: str, *values: Any) -> None:
        with self.write() as db:
            db.execute(sql, values)

    def routes(self, routes: dict[str, str], used: int = 0) -> None:
        """Key to session id, where this version keeps it."""
        entries = {key: entry(key, session_id, used) for key, session_id in routes.items()}
        if self.version == 14:
            self.routes_file(entries)
            return
        rows = [
            {
                "scope": self.scope,
                "session_key": key,
                "entry_json": json.dumps(one),
                "updated_at": 1_796_000_000.0,
            }
            for key, one in entries.items()
        ]
        self.insert("gateway_routing", rows)

    def routes_file(self, entries: dict[str, Any]) -> None:
        text = json.dumps(entries, indent=2)
        (self.home / "sessions" / "sessions.json").write_text(text)


def entry(key: str, session_id: str, used: int = 0, updated_at: str = "") -> dict[str, Any]:
    """An entry of the routing, with about the fields that it has."""
    chat_id = key.split(":", 4)[-1]
    return {
        "session_key": key,
        "session_id": session_id,
        "created_at": "2026-11-30T11:42:03.123456",
        "updated_at": updated_at or "2026-11-30T11:42:03.123456",
        "display_name": None,
        "platform": "wishee",
        "chat_type": "dm",
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "total_tokens": 0,
        "last_prompt_tokens": used,
        "estimated_cost_usd": 0.0,
        "cost_status": "unknown",
        "expiry_finalized": False,
        "suspended": False,
        "resume_pending": False,
        "resume_reason": None,
        "is_fresh_reset": False,
        "was_auto_reset": False,
        "auto_reset_reason": None,
        "origin": {
            "platform": "wishee",
            "chat_id": chat_id,
            "chat_name": None,
            "chat_type": "dm",
            "user_id": chat_id,
            "user_name": None,
            "thread_id": None,
        },
    }
