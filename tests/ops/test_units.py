"""The systemd units: written, checked by systemd's own tools, and their command lines run."""

import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.donut import settings as donut_settings
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import KEY, HermesApi
from tests import contrib_units
from tests.conftest import ROOT, wait
from tests.ops.conftest import Operator, give

UNITS = ("hermes-coms-bridge", "hermes-donut-bridge")
SOMEBODY = "mail"  # an account that each system has
EXPOSURE = {  # at most, as `systemd-analyze security` tells it, times ten
    ("system", "hermes-donut-bridge"): 30,
    ("system", "hermes-coms-bridge"): 50,
    ("user", "hermes-donut-bridge"): 50,
    ("user", "hermes-coms-bridge"): 50,
}


@pytest.fixture
def analyze(short_tmp: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``systemd-analyze``, without a manager."""
    if shutil.which("systemd-analyze") is None:
        # A bare machine of CI.
        subprocess.run(["apt-get", "install", "-y", "-qq", "systemd"], check=True)
    runtime = short_tmp / "run"
    runtime.mkdir()

    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["systemd-analyze", *map(str, words)],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/root", "XDG_RUNTIME_DIR": str(runtime)},
        )

    return call


@pytest.fixture
def written(operator: Operator, short_tmp: Path) -> dict[str, Path]:
    """Where ``install-units`` has put the units of each manager."""
    root = operator.home / "root"
    for manager in (("--system", "--run-as", SOMEBODY), ("--user",)):
        done = operator.run("hermes-bridges", "install-units", *manager, "--root", root)
        assert done.returncode == 0, done.stderr
    return {
        "system": root / "etc/systemd/system",
        "user": Path(f"{root}{operator.home}/.config/systemd/user"),
    }


def settings(unit: Path) -> dict[str, list[str]]:
    """The settings of a unit; a name may stand there several times."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def argv(unit: Path, **specifiers: str) -> list[str]:
    """The command line of a unit, as systemd would run it."""
    (line,) = settings(unit)["ExecStart"]
    for name, value in specifiers.items():
        line = line.replace(f"%{name}", value)
    assert not re.search(r"%[A-Za-z]", line), line
    return shlex.split(line)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("manager", ["system", "user"])
def test_systemd_finds_nothing_to_say(analyze, written, manager, unit):
    path = written[manager] / f"{unit}@.service"
    instance = path.with_name(f"{unit}@one.service")
    shutil.copy(path, instance)
    done = analyze(f"--{manager}", "verify", instance)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("manager, unit", EXPOSURE)
def test_the_exposure_is_small(analyze, written, manager, unit):
    instance = written[manager] / f"{unit}@one.service"
    shutil.copy(written[manager] / f"{unit}@.service", instance)
    limit = EXPOSURE[manager, unit]
    done = analyze(f"--{manager}", "security", "--offline=true", f"--threshold={limit}", instance)
    assert done.returncode == 0, done.stdout[-300:]
    # And a limit that is too small is noticed.
    assert analyze("security", "--offline=true", "--threshold=1", instance).returncode != 0


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("manager", ["system", "user"])
def test_what_every_unit_says(written, manager, unit):
    found = settings(written[manager] / f"{unit}@.service")
    for name, value in {
        "Type": "notify",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "78" if "donut" in unit else "1 78",
        "StartLimitBurst": "10",
        "UMask": "0077",
    }.items():
        assert found[name] == [value], name
    assert float(found["WatchdogSec"][0]) >= 60
    environment = " ".join(found["Environment"])
    assert "PATH=" in environment and "HERMES_HOME=" in environment
    grace = 1.5 if "coms" in unit else 120.0 + donut_settings.GRACE
    assert float(found["TimeoutStopSec"][0]) >= grace + 10
    assert ("StateDirectory" in found) == ("donut" in unit)
    credentials = [one.partition(":")[0] for one in found.get("LoadCredential", [])]
    if (manager, unit) == ("system", "hermes-donut-bridge"):
        assert credentials == ["settings", "donut-bot-token", "hermes-api-key"]
        assert found["DynamicUser"] == ["yes"]


def test_the_page_tells_when_one_that_crashed_is_started_again():
    pauses = {one for path in contrib_units.files() for one in settings(path).get("RestartSec", ())}
    (pause,) = pauses
    assert f"| started again after {pause} s |" in (ROOT / "docs/operations.md").read_text()


def test_contrib_holds_the_same_files():
    wanted = contrib_units.files()
    there = {path for path in contrib_units.PLACE.rglob("*") if path.is_file()}
    assert there == set(wanted)
    for path, text in wanted.items():
        assert path.read_text() == text, f"{path}: run python -m tests.contrib_units"


def test_the_examples_name_every_variable():
    for manager in ("system", "user"):
        text = (contrib_units.PLACE / manager / "donut.env.example").read_text()
        for setting in donut_settings.VARIABLES:
            assert f"#{setting.env}" in text or (manager == "system" and setting.secret)


def test_an_edited_unit_is_left_as_it_is(operator):
    unit = operator.home / ".config/systemd/user/hermes-donut-bridge@.service"
    install = ("hermes-bridges", "install-units", "--user")
    assert operator.run(*install).returncode == 0
    whole = unit.read_text()
    again = operator.run(*install)
    assert again.returncode == 0 and f"unchanged: {unit}" in again.stdout
    unit.write_text(whole.replace("WatchdogSec=90", "WatchdogSec=900"))
    refused = operator.run(*install)
    assert refused.returncode == 1 and f"was edited: {unit}" in refused.stdout
    assert "WatchdogSec=900" in unit.read_text()
    forced = operator.run(*install, "--force")
    assert forced.returncode == 0 and unit.read_text() == whole
    assert "WatchdogSec=900" in Path(f"{unit}.bad-1").read_text()


def test_a_unit_that_is_masked_keeps_no_other_from_being_written(operator):
    units = operator.home / ".config/systemd/user"
    units.mkdir(parents=True)
    masked = units / "hermes-coms-bridge@.service"
    masked.symlink_to("/dev/null")
    give(operator.home)
    done = operator.run("hermes-bridges", "install-units", "--user", "--force")
    assert done.returncode == 1 and f"{masked}: symlink" in done.stdout
    assert os.readlink(masked) == "/dev/null"
    assert (units / "hermes-donut-bridge@.service").exists()


def test_an_older_unit_of_ours_is_replaced(operator):
    unit = operator.home / ".config/systemd/user/hermes-donut-bridge@.service"
    install = ("hermes-bridges", "install-units", "--user")
    assert operator.run(*install).returncode == 0
    whole = unit.read_text()
    unit.write_text(whole.replace("# hermes-bridges ", "# hermes-bridges 0.0.", 1))
    assert operator.run(*install).returncode == 0
    assert unit.read_text() == whole


def test_hermes_is_found_where_the_person_has_it(ask, monkeypatch):
    # sudo leaves only the system's PATH.
    fields = list(pwd.getpwnam(SOMEBODY))
    fields[5] = str(ask.root / "person")
    person = pwd.struct_passwd(fields)
    monkeypatch.setattr(pwd, "getpwnam", {person.pw_name: person}.__getitem__)
    place = Path(person.pw_dir, ".local/bin")
    install = ("install-units", "--system", "--dry-run", "--run-as", person.pw_name)
    assert str(place) not in ask(*install).out
    place.mkdir(parents=True)
    (place / "hermes").write_text("#!/bin/sh\n")
    (place / "hermes").chmod(0o755)
    assert f"Environment=PATH={place}:/usr/local/bin:" in ask(*install).out


def test_a_dry_run_writes_nothing(operator):
    done = operator.run("hermes-bridges", "install-units", "--user", "--dry-run")
    assert done.returncode == 0 and "ExecStart=" in done.stdout
    assert not list(operator.home.iterdir())


def test_an_odd_hermes_home_changes_nothing_else_in_the_unit(operator):
    install = ("hermes-bridges", "install-units", "--user", "--dry-run")
    odd = operator.run(*install, more={"HERMES_HOME": '/a "b\\c%h'})
    assert odd.returncode == 0
    assert odd.stdout.count(' "HERMES_HOME=/a \\"b\\\\c%%h"\n') == 2
    for wrong in ("/a\nExecStartPre=/bin/false", "relative"):
        assert operator.run(*install, more={"HERMES_HOME": wrong}).returncode == 2


@pytest.mark.parametrize(
    "words",
    [(), ("--user", "--system"), ("--user", "--run-as", "root"), ("--system", "--run-as", "no!")],
)
def test_a_command_line_that_makes_no_sense(operator, words):
    done = operator.run("hermes-bridges", "install-units", *words)
    assert done.returncode == 2 and done.stderr.startswith("hermes-bridges install-units: ")


class Manager:
    """The socket that a service manager would give, and what came through it."""

    def __init__(self, place: Path) -> None:
        self.said: list[str] = []
        self.path = place / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        os.chmod(self.path, 0o777)
        self._socket.setblocking(False)

    def heard(self, word: str) -> bool:
        while True:
            try:
                self.said.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return any(word in one for one in self.said)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(operator: Operator) -> Iterator[Manager]:
    place = operator.home / "m"
    place.mkdir()
    found = Manager(place)
    give(place)
    yield found
    found.close()


def notified(manager: Manager, usec: int = 3_000_000) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": str(usec)}


def test_the_command_of_the_coms_unit_runs(operator, written, manager):
    words = argv(written["user"] / "hermes-coms-bridge@.service", i="lab", h=str(operator.home))
    assert words[-1] == "$BRIDGE_COMS_FLAGS"
    child = operator.start(*words[:-1], more=notified(manager), stderr=subprocess.PIPE, text=True)
    assert wait(lambda: manager.heard("READY=1"), 20)
    assert wait(lambda: manager.heard("WATCHDOG=1"), 10)
    child.terminate()
    assert child.wait(10) == 0
    assert manager.heard("STOPPING=1")
    assert "user-remote@lab listening" in child.stderr.read()


@pytest.fixture
def donut(operator: Operator) -> Iterator[tuple[DonutHub, HermesApi, Path]]:
    """A hub, a Hermes, and the directory that a manager would fill with credentials."""
    hub, api = DonutHub(), HermesApi()
    credentials = operator.home / "c"
    credentials.mkdir()
    (credentials / "settings").write_text(
        f"DONUT_STREAM_URL={hub.stream_url}\nDONUT_SEND_URL={hub.send_url}\n"
        f"HERMES_BASE_URL={api.base_url}\n"
    )
    (credentials / "donut-bot-token").write_text(f"{hub.token}\n")
    (credentials / "hermes-api-key").write_text(f"{KEY}\n")
    give(credentials)
    yield hub, api, credentials
    hub.close()
    api.close()


def donut_environ(credentials: Path, state: Path) -> dict[str, str]:
    return {
        "DONUT_BOT_TOKEN_FILE": str(credentials / "donut-bot-token"),
        "HERMES_API_KEY_FILE": str(credentials / "hermes-api-key"),
        "STATE_DIRECTORY": str(state),
    }


def test_the_command_of_the_donut_unit_runs(operator, written, manager, donut):
    hub, _, credentials = donut
    hub.add_chat(1, trigger="all")
    unit = written["system"] / "hermes-donut-bridge@.service"
    words = argv(unit, i="one", d=str(credentials))
    environment = " ".join(settings(unit)["Environment"]).replace("%d", str(credentials))
    for name, value in donut_environ(credentials, operator.home).items():
        assert name == "STATE_DIRECTORY" or f"{name}={value}" in environment
    more = donut_environ(credentials, operator.home / "state") | notified(manager)
    child = operator.start(*words, more=more, stderr=subprocess.PIPE, text=True)
    assert wait(lambda: manager.heard("READY=1"), 20)
    assert wait(lambda: hub.online, 10)
    hub.say(1, "hello")
    assert wait(lambda: hub.posted(1), 10)
    assert wait(lambda: manager.heard("STATUS=connected"), 10)
    assert wait(lambda: manager.heard("WATCHDOG=1"), 10)
    child.terminate()
    assert child.wait(10) == 0
    assert manager.heard("STOPPING=1")
    (state,) = (operator.home / "state").glob("*.sqlite3")
    assert state.stat().st_mode & 0o777 == 0o600


def test_a_bridge_that_makes_no_progress_is_no_longer_pinged(operator, written, manager, donut):
    *_, credentials = donut
    words = argv(written["system"] / "hermes-donut-bridge@.service", i="one", d=str(credentials))
    more = donut_environ(credentials, operator.home / "state") | notified(manager, 1_000_000)
    child = operator.start(*words, more=more, stderr=subprocess.DEVNULL)
    assert wait(lambda: manager.heard("WATCHDOG=1"), 20)
    child.send_signal(signal.SIGSTOP)
    manager.heard("")
    manager.said.clear()
    assert not wait(lambda: manager.heard("WATCHDOG=1"), 1.5)
    child.send_signal(signal.SIGCONT)
    assert wait(lambda: manager.heard("WATCHDOG=1"), 10)


@pytest.mark.parametrize(
    "unit, bad",
    [
        ("hermes-coms-bridge", {"extra": ("--poll-ms", "never")}),
        ("hermes-donut-bridge", {"environ": {"BRIDGE_QUEUE_LIMIT": "none"}}),
    ],
)
def test_a_bad_setting_ends_so_that_it_is_not_started_again(operator, written, donut, unit, bad):
    *_, credentials = donut
    manager = "user" if "coms" in unit else "system"
    path = written[manager] / f"{unit}@.service"
    words = argv(path, i="lab", d=str(credentials), h=str(operator.home))
    words = [word for word in words if not word.startswith("$")] + list(bad.get("extra", ()))
    more = donut_environ(credentials, operator.home / "state") | bad.get("environ", {})
    done = operator.run(*words, more=more)
    assert str(done.returncode) in settings(path)["RestartPreventExitStatus"][0].split()
    assert done.stderr
