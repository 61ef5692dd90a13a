"""The installed commands, as the unprivileged user of a plain host runs them.

The wheel is built and installed once, for all workers of a run. Where the tests run as root, what
is installed is run by ``nobody``, with an empty HOME and the system's PATH.
"""

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.ctl import bridges
from tests.conftest import MARK_VARIABLE, ROOT
from tests.ops.asking import Ask

NOBODY = 65534
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SOURCES = ("LICENSE", "README.md", "hermes_bridges", "pyproject.toml", "setup.cfg")
# Taken before a test gets a HOME of its own: pip's settings and cache are the caller's.
CALLER = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# One directory a run, which every user can enter, unlike pytest's own.
PLACE = Path("/tmp") / f"hbo-{os.environ.get('PYTEST_XDIST_TESTRUNUID', secrets.token_hex(4))[:8]}"


def drops() -> dict[str, Any]:
    """What makes a child of root one of nobody."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def give(path: Path) -> None:
    """Make a file, or a directory and all that is in it, that of the user of the commands."""
    if os.geteuid() == 0:
        for one in (path, *path.rglob("*")):
            os.chown(one, NOBODY, NOBODY, follow_symlinks=False)


class Operator:
    """A user of the installed commands; ``bin`` holds those, ``home`` is theirs and empty.

    ``path`` is a directory in front of the system's PATH, for commands that a test makes up.
    """

    def __init__(self, place: Path, installed: Path) -> None:
        self.bin = installed
        self.home = place / "h"
        self.path = place / "b"
        for directory in (self.home, self.path):
            directory.mkdir(mode=0o700)
            give(directory)
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{self.path}:{SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            MARK_VARIABLE: os.environ[MARK_VARIABLE],
        }
        self._children: list[subprocess.Popen[Any]] = []

    def command(self, name: str, script: str) -> Path:
        """Put a command on PATH; ``script`` begins with its ``#!`` line."""
        path = self.path / name
        path.write_text(script)
        path.chmod(0o755)
        give(path)
        return path

    def argv(self, *words: str | Path) -> list[str]:
        """The command line; a first word without a slash is one of the installed commands."""
        first, *rest = map(str, words)
        return [first if "/" in first else str(self.bin / first), *rest]

    def run(
        self, *words: str | Path, limit: float = 60, more: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=self.home,
            env=self.environ | (more or {}),
            **drops(),
        )

    def start(
        self, *words: str | Path, more: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """A process that is killed at the end of the test, if it still runs."""
        child = subprocess.Popen(
            self.argv(*words),
            cwd=self.home,
            env=self.environ | (more or {}),
            **{"stdin": subprocess.DEVNULL, **drops(), **options},
        )
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                # One that a test has stopped would not die of anything else.
                child.send_signal(signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


def _python() -> str:
    """An interpreter that the user of the commands can start too."""
    for name in (sys.executable, *(f"/usr/bin/python3{minor}" for minor in ("", ".11", ".12"))):
        done = (
            subprocess.run(
                [name, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                capture_output=True,
                cwd="/",
                **drops(),
            )
            if _may_start(name)
            else None
        )
        if done is not None and done.returncode == 0:
            return name
    pytest.fail("there is no Python 3.11 or later that an unprivileged user could start")


def _may_start(name: str) -> bool:
    path = Path(name).resolve()
    others = all(one.stat().st_mode & 0o001 for one in (path, *path.parents) if one.exists())
    return path.exists() and (others or os.geteuid() != 0)


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


def _install() -> None:
    source = PLACE / "source"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip")
    _call(*pip, "wheel", "--no-deps", "-w", PLACE / "wheel", source)
    (wheel,) = (PLACE / "wheel").iterdir()
    before = os.umask(0o022)
    try:
        _call(_python(), "-m", "venv", "--without-pip", PLACE / "venv")
        _call(*pip, "--python", PLACE / "venv/bin/python", "install", wheel)
    finally:
        os.umask(before)


def _user_lock() -> int:
    """A shared lock on the directory of this run; whoever holds it is sure of the directory."""
    while True:
        PLACE.mkdir(mode=0o755, exist_ok=True)
        os.chmod(PLACE, 0o755)
        fd = os.open(PLACE, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(PLACE), os.fstat(fd)):
                return fd
        except FileNotFoundError:
            # The one before us was the last, and has removed it.
            pass
        os.close(fd)


@pytest.fixture(scope="session")
def installed() -> Iterator[Path]:
    """The bin directory of an environment that holds the wheel and what it requires."""
    users = _user_lock()
    with open(PLACE / "build.lock", "w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)
        if not (PLACE / "done").exists():
            _install()
            (PLACE / "done").touch()
    yield PLACE / "venv/bin"
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(PLACE)
    except BlockingIOError:
        # Another worker is not done yet.
        pass
    os.close(users)


@pytest.fixture
def operator(installed: Path) -> Iterator[Operator]:
    """Somebody with an empty HOME; the path is short enough for sockets."""
    place = Path(tempfile.mkdtemp(prefix="hbo-", dir="/tmp"))
    place.chmod(0o755)
    someone = Operator(place, installed)
    yield someone
    someone.close()
    shutil.rmtree(place)


@pytest.fixture
def ask(
    short_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """The operator command inside the test."""
    # What this host has is no affair of the test's.
    monkeypatch.setattr(bridges, "SYSTEM_STATE", (str(short_tmp / "var-lib"),))
    return Ask(short_tmp, capsys)
