"""The Donut daemon as a process, with settings and a state directory of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_bridges.standins.donut_hub import DonutHub
from tests.harness.daemon import CHECKOUT, INHERITED

TOKEN = "donutbot_secret-of-the-test"
STARTED_WITHIN = 20.0
STOPPED_WITHIN = 20.0


class Bridge:
    """``more`` are variables; None takes one away. Its stderr goes to a file, over all starts."""

    def __init__(
        self, root: Path, hub: DonutHub, hermes_url: str, key: str, **more: str | None
    ) -> None:
        self.hub = hub
        self.root = root
        self.state = root / "state"
        variables: dict[str, str | None] = {
            "DONUT_BOT_TOKEN": hub.token,
            "DONUT_STREAM_URL": hub.stream_url,
            "DONUT_SEND_URL": hub.send_url,
            "DONUT_TYPING_URL": hub.typing_url,
            "HERMES_BASE_URL": hermes_url,
            "HERMES_API_KEY": key,
            "BRIDGE_STATE_DIR": str(self.state),
            "HOME": str(root),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": CHECKOUT,
            **more,
        }
        inherited = {n: v for n, v in os.environ.items() if n.startswith(INHERITED)}
        self.environ: Mapping[str, str] = inherited | {
            name: value for name, value in variables.items() if value is not None
        }
        self._log = root / "bridge.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str, wait: bool = True) -> None:
        """Start it; with ``wait`` it is on line at the hub when this returns."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hermes_bridges.donut", *flags],
                env=self.environ,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        if wait:
            assert self.hub.wait(lambda: self.hub.online, STARTED_WITHIN), self.said()

    def stop(self, number: int = signal.SIGTERM, within: float = STOPPED_WITHIN) -> int:
        """Send it a signal; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(within)
        # The hub sees the end of the stream a moment later.
        self.hub.wait(lambda: not self.hub.online, 5)
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """What all starts wrote to stderr."""
        return self._log.read_text() if self._log.exists() else ""

    def status(self) -> dict[str, Any]:
        """The counters, as of its last writing; complete after a stop."""
        found: dict[str, Any] = json.loads((self.state / "status.json").read_text())
        return found

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
