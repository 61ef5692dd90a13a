"""What the human is to be told: order, limits, and what became of it (contract section 5)."""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from queue import SimpleQueue

from hermes_bridges.coms import questions
from hermes_bridges.coms.book import Book
from hermes_bridges.coms.courier import Job, Sent
from hermes_bridges.coms.inquiry import DELIVERED, RECEIVED, SENDING, SENDS_MAX, Inquiry
from hermes_bridges.coms.jsrules import format_number
from hermes_bridges.coms.settings import Settings
from hermes_bridges.core.eventlog import EventLog
from hermes_bridges.core.hermes_cli import Result
from hermes_bridges.core.status import Status

NOTES_MAX = 1_000
SEND_MISSING = (
    "this hermes has no `send` command (0.14 is known to lack it; 0.19, 0.21 and 0.22 have it):"
    " a newer hermes-agent is needed"
)

_NO_SEND = re.compile(r"invalid choice: '?send'?")

_log = logging.getLogger("hermes_bridges.coms")


def send_missing(code: int | None, output: str) -> bool:
    """Whether this is how a `hermes` ends that does not know `send`."""
    return code == 2 and _NO_SEND.search(output) is not None


class Dispatch:
    """Hands jobs to the couriers: at most as many as there are, and per question in order.

    Owned by the coms.desk thread. Waiting questions are as many as are open, notes at most
    ``NOTES_MAX``. ``stopping`` is set when the couriers end; nothing is begun after that. ``mask``
    hides secrets in what `hermes` printed.
    """

    def __init__(
        self,
        settings: Settings,
        book: Book,
        log: EventLog,
        status: Status,
        jobs: "SimpleQueue[Job | None]",
        stopping: threading.Event,
        mask: Callable[[str], str],
    ) -> None:
        self._settings = settings
        self._book = book
        self._log = log
        self._status = status
        self._jobs = jobs
        self._stopping = stopping
        self._mask = mask
        # By qid, phase and serial: the open questions, and NOTES_MAX notes with their texts.
        self._waiting: OrderedDict[tuple[str, str, int], str] = OrderedDict()
        self._serial = 0
        self._notes = 0
        self._running: set[str] = set()
        # Why `hermes send` cannot work at all, once that is known.
        self._missing: str | None = None

    def ask(self, inquiry: Inquiry) -> None:
        """Send a question, unless that is known to be impossible."""
        if self._missing is not None:
            self._undeliverable(inquiry, self._missing)
        else:
            self._waiting[inquiry.qid, "question", 0] = ""

    def resume(self, inquiry: Inquiry) -> None:
        """Go on with an adopted question: what was not sent, or not surely, is sent once more."""
        if inquiry.note is not None:
            self.note(inquiry)
        elif inquiry.state == RECEIVED:
            self.ask(inquiry)
        elif inquiry.state == SENDING:
            self._log.append("delivery_unknown", inquiry.qid, {"phase": "question"})
            if inquiry.sends < SENDS_MAX:
                self.ask(inquiry)
        else:
            inquiry.text = ""

    def note(self, inquiry: Inquiry) -> None:
        """Send the note that a settled or cancelled question owes the human."""
        phase = inquiry.note
        if phase == "timeout_note":
            self.tell(inquiry.qid, phase, questions.timeout_note(inquiry.qid, inquiry.limit_ms))
        elif phase == "cancel_note":
            self.tell(inquiry.qid, phase, questions.cancel_note(inquiry.qid))

    def tell(self, qid: str, phase: str, text: str) -> None:
        """Queue a note; dropped and counted when too many wait or none can be sent."""
        if self._missing is None and self._notes < NOTES_MAX:
            self._notes += 1
            self._serial += 1
            self._waiting[qid, phase, self._serial] = text
        else:
            self._drop_note(qid, phase)

    def drop(self, qid: str) -> None:
        """A question is settled or cancelled: if its send has not begun, it never will."""
        self._waiting.pop((qid, "question", 0), None)

    def pump(self) -> None:
        """Begin what may begin now."""
        while not self._stopping.is_set() and (job := self._next()) is not None:
            begun = self._begin_question(job) if job.phase == "question" else self._begin_note(job)
            if begun is not None:
                self._running.add(job.qid)
                self._jobs.put(begun)

    def sent(self, sent: Sent) -> None:
        """A courier is through with a job."""
        job, result = sent
        self._running.discard(job.qid)
        if result.stopped:
            # It ended with the daemon: its record asks the next one to send it once more.
            return
        self._status.count("sends")
        if job.phase == "question":
            self._question_sent(job, result)
            return
        self._book.note_sent(job.qid, job.phase)
        if result.code != 0:
            self._status.count("note_failed")
            detail = {"phase": job.phase, "error": self._failure(result)}
            self._log.append("delivery_error", job.qid, detail)

    def report(self) -> None:
        """Put the depths into the status."""
        self._status.set("sends_waiting", len(self._waiting))
        self._status.set("sends_running", len(self._running))

    def _next(self) -> Job | None:
        if len(self._running) >= self._settings.max_sends:
            return None
        for key, text in self._waiting.items():
            qid, phase, _ = key
            if qid not in self._running:
                del self._waiting[key]
                self._notes -= phase != "question"
                return Job(qid, phase, text)
        return None

    def _begin_note(self, job: Job) -> Job | None:
        if self._missing is None:
            return job
        self._drop_note(job.qid, job.phase)
        return None

    def _drop_note(self, qid: str, phase: str) -> None:
        self._status.count("note_dropped")
        _log.warning("%s of question %s dropped", phase, qid)
        self._book.note_sent(qid, phase)

    def _begin_question(self, job: Job) -> Job | None:
        """Record that a send begins."""
        inquiry = self._book.open.get(job.qid)
        if inquiry is None:
            return None
        if self._missing is not None:
            self._undeliverable(inquiry, self._missing)
            return None
        inquiry.state = SENDING
        inquiry.sends += 1
        self._book.save(inquiry)
        return job._replace(text=inquiry.text)

    def _question_sent(self, job: Job, result: Result) -> None:
        # A question that was settled meanwhile stays as it is; only the log hears of its send.
        inquiry = self._book.open.get(job.qid)
        if inquiry is not None and inquiry.state != SENDING:
            # Its qid is in use again, and the new question's own send is still to come.
            inquiry = None
        if result.code == 0:
            self._log.append("delivered", job.qid, {"to": self._settings.to})
            if inquiry is not None:
                inquiry.state = DELIVERED
                self._book.save(inquiry)
                inquiry.text = ""
            return
        error = self._failure(result)
        if send_missing(result.code, result.err):
            self._missing = error = f"hermes send failed (2): {SEND_MISSING}"
            self._status.set("hermes", SEND_MISSING)
            _log.error("%s", SEND_MISSING)
        if inquiry is None:
            self._log.append("delivery_error", job.qid, {"error": error})
        else:
            self._undeliverable(inquiry, error)

    def _undeliverable(self, inquiry: Inquiry, error: str) -> None:
        self._status.count("delivery_error")
        self._book.settle(inquiry, "delivery_error", None, error)
        self._log.append("delivery_error", inquiry.qid, {"error": error})

    def _failure(self, result: Result) -> str:
        if result.error is not None:
            return questions.send_error(None, result.error)
        detail = self._mask(result.err or result.out)
        if result.timed_out:
            limit = format_number(self._settings.send_timeout_ms)
            unknown = f"unknown whether it was delivered, stopped after {limit}ms"
            return questions.send_error(None, f"{unknown}: {detail}" if detail.strip() else unknown)
        return questions.send_error(result.code, detail)
