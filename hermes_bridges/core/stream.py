"""A WebSocket connection that is kept: dialled, watched, and dialled again."""

import math
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hermes_bridges.core.backoff import Backoff, retry_after
from hermes_bridges.core.connection import GOING_AWAY, NORMAL, Connection, Ended, Patience
from hermes_bridges.core.dial import DialAbandoned, DialFailed, Dialler, Target
from hermes_bridges.core.frames import Oversized, Text
from hermes_bridges.core.streamlog import HEALTHY, StreamLog
from hermes_bridges.core.waker import Waker

# Seconds for a whole dial.
DIAL_LIMIT = 15.0
# Seconds between tries of a peer that refuses us, give or take a fifth.
REFUSED_DELAY = 30.0
# The longest Retry-After that is honoured, in seconds.
RETRY_AFTER_MAX = 300.0
REFUSAL_CODES = frozenset({1008, 4001, 4003, 4401, 4403})

_OUTBOX_TEXTS = 256
_OUTBOX_BYTES = 1024 * 1024
_PIECES_A_TURN = 16
_LONGEST_WAIT = 86_400.0


@dataclass(frozen=True, slots=True)
class Opened:
    """The upgrade is done; messages follow."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A connection is over after ``lasted`` seconds; ``code`` is that of the peer's close."""

    reason: str
    code: int | None
    lasted: float
    retry_in: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A dial came to nothing, or the peer closed a connection because it does not want us.

    ``status`` is its HTTP answer, ``code`` its close code; neither: it was not reached. ``auth``:
    the token is not accepted.
    """

    status: int | None
    code: int | None
    auth: bool
    reason: str
    retry_in: float


State = Opened | Lost | Refused | Oversized


class Stream:
    """Keeps one WebSocket connection open (contract, section 6): a stage of its own thread.

    ``target`` is asked before each dial. ``on_message`` gets each message, text or binary, as it
    came; False means full: the message is kept and offered again after ``resume``, until then
    nothing is read and the peer's silence not judged. ``on_state`` hears of each transition. All
    three are called on the stream's thread with no lock held. A step may last a whole dial: 15 s,
    and longer where the name service hangs.

    A delay before a dial is drawn from a range that grows to 30 s and shrinks only once a
    connection has lasted 30 s; it is 30 s, give or take a fifth, after HTTP 401 or 403 or a close
    by one of ``refusal_codes``, and never shorter than a Retry-After of up to 5 minutes.

    ``connected`` and ``since`` (monotonic, the last change) may be read from any thread. The peer
    must be confirmed ``confirm_within`` seconds after each upgrade, else it is dialled anew; it is
    pinged after ``ping_after`` seconds of silence, and dropped ``pong_within`` seconds later.

    No text of this class holds a header, a URL's path or query, or what the peer has sent.
    """

    def __init__(
        self,
        target: Callable[[], Target],
        on_message: Callable[[bytes], bool],
        on_state: Callable[[State], None],
        *,
        proxy: str | None = None,
        refusal_codes: frozenset[int] = REFUSAL_CODES,
        confirm_within: float = 15.0,
        ping_after: float = 15.0,
        pong_within: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rand: Callable[[], float] = random.random,
        resolve: Callable[..., Sequence[Any]] = socket.getaddrinfo,
    ) -> None:
        self.connected = False
        self.since = clock()
        self._target = target
        self._on_message = on_message
        self._on_state = on_state
        self._refusal_codes = refusal_codes
        self._patience = Patience(confirm_within, ping_after, pong_within)
        self._clock = clock
        self._wall = wall
        self._rand = rand
        self._waker = Waker()
        self._stopping = False
        self._redial_reason: str | None = None
        self._dialler = Dialler(
            self._waker, lambda: self._stopping, proxy=proxy, resolve=resolve, clock=clock
        )
        self._backoff = Backoff(1.0, 30.0, healthy=HEALTHY, floor=0.1, rand=rand, clock=clock)
        self._connection: Connection | None = None
        self._dial_due = -math.inf
        # Messages that the consumer had no room for: at most what one piece of the stream held,
        # since nothing is read while there are any.
        self._held: deque[bytes] = deque()
        # Guards _outbox and _outbox_size.
        self._lock = threading.Lock()
        self._outbox: deque[bytes] = deque(maxlen=_OUTBOX_TEXTS)
        self._outbox_size = 0
        self._story = StreamLog()

    def offer(self, text: str) -> bool:
        """Queue a text message, from any thread; False when not connected, or full.

        True is no promise: what is queued when the connection ends is gone. Never blocks.
        """
        data = text.encode()
        with self._lock:
            full = len(self._outbox) == _OUTBOX_TEXTS or self._outbox_size >= _OUTBOX_BYTES
            if full or not self.connected or self._stopping:
                return False
            self._outbox.append(data)
            self._outbox_size += len(data)
        self._waker.wake()
        return True

    def confirm(self) -> None:
        """The peer has said what makes it the right one; from any thread."""
        connection = self._connection
        if connection is not None:
            connection.confirmed = True
            self._waker.wake()

    def resume(self) -> None:
        """There is room again for messages; from any thread."""
        self._waker.wake()

    def redial(self, reason: str) -> None:
        """Close the connection, if there is one, and dial at once; from any thread."""
        self._redial_reason = reason
        self._waker.wake()

    def step(self, now: float) -> float | None:
        if self._stopping:
            self._let_go(GOING_AWAY)
            return None
        was_full = bool(self._held)
        self._deliver()
        reason, self._redial_reason = self._redial_reason, None
        if reason is not None and self._connection is not None:
            self._lose(Ended(f"dialling anew: {reason}", answer=NORMAL), now, delay=0.0)
        if self._connection is None:
            if now < self._dial_due:
                return self._dial_due
            self._dial()
            now = self._clock()
        if self._connection is None:
            return self._dial_due
        if was_full:
            self._connection.excuse(now)
        return self._turn(self._connection, now)

    def wait(self, timeout: float | None) -> None:
        poll = select.poll()
        poll.register(self._waker.fileno(), select.POLLIN)
        if self._connection is not None:
            # A socket that is polled for nothing would still report its peer's end, over and over.
            interest = self._connection.interest(reading=not self._held)
            if interest:
                poll.register(self._connection.fileno(), interest)
        poll.poll(None if timeout is None else max(0.0, min(timeout, _LONGEST_WAIT)) * 1000)
        self._waker.drain()

    def stop(self) -> None:
        """From any thread: end a wait or a dial; the last step closes the connection (1001)."""
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        self._let_go(GOING_AWAY)
        self._waker.close()

    def _dial(self) -> None:
        target = self._target()
        self._story.place = urlsplit(target.url).netloc.rpartition("@")[2]
        try:
            sock = self._dialler.dial(target, DIAL_LIMIT)
        except DialAbandoned:
            return
        except DialFailed as fault:
            self._refuse(fault)
            return
        now = self._clock()
        self._connection = Connection(sock, self._patience, now)
        self._backoff.succeeded(now)
        self._story.opened(now)
        with self._lock:
            self.connected, self.since = True, now
        self._on_state(Opened())

    def _turn(self, connection: Connection, now: float) -> float | None:
        try:
            more = self._receive(connection, now)
            # While there is no room the peer may say what it likes and we do not hear it.
            due = None if self._held else connection.check(now)
            connection.transmit(self._next_text, now)
        except Ended as end:
            self._lose(end, now)
            return self._dial_due
        due = self._story.check(now, connection.confirmed, due)
        return now if more else due

    def _receive(self, connection: Connection, now: float) -> bool:
        """Read and hand on; True when there may be more to read at once."""
        for _ in range(_PIECES_A_TURN):
            if self._held:
                return False
            messages = connection.receive(now)
            if messages is None:
                return False
            for message in messages:
                if isinstance(message, Text):
                    self._held.append(message.data)
                else:
                    self._on_state(message)
            self._deliver()
        return True

    def _deliver(self) -> None:
        while self._held and self._on_message(self._held[0]):
            self._held.popleft()

    def _next_text(self) -> bytes | None:
        with self._lock:
            if not self._outbox:
                return None
            data = self._outbox.popleft()
            self._outbox_size -= len(data)
            return data

    def _lose(self, end: Ended, now: float, delay: float | None = None) -> None:
        connection = self._connection
        assert connection is not None
        lasted = now - connection.opened
        self._let_go(end.answer)
        self._backoff.failed(now)
        refused = end.code in self._refusal_codes
        if delay is None:
            delay = self._refused_delay() if refused else self._backoff.next_delay()
        self._dial_due = now + delay
        self._story.lost(str(end), lasted, delay)
        if refused:
            self._on_state(Refused(None, end.code, True, str(end), delay))
        else:
            self._on_state(Lost(str(end), end.code, lasted, delay))

    def _refuse(self, fault: DialFailed) -> None:
        auth = fault.status in (401, 403)
        delay = self._refused_delay() if auth else self._backoff.next_delay()
        asked = retry_after(fault.retry_after, self._wall())
        if asked is not None:
            delay = max(delay, min(asked, RETRY_AFTER_MAX))
        self._dial_due = self._clock() + delay
        self._story.failed(str(fault), delay)
        self._on_state(Refused(fault.status, None, auth, str(fault), delay))

    def _refused_delay(self) -> float:
        return REFUSED_DELAY * (0.8 + 0.4 * self._rand())

    def _let_go(self, code: int | None) -> None:
        if self._connection is None:
            return
        with self._lock:
            self.connected, self.since = False, self._clock()
            self._outbox.clear()
            self._outbox_size = 0
        self._connection.close(code)
        self._connection = None
