"""The built wheel in the environments of real Hermes versions, which themselves stay as they are.

All that a run makes lies in one directory, made once for all its workers. For each version there is
an environment of its own on top of the cached one: a ``.pth`` file adds what the wheel brings, and
behind it the packages of that Hermes.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import hermes_versions
from tests.conftest import ROOT

SOURCES = ("CHANGES.md", "LICENSE", "README.md", "hermes_bridges", "pyproject.toml", "setup.cfg")
NEEDED = "websocket-client>=1.5.0"  # what no Hermes brings
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(4))[:8]
PLACE = Path("/tmp") / f"hbw-{_RUN}"
# Taken before a test gets a HOME of its own: pip's settings and cache are the caller's.
CALLER = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
_COMMAND = """#!{python}
import sys
from hermes_cli.main import main
sys.exit(main())
"""


class Installed:
    """``lib`` holds the package and what it needs beside Hermes, as the wheel installs them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.lib = place / "lib"

    def hermes(self, version: str, with_wheel: bool = True) -> Path:
        """The ``hermes`` command of that version, in an environment that has the wheel, or not."""
        cached = hermes_versions.hermes(version).parent.parent
        home = self._place / f"{'with' if with_wheel else 'without'}-{version}"
        with _locked(self._place / f"{home.name}.lock"):
            if not home.exists():
                _make_environment(home, cached, [self.lib] if with_wheel else [])
        return home / "bin" / "hermes"

    def vendor(self, folder: Path) -> None:
        """Copy the package, and what it needs, into ``lib`` of a plugin's folder."""
        leave = shutil.ignore_patterns("__pycache__", "bin", "*.dist-info")
        shutil.copytree(self.lib, folder / "lib", ignore=leave)


def _make_environment(home: Path, cached: Path, before: list[Path]) -> None:
    beside = home.with_name(f"{home.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    _call(cached / "bin" / "python", "-m", "venv", "--without-pip", beside)
    (packages,) = beside.glob("lib/python3.*/site-packages")
    (others,) = cached.glob("lib/python3.*/site-packages")
    (packages / "hermes.pth").write_text("".join(f"{path}\n" for path in (*before, others)))
    command = beside / "bin" / "hermes"
    command.write_text(_COMMAND.format(python=home / "bin" / "python"))
    command.chmod(0o755)
    beside.rename(home)


def _install(place: Path) -> None:
    source = place / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "-q")
    _call(*pip, "wheel", "--no-deps", "-w", place / "wheel", source)
    (wheel,) = (place / "wheel").iterdir()
    _call(*pip, "install", "--no-deps", "--target", place / "lib", wheel, NEEDED)


def _call(*command: str | Path) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=CALLER,
        cwd="/",
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _enter(place: Path) -> int:
    """A shared lock on the directory of this run; whoever holds it is sure of the directory."""
    while True:
        place.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(place), os.fstat(fd)):
                return fd
        except FileNotFoundError:
            # The one before us was the last, and has removed it.
            pass
        os.close(fd)


@contextmanager
def installed() -> Iterator[Installed]:
    """For the time of a session; the last worker that leaves takes everything away."""
    users = _enter(PLACE)
    try:
        with _locked(PLACE / "build.lock"):
            if not (PLACE / "done").exists():
                _install(PLACE)
                (PLACE / "done").touch()
        yield Installed(PLACE)
    finally:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(PLACE)
        except BlockingIOError:
            # Another worker is not done yet.
            pass
        os.close(users)
