"""All questions of one daemon, open, replying and closed, and what of them is on disk."""

import heapq
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from hermes_bridges.coms import envelope
from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.inquiry import CLOSED, REPLYING, Inquiry, from_record, number
from hermes_bridges.coms.intake import Intake
from hermes_bridges.coms.records import Body, Record, Records
from hermes_bridges.coms.replier import Outcome, Replied, Reply
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.core.status import Status

CLOSED_MAX = 1_000
DEADLINES_SPARE = 1_000
# Error responses that may wait for their askers.
REFUSALS_MAX = 100

_log = logging.getLogger("hermes_bridges.coms")


class Book:
    """Owned by the coms.desk thread (by the main thread until that runs).

    A question is in one of three places: ``open`` until its outcome is known, ``replying`` until
    its asker has the response, ``closed`` for the last 1,000. ``reply`` hands a response on.
    """

    def __init__(
        self,
        records: Records,
        admission: Admission,
        reply: Callable[[Reply], None],
        status: Status,
        endpoint: str,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.open: dict[str, Inquiry] = {}
        self.replying: dict[str, Inquiry] = {}
        self.closed: OrderedDict[str, str] = OrderedDict()
        self.intake = Intake(records)
        self._records = records
        self._admission = admission
        self._reply = reply
        self._status = status
        self._endpoint = endpoint
        self._wall = wall
        self._deadlines: list[tuple[float, str]] = []
        self._unsaved: set[str] = set()
        # Closed questions whose record still promises a note.
        self._owing: set[str] = set()
        # Closed questions whose record still holds what came before; as many as were closed.
        self._untidy: deque[tuple[str, Body]] = deque(maxlen=CLOSED_MAX)
        self._untidy_waits = False
        # New questions that a power loss could still take away; as many as are open.
        self._unsynced: deque[str] = deque()
        self._refusals = 0

    def standing(self, qid: str) -> str:
        """Tell ``open``, ``closed``, ``elsewhere`` (of another daemon, or unclear), ``unknown``."""
        if qid in self.open:
            return "open"
        if qid in self.replying or qid in self.closed:
            return "closed"
        return "unknown" if self._records.find(qid) is None else "elsewhere"

    def taken_elsewhere(self, qid: str) -> bool:
        """Whether another daemon has an open question of that id."""
        if qid in self.replying or qid in self.closed:
            return False
        record = self._records.find(qid)
        return record is not None and record.state != CLOSED

    def outcome(self, qid: str) -> str:
        """How a question ended that is replying or closed."""
        inquiry = self.replying.get(qid)
        return str(inquiry.outcome) if inquiry is not None else self.closed[qid]

    def enter(self, inquiry: Inquiry) -> None:
        """Take a new question; it is recorded before anything is done for it."""
        self.closed.pop(inquiry.qid, None)
        self._owing.discard(inquiry.qid)
        self._hold(inquiry)
        self._saved(inquiry, self._records.create(inquiry.qid, inquiry.state, inquiry.body()))
        self._unsynced.append(inquiry.qid)

    def enter_adopted(self, inquiry: Inquiry) -> None:
        """Take a question that a dead daemon had acked and not recorded."""
        self._admission.admit(inquiry.qid, inquiry.endpoint)
        self.enter(inquiry)

    def save(self, inquiry: Inquiry) -> bool:
        """Bring a record up to date; what cannot be written now is tried again later."""
        closed = inquiry.state == CLOSED
        body = self._closed_body(inquiry) if closed else inquiry.body()
        return self._saved(inquiry, self._records.append(inquiry.qid, inquiry.state, body))

    def is_saved(self) -> bool:
        """Whether every question's record is up to date."""
        return not self._unsaved

    def save_again(self) -> None:
        """Try what could not be recorded; stops at the first that still cannot."""
        self._untidy_waits = False
        for qid in list(self._unsaved):
            inquiry = self.open.get(qid) or self.replying.get(qid)
            if inquiry is None:
                self._unsaved.discard(qid)
            elif not self.save(inquiry):
                return

    def settle(self, inquiry: Inquiry, outcome: str, response: object, error: str | None) -> None:
        """Fix the outcome, record it, then hand the response on."""
        del self.open[inquiry.qid]
        inquiry.outcome, inquiry.response, inquiry.error = outcome, response, error
        inquiry.state = REPLYING
        self.save(inquiry)
        self._admission.settled(inquiry.qid)
        self._send(inquiry)

    def is_safe(self, inquiry: Inquiry) -> bool:
        """Whether a settled question would survive a power loss; makes it so if it can."""
        return inquiry.qid not in self._unsaved and self._records.sync(inquiry.qid)

    def withdraw(self, inquiry: Inquiry) -> None:
        """Close an open question that its asker cancelled: no response."""
        del self.open[inquiry.qid]
        inquiry.outcome = "cancelled"
        self.close(inquiry)

    def forbid(self, qid: str) -> None:
        """A settled question was cancelled: its response must not be sent after a restart."""
        inquiry = self.replying.get(qid)
        if inquiry is not None:
            inquiry.state = CLOSED
            self.save(inquiry)

    def replied(self, replied: Replied) -> Inquiry | None:
        """A response is done with; the question, if there is one, is to be closed."""
        if not replied.question:
            self._refusals -= 1
        if replied.outcome not in (Outcome.ACKED, Outcome.CANCELLED):
            self._status.count(f"reply_lost_{replied.outcome.value}")
            _log.warning("response to question %s given up: %s", replied.qid, replied.outcome.value)
        return self.replying.pop(replied.qid, None) if replied.question else None

    def close(self, inquiry: Inquiry) -> None:
        """Nothing is owed to the asker any more."""
        if not self._records.append(inquiry.qid, CLOSED, self._closed_body(inquiry)):
            # On a full disk a file can still be removed: the question must not be open again.
            self._records.remove(inquiry.qid)
        self._remember(inquiry.qid, str(inquiry.outcome))
        if inquiry.note is not None:
            self._owing.add(inquiry.qid)
        self._untidy.append((inquiry.qid, self._closed_body(inquiry)))
        self._admission.closed(inquiry.qid)

    def tidy(self, files: int) -> bool:
        """Sync new records and make those of closed questions small, so many files at most.

        Returns whether there are more to do now.
        """
        if self._unsynced:
            for _ in range(min(files, len(self._unsynced))):
                self._records.sync(self._unsynced.popleft())
            if not self._unsynced:
                self._records.sync_names()
            return True
        if self._untidy_waits:
            return False
        for _ in range(min(files, len(self._untidy))):
            qid, body = self._untidy[0]
            wanted = qid in self.closed and (qid in self._owing) == ("note" in body)
            if wanted and not self._records.tidy(qid, CLOSED, body):
                self._untidy_waits = True
                return False
            self._untidy.popleft()
        return bool(self._untidy)

    def refuse(self, qid: str, endpoint: str, error: str) -> None:
        """Answer a prompt that does not become a question with an error, unless too many wait."""
        if self._refusals >= REFUSALS_MAX:
            self._status.count("refusal_dropped")
            _log.warning("error response to a prompt dropped: too many wait")
            return
        self._refusals += 1
        self._reply(Reply(qid, endpoint, self._line(qid, None, error), question=False))

    def refuse_taken(self, qid: str, endpoint: str, error: str) -> None:
        """The same for one that the listener took for a new question."""
        self.refuse(qid, endpoint, error)
        self._admission.closed(qid)

    def note_sent(self, qid: str, phase: str) -> None:
        """A note that the record promises was sent, or is not to be tried again."""
        inquiry = self.replying.get(qid)
        if inquiry is not None and inquiry.note == phase:
            inquiry.note = None
            self.save(inquiry)
        elif qid in self._owing:
            self._owing.discard(qid)
            body: Body = {"outcome": self.closed[qid], "closed_at": self._wall()}
            self._records.tidy(qid, CLOSED, body)

    def expired(self, now: float) -> Iterator[Inquiry]:
        """The open questions whose time is over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, qid = heapq.heappop(self._deadlines)
            inquiry = self.open.get(qid)
            # The entry may be of a question that was settled, or of an earlier one of that id.
            if inquiry is not None and inquiry.deadline <= now:
                yield inquiry

    def next_deadline(self) -> float | None:
        """When the next question may run out of time."""
        return self._deadlines[0][0] if self._deadlines else None

    def adopt(self, now: float) -> list[Inquiry]:
        """Take over what a dead daemon of this project and name left.

        Responses that were due are handed on; returns the open questions and those whose note was
        not sent. Each record has this daemon as its owner before another one can look.
        """
        adopted: list[Inquiry] = []
        closed: list[tuple[float, str, str | None]] = []
        with self._records.adopting():
            for record in self._records.adoptable():
                try:
                    closed_at = number(record.body, "closed_at") if record.state == CLOSED else 0.0
                    inquiry = self._take_over(record, now)
                except ValueError as error:
                    self._records.damaged(record.qid, str(error))
                    continue
                if record.state == CLOSED:
                    closed.append((closed_at, record.qid, inquiry.outcome))
                if record.state != CLOSED or inquiry.note is not None:
                    adopted.append(inquiry)
        for _, qid, outcome in sorted(closed):
            self._remember(qid, str(outcome))
        return adopted

    def _take_over(self, record: Record, now: float) -> Inquiry:
        inquiry = from_record(record)
        inquiry.resumes(now, self._wall())
        # A note is sent once more at most: from here on the record does not ask for it.
        note, inquiry.note = inquiry.note, None
        if record.state != CLOSED or note is not None:
            self.save(inquiry)
        inquiry.note = note
        if record.state == CLOSED:
            return inquiry
        self._admission.admit(inquiry.qid, inquiry.endpoint, settled=inquiry.state == REPLYING)
        if inquiry.state == REPLYING:
            self._send(inquiry)
        else:
            self._hold(inquiry)
        return inquiry

    def _saved(self, inquiry: Inquiry, saved: bool) -> bool:
        if saved:
            self._unsaved.discard(inquiry.qid)
        else:
            self._unsaved.add(inquiry.qid)
        return saved

    def _hold(self, inquiry: Inquiry) -> None:
        self.open[inquiry.qid] = inquiry
        heapq.heappush(self._deadlines, (inquiry.deadline, inquiry.qid))
        if len(self._deadlines) > 2 * len(self.open) + DEADLINES_SPARE:
            # Settled questions leave theirs behind, which may be due in years.
            self._deadlines = [(held.deadline, held.qid) for held in self.open.values()]
            heapq.heapify(self._deadlines)

    def _send(self, inquiry: Inquiry) -> None:
        self.replying[inquiry.qid] = inquiry
        line = self._line(inquiry.qid, inquiry.response, inquiry.error)
        self._reply(Reply(inquiry.qid, inquiry.endpoint, line))

    def _line(self, qid: str, response: object, error: str | None) -> bytes:
        session = self._records.owner.session
        return envelope.response(qid, session, self._endpoint, iso_now(), response, error)

    def _closed_body(self, inquiry: Inquiry) -> Body:
        body: Body = {"outcome": inquiry.outcome, "closed_at": self._wall()}
        if inquiry.note is not None:
            body.update(note=inquiry.note, limit_ms=inquiry.limit_ms)
        return body

    def _remember(self, qid: str, outcome: str) -> None:
        self.closed[qid] = outcome
        self.closed.move_to_end(qid)
        while len(self.closed) > CLOSED_MAX:
            oldest, _ = self.closed.popitem(last=False)
            self._owing.discard(oldest)
            self._records.remove(oldest)
