"""What the log says of a stream."""

import logging
import math

# Seconds of connection that count as health.
HEALTHY = 30.0

_log = logging.getLogger("hermes_bridges.stream")


class StreamLog:
    """What the log says of a stream: one line a try at most, and the same fault once.

    A connection is told when it is confirmed; after one that did not last, when it has lasted.
    ``what`` is how the log calls the stream.
    """

    def __init__(self, log: logging.Logger = _log, what: str = "the stream") -> None:
        self._log = log
        self._what = what
        self.place = ""
        self._fault = ""
        self._tries = 0
        self._steady = True
        self._due = math.inf

    def opened(self, now: float) -> None:
        self._tries += 1
        self._due = now if self._steady else now + HEALTHY

    def check(self, now: float, confirmed: bool, due: float | None) -> float | None:
        """Tell of a connection when it is time; returns the due time, or an earlier one."""
        if not confirmed or self._due == math.inf:
            return due
        if now < self._due:
            return self._due if due is None else min(due, self._due)
        tries = "" if self._tries == 1 else f" after {self._tries} tries"
        self._log.info("%s to %s is open%s", self._what, self.place, tries)
        self._due, self._fault, self._tries = math.inf, "", 0
        return due

    def lost(self, reason: str, lasted: float, delay: float) -> None:
        self._steady = lasted >= HEALTHY
        self._tell(f"lost after {lasted:.1f} s", reason, delay)

    def failed(self, reason: str, delay: float) -> None:
        self._tries += 1
        self._tell("not open", reason, delay)

    def _tell(self, what: str, reason: str, delay: float) -> None:
        level = logging.DEBUG if reason == self._fault else logging.INFO
        self._fault, self._due = reason, math.inf
        text = "%s to %s is %s, %s; next try in %.1f s"
        self._log.log(level, text, self._what, self.place, what, reason, delay)
