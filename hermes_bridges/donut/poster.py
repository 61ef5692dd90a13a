"""Posting to the hub: the parts of answers out of the outbox, and notices (contract section 4)."""

import logging
import random
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from hermes_bridges.core.backoff import Backoff, retry_after
from hermes_bridges.core.httpclient import CallFailed, Clients, Reply
from hermes_bridges.core.slots import Slots
from hermes_bridges.core.status import Status
from hermes_bridges.donut import protocol
from hermes_bridges.donut.protocol import Id
from hermes_bridges.donut.store import Part, Store

SEND_LIMIT = 15.0
"""Seconds for one request in all."""
PATIENCE = 60.0
"""Seconds for which a part, or a notice, is tried again before it is left."""
AT_ONCE = 16
"""How many requests may be on their way to the hub."""
_HELD_MOST = 1_000  # chats whose Retry-After is remembered
_SLACK = 5.0  # seconds beyond a limit until a worker counts as hung

_log = logging.getLogger("hermes_bridges.donut.poster")


class Worker(Protocol):
    """The worker of a chat, as far as the watchdog is concerned; see ``core.chats.Lane``."""

    @property
    def key(self) -> str: ...

    def expect(self, seconds: float | None) -> None: ...


class Place(NamedTuple):
    """Where in the hub something is posted."""

    chat_id: Id
    reply_to: Id | None
    thread_id: Id | None


class _Fate(Enum):
    POSTED = auto()
    LATER = auto()
    """May be tried again: it was surely not stored."""
    UNKNOWN = auto()
    """It may have been stored, so it is not tried again."""
    REFUSED = auto()
    KEPT = auto()
    """Refused for a reason that a person can mend."""


class _Result(NamedTuple):
    fate: _Fate
    told: str
    sent_id: Id | None = None
    wait: float | None = None
    """Seconds that the hub asked for."""


class Poster:
    """Posts to the chats; for one chat only that chat's worker calls it, so nothing interleaves.

    ``stopping`` ends every wait between two tries; a request on its way goes on. ``pause`` is told
    a chat and the monotonic time before which the hub wants nothing for it.
    """

    def __init__(
        self,
        url: str,
        token: str,
        content_type: str,
        clients: Clients,
        store: Store,
        status: Status,
        stopping: threading.Event,
        pause: Callable[[str, float], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._content_type = content_type
        self._clients = clients
        self._slots = Slots(AT_ONCE)
        self._store = store
        self._status = status
        self._stopping = stopping
        self._pause = pause
        self._clock = clock
        self._wall = wall
        self._rand = rand
        # Guards _held.
        self._lock = threading.Lock()
        # By chat: the monotonic time until which the hub wants nothing, beyond our patience.
        self._held: dict[str, float] = {}

    def drain(self, worker: Worker, patience: float = PATIENCE) -> bool:
        """Post what the outbox holds for the worker's chat, in order; False if some of it stays.

        Each part is tried for ``patience`` seconds; with 0 it is tried once.
        """
        while parts := self._store.outbox(worker.key):
            part = parts[0]
            place = Place(part.chat_id, part.reply_to, part.thread_id)
            result = self._post(worker, place, part.text, part.key, patience)
            if result.fate in (_Fate.LATER, _Fate.KEPT):
                return False
            self._book(part, result, alone=len(parts) == 1)
            if len(parts) == 1:
                return True
        return True

    def say(
        self, worker: Worker, place: Place, text: str, key: str, patience: float = PATIENCE
    ) -> bool:
        """Post a notice; False when it was surely not posted, after ``patience`` seconds at most.

        While an answer is stuck in the outbox it is not tried: it would come between its parts.
        """
        if self._store.outbox(worker.key) and not self.drain(worker, 0):
            result = _Result(_Fate.LATER, "an answer waits before it")
        else:
            result = self._post(worker, place, text, key, patience)
        if result.fate is _Fate.POSTED:
            return True
        if result.fate is _Fate.UNKNOWN:
            self._status.count("unknown")
            what = "may or may not have been posted"
        else:
            self._status.count("notices_not_posted")
            what = "was not posted"
        _log.warning("a notice to chat %.80s %s: %s", worker.key, what, result.told)
        return result.fate is _Fate.UNKNOWN

    def _book(self, part: Part, result: _Result, alone: bool) -> None:
        if result.fate is _Fate.POSTED:
            # The continuations of an answer to the chat itself go below its first part.
            begins = part.number == 1 and part.thread_id is None and not alone
            self._store.posted(part, result.sent_id if begins else None)
            return
        if result.fate is _Fate.UNKNOWN:
            self._store.drop_part(part)
            self._status.count("unknown")
            _log.warning(
                "part %d of an answer to chat %.80s may or may not have been posted: %s",
                part.number,
                part.chat,
                result.told,
            )
            return
        given_up = self._store.give_up(part)
        self._status.count("refused")
        _log.warning(
            "the hub refused part %d of an answer to chat %.80s: %s; parts given up: %d",
            part.number,
            part.chat,
            result.told,
            given_up,
        )

    def _post(self, worker: Worker, place: Place, text: str, key: str, patience: float) -> _Result:
        body = protocol.send_body(
            place.chat_id, text, self._content_type, place.reply_to, place.thread_id
        )
        backoff = Backoff(0.5, 8.0, floor=0.1, rand=self._rand)
        give_up_at = self._clock() + patience
        while True:
            now = self._clock()
            if now < (held := self._held_until(worker.key)):
                return _Result(_Fate.LATER, f"the hub wants nothing for {held - now:.0f} s")
            result = self._try(worker, body, key)
            if result.fate is not _Fate.LATER:
                return result
            now = self._clock()
            wait = max(backoff.next_delay(), result.wait or 0.0)
            if result.wait is not None:
                self._pause(worker.key, now + wait)
            if now + wait > give_up_at:
                if result.wait is not None:
                    self._hold(worker.key, now + wait)
                _log.info("chat %.80s: %s; it stays in the outbox", worker.key, result.told)
                return result
            worker.expect(wait + _SLACK)
            if self._stopping.wait(wait):
                return result

    def _try(self, worker: Worker, body: bytes, key: str) -> _Result:
        headers = {**self._headers, "Idempotency-Key": key}
        worker.expect(None)
        with self._slots.hold(lambda: False), self._clients.borrow() as client:
            worker.expect(2 * SEND_LIMIT + _SLACK)
            try:
                try:
                    reply = client.post(self._url, body, headers, SEND_LIMIT)
                except CallFailed as fault:
                    if fault.kind != "broken" or not fault.reused or fault.answered:
                        raise
                    # The hub had closed the idle connection before the request came.
                    reply = client.post(self._url, body, headers, SEND_LIMIT)
            except CallFailed as fault:
                fate = _Fate.LATER if fault.kind == "connect" else _Fate.UNKNOWN
                return _Result(fate, str(fault))
        return self._judge(reply)

    def _judge(self, reply: Reply) -> _Result:
        told = f"HTTP {reply.status}"
        if 200 <= reply.status < 300:
            return _Result(_Fate.POSTED, told, sent_id=protocol.sent_id(reply.body))
        if reply.status == 429 or reply.status >= 500:
            header = retry_after(reply.headers.get("Retry-After"), self._wall())
            wait = protocol.asked_delay(header, reply.body)
            return _Result(_Fate.LATER, told, wait=wait)
        if reply.status == 401:
            _log.error("the hub refuses DONUT_BOT_TOKEN (HTTP 401): answers stay in the outbox")
            return _Result(_Fate.KEPT, told)
        return _Result(_Fate.REFUSED, told)

    def _hold(self, chat: str, until: float) -> None:
        now = self._clock()
        with self._lock:
            self._held[chat] = until
            if len(self._held) > _HELD_MOST:
                self._held = {key: end for key, end in self._held.items() if end > now}
                while len(self._held) > _HELD_MOST:
                    del self._held[next(iter(self._held))]

    def _held_until(self, chat: str) -> float:
        with self._lock:
            return self._held.get(chat, 0.0)
