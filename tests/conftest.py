"""What every test of the project stands on: isolation, short paths, counts, and no skips.

Each test has an empty HOME and none of the variables that the bridges read. A skipped test is a
failure: what cannot run here must not look as if it had. At the end of a run nothing that it
started may still live, and nothing of it may lie about.
"""

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

ROOT = Path(__file__).resolve().parent.parent
# Each session adds its own word, so that a session inside another one does not blame it.
MARK_VARIABLE = "HERMES_BRIDGES_TEST_SESSION"
MARK = secrets.token_hex(3)
SHORT_ROOT = Path("/tmp") / f"hb-{MARK}"
READ_BY_BRIDGES = (
    "BRIDGE_",
    "CREDENTIALS_DIRECTORY",
    "DONUT_",
    "HERDR_",
    "HERMES_API_",
    "HERMES_BASE_",
    "HERMES_HOME",
    "HERMES_MODEL",
    "LISTEN_",
    "LOG_LEVEL",
    "NOTIFY_SOCKET",
    "PI_",
    "STATE_DIRECTORY",
    "TELEGRAM_",
    "WATCHDOG_",
    "WISHEE_",
    "XDG_",
)

pytest_plugins = ["tests.gateway.delivered"]

settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="full counts instead of the default ones")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK_VARIABLE] = f"{os.environ.get(MARK_VARIABLE, '')}:{MARK}"
    set_hypothesis_home_dir(SHORT_ROOT / "hypothesis")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            # As under nohup. Children would ignore it too, but a handler is not inherited.
            signal.signal(number, lambda number, frame: None)


def _must_run(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped, and a test here must run: {report.longrepr}"
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _must_run(report)
    # What a test has logged goes to another process, which a lone surrogate cannot.
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _must_run(report)
    return report


def wait(predicate: Callable[[], Any], seconds: float, pause: float = 0.02) -> Any:
    """The first true answer of ``predicate`` within that many seconds, else its last answer."""
    end = time.monotonic() + seconds
    while not (found := predicate()) and time.monotonic() < end:
        time.sleep(pause)
    return found


def survivors(mark: str) -> dict[int, str]:
    """Command lines of the other processes that were started under this mark, by their id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_over() -> Iterator[None]:
    real_home = Path.home()
    had_pi = (real_home / ".pi").exists()
    yield
    shutil.rmtree(SHORT_ROOT / "hypothesis", ignore_errors=True)
    wait(lambda: not survivors(MARK), 3)
    left = survivors(MARK)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    stray = sorted(map(str, SHORT_ROOT.iterdir())) if SHORT_ROOT.exists() else []
    shutil.rmtree(SHORT_ROOT, ignore_errors=True)
    assert not left, f"processes outlived the tests that started them: {left}"
    assert not stray, f"files were left behind: {stray}"
    assert had_pi or not (real_home / ".pi").exists(), "a test wrote into the real HOME"


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = _make_short("home-")
    for name in list(os.environ):
        if name.startswith(READ_BY_BRIDGES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    yield
    shutil.rmtree(home)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """An empty directory with a path so short that sockets fit below it (107 bytes)."""
    path = _make_short("")
    yield path
    # What a child that is just being killed still writes may come in between.
    wait(lambda: _removed(path), 5)


def _removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _make_short(prefix: str) -> Path:
    SHORT_ROOT.mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=SHORT_ROOT))


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``counts(default, full)``: how often a loop turns; the full count with ``--long``."""
    full_wanted = bool(request.config.getoption("--long"))
    return lambda default, full: full if full_wanted else default
