"""What systemd says of the units of the bridges; it is asked, never told to do anything."""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import command

LIMIT = 3.0
"""Seconds for one answer."""
PATTERNS = {
    "coms": "hermes-coms-bridge@",
    "donut": "hermes-donut-bridge@",
}
"""How the names of the units begin."""
BOOTED = "/run/systemd/system"
_SUFFIX = ".service"
_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "MainPID",
    "NRestarts",
    "ExecMainStatus",
    "StatusText",
    "StateChangeTimestamp",
)
_MOST = 200  # units
_TEXT_MOST = 300


class Unit(NamedTuple):
    """A unit of a bridge; ``scope`` is ``user`` or ``system``, the texts are systemd's."""

    bridge: str
    instance: str
    name: str
    scope: str
    active: str
    sub: str
    enabled: bool
    result: str
    pid: int
    restarts: int
    exit_status: int
    text: str
    since: str

    @property
    def flags(self) -> tuple[str, ...]:
        """What makes systemctl and journalctl look at the right manager."""
        return ("--user",) if self.scope == "user" else ()


def units(environ: Mapping[str, str]) -> tuple[list[Unit], list[str]]:
    """The units that are loaded, and sentences about what could not be asked."""
    found: list[Unit] = []
    notes: list[str] = []
    for scope in ("user", "system"):
        flags = ["--user"] if scope == "user" else []
        argv = ["systemctl", *flags, "show", "--no-pager", f"--property={','.join(_PROPERTIES)}"]
        argv += ["--", *(f"{begin}*{_SUFFIX}" for begin in PATTERNS.values())]
        try:
            told = command.run(argv, _with_runtime_dir(environ), LIMIT)
        except (BridgeError, OSError) as error:
            # A host without systemd has nothing to tell, and that is no news there.
            if os.path.isdir(BOOTED):
                notes.append(f"systemd ({scope}) could not be asked: {error}")
            continue
        found += _read(scope, told)
    return found, notes


def _with_runtime_dir(environ: Mapping[str, str]) -> Mapping[str, str]:
    """In a cron job the variable is missing by which the user's manager is found."""
    place = f"/run/user/{os.geteuid()}"
    if environ.get("XDG_RUNTIME_DIR") or not os.path.isdir(place):
        return environ
    return {**environ, "XDG_RUNTIME_DIR": place}


def _read(scope: str, told: str) -> Iterator[Unit]:
    for block in told.split("\n\n")[:_MOST]:
        pairs = (line.partition("=") for line in block.splitlines())
        fields = {name: text[:_TEXT_MOST] for name, _, text in pairs}
        name = fields.get("Id", "")
        for bridge, begin in PATTERNS.items():
            instance = name.removeprefix(begin).removesuffix(_SUFFIX)
            if name != f"{begin}{instance}{_SUFFIX}" or fields.get("LoadState") == "not-found":
                continue
            yield Unit(
                bridge,
                instance,
                name,
                scope,
                fields.get("ActiveState", ""),
                fields.get("SubState", ""),
                fields.get("UnitFileState", "").startswith("enabled"),
                fields.get("Result", ""),
                _number(fields.get("MainPID")),
                _number(fields.get("NRestarts")),
                _number(fields.get("ExecMainStatus")),
                fields.get("StatusText", ""),
                fields.get("StateChangeTimestamp", ""),
            )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else 0
