"""Logs rotated without logrotate: nothing that was written is lost, and nothing else is touched."""

import errno
import fcntl
import gzip
import json
import os
import re
import stat
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.eventlog import EventLog
from hermes_bridges.ctl import archive, main, rotation
from hermes_bridges.ctl.rotation import Log, Rules
from hermes_bridges.errors import BridgeError
from tests.conftest import ROOT
from tests.ops import rotating
from tests.ops.conftest import NOBODY, Operator, drops, give
from tests.ops.rotating import content, is_packed, parts, whole

FORCE = Rules(None, None, 100, force=True)
COPY = FORCE._replace(copytruncate=True)
BOTH_MODES = pytest.mark.parametrize("copytruncate", [False, True])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.ndjson"
    path.write_bytes(b"one\ntwo\n")
    return path


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Undone before the fixtures of every test, which need the real calls to tidy up."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)

    def turn(self, **more: float) -> None:
        self.now += timedelta(**more)

    def __call__(self) -> str:
        return self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rotate(path: Path, rules: Rules, clock: Clock | None = None) -> list[str]:
    """Rotate, and return what was told."""
    told: list[str] = []
    Log(str(path), rules, tell=told.append, **({"now_iso": clock} if clock else {})).rotate()
    return told


def listing(directory: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """All that is in a directory, with contents, modes and owners."""
    found = {}
    for path in directory.iterdir():
        facts = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
        found[path.name] = (data, facts.st_mode, facts.st_uid, facts.st_ino)
    return found


# When, and what becomes of it


@BOTH_MODES
def test_a_log_is_rotated_from_its_size_on(log: Path, copytruncate: bool) -> None:
    rules = Rules(9, None, 8, compress=False, copytruncate=copytruncate)
    before = listing(log.parent)
    assert "is not due" in rotate(log, rules, Clock())[-1]
    assert listing(log.parent) == before
    log.write_bytes(b"one\ntwo!\n")
    rotate(log, rules, Clock())
    (part,) = parts(log)
    assert part.name == "log.ndjson-20260102T030405.678Z"
    assert part.read_bytes() == b"one\ntwo!\n"
    assert log.exists() == copytruncate and not (copytruncate and log.read_bytes())


def test_an_empty_log_is_never_rotated_and_an_absent_one_is_no_fault(log: Path) -> None:
    log.write_bytes(b"")
    assert "is not due" in rotate(log, FORCE)[-1]
    log.unlink()
    assert "is not there" in rotate(log, FORCE)[-1]
    assert "is not there" in rotate(log.parent / "no directory" / "log", FORCE)[-1]
    assert list(log.parent.iterdir()) == []


@BOTH_MODES
def test_the_age_is_that_of_the_first_line(log: Path, copytruncate: bool) -> None:
    clock = Clock()
    events = EventLog(str(log), now_iso=clock)
    log.unlink()
    rules = Rules(None, 3600, 8, compress=False, copytruncate=copytruncate)
    for count in (1, 2):
        events.append("delivered", "first")
        clock.turn(minutes=59)
        events.append("delivered", "second")
        rotate(log, rules, clock)
        assert len(parts(log)) == count - 1
        clock.turn(minutes=1)
        rotate(log, rules, clock)
        assert len(parts(log)) == count
    events.close()


def test_without_a_time_in_the_first_line_the_age_is_that_of_the_last_rotation(log: Path) -> None:
    clock = Clock()
    rules = Rules(None, 3600, 8)
    # It cannot be told since when it is written: from now on it can.
    rotate(log, rules, clock)
    for later, count in ((0, 1), (59, 1), (1, 2)):
        clock.turn(minutes=later)
        log.write_bytes(b"more, 2001-01-01\n")
        rotate(log, rules, clock)
        assert len(parts(log)) == count


@pytest.mark.parametrize(
    "first", ["2999-01-01T00:00:00.000Z", "2026-99-99T99:99:99Z", "9999-12-31T23:59:59.999Z"]
)
def test_a_time_that_cannot_be_is_none(log: Path, first: str) -> None:
    log.write_text(first)
    rotate(log, Rules(None, 3600, 8), Clock())
    assert len(parts(log)) == 1


def test_a_clock_that_was_set_back_does_not_mix_up_the_order(log: Path) -> None:
    clock = Clock()
    for number in range(4):
        log.write_text(f"{number}\n")
        rotate(log, FORCE, clock)
        clock.turn(hours=-1)
    assert whole(log) == [b"0", b"1", b"2", b"3"]


def test_older_ones_than_those_to_keep_are_removed(log: Path) -> None:
    strangers = ["log.ndjson-old", "log.ndjson-20260102T030405.678Z.bak", "log.ndjsonx", "my.log-1"]
    strangers += ["log.ndjson-20269902T030405.678Z", "log.ndjson-99990102T030405.678Z"]
    for name in strangers:
        (log.parent / name).write_text("not ours")
    clock = Clock()
    for number in range(6):
        clock.turn(seconds=1)
        log.write_text(f"{number}\n")
        rotate(log, FORCE._replace(keep=3, compress=number != 4), clock)
    left = [one for one in parts(log) if one.name not in strangers]
    assert [content(one) for one in left] == [b"3\n", b"4\n", b"5\n"]
    assert all((log.parent / name).read_text() == "not ours" for name in strangers)


def test_what_is_older_is_removed_and_compressed_also_when_nothing_is_due(log: Path) -> None:
    clock = Clock()
    for _ in range(4):
        clock.turn(seconds=1)
        log.write_text("text\n")
        rotate(log, FORCE._replace(compress=False), clock)
    rotate(log, Rules(None, None, 2))
    assert all(map(is_packed, parts(log)))


def test_a_compressed_log_has_the_content_the_mode_the_owner_and_the_time(log: Path) -> None:
    data = os.urandom(3_000_000) + b"\n"
    log.write_bytes(data)
    log.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(log, NOBODY, NOBODY)
    os.utime(log, ns=(10**18, 10**18 + 5))
    before = log.stat()
    rotate(log, FORCE)
    (part,) = parts(log)
    assert is_packed(part) and gzip.decompress(part.read_bytes()) == data
    after = part.stat()
    same = ("st_mode", "st_uid", "st_gid", "st_mtime_ns")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


@BOTH_MODES
def test_mode_and_owner_are_kept(log: Path, copytruncate: bool) -> None:
    log.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(log, NOBODY, NOBODY)
    before = log.stat()
    rotate(log, FORCE._replace(copytruncate=copytruncate, compress=False))
    for path in [*parts(log), *([log] if copytruncate else [])]:
        after = path.stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (
            before.st_mode,
            before.st_uid,
            before.st_gid,
        )


def test_one_that_a_process_may_write_to_is_neither_compressed_nor_removed(log: Path) -> None:
    clock = Clock()
    with log.open("ab", buffering=0) as held:
        for number in range(3):
            rotate(log, FORCE._replace(keep=1), clock)
            held.write(b"late\n")
            log.write_text(f"{number}\n")
        oldest = parts(log)[0]
        assert not is_packed(oldest) and oldest.read_bytes() == b"one\ntwo\nlate\nlate\nlate\n"
        assert len(parts(log)) == 2
    rotate(log, Rules(None, None, 9), clock)
    assert all(map(is_packed, parts(log)))
    assert whole(log)[:5] == [b"one", b"two", b"late", b"late", b"late"]


def test_where_it_cannot_be_told_who_writes_the_newest_waits(
    log: Path, patch: pytest.MonkeyPatch
) -> None:
    def no_leases(fd: int, command: int, argument: int = 0) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    patch.setattr(fcntl, "fcntl", no_leases)
    for number in range(3):
        log.write_text(f"{number}\n")
        rotate(log, FORCE)
    assert [is_packed(one) for one in parts(log)] == [True, True, False]


def test_what_a_killed_run_has_left_is_cleared_away(log: Path) -> None:
    clock = Clock()
    rotate(log, FORCE._replace(compress=False), clock)
    (part,) = parts(log)
    log.write_bytes(b"three\n")
    for name in (f".{part.name}.gz.tmp", f".{log.name}.copy.tmp"):
        (log.parent / name).write_bytes(b"half")
    # It was killed between the last two steps: what is compressed is whole, and the rest goes on.
    (log.parent / f"{part.name}.gz").write_bytes(gzip.compress(part.read_bytes()))
    rotate(log, COPY, clock)
    assert whole(log) == [b"one", b"two", b"three"]
    assert all(map(is_packed, parts(log)))
    rotate(log, COPY._replace(compress=False), clock)
    log.write_bytes(b"x\n")
    rotate(log, COPY._replace(compress=False), clock)
    (log.parent / f".{parts(log)[-1].name}.gz.tmp").write_bytes(b"half")
    log.write_bytes(b"y\n")
    rotate(log, COPY._replace(compress=False, keep=1), clock)
    assert whole(log) == [b"y"]


# Beside a bridge that rotates by itself


def test_what_a_bridge_rotated_by_itself_is_kept(log: Path) -> None:
    log.unlink()
    events = EventLog(str(log), limit=1000)
    written = 0
    for _ in range(5):
        # Until its own rotation, and then half way to the next one, which would write over it.
        while not Path(f"{log}.1").exists() or log.stat().st_size < 500:
            events.append("delivered", f"{written}", {"to": "x" * 50})
            written += 1
        rotate(log, Rules(None, None, 100))
        assert not Path(f"{log}.1").exists()
    rotate(log, FORCE)
    events.close()
    assert rotating.qids(log) == [str(number) for number in range(written)]


def test_beside_another_log_the_neighbour_that_ends_in_1_is_its_own(log: Path) -> None:
    other = log.with_name("bridge")
    other.write_text("text\n")
    neighbour = log.with_name("bridge.1")
    neighbour.write_text("another bridge\n")
    rotate(other, FORCE)
    assert neighbour.read_text() == "another bridge\n"


@BOTH_MODES
def test_while_it_rotates_no_bridge_does(log: Path, copytruncate: bool) -> None:
    Path(f"{log}.1").write_bytes(b"zero\n")
    seen = []

    def tell(line: str) -> None:
        # Told in the middle of it.
        if ".1 is kept" in line:
            events = EventLog(str(log), limit=1)
            events.append("delivered", "meanwhile")
            events.close()
            seen.append(Path(f"{log}.1").exists())

    Log(str(log), FORCE._replace(copytruncate=copytruncate), tell=tell).rotate()
    assert seen == [False]
    assert whole(log)[:3] == [b"zero", b"one", b"two"] and b"meanwhile" in whole(log)[3]


def test_it_waits_for_another_one_and_looks_anew(log: Path) -> None:
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = threading.Event()

        def run() -> None:
            rotate(log, FORCE._replace(compress=False))
            ended.set()

        thread = threading.Thread(target=run, name="rotation", daemon=True)
        thread.start()
        assert not ended.wait(0.3) and parts(log) == []
        # The other one does it, as a bridge would, which has written nothing since.
        log.rename(f"{log}.1")
        log.touch()
    thread.join(10)
    assert [content(one) for one in parts(log)] == [b"one\ntwo\n"] and log.exists()


def test_it_does_not_wait_for_ever(log: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rotation, "_LOCK_SECONDS", 0.1)
    before = listing(log.parent)
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BridgeError, match="another process"):
            rotate(log, FORCE)
    assert listing(log.parent) == before


def test_a_writer_of_the_event_log_goes_on_in_a_new_file_of_its_own(log: Path) -> None:
    log.unlink()
    events = EventLog(str(log))
    events.append("delivered", "0")
    rotate(log, FORCE)
    assert not log.exists() and not is_packed(parts(log)[0])
    events.append("delivered", "1")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    # Now that the writer has noticed.
    rotate(log, Rules(None, None, 9))
    assert is_packed(parts(log)[0])
    events.close()
    assert rotating.qids(log) == ["0", "1"]


# Copied and emptied


def appended(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_what_is_written_during_the_copy_is_copied_too(
    log: Path, patch: pytest.MonkeyPatch, step: str
) -> None:
    real = getattr(os, step)
    once = [b"three\n"]

    def meanwhile(*arguments: Any, **more: Any) -> None:
        if once:
            appended(log, once.pop())
        real(*arguments, **more)

    patch.setattr(os, step, meanwhile)
    rotate(log, COPY._replace(compress=False))
    assert whole(log) == [b"one", b"two", b"three"] and log.read_bytes() == b""


def test_a_line_that_is_just_being_written_is_waited_for(
    log: Path, patch: pytest.MonkeyPatch
) -> None:
    """The mode can be set only once the write is over: here that is when the rest comes."""
    appended(log, b"thr")
    real = os.fchmod
    rest = [b"ee\n"]

    def settled(fd: int, mode: int) -> None:
        real(fd, mode)
        if rest and os.path.samestat(os.fstat(fd), log.stat()):
            appended(log, rest.pop())

    patch.setattr(os, "fchmod", settled)
    rotate(log, COPY._replace(compress=False))
    assert whole(log) == [b"one", b"two", b"three"]


def test_only_what_comes_in_the_last_moment_is_lost(log: Path, patch: pytest.MonkeyPatch) -> None:
    real = os.ftruncate

    def late(fd: int, size: int) -> None:
        appended(log, b"lost\n")
        real(fd, size)
        appended(log, b"after\n")

    patch.setattr(os, "ftruncate", late)
    rotate(log, COPY._replace(compress=False))
    assert whole(log) == [b"one", b"two", b"after"]


@pytest.mark.parametrize("step", ["fsync", "rename", "ftruncate"])
def test_a_fault_leaves_everything_as_it_was(
    log: Path, patch: pytest.MonkeyPatch, step: str
) -> None:
    before = listing(log.parent)

    def fault(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    patch.setattr(os, step, fault)
    with pytest.raises(OSError, match="Input/output"):
        rotate(log, COPY._replace(compress=False))
    assert listing(log.parent) == before


def test_a_writer_that_does_not_append_is_refused(log: Path) -> None:
    with log.open("r+b") as writes:
        writer = subprocess.Popen(["sleep", "60"], stderr=writes)
    try:
        before = listing(log.parent)
        with pytest.raises(BridgeError, match=f"process {writer.pid} does not append"):
            rotate(log, COPY)
        assert listing(log.parent) == before
    finally:
        writer.kill()
        writer.wait()


def test_readers_and_writers_that_append_are_no_reason_to_refuse(log: Path) -> None:
    with log.open("rb") as reads, log.open("ab") as appends:
        holder = subprocess.Popen(["sleep", "60"], stdin=reads, stderr=appends)
    try:
        rotate(log, COPY)
    finally:
        holder.kill()
        holder.wait()
    assert log.read_bytes() == b"" and whole(log) == [b"one", b"two"]


# What is refused


def refusals(directory: Path) -> dict[str, str]:
    """Things that are no logs, by name, with what is said of them."""
    (directory / "target").write_text("precious\n")
    (directory / "symlink").symlink_to("target")
    (directory / "dangling").symlink_to("nothing")
    os.mkfifo(directory / "fifo")
    (directory / "directory").mkdir()
    (directory / "hard").write_text("precious\n")
    os.link(directory / "hard", directory / "hard too")
    return {
        "symlink": "symbolic link",
        "dangling": "symbolic link",
        "fifo": "no regular file",
        "directory": "no regular file",
        "hard": "hard link",
    }


@BOTH_MODES
def test_links_fifos_and_directories_are_refused(tmp_path: Path, copytruncate: bool) -> None:
    for name, reason in refusals(tmp_path).items():
        before = listing(tmp_path)
        with pytest.raises(BridgeError, match=reason):
            rotate(tmp_path / name, FORCE._replace(copytruncate=copytruncate))
        assert listing(tmp_path) == before


def test_a_fifo_that_takes_the_place_of_a_log_at_the_last_moment_is_refused(
    log: Path, patch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def exchanged(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if path == log.name:
            log.unlink()
            os.mkfifo(log)
        return real(path, flags, *more, **named)

    patch.setattr(os, "open", exchanged)
    with pytest.raises(BridgeError, match="no regular file"):
        rotate(log, FORCE)
    assert stat.S_ISFIFO(log.stat().st_mode)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_links_in_the_place_of_rotated_ones_are_not_followed(log: Path, suffix: str) -> None:
    target = log.with_name("target")
    target.write_text("precious\n")
    part = log.with_name(f"{log.name}-20260102T030405.678Z{suffix}")
    part.symlink_to(target)
    with suppress(BridgeError):
        rotate(log, FORCE._replace(keep=1))
    with suppress(BridgeError):
        rotate(log, FORCE._replace(keep=1))
    assert target.read_text() == "precious\n" and target.stat().st_nlink == 1


def test_stamps() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 999_999, UTC)
    assert archive.next_stamp(now, None) == "20260102T030405.999Z"
    assert archive.next_stamp(now, "20260102T030405.999Z") == "20260102T030406.000Z"
    assert archive.next_stamp(now, "20260102T030405.998Z") == "20260102T030405.999Z"
    assert archive.age("2026-01-02T03:04:04.999999Z", now) == 1
    assert archive.is_rotated("a\n-20260102T030405.999Z.gz")
    assert not archive.is_rotated("-20260102T030405.999Z")


# The command


def base(operator: Operator) -> Path:
    path = operator.home / ".pi/coms/hermes-bridge"
    path.mkdir(parents=True, exist_ok=True)
    return path


def owned(operator: Operator, path: Path, data: bytes = b"one\ntwo\n") -> Path:
    path.write_bytes(data)
    give(operator.home)
    return path


def test_by_default_it_rotates_the_event_logs_and_says_nothing(operator: Operator) -> None:
    usual = owned(operator, base(operator) / "log.ndjson")
    elsewhere = operator.home / "q"
    elsewhere.mkdir()
    other = owned(operator, elsewhere / "log.ndjson")
    secret = owned(operator, elsewhere / "passwd")
    (base(operator) / "status").mkdir()
    for number, path in enumerate((other, secret, Path("log.ndjson"))):
        status = {"pid": 1, "counters": {}, "values": {"event_log": str(path)}}
        owned(operator, base(operator) / f"status/p.n{number}.json", json.dumps(status).encode())
    done = operator.run("hermes-bridges", "rotate-logs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(parts(usual)) == 1 and not usual.exists() and secret.exists()
    assert len(parts(other)) == 1
    assert operator.run("hermes-bridges", "rotate-logs").returncode == 0


def test_the_files_named_are_rotated_beside_the_event_log(operator: Operator) -> None:
    usual = owned(operator, base(operator) / "log.ndjson")
    err = owned(operator, operator.home / "err.log")
    command = ("hermes-bridges", "rotate-logs", "--force", "--copytruncate")
    assert operator.run(*command, "--only", "err.log").returncode == 0
    assert err.read_bytes() == b"" and len(parts(err)) == 1 and parts(usual) == []
    err.write_bytes(b"three\n")
    done = operator.run(*command, "-v", "err.log", *map(str, parts(err)))
    assert done.returncode == 0 and "was rotated already" in done.stdout
    assert len(parts(err)) == 2 and err.exists()
    # That one is always renamed.
    assert len(parts(usual)) == 1 and not usual.exists()


def test_what_cannot_be_rotated_is_told_and_the_others_are(operator: Operator) -> None:
    things = operator.home / "things"
    things.mkdir()
    reasons = refusals(things)
    last = owned(operator, operator.home / "last.log")
    names = [str(things / name) for name in reasons]
    done = operator.run(
        "hermes-bridges", "rotate-logs", "--only", "--force", *names, str(last), limit=20
    )
    assert (done.returncode, done.stdout) == (1, "")
    told = done.stderr.splitlines()
    assert len(told) == len(names)
    for line, name, reason in zip(told, names, reasons.values(), strict=True):
        assert line.startswith(f"hermes-bridges rotate-logs: {name}: ") and reason in line
    assert len(parts(last)) == 1


def test_a_directory_that_cannot_be_written_is_told(operator: Operator) -> None:
    closed = operator.home / "closed"
    closed.mkdir()
    log = owned(operator, closed / "err.log")
    closed.chmod(0o500)
    before = listing(closed)
    for mode in ((), ("--copytruncate",)):
        done = operator.run("hermes-bridges", "rotate-logs", "--only", "--force", *mode, str(log))
        assert done.returncode == 1 and "Permission denied" in done.stderr
        assert done.stderr.count("\n") == 1
    assert listing(closed) == before
    closed.chmod(0o700)


@pytest.mark.parametrize(
    "words",
    [
        ["--size", "5Q"],
        ["--size", "-1"],
        ["--size", ""],
        ["--age", "7"],
        ["--age", "d"],
        ["--keep", "0"],
        ["--keep", "10001"],
        ["--keep", "x"],
        ["--only"],
        ["--frobnicate"],
        ["--example", "systemd"],
        ["directory/"],
        [""],
    ],
)
def test_a_command_line_that_cannot_be_understood(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rotate-logs", *words], {"HOME": str(tmp_path)}) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("hermes-bridges rotate-logs: ")
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_the_event_log_cannot_be_found(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rotate-logs", str(log)], {}) == 2
    assert "HOME" in capsys.readouterr().err and log.exists()
    assert main(["rotate-logs", "--only", "--force", str(log)], {}) == 0
    assert len(parts(log)) == 1


@pytest.mark.parametrize(
    ("words", "due"),
    [
        (["--size", "8", "--age", "never"], True),
        (["--size", "9", "--age", "never"], False),
        (["--size", "1k", "--age", "1s"], True),
        (["--size", "never", "--age", "520w"], True),
        (["--size", "never", "--age", "never"], False),
    ],
)
def test_limits_of_the_command_line(log: Path, words: list[str], due: bool) -> None:
    assert main(["rotate-logs", "--only", "--no-gzip", *words, str(log)], {}) == 0
    assert [is_packed(one) for one in parts(log)] == [False] * due


def test_help_tells_every_option_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rotate-logs", "--help"], {}) == 0
    told = capsys.readouterr().out
    for option in ("--size", "--age", "--keep", "--no-gzip", "--copytruncate", "--only", "--force"):
        assert re.search(rf"^  {option}\b", told, re.MULTILINE)
    assert "Exit code" in told and max(map(len, told.splitlines())) <= 80


HOSTILE = [
    b"a b.log",
    b"two\nlines.log",
    b"-v.log",
    b"--force",
    b"star*[x]?.log",
    b"\xff\xfe.log",
    b"$(touch ran).log",
    b"tab\t'\"\\.log",
    "\N{RIGHT-TO-LEFT OVERRIDE}gol.log".encode(),
    b"\x1b[31m.log",
    b".hidden",
    b"log.ndjson-20260102T030405.678Z.log",
    b"x" * 220,
]


@BOTH_MODES
def test_hostile_names(operator: Operator, copytruncate: bool) -> None:
    place = os.fsencode(operator.home / "logs")
    os.mkdir(place)
    for name in HOSTILE:
        with open(os.path.join(place, name), "wb") as file:
            file.write(b"one\n")
    give(operator.home)
    mode = ["--copytruncate"] if copytruncate else []
    words = ["--only", "--force", "--verbose", *mode, "--"]
    done = subprocess.run(
        ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", os.fsdecode(place)]
        + operator.argv("hermes-bridges", "rotate-logs", *words)
        + [os.fsdecode(name) for name in HOSTILE],
        capture_output=True,
        env=operator.environ,
        timeout=60,
        **drops(),
    )
    assert done.returncode == 0 and done.stderr == b"" and b"\x1b" not in done.stdout
    # Three lines a log: rotated, and compressed; no name makes one of its own.
    assert done.stdout.count(b"\n") == 2 * len(HOSTILE)
    found = set(os.listdir(place))
    for name in HOSTILE:
        (part,) = [n for n in found if re.fullmatch(re.escape(name) + rb"-\d{8}T.{11}\.gz", n)]
        found.remove(part)
        with open(os.path.join(place, part), "rb") as file:
            assert gzip.decompress(file.read()) == b"one\n"
    assert found == (set(HOSTILE) if copytruncate else set())


@BOTH_MODES
def test_a_name_that_is_too_long_for_its_rotated_one_is_told(
    operator: Operator, copytruncate: bool
) -> None:
    log = owned(operator, operator.home / ("x" * 250))
    before = listing(operator.home)
    mode = ["--copytruncate"] if copytruncate else []
    done = operator.run("hermes-bridges", "rotate-logs", "--only", "--force", *mode, str(log))
    assert done.returncode == 1 and "File name too long" in done.stderr
    assert listing(operator.home) == before


# Full disks


def limited(operator: Operator, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where no file can grow beyond 8 blocks of 512 bytes."""
    script = 'ulimit -f 8; exec "$@"'
    return operator.run(
        "/bin/sh", "-c", script, "sh", *operator.argv("hermes-bridges", "rotate-logs", *words)
    )


def test_a_full_disk_leaves_everything_as_it_was(operator: Operator) -> None:
    data = os.urandom(20_000) + b"\n"
    log = owned(operator, operator.home / "err.log", data)
    before = listing(operator.home)
    done = limited(operator, "--only", "--force", "--copytruncate", str(log))
    assert done.returncode == 1 and "File too large" in done.stderr
    assert listing(operator.home) == before
    # A rename needs no room; compressing does, and is left to another time.
    done = limited(operator, "--only", "--force", str(log))
    assert done.returncode == 1 and "File too large" in done.stderr
    (part,) = parts(log)
    assert not is_packed(part) and part.read_bytes() == data and not log.exists()
    assert operator.run("hermes-bridges", "rotate-logs", "--only", str(log)).returncode == 0
    assert [content(one) for one in parts(log)] == [data]


def test_a_disk_that_fills_up_during_the_copy(log: Path, patch: pytest.MonkeyPatch) -> None:
    """What came during the copy does not fit any more."""
    real = os.write
    full: list[bool] = []

    def write(fd: int, data: Any) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    def rename(*arguments: Any, **more: Any) -> None:
        real_rename(*arguments, **more)
        appended(log, b"three\n")
        full.append(True)

    real_rename = os.rename
    patch.setattr(os, "write", write)
    patch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="No space"):
        rotate(log, COPY)
    assert log.read_bytes() == b"one\ntwo\nthree\n" and parts(log) == []


# While events flow


def test_KH38_two_that_rotate_by_rename_at_once_lose_no_event(operator: Operator) -> None:
    log = base(operator) / "log.ndjson"
    give(operator.home)
    writers = {mark: rotating.events(operator, log, mark) for mark in "ab"}
    command = ("hermes-bridges", "rotate-logs", "--force", "--keep", "10000")
    for _ in rotating.during(2.5):
        rotating.grown(log)
        runs = [operator.start(*command) for _ in range(2)]
        assert [run.wait(30) for run in runs] == [0, 0]
    written = {mark: writer.stop() for mark, writer in writers.items()}
    assert operator.run(*command).returncode == 0
    assert len(parts(log)) > 4 and all(map(is_packed, parts(log)))
    wanted = [f"{mark}-{n}" for mark, number in written.items() for n in range(number)]
    assert sorted(rotating.qids(log)) == sorted(wanted)
    assert all(written[mark] > 50 for mark in "ab")


def test_KH38_a_log_that_is_copied_and_emptied_loses_the_last_moment_only(
    operator: Operator,
) -> None:
    log = operator.home / "err.log"
    writer = rotating.lines(operator, log)
    command = ("hermes-bridges", "rotate-logs", "--only", "--force", "--keep", "10000")
    turns = 0
    for _ in rotating.during(2.5):
        rotating.grown(log)
        runs = [operator.start(*command, "--copytruncate", log) for _ in range(2)]
        assert [run.wait(30) for run in runs] == [0, 0]
        turns += 2
    written = writer.stop()
    assert written > 50 and len(parts(log)) > 4
    # The moment takes some microseconds, of the 10 ms between two lines.
    assert rotating.lost_between_the_files_only(log, written) <= turns // 5


def test_KH38_rotation_in_process_while_events_flow(log: Path) -> None:
    """Many more rotations, at any moment of a write."""
    log.unlink()
    events = EventLog(str(log))
    ended = threading.Event()
    told: list[str] = []

    def turn() -> None:
        rules = FORCE._replace(keep=10_000, compress=False)
        while not ended.is_set():
            told.extend(line for line in rotate(log, rules) if "rotated to" in line)

    thread = threading.Thread(target=turn, name="rotation", daemon=True)
    thread.start()
    number = 0
    while number < 2000 or (len(told) < 50 and number < 100_000):
        assert events.append("delivered", str(number))
        number += 1
    ended.set()
    thread.join(20)
    events.close()
    assert len(parts(log)) >= 50
    assert Counter(rotating.qids(log)) == Counter(map(str, range(number)))


def test_the_launcher_of_a_checkout(log: Path) -> None:
    done = subprocess.run(
        [ROOT / "bin/rotate-logs", "--only", "--force", log],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
        cwd="/",
    )
    assert done.returncode == 0 and done.stdout == "" and whole(log) == [b"one", b"two"]
