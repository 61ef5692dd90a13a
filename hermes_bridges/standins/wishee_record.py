"""What the stand-in Wishee bridge knows and has noted of all its connections."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hermes_bridges.standins.journal import Journal
from hermes_bridges.standins.wishee_judge import Fault, Judge

NOTED = 64 * 1024  # bytes of a payload in the journal


class Violation(NamedTuple):
    """What a connector has done against the contract, and the section that says so."""

    section: str
    text: str
    conn: int


class Event(NamedTuple):
    """An event of a connector; ``t`` is monotonic."""

    conn: int
    t: float
    name: str
    payload: dict[str, Any]


class Record:
    """Guarded by the lock of the bridge."""

    def __init__(self, journal: str | None) -> None:
        self.journal = Journal(journal)
        self.judge = Judge()
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.secrets: set[str] = set()
        """Those of all the identities that have shown up."""

    def faults(self, conn: int, faults: Iterable[Fault], t: float) -> None:
        for fault in faults:
            self.violations.append(Violation(fault.section, fault.text, conn))
            self.journal.note("violation", conn=conn, **fault._asdict(), t=t)

    def event(self, event: Event) -> None:
        """Keep it, and note it with its ids at the front."""
        self.events.append(event)
        names = ("runId", "sessionKey", "itemId", "approvalId", "taskId", "outcome")
        ids = {name: event.payload[name] for name in names if name in event.payload}
        self.journal.note(
            "event", conn=event.conn, event=event.name, **ids, **noted(event.payload), t=event.t
        )


def noted(payload: object, name: str = "payload") -> dict[str, object]:
    """A payload for the journal: whole, or how long it is."""
    size = len(json.dumps(payload))
    return {"size": size} if size > NOTED else {"size": size, name: payload}


def told(frame: Mapping[str, Any]) -> str | None:
    """The text of an error res."""
    error = frame.get("error")
    return str(error.get("message")) if isinstance(error, dict) else None
