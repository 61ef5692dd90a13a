"""Shows in a chat that its answer is being worked on (contract section 3, last paragraph)."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from hermes_bridges.core.backoff import retry_after
from hermes_bridges.core.bell import Bell
from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.httpclient import CallFailed, HttpClient, Reply
from hermes_bridges.donut import protocol
from hermes_bridges.donut.protocol import Id

REFRESH = 4.0
"""Seconds from one ``start`` of a turn to its next."""
LIMIT = 5.0
"""Seconds for one request in all."""
MOST_FAILURES = 5
"""Failures in a row after which a turn is left without the signal."""
_FAREWELL = 0.5  # seconds from the stop until the last request is over

_log = logging.getLogger("hermes_bridges.donut.typing")


class Signal(NamedTuple):
    """One request that is to be made: the chat's key, where in the hub, and what it says."""

    chat: str
    place: "Place"
    start: bool


class Place(NamedTuple):
    chat_id: Id
    thread_id: Id | None


class _Chat:
    __slots__ = ("calling", "due", "failures", "shown", "wanted")

    def __init__(self) -> None:
        self.wanted: Place | None = None
        # Where the hub may be showing it: as told by the last request that may have reached it.
        self.shown: Place | None = None
        self.calling = False
        self.due = math.inf
        self.failures = 0


class Board:
    """What is wanted in each chat, and what the hub shows; from any thread, and never waiting.

    The stages take signals from it as they find time. So a slow hub gets fewer signals but the
    right ones, no chat has two requests in flight, and what a turn leaves shown is ended whatever
    came in between. A ``start`` in flight at the end of its turn is followed by its ``stop``.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Guards all below. Bells are rung while it is held: that cannot block.
        self._lock = threading.Lock()
        self._chats: dict[str, _Chat] = {}
        self._quiet_until: dict[str, float] = {}
        self._idle: list[Bell] = []
        self._failures = 0

    def begin(self, chat: str, chat_id: Id, thread_id: Id | None) -> None:
        """A call for this chat begins."""
        now = self._clock()
        with self._lock:
            entry = self._chats.setdefault(chat, _Chat())
            entry.wanted = Place(chat_id, thread_id)
            entry.failures = 0
            entry.due = now
            self._rouse()

    def end(self, chat: str) -> None:
        """The call is over; no further ``start`` for it is begun."""
        now = self._clock()
        with self._lock:
            if chat in self._chats:
                self._end(chat, self._chats[chat], now)

    def end_all(self) -> None:
        """All calls are over, or given up."""
        now = self._clock()
        with self._lock:
            for chat, entry in list(self._chats.items()):
                if entry.wanted is not None:
                    self._end(chat, entry, now)

    def pause(self, chat: str, until: float) -> None:
        """Send nothing for this chat before ``until`` (monotonic): the hub has asked for that."""
        now = self._clock()
        with self._lock:
            kept = {key: end for key, end in self._quiet_until.items() if end > now}
            self._quiet_until = {**kept, chat: max(until, kept.get(chat, now))}

    def take(self, now: float, bell: Bell) -> Signal | float | None:
        """The signal that has been due for longest; it is to be reported by ``done``.

        If none is: when the next will be due, None for never; ``bell`` rings if that changes.
        """
        with self._lock:
            if bell in self._idle:
                self._idle.remove(bell)
            due, chat = min(
                ((self._due(chat, entry), chat) for chat, entry in self._chats.items()),
                default=(math.inf, ""),
            )
            if due > now:
                self._idle.append(bell)
                return None if due == math.inf else due
            entry = self._chats[chat]
            entry.calling = True
            if entry.shown is not None and entry.shown != entry.wanted:
                return Signal(chat, entry.shown, start=False)
            assert entry.wanted is not None
            entry.due = now + REFRESH
            return Signal(chat, entry.wanted, start=True)

    def done(self, signal: Signal, fault: str | None, arrived: bool) -> None:
        """Report a request: what went wrong with it, and whether the hub may have done it."""
        with self._lock:
            entry = self._chats[signal.chat]
            entry.calling = False
            if not signal.start:
                entry.shown = None
            elif arrived:
                entry.shown = signal.place
            entry.failures = 0 if fault is None else entry.failures + 1
            if entry.wanted is None and entry.shown is None:
                del self._chats[signal.chat]
            elif entry.wanted is not None and entry.failures >= MOST_FAILURES:
                entry.due = math.inf
            before, self._failures = self._failures, 0 if fault is None else self._failures + 1
            failures = self._failures
        if failures == MOST_FAILURES:
            _log.warning("the typing signal fails: %s", fault)
        elif before >= MOST_FAILURES > failures:
            _log.info("the typing signal works again")

    def _due(self, chat: str, entry: _Chat) -> float:
        if entry.calling:
            return math.inf
        return max(entry.due, self._quiet_until.get(chat, -math.inf))

    def _end(self, chat: str, entry: _Chat, now: float) -> None:
        entry.wanted = None
        entry.due = now
        if entry.calling:
            return
        if entry.shown is None:
            del self._chats[chat]
        else:
            self._rouse()

    def _rouse(self) -> None:
        # Those that are not idle look at the board before they are.
        if self._idle:
            self._idle.pop().ring()


class TypingSignal:
    """A stage that sends what the board has due, one request at a time, on its own connection.

    Whatever happens to a request is the board's business alone. At the end it sends the ``stop``
    of what is shown, as far as ``_FAREWELL`` allows; a request that is under way then gets no
    more time either. ``deadlines`` are those of ``client``, and serve nothing but such stages.
    """

    def __init__(
        self,
        board: Board,
        url: str,
        token: str,
        client: HttpClient,
        deadlines: Deadlines,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._client = client
        self._deadlines = deadlines
        self._clock = clock
        self._wall = wall
        self._bell = Bell()
        self._stopping = False
        self._end = math.inf

    def step(self, now: float) -> float | None:
        if self._stopping:
            self._say_farewell()
            return None
        found = self._board.take(now, self._bell)
        if not isinstance(found, Signal):
            return found
        self._send(found, LIMIT)
        return now

    def wait(self, timeout: float | None) -> None:
        self._bell.wait(timeout)

    def stop(self) -> None:
        self._end = self._clock() + _FAREWELL
        self._stopping = True
        self._deadlines.hasten(self._end)
        self._bell.ring()

    def close(self) -> None:
        self._client.close()

    def _say_farewell(self) -> None:
        self._board.end_all()
        while (now := self._clock()) < self._end:
            found = self._board.take(now, self._bell)
            if not isinstance(found, Signal):
                return
            self._send(found, self._end - now)

    def _send(self, signal: Signal, limit: float) -> None:
        state = "start" if signal.start else "stop"
        body = protocol.typing_body(signal.place.chat_id, state, signal.place.thread_id)
        fault = None
        try:
            reply = self._post(body, limit)
        except CallFailed as failure:
            fault, arrived = str(failure), failure.kind != "connect"
        else:
            arrived = 200 <= reply.status < 300
            if not arrived:
                fault = f"HTTP {reply.status}"
                self._heed(signal.chat, reply)
        if fault is not None:
            _log.debug("typing %s for chat %.80s: %s", state, signal.chat, fault)
        self._board.done(signal, fault, arrived)

    def _post(self, body: bytes, limit: float) -> Reply:
        end = self._clock() + limit
        try:
            return self._client.post(self._url, body, self._headers, limit)
        except CallFailed as failure:
            if failure.kind != "broken" or not failure.reused or failure.answered:
                raise
            if self._clock() >= self._end:
                # It was we who broke it.
                raise
        # The hub had closed the idle connection: no reason to leave this one to the refresh.
        return self._client.post(self._url, body, self._headers, end - self._clock())

    def _heed(self, chat: str, reply: Reply) -> None:
        header = retry_after(reply.headers.get("Retry-After"), self._wall())
        wait = protocol.asked_delay(header, reply.body)
        if wait is not None:
            self._board.pause(chat, self._clock() + wait)
