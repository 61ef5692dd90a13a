"""What a Wishee connector may say when: runs, results, cards (contract, sections 2 to 5, 10)."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_bridges.standins import wishee_cards

CONFIRM_GRACE = 1.0  # seconds in which a pong may be lost with the connection, or not be noted yet
PROGRESS_EVERY = 8.0
_PROGRESS_SLACK = 1.0
_PART = re.compile(r"(run-[0-9a-f]{32}):\d+")


class Fault(NamedTuple):
    """What is wrong, and the section of the contract that says so."""

    section: str
    text: str


@dataclass
class Party:
    """The connector at the other end of one connection. ``ended_at`` is monotonic."""

    conn: int
    agent_id: str
    user_id: str
    ended_at: float | None = None
    told_usage: bool = False
    unconfirmed: list["Said"] = field(default_factory=list)
    # Bounded by the pings of the connector that wait for a pong.
    pinged: deque[list["Said"]] = field(default_factory=deque)


@dataclass
class Said:
    """Something that is said once, or again after a connection that broke too early."""

    party: Party
    what: Mapping[str, Any]
    confirmed_at: float | None = None


@dataclass
class Run:
    run_id: str
    session_key: str
    agent_id: str
    user_id: str
    result: Said | None = None


@dataclass
class Card:
    payload: Mapping[str, Any]
    party: Party
    asked: bool = False
    """Somebody has answered it."""
    resolved: Said | None = None


class Judge:
    """Remembers what was said on all connections. Guarded by the lock of the bridge."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.cards: dict[str, Card] = {}
        # The requests whose res was lost with their connection: the bridge knows no runId.
        self._unknown: list[tuple[str, str, str]] = []
        self._progress_at: dict[tuple[str, str], float] = {}

    def started(self, party: Party, run_id: str, session_key: str) -> Iterator[Fault]:
        """A chat.send was answered with this runId."""
        if run_id in self.runs:
            yield Fault("2", "a runId was given twice")
        else:
            self.runs[run_id] = Run(run_id, session_key, party.agent_id, party.user_id)

    def unanswered(self, party: Party, session_key: str) -> None:
        """The connection of a chat.send ended before its res: it may have started a run."""
        self._unknown.append((party.agent_id, party.user_id, session_key))

    def responded(self, approval_id: str) -> None:
        """Somebody answers a card."""
        if approval_id in self.cards:
            self.cards[approval_id].asked = True

    def pinged(self, party: Party) -> None:
        """The connector has sent a ping behind all that it has said so far."""
        party.pinged.append(party.unconfirmed)
        party.unconfirmed = []

    def ponged(self, party: Party, now: float) -> None:
        """The pong for the oldest of its pings went out."""
        if party.pinged:
            for said in party.pinged.popleft():
                said.confirmed_at = now

    def event(
        self, party: Party, name: str, payload: Mapping[str, Any], now: float
    ) -> Iterator[Fault]:
        """An event of the right shape."""
        if name == "task-result":
            yield from self._result(party, payload, now)
        elif name == "agent-progress":
            yield from self._progress(party, payload, now)
        elif name == "approval-request":
            yield from self._card(party, payload)
        elif name == "approval-resolved":
            yield from self._resolved(party, payload, now)
        elif name == "agent-context":
            keys = {run.session_key for run in self.runs.values() if run.result}
            if payload["sessionKey"] not in keys:
                yield Fault("3", "agent-context before any task-result of its session")
        party.told_usage = party.told_usage or name in ("agent-usage", "agent-activity")

    def _run(self, party: Party, run_id: str, session_key: str, what: str) -> Iterator[Fault]:
        """Find the run of an event, or the lost request that it must belong to."""
        run = self.runs.get(run_id)
        if run is None:
            lost = (party.agent_id, party.user_id, session_key)
            if lost not in self._unknown:
                yield Fault("3", f"{what} of a run that no res has told of")
                return
            self._unknown.remove(lost)
            run = self.runs[run_id] = Run(run_id, session_key, party.agent_id, party.user_id)
        if run.session_key != session_key:
            yield Fault("3", f"{what} has another sessionKey than the bridge has sent")
        if run.user_id != party.user_id:
            yield Fault("10 Outbox", f"{what} of a run of another user")
        if run.agent_id != party.agent_id:
            yield Fault("3", f"{what} of a run of another agent")

    def _result(self, party: Party, payload: Mapping[str, Any], now: float) -> Iterator[Fault]:
        yield from self._run(party, payload["runId"], payload["sessionKey"], "a task-result")
        run = self.runs.get(payload["runId"])
        if run is not None:
            yield from self._again(party, run.result, payload, now, "a task-result")
            run.result = self._said(party, payload)

    def _again(
        self, party: Party, before: Said | None, payload: Mapping[str, Any], now: float, what: str
    ) -> Iterator[Fault]:
        """Judge a repetition (sections 2 and 10, Outbox)."""
        if before is None:
            return
        if {**before.what, "ts": None} != {**payload, "ts": None}:
            yield Fault("2", f"{what} was changed when it was said again")
        # A connection that the bridge itself holds still may be over without its knowing it.
        ended = before.party.ended_at or now
        if before.party is party:
            yield Fault("2", f"{what} twice on one connection")
        elif before.confirmed_at is not None and ended - before.confirmed_at > CONFIRM_GRACE:
            yield Fault("2", f"{what} again, although it had been confirmed")
        if party.told_usage:
            yield Fault("10 Outbox", f"{what} of before the welcome came after usage or activity")

    def _said(self, party: Party, payload: Mapping[str, Any]) -> Said:
        said = Said(party, payload)
        party.unconfirmed.append(said)
        return said

    def _progress(self, party: Party, payload: Mapping[str, Any], now: float) -> Iterator[Fault]:
        found = _PART.fullmatch(payload["itemId"])
        assert found is not None
        key = payload["sessionKey"]
        yield from self._run(party, found[1], key, "agent-progress")
        run = self.runs.get(found[1])
        if run is not None and run.result is not None:
            yield Fault("3", "agent-progress after its task-result")
        last = self._progress_at.get((party.agent_id, key))
        if last is not None and now - last < PROGRESS_EVERY - _PROGRESS_SLACK:
            yield Fault("4 Progress", "agent-progress too soon after the one before")
        self._progress_at[party.agent_id, key] = now

    def _card(self, party: Party, payload: Mapping[str, Any]) -> Iterator[Fault]:
        yield from (Fault("5", text) for text in wishee_cards.card(payload, party.agent_id))
        if payload["taskId"]:
            yield from self._run(party, payload["taskId"], payload["session"], "a card")
            run = self.runs.get(payload["taskId"])
            if run is not None and run.result is not None:
                yield Fault("3", "a card after the task-result of its run")
        before = self.cards.get(payload["approvalId"])
        if before is not None and (before.resolved or before.party is party):
            yield Fault("5", "a card twice")
        self.cards[payload["approvalId"]] = Card(payload, party)
        if sum(not card.resolved for card in self.cards.values()) > wishee_cards.OPEN_LIMIT:
            yield Fault("5", "too many open cards")

    def _resolved(self, party: Party, payload: Mapping[str, Any], now: float) -> Iterator[Fault]:
        card = self.cards.get(payload["approvalId"])
        canceled = payload["outcome"] == "canceled"
        if card is None:
            # Its approval-request may have been lost on the way.
            if not canceled:
                yield Fault("5", "a card was decided that nobody has seen")
            return
        if card.party.user_id != party.user_id:
            yield Fault("10 Outbox", "approval-resolved of a card of another user")
        if not canceled and not card.asked:
            yield Fault("5", "a card was decided that nobody has answered")
        yield from self._again(party, card.resolved, payload, now, "approval-resolved")
        card.resolved = self._said(party, payload)
