"""The parts of answers that are yet to be posted: their table's statements (contract section 4).

``run`` executes one statement; whoever calls holds the transaction.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hermes_bridges.donut.protocol import Id

Run = Callable[..., Any]


class Part(NamedTuple):
    """A part of an answer; ``id`` is given by the outbox, ``created_at`` is wall clock.

    ``answer`` is the key of the whole answer, ``key`` the part's own, ``number`` counts from 1.
    """

    id: int
    chat: str
    chat_id: Id
    thread_id: Id | None
    reply_to: Id | None
    key: str
    answer: str
    number: int
    text: str
    created_at: float


_COLUMNS = "chat, chat_id, thread_id, reply_to, key, answer, number, text, created_at"


def append(run: Run, parts: Iterable[Part]) -> None:
    for part in parts:
        run(
            f"INSERT INTO outbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (part.chat, *map(json.dumps, part[2:5]), *part[5:]),
        )


def first(run: Run, chat: str, limit: int) -> list[Part]:
    rows = run(
        f"SELECT id, {_COLUMNS} FROM outbox WHERE chat = ? ORDER BY id LIMIT ?", (chat, limit)
    )
    return [Part(*row[:2], *map(json.loads, row[2:5]), *row[5:]) for row in rows]


def chats(run: Run, limit: int, after: str) -> list[str]:
    query = "SELECT DISTINCT chat FROM outbox WHERE chat > ? ORDER BY chat LIMIT ?"
    return [chat for (chat,) in run(query, (after, limit))]


def size(run: Run) -> int:
    return int(run("SELECT count(*) FROM outbox").fetchone()[0])


def remove(run: Run, part: Part) -> None:
    # The key too, as the id of a removed part may have been given to another one.
    run("DELETE FROM outbox WHERE id = ? AND key = ?", (part.id, part.key))


def move_rest(run: Run, part: Part, thread_id: Id) -> None:
    run(
        "UPDATE outbox SET thread_id = ? WHERE chat = ? AND answer = ?",
        (json.dumps(thread_id), part.chat, part.answer),
    )


def remove_rest(run: Run, part: Part) -> int:
    """Remove a part and those of its answer that follow; how many that were."""
    removed = run(
        "DELETE FROM outbox WHERE chat = ? AND answer = ? AND number >= ?",
        (part.chat, part.answer, part.number),
    )
    return int(removed.rowcount)


def expire(run: Run, oldest: float) -> list[tuple[str, str]]:
    """Remove what was created earlier; the chat and the key of each answer."""
    found = run(
        "SELECT chat, answer FROM outbox WHERE created_at < ? GROUP BY chat, answer"
        " ORDER BY min(id)",
        (oldest,),
    ).fetchall()
    if found:
        run("DELETE FROM outbox WHERE created_at < ?", (oldest,))
    return [(chat, answer) for chat, answer in found]
