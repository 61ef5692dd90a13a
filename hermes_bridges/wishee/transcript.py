"""The answers of chat.history and chat.turns (contract, section 4). Pure.

A turn is a message of the user and what followed it. Rows are what is stored; runs that are
remembered give them what is not: when and how they ended, and what never got a row.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from hermes_bridges.core.clusters import boundary_before
from hermes_bridges.wishee.cleaning import Entry
from hermes_bridges.wishee.recall import STAMPS_DIFFER, Recall

BUDGET = 512 * 1024
"""Bytes of JSON that an answer may have."""

_FRAME = len('{"messages":[]}')
_STAMPS = range(10**12, 10**14)  # milliseconds that can be a time of our age


class Lease(NamedTuple):
    """Somebody works on a session now, since this time (epoch seconds)."""

    since: float


class Stored(NamedTuple):
    """Rows of one session, the oldest first; ``whole`` when there are no older ones."""

    session_id: str
    entries: Sequence[Entry]
    whole: bool
    lease: Lease | None = None


@dataclass(slots=True)
class _Message:
    id: str
    role: str
    text: str
    at: float | None = None

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"role": self.role, "content": self.text, "id": self.id}
        return told | stamp("ts", self.at)


@dataclass(slots=True)
class _Turn:
    """``place`` orders the turns: the id of the first row, or a number between two of them."""

    id: str
    place: float
    said: str = ""
    messages: list[_Message] = field(default_factory=list)
    at: float | None = None
    last_at: float | None = None
    is_answered: bool = False
    status: str = ""
    ended_at: float | None = None
    error: str = ""
    is_claimed: bool = False

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"id": self.id}
        if self.status:
            told["status"] = self.status
        told |= stamp("startedAt", self.at) | stamp("completedAt", self.ended_at)
        if self.error:
            told["errorMessage"] = self.error
        return told | {"messages": [message.told() for message in self.messages]}


def messages(entries: Iterable[Entry], limit: int, budget: int = BUDGET) -> list[dict[str, Any]]:
    """The answer of chat.history from rows, the oldest first: the last ``limit`` messages."""
    found = [
        {"role": "assistant" if entry.role == "assistant" else "user", "content": text}
        | stamp("ts", entry.at)
        for entry in entries
        for text in entry.texts
    ]
    return _newest(found[-limit:], budget - _FRAME)


def turns(
    stored: Stored, recalls: Sequence[Recall], limit: int, budget: int = BUDGET
) -> list[dict[str, Any]]:
    """The answer of chat.turns; ``recalls`` are of the same session, the oldest first."""
    going = [recall for recall in recalls if recall.hides]
    entries = [
        entry
        for entry in stored.entries
        if not any(recall.owns(entry.id, entry.at) for recall in going)
    ]
    found = _turns_of(stored._replace(entries=entries))
    _judge_last(found, stored.lease if not going else None)
    for recall, follower in zip_longest(recalls, recalls[1:]):
        if recall.hides:
            continue
        own = _turns_of_run(found, recall, follower)
        if own:
            _tell(own, recall, bool(going))
        elif _is_missing(stored, recall):
            found.append(_remembered(recall, _place(found, recall)))
    found.sort(key=lambda turn: turn.place)
    found += [_remembered(recall, 0) for recall in going]
    return _cut_turns([turn.told() for turn in found[-limit:]], budget - _FRAME)


def size(value: object) -> int:
    """The bytes of a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace"))


def _turns_of(stored: Stored) -> list[_Turn]:
    found: list[_Turn] = []
    for entry in stored.entries:
        if entry.role == "gone":
            continue
        id = f"{stored.session_id}:{entry.id}"
        if entry.role == "user" or not found:
            said = "".join(entry.texts) if entry.role == "user" else ""
            found.append(_Turn(id, entry.id, said, at=entry.at))
        turn = found[-1]
        turn.last_at = entry.at
        if entry.role == "assistant":
            turn.is_answered = True
            turn.status, turn.ended_at = "completed", entry.at
        role = "assistant" if entry.role == "assistant" else "user"
        for n, text in enumerate(entry.texts, 1):
            message_id = f"{id}:steer{n}" if entry.role == "steer" else id
            turn.messages.append(_Message(message_id, role, text, entry.at))
    return found


def _judge_last(found: list[_Turn], lease: Lease | None) -> None:
    if found and lease is not None and (found[-1].last_at or 0) >= lease.since:
        found[-1].status, found[-1].ended_at = "inProgress", None


def _turns_of_run(
    found: Sequence[_Turn], recall: Recall, follower: Recall | None
) -> Sequence[_Turn]:
    """The turns that a run has left in the rows; several, where a later message began another."""
    own = [turn for turn in found if not turn.is_claimed and turn.at is not None]
    own = [turn for turn in own if recall.owns(int(turn.place), turn.at or 0)]
    if follower is not None and follower.mark:
        own = [turn for turn in own if turn.place <= follower.mark]
    later = {_folded(text) for text in recall.later}
    texts = [_folded(turn.said) for turn in own]
    if recall.message and _folded(recall.message) in texts:
        # Hermes may have stored older turns once more, when it made the transcript shorter.
        first = len(texts) - 1 - texts[::-1].index(_folded(recall.message))
    elif later & set(texts):
        first = next(n for n, text in enumerate(texts) if text in later)
    else:
        # Hermes has put it into other words.
        until = float("inf") if recall.ended_at is None else recall.ended_at + STAMPS_DIFFER
        return [turn for turn in own if (turn.at or 0) <= until][:1]
    return [own[first], *(turn for turn in own[first + 1 :] if _folded(turn.said) in later)]


def _tell(own: Sequence[_Turn], recall: Recall, is_cut: bool) -> None:
    """Give turns of rows what is only remembered; ``is_cut`` when their last rows are hidden."""
    for turn in own:
        turn.is_claimed = True
        turn.status = turn.status or "completed"
    last = own[-1]
    own[0].at = recall.started_at
    if recall.ended_at is not None:
        last.status = "failed" if recall.error else "completed"
        last.error, last.ended_at = recall.error, recall.ended_at
    else:
        last.status, last.ended_at = "inProgress", None
    messages = [message for turn in own for message in turn.messages]
    known = {_folded(m.text): m for m in reversed(messages) if m.role == "assistant"}
    for step in recall.progress:
        message = known.pop(_folded(step.text), None)
        if message is not None:
            message.id = f"{recall.run_id}:{step.number}"
    _add_later(last, messages, recall)
    answers = [_folded(m.text) for m in messages if m.role == "assistant"]
    if recall.text and (not answers or (is_cut and _folded(recall.text) not in answers)):
        last.messages.append(
            _Message(f"{recall.run_id}:result", "assistant", recall.text, recall.ended_at)
        )


def _add_later(turn: _Turn, stored: Sequence[_Message], recall: Recall) -> None:
    """Put the later messages that have no row of their own before what was said after them."""
    users = [message.text for message in stored if message.role == "user"]
    for n, text in enumerate(recall.later, 1):
        if any(f"\n{text.strip()}\n" in f"\n{user}\n" for user in users):
            continue
        after = {f"{recall.run_id}:{s.number}" for s in recall.progress if s.after >= n}
        answers = [i for i, m in enumerate(turn.messages) if m.role == "assistant"]
        behind = [i for i, m in enumerate(turn.messages) if m.id in after]
        at = (behind or answers[-1:] or [len(turn.messages)])[0]
        turn.messages.insert(at, _Message(f"{recall.run_id}:user{n}", "user", text))


def _is_missing(stored: Stored, recall: Recall) -> bool:
    """Whether a run that has ended left no row at all in this session, as far as can be told."""
    if recall.session_id not in (None, stored.session_id):
        return False
    if any(e.role == "gone" and recall.owns(e.id, e.at) for e in stored.entries):
        return False
    # The rows of an older run may not have been read.
    first = stored.entries[0] if stored.entries else None
    if stored.whole or first is None:
        return True
    return recall.mark >= first.id if recall.mark else recall.started_at >= first.at


def _place(found: Sequence[_Turn], recall: Recall) -> float:
    if recall.mark:
        return recall.mark + 0.5
    before = [t.place for t in found if t.at is not None and t.at <= recall.started_at]
    return max(before, default=0) + 0.5


def _remembered(recall: Recall, place: float) -> _Turn:
    """A turn from memory alone."""
    run_id = recall.run_id
    turn = _Turn(run_id, place, at=recall.started_at, ended_at=recall.ended_at, error=recall.error)
    turn.status = "failed" if recall.error else "completed"
    if recall.ended_at is None:
        turn.status, turn.error = "inProgress", ""
    if recall.message:
        turn.messages.append(_Message(f"{run_id}:user", "user", recall.message, recall.started_at))
    steps = list(recall.progress)
    for n in range(len(recall.later) + 1):
        if n:
            turn.messages.append(_Message(f"{run_id}:user{n}", "user", recall.later[n - 1]))
        while steps and (steps[0].after <= n or n == len(recall.later)):
            step = steps.pop(0)
            turn.messages.append(_Message(f"{run_id}:{step.number}", "assistant", step.text))
    if recall.text and recall.ended_at is not None:
        turn.messages.append(
            _Message(f"{run_id}:result", "assistant", recall.text, recall.ended_at)
        )
    return turn


def _cut_turns(told: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for turn in reversed(told):
        budget -= size(turn | {"messages": []}) + 1
        fitting = _newest(turn["messages"], budget, at_least_one=not kept)
        if budget < 0 or (turn["messages"] and not fitting):
            break
        kept.insert(0, turn | {"messages": fitting})
        budget -= sum(size(message) + 1 for message in fitting)
        if len(fitting) < len(turn["messages"]):
            break
    return kept


def _newest(
    told: Sequence[dict[str, Any]], budget: int, at_least_one: bool = True
) -> list[dict[str, Any]]:
    """The last messages that fit; the very last one is shortened rather than left out."""
    kept: list[dict[str, Any]] = []
    for message in reversed(told):
        taken = size(message) + 1
        if taken > budget:
            if at_least_one and not kept:
                kept.append(_shortened(message, budget))
            break
        kept.insert(0, message)
        budget -= taken
    return kept


def _shortened(message: dict[str, Any], budget: int) -> dict[str, Any]:
    text: str = message["content"]
    # A character has one byte at least.
    text = text[: max(budget, 0)]
    while text and (taken := size(message | {"content": f"{text}…"}) + 1) > budget:
        text = text[: boundary_before(text, len(text) * budget // taken - 1)]
    return message | {"content": f"{text}…"}


def _folded(text: str) -> str:
    return " ".join(text.split())


def stamp(name: str, at: float | None) -> dict[str, int]:
    """A time in milliseconds under its name; nothing where it is none of our age."""
    milliseconds = 0 if at is None else round(at * 1000)
    return {name: milliseconds} if milliseconds in _STAMPS else {}
