"""The platform's adapter: how Hermes sees the connector."""

import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from hermes_bridges.errors import BridgeError
from hermes_bridges.wishee import compat
from hermes_bridges.wishee.connector import Connector
from hermes_bridges.wishee.history import History
from hermes_bridges.wishee.reads import Reads
from hermes_bridges.wishee.settings import parse

FALLBACK = "❓"
"""With this Hermes begins a question that it puts as a text, when it could not be shown."""

_log = logging.getLogger("hermes_bridges.wishee")


def make(config: Any) -> Any:
    """An adapter for the installed Hermes; nothing of it is started."""
    return _adapter_class()(config, compat.platform())


@cache
def _adapter_class() -> Any:
    return type("WisheeAdapter", (Adapter, compat.base_adapter()), {})


class Adapter:
    """What the connector adds to Hermes's own class; each method is called on the gateway's loop.

    Nothing here may raise into the host or block it.
    """

    connector: Connector | None = None

    @property
    def authorization_is_upstream(self) -> bool:
        """Who may write to this agent was decided when the device was bound."""
        return True

    async def connect(self, **how: Any) -> bool:
        """Start the connector; True although the bridge may be away, as it redials by itself."""
        await self.disconnect()
        try:
            settings = parse(os.environ)
            for warning in settings.warnings:
                _log.warning("%s", warning)
            reads = Reads(History(settings.hermes_home), compat.strip_thoughts)
            connector = Connector(settings, compat.HermesHost(self), reads)
            await connector.connect()
        except (OSError, BridgeError) as fault:
            _log.error("the Wishee connector cannot start: %s", fault)
            return False
        self.connector = connector
        _tell(self, "_mark_connected")
        return True

    async def disconnect(self) -> None:
        """Stop the connector."""
        connector, self.connector = self.connector, None
        if connector is not None:
            _tell(self, "_mark_disconnected")
            await connector.disconnect()

    async def send(
        self,
        chat_id: str,
        content: str,
        reply_to: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Take what Hermes has to say: for the result of the chat's run, else it fails."""
        text = str(content or "")
        if text.lstrip().startswith(FALLBACK):
            return compat.sent(False, "a question cannot be shown on the device")
        final = bool((metadata or {}).get("notify"))
        if self.connector is None or not self.connector.turns.hear(str(chat_id), text, final):
            return compat.sent(False, "no run of the Wishee bridge waits for this chat")
        return compat.sent(True)

    async def send_clarify(self, *what: Any, **more: Any) -> Any:
        """Questions need cards."""
        return compat.sent(False, "a question cannot be shown on the device")

    async def get_chat_info(self, chat_id: str) -> dict[str, Any]:
        """The least that Hermes wants to know of a chat."""
        return {"name": chat_id, "type": "dm"}

    async def on_processing_start(self, event: Any) -> None:
        """Hermes has begun a turn of its own: ours do not pass here."""
        if self.connector is not None:
            self.connector.turns.resumed(_chat_of(event))

    async def on_processing_complete(self, event: Any, outcome: Any) -> None:
        """That turn is over."""
        if self.connector is not None:
            self.connector.turns.resumed_over(_chat_of(event))


def _chat_of(event: Any) -> str:
    return str(getattr(getattr(event, "source", None), "chat_id", ""))


def _tell(adapter: Any, name: str) -> None:
    getattr(adapter, name)()
