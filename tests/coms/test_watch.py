"""The directory watch, on real directories: with inotify, without it, and between the two."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms.watch import LOOK, RECHECK, DirectoryWatch


class Turned:
    """A watch with a clock that the test turns."""

    def __init__(self, path: Path, *, inotify: bool = True) -> None:
        self.now = 1000.0
        self.watch = DirectoryWatch(str(path), clock=lambda: self.now, inotify=inotify)

    def changed(self, after: float = 0.0) -> bool:
        self.now += after
        return self.watch.changed(self.now)

    def readable(self, limit: float = 0.0) -> bool:
        fd = self.watch.fileno()
        assert fd is not None
        return bool(select.select([fd], [], [], limit)[0])


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions"
    path.mkdir()
    return path


@pytest.fixture
def watched(questions: Path) -> Iterator[Turned]:
    turned = Turned(questions)
    yield turned
    turned.watch.close()


@pytest.fixture
def looked(questions: Path) -> Iterator[Turned]:
    turned = Turned(questions, inotify=False)
    yield turned
    turned.watch.close()


def rename_in(directory: Path, name: str = "a.answer.json") -> Path:
    temp = directory / f".{name}.tmp"
    temp.write_text("{}")
    return temp.rename(directory / name)


def test_the_first_call_reports_and_then_it_is_quiet(watched: Turned) -> None:
    assert watched.watch.due(watched.now) is None
    assert watched.changed()
    assert not watched.readable()
    assert not watched.changed()
    assert not watched.changed(after=10 * RECHECK)


@pytest.mark.parametrize("how", ["written", "renamed", "linked", "symlink", "fifo", "directory"])
def test_whatever_arrives_is_seen_at_once(
    watched: Turned, questions: Path, tmp_path: Path, how: str
) -> None:
    source, target = tmp_path / "source", questions / "a.answer.json"
    source.write_text("{}")
    watched.changed()
    match how:
        case "written":
            target.write_text("{}")
        case "renamed":
            source.rename(target)
        case "linked":
            target.hardlink_to(source)
        case "symlink":
            target.symlink_to(source)
        case "fifo":
            os.mkfifo(target)
        case "directory":
            target.mkdir()
    assert watched.readable()
    assert watched.changed()
    assert not watched.readable()
    assert not watched.changed()


def test_a_file_that_is_written_on_is_seen_when_its_writer_closes_it(
    watched: Turned, questions: Path
) -> None:
    with (questions / "a.answer.json").open("w") as writer:
        watched.changed()
        writer.write("{}")
        writer.flush()
        assert not watched.changed()
    assert watched.changed()


def test_our_own_removals_do_not_wake_us(watched: Turned, questions: Path) -> None:
    answer, odd = rename_in(questions), questions / "b.answer.json"
    odd.symlink_to("nowhere")
    with (questions / "c.answer.json").open("w") as writer:
        writer.write("{}")
        watched.changed()
        for path in (answer, odd, questions / "c.answer.json"):
            path.unlink()
        assert not watched.readable()
    assert not watched.readable(), "the close of a removed file is no news"
    assert not watched.changed(after=RECHECK)


def test_a_burst_of_a_thousand_files_is_one_report(watched: Turned, questions: Path) -> None:
    watched.changed()
    for n in range(1000):
        rename_in(questions, f"{n:04}.answer.json")
    assert watched.changed()
    assert not watched.readable(), "all of the queue is taken in"
    assert not watched.changed()


def test_an_overflown_queue_reports_and_the_directory_is_checked(
    watched: Turned, questions: Path
) -> None:
    watched.changed()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    one, other = questions / "a", questions / "b"
    one.write_text("")
    for _ in range(limit + 100):  # each event differs from the one before: none is merged
        one.rename(other)
        one, other = other, one
    shutil.rmtree(questions)
    questions.mkdir()
    calls = 0
    while watched.readable():
        assert watched.changed()
        calls += 1
        assert calls < 10
    rename_in(questions)
    assert watched.readable(), "the directory that was replaced behind the overflow is watched"
    assert watched.changed()


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_replaced_directory_is_watched_again(
    watched: Turned, questions: Path, tmp_path: Path, how: str
) -> None:
    watched.changed()
    if how == "deleted":
        questions.rmdir()
        questions.mkdir()
    else:
        questions.rename(tmp_path / "old")
        questions.mkdir()
    assert watched.readable()
    assert watched.changed(), "the new directory may hold answers already"
    assert watched.watch.due(watched.now) is None
    assert not watched.readable() or not watched.changed()
    assert not watched.readable(), "no busy loop on what the old watch left behind"
    rename_in(questions)
    assert watched.readable()
    assert watched.changed()
    if how == "moved":
        rename_in(tmp_path / "old")
        assert not watched.readable(), "the old directory is no longer watched"


def test_a_replaced_parent_is_found_by_the_check(tmp_path: Path) -> None:
    home = tmp_path / "hermes-bridge"
    (home / "questions").mkdir(parents=True)
    watched = Turned(home / "questions")
    watched.changed()
    home.rename(tmp_path / "old")
    (home / "questions").mkdir(parents=True)
    rename_in(home / "questions")
    assert not watched.readable()
    assert watched.changed(after=RECHECK)
    watched.changed()
    rename_in(home / "questions", "b.answer.json")
    assert watched.readable()
    assert watched.changed()
    watched.watch.close()


def test_a_missing_directory_is_looked_for_without_a_busy_loop(
    watched: Turned, questions: Path
) -> None:
    watched.changed()
    questions.rmdir()
    assert watched.readable()
    assert watched.changed()
    assert not watched.readable()
    assert watched.watch.due(watched.now) == watched.now + LOOK
    watched.changed(after=LOOK)
    assert not watched.changed(after=LOOK)
    questions.mkdir()
    rename_in(questions)
    assert not watched.changed(after=LOOK / 2)
    assert watched.changed(after=LOOK / 2)
    assert watched.watch.due(watched.now) is None
    assert not watched.changed()


def test_a_directory_that_is_still_open_somewhere_is_replaced_all_the_same(
    watched: Turned, questions: Path
) -> None:
    watched.changed()
    held = os.open(questions, os.O_RDONLY)
    try:
        questions.rmdir()
        questions.mkdir()
        assert watched.changed(after=RECHECK)
        rename_in(questions)
        assert watched.changed()
    finally:
        os.close(held)


def test_a_file_or_a_closed_door_in_place_of_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_text("not a directory")
    watched = Turned(path)
    watched.changed()
    assert watched.watch.due(watched.now) is not None
    watched.changed(after=LOOK)
    assert not watched.changed(after=LOOK)
    path.unlink()
    path.mkdir()
    assert watched.changed(after=LOOK)
    assert watched.watch.due(watched.now) is None
    watched.watch.close()


def test_the_descriptor_is_closed_and_never_inherited(watched: Turned) -> None:
    fd = watched.watch.fileno()
    assert fd is not None
    assert not os.get_inheritable(fd)
    assert not os.get_blocking(fd)
    watched.watch.close()
    watched.watch.close()
    assert watched.watch.fileno() is None
    with pytest.raises(OSError):
        os.fstat(fd)


def test_without_inotify_the_mtime_is_looked_at(looked: Turned, questions: Path) -> None:
    assert looked.watch.fileno() is None
    assert looked.watch.due(looked.now) == looked.now
    assert looked.changed()
    assert looked.watch.due(looked.now) == looked.now + LOOK
    assert not looked.changed(after=LOOK)
    rename_in(questions)
    assert not looked.changed(after=LOOK / 2), "between two looks nothing is looked at"
    assert looked.watch.due(looked.now) == looked.now + LOOK / 2
    assert looked.changed(after=LOOK / 2)


def test_without_inotify_what_comes_in_the_tick_of_a_look_is_not_missed(
    looked: Turned, questions: Path
) -> None:
    looked.changed()
    looked.changed(after=LOOK)
    rename_in(questions)
    stamp = questions.stat().st_mtime_ns
    assert looked.changed(after=LOOK)
    rename_in(questions, "b.answer.json")
    os.utime(questions, ns=(stamp, stamp))
    assert not looked.changed(), "called early: the news is kept for the look"
    assert looked.changed(after=LOOK)
    assert not looked.changed(after=LOOK)


def test_without_inotify_a_replaced_directory_is_seen(looked: Turned, questions: Path) -> None:
    looked.changed()
    looked.changed(after=LOOK)
    stamp = questions.stat().st_mtime_ns
    questions.rename(questions.with_name("old"))
    questions.mkdir()
    os.utime(questions, ns=(stamp, stamp))
    assert looked.changed(after=LOOK)


def test_a_path_that_cannot_be_a_path_is_a_missing_directory() -> None:
    watch = DirectoryWatch("/nowhere/\0", inotify=False)
    now = time.monotonic()
    assert watch.changed(now)
    assert watch.due(now) == now + LOOK


# What cannot be had in this process without harm to its neighbours is tried in a child.
_CHILD = """
import os, resource, select, sys, time
from hermes_bridges.coms import watch
path, case = sys.argv[1:]
if case == "no ctypes":
    sys.modules["ctypes"] = None
elif case == "no descriptors":
    import ctypes
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, spare))
elif case == "no watches":
    with open("/proc/sys/user/max_inotify_watches", "w") as limit:
        limit.write("0")
elif case == "no instances":
    with open("/proc/sys/user/max_inotify_instances", "w") as limit:
        limit.write("0")
seen = watch.DirectoryWatch(path)
print(seen.fileno() is not None, seen.due(0.0) is None)
assert seen.changed(0.0 + time.monotonic())
now = time.monotonic() + 1
seen.changed(now)
assert not seen.changed(now + 1)
os.mkdir(path + "/a.answer.json")
assert seen.changed(now + 2)
if seen.fileno() is not None:
    assert not select.select([seen.fileno()], [], [], 0)[0]
assert seen.due(now + 2) == now + 2 + watch.LOOK
"""


_FALLBACKS = {"no ctypes": "False False", "no descriptors": "False False"}
_OWN_LIMITS = {"no instances": "False False", "no watches": "True False"}
_UNSHARE = ["unshare", "--user", "--map-root-user"]  # the limits of a user namespace can be set
if shutil.which("unshare") and not subprocess.run([*_UNSHARE, "true"], check=False).returncode:
    _FALLBACKS.update(_OWN_LIMITS)


@pytest.mark.parametrize("case", _FALLBACKS)
def test_a_limit_reached_or_ctypes_missing_falls_back(questions: Path, case: str) -> None:
    command = [sys.executable, "-c", _CHILD, str(questions), case]
    if case in _OWN_LIMITS:
        command = _UNSHARE + command
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _FALLBACKS[case]
