"""When to dial the bridge again (contract, sections 1 and 10)."""

from collections.abc import Callable

from hermes_bridges.core.backoff import retry_after
from hermes_bridges.core.streamlog import HEALTHY

UNBOUND = 4001
"""The close code of a bridge that does not know this agent, or no longer."""
REFUSED = frozenset({401, 403, 1008, 4003, 4401, 4403})
"""HTTP statuses and close codes of a bridge that does not want us."""

# Until an outage is that old, seconds: the range that a delay is drawn from. All agents of a bridge
# that restarts see it at the same time, and must not come back at the same time.
_RANGES = ((60.0, 0.3, 1.5), (300.0, 1.0, 15.0))
_LAST_RANGE = (5.0, 60.0)
_UNBOUND_DELAY, _UNBOUND_LATER = 3.0, 30.0
_UNBOUND_EAGER = 900.0
_REFUSED_DELAY = 30.0  # give or take a fifth
_RETRY_AFTER_MAX = 300.0


class Redial:
    """Seconds until the next dial. Owned by the thread that dials; times are monotonic.

    An outage begins with the first dial or connection that fails, and ends with a welcome that
    lasts: not with one that is taken back at once.
    """

    def __init__(self, rand: Callable[[], float], wall: Callable[[], float]) -> None:
        self._rand = rand
        self._wall = wall
        self._down_since: float | None = None
        self._unbound_since: float | None = None
        self._welcomed_at: float | None = None

    def welcomed(self, now: float) -> None:
        """Note that the bridge has taken us."""
        self._welcomed_at, self._unbound_since = now, None

    def lost(self, now: float, code: int | None) -> float:
        """The delay after a connection that has ended, with the bridge's close code."""
        if self._welcomed_at is not None and now - self._welcomed_at >= HEALTHY:
            self._down_since = None
        self._welcomed_at = None
        if code == UNBOUND:
            # It was reached: an outage is something else.
            self._down_since = None
            if self._unbound_since is None:
                self._unbound_since = now
            eager = now - self._unbound_since < _UNBOUND_EAGER
            return _UNBOUND_DELAY if eager else _UNBOUND_LATER
        return self._delay(now, code)

    def failed(self, now: float, status: int | None, asked: str | None) -> float:
        """The delay after a dial that came to nothing, with its HTTP answer and Retry-After."""
        delay = self._delay(now, status)
        seconds = retry_after(asked, self._wall())
        return delay if seconds is None else max(delay, min(seconds, _RETRY_AFTER_MAX))

    def _delay(self, now: float, answer: int | None) -> float:
        if self._down_since is None:
            self._down_since = now
        if answer in REFUSED:
            return _REFUSED_DELAY * (0.8 + 0.4 * self._rand())
        age = now - self._down_since
        low, high = next(((a, b) for limit, a, b in _RANGES if age < limit), _LAST_RANGE)
        return low + (high - low) * self._rand()
