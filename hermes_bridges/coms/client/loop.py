"""The one wait of a client process: its sockets, its deadlines and its signals."""

import selectors
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import BridgeError

# poll() counts milliseconds in a C int; a longer wait simply turns once more.
_LONGEST_WAIT = 86_400.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class TimedOut(BridgeError):
    """The time limit of a call has passed."""


class Interrupted(BridgeError):
    """A signal asked this process to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"ended by {signal.Signals(signum).name}")


class Part(Protocol):
    """What lives in a loop and has deadlines of its own."""

    def step(self, now: float) -> float | None:
        """Do what is due; returns the next due time (monotonic), None when there is none."""


class Loop:
    """A context manager for the main thread; inside it SIGINT, SIGTERM and SIGHUP end ``run()``.

    Signals that the caller of this process had ignored stay ignored.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Not epoll: standard input may be a regular file.
        self._selector = selectors.PollSelector()
        self._parts: list[Part] = []
        self._waker = Waker()
        self._signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.watch(self._waker.fileno(), READ, lambda events: None)
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._selector.close()
        self._waker.close()

    def add(self, part: Part) -> None:
        """Let a part take its turns."""
        self._parts.append(part)

    def remove(self, part: Part) -> None:
        """Give a part no more turns."""
        self._parts.remove(part)

    def watch(self, fileobj: Any, events: int, ready: Callable[[int], None]) -> None:
        """Call ``ready(events)`` when a file is ready, in place of what was watched before."""
        if fileobj in self._selector.get_map():
            self._selector.modify(fileobj, events, ready)
        else:
            self._selector.register(fileobj, events, ready)

    def forget(self, fileobj: Any) -> None:
        """Watch a file no longer; not watching it is fine."""
        if fileobj in self._selector.get_map():
            self._selector.unregister(fileobj)

    def run(self, done: Callable[[], bool], deadline: float) -> bool:
        """Turn until ``done()`` or the deadline; True for the former. Raises Interrupted."""
        while True:
            if self._signum:
                signum, self._signum = self._signum, 0
                self._waker.drain()
                raise Interrupted(signum)
            now = self.clock()
            due = deadline
            for part in list(self._parts):
                next_due = part.step(now)
                if next_due is not None:
                    due = min(due, next_due)
            if done():
                return True
            if now >= deadline:
                return False
            for key, events in self._selector.select(min(max(0.0, due - now), _LONGEST_WAIT)):
                # One that an earlier callback of this turn has given up is not called any more.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        self._waker.wake()
