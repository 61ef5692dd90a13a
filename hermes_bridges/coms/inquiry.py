"""One question in memory, and as it stands in its record (contract section 6)."""

import math
from collections.abc import Mapping

from hermes_bridges.coms.records import Body, Record

RECEIVED, SENDING, DELIVERED = "received", "sending", "delivered"
REPLYING, CLOSED = "replying", "closed"
OPEN_STATES = (RECEIVED, SENDING, DELIVERED)
# Begun at most so often: once more than the first time, when nobody knows what became of that.
SENDS_MAX = 2


class Inquiry:
    """A question that waits for its outcome, or whose response waits for its asker.

    Owned by the coms.desk thread. ``deadline`` is monotonic; ``wall_deadline`` and
    ``received_at`` are seconds since 1970, for the record; ``limit_ms`` is the whole time.
    ``sends`` counts how often the question was handed to `hermes send`. ``outcome``, ``response``,
    ``error`` and ``note`` are set once it is settled. ``text`` is what the human reads; it is
    dropped from memory once it was delivered.
    """

    __slots__ = (
        "answer_kept",
        "deadline",
        "endpoint",
        "error",
        "limit_ms",
        "note",
        "outcome",
        "qid",
        "received_at",
        "rejection_told",
        "response",
        "sender_cwd",
        "sender_name",
        "sender_session",
        "sends",
        "state",
        "text",
        "titles",
        "wall_deadline",
    )

    def __init__(self, qid: str, endpoint: str, titles: tuple[str, ...], text: str) -> None:
        self.qid = qid
        self.endpoint = endpoint
        self.titles = titles
        self.text = text
        self.sender_session: str | None = None
        self.sender_name: str | None = None
        self.sender_cwd: str | None = None
        self.received_at = self.wall_deadline = self.deadline = 0.0
        self.limit_ms = 0.0
        self.state = RECEIVED
        self.sends = 0
        self.outcome: str | None = None
        self.response: object = None
        self.error: str | None = None
        self.rejection_told = False
        # The phase of a note that the human is still to get.
        self.note: str | None = None
        # Whether the answer file is still there: it goes once the asker has the answer.
        self.answer_kept = False

    def starts(self, now: float, wall: float, limit_ms: float) -> None:
        """Set the time limit of a new question."""
        self.limit_ms = limit_ms
        self.received_at = wall
        self.wall_deadline = wall + limit_ms / 1000
        self.deadline = now + limit_ms / 1000

    def resumes(self, now: float, wall: float) -> None:
        """Set the time that is left of an adopted question.

        Between nothing and the whole limit; the whole limit too if the record is from the future,
        as it looks on a host whose clock has lost its time.
        """
        limit = self.limit_ms / 1000
        left = limit if self.received_at > wall else self.wall_deadline - wall
        self.deadline = now + min(max(left, 0.0), limit)

    def body(self) -> Body:
        """The fields of the record."""
        body: Body = {
            "envelope": {
                "sender_session": self.sender_session,
                "sender_endpoint": self.endpoint,
                "sender_name": self.sender_name,
                "sender_cwd": self.sender_cwd,
            },
            "options": list(self.titles),
            "text": self.text,
            "received_at": self.received_at,
            "deadline": self.wall_deadline,
            "limit_ms": self.limit_ms,
            "sends": self.sends,
        }
        if self.state == REPLYING:
            body.update(
                outcome=self.outcome,
                response=self.response,
                error=self.error,
                note=self.note,
                answer_kept=self.answer_kept,
            )
        return body


def from_record(record: Record) -> Inquiry:
    """Read a question back; ValueError when a field is not what it must be."""
    fields = record.body
    if record.state == CLOSED:
        return _closed(record)
    sender = fields.get("envelope")
    titles = fields.get("options")
    if not isinstance(sender, dict) or not isinstance(titles, list):
        raise ValueError("envelope or options are missing")
    inquiry = Inquiry(
        record.qid,
        _text(sender, "sender_endpoint"),
        tuple(title for title in titles if isinstance(title, str)),
        _text(fields, "text"),
    )
    inquiry.sender_session = _optional(sender, "sender_session")
    inquiry.sender_name = _optional(sender, "sender_name")
    inquiry.sender_cwd = _optional(sender, "sender_cwd")
    inquiry.received_at = number(fields, "received_at")
    inquiry.wall_deadline = number(fields, "deadline")
    inquiry.limit_ms = number(fields, "limit_ms")
    inquiry.sends = int(number(fields, "sends"))
    inquiry.state = record.state
    if record.state == REPLYING:
        inquiry.outcome = _text(fields, "outcome")
        inquiry.response = fields.get("response")
        inquiry.error = _optional(fields, "error")
        inquiry.note = _optional(fields, "note")
        inquiry.answer_kept = fields.get("answer_kept") is True
    elif record.state not in OPEN_STATES:
        raise ValueError(f"unknown state {record.state!r}")
    return inquiry


def _closed(record: Record) -> Inquiry:
    """A closed question: how it ended, and the note that it may still owe."""
    inquiry = Inquiry(record.qid, "", (), "")
    inquiry.state = CLOSED
    inquiry.outcome = _text(record.body, "outcome")
    inquiry.note = _optional(record.body, "note")
    if inquiry.note is not None:
        inquiry.limit_ms = number(record.body, "limit_ms")
    return inquiry


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _optional(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def number(fields: Mapping[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is out of range")
    return number
