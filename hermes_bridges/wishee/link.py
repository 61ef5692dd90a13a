"""The connection to the Wishee bridge: dialled, kept, watched and dialled again by one thread."""

import logging
import math
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hermes_bridges.core.connection import NORMAL, Connection, Ended, Patience
from hermes_bridges.core.dial import DialAbandoned, DialFailed, Dialler, Target
from hermes_bridges.core.frames import FrameReader, Oversized, Text
from hermes_bridges.core.streamlog import StreamLog
from hermes_bridges.core.waker import Waker
from hermes_bridges.wishee import protocol
from hermes_bridges.wishee.outgoing import Outgoing, Told
from hermes_bridges.wishee.redial import REFUSED, UNBOUND, Redial

DIAL_LIMIT = 5.0
"""Seconds for a whole dial, the name service excepted."""
PATIENCE = Patience(confirm=15.0, ping=20.0, pong=20.0, write=20.0)

_INBOUND_MAX = 8 * 1024 * 1024
_INBOUND_ABORT = 64 * 1024 * 1024
_HEAD = 4096
_PIECES_A_TURN = 16
_LONGEST_WAIT = 86_400.0
_FAULT_PAUSE = 1.0

_log = logging.getLogger("hermes_bridges.wishee")


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The bridge has taken us; from now on frames can be offered."""

    user_id: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A connection is over, or a dial came to nothing; the next one is ``retry_in`` s away.

    ``code`` is that of the bridge's close frame. ``unbound``: it does not know this agent, or no
    longer. ``refused``: it does not want us, by HTTP 401 or 403 or such a code. ``reason`` is safe
    to log.
    """

    reason: str
    code: int | None
    unbound: bool
    refused: bool
    retry_in: float


@dataclass(frozen=True, slots=True)
class Received:
    """A frame of a bridge that has welcomed us, as it came."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A frame of ``size`` bytes that was read away; ``head`` is its beginning."""

    head: bytes
    size: int


Event = Welcomed | Lost | Received | TooLarge
T = TypeVar("T")


class Link:
    """Keeps the connection (contract, sections 1 and 10); its thread is ``wishee.link``.

    ``hello`` is asked for the first frame before each dial. ``on_event`` hears of each event on the
    link's thread, and must not block. It may return False for a Received or TooLarge: no room; the
    event comes again after ``resume``, until then nothing is read and no silence is judged. What a
    callback raises is logged and goes no further.

    ``welcomed`` and ``since`` (monotonic, its last change) may be read from any thread.

    A bridge that does not answer a ping within 20 s (one goes out 20 s after the last pong), or
    does not take a frame within 20 s, is given up, whatever else it does. No text of this class
    holds what the bridge has sent, or a secret.
    """

    def __init__(
        self,
        url: str,
        hello: Callable[[], bytes],
        on_event: Callable[[Event], object],
        *,
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rand: Callable[[], float] = random.random,
        resolve: Callable[..., Sequence[Any]] = socket.getaddrinfo,
    ) -> None:
        self.welcomed = False
        self.since = clock()
        self._target = Target(url)
        self._hello = hello
        self._on_event = on_event
        self._patience = patience
        self._clock = clock
        self._waker = Waker()
        self._stopping = False
        self._stop_due = math.inf
        self._hurried = False
        self._dialler = Dialler(self._waker, lambda: self._stopping, resolve=resolve, clock=clock)
        self._redial = Redial(rand, wall)
        self._dial_due = -math.inf
        self._connection: Connection | None = None
        # What on_event had no room for: at most what one piece of the stream held, since nothing
        # is read while there is any.
        self._held: deque[Received | TooLarge] = deque()
        self._outgoing = Outgoing()
        # Guards _over, and the waker against a wake after its end.
        self._lock = threading.Lock()
        self._over = False
        self._story = StreamLog(_log, "the link")
        self._story.place = urlsplit(url).netloc.rpartition("@")[2]
        self._thread = threading.Thread(target=self._run, name="wishee.link", daemon=True)

    def start(self) -> None:
        """Dial, and keep the connection, on the link's own thread."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """End the connection for good; False when the thread has not ended within ``seconds``.

        In the first half of them what was offered is written and confirmed, if the bridge lets it.
        """
        self._stop_due = self._clock() + seconds / 2
        self._stopping = True
        self._outgoing.close()
        if self._thread.ident is None:
            self._let_go(NORMAL)
            self._end()
            return True
        self._wake()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def offer(
        self,
        frame: bytes,
        *,
        signal: bool = False,
        written: Told | None = None,
        confirmed: Told | None = None,
    ) -> bool:
        """Queue a frame, from any thread; False when there is no welcome, or no room. Never blocks.

        A ``signal`` is refused when half the room is taken. ``written(True)`` is called when the
        kernel has the frame's last byte, ``confirmed(True)`` when the bridge has answered a ping
        sent behind it; ``False`` says that this will not come, as the connection is over. Each is
        called once, on the link's thread, unless the frame was refused.
        """
        taken = self._outgoing.offer(frame, signal, written, confirmed)
        if taken:
            self._wake()
        return taken

    @property
    def refused(self) -> tuple[int, int]:
        """How many frames that are no signals ``offer`` did not take, and how many signals."""
        return self._outgoing.refused_frames, self._outgoing.refused_signals

    def resume(self) -> None:
        """There is room again for what comes; from any thread."""
        self._wake()

    def hurry(self) -> None:
        """Dial at once if the next dial is waited for; from any thread."""
        self._hurried = True
        self._wake()

    def step(self, now: float) -> float | None:
        """Do what can be done now; when to come again, None once the link has ended."""
        if self._stopping and (now >= self._stop_due or self._has_said_all()):
            self._let_go(NORMAL)
            return None
        was_full = bool(self._held)
        self._deliver()
        hurried, self._hurried = self._hurried, False
        if self._connection is None:
            if now < self._dial_due and not hurried:
                return self._dial_due
            self._dial()
            now = self._clock()
        if self._connection is None:
            return self._dial_due
        if was_full:
            self._connection.excuse(now)
        return self._turn(self._connection, now)

    def wait(self, timeout: float) -> None:
        """Wait at most that many seconds for the socket or a wake."""
        poll = select.poll()
        poll.register(self._waker.fileno(), select.POLLIN)
        if self._connection is not None:
            # A socket that is polled for nothing would still report its peer's end, over and over.
            interest = self._connection.interest(reading=not self._held)
            if interest:
                poll.register(self._connection.fileno(), interest)
        poll.poll(max(0.0, min(timeout, _LONGEST_WAIT)) * 1000)
        self._waker.drain()

    def _run(self) -> None:
        fault: Exception | None = None
        while fault is None or not self._stopping:
            try:
                if fault is not None:
                    self._lose(Ended(f"a fault of the link: {type(fault).__name__}"), self._clock())
                    fault = None
                due = self.step(self._clock())
                if due is None:
                    break
                self.wait(due - self._clock())
            except Exception as found:
                # A guest must not take its host down, nor leave for good.
                _log.exception("a fault of the link, which begins anew")
                fault = found
                self._waker.wait(_FAULT_PAUSE)
        self._end()

    def _dial(self) -> None:
        hello = self._hello()
        try:
            sock = self._dialler.dial(self._target, DIAL_LIMIT)
        except DialAbandoned:
            return
        except DialFailed as fault:
            now = self._clock()
            delay = self._redial.failed(now, fault.status, fault.retry_after)
            self._dial_due = now + delay
            self._story.failed(str(fault), delay)
            refused = fault.status in REFUSED
            self._tell(self._on_event, Lost(str(fault), None, False, refused, delay))
            return
        now = self._clock()
        reader = FrameReader(_INBOUND_MAX, _INBOUND_ABORT, keep=_HEAD)
        self._connection = Connection(sock, self._patience, now, reader=reader, proof=True)
        self._outgoing.begin(hello)
        self._story.opened(now)

    def _turn(self, connection: Connection, now: float) -> float:
        try:
            more = self._receive(connection, now)
            # While there is no room the bridge may say what it likes and we do not hear it.
            check = connection.check_writing if self._held else connection.check
            due: float | None = check(now)
            connection.transmit(partial(self._outgoing.next, connection.probe), now)
        except Ended as end:
            self._settle(connection)
            self._lose(end, now)
            return self._dial_due
        self._settle(connection)
        due = self._story.check(now, connection.confirmed, due)
        if more or due is None or (self._stopping and self._has_said_all()):
            return now
        return min(due, self._stop_due)

    def _receive(self, connection: Connection, now: float) -> bool:
        """Read and hand on; True when there may be more to read at once."""
        for _ in range(_PIECES_A_TURN):
            if self._held:
                return False
            messages = connection.receive(now)
            if messages is None:
                return False
            for message in messages:
                if not connection.confirmed:
                    self._look_for_welcome(connection, message, now)
                elif isinstance(message, Text):
                    self._held.append(Received(message.data))
                else:
                    self._held.append(TooLarge(message.head, message.size))
            self._deliver()
        return True

    def _look_for_welcome(
        self, connection: Connection, message: Text | Oversized, now: float
    ) -> None:
        # Whatever else comes before it could not be answered.
        frame = protocol.parse(message.data) if isinstance(message, Text) else None
        if isinstance(frame, protocol.Welcome):
            connection.confirmed = True
            self._redial.welcomed(now)
            self.welcomed, self.since = True, now
            self._outgoing.open()
            self._tell(self._on_event, Welcomed(frame.user_id))

    def _deliver(self) -> None:
        while self._held and self._tell(self._on_event, self._held[0]) is not False:
            self._held.popleft()

    def _settle(self, connection: Connection) -> None:
        self._tell_all(self._outgoing.settle(connection.texts, connection.answered), True)

    def _lose(self, end: Ended, now: float) -> None:
        lasted = 0.0 if self._connection is None else now - self._connection.opened
        self._let_go(end.answer)
        delay = self._redial.lost(now, end.code)
        self._dial_due = now + delay
        self._story.lost(str(end), lasted, delay)
        unbound, refused = end.code == UNBOUND, end.code in REFUSED
        self._tell(self._on_event, Lost(str(end), end.code, unbound, refused, delay))

    def _let_go(self, code: int | None) -> None:
        connection, self._connection = self._connection, None
        if self.welcomed:
            self.welcomed, self.since = False, self._clock()
        told = self._outgoing.drop()
        if self._held:
            # The bridge has given up on them with the connection: to do them now could do them
            # twice.
            _log.info("the link drops %d frames that nobody had room for", len(self._held))
            self._held.clear()
        if connection is not None:
            connection.close(code)
        self._tell_all(told, False)

    def _has_said_all(self) -> bool:
        return not self.welcomed or self._outgoing.is_empty()

    def _tell_all(self, told: list[Told], good: bool) -> None:
        for callback in told:
            self._tell(callback, good)

    def _tell(self, callback: Callable[[T], object], what: T) -> object:
        try:
            return callback(what)
        except Exception:
            _log.exception("a fault of a callback of the link")
            return None

    def _wake(self) -> None:
        # Never a write to a descriptor that has since been given to another file of the host.
        with self._lock:
            if not self._over:
                self._waker.wake()

    def _end(self) -> None:
        with self._lock:
            self._over = True
            self._waker.close()
