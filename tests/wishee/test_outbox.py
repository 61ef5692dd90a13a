import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.outbox import AGE_MAX, ENTRIES_MAX, Outbox
from hermes_bridges.wishee.recordfile import Sealed
from tests.conftest import ROOT, wait

USER = "u-1"


class Wall:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(short_tmp) -> Path:
    return short_tmp / "outbox.jsonl"


@contextmanager
def box(path: Path, **options) -> Iterator[Outbox]:
    """An outbox that has read its file; what it was asked to write is written in the end."""
    disk = Disk()
    made = Outbox(str(path), disk, **options)
    made.load()
    try:
        yield made
    finally:
        assert disk.stop(10)


def add(outbox: Outbox, key: str, text: str = "hello", user: str = USER) -> None:
    outbox.add(key, "task-result", result(key, text), user).result(5)


def result(key: str, text: str) -> dict:
    return {"runId": key, "sessionKey": "k", "text": text}


def keys(outbox: Outbox) -> list[str]:
    return [entry.key for entry in outbox.pending()]


def reread(path: Path, **options) -> list[str]:
    with box(path, **options) as outbox:
        return keys(outbox)


def test_what_was_added_is_there_after_a_restart_in_order(path):
    texts = {
        f"run-{n}": f"text {n} \u4f60\u597d \u2028\u2029\x85 \ud83d \U0001f600\n" for n in range(20)
    }
    with box(path, wall=Wall()) as outbox:
        for key, text in texts.items():
            add(outbox, key, text)
    with box(path, wall=Wall()) as outbox:
        found = outbox.pending()
        assert [entry.key for entry in found] == list(texts)
        assert [entry.payload for entry in found] == [result(k, t) for k, t in texts.items()]
        assert {(entry.name, entry.user, entry.at) for entry in found} == {
            ("task-result", USER, 1_800_000_000.0)
        }
        assert len(outbox) == 20
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert all(json.loads(line)["v"] == 1 for line in path.read_bytes().splitlines())


def test_what_was_removed_is_gone_after_a_restart(path):
    with box(path) as outbox:
        for number in range(10):
            add(outbox, f"run-{number}")
        for number in (0, 3, 9):
            assert outbox.remove(f"run-{number}")
            assert not outbox.remove(f"run-{number}")
        left = keys(outbox)
    assert left == reread(path) == [f"run-{n}" for n in (1, 2, 4, 5, 6, 7, 8)]


def test_the_same_key_again_replaces(path):
    with box(path) as outbox:
        add(outbox, "a", "old")
        add(outbox, "b")
        add(outbox, "a", "new")
        assert keys(outbox) == ["b", "a"]
    with box(path) as outbox:
        assert keys(outbox) == ["b", "a"]
        assert outbox.pending()[1].payload["text"] == "new"


def test_it_is_on_the_disk_when_the_future_says_so(path):
    with box(path) as outbox:
        for number in range(20):
            add(outbox, f"run-{number}")
            assert path.read_bytes().count(b"\n") == number + 1


def test_the_file_does_not_grow_with_what_is_settled(path):
    with box(path) as outbox:
        add(outbox, "stays")
        for number in range(2_000):
            outbox.add(f"run-{number}", "task-result", result("x", "y" * 500), USER)
            outbox.remove(f"run-{number}")
            if number % 100 == 0:
                add(outbox, "now and then")
        add(outbox, "last")
        size = os.stat(path).st_size
    assert size < 200_000
    assert reread(path) == ["stays", "now and then", "last"]


# --- bounds


def test_at_most_1000_the_oldest_goes_and_is_counted(path):
    with box(path) as outbox:
        for number in range(ENTRIES_MAX + 5):
            last = outbox.add(f"run-{number}", "task-result", result("x", "y"), USER)
        last.result(10)
        assert keys(outbox) == [f"run-{n}" for n in range(5, ENTRIES_MAX + 5)]
        assert outbox.dropped == {"full": 5, "old": 0, "user": 0}
    assert len(reread(path)) == ENTRIES_MAX


def test_at_most_32_MiB_and_the_newest_always_fits(path):
    with box(path) as outbox:
        for number in range(9):
            outbox.add(f"run-{number}", "task-result", result("x", "y" * 5_000_000), USER)
        assert keys(outbox) == [f"run-{n}" for n in range(3, 9)]
        outbox.add("huge", "task-result", result("x", "y" * 40_000_000), USER)
        assert keys(outbox) == ["huge"]
        assert outbox.dropped["full"] == 9


def test_after_seven_days_it_is_given_up(path):
    wall = Wall()
    with box(path, wall=wall) as outbox:
        add(outbox, "old")
        wall.now += AGE_MAX - 1
        add(outbox, "new")
        assert keys(outbox) == ["old", "new"]
        wall.now += 2
        assert keys(outbox) == ["new"]
        assert outbox.dropped["old"] == 1
    assert reread(path, wall=wall) == ["new"]
    wall.now += AGE_MAX
    assert reread(path, wall=wall) == []


def test_what_is_another_users_is_dropped_and_counted(path):
    with box(path) as outbox:
        add(outbox, "a")
        add(outbox, "b", user="u-2")
        add(outbox, "c")
        assert outbox.keep_only("u-2") == 2
        assert keys(outbox) == ["b"]
        assert outbox.dropped["user"] == 2
        assert outbox.keep_only("u-2") == 0
    assert reread(path) == ["b"]


# --- damage


def line(key: str) -> bytes:
    record = {"v": 1, "key": key, "event": "task-result", "payload": {}, "user": "u", "at": 2e9}
    return json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize("rest", [b'{"v":1,"key":"x', '{"k":"中'.encode()[:-1], line("c")[:-1]])
def test_KH17_a_torn_last_line_takes_no_other_with_it_wishee(rest, path, caplog):
    path.write_bytes(line("a") + line("b") + rest)
    whole = rest == line("c")[:-1]
    with box(path) as outbox:
        assert keys(outbox) == ["a", "b"] + ["c"] * whole
        assert ("unfinished" in caplog.text) != whole
        add(outbox, "d")
    assert reread(path) == ["a", "b"] + ["c"] * whole + ["d"]
    assert "unreadable" not in caplog.text
    assert len(list(path.parent.iterdir())) == 1


BAD_LINES = {
    "NUL": b"\0" * 4096,
    "no JSON": b"hello",
    "a list": b"[]",
    "a number": b"5",
    "no version": b'{"key":"x"}',
    "odd version": b'{"v":"2"}',
    "no payload": b'{"v":1,"key":"x","event":"e","user":"u","at":1}',
    "odd payload": b'{"v":1,"key":"x","event":"e","payload":[],"user":"u","at":1}',
    "odd key": b'{"v":1,"key":5,"event":"e","payload":{},"user":"u","at":1}',
    "odd time": b'{"v":1,"key":"x","event":"e","payload":{},"user":"u","at":"1"}',
    "odd done": b'{"v":1,"done":[]}',
    "deep": b"[" * 50_000,
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
def test_KH17_a_bad_line_in_the_middle_is_kept_aside_wishee(bad, path, caplog):
    content = line("a") + bad + b"\n" + line("b")
    path.write_bytes(content)
    assert reread(path) == ["a", "b"]
    assert "line 2 of" in caplog.text
    assert "is damaged" in caplog.text
    assert (path.parent / "outbox.jsonl.bad-1").read_bytes() == content
    # The good ones are on the disk again, before anything else happens.
    caplog.clear()
    assert reread(path) == ["a", "b"]
    assert not caplog.text


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\0" * 4096, b"[]"], ids=repr)
def test_KH14_a_file_without_a_record_wishee(content, path):
    path.write_bytes(content)
    with box(path) as outbox:
        assert keys(outbox) == []
        add(outbox, "a")
    assert reread(path) == ["a"]


def test_a_newer_version_is_left_alone_and_said_once(path, caplog):
    content = line("a") + b'{"v":2,"what":"ever"}\n'
    path.write_bytes(content)
    with box(path) as outbox:
        assert keys(outbox) == []
        for number in range(3):
            future = outbox.add(f"run-{number}", "task-result", {}, USER)
            assert isinstance(future.exception(5), Sealed)
        outbox.remove("run-1")
        assert keys(outbox) == ["run-0", "run-2"], "in memory it works"
    assert path.read_bytes() == content
    assert caplog.text.count("newer version") == 1


def test_a_huge_file_is_moved_aside(path, caplog):
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    with box(path) as outbox:
        assert keys(outbox) == []
        add(outbox, "a")
    assert reread(path) == ["a"]
    assert (path.parent / "outbox.jsonl.bad-1").exists()


def test_what_is_no_file_of_ours_is_left_alone(path, caplog):
    other = path.parent / "other"
    other.write_bytes(line("a"))
    os.symlink(other, path)
    with box(path) as outbox:
        assert keys(outbox) == []
        assert outbox.add("b", "task-result", {}, USER).exception(5)
        assert keys(outbox) == ["b"]
    assert path.is_symlink()
    assert other.read_bytes() == line("a")
    assert "cannot be used: symlink" in caplog.text


def test_a_file_that_vanishes_is_written_anew(path):
    with box(path) as outbox:
        add(outbox, "a")
        add(outbox, "b")
        os.unlink(path)
        add(outbox, "c")
        assert path.read_bytes().count(b"\n") == 3
        os.truncate(path, 5)
        add(outbox, "d")
    assert reread(path) == ["a", "b", "c", "d"]


# --- a disk that is full, or slow


def test_KH17_a_full_disk_loses_nothing_and_stops_nobody_wishee(path, monkeypatch, caplog):
    really_write = os.write
    room = [10_000]

    def limited(fd, data):
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        written = really_write(fd, bytes(data[: room[0]]))
        room[0] -= written
        return written

    with box(path) as outbox:
        monkeypatch.setattr(os, "write", limited)
        failed = 0
        for number in range(40):
            future = outbox.add(f"run-{number}", "task-result", result("x", "y" * 500), USER)
            failed += isinstance(future.exception(5), OSError)
        assert failed > 5
        assert caplog.text.count("cannot be written") == 1
        assert len(outbox) == 40
        # Nothing half remains, so that a start would be fine.
        assert all(json.loads(line) for line in path.read_bytes().splitlines())
        room[0] = 1 << 30
        add(outbox, "after")
    assert reread(path) == [f"run-{n}" for n in range(40)] + ["after"]


def test_what_a_full_disk_did_not_take_is_tried_again_at_the_next_welcome(path, monkeypatch):
    with box(path) as outbox:
        with monkeypatch.context() as patch:

            def full(fd, data):
                raise OSError(28, "No space left on device")

            patch.setattr(os, "write", full)
            assert outbox.add("a", "task-result", {}, USER).exception(5)
        assert keys(outbox) == ["a"]
        assert wait(lambda: path.exists() and path.read_bytes(), 5)
    assert reread(path) == ["a"]


def test_a_slow_fsync_never_blocks_who_adds_and_is_shared(path, monkeypatch):
    syncs = []

    def slow(fd):
        time.sleep(0.2)
        syncs.append(fd)

    monkeypatch.setattr(os, "fsync", slow)
    with box(path) as outbox:
        longest, futures = 0.0, []
        for number in range(200):
            start = time.monotonic()
            futures.append(outbox.add(f"run-{number}", "task-result", result("x", "y"), USER))
            outbox.remove(f"run-{number - 50}")
            outbox.pending()
            longest = max(longest, time.monotonic() - start)
        for future in futures:
            future.result(10)
        assert longest < 0.05
        assert len(syncs) <= 6, "those that wait share one"


def test_a_hanging_disk_does_not_fill_the_memory(path):
    disk = Disk()
    outbox = Outbox(str(path), disk)
    go = threading.Event()
    disk.submit(go.wait)
    tracemalloc.start()
    try:
        for number in range(30):
            outbox.add(f"run-{number}", "task-result", result("x", "y" * 5_000_000), USER)
            outbox.remove(f"run-{number}")
        assert len(outbox) == 0
        assert tracemalloc.get_traced_memory()[0] < 50_000_000
        outbox.add("last", "task-result", {}, USER)
    finally:
        tracemalloc.stop()
        go.set()
        assert disk.stop(10)
    assert reread(path) == ["last"]
    assert os.stat(path).st_size < 1_000_000


# --- kills

ADDING = """
import sys
from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.outbox import Outbox
first, path = int(sys.argv[1]), sys.argv[2]
outbox = Outbox(path, Disk())
outbox.load()
print("ready", flush=True)
for number in range(first, first + 100_000):
    outbox.add(f"run-{number}", "task-result", {"text": "x" * (number % 3000)}, "u").result()
    print(number, flush=True)
    if number % 3:
        outbox.remove(f"run-{number}")
        print(-number, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_promised(path, counts):
    source = random.Random(7)
    promised: set[int] = set()
    started = 0
    for _ in range(counts(12, 100)):
        child = subprocess.Popen(
            [sys.executable, "-c", ADDING, str(started), str(path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(source.uniform(0, 0.08))
            child.send_signal(signal.SIGKILL)
            told = [int(line) for line in child.stdout.read().split(b"\n")[:-1]]
        promised |= {number for number in told if number >= 0}
        promised -= {-number for number in told if number < 0}
        started = max([started, *told]) + 2
        found = {int(key.removeprefix("run-")) for key in reread(path)}
        # One that was removed may come back: it is sent twice. None that was promised may go.
        assert promised <= found, promised - found
        assert not [n for n in os.listdir(path.parent) if ".bad" in n]
        promised = found if len(found) < 900 else set()
        if not promised:
            path.unlink()
