"""Restarts: of a service, and of a gateway that the command itself becomes."""

import os
import signal
from pathlib import Path

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import restart as module
from hermes_bridges.telegram.hermes import Hermes
from hermes_bridges.telegram.hermes_facts import Gateway
from hermes_bridges.telegram.restart import Restarted, restart

# Tells the gateway that $STATE/pid names, and restarts in the way that $STATE/how tells.
HERMES = """#!/bin/sh
case "$*" in
  "gateway list")
    echo Gateways:
    if [ -s "$STATE/pid" ]; then echo "  ✓ default — PID $(cat "$STATE/pid")"
    else echo "  ✗ default — not running"; fi ;;
  "--profile default gateway restart") . "$STATE/how" ;;
  *) exit 96 ;;
esac
"""
BEFORE = Gateway("default", True, 1111, False)


class Host:
    def __init__(self, root: Path) -> None:
        self.state = root
        self.environ = {"PATH": f"{root}:/usr/bin:/bin", "HOME": str(root), "STATE": str(root)}
        (root / "hermes").write_text(HERMES)
        (root / "hermes").chmod(0o755)
        (root / "pid").write_text("1111")

    def restart(self, how: str, patience: float = 60.0) -> Restarted:
        (self.state / "how").write_text(how)
        return restart(Hermes(self.environ), BEFORE, str(self.state), patience=patience)

    @property
    def log(self) -> str:
        return (self.state / "logs" / module.LOG).read_text()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(module, "LOOK", 0.1)
    return Host(tmp_path)


def test_a_service_is_restarted(host: Host) -> None:
    done = host.restart("echo 2222 > $STATE/pid; printf '\\033[32m✓ Service restarted\\n'")
    assert done == Restarted("✓ Service restarted", ())


def test_a_process_that_stayed_is_told(host: Host) -> None:
    assert host.restart("exit 0") == Restarted("", ("the gateway is the same process as before",))


def test_a_restart_that_fails_is_told(host: Host) -> None:
    with pytest.raises(BridgeError, match="`hermes gateway restart` failed: refused"):
        host.restart("echo first; echo refused >&2; exit 78")
    with pytest.raises(BridgeError, match="`hermes gateway restart` failed: exit code 3"):
        host.restart("exit 3")
    with pytest.raises(BridgeError, match="exit code 137"):
        host.restart("kill -9 $$")


def test_a_gateway_that_is_gone_afterwards_is_told(host: Host) -> None:
    with pytest.raises(BridgeError, match="is not running any more"):
        host.restart("echo > $STATE/pid; : > $STATE/pid")


def test_a_profile_that_is_gone_afterwards_is_told(host: Host) -> None:
    text = "'#!/bin/sh\\necho Gateways:\\n'"
    how = f"printf {text} > $STATE/h; chmod +x $STATE/h; mv $STATE/h $STATE/hermes"
    with pytest.raises(BridgeError, match="Hermes has no profile default any more"):
        host.restart(how)


def test_a_command_that_becomes_the_gateway_is_left_running(host: Host) -> None:
    done = host.restart("echo Starting gateway...; echo $$ > $STATE/pid; exec sleep 600")
    pid = int((host.state / "pid").read_text())
    try:
        assert done.said == "Starting gateway..."
        assert f"process {pid}" in done.notes[0] and module.LOG in done.notes[0]
        # It is on its own: neither a Ctrl-C here nor the end of this process reaches it.
        assert os.getsid(pid) == pid and os.path.exists(f"/proc/{pid}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_restart_that_takes_too_long_is_left_to_itself(host: Host) -> None:
    with pytest.raises(
        BridgeError, match=r"not through after 0\.3 s; it goes on by itself"
    ) as told:
        host.restart("exec sleep 600", patience=0.3)
    pid = int(str(told.value).rpartition("process ")[2].rstrip(")"))
    assert os.path.exists(f"/proc/{pid}")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_log_of_the_last_restart_is_replaced(host: Host) -> None:
    host.restart("echo one")
    host.restart("echo two")
    assert host.log == "two\n"


def test_a_hermes_that_is_gone_is_told(host: Host) -> None:
    (host.state / "hermes").unlink()
    with pytest.raises(BridgeError, match=r"could not be started: .*not found on PATH"):
        host.restart("")


def test_output_that_is_too_much_is_not_told(host: Host) -> None:
    done = host.restart("echo 2222 > $STATE/pid; yes | head -c 100000")
    assert done == Restarted("", ())
