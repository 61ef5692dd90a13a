"""Keeps calls away from a peer that fails: closed, open, half-open."""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Breaker:
    """Counts failures in a row; from any thread, and any number of calls may run side by side.

    After ``threshold`` of them it is open and admits nothing for ``cooldown`` seconds. Then it is
    half-open: exactly one caller, the probe, is admitted, and what it reports closes the breaker
    or opens it again. A probe that reports nothing is over after ``probe_limit`` seconds; then the
    next caller is the probe. Contract of donut, sections 3 and 9.

    ``on_change`` is told each new state, on the thread that brought it about.
    """

    def __init__(
        self,
        threshold: int,
        cooldown: float,
        probe_limit: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        if threshold < 1:
            raise ValueError("the threshold must be at least 1")
        self._threshold = threshold
        self._cooldown = cooldown
        self._probe_limit = probe_limit
        self._clock = clock
        self._on_change = on_change
        # Guards all below, and whether a permit is settled.
        self._lock = threading.Lock()
        self._state = "closed"
        self._since = clock()
        self._failures = 0
        self._era = 0
        self._probe: Permit | None = None
        self._probe_over = 0.0

    @property
    def state(self) -> str:
        """``closed``, ``open`` (also after the cool-down, until somebody asks) or ``half_open``."""
        return self._state

    @property
    def since(self) -> float:
        """When ``state`` began, on ``clock``."""
        return self._since

    def admit(self) -> "Permit | None":
        """A permit for one call, to be settled once; None: the call must not be made."""
        now = self._clock()
        changed = False
        with self._lock:
            if self._state == "closed":
                return Permit(self, self._era)
            if self._state == "open":
                if now - self._since < self._cooldown:
                    return None
                self._change("half_open", now)
                changed = True
            elif self._probe is not None and now < self._probe_over:
                return None
            probe = self._probe = Permit(self, self._era)
            self._probe_over = now + self._probe_limit
        if changed:
            self._tell("half_open")
        return probe

    def _settle(self, permit: "Permit", ok: bool | None) -> None:
        now = self._clock()
        with self._lock:
            if permit._settled:
                return
            permit._settled = True
            state = self._judge(permit, ok)
            if state is not None:
                self._change(state, now)
        if state is not None:
            self._tell(state)

    def _judge(self, permit: "Permit", ok: bool | None) -> str | None:
        """The state that a verdict leads to; None: it stays as it is."""
        if permit._era != self._era:
            return None
        if self._state == "half_open":
            if permit is not self._probe:
                return None
            self._probe = None
            return None if ok is None else "closed" if ok else "open"
        if ok is None:
            return None
        self._failures = 0 if ok else self._failures + 1
        return "open" if self._failures >= self._threshold else None

    def _change(self, state: str, now: float) -> None:
        self._state = state
        self._since = now
        self._failures = 0
        # A trip and its end void all permits that were given out before. A probe is given out
        # while it is half-open, and is to end that: its era is that of the trip.
        self._era += state != "half_open"

    def _tell(self, state: str) -> None:
        if self._on_change is not None:
            self._on_change(state)


class Permit:
    """One call that was admitted; settled exactly once, by the first that happens.

    One from before the last trip, and a probe whose time was over, change nothing any more. As a
    context manager it is released at the end of the block unless it was settled in it.
    """

    __slots__ = ("_breaker", "_era", "_settled")

    def __init__(self, breaker: Breaker, era: int) -> None:
        self._breaker = breaker
        self._era = era
        self._settled = False

    def done(self, ok: bool) -> None:
        """Report how the call ended."""
        self._breaker._settle(self, ok)

    def release(self) -> None:
        """End without a verdict; after a probe the next caller is the probe."""
        self._breaker._settle(self, None)

    def __enter__(self) -> "Permit":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
