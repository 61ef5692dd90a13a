"""A bounded queue and a worker thread for each active chat."""

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hermes_bridges.core.bell import Bell
from hermes_bridges.errors import BridgeError

T = TypeVar("T")

_log = logging.getLogger("hermes_bridges.chats")


class WorkerDied(BridgeError):
    """A chat's worker ended by an exception; its traceback is in the log."""


class Lane:
    """One chat while it has a worker; the handler is given it with each item."""

    __slots__ = (
        "_asleep",
        "_bell",
        "_clock",
        "_overdue_at",
        "_poked",
        "_thread",
        "_unforced",
        "_waiting",
        "key",
    )

    def __init__(self, key: str, clock: Callable[[], float]) -> None:
        self.key = key
        self._clock = clock
        self._bell = Bell()
        self._thread: threading.Thread
        self._asleep = False
        self._poked = False
        self._overdue_at = math.inf
        # Items, and whether each was forced in. Bounded by the limit of Chats.put, and by those
        # who force.
        self._waiting: deque[tuple[Any, bool]] = deque()
        self._unforced = 0

    def expect(self, seconds: float | None) -> None:
        """Tell how long the handler's present phase may take, from now on; None: any time.

        For the watchdog only. Each item begins with None.
        """
        self._overdue_at = math.inf if seconds is None else self._clock() + seconds


class Chats(Generic[T]):
    """Calls ``handle`` with items, for each key in order and one at a time.

    A key has a thread of its own, ``chat-<n>``, from its first item until it has had nothing to do
    for ``idle`` seconds; it ends at once while ``most_idle`` others have nothing to do. At most
    ``limit`` items wait for it, the one in hand and those that were forced in not counted.
    ``on_drained`` is called on that thread with a key that has an item behind it and none before
    it.

    An exception in ``handle`` ends all: nothing further is begun, so that nothing overtakes the
    item that failed. Also a stage, whose thread waits for that: ``step``, or ``close`` if it
    happens after the stop, then raises ``WorkerDied``. ``close`` takes as long as the items in
    hand.
    """

    def __init__(
        self,
        handle: Callable[[Lane, T | None], None],
        limit: int,
        idle: float,
        *,
        most_idle: int = 128,
        on_drained: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        self._handle = handle
        self._limit = limit
        self._idle = idle
        self._most_idle = most_idle
        self._on_drained = on_drained
        self._clock = clock
        self._numbers = itertools.count(1)
        self._bell = Bell()
        self._death: WorkerDied | None = None
        # Guards all below, and all of a lane but _overdue_at. Bells are rung while it is held:
        # that cannot block.
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._queued = 0
        self._busy = 0
        self._sleepers = 0
        self._stopping = False

    @property
    def queued(self) -> int:
        """How many items wait, of all keys together."""
        return self._queued

    @property
    def busy(self) -> int:
        """How many items are in hand."""
        return self._busy

    @property
    def workers(self) -> int:
        """How many keys have a worker."""
        return len(self._lanes)

    def put(self, key: str, item: T, force: bool = False) -> T | None:
        """Queue an item (never None); never blocks. Returns the one that is given up for it.

        That is the one that has waited longest of those that were not forced in, if ``limit`` of
        them wait and ``force`` is not set, else None. It is ``item`` itself after ``stop``, and if
        the system gives no thread.
        """
        return self._hand(key, item, force)

    def poke(self, key: str) -> None:
        """Have ``handle`` called with None, before the key's next item; never blocks.

        Pokes are remembered, not counted. After ``stop``, and if the system gives no thread for
        it, nothing happens.
        """
        self._hand(key, None, True)

    def overdue(self, now: float) -> bool:
        """Whether a handler takes longer than it told; ``now`` on ``clock``."""
        with self._lock:
            return any(lane._overdue_at < now for lane in self._lanes.values())

    def step(self, now: float) -> float | None:
        death, self._death = self._death, None
        if death is not None:
            raise death
        return None

    def wait(self, timeout: float | None) -> None:
        self._bell.wait(timeout)

    def stop(self) -> None:
        """Begin nothing further: what waits is never handled, what is in hand goes on."""
        with self._lock:
            self._stopping = True
            for lane in self._lanes.values():
                lane._bell.ring()
        self._bell.ring()

    def close(self) -> None:
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane._thread.join()
        self.step(self._clock())

    def _hand(self, key: str, item: T | None, force: bool) -> T | None:
        with self._lock:
            lane = self._lanes.get(key)
            if lane is not None or self._stopping:
                return self._load(lane, item, force)
        spare = self._hire(key)
        if spare is None:
            return item
        with self._lock:
            # Another thread may have been faster: the spare worker then sees that, and ends.
            left = self._load(self._lanes.setdefault(key, spare), item, force)
        spare._bell.ring()
        return left

    def _hire(self, key: str) -> Lane | None:
        lane = Lane(key, self._clock)
        name = f"chat-{next(self._numbers)}"
        lane._thread = threading.Thread(target=self._run, args=(lane,), name=name, daemon=True)
        try:
            lane._thread.start()
        except RuntimeError as fault:
            _log.error("no worker for chat %.80s: %s", key, fault)
            return None
        return lane

    def _load(self, lane: Lane | None, item: T | None, force: bool) -> T | None:
        if lane is None or self._stopping:
            return item
        left = None
        if item is None:
            lane._poked = True
        else:
            if not force and lane._unforced >= self._limit:
                left = self._push_out(lane)
            lane._waiting.append((item, force))
            lane._unforced += not force
            self._queued += 1
        if lane._asleep:
            self._awaken(lane)
            lane._bell.ring()
        return left

    def _push_out(self, lane: Lane) -> T:
        place = next(n for n, (_, forced) in enumerate(lane._waiting) if not forced)
        item: T = lane._waiting[place][0]
        del lane._waiting[place]
        lane._unforced -= 1
        self._queued -= 1
        return item

    def _awaken(self, lane: Lane) -> None:
        lane._asleep = False
        self._sleepers -= 1

    def _run(self, lane: Lane) -> None:
        try:
            lane._bell.wait()
            while (taken := self._take(lane)) is not None:
                self._handle(lane, taken[0])
                drained = self._finish(lane)
                if drained and taken[0] is not None and self._on_drained is not None:
                    self._on_drained(lane.key)
        except BaseException:
            # Also a SystemExit, which the threading module would not mention.
            _log.exception("the worker of chat %.80s died", lane.key)
            lane.expect(None)
            self._death = WorkerDied("the worker of a chat died")
            self.stop()

    def _take(self, lane: Lane) -> tuple[T | None] | None:
        """The next item, or None in its place for a poke; waits for it. None: the worker ends.

        The last look for work and the way out of the table are one to those who put, so nothing
        is left behind.
        """
        rung = True
        while True:
            with self._lock:
                if self._lanes.get(lane.key) is not lane:
                    return None
                if lane._asleep:
                    self._awaken(lane)
                if (lane._poked or lane._waiting) and not self._stopping:
                    return (self._begin(lane),)
                if self._stopping or not rung or self._sleepers >= self._most_idle:
                    del self._lanes[lane.key]
                    return None
                lane._asleep = True
                self._sleepers += 1
            rung = lane._bell.wait(self._idle)

    def _begin(self, lane: Lane) -> T | None:
        self._busy += 1
        if lane._poked:
            lane._poked = False
            return None
        self._queued -= 1
        item: T
        item, forced = lane._waiting.popleft()
        lane._unforced -= not forced
        return item

    def _finish(self, lane: Lane) -> bool:
        """Whether no item waits any more."""
        lane._overdue_at = math.inf
        with self._lock:
            self._busy -= 1
            return not lane._waiting
