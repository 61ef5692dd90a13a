"""The bridge's own entry in the registry (contract section 3)."""

import contextlib
import logging
import os
from collections.abc import Mapping

from hermes_bridges.coms.registry import Entry, Registry
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.errors import BridgeError

# Seconds between two heartbeats, and until one that failed is tried again.
HEARTBEAT = 30.0
HEARTBEAT_AGAIN = 2.0
# Seconds that the desk, and the end of the daemon, wait for the registry's lock.
LOCK_BEAT = 0.2
LOCK_END = 0.5

PURPOSE = "Remote human via Hermes/Telegram"
MODEL = "hermes-bridge"
COLOR = "#38BDF8"

_log = logging.getLogger("hermes_bridges.coms")


class Presence:
    """The entry from its publication to the end.

    Published by the main thread, kept fresh by coms.desk, withdrawn by coms.listen; the registry's
    lock keeps the three apart.
    """

    def __init__(
        self,
        registry: Registry,
        name: str,
        session: str,
        endpoint: str,
    ) -> None:
        self.name = name
        self.session = session
        self.endpoint = endpoint
        self._registry = registry
        self._started_at = iso_now()
        self._published = False
        self._withdrawn = False
        self._failing = False

    def card(self) -> Mapping[str, object]:
        """The agent card without its queue depth."""
        return {
            "name": self.name,
            "purpose": PURPOSE,
            "model": MODEL,
            "color": COLOR,
            "context_used_pct": 0,
        }

    def publish(self) -> None:
        """Write the first entry; the caller holds the registry's lock. Raises OSError."""
        self._registry.write(self._entry(0))
        self._published = True

    def beat(self, now: float, depth: int) -> float:
        """Write the entry again, also if someone deleted it; returns when that is next due.

        BridgeError when the socket is gone.
        """
        if not self._published:
            return now + HEARTBEAT_AGAIN
        if not os.path.lexists(self.endpoint) and not self._withdrawn:
            # No peer can reach this process any more; a new one makes a new socket.
            raise BridgeError(f"the socket was removed: {self.endpoint}")
        try:
            if not os.path.isdir(self._registry.agents_dir):
                self._registry.prepare()
            with self._registry.lock(LOCK_BEAT):
                if not self._withdrawn:
                    self._refresh(depth)
        except OSError as error:
            self._tell(f"registry entry cannot be written: {error}")
            return now + HEARTBEAT_AGAIN
        return now + HEARTBEAT

    def withdraw(self) -> None:
        """Remove the entry, if it is still ours; also when the lock cannot be had in time."""
        self._withdrawn = True
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            with contextlib.suppress(TimeoutError):
                stack.enter_context(self._registry.lock(LOCK_END))
            self._registry.drop(self.name, self.session)

    def _refresh(self, depth: int) -> None:
        other = self._registry.owner(self.name)
        if other is not None and other.get("session_id") != self.session:
            if self._registry.is_alive(other):
                self._tell(f"another peer has taken the name {self.name} in this pool")
                return
        self._registry.write(self._entry(depth))
        if self._failing:
            self._failing = False
            _log.warning("registry entry is written again")

    def _tell(self, trouble: str) -> None:
        if not self._failing:
            self._failing = True
            _log.error("%s", trouble)

    def _entry(self, depth: int) -> Entry:
        return {
            "session_id": self.session,
            "name": self.name,
            "purpose": PURPOSE,
            "model": MODEL,
            "color": COLOR,
            "pid": os.getpid(),
            "endpoint": self.endpoint,
            "cwd": _working_directory(),
            "started_at": self._started_at,
            "explicit": False,
            "version": 1,
            "context_used_pct": 0,
            "queue_depth": depth,
            "heartbeat_at": iso_now(),
        }


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        # It was deleted; the field is for people to read.
        return "/"
