"""A host with a real Hermes, whose Telegram and model are stand-ins, and the real controller.

The ``hermes`` on its PATH notes each call and passes it on, but for ``gateway restart``, which only
is noted, and ``gateway stop``, which fails: both may reach gateways that are not the test's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from hermes_bridges.standins.hermes_gateway import USER, HermesHome
from hermes_bridges.standins.liaison import Liaison
from hermes_bridges.standins.model_api import Brain, ModelApi
from hermes_bridges.standins.telegram_api import HOST, Message, TelegramApi
from tests import hermes_versions
from tests.harness.daemon import CHECKOUT, INHERITED, Daemon, wait
from tests.harness.scene import Scene

TOKENS = {"default": "123456:STANDIN", "work": "234567:STANDIN"}
STARTED_WITHIN = 60.0  # a gateway of two bots takes 15 s on an idle machine
DONE_WITHIN = 60.0  # one turn of the agent: a few seconds
SENT_WITHIN = 70.0  # one `hermes send`: a few seconds too, and the bridge's own limit is 60
WRAPPER = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
  *"gateway restart"*) echo "noted"; exit 0 ;;
  *"gateway stop"*) exit 97 ;;
esac
exec {real} "$@"
"""


@dataclass
class Done:
    """How a call of the controller ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def problems(self) -> str:
        """The texts of the problems that ``--json`` tells, a line each."""
        return "\n".join(problem["text"] for problem in self.result["problems"])

    @property
    def remedies(self) -> list[str]:
        return [one for problem in self.result["problems"] for one in problem["remedies"]]


class Site:
    """Use as a context manager, with a short directory; ``brain`` drives another model."""

    def __init__(self, version: str, root: Path, brain: Brain | None = None) -> None:
        authority = trustme.CA()
        certificate, key = root / "ca.pem", root / "key.pem"
        authority.cert_pem.write_to_path(certificate)
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(key)
        self.version = version
        self.scene = Scene(str(root))
        self.telegram = TelegramApi(list(TOKENS.values()), (str(key), str(key)))
        self.model = ModelApi(brain or Liaison(str(USER)))
        self._calls = root / "hermes.calls"
        wrapper = root / "b" / "hermes"
        real = hermes_versions.hermes(version)
        wrapper.write_text(WRAPPER.format(calls=self._calls, real=real))
        wrapper.chmod(0o755)
        inherited = {n: v for n, v in os.environ.items() if n.startswith(INHERITED)}
        inherited["PYTHONPATH"] = CHECKOUT
        # Newer versions refuse to work in $HOME/.hermes below a test runner.
        inherited["HERMES_STATE_DB_GUARD_BYPASS"] = "1"
        self.host = HermesHome(
            self.scene.home.path,
            str(wrapper),
            self.telegram,
            self.model.base_url,
            str(certificate),
            inherited,
        )

    def profile(self, name: str, **more: dict[str, object]) -> Path:
        """Write the settings of a profile; its directory."""
        self.host.write(name, TOKENS[name], **more)
        return Path(self.host.path(name))

    def gateway(self, profile: str = "default", bots: Sequence[str] = ("default",)) -> None:
        """Start a gateway, and wait until these bots are connected."""
        process = self.host.start(profile)
        wait(
            lambda: (
                all(self.telegram.polled(TOKENS[bot]) for bot in bots) or process.poll() is not None
            ),
            STARTED_WITHIN,
            f"bots {bots} of hermes {self.version}",
        )
        assert process.poll() is None, (Path(self.host.home) / f"gateway-{profile}.txt").read_text()

    def controller(self, *words: str, **environ: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "hermes_bridges.telegram", *words],
            env=self.host.environ | environ,
            cwd=self.host.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DONE_WITHIN * 2,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def hermes(self, *words: str) -> str:
        """Run the real command; what it printed."""
        return subprocess.run(
            ["hermes", *words],
            env=self.host.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=DONE_WITHIN,
        ).stdout

    def calls(self) -> list[str]:
        """The command lines that ``hermes`` was called with so far."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def bridge(self, *flags: str) -> Daemon:
        """The coms bridge, which sends with the real ``hermes``."""
        return self.scene.daemon(*flags, environ=dict(self.host.sending))

    def bridge_by(self, command: str) -> Daemon:
        """The bridge by the command line that a pane's shell got."""
        return self.scene.daemon(command=["sh", "-c", f"exec {command}"], environ=self.host.sending)

    def shown(self, token: str, qid: str) -> Message:
        """The question with that id, once the person's phone shows it."""
        found = self.telegram.wait(lambda one: one.token == token and qid in one.text, SENT_WITHIN)
        assert found is not None, f"{qid} was not sent: {self.telegram.messages()}"
        return found

    def close(self) -> None:
        try:
            self.scene.close()
        finally:
            self.host.close()
            self.model.close()
            self.telegram.close()

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
        if isinstance(error, AssertionError):
            error.add_note(f"the bridge noted: {self.scene.home.events()}")
            for daemon in self.scene.daemons:
                error.add_note(f"the bridge said: {daemon.all_stderr()[-1500:]}")
            for path in Path(self.host.home).glob("gateway-*.txt"):
                error.add_note(f"{path.name}:\n{path.read_text()[-1500:]}")
            for said in [m for r in self.model.requests[-1:] for m in r.messages[-4:]]:
                error.add_note(f"the model saw: {said.role}: {said.text[:400]}")
