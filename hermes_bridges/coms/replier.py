"""Responses to the peers that asked, each over a connection of its own (contract section 4)."""

import contextlib
import heapq
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import NamedTuple

from hermes_bridges.coms.envelope import reply_kind
from hermes_bridges.coms.peer import same_user
from hermes_bridges.core.backoff import Backoff
from hermes_bridges.core.waker import Waker

OPEN_MAX = 64
# Seconds for one try: connect, send, ack.
TRY = 10.0
# Seconds without endpoint file and registry entry until an asker is given up.
GONE = 60.0
# Seconds in which a response that its asker nacks is offered again.
REFUSED = 60.0
# Seconds until a response is given up whose asker is there but never takes it.
PATIENCE = 24 * 3600.0
RETRY_FIRST, RETRY_CAP, RETRY_FLOOR = 0.2, 30.0, 0.05
# Seconds for tries under way when the daemon stops.
LAST = 0.4
_ACK_MAX = 64 * 1024

_log = logging.getLogger("hermes_bridges.coms")


class Outcome(Enum):
    """What became of a response."""

    ACKED = "acked"
    CANCELLED = "cancelled"
    GONE = "asker_gone"
    REFUSED = "asker_refused"
    EXPIRED = "asker_never_acked"


class Reply(NamedTuple):
    """One response line for one asker."""

    qid: str
    endpoint: str
    line: bytes
    question: bool = True
    """False for the error response to a prompt that became no question."""


class Replied(NamedTuple):
    """A reply that is done with, one way or the other."""

    qid: str
    outcome: Outcome
    question: bool = True


class _Lane:
    """The replies for one asker, one at a time and in order but for those that it refuses.

    A lane with replies is either in the heap of waiting lanes or has one try under way.
    """

    __slots__ = ("backoff", "endpoint", "first_try", "gone_since", "refused", "replies", "round")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        # As many as there are questions of this asker, and a few error responses.
        self.replies: deque[Reply] = deque()
        # Since when the asker refuses which replies, by qid.
        self.refused: dict[str, float] = {}
        # Those that it refused in this round.
        self.round: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Start with the next reply: nothing is known of its asker."""
        self.backoff = Backoff(RETRY_FIRST, RETRY_CAP, floor=RETRY_FLOOR)
        self.first_try: float | None = None
        self.gone_since: float | None = None


class _Try:
    """A connection with a response on its way."""

    __slots__ = ("deadline", "lane", "received", "socket", "unsent")

    def __init__(self, connected: socket.socket, lane: _Lane, deadline: float) -> None:
        self.socket = connected
        self.lane = lane
        self.unsent = memoryview(lane.replies[0].line)
        self.received = bytearray()
        self.deadline = deadline


class Replier:
    """A stage that delivers responses; a receiver that is slow or mute delays nobody else.

    ``put`` may be called from any thread, everything else belongs to the coms.replier thread.
    The inbox needs no limit of its own: the number of open questions has one, and that of error
    responses to other prompts.
    """

    def __init__(
        self,
        report: Callable[[Replied], None],
        is_cancelled: Callable[[str], bool],
        is_reachable: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._is_cancelled = is_cancelled
        self._is_reachable = is_reachable
        self._clock = clock
        self._waker = Waker()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker.fileno(), selectors.EVENT_READ)
        # As many as there are questions, and a few error responses.
        self._inbox: SimpleQueue[Reply] = SimpleQueue()
        self._lanes: dict[str, _Lane] = {}
        self._waiting: list[tuple[float, int, _Lane]] = []
        self._order = 0
        self._tries: dict[int, _Try] = {}
        self._ready: list[tuple[selectors.SelectorKey, int]] = []

    def put(self, reply: Reply) -> None:
        """Take a response over; never blocks."""
        self._inbox.put(reply)
        self._waker.wake()

    def step(self, now: float) -> float | None:
        """Move every try on, begin what is due; returns when the next one is."""
        self._take_in(now)
        self._move_on(now)
        while self._waiting and self._waiting[0][0] <= now and len(self._tries) < OPEN_MAX:
            self._begin(heapq.heappop(self._waiting)[2], now)
        due = [attempt.deadline for attempt in self._tries.values()]
        if self._waiting and len(self._tries) < OPEN_MAX:
            due.append(self._waiting[0][0])
        return min(due, default=None)

    def wait(self, timeout: float | None) -> None:
        """Wait until a try can go on or a reply comes."""
        self._ready = self._selector.select(timeout)
        self._waker.drain()

    def stop(self) -> None:
        """End the wait."""
        self._waker.wake()

    def close(self) -> None:
        """Give tries under way a last moment; what is not acked then stays in its record."""
        end = self._clock() + LAST
        while self._tries and (left := end - self._clock()) > 0:
            self.wait(left)
            self._move_on(self._clock())
        for attempt in list(self._tries.values()):
            self._end(attempt)
        self._selector.close()
        self._waker.close()

    def _take_in(self, now: float) -> None:
        with contextlib.suppress(Empty):
            while True:
                reply = self._inbox.get_nowait()
                lane = self._lanes.get(reply.endpoint)
                if lane is None:
                    lane = self._lanes[reply.endpoint] = _Lane(reply.endpoint)
                    self._wait_until(now, lane)
                lane.replies.append(reply)

    def _move_on(self, now: float) -> None:
        ready, self._ready = self._ready, []
        for key, _ in ready:
            if key.fd in self._tries:
                self._advance(self._tries[key.fd], now)
        for attempt in [a for a in self._tries.values() if a.deadline <= now]:
            self._end(attempt)
            self._again(attempt.lane, now)

    def _begin(self, lane: _Lane, now: float) -> None:
        if lane.replies[0].question and self._is_cancelled(lane.replies[0].qid):
            self._settle(lane, Outcome.CANCELLED, now)
            return
        if lane.first_try is None:
            lane.first_try = now
        try:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            # Out of descriptors: no sign that the asker is gone.
            self._again(lane, now)
            return
        try:
            connected.connect(lane.endpoint)
            if not same_user(connected):
                raise PermissionError("the receiver runs under another user")
        except (OSError, ValueError):
            # ValueError: a path with a NUL in it, which cannot be reached either.
            connected.close()
            self._unreachable(lane, now)
            return
        lane.gone_since = None
        attempt = _Try(connected, lane, now + TRY)
        self._tries[connected.fileno()] = attempt
        self._selector.register(connected, selectors.EVENT_READ | selectors.EVENT_WRITE)
        self._advance(attempt, now)

    def _advance(self, attempt: _Try, now: float) -> None:
        try:
            if attempt.unsent:
                attempt.unsent = attempt.unsent[attempt.socket.send(attempt.unsent) :]
                if not attempt.unsent:
                    self._selector.modify(attempt.socket, selectors.EVENT_READ)
                return
            data = attempt.socket.recv(_ACK_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        attempt.received += data
        line, newline, _ = attempt.received.partition(b"\n")
        if data and not newline and len(attempt.received) < _ACK_MAX:
            return
        self._end(attempt)
        kind = reply_kind(bytes(line))[0] if newline else "bad"
        if kind == "ack":
            self._settle(attempt.lane, Outcome.ACKED, now)
        elif kind == "nack":
            self._refused(attempt.lane, now)
        else:
            self._again(attempt.lane, now)

    def _unreachable(self, lane: _Lane, now: float) -> None:
        if self._is_reachable(lane.endpoint):
            lane.gone_since = None
        elif lane.gone_since is None:
            lane.gone_since = now
        elif now - lane.gone_since >= GONE:
            # Whatever else waits for this asker has waited just as long.
            for _ in range(len(lane.replies)):
                self._settle(lane, Outcome.GONE, now)
            return
        self._again(lane, now)

    def _refused(self, lane: _Lane, now: float) -> None:
        since = lane.refused.setdefault(lane.replies[0].qid, now)
        if now - since >= REFUSED:
            self._settle(lane, Outcome.REFUSED, now)
        else:
            self._refused_in_turn(lane, now)

    def _refused_in_turn(self, lane: _Lane, now: float) -> None:
        """Go on with the next reply at once; wait when all have been refused in this round."""
        lane.round.add(lane.replies[0].qid)
        lane.replies.rotate(-1)
        if lane.replies[0].qid in lane.round:
            lane.round.clear()
            self._again(lane, now)
        else:
            self._wait_until(now, lane)

    def _again(self, lane: _Lane, now: float) -> None:
        if lane.first_try is not None and now - lane.first_try >= PATIENCE:
            self._settle(lane, Outcome.EXPIRED, now)
        else:
            self._wait_until(now + lane.backoff.next_delay(), lane)

    def _settle(self, lane: _Lane, outcome: Outcome, now: float) -> None:
        """Report the first reply of a lane and go on with the next."""
        reply = lane.replies.popleft()
        lane.refused.pop(reply.qid, None)
        lane.round.discard(reply.qid)
        self._report(Replied(reply.qid, outcome, reply.question))
        if not lane.replies:
            del self._lanes[lane.endpoint]
        elif outcome is not Outcome.GONE:
            lane.begin()
            self._wait_until(now, lane)

    def _wait_until(self, due: float, lane: _Lane) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (due, self._order, lane))

    def _end(self, attempt: _Try) -> None:
        del self._tries[attempt.socket.fileno()]
        self._selector.unregister(attempt.socket)
        attempt.socket.close()
