"""How far each message and chat is: the statements of their tables (contract sections 3 and 5).

``run`` executes one statement; whoever calls holds the transaction.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Run = Callable[..., Any]


class ChatState(NamedTuple):
    """What is known of a chat. ``fallback_at``: wall clock of the last fallback, 0 for none."""

    session: str | None = None
    generation: int = 0
    first_person: str | None = None
    several: bool = False
    bot_run: int = 0
    fallback_at: float = 0.0


class Turn(NamedTuple):
    """A message that was begun. ``began_at``: wall clock of the first attempt."""

    attempts: int
    began_at: float
    session: str
    named: bool


def chat(run: Run, chat: str) -> ChatState:
    row = run(
        "SELECT session, generation, first_person, several, bot_run, fallback_at"
        " FROM chats WHERE chat = ?",
        (chat,),
    ).fetchone()
    if row is None:
        return ChatState()
    state = ChatState(*row)
    return state._replace(several=bool(state.several))


def store_people(run: Run, chat: str, state: ChatState) -> None:
    run(
        "INSERT INTO chats (chat, first_person, several, bot_run) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (chat) DO UPDATE SET first_person = excluded.first_person,"
        " several = excluded.several, bot_run = excluded.bot_run",
        (chat, state.first_person, state.several, state.bot_run),
    )


def store_session(run: Run, chat: str, session: str) -> None:
    run(
        "INSERT INTO chats (chat, session) VALUES (?, ?)"
        " ON CONFLICT (chat) DO UPDATE SET session = excluded.session",
        (chat, session),
    )


def store_fallback(run: Run, chat: str, at: float) -> None:
    run(
        "INSERT INTO chats (chat, fallback_at) VALUES (?, ?)"
        " ON CONFLICT (chat) DO UPDATE SET fallback_at = excluded.fallback_at",
        (chat, at),
    )


def next_generation(run: Run, chat: str) -> int:
    run(
        "INSERT INTO chats (chat, generation) VALUES (?, 1) ON CONFLICT (chat)"
        " DO UPDATE SET generation = generation + 1, session = NULL",
        (chat,),
    )
    return int(run("SELECT generation FROM chats WHERE chat = ?", (chat,)).fetchone()[0])


def turn(run: Run, chat: str, message: str) -> Turn | None:
    row = run(
        "SELECT attempts, began_at, session, named FROM turns WHERE chat = ? AND message = ?",
        (chat, message),
    ).fetchone()
    if row is None:
        return None
    attempts, began_at, session, named = row
    return Turn(attempts, began_at, session, bool(named))


def begin(run: Run, chat: str, message: str, at: float, session: str, named: bool) -> Turn:
    run(
        "INSERT INTO turns (chat, message, attempts, began_at, session, named)"
        " VALUES (?, ?, 1, ?, ?, ?)"
        " ON CONFLICT (chat, message) DO UPDATE SET attempts = attempts + 1",
        (chat, message, at, session, named),
    )
    begun = turn(run, chat, message)
    assert begun is not None
    return begun


def is_settled(run: Run, chat: str, message: str) -> bool:
    query = "SELECT 1 FROM settled WHERE chat = ? AND message = ?"
    return run(query, (chat, message)).fetchone() is not None


def settle(run: Run, chat: str, message: str, at: float) -> None:
    run(
        "INSERT INTO settled (chat, message, at) VALUES (?, ?, ?)"
        " ON CONFLICT (chat, message) DO NOTHING",
        (chat, message, at),
    )
    run("DELETE FROM turns WHERE chat = ? AND message = ?", (chat, message))
    forget(run, chat, message)


def keep(run: Run, chat: str, message: str, body: str) -> None:
    run(
        "INSERT INTO kept (chat, message, body) VALUES (?, ?, ?)"
        " ON CONFLICT (chat, message) DO NOTHING",
        (chat, message, body),
    )


def kept(run: Run) -> list[str]:
    return [body for (body,) in run("SELECT body FROM kept ORDER BY n")]


def forget(run: Run, chat: str, message: str) -> None:
    run("DELETE FROM kept WHERE chat = ? AND message = ?", (chat, message))


def prune_settled(run: Run, oldest: float, most: int, bite: int) -> int:
    """Remove what was settled earlier, and what exceeds ``most``: ``bite`` rows at a time."""
    removed = run(
        "DELETE FROM settled WHERE n IN (SELECT n FROM settled WHERE at < ?"
        " OR n <= (SELECT max(n) FROM settled) - ? ORDER BY n LIMIT ?)",
        (oldest, most, bite),
    )
    return int(removed.rowcount)


def prune_turns(run: Run, oldest: float) -> None:
    run("DELETE FROM turns WHERE began_at < ?", (oldest,))
