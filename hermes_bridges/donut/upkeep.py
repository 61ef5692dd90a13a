"""What has to be done from time to time: posting what waits, forgetting what is old."""

import logging
import time
from collections.abc import Callable

from hermes_bridges.core.bell import Bell
from hermes_bridges.core.chats import Chats
from hermes_bridges.core.status import Status
from hermes_bridges.donut.store import Store
from hermes_bridges.donut.turns import Ask

OUTBOX_EVERY = 60.0
"""Seconds between two tries of what waits in the outbox (contract section 4)."""
PRUNE_EVERY = 600.0
_A_HANDFUL = 32  # chats woken at once, so that a long outage does not end in a thousand threads
_PAUSE = 1.0  # seconds between two handfuls

_log = logging.getLogger("hermes_bridges.donut.upkeep")


class Upkeep:
    """The stage of ``donut.upkeep``. The posting itself is done by the workers of the chats.

    Nothing is posted before ``begin``: the state might be another bot's.
    """

    def __init__(
        self,
        store: Store,
        chats: Chats[Ask],
        status: Status,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._chats = chats
        self._status = status
        self._wall = wall
        self._bell = Bell()
        # Set by other threads, once.
        self._stopping = False
        self._begun = False
        self._round_due = 0.0
        self._prune_due = 0.0
        # The last chat that was woken in the round that is going on.
        self._after: str | None = None

    def begin(self) -> None:
        """The hub has told that the state is this bot's; from any thread."""
        if not self._begun:
            self._begun = True
            self._bell.ring()

    def step(self, now: float) -> float | None:
        if self._stopping:
            return None
        if now >= self._prune_due:
            self._prune_due = now + PRUNE_EVERY
            self._prune()
        if not self._begun:
            return self._prune_due
        if now >= self._round_due:
            self._round_due = now + self._wake_some()
        return min(self._round_due, self._prune_due)

    def wait(self, timeout: float | None) -> None:
        self._bell.wait(timeout)

    def stop(self) -> None:
        self._stopping = True
        self._bell.ring()

    def close(self) -> None:
        pass

    def _wake_some(self) -> float:
        """Have a handful of chats post what they hold; seconds until the next."""
        if self._chats.busy > _A_HANDFUL and self._after is not None:
            return _PAUSE
        chats = self._store.outbox_chats(_A_HANDFUL, self._after)
        for chat in chats:
            self._chats.poke(chat)
        self._after = chats[-1] if len(chats) == _A_HANDFUL else None
        return _PAUSE if self._after is not None else OUTBOX_EVERY

    def _prune(self) -> None:
        self._store.prune(self._wall())
        for chat, answer in self._store.expire_outbox():
            self._status.count("expired")
            _log.warning(
                "an answer to chat %.80s could not be posted for a day and is given up: %.300s",
                chat,
                answer,
            )
