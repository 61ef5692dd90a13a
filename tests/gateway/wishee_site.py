"""A real Hermes gateway with the Wishee connector, whose bridge and model are stand-ins."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_bridges.standins.hermes_gateway import HermesHome
from hermes_bridges.standins.model_api import ModelApi
from hermes_bridges.standins.wishee_bridge import WisheeBridge
from tests.conftest import ROOT
from tests.gateway.wishee_brain import Brain
from tests.gateway.wishee_install import Installed
from tests.harness.daemon import INHERITED, wait

VENDORED = ROOT / "hermes_bridges" / "wishee" / "vendored"
"""The two files of the folder form of the plugin."""
STARTED_WITHIN = 60.0  # 4 s on an idle machine, with the newest Hermes
STOPPED_WITHIN = 60.0  # a turn that goes on is waited for
ANSWERED_WITHIN = 60.0  # the first turn of the oldest version takes some seconds


class WisheeSite:
    """Use as a context manager, with a short directory.

    ``vendored``: the plugin is a folder of the Hermes home, and the wheel is not installed.
    ``bridge`` is one that exists already, and stays; ``variables`` are more lines of the ``.env``,
    ``more`` are sections of the config. ``brain`` is that of the model.
    """

    def __init__(
        self,
        version: str,
        root: Path,
        installed: Installed,
        *,
        vendored: Path | None = None,
        bridge: WisheeBridge | None = None,
        variables: Mapping[str, str] | None = None,
        **more: Mapping[str, object],
    ) -> None:
        self.version = version
        self.brain = Brain()
        self.model = ModelApi(self.brain)
        self.journal = root / "bridge.ndjson"
        self._own_bridge = bridge is None
        self.bridge = bridge or WisheeBridge(journal=str(self.journal))
        self.process: subprocess.Popen[bytes] | None = None
        inherited = {n: v for n, v in os.environ.items() if n.startswith(INHERITED)}
        self.home = root / "h"
        self.home.mkdir()
        hermes = str(installed.hermes(version, with_wheel=vendored is None))
        self.host = HermesHome(str(self.home), hermes, None, self.model.base_url, "", inherited)
        sections: dict[str, Any] = {
            "platforms": {"wishee": {"enabled": True}},
            "plugins": {"enabled": ["wishee"]},
            **more,
        }
        lines = {"WISHEE_BRIDGE_URL": self.bridge.url, **(variables or {})}
        self.host.write("default", variables=lines, **sections)
        if vendored is not None:
            folder = self.root / "plugins" / "wishee"
            shutil.copytree(vendored, folder)
            installed.vendor(folder)

    @property
    def root(self) -> Path:
        """The Hermes home."""
        return Path(self.host.root)

    @property
    def directory(self) -> Path:
        """The connector's own."""
        return self.root / "wishee-connector"

    def start(self, welcomed: bool = True) -> None:
        """Start the gateway, and wait until its connector is welcome."""
        before = len(self.bridge.connections)
        self.process = self.host.start()
        if welcomed:
            self.connected(before)

    def connected(self, before: int = 0) -> None:
        """Wait until the connector is welcome on a connection after the first ``before``."""
        process = self.process
        assert process is not None

        def come() -> bool:
            newer = self.bridge.connections[before:]
            return any(c.live for c in newer) or process.poll() is not None

        wait(come, STARTED_WITHIN, f"hermes {self.version} at the bridge: {self.said()[-800:]}")
        assert process.poll() is None, self.said()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the gateway by a signal, and wait for its end; its exit code."""
        assert self.process is not None
        os.killpg(self.process.pid, number)
        return self.process.wait(STOPPED_WITHIN)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of Hermes in this home."""
        return subprocess.run(
            ["hermes", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.host.environ,
            cwd=self.home,
            timeout=ANSWERED_WITHIN,
        )

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The Python of that environment, in this home."""
        interpreter = Path(self.host.environ["PATH"].partition(":")[0]) / "python"
        return subprocess.run(
            [str(interpreter), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.host.environ,
            cwd=self.home,
            timeout=ANSWERED_WITHIN,
        )

    def said(self) -> str:
        """What the gateway printed, and what it wrote into its logs."""
        files = [self.home / "gateway-default.txt", *sorted(self.root.glob("logs/*.log"))]
        return "\n".join(one.read_text(errors="replace") for one in files if one.exists())

    def config(self) -> dict[str, Any]:
        """The config as it was written; Hermes may have made other YAML of it since."""
        found: dict[str, Any] = json.loads((self.root / "config.yaml").read_text())
        return found

    def ask(self, text: str, session_key: str | None = None) -> str:
        """One whole turn: the text of its task-result."""
        run_id = self.bridge.send(text, session_key)
        result = self.bridge.result(run_id, ANSWERED_WITHIN)
        assert result is not None, f"no task-result: {self.said()[-1500:]}"
        return result

    def close(self) -> None:
        self.brain.release()
        self.host.close()
        if self._own_bridge:
            self.bridge.close()
        self.model.close()

    def __enter__(self) -> "WisheeSite":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
        if isinstance(error, AssertionError):
            error.add_note(f"hermes {self.version} said: {self.said()[-1500:]}")
            error.add_note(f"the model heard: {self.brain.heard[-10:]}")
            error.add_note(f"violations: {self.bridge.violations}")
