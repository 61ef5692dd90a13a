"""The home of a real Hermes; here its command is a script."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_gateway import HermesHome
from hermes_bridges.standins.telegram_api import TelegramApi
from tests.conftest import wait


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HermesHome]:
    telegram = TelegramApi(["1:X"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    hermes = tmp_path / "bin" / "hermes"
    hermes.write_text('#!/bin/sh\necho "$@"\necho "$HERMES_HOME $EXTRA" >&2\n. "$HOME/script"\n')
    hermes.chmod(0o755)
    made = HermesHome(
        str(tmp_path / "home"), str(hermes), telegram, "http://m/v1", "/ca.pem", {"EXTRA": "more"}
    )
    yield made
    made.close()
    telegram.close()


def test_the_settings_of_a_profile(host: HermesHome) -> None:
    host.write("default", "1:X")
    host.write("work", "2:X", terminal={"home_mode": "profile"})
    work = Path(host.path("work"))
    assert work == Path(host.root) / "profiles" / "work" and (work / "home").is_dir()
    config = json.loads((work / "config.yaml").read_text())
    assert config["terminal"] == {"home_mode": "profile"}
    assert config["model"]["base_url"] == "http://m/v1"
    extra = config["platforms"]["telegram"]["extra"]
    assert extra["base_url"].startswith("http://127.0.0.1:")
    assert "TELEGRAM_BOT_TOKEN=2:X\n" in (work / ".env").read_text()
    assert stat.S_IMODE((work / ".env").stat().st_mode) == 0o600
    assert not (Path(host.root) / "home").exists()
    assert "TELEGRAM_PROXY" not in host.environ and "TELEGRAM_PROXY" in host.sending


def test_gateways_are_started_and_ended(host: HermesHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_bridges.standins.hermes_gateway.STOP_SECONDS", 0.5)
    script = Path(host.home) / "script"
    script.write_text("exec sleep 600\n")
    one = host.start()
    log = Path(host.home) / "gateway-default.txt"
    assert wait(lambda: log.read_text().count("\n") == 2, 10)
    assert log.read_text() == f"gateway run\n{host.root} more\n"
    script.write_text("trap '' TERM; sleep 600 & echo ready; while :; do wait; done\n")
    other = host.start("work")
    log = Path(host.home) / "gateway-work.txt"
    assert wait(lambda: "ready" in log.read_text(), 10)
    assert log.read_text().startswith("--profile work gateway run\n")
    script.write_text("exit 3\n")
    third = host.start()
    assert third.wait(10) == 3
    os.killpg(one.pid, signal.SIGCONT)
    host.close()
    assert one.returncode == -signal.SIGTERM and other.returncode == -signal.SIGKILL


def test_a_home_without_telegram(tmp_path: Path) -> None:
    host = HermesHome(str(tmp_path), "/opt/bin/hermes", None, "http://m/v1", "", {})
    host.write("default", variables={"API_SERVER_KEY": "k", "API_SERVER_PORT": "1"}, agent={"x": 1})
    config = json.loads((Path(host.root) / "config.yaml").read_text())
    assert "platforms" not in config and config["agent"] == {"x": 1}
    assert (Path(host.root) / ".env").read_text() == "API_SERVER_KEY=k\nAPI_SERVER_PORT=1\n"
    assert "SSL_CERT_FILE" not in host.sending
