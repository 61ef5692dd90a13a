"""The examples for logrotate and cron, run for real while logs are written."""

import os
import pwd
import re
import subprocess
import time
from pathlib import Path

import pytest

from hermes_bridges.ctl import rotation_examples
from hermes_bridges.ctl.rotation_examples import EXAMPLES, USUAL, Place
from hermes_bridges.errors import BridgeError
from tests.conftest import ROOT, wait
from tests.ops import rotating
from tests.ops.conftest import NOBODY, Operator, drops, give
from tests.ops.debian import program
from tests.ops.rotating import is_packed, parts

# On one worker, so that no other one waits while a package is installed; that may take a while.
pytestmark = [pytest.mark.xdist_group("packages"), pytest.mark.timeout(400)]

SHIPPED = {
    "logrotate": "contrib/logrotate/hermes-bridges",
    "crontab": "contrib/cron/crontab",
    "cron.d": "contrib/cron/hermes-bridges",
}
SYSTEM_LOGS = "/var/log/hermes-bridges"
LINE = re.compile(r"((?:\S+ ){5})(.+)")


@pytest.fixture
def event_log(operator: Operator) -> Path:
    directory = operator.home / ".pi/coms/hermes-bridge"
    directory.mkdir(parents=True)
    give(operator.home)
    return directory / "log.ndjson"


@pytest.fixture
def system_logs(operator: Operator) -> Path:
    """What stands for the directory in /var/log: that of root, where the tests run as root."""
    directory = operator.home.parent / "l"
    directory.mkdir(mode=0o755)
    return directory


def example(operator: Operator, name: str, system_logs: Path) -> str:
    done = operator.run("hermes-bridges", "rotate-logs", "--example", name)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.replace(SYSTEM_LOGS, str(system_logs))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_that_are_shipped_are_those_of_the_command(name: str) -> None:
    assert (ROOT / SHIPPED[name]).read_text() == EXAMPLES[name](USUAL)
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "contrib").glob("*/*")}
    assert {one for one in shipped if "systemd" not in one and "completion" not in one} == set(
        SHIPPED.values()
    )
    assert max(map(len, EXAMPLES[name](USUAL).splitlines())) < 130


# logrotate


class Logrotate:
    """The example as a host would have it, with a state file of its own."""

    def __init__(self, operator: Operator, config: str, *, as_root: bool) -> None:
        place = operator.home.parent / ("r" if as_root else "u")
        place.mkdir(mode=0o755)
        self._config = place / "hermes-bridges"
        self._config.write_text(config)
        self._config.chmod(0o644)
        self._state = place / "state"
        if not as_root:
            give(place)
        self._who = {} if as_root else drops()
        self._program = program("logrotate", "logrotate")
        self._second = 0

    def __call__(self, *words: str) -> None:
        # It keeps no two rotations of one second apart.
        assert wait(lambda: int(time.time()) > self._second, 5)
        done = subprocess.run(
            [self._program, *words, "--state", self._state, self._config],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            timeout=60,
            **self._who,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        self._second = int(time.time())


@pytest.mark.parametrize("as_root", [True, False])
def test_KH38_logrotate_by_rename_loses_no_event(
    operator: Operator, event_log: Path, system_logs: Path, as_root: bool
) -> None:
    config = example(operator, "logrotate", system_logs)
    logrotate = Logrotate(operator, config, as_root=as_root)
    # Nothing is there yet, and that is no fault.
    logrotate()
    writer = rotating.events(operator, event_log)
    for _ in range(2):
        rotating.grown(event_log, 1000)
        logrotate("--force")
    written = writer.stop()
    assert rotating.qids(event_log) == [f"a-{number}" for number in range(written)]
    assert written > 30
    assert [is_packed(one) for one in parts(event_log)] == [True, False]
    for path in parts(event_log):
        found = path.stat()
        assert found.st_mode & 0o777 == 0o600
        assert found.st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())


def test_KH38_logrotate_by_copy_and_truncate_loses_the_last_moment_only(
    operator: Operator, event_log: Path, system_logs: Path
) -> None:
    log = system_logs / "coms.log"
    log.touch()
    give(log)
    config = example(operator, "logrotate", system_logs)
    logrotate = Logrotate(operator, config, as_root=True)
    writer = rotating.lines(operator, log)
    for _ in range(3):
        rotating.grown(log, 1000)
        logrotate("--force")
    written = writer.stop()
    assert written > 30 and [is_packed(one) for one in parts(log)] == [True, True, True]
    # Between its copy and its truncation lies about a millisecond, of the 10 between two lines; it
    # waits for the disk there, though.
    assert rotating.lost_between_the_files_only(log, written) < written // 2


def test_a_home_that_logrotate_has_to_have_quoted(operator: Operator, system_logs: Path) -> None:
    home = operator.home / "[a] 'ö' *"
    log = home / ".pi/coms/hermes-bridge/log.ndjson"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    give(operator.home)
    operator.environ["HOME"] = str(home)
    logrotate = Logrotate(operator, example(operator, "logrotate", system_logs), as_root=False)
    logrotate("--force")
    assert not log.exists() and rotating.whole(log) == [b"one"]


# cron


def jobs(text: str, *, with_user: bool) -> list[tuple[str | None, str]]:
    """The user and the command of each line, as cron reads them."""
    found = []
    for line in text.splitlines():
        if not line or line.startswith("#") or line == "SHELL=/bin/sh":
            continue
        match = LINE.fullmatch(line)
        assert match, line
        user, _, command = match[2].partition(" ") if with_user else ("", "", match[2])
        assert not re.search(r"(?<!\\)%", command)
        found.append((user or None, command.replace("\\%", "%")))
    return found


def as_cron(operator: Operator, command: str, *, as_root: bool = False) -> None:
    """Run a line as cron does; whatever it says would be mailed."""
    who = {} if as_root else drops()
    name = pwd.getpwuid(NOBODY if who else os.geteuid()).pw_name
    environ = {"HOME": str(operator.home), "LOGNAME": name, "SHELL": "/bin/sh"}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=operator.home,
        env=environ | {"PATH": "/usr/bin:/bin"},
        timeout=60,
        **who,
    )
    assert (done.returncode, done.stdout) == (0, "")


def accepted(crontab: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "crontab"
    path.write_text(crontab)
    command = [program("crontab", "cron"), "-n", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_cron_accepts_the_lines(operator: Operator, system_logs: Path, tmp_path: Path) -> None:
    own = example(operator, "crontab", system_logs)
    of_system = example(operator, "cron.d", system_logs)
    without_user = re.sub(r"^((?:\S+ ){5})(?:root|nobody|\w+) ", r"\1", of_system, flags=re.M)
    for text in (own, without_user, *(EXAMPLES[name](USUAL) for name in ("crontab", "cron.d"))):
        done = accepted(text, tmp_path)
        assert done.returncode == 0, done.stderr
    # It does look.
    assert accepted(own.replace("17 * *", "77 * *"), tmp_path).returncode != 0
    assert of_system != without_user and own.endswith("\n") and of_system.endswith("\n")


def test_KH38_the_crontab_of_a_user_keeps_the_logs_small(
    operator: Operator, event_log: Path, system_logs: Path
) -> None:
    errors = operator.home / ".local/state/hermes-bridges/coms.log"
    (event_job, errors_job) = jobs(example(operator, "crontab", system_logs), with_user=False)
    # Nothing is there yet, and that is no fault: cron would send mail.
    for _, command in (event_job, errors_job):
        as_cron(operator, command)
    errors.parent.mkdir(parents=True)
    give(operator.home)
    old = "2026-01-02T03:04:05.678Z"
    event_log.write_text(f'{{"at":"{old}","qid":"a-0","event":"delivered"}}\n')
    give(operator.home)
    event_log.chmod(0o600)
    writer = rotating.events(operator, event_log, "b")
    redirected = rotating.lines(operator, errors)
    for log, (_, command) in ((event_log, event_job), (errors, errors_job)):
        rotating.grown(log, 1000)
        as_cron(operator, command)
        rotating.grown(log, 1000)
        # It is a week old no more.
        as_cron(operator, command)
        assert len(parts(log)) == 1
    written, lines = writer.stop(), redirected.stop()
    assert rotating.qids(event_log) == ["a-0", *(f"b-{number}" for number in range(written))]
    assert rotating.lost_between_the_files_only(errors, lines) <= 1


def test_the_lines_of_the_system_rotate_as_the_users_that_they_name(
    operator: Operator, event_log: Path, system_logs: Path
) -> None:
    (event_job, errors_job) = jobs(example(operator, "cron.d", system_logs), with_user=True)
    assert event_job[0] == pwd.getpwuid(NOBODY if os.geteuid() == 0 else os.geteuid()).pw_name
    assert errors_job[0] == "root"
    errors = system_logs / "donut.log"
    for log in (event_log, errors):
        log.write_text("one\n" * 2_000_000)
    give(event_log)
    as_cron(operator, event_job[1])
    as_cron(operator, errors_job[1], as_root=True)
    for log in (event_log, errors):
        (part,) = parts(log)
        assert is_packed(part) and part.stat().st_size < 100_000
        assert rotating.whole(log) == [b"one"] * 2_000_000
    assert parts(event_log)[0].stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())


def test_a_path_that_cron_would_break_is_quoted() -> None:
    place = Place("a", "a", "/h", ("/opt/50% off & more/bin/hermes-bridges",))
    ((_, command), _) = jobs(EXAMPLES["crontab"](place), with_user=False)
    said = subprocess.check_output(["/bin/sh", "-c", f"printf '<%s>' {command}"], text=True)
    assert said == f"<{place.command[0]}><rotate-logs>"


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("logrotate", "/a\nb"),
        ("crontab", "/a\nb"),
        ("logrotate", '/a"b'),
        ("logrotate", "/a{b"),
        ("logrotate", "/a}"),
    ],
)
def test_a_path_that_cannot_be_told_to_them_is_refused(name: str, home: str) -> None:
    with pytest.raises(BridgeError, match="cannot"):
        rotation_examples.render(name, {"HOME": home})
    with pytest.raises(BridgeError, match="HOME"):
        rotation_examples.render(name, {})
