"""Which questions are open, and for whom: what decides over an ack (contract section 4)."""

import contextlib
from queue import Empty, SimpleQueue

OPEN_MAX = 5_000


class Admission:
    """The table of open questions.

    Owned by the coms.listen thread. The desk reports through ``settled`` and ``closed``, which
    only append to a queue that the owner empties; ``is_cancelled`` is one look-up in a set and
    safe from any thread.
    """

    def __init__(self) -> None:
        self._endpoints: dict[str, str] = {}
        self._settled: set[str] = set()
        self._cancelled: set[str] = set()
        # Settled ones that their asker has asked anew: the old question's end is not theirs.
        self._again: set[str] = set()
        # Never longer than twice the number of open questions.
        self._facts: SimpleQueue[tuple[str, str]] = SimpleQueue()

    def settled(self, qid: str) -> None:
        """The outcome of a question is known and its reply on the way (called by the desk)."""
        self._facts.put(("settled", qid))

    def closed(self, qid: str) -> None:
        """Nothing more will be sent for this question (called by the desk)."""
        self._facts.put(("closed", qid))

    def is_cancelled(self, qid: str) -> bool:
        """Whether the asker has withdrawn a question that is not closed yet (any thread)."""
        return qid in self._cancelled

    def refresh(self) -> None:
        """Take in what the desk has reported."""
        with contextlib.suppress(Empty):
            while True:
                fact, qid = self._facts.get_nowait()
                if qid not in self._endpoints:
                    continue
                if fact == "settled":
                    self._settled.add(qid)
                    continue
                self._settled.discard(qid)
                self._cancelled.discard(qid)
                if qid in self._again:
                    self._again.remove(qid)
                else:
                    del self._endpoints[qid]

    def admit(self, qid: str, endpoint: str, *, settled: bool = False) -> None:
        """A question was acked, or taken over at the start."""
        self._endpoints[qid] = endpoint
        if settled:
            self._settled.add(qid)

    def ask_again(self, qid: str) -> bool:
        """Note a prompt for an open question; False when it is a duplicate.

        Once a question is settled, a prompt with its id is a new one, and the desk waits with it.
        """
        if qid not in self._settled or qid in self._again:
            return False
        self._again.add(qid)
        return True

    def cancel(self, qid: str) -> bool:
        """Note a cancel; False when the question is not open or is cancelled already."""
        if qid not in self._endpoints or qid in self._cancelled:
            return False
        self._cancelled.add(qid)
        return True

    def asker(self, qid: str) -> str | None:
        """The endpoint that asked an open question."""
        return self._endpoints.get(qid)

    def full(self) -> bool:
        """Whether no further question may be taken."""
        return len(self._endpoints) >= OPEN_MAX

    def depth(self) -> int:
        """How many questions wait for an outcome."""
        return len(self._endpoints) - len(self._settled | self._cancelled)
