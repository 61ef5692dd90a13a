"""`hermes-bridges reset-state`: the state goes aside whole, and never under a running bridge."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.core import files
from hermes_bridges.donut.store import Store
from tests.conftest import ROOT
from tests.harness.donut_scene import DonutScene
from tests.harness.scene import Scene
from tests.ops.asking import Ask
from tests.ops.conftest import NOBODY

OWNER = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def base(ask: Ask) -> Path:
    return Path(ask.environ["HOME"]) / ".pi/coms/hermes-bridge"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# coms


def test_the_state_of_coms_goes_aside_whole(ask: Ask, base: Path, short_tmp: Path) -> None:
    with Scene(str(short_tmp)) as scene:
        daemon = scene.daemon()
        question = scene.peers.pi().ask("Ship?")
        scene.hermes.wait_sent(question.qid)
        daemon.stop()
        (base / "questions" / "stray.answer.json").write_text("{}")
        told = ask("reset-state", "coms")
        assert (told.code, told.err) == (0, "")
        assert told.out.splitlines() == [
            f"the state was moved to {base}/{part}.bad-1"
            for part in ("pending", "questions", "status")
        ]
        assert names(base) == ["log.ndjson", "pending.bad-1", "questions.bad-1", "status.bad-1"]
        assert f"{question.qid}.json" in names(base / "pending.bad-1")
        assert names(base / "questions.bad-1") == ["stray.answer.json"]
        # The next start knows of nothing, and what was moved stays as it is.
        daemon.start()
        daemon.stop()
        assert f"{question.qid}.json" not in names(base / "pending")
        assert ask("reset-state", "coms").code == 0
        assert "pending.bad-2" in names(base) and "pending.bad-1" in names(base)


def test_it_refuses_while_a_coms_bridge_runs(
    ask: Ask, base: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, Scene(str(short_tmp)) as scene:
        daemon = scene.daemon()
        # Not even for a moment.
        patch.setattr(files, "set_aside", lambda path: pytest.fail(f"{path} was moved"))
        for _ in range(2):
            before = names(base)
            told = ask("reset-state", "coms")
            assert told.code == 1 and told.out == "" and f"process {daemon.pid}" in told.err
            assert names(base) == before
            # One that is paused, as a hung one, uses it just so.
            daemon.pause()
        daemon.resume()
        daemon.kill()
        patch.undo()
        assert ask("reset-state", "coms").code == 0


def test_one_that_starts_in_that_moment_gets_its_state_back(
    ask: Ask, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "pending").mkdir(parents=True)
    (base / "pending" / f"{OWNER}.json").touch()
    held: list[object] = []

    def meanwhile(path: str) -> str:
        lock = Path(path) / f".owner-{OWNER}.lock"
        script = f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.flock(f, 2); print(1); input()"
        child = subprocess.Popen(
            [sys.executable, "-uc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        held.append(child)
        return set_aside(path)

    set_aside = files.set_aside
    monkeypatch.setattr(files, "set_aside", meanwhile)
    told = ask("reset-state", "coms")
    (child,) = held
    assert isinstance(child, subprocess.Popen)
    child.communicate(b"\n")
    assert told.code == 1 and "uses the state" in told.err
    assert names(base) == ["pending"] and f"{OWNER}.json" in names(base / "pending")


def test_without_a_state(ask: Ask, base: Path) -> None:
    for words in (["coms"], ["donut", f"--state-dir={ask.root}/none"]):
        assert ask("reset-state", *words) == (0, "there is no state\n", "")
    told = ask("reset-state", "donut")
    assert told.code == 1 and "--state-dir" in told.err
    assert "HOME is not set" in ask("reset-state", "coms", HOME="").err
    assert ask("reset-state", "coms", "--instance", "x").code == 1


def test_the_state_of_somebody_else_is_left_alone(
    ask: Ask, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "pending").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    told = ask("reset-state", "coms")
    assert told.code == 1 and "belongs to another user" in told.err and names(base) == ["pending"]


# donut


@pytest.fixture
def state(ask: Ask) -> Iterator[Path]:
    directory = Path(ask.environ["HOME"]) / ".local/state/hermes-bridges"
    store = Store(str(directory))
    store.set_bot("77")
    store.close()
    yield directory


def test_the_state_of_donut_goes_aside_and_can_still_be_read(ask: Ask, state: Path) -> None:
    told = ask("reset-state", "donut")
    aside = state / "donut.sqlite3.bad-1"
    assert (told.code, told.out, told.err) == (0, f"the state was moved to {aside}\n", "")
    assert not (state / "donut.sqlite3").exists()
    with sqlite3.connect(aside) as sql:
        assert ("bot", "77") in sql.execute("SELECT name, value FROM facts").fetchall()
    sql.close()


def test_it_refuses_while_a_donut_bridge_runs(ask: Ask, short_tmp: Path) -> None:
    (short_tmp / "d").mkdir()
    with DonutScene(str(short_tmp / "d")) as scene:
        bridge = scene.start()
        words = ("reset-state", "donut", "--state-dir", scene.state)
        told = ask(*words)
        assert told.code == 1 and "in use by another bridge" in told.err
        assert "donut.sqlite3" in os.listdir(scene.state)
        bridge.stop(limit=5)
        assert ask(*words).code == 0


def test_of_several_one_must_be_chosen(ask: Ask, state: Path) -> None:
    Store(str(state / "donut-second")).close()
    told = ask("reset-state", "donut")
    assert told.code == 1 and "choose one" in told.err and str(state / "donut-second") in told.err
    assert ask("reset-state", "donut", "--instance", "second").code == 0
    assert not (state / "donut-second/donut.sqlite3").exists()
    assert (state / "donut.sqlite3").exists()


def test_a_state_that_is_no_database_goes_aside_too(ask: Ask, state: Path) -> None:
    (state / "donut.sqlite3").write_bytes(b"rubbish")
    assert ask("reset-state", "donut").code == 0
    assert (state / "donut.sqlite3.bad-1").read_bytes() == b"rubbish"


def test_root_does_it_as_the_owner_though_the_way_there_is_closed(short_tmp: Path) -> None:
    closed = short_tmp / "closed"
    state = closed / "donut-bot"
    state.mkdir(parents=True, mode=0o700)
    closed.chmod(0o700)
    (state / "donut.sqlite3").write_bytes(b"rubbish")
    # A trap: as root the lock would be made where this leads to.
    (state / "donut.lock").symlink_to(short_tmp / "trap")
    # Anybody but root can only do it as himself.
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    for path in (state, state / "donut.sqlite3"):
        os.chown(path, owner, -1)

    def reset() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "hermes_bridges", "reset-state", "donut", "--state-dir", state],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    done = reset()
    assert done.returncode == 1 and not (short_tmp / "trap").exists()
    (state / "donut.lock").unlink()
    done = reset()
    assert done.stdout == f"the state was moved to {state}/donut.sqlite3.bad-1\n", done.stderr
    assert (state / "donut.lock").stat().st_uid == owner
