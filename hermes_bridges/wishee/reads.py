"""What the requests and events of the bridge tell of Hermes's own files: work for the readers."""

from collections.abc import Collection, Sequence
from typing import Any

from hermes_bridges.wishee.cleaning import Strip
from hermes_bridges.wishee.history import History
from hermes_bridges.wishee.recall import Recall


class Reads:
    """All of it blocks, and may be called from any thread; raises HistoryFailed.

    ``keys`` are the names of one session, of which the first known one counts. ``strip`` takes
    what a model thought out of its text.
    """

    def __init__(self, history: History, strip: Strip) -> None:
        self._history = history
        self._strip = strip

    def session_id(self, *keys: str) -> str | None:
        """The session that Hermes keeps under one of these keys; None when there is none."""
        route = self._history.route(*keys)
        return None if route is None else route.session_id

    def max_message_id(self) -> int:
        """The highest id of any stored message."""
        return self._history.max_message_id()

    def history(self, keys: Sequence[str], limit: int) -> list[dict[str, Any]]:
        """The messages for chat.history."""
        return self._history.history(self.session_id(*keys), limit)

    def turns(
        self, keys: Sequence[str], limit: int, recalls: Sequence[Recall]
    ) -> list[dict[str, Any]]:
        """The turns for chat.turns."""
        # A session whose first message is not stored yet has no id, but runs that are remembered.
        session_id = self.session_id(*keys) or ""
        return self._history.turns(session_id, limit, recalls, self._strip)

    def sessions(self, working: Collection[str], ours: bool) -> list[dict[str, Any]]:
        """The sessions for sessions.list."""
        return self._history.sessions(working, ours=ours)

    def usage(self) -> dict[str, Any]:
        """The payload of agent-usage, but for its time."""
        used = self._history.usage()
        return {
            "input": used.input,
            "output": used.output,
            "cacheRead": used.cache_read,
            "cacheWrite": used.cache_write,
            "total": used.input + used.output,
            "costUsd": used.cost,
            "model": used.model,
        }

    def context(self, stored: str) -> dict[str, Any] | None:
        """The payload of agent-context, but for the session and the time; None when not known."""
        found = self._history.context(stored)
        return None if found is None else {"usedTokens": found[0], "contextWindow": found[1]}
