"""The wheel: what is in it, and that what it installs works on its own."""

import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from hermes_bridges import __version__
from tests.conftest import ROOT

# On one worker, so that the wheel is built and installed once.
pytestmark = pytest.mark.xdist_group("packaging")

# Taken before a test gets a HOME of its own: pip's settings and cache are the caller's.
CALLER = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
SOURCES = ("CHANGES.md", "LICENSE", "README.md", "hermes_bridges", "pyproject.toml", "setup.cfg")


def run(*command: str | Path, **more) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, since a build writes into its source."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", target, source, env=CALLER)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that holds the wheel and nothing that it requires."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, with_pip=True)
    run(place / "bin/python", "-m", "pip", "install", "--no-deps", wheel, env=CALLER)
    return place / "bin"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def required() -> list[str]:
    return [
        line
        for line in setup_cfg()["options"]["install_requires"].splitlines()
        if line and not line.startswith("#")
    ]


def test_the_wheel_holds_the_package_and_the_licence_and_no_tests(source, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (licence,) = [name for name in names if name.endswith("LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert {name.split("/")[0] for name in names} == {
        "hermes_bridges",
        f"hermes_bridges-{__version__}.dist-info",
    }
    packed = {name for name in names if name.startswith("hermes_bridges/")}
    ours = {
        path.relative_to(source).as_posix()
        for path in (source / "hermes_bridges").rglob("*")
        if path.is_file()
    }
    assert packed == ours


def test_the_metadata(metadata):
    assert metadata["Name"] == "hermes-bridges"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert "MIT" in {metadata["License"], metadata["License-Expression"]}
    assert "# hermes-bridges" in metadata.get_payload()
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(needed) == sorted(required())


def test_metadata_stands_in_setup_cfg_and_the_settings_of_tools_in_pyproject():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(pyproject) == {"build-system", "tool"}
    assert "setuptools" not in pyproject["tool"]
    sections = set(setup_cfg().sections())
    assert sections and all(name == "metadata" or name.startswith("options") for name in sections)


def test_the_version_stands_in_one_place():
    assert setup_cfg()["metadata"]["version"] == "attr: hermes_bridges.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    holders = [
        path
        for path in (ROOT / "hermes_bridges").rglob("*.py")
        if f'"{__version__}"' in path.read_text()
    ]
    assert holders == [ROOT / "hermes_bridges/__init__.py"]
    assert f"## {__version__}" in (ROOT / "CHANGES.md").read_text()


def test_the_installed_commands_tell_their_version_and_their_usage(installed, short_tmp):
    for command in (
        [installed / "bridge-coms"],
        [installed / "python", "-m", "hermes_bridges.coms"],
    ):
        assert __version__ in run(*command, "--version", cwd=short_tmp)
        assert "--questions-dir" in run(*command, "--help", cwd=short_tmp)
    assert "--option" in run(installed / "bridge-coms", "ask", "--help", cwd=short_tmp)


def test_each_console_script_is_installed(installed):
    scripts = setup_cfg()["options.entry_points"]["console_scripts"].split("\n")
    names = [line.partition("=")[0].strip() for line in scripts if line]
    assert names and all(os.access(installed / name, os.X_OK) for name in names)


def test_a_round_trip_with_what_was_installed_and_nothing_else(installed, short_tmp):
    environ = {"PATH": os.environ["PATH"], "HOME": str(short_tmp), "TMPDIR": str(short_tmp)}
    command = [installed / "python", "-P", "-m", "hermes_bridges.standins.demo", "--auto"]
    said = run(*command, cwd=short_tmp, env=environ)
    assert '"Asia"' in said and "All went as it should" in said
    assert list(short_tmp.iterdir()) == []


def test_the_lowest_releases_that_are_named_can_be_installed(installed):
    lowest = [line.replace(">=", "==") for line in required()]
    assert lowest and all("==" in line for line in lowest)
    run(installed / "python", "-m", "pip", "install", *lowest, env=CALLER)
    run(installed / "python", "-m", "pip", "check", env=CALLER)
    # What the package will ask of them: a socket of its own, no redirects, its own decoding.
    program = (
        "import inspect, requests, websocket\n"
        "assert requests.Session and websocket.ABNF.create_frame\n"
        "made = inspect.signature(websocket.WebSocket.__init__).parameters\n"
        "assert 'skip_utf8_validation' in made\n"
        "source = inspect.getsource(websocket.WebSocket.connect)\n"
        "assert 'redirect_limit' in source and 'socket' in source\n"
    )
    run(installed / "python", "-W", "error", "-c", program, env=CALLER)
