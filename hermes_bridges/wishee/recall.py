"""What is remembered of a run for chat.turns, and which stored rows are its own."""

from collections.abc import Iterable
from typing import NamedTuple

STAMPS_DIFFER = 2.0
"""Seconds by which the stamp of a row may lie outside of the run that it belongs to."""


class Progress(NamedTuple):
    """A text that was told while the run went on.

    ``number`` counts from 1 in the run; ``after`` is how many later messages had come before it.
    """

    number: int
    text: str
    after: int = 0


class Recall(NamedTuple):
    """A run; times are epoch seconds, and ``ended_at`` is None while it goes on.

    ``mark`` is the highest id of any stored message before the run, 0 where that is not known.
    ``message`` is empty for a run of a dead process. ``later`` are the messages that were taken
    into it. ``session_id`` names the session where the run ended, None where it is not known.
    """

    run_id: str
    mark: int
    started_at: float
    ended_at: float | None
    message: str
    later: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    text: str = ""
    error: str = ""
    session_id: str | None = None

    @property
    def hides(self) -> bool:
        """Whether it is shown from memory alone, whatever is stored of it."""
        return self.ended_at is None and bool(self.message)

    def owns(self, id: int, at: float) -> bool:
        """Whether a row came after the run's start."""
        return id > self.mark if self.mark else at >= self.started_at - STAMPS_DIFFER


def rows_end(recalls: Iterable[Recall]) -> int | None:
    """The highest id of the rows that are read while these runs go on; None for all."""
    return min((one.mark for one in recalls if one.hides and one.mark), default=None)
