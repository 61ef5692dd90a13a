"""The one who decides: prompts, cancels, deadlines and answers (contract sections 5 and 6)."""

import logging
import selectors
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from hermes_bridges.coms import questions
from hermes_bridges.coms.answers import SUFFIX, Answers, Found
from hermes_bridges.coms.book import Book
from hermes_bridges.coms.courier import Sent
from hermes_bridges.coms.dispatch import Dispatch
from hermes_bridges.coms.envelope import LINE_CAP, Prompt, is_ulid
from hermes_bridges.coms.inbox import Inbox
from hermes_bridges.coms.inquiry import Inquiry
from hermes_bridges.coms.jsrules import trim
from hermes_bridges.coms.judge import Accept, Judge, Late, Leave, Reject, Unreadable
from hermes_bridges.coms.peer import Asked, Cancelled
from hermes_bridges.coms.replier import Replied
from hermes_bridges.coms.settings import Settings
from hermes_bridges.coms.telegramtext import telegram_text
from hermes_bridges.coms.watch import DirectoryWatch
from hermes_bridges.core.eventlog import EventLog
from hermes_bridges.core.status import Status

# Items handled in one turn: few, so that new ones are noted at once, and answers have their turn.
TURN = 16
# Seconds between tries to record what could not be recorded.
RECORD_AGAIN = 5.0
# How much longer than a scan took it is until a change begins the next one.
REST = 2.0
# Seconds that an answer file stays for an asker that has not acked yet.
KEEP_ANSWER = 0.5
# Records of closed questions made small in one turn.
TIDY = 8
# Answer files that are synced and removed at the end.
LAST_ANSWERS = 32
# Characters of a name in the event log.
NAME_SHOWN = 256

_log = logging.getLogger("hermes_bridges.coms")


class Desk:
    """A stage: the sole owner of all questions.

    ``beat`` keeps the registry entry fresh; it gets the time and the number of open questions,
    and returns when it is next due.
    """

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        book: Book,
        dispatch: Dispatch,
        log: EventLog,
        status: Status,
        beat: Callable[[float, int], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._inbox = inbox
        self._book = book
        self._dispatch = dispatch
        self._log = log
        self._status = status
        self._beat = beat
        self._wall = wall
        self._poll = settings.poll_ms / 1000
        self._answers = Answers(settings.questions_dir)
        self._judge = Judge(
            self._answers,
            book.standing,
            poll=self._poll,
            allowed=settings.allow_from,
            wall=wall,
        )
        self._watch = DirectoryWatch(settings.questions_dir)
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox.waker.fileno(), selectors.EVENT_READ)
        watched = self._watch.fileno()
        if watched is not None:
            self._selector.register(watched, selectors.EVENT_READ)
        # Answer files to be removed at these times, if their askers have not acked by then.
        self._kept: deque[tuple[float, Inquiry]] = deque()
        # Prompts with the id of a question whose response is still on its way.
        self._again: dict[str, Prompt] = {}
        self._scan_due = self._rested = self._beat_due = self._save_due = float("-inf")

    def adopt(self, now: float) -> None:
        """Go on with what a dead daemon of this name left; before the socket listens."""
        for inquiry in self._book.adopt(now):
            if inquiry.answer_kept:
                self._keep_answer(inquiry, now)
            self._dispatch.resume(inquiry)
        with self._book.intake.left_behind() as left:
            for prompt, at in left:
                if is_ulid(prompt.msg_id) and self._book.standing(prompt.msg_id) == "unknown":
                    inquiry = self._inquiry(prompt)
                    inquiry.starts(now, at, self._limit(prompt))
                    inquiry.resumes(now, self._wall())
                    self._book.enter_adopted(inquiry)
                    self._begin(inquiry)

    def step(self, now: float) -> float | None:
        """One turn: what came in, deadlines, answers, sends, upkeep."""
        more = self._take_in(now)
        if self._watch.changed(now):
            self._scan_due = min(self._scan_due, self._rested)
        if now >= self._scan_due:
            self._scan(now)
        # After the answers: after a stall, one that came in time counts.
        for inquiry in self._book.expired(now):
            self._expire(inquiry)
        self._dispatch.pump()
        self._let_go(now)
        self._keep_up(now)
        if more or self._book.tidy(TIDY):
            return now
        due = (
            self._scan_due,
            self._beat_due,
            self._kept[0][0] if self._kept else None,
            self._book.next_deadline(),
            self._watch.due(now),
        )
        return min(moment for moment in due if moment is not None)

    def wait(self, timeout: float | None) -> None:
        """Wait for an item or a change in the questions directory."""
        self._selector.select(timeout)
        self._inbox.waker.drain()

    def stop(self) -> None:
        """End the wait."""
        self._inbox.waker.wake()

    def close(self) -> None:
        """Let go; the records say everything that is to be known."""
        # Those that are left are known to the next start.
        for _, inquiry in islice(self._kept, LAST_ANSWERS):
            if inquiry.answer_kept and self._book.is_safe(inquiry):
                self._remove_answer(inquiry)
        self._book.intake.close()
        self._selector.close()
        self._watch.close()

    def _take_in(self, now: float) -> bool:
        """Note what is new, handle some; whether more waits."""
        asked = [item.prompt for item in self._inbox.look() if isinstance(item, Asked)]
        if len(asked) > 1:
            # A single one has its record just as soon.
            self._book.intake.note(asked, self._wall())
        for _ in range(TURN):
            item = self._inbox.take()
            if item is None:
                if self._book.is_saved():
                    self._book.intake.clear()
                return False
            if isinstance(item, Asked):
                self._asked(item.prompt, now)
            elif isinstance(item, Cancelled):
                self._cancelled(item.qid)
            elif isinstance(item, Sent):
                self._dispatch.sent(item)
            else:
                self._replied(item, now)
        return True

    def _asked(self, prompt: Prompt, now: float) -> None:
        qid = prompt.msg_id
        if not is_ulid(qid):
            self._status.count("prompt_bad_qid")
            self._book.refuse(qid, prompt.sender_endpoint, questions.bad_qid_error())
            return
        if self._book.taken_elsewhere(qid):
            self._status.count("prompt_taken")
            error = "msg_id belongs to an open question of another bridge"
            self._book.refuse_taken(qid, prompt.sender_endpoint, error)
            return
        if qid in self._book.replying:
            # Asked anew before the old response is acked, or before we have heard of that.
            self._again[qid] = prompt
            return
        inquiry = self._inquiry(prompt)
        inquiry.starts(now, self._wall(), self._limit(prompt))
        self._book.enter(inquiry)
        self._begin(inquiry)

    def _begin(self, inquiry: Inquiry) -> None:
        self._status.count("questions")
        name = inquiry.sender_name
        sender = {} if name is None else {"from": _shown(name)}
        self._log.append("question_received", inquiry.qid, sender)
        self._dispatch.ask(inquiry)

    def _inquiry(self, prompt: Prompt) -> Inquiry:
        asked = questions.parse_prompt(prompt.prompt, prompt.sender_name, prompt.sender_cwd)
        inquiry = Inquiry(
            prompt.msg_id,
            prompt.sender_endpoint,
            tuple(option.title for option in asked.options),
            telegram_text(prompt.msg_id, self._settings.project, asked),
        )
        inquiry.sender_session = prompt.sender_session
        inquiry.sender_name = prompt.sender_name
        inquiry.sender_cwd = prompt.sender_cwd
        return inquiry

    def _limit(self, prompt: Prompt) -> float:
        if prompt.reply_timeout_ms is None or self._settings.timeout_given:
            return self._settings.timeout_ms
        return prompt.reply_timeout_ms

    def _cancelled(self, qid: str) -> None:
        inquiry = self._book.open.get(qid)
        if inquiry is None:
            self._book.forbid(qid)
            return
        inquiry.note = "cancel_note" if inquiry.sends else None
        self._dispatch.drop(qid)
        self._book.withdraw(inquiry)
        self._status.count("cancelled")
        self._log.append("cancelled", qid, {"reason": "cancel envelope"})
        self._dispatch.note(inquiry)

    def _expire(self, inquiry: Inquiry) -> None:
        limit = inquiry.limit_ms
        inquiry.note = "timeout_note" if inquiry.sends else None
        self._dispatch.drop(inquiry.qid)
        self._book.settle(inquiry, "timeout", None, questions.timeout_error(limit))
        self._status.count("timeout")
        # A whole number, as the other side's JSON would have it.
        shown = int(limit) if limit.is_integer() else limit
        self._log.append("timeout", inquiry.qid, {"timeout_ms": shown})
        self._dispatch.note(inquiry)

    def _replied(self, replied: Replied, now: float) -> None:
        inquiry = self._book.replied(replied)
        if inquiry is not None:
            # The file first: after a kill here the response comes again, and no note to the human.
            self._remove_answer(inquiry)
            self._book.close(inquiry)
            again = self._again.pop(replied.qid, None)
            if again is not None:
                self._asked(again, now)

    def _scan(self, now: float) -> None:
        self._scan_due = now + self._poll
        for found in self._answers.scan(now):
            again = self._decide(found, now)
            if again is not None:
                self._scan_due = min(self._scan_due, now + again)
        end = self._clock()
        # A directory that is long to read is not read again at every change.
        self._rested = end + REST * (end - now)

    def _decide(self, found: Found, now: float) -> float | None:
        """Do what is right with an entry; returns in how many seconds it must be seen again."""
        verdict = self._judge.decide(found)
        if isinstance(verdict, Leave):
            return verdict.seconds
        if isinstance(verdict, Accept):
            self._answered(verdict, now)
        elif isinstance(verdict, Late):
            self._late(found.name, verdict.qid)
        elif isinstance(verdict, Reject):
            self._rejected(found.name, verdict)
        else:
            self._unreadable(found.name, verdict)
        return None

    def _answered(self, accepted: Accept, now: float) -> None:
        inquiry = self._book.open[accepted.qid]
        # What is longer than a line is cut for the line anyway, with a mark.
        text = trim(accepted.answer.text)[: LINE_CAP + 1]
        response = questions.map_answer(text, inquiry.titles)
        self._dispatch.drop(inquiry.qid)
        inquiry.answer_kept = True
        self._book.settle(inquiry, "answered", response, None)
        self._keep_answer(inquiry, now)
        self._status.count("answered")
        by = _shown(accepted.answer.answered_by)
        self._log.append("answered", accepted.qid, {"answered_by": by})

    def _keep_answer(self, inquiry: Inquiry, now: float) -> None:
        """Leave the file for a moment: most askers ack at once, and then no sync is needed."""
        self._answers.ignore(inquiry.qid + SUFFIX)
        self._kept.append((now + KEEP_ANSWER, inquiry))

    def _let_go(self, now: float) -> None:
        """Remove answer files whose askers take longer, once the record is safe without them."""
        for _ in range(TIDY):
            if not self._kept or self._kept[0][0] > now:
                return
            _, inquiry = self._kept.popleft()
            if not inquiry.answer_kept:
                continue
            if self._book.is_safe(inquiry):
                self._remove_answer(inquiry)
            else:
                self._kept.append((now + RECORD_AGAIN, inquiry))
                return

    def _remove_answer(self, inquiry: Inquiry) -> None:
        if inquiry.answer_kept:
            inquiry.answer_kept = False
            self._answers.remove(inquiry.qid + SUFFIX)

    def _late(self, name: str, qid: str) -> None:
        if self._answers.remove(name):
            self._status.count("late_answer")
            self._log.append("late_answer", qid, {"state": self._book.outcome(qid)})
            self._dispatch.tell(qid, "late_note", questions.late_note(qid))

    def _rejected(self, name: str, reject: Reject) -> None:
        self._answers.remove(name)
        self._status.count(f"answer_rejected_{reject.reason}")
        # A name is bytes to the system; what is no UTF-8 of it becomes a question mark.
        shown = name.encode("utf-8", "replace").decode()
        self._log.append("answer_rejected", reject.qid, {"reason": reject.reason, "file": shown})
        inquiry = self._book.open.get(reject.qid)
        if reject.tell and inquiry is not None and not inquiry.rejection_told:
            inquiry.rejection_told = True
            note = questions.reject_note(reject.qid, reject.reason)
            self._dispatch.tell(reject.qid, "reject_note", note)

    def _unreadable(self, name: str, verdict: Unreadable) -> None:
        self._answers.ignore(name)
        self._status.count("answer_unreadable")
        _log.error("an answer file cannot be read: %s", verdict.reason)

    def _keep_up(self, now: float) -> None:
        if now >= self._beat_due:
            self._beat_due = self._beat(now, len(self._book.open))
        if now >= self._save_due:
            self._save_due = now + RECORD_AGAIN
            self._book.save_again()
        self._status.set("open", len(self._book.open))
        self._status.set("replying", len(self._book.replying))
        self._dispatch.report()


def _shown(text: str) -> str:
    return text[:NAME_SHOWN]
