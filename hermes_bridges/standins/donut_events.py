"""The events of the stand-in Donut hub: sent to open streams, and held for those to come."""

import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.standins.donut_rooms import Id
from hermes_bridges.standins.ws_server import WsServer

Shape = Callable[[dict[str, Any]], Mapping[str, Any]]


class Event(NamedTuple):
    """One event as it goes out; ``at`` is monotonic."""

    number: str
    at: float
    payload: bytes
    chat_id: Id
    message_id: Id | None


class Sent(NamedTuple):
    """An event on its way on one connection, as the journal tells of it."""

    conn: int
    event_id: str | None
    chat_id: Id
    message_id: Id | None
    replay: bool


class Events:
    """Holds the last ``depth`` events of at most ``seconds`` (contract, section 1).

    Guarded by the lock of the hub; a WebSocket takes what it is offered without a lock of its own.
    Not ``numbered`` events have no id, and none is held.
    """

    def __init__(
        self, seconds: float, depth: int, numbered: bool, clock: Callable[[], float]
    ) -> None:
        self.live: dict[int, WsServer] = {}
        """The open streams by the number of their connection."""
        self._seconds = seconds
        self._depth = depth
        self._numbered = numbered
        self._clock = clock
        self._numbers = itertools.count(1001)
        self._newest: str | None = None
        # Bounded by _depth, by hand: the last one that went has to be known.
        self._held: deque[Event] = deque()
        self._gone: str | None = None

    def happen(self, event: dict[str, Any], shape: Shape | None) -> str | None:
        """Give it a number and send it, in that shape, to all streams; its id, if it has one."""
        message_id = event.get("message", {}).get("id")
        number = str(next(self._numbers))
        event["ts"] = iso_now()
        if self._numbered:
            event["event_id"] = number
        payload = json.dumps(shape(event) if shape else event).encode()
        told = Event(number, self._clock(), payload, event["chat_id"], message_id)
        if self._numbered:
            self._newest = number
            self._held.append(told)
            self._expire(told.at)
        for conn, stream in self.live.items():
            self._offer(conn, stream, told, False)
        return number if self._numbered else None

    def join(
        self,
        conn: int,
        stream: WsServer,
        last: str | None,
        bot: Mapping[str, Any],
        instead: Mapping[str, Any] | None,
    ) -> None:
        """A bot has opened a stream and has seen events up to ``last``.

        ``instead`` is sent in place of the ``connected`` frame; an empty one is not sent.
        """
        missed, complete = self._after(last)
        hello: dict[str, Any] = {"type": "connected", "bot": bot}
        if self._numbered:
            hello |= {"last_event_id": self._newest, "replay": {"complete": complete}}
        if instead is None or instead:
            stream.offer(json.dumps(hello if instead is None else instead).encode())
        for event in missed:
            self._offer(conn, stream, event, True)
        self.live[conn] = stream

    def forget(self) -> None:
        """Lose what is held, as by a restart of a hub that holds it in memory."""
        self._held.clear()
        self._newest = self._gone = None

    def _after(self, last: str | None) -> tuple[list[Event], bool]:
        """What came after that event, and whether that is all of it.

        After an id that is not known, or that was followed by events which are held no longer:
        everything that is held, and False.
        """
        if last is None or not self._numbered:
            return [], True
        self._expire(self._clock())
        held = list(self._held)
        for place, event in enumerate(held):
            if event.number == last:
                return held[place + 1 :], True
        return held, last == self._gone

    def _expire(self, now: float) -> None:
        oldest = now - self._seconds
        while self._held and (len(self._held) > self._depth or self._held[0].at < oldest):
            self._gone = self._held.popleft().number

    def _offer(self, conn: int, stream: WsServer, event: Event, replay: bool) -> None:
        event_id = event.number if self._numbered else None
        mark = Sent(conn, event_id, event.chat_id, event.message_id, replay)
        stream.offer(event.payload, mark)
