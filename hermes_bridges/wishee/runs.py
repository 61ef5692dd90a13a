"""A run of the bridge, and what is remembered of those that have ended."""

from collections import OrderedDict
from dataclasses import dataclass, field

from hermes_bridges.wishee.answers import Said
from hermes_bridges.wishee.recall import Recall
from hermes_bridges.wishee.sessionkeys import Chat

REMEMBERED = 8
"""How many ended runs of a session are kept for chat.turns."""
SIZE_MAX = 8 * 1024 * 1024
"""Characters of all the runs that are remembered."""
LATER_MAX = 64
"""How many messages that were taken into a run are kept of it."""

_LATER_SIZE = 256 * 1024


@dataclass(slots=True, eq=False)
class Run:
    """One run. ``key`` is the session as the bridge named it; times are epoch seconds.

    ``later`` are the messages that were taken into it. ``mark`` is the highest id of any stored
    message when it began, ``ended`` None while it goes on. ``handed``: Hermes has its message.
    """

    run_id: str
    key: str
    stored: str
    chat: Chat
    message: str
    user: str
    at: float
    mark: int = 0
    handed: bool = False
    later: list[str] = field(default_factory=list)
    said: Said = field(default_factory=Said)
    ended: float | None = None
    error: str = ""
    text: str = ""
    session_id: str | None = None

    def recall(self) -> Recall:
        """What chat.turns is to know of it."""
        return Recall(
            self.run_id,
            self.mark,
            self.at,
            self.ended,
            self.message,
            tuple(self.later),
            (),
            self.text,
            self.error,
            self.session_id,
        )

    def absorb(self, message: str) -> None:
        """Note a message that was taken into it; what would be too much is not kept."""
        size = sum(map(len, self.later)) + len(message)
        if len(self.later) < LATER_MAX and size <= _LATER_SIZE:
            self.later.append(message)

    @property
    def size(self) -> int:
        """Characters of what is remembered of it."""
        return len(self.message) + len(self.text) + sum(map(len, self.later))


class Remembered:
    """The runs that have ended, by the stored key of their session; bounded in every way."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, list[Run]] = OrderedDict()
        self._size = 0

    def add(self, run: Run) -> None:
        """Remember a run; what is oldest makes room."""
        runs = self._runs.setdefault(run.stored, [])
        self._runs.move_to_end(run.stored)
        runs.append(run)
        self._size += run.size
        while len(runs) > REMEMBERED:
            self._size -= runs.pop(0).size
        # Each session that is left has a run in it.
        while self._size > SIZE_MAX and self._runs:
            self.forget(next(iter(self._runs)))

    def of_session(self, stored: str) -> list[Run]:
        """Those of a session, the oldest first."""
        return list(self._runs.get(stored, ()))

    def forget(self, stored: str) -> None:
        """No longer remember those of a session."""
        self._size -= sum(run.size for run in self._runs.pop(stored, ()))

    def clear(self) -> None:
        """Remember none."""
        self._runs.clear()
        self._size = 0
