"""The user unit of the bridge, for hosts without Herdr (contract section 10).

``on`` leaves a drop-in beside the unit that says what to run for which chat, so that it holds after
a reboot too; ``off`` takes it away. System units are never touched.
"""

import os
from collections.abc import Mapping, Sequence

from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import command

LIMIT = 60.0
"""Seconds for one command."""
FLAGS_VARIABLE = "BRIDGE_COMS_FLAGS"
"""Further flags, from the unit's own environment."""
_DROP_IN = "50-bridge-telegram.conf"


class UserUnit:
    """The unit of one project; every method raises BridgeError or OSError."""

    def __init__(self, environ: Mapping[str, str], project: str) -> None:
        self._environ = environ
        self.name = f"hermes-coms-bridge@{project}.service"
        config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
        if not os.path.isabs(config):
            raise BridgeError("neither XDG_CONFIG_HOME nor HOME is set to a directory")
        self._drop_in = os.path.join(config, "systemd", "user", f"{self.name}.d", _DROP_IN)

    def must_exist(self) -> None:
        """Refuse to go on where the unit was not written yet."""
        told = self._call("show", "--property=LoadState", self.name).strip()
        if told == "LoadState=not-found":
            raise BridgeError(
                f"there is no user unit {self.name}: run hermes-bridges install-units --user"
            )
        if told != "LoadState=loaded":
            raise BridgeError(f"the user unit {self.name} cannot be used: {told or 'no LoadState'}")

    def start(self, argv: Sequence[str]) -> None:
        """Run the bridge like this; one that runs already is replaced."""
        lines = (
            "# Written by `bridge-telegram on`, removed by `bridge-telegram off`.",
            "[Service]",
            "ExecStart=",
            f"ExecStart={' '.join(map(_quoted, argv))} ${FLAGS_VARIABLE}",
            "",
        )
        os.makedirs(os.path.dirname(self._drop_in), 0o700, exist_ok=True)
        files.write_atomic(self._drop_in, "\n".join(lines).encode("utf-8", "surrogateescape"))
        self._call("daemon-reload")
        self._call("restart", self.name)

    def stop(self) -> None:
        """Stop the bridge; nothing happens when it does not run."""
        self._call("stop", self.name)
        if files.remove(self._drop_in):
            self._call("daemon-reload")

    def _call(self, *words: str) -> str:
        return command.run(["systemctl", "--user", *words], self._environ, LIMIT)


def _quoted(word: str) -> str:
    """One word of a command line in a unit file."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("%", "%%").replace("$", "$$") + '"'
