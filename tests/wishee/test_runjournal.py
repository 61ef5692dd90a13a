import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.recordfile import Sealed
from hermes_bridges.wishee.runjournal import RUNS_MAX, RunJournal, process_of
from tests.conftest import ROOT

DEAD = "99999999-1"  # no process can have such a number


@pytest.fixture
def path(short_tmp) -> Path:
    return short_tmp / "runs.json"


@contextmanager
def journal(path: Path, **options) -> Iterator[RunJournal]:
    disk = Disk()
    made = RunJournal(str(path), disk, **options)
    made.load()
    try:
        yield made
    finally:
        assert disk.stop(10)


def start(runs: RunJournal, run_id: str) -> None:
    runs.started(run_id, "agent:main:main", "agent:main:wishee:dm:agent:main:main", 1.5e9).result(5)


def left(path: Path) -> list[str]:
    with journal(path) as runs:
        return [run.run_id for run in runs.left_behind()]


def test_W3_a_dead_processes_runs_are_left_behind_in_order(path):
    with journal(path, process=DEAD) as runs:
        for number in range(5):
            start(runs, f"run-{number}")
        assert runs.ended("run-1")
        assert not runs.ended("run-1")
        assert runs.left_behind() == [], "they are its own"
    with journal(path) as runs:
        found = runs.left_behind()
        assert [run.run_id for run in found] == ["run-0", "run-2", "run-3", "run-4"]
        assert found[0][1:4] == (
            "agent:main:main",
            "agent:main:wishee:dm:agent:main:main",
            1.5e9,
        )
        # Each is forgotten once its result is kept elsewhere.
        runs.ended("run-0")
        start(runs, "run-9")
    assert left(path) == ["run-2", "run-3", "run-4"], "our own one goes on"


def test_the_runs_of_a_process_that_lives_are_not_left_behind(path):
    with subprocess.Popen(["sleep", "60"]) as other:
        with journal(path, process=process_of(other.pid)) as runs:
            start(runs, "run-1")
        assert left(path) == []
        other.kill()
        # Not waited for: it is a zombie now, and dead all the same.
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert left(path) == ["run-1"]
    assert left(path) == ["run-1"]
    assert process_of(os.getpid()).startswith(f"{os.getpid()}-")
    assert process_of(1 << 30) == ""


def test_the_file_is_private_and_has_a_version(path):
    with journal(path) as runs:
        runs.belong_to("u-1")
        start(runs, "run-1")
    found = json.loads(path.read_bytes())
    assert (found["v"], found["user"]) == (1, "u-1")
    assert set(found["runs"][0]) == {"runId", "sessionKey", "storedKey", "startedAt", "process"}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_W25_the_user_is_remembered_and_another_one_takes_over_nothing(path):
    with journal(path, process=DEAD) as runs:
        start(runs, "before the first welcome")
        assert runs.belong_to("u-1") == 0
        start(runs, "run-1")
    with journal(path, process=DEAD) as runs:
        assert runs.user == "u-1"
        assert runs.belong_to("u-1") == 0
        assert len(runs) == 2
        assert runs.belong_to("u-2") == 2
        assert runs.dropped == 2
        assert len(runs) == 0
    with journal(path) as runs:
        assert (runs.user, runs.left_behind()) == ("u-2", [])


def test_the_number_of_runs_is_bounded(path):
    with journal(path, process=DEAD) as runs:
        for number in range(RUNS_MAX + 3):
            last = runs.started(f"run-{number}", "k", "k", 1.0)
        last.result(5)
        assert (len(runs), runs.dropped) == (RUNS_MAX, 3)
    assert left(path)[0] == "run-3"


# --- damage

RUN = {"runId": "r", "sessionKey": "k", "storedKey": "s", "startedAt": 1.5, "process": DEAD}


def content(**changes) -> bytes:
    return json.dumps({"v": 1, "user": "u", "runs": [RUN], **changes}).encode()


BAD = {
    "empty": b"",
    "NUL": b"\0" * 4096,
    "cut": content()[:-5],
    "list": b"[]",
    "no version": b'{"user":"u","runs":[]}',
    "odd version": content(v="1"),
    "odd user": content(user=None),
    "odd runs": content(runs={"r": RUN}),
    "odd run": content(runs=[RUN, 5]),
    "no key": content(runs=[{"runId": "r"}]),
    "odd time": content(runs=[{**RUN, "startedAt": "1"}]),
    "odd id": content(runs=[{**RUN, "runId": 1}]),
    "deep": b"[" * 50_000,
    "huge": b" " * (5 * 1024 * 1024),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_KH14_a_damaged_file_is_moved_aside_wishee(bad, path, caplog):
    path.write_bytes(bad)
    with journal(path, process=DEAD) as runs:
        assert len(runs) == 0
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        start(runs, "run-1")
    assert left(path) == ["run-1"]
    assert (path.parent / "runs.json.bad-1").read_bytes() == bad


def test_a_newer_version_is_left_alone_and_said_once(path, caplog):
    path.write_bytes(before := content(v=2))
    with journal(path) as runs:
        for number in range(3):
            future = runs.started(f"run-{number}", "k", "s", 1.0)
            assert isinstance(future.exception(5), Sealed)
        assert len(runs) == 3
        assert runs.belong_to("u-2") == 0
    assert path.read_bytes() == before
    assert caplog.text.count("newer version") == 1


def test_what_is_no_file_of_ours_is_left_alone(path, caplog):
    os.mkfifo(path)
    with journal(path) as runs:
        assert runs.started("run-1", "k", "s", 1.0).exception(5)
    assert stat.S_ISFIFO(os.stat(path).st_mode)
    assert "cannot be used: not regular" in caplog.text


def test_a_full_disk_stops_nobody(path, monkeypatch, caplog):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    with journal(path, process=DEAD) as runs:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for number in range(3):
                future = runs.started(f"run-{number}", "k", "s", 1.0)
                assert isinstance(future.exception(5), OSError)
        assert caplog.text.count("cannot be written") == 1
        start(runs, "run-3")
    assert left(path) == [f"run-{n}" for n in range(4)]
    assert os.listdir(path.parent) == ["runs.json"]


def test_a_slow_fsync_never_blocks_who_starts_a_run(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: time.sleep(0.2))
    with journal(path) as runs:
        longest = 0.0
        for number in range(100):
            begin = time.monotonic()
            last = runs.started(f"run-{number}", "k", "s", 1.0)
            runs.ended(f"run-{number - 10}")
            runs.left_behind()
            longest = max(longest, time.monotonic() - begin)
        begin = time.monotonic()
        last.result(10)
        assert longest < 0.05
        assert time.monotonic() - begin < 2, "those that wait share a write"


# --- kills

RUNNING = """
import sys
from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.runjournal import RunJournal
first, path = int(sys.argv[1]), sys.argv[2]
runs = RunJournal(path, Disk())
runs.load()
print("ready", flush=True)
for number in range(first, first + 100_000):
    runs.started(f"run-{number}", "k", "s", 1.0).result()
    print(number, flush=True)
    if number % 4:
        runs.ended(f"run-{number}")
"""


def test_W3_a_kill_at_any_moment_leaves_every_run_that_was_noted(path, counts):
    source = random.Random(3)
    first = 1
    for _ in range(counts(12, 100)):
        child = subprocess.Popen(
            [sys.executable, "-c", RUNNING, str(first), str(path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(source.uniform(0, 0.08))
            child.send_signal(signal.SIGKILL)
            noted = [int(line) for line in child.stdout.read().split(b"\n")[:-1]]
        found = {int(run_id.removeprefix("run-")) for run_id in left(path)}
        assert {number for number in noted if number % 4 == 0} <= found
        assert not [name for name in os.listdir(path.parent) if ".bad" in name]
        first = max([first, *noted]) + 2
        path.unlink(missing_ok=True)
