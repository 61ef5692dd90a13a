"""What the service manager is told: ready, status, still alive, stopping (sd_notify)."""

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger("hermes_bridges.sdnotify")

CHILD_UNSET: tuple[str, ...] = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)
"""Variables that belong to this process alone: no child may inherit them."""

# Seconds for one message: a manager that does not read must not hold up signals.
_PATIENCE = 0.25
_STATUS_LIMIT = 500


class Notifier:
    """Speaks to ``NOTIFY_SOCKET``; without one, every call does nothing.

    ``watchdog`` is the interval in seconds within which the manager wants a ping, or None when
    it wants none from this process. A message that cannot be sent is a debug line, never an
    error.
    """

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        if address and address[0] not in "/@":
            log.debug("NOTIFY_SOCKET is neither a path nor an abstract name, and not used")
            address = ""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.enabled = bool(address)
        self.watchdog = self._interval(environ, os.getpid() if pid is None else pid)

    def ready(self, status: str) -> None:
        """Tell that the start is complete."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """Give a line for people to read."""
        self._send(f"STATUS={_one_line(text)}")

    def watchdog_ping(self) -> None:
        """Tell that the process makes progress; nothing is sent when no watchdog is set."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that the process is about to end."""
        self._send("STOPPING=1")

    def _interval(self, environ: Mapping[str, str], pid: int) -> float | None:
        text = environ.get("WATCHDOG_USEC", "")
        if not self.enabled or not text:
            return None
        owner = environ.get("WATCHDOG_PID", "")
        if owner and owner.strip() != str(pid):
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) > 0):
            log.warning("WATCHDOG_USEC is not a positive number: no watchdog pings are sent")
            return None
        return int(text) / 1_000_000

    def _send(self, message: str) -> None:
        if not self.enabled:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
                peer.settimeout(_PATIENCE)
                peer.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            log.debug("the service manager was not told %s: %s", message.partition("=")[0], error)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_STATUS_LIMIT]
