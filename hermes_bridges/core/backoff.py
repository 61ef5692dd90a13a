"""Growing, jittered delays between tries, and those that a peer asks for."""

import random
import re
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LONGEST_DATE = 64  # characters


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a ``Retry-After`` header: a number, or an HTTP date against ``now``.

    ``now`` is wall clock. Never negative: a date that is over gives 0. None when there is no such
    header, or when it says nothing that can be read.
    """
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    if not text or len(text) > _LONGEST_DATE:
        return None
    try:
        date = parsedate_to_datetime(text)
        # HTTP dates are in GMT, also where one does not say so.
        stamp = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, stamp - now)


class Backoff:
    """Delays for one thing that is tried again and again. Owned by the thread that tries.

    The n-th delay is drawn from ``floor`` up to ``floor + min(cap, first * 2**n)`` seconds. A
    success alone does not shorten it: a peer that accepts and closes at once would otherwise be
    hammered. Only a success that has lasted ``healthy`` seconds starts the delays anew.
    """

    def __init__(
        self,
        first: float,
        cap: float,
        *,
        healthy: float = 30.0,
        floor: float = 0.0,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < first <= cap:
            raise ValueError("first must be positive and at most cap")
        self._first = first
        self._cap = cap
        self._healthy = healthy
        self._floor = floor
        self._rand = rand
        self._clock = clock
        self._span = first
        self._good_since: float | None = None

    def next_delay(self) -> float:
        """Seconds to wait before the next try; the range doubles with each call."""
        span = self._span
        self._span = min(self._cap, span * 2)
        return self._floor + self._rand() * span

    def succeeded(self, now: float | None = None) -> None:
        """Note that it works now; may be called as often as that is seen."""
        now = self._clock() if now is None else now
        if self._good_since is None:
            self._good_since = now
        elif now - self._good_since >= self._healthy:
            self._span = self._first

    def failed(self, now: float | None = None) -> None:
        """Note that it no longer works, or did not work at all."""
        now = self._clock() if now is None else now
        if self._good_since is not None and now - self._good_since >= self._healthy:
            self._span = self._first
        self._good_since = None

    def reset(self) -> None:
        """Start the delays anew."""
        self._span = self._first
        self._good_since = None
