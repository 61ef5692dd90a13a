"""Makes the private virtual environment of a checkout, and prints where it is.

    python bin/venv.py run     what the commands need
    python bin/venv.py test    the test tools too

It lies in ``.venv`` in the checkout; where that cannot be written, it lies below
``${XDG_CACHE_HOME:-$HOME/.cache}/hermes-bridges``. Nothing is done when it is up to date. What it
says goes to stderr; the path alone goes to stdout. Only the standard library is at hand here.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "hermes_bridges")


class SetupError(Exception):
    """The environment cannot be made; the text is for the person who wanted it."""


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def place() -> Path:
    """Where the environment of this checkout belongs."""
    own = ROOT / ".venv"
    if os.access(own if own.exists() else ROOT, os.W_OK):
        return own
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    checkout = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:12]
    return Path(cache) / "hermes-bridges" / f"venv-{checkout}"


def in_place(venv: Path) -> bool:
    """Whether the package can be installed so that it stays the checkout's own code."""
    return venv.parent == ROOT


def wanted(venv: Path) -> str:
    """Changes whenever the environment has to be brought up to date."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    files = [ROOT / "setup.cfg", ROOT / "pyproject.toml"]
    if not in_place(venv):
        files += sorted((ROOT / "hermes_bridges").rglob("*.py"))
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def usable(venv: Path) -> bool:
    try:
        return subprocess.run([venv / "bin/python", "-c", "import pip"], timeout=30).returncode == 0
    except OSError:
        return False


def up_to_date(venv: Path, purpose: str) -> bool:
    stamps = [venv / "state" / name for name in ("test", purpose)]
    return any(stamp.exists() and stamp.read_text() == wanted(venv) for stamp in stamps)


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Two launchers at once: the second one waits for the first, then finds the work done."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another one is at work on the same environment; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def run(command: list[str | Path], failure: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise SetupError(f"{done.stdout}{done.stderr}\n{failure}")


def make(venv: Path) -> None:
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise SetupError(
                f"{sys.executable} has no module {module}: install your system's package for it"
                f" (on Debian: python{sys.version_info[0]}.{sys.version_info[1]}-venv)"
            ) from None
    say(f"making a virtual environment in {venv}")
    run([sys.executable, "-m", "venv", "--clear", venv], f"{venv} could not be made")


def install(venv: Path, purpose: str) -> None:
    extra = "[test]" if purpose == "test" else ""
    say(f"installing the package{' and the test tools' if extra else ''} (some 10 to 40 seconds)")
    pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    failure = "the installation failed; is a package index reachable from here?"
    if in_place(venv):
        run([*pip, "install", "-e", f"{ROOT}{extra}"], failure)
        return
    # A build writes into its source, so one that cannot be written is copied first.
    with tempfile.TemporaryDirectory(prefix="hb-build-") as copy:
        for name in PACKAGE_FILES:
            source, target = ROOT / name, Path(copy) / name
            if source.is_dir():
                shutil.copytree(source, target, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(source, target)
        run([*pip, "install", "--upgrade", "--force-reinstall", "--no-deps", copy], failure)
        run([*pip, "install", f"{copy}{extra}"], failure)


def bring_up_to_date(venv: Path, purpose: str) -> None:
    venv.parent.mkdir(parents=True, exist_ok=True)
    with only_one(venv.parent):
        whole = usable(venv)
        if whole and up_to_date(venv, purpose):
            return
        if not whole:
            make(venv)
        install(venv, purpose)
        (venv / "state").mkdir(exist_ok=True)
        (venv / "state" / purpose).write_text(wanted(venv))


def main(purpose: str) -> int:
    venv = place()
    try:
        bring_up_to_date(venv, purpose)
    except SetupError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{venv} cannot be made: {error}")
        if not in_place(venv):
            say("XDG_CACHE_HOME or HOME must name a directory that can be written")
        return 1
    print(venv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
