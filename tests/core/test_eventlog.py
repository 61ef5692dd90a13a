"""The event log: every line whole, in the file that bears the name, and never raising."""

import errno
import fcntl
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.core.eventlog import EventLog, iso_now
from tests.conftest import ROOT, wait

QID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NOW = "2026-01-02T03:04:05.678Z"

# Arguments: path, limit, a mark for the lines, how many. Ends early when its input is closed.
WRITER = """
import select, sys
from hermes_bridges.core.eventlog import EventLog
path, limit, mark, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
log = EventLog(path, limit=limit)
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    if n % 50 == 0 and select.select([sys.stdin], [], [], 0)[0]:
        break
    if not log.append("delivered", f"{mark}-{n}", {"to": "x" * (n % 300)}):
        print("lost", n)
else:
    n += 1
print(n)
"""

FULL_DISK = """
import json, resource, sys
from hermes_bridges.core.eventlog import EventLog
path = sys.argv[1]
told = []
log = EventLog(path, on_fault=told.append)
results = [log.append("delivered", "before")]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
results += [log.append("delivered", f"full-{n}", {"to": "x" * 100}) for n in range(3)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
results += [log.append("delivered", "after")]
print(json.dumps([results, log.lost, told]))
"""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Undone before the fixtures of every test, which need the real calls to tidy up."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.ndjson"


@pytest.fixture
def log(path: Path) -> Iterator[EventLog]:
    log = EventLog(str(path), now_iso=lambda: NOW)
    yield log
    log.close()


def start_writer(path: Path, limit: int, mark: str, count: int) -> "subprocess.Popen[str]":
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(limit), mark, str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout and writer.stdout.readline() == "ready\n"
    return writer


def release(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdin
    writer.stdin.write("go\n")
    writer.stdin.flush()


def finish(writer: "subprocess.Popen[str]") -> tuple[int, int]:
    """Close its input, and return how many events it tried to write and how many it lost."""
    out, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    *lost, tried = out.split("\n")[:-1]
    return int(tried), len(lost)


def finish_without_loss(writer: "subprocess.Popen[str]") -> int:
    tried, lost = finish(writer)
    assert lost == 0
    return tried


def grows_beyond(path: Path, size: int) -> bool:
    return bool(wait(lambda: path.exists() and path.stat().st_size > size, 20, pause=0.001))


def records(path: Path) -> list[dict[str, object]]:
    """The records of a log; each line has to be one, and the last one must be ended."""
    content = path.read_bytes()
    assert b"\0" not in content
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def readable(path: Path) -> list[object]:
    """The qids of what a tolerant reader gets out of a log that was damaged."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line)["qid"])
        except ValueError:
            continue
    return found


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The record


def test_iso_now_has_milliseconds_and_is_utc() -> None:
    before = time.time()
    stamp = iso_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    whole, milliseconds = stamp[:-1].split(".")
    seconds = time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) - time.timezone
    assert before - 0.001 <= seconds + int(milliseconds) / 1000 <= time.time()


@pytest.mark.parametrize(
    ("ns", "stamp"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_009_999_999, "2023-11-14T22:13:20.009Z"),
        (1_700_000_000_999_999_999, "2023-11-14T22:13:20.999Z"),
    ],
)
def test_iso_now_pads_and_never_rounds_up(patch: pytest.MonkeyPatch, ns: int, stamp: str) -> None:
    patch.setattr(time, "time_ns", lambda: ns)
    assert iso_now() == stamp


def test_a_record_is_one_compact_line_in_the_order_of_the_contract(
    log: EventLog, path: Path
) -> None:
    assert log.append("question_received", QID, {"from": "pi"})
    assert log.append("cancelled", QID)
    assert path.read_text() == (
        f'{{"at":"{NOW}","qid":"{QID}","event":"question_received","detail":{{"from":"pi"}}}}\n'
        f'{{"at":"{NOW}","qid":"{QID}","event":"cancelled"}}\n'
    )


def test_KH11_any_text_stays_one_line_for_every_reader(log: EventLog, path: Path) -> None:
    text = "a\u2028b\u0085c\u2029\r\n\x0b\x0c\x1c\x00 中 \U0001f600"
    assert log.append("delivery_error", QID, {"error": text})
    line = path.read_bytes()
    assert line.isascii()
    assert len(line.decode().splitlines()) == 1
    assert records(path)[0]["detail"] == {"error": text}


def test_KH27_a_lone_surrogate_is_no_fault(log: EventLog, path: Path) -> None:
    assert log.append("delivery_error", QID, {"error": "hi \ud83d there \udc80"})
    assert len(records(path)) == 1


@pytest.mark.parametrize("detail", [{"a": {1, 2}}, float("nan"), {("a",): 1}])
def test_a_detail_that_is_no_json_is_a_counted_loss(
    log: EventLog, path: Path, detail: object
) -> None:
    assert not log.append("delivered", QID, detail)
    assert log.append("delivered", "next")
    assert log.lost == 1
    assert readable(path) == ["next"]


def test_a_detail_that_holds_itself_or_is_too_deep_is_a_counted_loss(log: EventLog) -> None:
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert not log.append("delivered", QID, endless)
    assert not log.append("delivered", QID, deep)
    assert log.lost == 2


def test_each_line_is_one_write(log: EventLog, patch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    whole_write = os.write

    def record_write(fd: int, data: bytes) -> int:
        writes.append(data)
        return whole_write(fd, data)

    patch.setattr(os, "write", record_write)
    log.append("delivered", "a", {"to": "x" * 20_000})
    log.append("delivered", "b")
    assert [data.count(b"\n") for data in writes] == [1, 1]


# The file


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_S2_the_log_is_private_whatever_the_umask(path: Path, log: EventLog, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert log.append("delivered", QID)
    finally:
        os.umask(before)
    assert mode_of(path) == 0o600


def test_S2_a_loose_log_is_tightened(path: Path, log: EventLog) -> None:
    path.write_text('{"qid":"old"}\n')
    path.chmod(0o666)
    assert log.append("delivered", "new")
    assert mode_of(path) == 0o600
    assert readable(path) == ["old", "new"]


def test_a_log_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    log = EventLog("log.ndjson")
    assert log.append("delivered", QID)
    log.close()
    assert readable(tmp_path / "here" / "log.ndjson") == [QID]


def test_close_gives_the_descriptor_back_and_append_opens_it_again(
    log: EventLog, path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log.append("delivered", "a")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    log.close()
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert log.append("delivered", "b")
    assert readable(path) == ["a", "b"]


def test_a_child_does_not_get_the_descriptor(log: EventLog, path: Path) -> None:
    log.append("delivered", QID)
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 30)\
 if os.path.exists(f'/proc/self/fd/{n}')])"
    out = subprocess.check_output([sys.executable, "-c", script], close_fds=False, text=True)
    assert str(path) not in out


def test_two_threads_give_ten_thousand_valid_lines(log: EventLog, path: Path) -> None:
    def write(mark: str) -> None:
        for n in range(5_000):
            assert log.append("delivered", f"{mark}{n}")

    threads = [threading.Thread(target=write, args=(mark,)) for mark in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    qids = [str(record["qid"]) for record in records(path)]
    assert sorted(qids) == sorted(f"{mark}{n}" for mark in "ab" for n in range(5_000))
    for mark in "ab":
        assert [qid for qid in qids if qid[0] == mark] == [f"{mark}{n}" for n in range(5_000)]


# A torn tail


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        (b'{"qid":2', []),
        ('{"qid":"中'.encode()[:-2], []),
        (b'{"qid":"2"}', ["2"]),
        (b"\0" * 4096, []),
        (b'{"qid":"2', []),
        (b"\n", []),
    ],
    ids=["half", "half a character", "no newline", "NUL", "in a string", "blank line"],
)
def test_KH17_a_torn_tail_costs_only_itself(
    log: EventLog, path: Path, tail: bytes, kept: list[str]
) -> None:
    path.write_bytes(b'{"qid":"1"}\n' + tail)
    assert log.append("delivered", "3")
    log.close()
    assert log.append("delivered", "4")
    assert readable(path) == ["1", *kept, "3", "4"]
    assert path.read_bytes().startswith(b'{"qid":"1"}\n' + tail)


def test_KH17_a_block_of_NUL_in_the_middle_stays_where_it_is(log: EventLog, path: Path) -> None:
    path.write_bytes(b'{"qid":"1"}\n' + b"\0" * 4096 + b'\n{"qid":"2"}\n')
    assert log.append("delivered", "3")
    assert readable(path) == ["1", "2", "3"]


def test_KH17_no_blank_line_is_added_to_a_whole_log(log: EventLog, path: Path) -> None:
    path.write_bytes(b'{"qid":"1"}\n')
    for qid in ("2", "3"):
        assert log.append("delivered", qid)
    assert [record["qid"] for record in records(path)] == ["1", "2", "3"]


def test_KH17_a_line_that_another_process_left_unfinished_is_ended(
    log: EventLog, path: Path
) -> None:
    assert log.append("delivered", "1")
    with path.open("ab") as file:
        file.write(b'{"qid":"tor')
    assert log.append("delivered", "2")
    assert log.append("delivered", "3")
    assert readable(path) == ["1", "2", "3"]


def test_KH17_a_line_that_is_just_being_written_is_not_taken_for_a_torn_one(
    log: EventLog, path: Path, patch: pytest.MonkeyPatch
) -> None:
    assert log.append("delivered", "1")
    with path.open("ab", buffering=0) as other:
        other.write(b'{"qid":')
        plain_fchmod = os.fchmod

        def finish_and_chmod(fd: int, mode: int) -> None:
            other.write(b'"2"}\n')
            plain_fchmod(fd, mode)

        patch.setattr(os, "fchmod", finish_and_chmod)
        assert log.append("delivered", "3")
    assert [record["qid"] for record in records(path)] == ["1", "2", "3"]


def test_KH17_a_short_write_is_a_loss_and_its_part_is_ended(
    log: EventLog, path: Path, patch: pytest.MonkeyPatch
) -> None:
    assert log.append("delivered", "1")
    whole_write = os.write
    patch.setattr(os, "write", lambda fd, data: whole_write(fd, data[:20]))
    assert not log.append("delivered", "2")
    patch.undo()
    assert log.append("delivered", "3")
    assert log.lost == 1
    assert readable(path) == ["1", "3"]
    assert path.read_bytes().count(b"\n") == 3


# A log that cannot be written


@pytest.mark.parametrize("room", [0, 50, 200], ids=["none", "a part of a line", "one line"])
def test_L8_a_full_disk_is_counted_told_once_and_over_when_there_is_room(
    path: Path, room: int
) -> None:
    first = len(f'{{"at":"{NOW}","qid":"before","event":"delivered"}}\n')
    out = subprocess.check_output(
        [sys.executable, "-c", FULL_DISK, str(path), str(first + room)], cwd=ROOT, timeout=30
    )
    results, lost, told = json.loads(out)
    fitted = ["full-0"] if room == 200 else []
    assert results == [True, bool(fitted), False, False, True]
    assert lost == 3 - len(fitted)
    assert len(told) == 1
    assert str(path) in told[0]
    assert "full-" not in told[0]
    assert readable(path) == ["before", *fitted, "after"]


def break_with_directory(path: Path) -> Callable[[], None]:
    path.mkdir()
    return path.rmdir


def break_with_fifo(path: Path) -> Callable[[], None]:
    os.mkfifo(path)
    return path.unlink


def break_with_symlink(path: Path) -> Callable[[], None]:
    other = path.parent / "other"
    other.write_text("untouched")
    path.symlink_to(other)

    def mend() -> None:
        assert other.read_text() == "untouched"
        path.unlink()

    return mend


def break_with_file_as_directory(path: Path) -> Callable[[], None]:
    path.parent.rmdir()
    path.parent.touch()
    return path.parent.unlink


@pytest.mark.parametrize(
    "break_it",
    [
        break_with_directory,
        break_with_fifo,
        break_with_symlink,
        break_with_file_as_directory,
    ],
)
@pytest.mark.parametrize("opened_before", [False, True])
def test_L8_an_unusable_path_never_raises_and_is_told_at_each_transition(
    tmp_path: Path, break_it: Callable[[Path], Callable[[], None]], opened_before: bool
) -> None:
    path = tmp_path / "logs" / "log.ndjson"
    path.parent.mkdir()
    told: list[str] = []
    log = EventLog(str(path), on_fault=told.append)
    if opened_before:
        assert log.append("delivered", "before")
        path.unlink()
    for turn in (1, 2):
        path.parent.mkdir(exist_ok=True)
        mend = break_it(path)
        started = time.monotonic()
        assert [log.append("delivered", f"lost{n}") for n in range(3)] == [False] * 3
        assert time.monotonic() - started < 1
        assert (log.lost, len(told)) == (3 * turn, turn)
        mend()
        assert log.append("delivered", "good")
        assert readable(path) == ["good"]
        log.close()
        path.unlink()
    assert all("lost0" not in text and str(path) in text for text in told)


def test_S2_a_log_of_another_user_is_not_written(
    path: Path, log: EventLog, patch: pytest.MonkeyPatch
) -> None:
    path.touch()
    patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert not log.append("delivered", QID)
    assert path.read_bytes() == b""


def test_L8_without_a_listener_trouble_and_its_end_stand_in_the_programs_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hermes_bridges.eventlog")
    log = EventLog(str(path))
    path.mkdir()
    for _ in range(3):
        log.append("delivered", QID)
    path.rmdir()
    for _ in range(3):
        log.append("delivered", QID)
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    trouble, end = caplog.messages
    assert trouble == f"event log {path} cannot be written, events are lost: Is a directory"
    assert end == f"event log {path} is well again; 3 events lost so far"


def test_L8_a_failed_write_leaves_no_descriptor_behind(
    path: Path, log: EventLog, patch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    path.touch()

    def fail(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(os, "write", fail)
    for _ in range(5):
        assert not log.append("delivered", QID)
    patch.undo()
    assert len(os.listdir("/proc/self/fd")) == before


# Rotation by others


def test_KH38_after_a_rename_the_next_line_is_in_a_new_file(log: EventLog, path: Path) -> None:
    assert log.append("delivered", "old")
    path.rename(path.with_suffix(".1"))
    assert log.append("delivered", "new")
    assert readable(path.with_suffix(".1")) == ["old"]
    assert readable(path) == ["new"]
    assert mode_of(path) == 0o600


def test_KH38_after_a_rename_with_a_new_file_the_next_line_is_in_that(
    log: EventLog, path: Path
) -> None:
    assert log.append("delivered", "old")
    path.rename(path.with_suffix(".1"))
    path.touch(mode=0o644)
    assert log.append("delivered", "new")
    assert readable(path) == ["new"]
    assert mode_of(path) == 0o600


def test_KH38_after_copytruncate_the_log_begins_with_the_next_line(
    log: EventLog, path: Path
) -> None:
    assert log.append("delivered", "old")
    shutil.copy(path, path.with_suffix(".1"))
    os.truncate(path, 0)
    assert log.append("delivered", "new")
    assert [record["qid"] for record in records(path)] == ["new"]


def test_KH38_a_truncation_between_two_looks_is_no_torn_tail(
    log: EventLog, path: Path, patch: pytest.MonkeyPatch
) -> None:
    assert log.append("delivered", "old")
    plain_pread = os.pread

    def truncate_and_read(fd: int, size: int, offset: int) -> bytes:
        os.truncate(path, 0)
        return plain_pread(fd, size, offset)

    patch.setattr(os, "pread", truncate_and_read)
    assert log.append("delivered", "new")
    assert [record["qid"] for record in records(path)] == ["new"]


def test_KH38_a_deleted_directory_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log.ndjson"
    log = EventLog(str(path))
    assert log.append("delivered", "first")
    shutil.rmtree(tmp_path / "a")
    assert log.append("delivered", "second")
    log.close()
    assert readable(path) == ["second"]
    assert [mode_of(path.parent), mode_of(path.parent.parent)] == [0o700, 0o700]


def test_KH38_two_processes_write_on_through_renames_and_lose_nothing(path: Path) -> None:
    writers = [start_writer(path, 1 << 30, mark, 100_000) for mark in "ab"]
    for writer in writers:
        release(writer)
    for turn in range(40):
        # Each rotation meets lines that were written since the one before.
        assert grows_beyond(path, 0)
        path.rename(path.with_suffix(f".{turn}"))
        if turn % 2:
            path.touch()
    counts = [finish_without_loss(writer) for writer in writers]
    logs = [*(path.with_suffix(f".{turn}") for turn in range(40)), path]
    found = [record["qid"] for log in logs if log.exists() for record in records(log)]
    expected = {
        f"{mark}-{n}" for mark, count in zip("ab", counts, strict=True) for n in range(count)
    }
    assert len(found) == len(expected)
    assert set(found) == expected


def test_KH38_two_processes_write_on_through_copytruncate_without_NUL_or_torn_lines(
    path: Path,
) -> None:
    writers = [start_writer(path, 1 << 30, mark, 100_000) for mark in "ab"]
    for writer in writers:
        release(writer)
    for _ in range(40):
        assert grows_beyond(path, 0)
        os.truncate(path, 0)
    for writer in writers:
        finish_without_loss(writer)
    found = [record["qid"] for record in records(path)]
    assert len(found) == len(set(found))


def test_KH38_writers_survive_the_deletion_of_their_directory(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.ndjson"
    writers = [start_writer(path, 1 << 30, mark, 100_000) for mark in "ab"]
    for writer in writers:
        release(writer)
    for _ in range(20):
        assert grows_beyond(path, 0)
        path.parent.rename(tmp_path / "going")
        shutil.rmtree(tmp_path / "going")
    for writer in writers:
        # A directory that goes again between its making and the file's may cost an event.
        tried, lost = finish(writer)
        assert lost < tried / 10
    if path.exists():
        records(path)


# Our own rotation


def test_S7_above_the_limit_the_log_becomes_the_older_one(path: Path) -> None:
    log = EventLog(str(path), limit=1_000, now_iso=lambda: NOW)
    for n in range(100):
        assert log.append("delivered", f"{n:026}")
        assert path.stat().st_size <= 1_000
    log.close()
    older = path.with_name("log.ndjson.1")
    assert mode_of(older) == 0o600
    kept = [record["qid"] for record in (*records(older), *records(path))]
    assert kept == [f"{n:026}" for n in range(100 - len(kept), 100)]
    assert older.stat().st_size > 900
    assert sorted(os.listdir(path.parent)) == ["log.ndjson", "log.ndjson.1"]


def test_S7_the_limit_itself_is_still_within_it(path: Path) -> None:
    probe = EventLog(str(path), now_iso=lambda: NOW)
    probe.append("delivered", "1")
    line = path.stat().st_size
    probe.close()
    log = EventLog(str(path), limit=2 * line, now_iso=lambda: NOW)
    assert log.append("delivered", "2")
    assert readable(path) == ["1", "2"]
    assert log.append("delivered", "3")
    assert readable(path) == ["3"]
    log.close()


def test_a_line_longer_than_the_limit_is_still_written(path: Path) -> None:
    log = EventLog(str(path), limit=100)
    assert log.append("delivered", "1", {"to": "x" * 500})
    assert log.append("delivered", "2")
    log.close()
    assert readable(path) == ["2"]
    assert readable(path.with_name("log.ndjson.1")) == ["1"]


def test_S7_two_processes_that_rotate_at_once_lose_no_young_line(path: Path) -> None:
    limit = 40_000
    writers = [start_writer(path, limit, mark, 3_000) for mark in "ab"]
    for writer in writers:
        release(writer)
    older = path.with_name("log.ndjson.1")
    for writer in writers:
        writer.wait(60)
        assert finish(writer) == (3_000, 0)
    found = [str(record["qid"]) for record in (*records(older), *records(path))]
    assert len(found) == len(set(found))
    assert len(found) < 3_000, "it was hardly ever rotated"
    # What is left of each writer is its newest lines, without a gap.
    for mark in "ab":
        numbers = sorted(int(qid[2:]) for qid in found if qid[0] == mark)
        assert numbers == list(range(3_000 - len(numbers), 3_000))
    assert sorted(os.listdir(path.parent)) == ["log.ndjson", "log.ndjson.1"]


def test_S7_a_rotation_in_another_process_is_not_waited_for(path: Path) -> None:
    log = EventLog(str(path), limit=100)
    assert log.append("delivered", "1", {"to": "x" * 100})
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert log.append("delivered", "2")
        assert readable(path) == ["1", "2"]
    assert log.append("delivered", "3")
    log.close()
    assert readable(path) == ["3"]
    assert readable(path.with_name("log.ndjson.1")) == ["1", "2"]


@pytest.mark.parametrize("new_file", [False, True])
def test_S7_a_log_that_was_rotated_between_two_looks_is_not_rotated_again(
    path: Path, patch: pytest.MonkeyPatch, new_file: bool
) -> None:
    log = EventLog(str(path), limit=100, now_iso=lambda: NOW)
    assert log.append("delivered", "1", {"to": "x" * 100})
    older = path.with_name("log.ndjson.1")
    plain_flock = fcntl.flock

    def rotate_and_lock(fd: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN:
            path.rename(older)
            if new_file:
                path.write_text('{"qid":"theirs"}\n')
        plain_flock(fd, operation)

    patch.setattr(fcntl, "flock", rotate_and_lock)
    assert log.append("delivered", "2")
    log.close()
    assert readable(older) == ["1"]
    assert readable(path) == (["theirs", "2"] if new_file else ["2"])


def test_S7_a_log_that_cannot_be_rotated_is_still_written_and_told_once(path: Path) -> None:
    told: list[str] = []
    log = EventLog(str(path), limit=100, on_fault=told.append)
    obstacle = path.with_name("log.ndjson.1")
    obstacle.mkdir()
    for n in range(5):
        assert log.append("delivered", str(n), {"to": "x" * 100})
    assert readable(path) == ["0", "1", "2", "3", "4"]
    assert len(told) == 1
    assert "cannot be rotated" in told[0]
    obstacle.rmdir()
    assert log.append("delivered", "5")
    log.close()
    assert readable(path) == ["5"]
    assert log.lost == 0


def test_KH17_a_writer_that_is_killed_leaves_a_log_that_goes_on(path: Path) -> None:
    chance = random.Random(17)
    for turn in range(8):
        writer = start_writer(path, 1 << 30, str(turn), 1_000_000)
        release(writer)
        size = path.stat().st_size if path.exists() else 0
        assert grows_beyond(path, size + chance.randrange(1, 200_000))
        writer.kill()
        writer.communicate(timeout=10)
        log = EventLog(str(path))
        assert log.append("delivered", f"after {turn}")
        log.close()
        assert readable(path)[-1] == f"after {turn}"
    qids = readable(path)
    assert [qid for qid in qids if str(qid).startswith("after")] == [f"after {n}" for n in range(8)]
    for turn in range(8):
        numbers = [int(str(qid).split("-")[1]) for qid in qids if str(qid).startswith(f"{turn}-")]
        assert numbers == list(range(len(numbers)))
