"""`hermes-bridges tail`: the lines of a log, whatever becomes of the file meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.eventlog import EventLog
from hermes_bridges.ctl.following import Follower
from hermes_bridges.ctl.logfile import LINE_MOST
from hermes_bridges.errors import BridgeError
from tests.conftest import wait
from tests.ops.asking import Ask, status_file
from tests.ops.conftest import Operator, give

CONTROLS = "\x1b]0;owned\x07\x9b31m\u202e\r"


@pytest.fixture
def log(short_tmp: Path) -> Path:
    return short_tmp / "log.ndjson"


def read(follower: Follower) -> list[str]:
    return [line.decode() for line in follower.lines()]


def add(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


# The lines that are there


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 10])
@pytest.mark.parametrize("end", ["", "\n"])
def test_it_begins_with_the_last_lines(log: Path, count: int, end: str) -> None:
    log.write_text(f"1\n2\n3{end}")
    follower = Follower(str(log), count)
    expected = ["1", "2", "3"][max(0, 3 - count) :] if count else []
    assert read(follower) == expected[: len(expected) - (not end)]
    assert [line.decode() for line in follower.close()] == expected[len(expected) - (not end) :]


def test_the_last_lines_of_a_long_log(log: Path) -> None:
    lines = [f"{number} {'x' * (number % 300)}" for number in range(5000)]
    add(log, *lines)
    for count in (1, 7, 800, 4999, 5000, 6000):
        assert read(Follower(str(log), count)) == lines[-count:]


def test_of_a_log_without_line_ends_only_so_much_is_looked_at(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_bridges.ctl.logfile._BACK_MOST", 100_000)
    log.write_bytes(b"x" * 1_000_000 + b"\nlast\n")
    assert read(Follower(str(log), 5)) == ["last"]


def test_an_endless_line_is_cut(log: Path) -> None:
    log.write_bytes(b"a\n" + b"x" * (3 * LINE_MOST) + b"\nb\n")
    lines = read(Follower(str(log), 10))
    assert [len(line) for line in lines] == [1, LINE_MOST, 1]
    log.write_bytes(b"x" * (3 * LINE_MOST))
    follower = Follower(str(log), 10)
    assert [len(line) for line in read(follower)] == [LINE_MOST] and follower.close() == []


def test_a_fifo_among_the_rotated_files_does_no_harm(log: Path) -> None:
    add(log, "1")
    os.mkfifo(log.with_name("log.ndjson.2"))
    log.with_name("log.ndjson.3").symlink_to("/nowhere")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    log.rename(log.with_name("log.ndjson.1"))
    add(log, "2")
    assert read(follower) == ["2"]


def test_a_directory_that_is_gone_may_come_back(log: Path, short_tmp: Path) -> None:
    path = short_tmp / "d" / "log.ndjson"
    follower = Follower(str(path), 10)
    path.parent.mkdir()
    add(path, "1")
    assert read(follower) == ["1"]
    shutil.rmtree(path.parent)
    assert read(follower) == []
    path.parent.mkdir()
    add(path, "2")
    assert read(follower) == ["2"]
    assert follower.close() == []


def test_a_line_comes_when_it_is_whole(log: Path) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    with log.open("a") as file:
        file.write("2 and ")
        file.flush()
        assert read(follower) == []
        file.write("more\n3")
    assert read(follower) == ["2 and more"]
    assert follower.close() == [b"3"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink"])
def test_what_is_no_regular_file_is_refused(log: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(log)
    elif kind == "directory":
        log.mkdir()
    else:
        log.symlink_to("/etc/hostname")
    with pytest.raises(BridgeError, match="no regular file"):
        Follower(str(log), 1)


# Rotation


def test_across_a_rotation_by_rename(log: Path) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    add(log, "2")
    writer = log.open("a")
    log.rename(log.with_name("log.ndjson.1"))
    assert read(follower) == ["2"]
    # Until there is a new file, the old one goes on.
    print("3", file=writer, flush=True)
    assert read(follower) == ["3"]
    add(log, "4")
    assert read(follower) == ["4"]
    # Whoever had it open may be a moment late.
    print("5", file=writer, flush=True)
    add(log, "6")
    assert read(follower) == ["5", "6"]
    writer.close()


@pytest.mark.parametrize("name", ["log.ndjson.1", "log.ndjson-20261130T120000Z"])
def test_what_came_and_went_between_two_looks_is_not_missed(log: Path, name: str) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    add(log, "2")
    log.rename(log.with_name("log.ndjson.2"))
    add(log, "3")
    log.rename(log.with_name(name))
    add(log, "4")
    assert read(follower) == ["2", "3", "4"]
    assert read(follower) == []


def test_older_rotated_files_are_left_alone(log: Path) -> None:
    for number in (1, 2):
        add(log.with_name(f"log.ndjson.{number}"), f"old {number}")
        os.utime(log.with_name(f"log.ndjson.{number}"), (1000, 1000))
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    log.rename(log.with_name("log.ndjson.0"))
    add(log, "2")
    assert read(follower) == ["2"]


@pytest.mark.parametrize("name", ["log.ndjson.1", "log.ndjson-20261130T120000Z"])
def test_across_a_rotation_by_copying_and_truncating(log: Path, name: str) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    # These are in the copy only.
    add(log, "2", "3")
    shutil.copy(log, log.with_name(name))
    os.truncate(log, 0)
    add(log, "4")
    assert read(follower) == ["2", "3", "4"]
    assert read(follower) == []


def test_a_truncated_file_that_is_longer_again_is_noticed(log: Path) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    os.truncate(log, 0)
    add(log, *"abcdef")
    assert read(follower) == [*"abcdef"]


def test_a_copy_of_something_else_is_not_read(log: Path) -> None:
    add(log, "1")
    add(log.with_name("log.ndjson.1"), "0", "not", "ours")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    os.truncate(log, 0)
    assert read(follower) == []
    add(log, "2")
    assert read(follower) == ["2"]


def test_a_file_that_was_deleted_and_made_anew(log: Path) -> None:
    add(log, "1")
    follower = Follower(str(log), 10)
    assert read(follower) == ["1"]
    log.unlink()
    assert read(follower) == []
    add(log, "2")
    assert read(follower) == ["2"]


def test_a_file_that_comes_later(log: Path) -> None:
    follower = Follower(str(log), 10)
    assert read(follower) == []
    add(log, "1")
    assert read(follower) == ["1"]


@pytest.mark.parametrize("way", ["rename", "copytruncate"])
def test_a_log_that_is_written_and_rotated_all_the_time(
    log: Path, way: str, counts: Callable[[int, int], int]
) -> None:
    total = counts(3000, 60_000)
    events = EventLog(str(log))
    events.append("delivered", "0")
    follower = Follower(str(log), 10)
    seen: list[int] = []
    paused, pause = threading.Lock(), threading.Event()

    def write() -> None:
        for number in range(1, total):
            with paused:
                events.append("delivered", f"{number}")

    def collect() -> None:
        seen.extend(int(json.loads(line)["qid"]) for line in follower.lines())

    writer = threading.Thread(target=write, name="writer", daemon=True)
    collect()
    writer.start()
    rotated = 0
    while writer.is_alive():
        if way == "rename":
            if log.exists():
                os.replace(log, log.with_name("log.ndjson.1"))
        else:
            # What falls between the two steps is lost to everybody: nothing may.
            with paused:
                shutil.copy(log, log.with_name("log.ndjson.1"))
                os.truncate(log, 0)
        rotated += 1
        collect()
        # A writer that has looked at the name and not written yet has its turn meanwhile.
        pause.wait(0.002)
    collect()
    collect()
    events.close()
    assert rotated > 2 and seen == list(range(total))


# What is printed


def record(qid: str = "Q1", **more: Any) -> str:
    whole = {"at": "2026-11-30T12:00:00.000Z", "qid": qid, "event": "delivered", **more}
    return json.dumps(whole)


def event_log(ask: Ask) -> Path:
    path = Path(ask.environ["HOME"]) / ".pi/coms/hermes-bridge/log.ndjson"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_events_are_shown_for_people_and_as_json(ask: Ask) -> None:
    add(event_log(ask), record(detail={"to": "telegram", "n": 1}), record("Q2", detail="x"))
    told = ask("tail", "coms", "--no-follow")
    assert (told.code, told.err) == (0, "")
    first, second = told.out.splitlines()
    assert first == "2026-11-30T12:00:00.000Z delivered         Q1 to=telegram n=1"
    assert second.endswith("Q2 x")
    (only,) = ask("tail", "coms", "--no-follow", "--json", "--qid", "Q2").out.splitlines()
    assert json.loads(only)["detail"] == "x"
    assert len(ask("tail", "coms", "--no-follow", "-n", "1").out.splitlines()) == 1


def test_lines_that_are_no_events(ask: Ask) -> None:
    log = ask.root / "stderr.log"
    log.write_bytes(b"\0\0\0coms-hermes-bridge: listening\n\n  \n[" + b"[" * 50_000 + b"\n5\n")
    add(log, json.dumps({"at": "T", "level": "error", "message": "no\nroom"}), '{"other": 1}')
    words = ("tail", "coms", "--file", str(log), "--no-follow", "-n", "100")
    lines = ask(*words).out.splitlines()
    assert lines[0] == "coms-hermes-bridge: listening" and lines[1].startswith("[[[")
    assert lines[2:] == ["5", "T error no room", '{"other": 1}']
    assert len([json.loads(line) for line in ask(*words, "--json").out.splitlines()]) == 5
    assert ask(*words, "--qid", "Q1").out == ""


def test_nothing_of_a_log_reaches_the_terminal_raw(ask: Ask) -> None:
    log = event_log(ask)
    hostile = record(CONTROLS, detail={CONTROLS: CONTROLS}, at=CONTROLS, event=CONTROLS)
    add(log, hostile, hostile.encode().decode("unicode_escape"), f"raw {CONTROLS}", '"\\ud800"')
    log.write_bytes(log.read_bytes() + b"\xff\x1b[2J\n")
    for words in ([], ["--json"]):
        out = ask("tail", "coms", "--no-follow", *words).out
        assert out and not [c for c in out if c != "\n" and not c.isprintable()]


def test_without_a_log(ask: Ask) -> None:
    told = ask("tail", "coms", "--no-follow")
    assert told.code == 1 and "there is no" in told.err and "log.ndjson" in told.err
    assert "--file" in ask("tail", "coms", HOME="").err
    told = ask("tail", "donut")
    assert told.code == 1 and "--file" in told.err


@pytest.mark.parametrize(
    "words",
    [[], ["coms", "-n", "x"], ["coms", "-n", "-1"], ["other"], ["coms", "--file", ""]],
)
def test_a_wrong_command_line(ask: Ask, words: list[str]) -> None:
    told = ask("tail", *words)
    assert told.code == 2 and "--help" in told.err


def test_the_log_of_a_bridge_with_a_questions_directory_elsewhere(ask: Ask) -> None:
    status = event_log(ask).parent / "status"
    other = ask.root / "elsewhere" / "log.ndjson"
    other.parent.mkdir()
    add(other, record("elsewhere"))
    values = {"project": "default", "name": "user-remote", "event_log": str(other)}
    status_file(status / "default.user-remote.json", values=values)
    assert "elsewhere" in ask("tail", "coms", "--no-follow").out
    add(event_log(ask), record("usual"))
    status_file(status / "default.second.json")
    told = ask("tail", "coms", "--no-follow")
    assert told.code == 1 and "second@default" in told.err and "--instance" in told.err
    assert "usual" in ask("tail", "coms", "--no-follow", "--instance", "second@default").out


def donut_unit(ask: Ask, *instances: str) -> None:
    blocks = (
        f"Id=hermes-donut-bridge@{name}.service\nLoadState=loaded\nActiveState=failed\n"
        for name in instances
    )
    (ask.bin / "units").write_text("\n".join(blocks))
    ask.systemctl(f'[ "$1" = --user ] && cat {ask.bin}/units')


def test_of_the_donut_bridge_the_journal_is_shown(ask: Ask) -> None:
    donut_unit(ask, "bot1")
    ask.systemctl(r'echo "$@"; printf "a\033[2Jb\nno end"', "journalctl")
    told = ask("tail", "donut", "-n", "3", "--no-follow")
    first, second, third = told.out.splitlines()
    assert "--user" in first and "--lines=3" in first and "--follow" not in first
    assert first.endswith("--unit=hermes-donut-bridge@bot1.service")
    assert (second, third, told.code) == ("a\\x1b[2Jb", "no end", 0)
    donut_unit(ask, "bot1", "bot2")
    assert "bot1, bot2" in ask("tail", "donut").err
    assert "bot2.service" in ask("tail", "donut", "--instance", "bot2").out
    (ask.bin / "journalctl").unlink()
    ask.systemctl(f"/bin/cat {ask.bin}/units")
    told = ask("tail", "donut", "--instance", "bot2", PATH=str(ask.bin))
    assert told.code == 1 and "journalctl could not be started" in told.err


# While it follows


@pytest.fixture
def tailing(ask: Ask) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    add(event_log(ask), record("before"))
    child = ask.start("tail", "coms", stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and "before" in child.stdout.readline()
    yield event_log(ask), child
    child.kill()
    child.communicate()


def said(child: "subprocess.Popen[str]") -> str:
    assert child.stderr is not None
    return child.stderr.read()


def test_it_follows_and_ends_quietly_on_ctrl_c(
    tailing: tuple[Path, "subprocess.Popen[str]"],
) -> None:
    log, child = tailing
    assert child.stdout is not None
    add(log, record("one"))
    assert "one" in child.stdout.readline()
    log.rename(log.with_name("log.ndjson.1"))
    add(log, record("two"))
    assert "two" in child.stdout.readline()
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(5) == 130 and said(child) == ""


@pytest.mark.parametrize("writing", [True, False])
def test_it_ends_quietly_when_nobody_reads(
    tailing: tuple[Path, "subprocess.Popen[str]"], writing: bool
) -> None:
    log, child = tailing
    assert child.stdout is not None
    child.stdout.close()
    child.stdout = None
    begun = time.monotonic()
    while writing and child.poll() is None and time.monotonic() - begun < 5:
        add(log, record("more"))
    assert child.wait(5) == 141 and said(child) == ""


def test_it_waits_for_a_log_that_is_not_there_yet(ask: Ask) -> None:
    child = ask.start("tail", "coms", stdout=subprocess.PIPE)
    try:
        assert child.stderr is not None and "waiting for" in child.stderr.readline()
        add(event_log(ask), record("at last"))
        assert child.stdout is not None and "at last" in child.stdout.readline()
    finally:
        child.kill()
        child.communicate()


def test_the_journal_is_left_when_nobody_reads(ask: Ask) -> None:
    donut_unit(ask, "b")
    ask.systemctl("echo $$; exec sleep 100", "journalctl")
    child = ask.start("tail", "donut", stdout=subprocess.PIPE)
    assert child.stdout is not None
    journal = int(child.stdout.readline())
    child.stdout.close()
    child.stdout = None
    assert child.wait(5) == 141 and said(child) == ""
    assert wait(lambda: not os.path.exists(f"/proc/{journal}"), 5)
    child.communicate()


def test_the_installed_command_follows(operator: Operator) -> None:
    log = operator.home / ".pi/coms/hermes-bridge/log.ndjson"
    log.parent.mkdir(parents=True)
    add(log, record("before"))
    give(operator.home)
    child = operator.start("hermes-bridges", "tail", "coms", stdout=subprocess.PIPE)
    assert child.stdout is not None and b"before" in child.stdout.readline()
    add(log, record("after"))
    assert b"after" in child.stdout.readline()
