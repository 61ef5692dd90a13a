"""Which events are known, which messages are open, and from where the hub has to replay."""

import threading
from collections import deque
from typing import Literal

Arrival = Literal["new", "known", "again"]
Key = tuple[str, str]
"""A chat's and a message's id, both as text."""


class _Matter:
    """What an event is about; all events that carry the same message share one.

    ``held`` counts its events that the cursor has not passed, ``events`` those that are
    remembered. ``asked`` tells that the stream was redialled since it was dropped.
    """

    __slots__ = ("asked", "events", "held", "key", "state")

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.state: Literal["pending", "dropped", "settled", "lost"] = "pending"
        self.events = 0
        self.held = 0
        self.asked = False


class _Event:
    __slots__ = ("at", "event_id", "matter")

    def __init__(self, event_id: str, matter: _Matter, at: float) -> None:
        self.event_id = event_id
        self.matter = matter
        self.at = at


class Ledger:
    """The events of one bot in the order of their arrival (contract sections 3.2, 3.4 and 5).

    The cursor is the last event such that it and all before it are settled, or can't be replayed
    any more: older than ``window`` seconds, or followed by ``depth`` later ones. Ids are compared,
    never ordered. Times are monotonic seconds, given by the caller.

    Any thread may call it. It remembers ``depth`` events behind the cursor and at most as many
    before it, besides the open messages, which the chats' queues bound.
    """

    def __init__(self, cursor: str | None, *, window: float = 300.0, depth: int = 100) -> None:
        self._window = window
        self._depth = depth
        # Guards all that follows. The intake thread and the chats' workers meet here.
        self._lock = threading.Lock()
        self._cursor = cursor
        self._line: deque[_Event] = deque()  # not passed by the cursor: depth of them at most
        self._past: deque[_Event] = deque()  # passed by it: depth of them at most
        self._events: dict[str, _Event] = {}  # both of these by id
        self._matters: dict[Key, _Matter] = {}  # open ones, and those of remembered events
        self._lost: list[Key] = []  # emptied by expire(), which follows each arrival

    @property
    def cursor(self) -> str | None:
        """The event id after which the hub has to replay; None when there is none yet."""
        with self._lock:
            return self._cursor

    def arrive(self, event_id: str | None, chat: str, message: str | None, now: float) -> Arrival:
        """Note an event; ``message`` is None for one that needs no answer: see settle_event.

        ``new``: seen for the first time. The message is open from now on: the caller queues it,
        or settles it. ``again``: it had been dropped and is open again, the caller queues it.
        ``known``: it is open or settled, the caller ignores it.
        """
        key = None if message is None else (chat, message)
        with self._lock:
            event = None if event_id is None else self._events.get(event_id)
            if event is not None and key is None:
                return "known"
            if event is not None and (event.matter.key != key or event.matter.state == "lost"):
                self._disown(event)
                event = None
            matter = event.matter if event else self._matters.get(key) if key else None
            arrival: Arrival = "known"
            if matter is None:
                matter = _Matter(key)
                if key is not None:
                    self._matters[key] = matter
                arrival = "new"
            elif matter.state == "dropped":
                matter.state = "pending"
                arrival = "again"
            if event is None and event_id is not None:
                self._append(_Event(event_id, matter, now))
            self._expire(now)
            return arrival

    def settle_event(self, event_id: str | None) -> None:
        """An event that arrived without a message is done with; does nothing to any other."""
        with self._lock:
            event = None if event_id is None else self._events.get(event_id)
            if event is not None and event.matter.key is None:
                self._settle(event.matter)

    def settle(self, chat: str, message: str) -> None:
        """Nothing more is to be done about this message, under whatever event it came."""
        with self._lock:
            matter = self._matters.get((chat, message))
            if matter is not None:
                self._settle(matter)

    def drop(self, chat: str, message: str) -> None:
        """An open message was pushed out of its queue; it may come again, or is lost later."""
        with self._lock:
            matter = self._matters.get((chat, message))
            if matter is None or matter.state != "pending":
                return
            matter.state = "dropped"
            matter.asked = False
            if not matter.held:
                self._lose(matter)

    def is_live(self, chat: str, message: str) -> bool:
        """Whether a message is open: queued or in flight, however long ago it came."""
        with self._lock:
            matter = self._matters.get((chat, message))
            return matter is not None and matter.state == "pending"

    def stranded(self) -> list[Key]:
        """Open messages that no replay would bring back, should the process end now."""
        with self._lock:
            return [
                matter.key
                for matter in self._matters.values()
                if matter.state == "pending" and not matter.held and matter.key is not None
            ]

    def expire(self, now: float) -> list[Key]:
        """Move the cursor over what can't be replayed any more.

        Returns the chat and message ids of dropped messages that are lost by it, or since the last
        call; each is told once. To be called after each arrival and from time to time.
        """
        with self._lock:
            self._expire(now)
            lost, self._lost = self._lost, []
            return lost

    def replayable(self, chat: str) -> bool:
        """Whether a redial would bring back a dropped message of a chat, and none was made yet."""
        with self._lock:
            return self._cursor is not None and any(
                event.matter.state == "dropped"
                and not event.matter.asked
                and event.matter.key is not None
                and event.matter.key[0] == chat
                for event in self._line
            )

    def redialled(self) -> None:
        """The stream is being redialled, for all messages that are dropped at this moment."""
        with self._lock:
            for event in self._line:
                if event.matter.state == "dropped":
                    event.matter.asked = True

    def start_at(self, event_id: str | None) -> None:
        """The hub was dialled without a cursor, so that it replays nothing before ``event_id``."""
        with self._lock:
            while self._line:
                self._pass()
            self._cursor = event_id

    def _append(self, event: _Event) -> None:
        self._line.append(event)
        self._events[event.event_id] = event
        event.matter.events += 1
        event.matter.held += 1
        self._advance()

    def _settle(self, matter: _Matter) -> None:
        matter.state = "settled"
        if not matter.events:
            self._forget(matter)
        self._advance()

    def _advance(self) -> None:
        while self._line and self._line[0].matter.state == "settled":
            self._pass()

    def _expire(self, now: float) -> None:
        while self._line and (
            len(self._line) > self._depth or now - self._line[0].at > self._window
        ):
            self._pass()
        self._advance()

    def _pass(self) -> None:
        event = self._line.popleft()
        self._cursor = event.event_id
        self._let_go(event.matter)
        self._past.append(event)
        if len(self._past) > self._depth:
            self._unlearn(self._past.popleft())

    def _let_go(self, matter: _Matter) -> None:
        matter.held -= 1
        if not matter.held and matter.state == "dropped":
            self._lose(matter)

    def _lose(self, matter: _Matter) -> None:
        matter.state = "lost"
        self._forget(matter)
        if matter.key is not None:
            self._lost.append(matter.key)

    def _disown(self, event: _Event) -> None:
        """The hub uses an id anew: what had it before can't be replayed, nor be the cursor."""
        if event in self._line:
            self._line.remove(event)
            self._let_go(event.matter)
        else:
            self._past.remove(event)
        self._unlearn(event)
        self._advance()

    def _unlearn(self, event: _Event) -> None:
        del self._events[event.event_id]
        event.matter.events -= 1
        if not event.matter.events and event.matter.state != "pending":
            self._forget(event.matter)

    def _forget(self, matter: _Matter) -> None:
        if matter.key is not None and self._matters.get(matter.key) is matter:
            del self._matters[matter.key]
