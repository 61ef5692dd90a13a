"""`hermes-bridges doctor` and `check`: what is wrong, and what to do about it."""

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.ctl import systemd
from hermes_bridges.ctl.examination import host
from tests.harness.donut_scene import DonutScene
from tests.harness.process import CHECKOUT
from tests.harness.scene import Scene
from tests.ops.asking import Ask, status_file
from tests.ops.conftest import Operator

HERMES = """#!/bin/sh
case "$1" in
--version) echo 'Hermes Agent v0.22.2' ;;
send) exit 0 ;;
esac
"""


@pytest.fixture
def well(ask: Ask) -> Ask:
    """A host on which all is well."""
    home = Path(ask.environ["HOME"])
    (home / ".hermes/profiles/work").mkdir(parents=True)
    (ask.bin / "hermes").write_text(HERMES)
    (ask.bin / "hermes").chmod(0o755)
    ask.systemctl("echo yes", "timedatectl")
    return ask


def problems(ask: Ask, *words: str) -> dict[str, str]:
    """The remedy of each problem, by its text."""
    told = ask("doctor", "--json", *words)
    found = {one["text"]: one["remedy"] for one in told.json if one["remedy"]}
    assert told.code == (1 if found else 0) and told.err == ""
    return found


def only(found: dict[str, str]) -> tuple[str, str]:
    (pair,) = found.items()
    return pair


def test_where_all_is_well(well: Ask) -> None:
    told = well("doctor")
    assert (told.code, told.err) == (0, "")
    assert all(line.startswith("ok: ") for line in told.out.splitlines())
    for part in ("runs with Python", "requests ", "websocket-client ", "v0.22.2", "MiB are free"):
        assert part in told.out
    assert "default, work; active: default" in told.out and "no bridge was started" in told.out


def test_each_problem_is_followed_by_its_remedy(well: Ask) -> None:
    (well.bin / "hermes").unlink()
    told = well("doctor")
    lines = told.out.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("problem: "))
    assert "hermes was not found" in lines[at] and lines[at + 1].startswith("  remedy: install")
    assert told.code == 1


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'no such\x1b[2J thing' >&2; exit 3", "failed (3): no such thing"),
        ("exit 4", "failed (4): it said nothing"),
        ("kill -9 $$", "failed (9)"),
    ],
)
def test_a_hermes_that_does_not_work(well: Ask, script: str, told: str) -> None:
    (well.bin / "hermes").write_text(f"#!/bin/sh\n{script}\n")
    text, remedy = only(problems(well))
    assert told in text and "user of the bridges" in remedy


def test_a_hermes_that_hangs(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_bridges.ctl.examination.hermes._LIMIT", 0.3)
    (well.bin / "hermes").write_text("#!/bin/sh\nsleep 60\n")
    assert "did not end within 0.3 s" in only(problems(well))[0]


def test_a_hermes_that_cannot_be_started(well: Ask) -> None:
    (well.bin / "hermes").write_text("#!/no/such/interpreter\n")
    assert "hermes --version" in only(problems(well))[0]


def test_profiles(well: Ask) -> None:
    root = Path(well.environ["HOME"]) / ".hermes"
    (root / "active_profile").write_text("gone\n")
    text, remedy = only(problems(well))
    assert "gone, a profile that does not exist" in text and "into that file" in remedy
    (root / "active_profile").write_text("work\n")
    assert problems(well) == {}
    well.environ["HERMES_HOME"] = str(root / "profiles/work")
    assert "active: work" in well("doctor").out
    well.environ["HERMES_HOME"] = str(root / "nowhere")
    assert "Hermes has no directory" in only(problems(well))[0]


def test_without_a_home(well: Ask) -> None:
    well.environ["HOME"] = ""
    assert any("HERMES_HOME" in remedy for remedy in problems(well).values())


def test_python_and_packages(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "requests":
            raise PackageNotFoundError(name)
        return "1.4.2"

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr(host, "OLDEST_PYTHON", (99, 0))
    first, second, third = problems(well).items()
    assert "runs with Python" in first[0] and "Python 3.11" in first[1]
    assert second[1].endswith(f"{sys.executable} -m pip install 'requests'")
    assert "1.4.2 is older than 1.5.0" in third[0] and "'websocket-client>=1.5.0'" in third[1]


def test_the_clock(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    well.systemctl("echo no", "timedatectl")
    text, remedy = only(problems(well))
    assert "nothing keeps it in time" in text and "set-ntp" in remedy
    path = Path(well.environ["HOME"]) / ".pi/coms/hermes-bridge/status/default.user-remote.json"
    status_file(path)
    path.chmod(0o600)
    path.parent.parent.chmod(0o700)
    os.utime(path, (time.time() + 3600,) * 2)
    assert any("was written later than that" in text for text in problems(well))
    monkeypatch.setattr(host, "_NO_EARLIER_THAN", time.time() + 1e6)
    assert any("which is over" in text for text in problems(well))
    (well.bin / "timedatectl").unlink()


def test_modes_and_owners(well: Ask) -> None:
    base = Path(well.environ["HOME"]) / ".pi/coms/hermes-bridge"
    (base / "questions").mkdir(parents=True)
    for path in (base.parent, base):
        path.chmod(0o700)
    (base / "questions").chmod(0o777)
    (base / "log.ndjson").touch(0o644)
    found = problems(well)
    assert len(found) == 2
    assert found[f"{base}/questions is open to others (mode 0777)"].endswith(
        f"chmod go= '{base}/questions'"
    )
    assert f"{base}/log.ndjson is open to others (mode 0644)" in found
    (base / "questions").chmod(0o700)
    (base / "log.ndjson").unlink()
    (base / "log.ndjson").symlink_to("/nowhere")
    assert problems(well) == {} and "is a symlink to /nowhere" in well("doctor").out


def test_places_that_cannot_be_looked_at(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = well.root / "loop"
    pool.symlink_to(pool)
    well.environ["PI_COMS_DIR"] = str(pool / "deep")
    assert any("cannot be looked at" in text for text in problems(well))
    del well.environ["PI_COMS_DIR"]

    def refused(path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", refused)
    assert "MiB" not in well("doctor").out


def test_the_directories_that_a_bridge_tells_of_are_looked_at_too(well: Ask) -> None:
    questions = well.root / "questions"
    questions.mkdir(mode=0o755)
    values = {"questions_dir": str(questions), "event_log": str(well.root / "log.ndjson")}
    path = Path(well.environ["HOME"]) / ".pi/coms/hermes-bridge/status/default.user-remote.json"
    status_file(path, values=values)
    path.chmod(0o600)
    for place in (path.parent.parent, path.parent.parent.parent):
        place.chmod(0o700)
    assert f"{questions} is open to others" in only(problems(well))[0]
    questions.chmod(0o700)
    assert problems(well) == {} and "coms user-remote@default is healthy" in well("doctor").out


def test_room(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(**facts: int) -> None:
        usual = {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 10**6, "f_bfree": 10**6}
        usual |= {"f_bavail": 10**6, "f_files": 10**6, "f_ffree": 10**6, "f_favail": 10**6}
        usual |= {"f_flag": 0, "f_namemax": 255, **facts}
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(usual.values()))

    for facts, told in (
        ({"f_bavail": 100}, "only 0 MiB are free"),
        ({"f_favail": 3}, "only 3 files can still be made"),
        ({"f_flag": os.ST_RDONLY}, "read-only"),
    ):
        statvfs(**facts)
        assert told in only(problems(well))[0]
    statvfs(f_files=0, f_favail=0)
    assert problems(well) == {}


def test_a_pool_whose_sockets_have_too_long_paths(well: Ask) -> None:
    well.environ["PI_COMS_DIR"] = str(well.root / ("x" * 100))
    text, remedy = only(problems(well))
    assert "107" in text and "PI_COMS_DIR" in remedy


def test_systemd_that_ends_with_the_session(well: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "BOOTED", "/")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(well.root).st_uid or 1)
    block = "Id=hermes-coms-bridge@work.service\\nLoadState=loaded\\nActiveState=failed\\n"
    well.systemctl(f"[ \"$1\" = --user ] && printf '{block}'; exit 0")
    well.systemctl("echo no", "loginctl")
    found = problems(well)
    assert any("enable-linger" in remedy for remedy in found.values())
    well.systemctl("echo yes", "loginctl")
    assert not any("enable-linger" in remedy for remedy in problems(well).values())
    well.systemctl("exit 1", "loginctl")
    assert not any("enable-linger" in remedy for remedy in problems(well).values())


def test_what_is_wrong_with_a_bridge_stands_there_too(well: Ask) -> None:
    path = well.root / "state" / "status.json"
    status_file(path, values={"process_start": 1})
    path.chmod(0o600)
    text, remedy = only(problems(well, "--state-dir", str(path.parent)))
    assert text.startswith("donut state is down: ") and "start it" in remedy
    assert "donut state is healthy" not in well("doctor").out


def test_the_installed_command_and_the_directory_of_somebody_else(operator: Operator) -> None:
    operator.command("hermes", HERMES)
    done = operator.run("hermes-bridges", "doctor", "--json", more={"PI_COMS_DIR": "/etc"})
    found = {one["text"]: one["remedy"] for one in json.loads(done.stdout)}
    assert found["/etc belongs to another user (uid 0)"].startswith("give it to")
    assert done.returncode == 1


# check


def test_check_coms(ask: Ask, short_tmp: Path) -> None:
    with Scene(str(short_tmp)) as scene:
        ask.environ["PATH"] = f"{scene.home.bin}:{ask.environ['PATH']}"
        told = ask("check", "coms")
        assert (told.code, told.err) == (0, "") and "ok: hermes can send" in told.out
        scene.daemon(project="green")
        told = ask("check", "coms", "--", "--project", "green")
        assert told.code == 1 and "is taken in project green" in told.out
        scene.hermes.rule(exit=1, err="bad\x1b]0;x\x07 thing")
        out = ask("check", "coms").out
        assert "missing: `hermes send --help` failed" in out and "\x1b" not in out


def test_check_donut_without_a_package_it_needs(ask: Ask) -> None:
    gone = ask.root / "gone"
    gone.mkdir()
    (gone / "websocket.py").write_text("raise ModuleNotFoundError(name='websocket')\n")
    ask.environ["PYTHONPATH"] = f"{gone}:{CHECKOUT}"
    child = ask.start("check", "donut")
    told = child.communicate(timeout=20)[1]
    assert child.returncode == 1 and told.count("\n") == 1
    assert "package websocket is missing" in told and "doctor" in told


def test_check_donut(ask: Ask, short_tmp: Path) -> None:
    (short_tmp / "d").mkdir()
    with DonutScene(str(short_tmp / "d")) as scene:
        more: dict[str, Any] = {
            name: text
            for name, text in scene.bridge.environ.items()
            if name.startswith(("DONUT_", "HERMES_", "BRIDGE_"))
        }
        told = ask("check", "donut", **more)
        assert told.code == 0 and "ok: the hub at" in told.out
        told = ask("check", "donut", **more, BRIDGE_NO_SUCH="1")
        assert told.code == 0 and "note: BRIDGE_NO_SUCH is no setting" in told.out
        told = ask("check", "donut", **(more | {"HERMES_API_KEY": "wrong-key"}))
        assert told.code == 1 and "remedy: it must be the API_SERVER_KEY" in told.out


def test_settings_that_cannot_be_used_end_with_2(ask: Ask) -> None:
    told = ask("check", "donut")
    assert told.code == 2 and told.out == ""
    assert told.err.count("hermes-bridges check: DONUT_BOT_TOKEN") == 1
    told = ask("check", "coms", "--", "--poll-ms", "x", "--no-such")
    assert told.code == 2 and told.err.count("\n") == 2
    assert ask("check", "coms", "--project", "x").code == 2
    assert ask("check").code == 2
