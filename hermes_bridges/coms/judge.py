"""What is to be done with an entry of the questions directory (contract section 5)."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hermes_bridges.coms.answers import SUFFIX, Answers, Found
from hermes_bridges.coms.envelope import ZERO_QID, is_ulid
from hermes_bridges.coms.questions import Answer, AnswerRefused, read_answer
from hermes_bridges.errors import FileRefused

# Seconds in which an acked prompt has reached the desk.
AFTER_ACK = 0.1
# Seconds after which a name that is no answer's is taken for left over.
STRAY_AGE = 3600.0
_REFUSALS_TOLD = frozenset({"invalid_json", "invalid_schema", "qid_mismatch"})


class Leave(NamedTuple):
    """Leave the entry; look again after ``seconds`` at the latest, if given."""

    seconds: float | None = None


class Late(NamedTuple):
    """An answer to a closed question."""

    qid: str


class Reject(NamedTuple):
    """Remove and log; ``tell`` when the human should hear of it."""

    qid: str
    reason: str
    tell: bool = False


class Accept(NamedTuple):
    """The answer to an open question."""

    qid: str
    answer: Answer


class Unreadable(NamedTuple):
    """Leave the entry alone and say why, once."""

    reason: str


Verdict = Leave | Late | Reject | Accept | Unreadable


class Standing(Protocol):
    """What the desk knows about a qid: ``open``, ``closed``, ``elsewhere`` or ``unknown``."""

    def __call__(self, qid: str) -> str: ...


class Judge:
    """Owned by the coms.desk thread; decides, and changes nothing."""

    def __init__(
        self,
        answers: Answers,
        standing: Standing,
        *,
        poll: float,
        allowed: frozenset[str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._answers = answers
        self._standing = standing
        self._poll = poll
        self._grace = max(2 * poll, 1.0)
        self._allowed = allowed
        self._wall = wall

    def decide(self, found: Found) -> Verdict:
        """Judge one entry."""
        if found.directory:
            return Leave()
        if not found.name.endswith(SUFFIX):
            return self._stray(found)
        qid = found.name.removesuffix(SUFFIX)
        if not is_ulid(qid):
            return Reject(ZERO_QID, "invalid_qid")
        standing = self._standing(qid)
        if standing == "closed":
            # The qid may just have been asked anew: the prompt can be a moment behind its ack.
            return Late(qid) if found.age >= AFTER_ACK else Leave(AFTER_ACK - found.age)
        if standing == "elsewhere":
            return Leave()
        if standing == "unknown":
            # Its record may be about to be written, by this daemon or by another one.
            if found.age < self._poll:
                return Leave(self._poll - found.age)
            return Reject(qid, "foreign_qid")
        return self._read(found, qid)

    def _stray(self, found: Found) -> Verdict:
        age = self._wall() - found.mtime
        if age < STRAY_AGE or found.age < self._poll:
            return Leave()
        return Reject(found.name if is_ulid(found.name) else ZERO_QID, "invalid_path")

    def _read(self, found: Found, qid: str) -> Verdict:
        if not found.regular:
            return Reject(qid, "invalid_path")
        try:
            answer = read_answer(self._answers.read(found.name), qid)
        except FileNotFoundError:
            return Leave()
        except FileRefused as refused:
            if refused.reason == "too_large":
                return Reject(qid, "invalid_schema", tell=True)
            return Reject(qid, "invalid_path")
        except OSError as error:
            return Unreadable(error.strerror or str(error))
        except AnswerRefused as refused:
            if refused.reason == "invalid_json" and found.age < self._grace:
                # Its writer may still be at it.
                return Leave(self._grace - found.age)
            return Reject(qid, refused.reason, tell=refused.reason in _REFUSALS_TOLD)
        if self._allowed and answer.answered_by not in self._allowed:
            return Reject(qid, "unauthorized")
        return Accept(qid, answer)
