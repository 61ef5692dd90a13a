"""The launchers of a checkout: where their environment is, and what they say when they fail."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

LAUNCHERS = sorted(
    path.name for path in (ROOT / "bin").iterdir() if path.is_file() and not path.suffix
)


@pytest.fixture
def venv() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launcher_venv", ROOT / "bin/venv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a blank in its path, and with all that an installation reads."""
    place = tmp_path / "a checkout"
    shutil.copytree(ROOT / "bin", place / "bin")
    shutil.copytree(ROOT / "hermes_bridges", place / "hermes_bridges")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, place / name)
    return place


def run(launcher: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [launcher, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]} | environ,
        cwd="/",
    )


def test_the_launchers_are_short_and_can_be_executed():
    assert LAUNCHERS
    for name in LAUNCHERS:
        path = ROOT / "bin" / name
        assert os.access(path, os.X_OK)
        assert len(path.read_text().splitlines()) < 10
    assert "bin/test" in (ROOT / ".ci/run").read_text() and os.access(ROOT / ".ci/run", os.X_OK)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_without_a_python_that_is_new_enough(tmp_path, name):
    for tool in ("bash", "dirname", "env", "readlink"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    done = run(ROOT / "bin" / name, PATH=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr == f"bin/{name}: Python 3.11 or later is needed, and none was found on PATH\n"
    )


def test_without_the_module_that_brings_pip(tmp_path, checkout):
    (tmp_path / "ensurepip.py").write_text("raise ImportError")
    done = run(checkout / "bin/demo", "--auto", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert "has no module ensurepip: install your system's package" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.slow
def test_without_a_package_index(checkout):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    for _ in range(2):
        done = run(checkout / "bin/bridge-coms", "--version", **nowhere)
        assert done.returncode == 1 and done.stdout == ""
        assert "installing the package" in done.stderr
        assert "is a package index reachable from here?" in done.stderr
    assert "making a virtual environment" not in done.stderr


def test_once_made_it_says_nothing_more_from_any_directory_and_by_a_link(tmp_path):
    link = tmp_path / "linked"
    link.symlink_to(ROOT / "bin/bridge-coms")
    assert run(ROOT / "bin/bridge-coms", "--version").returncode == 0
    done = run(link, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hermes-bridges ")


def test_a_checkout_that_cannot_be_written_has_its_environment_in_the_cache(
    venv, tmp_path, monkeypatch
):
    monkeypatch.setattr(venv, "ROOT", tmp_path)
    assert venv.place() == tmp_path / ".venv" and venv.in_place(venv.place())
    monkeypatch.setattr(venv, "ROOT", tmp_path / "absent")
    first = venv.place()
    assert first.parent == Path(os.environ["HOME"]) / ".cache/hermes-bridges"
    assert not venv.in_place(first)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert venv.place() == tmp_path / "hermes-bridges" / first.name
    monkeypatch.setattr(venv, "ROOT", tmp_path / "another")
    assert venv.place().name != first.name


def test_it_is_brought_up_to_date_when_the_requirements_change(venv, checkout, monkeypatch):
    monkeypatch.setattr(venv, "ROOT", checkout)
    place = checkout / ".venv"
    (place / "state").mkdir(parents=True)
    assert not venv.up_to_date(place, "run")
    (place / "state/run").write_text(venv.wanted(place))
    assert venv.up_to_date(place, "run") and not venv.up_to_date(place, "test")
    (checkout / "hermes_bridges/errors.py").write_text("")
    assert venv.up_to_date(place, "run")
    (place / "state/test").write_text(venv.wanted(place))
    (place / "state/run").unlink()
    assert venv.up_to_date(place, "run"), "the test tools come on top of what the commands need"
    with (checkout / "setup.cfg").open("a") as file:
        file.write("# changed\n")
    assert not venv.up_to_date(place, "test")


def test_a_copied_package_is_brought_up_to_date_with_its_source(venv, checkout, monkeypatch):
    monkeypatch.setattr(venv, "ROOT", checkout)
    elsewhere = checkout.parent / "elsewhere"
    before = venv.wanted(elsewhere)
    (checkout / "hermes_bridges/errors.py").write_text("")
    assert venv.wanted(elsewhere) != before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_copied_package_works(venv, checkout, monkeypatch):
    monkeypatch.setattr(venv, "ROOT", checkout)
    elsewhere = checkout.parent / "elsewhere"
    venv.bring_up_to_date(elsewhere, "run")
    said = subprocess.check_output([elsewhere / "bin/bridge-coms", "--version"], cwd="/", text=True)
    assert said.startswith("hermes-bridges ")
    assert not list(checkout.glob("*.egg-info"))
    broken = elsewhere / "bin/python"
    broken.unlink()
    broken.symlink_to("/nowhere/python")
    venv.bring_up_to_date(elsewhere, "run")
    assert subprocess.call([elsewhere / "bin/bridge-coms", "--version"], cwd="/") == 0


def test_a_place_that_cannot_be_made_is_named(venv, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(venv, "ROOT", tmp_path / "absent")
    assert venv.main("run") == 1
    told = capsys.readouterr()
    assert told.out == "" and f"{tmp_path}/file/hermes-bridges" in told.err
    assert "XDG_CACHE_HOME or HOME must name a directory" in told.err


def test_a_second_launcher_waits_for_the_first(checkout):
    lock = os.open(checkout, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [sys.executable, checkout / "bin/venv.py", "run"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""},
    )
    assert second.stderr is not None
    assert "another one is at work" in second.stderr.readline()
    assert not (checkout / ".venv").exists()
    os.close(lock)
    _, said = second.communicate(timeout=60)
    assert second.returncode == 1 and "making a virtual environment" in said
