"""A restart of the gateway, asked for by a person.

``hermes gateway restart`` asks the service manager where the gateway is a service. Elsewhere it
ends the gateway, becomes the new one itself, and never returns. So it is started on its own,
watched for a while, and never ended from here.
"""

import os
import select
from typing import NamedTuple

from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused
from hermes_bridges.telegram.hermes import Hermes
from hermes_bridges.telegram.hermes_facts import Gateway, plain

PATIENCE = 300.0
"""Seconds until a restart must have come to something: a busy gateway first finishes its turns."""
LOG = "bridge-telegram-restart.log"
LOOK = 3.0  # seconds between two looks at the list of gateways
_SAID_LIMIT = 4096


class Restarted(NamedTuple):
    """How it went: what ``hermes`` said, and what is worth knowing besides."""

    said: str
    notes: tuple[str, ...]


def restart(
    hermes: Hermes, gateway: Gateway, path: str, *, patience: float = PATIENCE
) -> Restarted:
    """Restart the running gateway of a profile whose directory is ``path``.

    Raises BridgeError when it failed, or when nothing was to be seen of it in ``patience`` seconds.
    """
    logs = os.path.join(path, "logs")
    os.makedirs(logs, 0o700, exist_ok=True)
    log = os.path.join(logs, LOG)
    files.remove(log)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = hermes.launch_restart(gateway.profile, fd)
    finally:
        os.close(fd)
    code = _watch(hermes, gateway, pid, patience)
    said = _said(log)
    if code is None:
        note = f"the gateway runs as process {pid} now, in no service; its output goes to {log}"
        return Restarted(said, (note,))
    if code != 0:
        last = said.splitlines()[-1] if said else f"exit code {code}"
        raise BridgeError(f"`hermes gateway restart` failed: {last}")
    after = _find(hermes, gateway.profile)
    if not after.running:
        raise BridgeError(f"the gateway of profile {gateway.profile} is not running any more")
    if gateway.pid is not None and after.pid == gateway.pid:
        return Restarted(said, ("the gateway is the same process as before",))
    return Restarted(said, ())


def _watch(hermes: Hermes, gateway: Gateway, pid: int, patience: float) -> int | None:
    """The exit code of the command, or None when it has become the gateway itself."""
    pidfd = os.pidfd_open(pid)
    try:
        for _ in range(max(1, int(patience / LOOK))):
            ready, _, _ = select.select([pidfd], [], [], min(LOOK, patience))
            if ready:
                ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
                assert ended is not None
                return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
            if _find(hermes, gateway.profile).pid == pid:
                return None
    finally:
        os.close(pidfd)
    raise BridgeError(
        f"the restart is not through after {patience:g} s; it goes on by itself (process {pid})"
    )


def _find(hermes: Hermes, profile: str) -> Gateway:
    for gateway in hermes.gateways():
        if gateway.profile == profile:
            return gateway
    raise BridgeError(f"Hermes has no profile {profile} any more")


def _said(log: str) -> str:
    try:
        return plain(files.read_capped(log, _SAID_LIMIT).decode("utf-8", "replace")).strip()
    except (FileRefused, OSError):
        return ""
