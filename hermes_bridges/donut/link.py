"""How the stream is dialled, and what is said of its state (contract sections 1, 6 and 8)."""

import logging
from collections.abc import Callable

from hermes_bridges.core.dial import Target
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.core.frames import Oversized
from hermes_bridges.core.status import Status
from hermes_bridges.core.stream import Lost, Opened, Refused, State
from hermes_bridges.donut import protocol

_CURSOR_REFUSALS = (400, 404, 410)
_REASON_MOST = 300

_log = logging.getLogger("hermes_bridges.donut.link")


class Link:
    """Tells the stream where to dial, and people how it goes. Owned by the stream's thread.

    ``refused_cursor`` is called when the hub does not take the id of the last event, and
    ``refused_token`` when it does not take the token.
    """

    def __init__(
        self, url: str, token: str, status: Status, redact: Callable[[str], str] = str
    ) -> None:
        self.refused_cursor: Callable[[], None] = _nothing
        self.refused_token: Callable[[], None] = _nothing
        self._url = url
        self._headers = (("Authorization", f"Bearer {token}"),)
        self._status = status
        self._redact = redact
        self._resumed = False
        self._text = ""
        self._say("connecting")

    def target(self, last_event_id: str | None) -> Target:
        """Where to dial, to go on after that event."""
        self._resumed = last_event_id is not None
        return Target(protocol.stream_url(self._url, last_event_id), self._headers)

    def describe(self) -> str:
        """One line for the service manager; from any thread."""
        return self._text

    def changed(self, state: State) -> None:
        """Note what became of the connection."""
        if isinstance(state, Oversized):
            self._status.count("ignored.oversized")
            _log.warning("a message of the hub was too large: %d bytes", state.size)
            return
        if isinstance(state, Opened):
            self._say("connected")
            return
        if isinstance(state, Refused) and state.auth:
            self._say("the hub refuses DONUT_BOT_TOKEN")
        else:
            self._say("disconnected")
        self._status.set("connection_fault", self._redact(state.reason)[:_REASON_MOST])
        if isinstance(state, Lost):
            self._status.count("reconnects")
        else:
            self._refused(state)

    def _refused(self, state: Refused) -> None:
        if state.auth:
            _log.error(
                "the hub refuses DONUT_BOT_TOKEN (%s): it may be wrong, or have been replaced",
                state.reason,
            )
            self.refused_token()
        elif self._resumed and state.status in _CURSOR_REFUSALS:
            self.refused_cursor()

    def _say(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self._status.set("connection", text)
            self._status.set("connection_since", iso_now())


def _nothing() -> None:
    pass
