"""Files: whole or not at all, capped and never waiting, private, nothing overwritten."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hermes_bridges.core import files
from hermes_bridges.errors import FileRefused
from tests.conftest import ROOT, wait

FULL_DISK = """
import resource, sys
from hermes_bridges.core import files
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    files.write_atomic(sys.argv[1], b"n" * 1500)
except OSError as fault:
    print(fault.errno)
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

WRITER = """
import sys
from hermes_bridges.core import files
print("ready", flush=True)
while True:
    for letter in b"abcdefgh":
        files.write_atomic(sys.argv[1], bytes([letter]) * 300_000, durable=False)
"""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Undone before the fixtures of every test, which need the real calls to tidy up."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(path: Path) -> list[str]:
    return sorted(os.listdir(path))


# write_atomic


def test_write_atomic_replaces_the_content_and_sets_the_exact_mode(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    target.write_bytes(b"old")
    target.chmod(0o666)
    files.write_atomic(str(target), b"new")
    assert (target.read_bytes(), mode_of(target)) == (b"new", 0o600)
    assert names_in(tmp_path) == ["state.json"]


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_write_atomic_mode_does_not_depend_on_the_umask(
    tmp_path: Path, umask: int, mode: int
) -> None:
    target = tmp_path / "state.json"
    before = os.umask(umask)
    try:
        files.write_atomic(str(target), b"x", mode=mode)
    finally:
        os.umask(before)
    assert mode_of(target) == mode


def test_write_atomic_takes_a_path_without_a_directory(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    patch.chdir(tmp_path)
    files.write_atomic("state.json", b"here")
    assert (tmp_path / "state.json").read_bytes() == b"here"


def test_write_atomic_writes_an_empty_and_a_large_content(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    for content in (b"", bytes(range(256)) * 20_000):
        files.write_atomic(str(target), content, durable=False)
        assert target.read_bytes() == content


def test_write_atomic_goes_on_after_a_short_write(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    whole_write = os.write
    patch.setattr(os, "write", lambda fd, data: whole_write(fd, data[:3]))
    files.write_atomic(str(tmp_path / "state.json"), b"0123456789")
    assert (tmp_path / "state.json").read_bytes() == b"0123456789"


def test_write_atomic_replaces_a_symlink_and_leaves_its_target_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    target = tmp_path / "state.json"
    target.symlink_to(other)
    files.write_atomic(str(target), b"new")
    assert not target.is_symlink()
    assert (target.read_bytes(), other.read_bytes()) == (b"new", b"untouched")


def recorded_steps(patch: pytest.MonkeyPatch) -> list[str]:
    """The order in which content, names and directories reach the disk."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(fd: int) -> None:
        is_dir = stat.S_ISDIR(os.fstat(fd).st_mode)
        steps.append("sync directory" if is_dir else f"sync {os.fstat(fd).st_size} bytes")
        fsync(fd)

    def record_replace(old: str, new: str) -> None:
        assert os.path.dirname(old) == os.path.dirname(new)
        steps.append("rename")
        replace(old, new)

    patch.setattr(os, "fsync", record_fsync)
    patch.setattr(os, "replace", record_replace)
    return steps


def test_KH14_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    steps = recorded_steps(patch)
    files.write_atomic(str(tmp_path / "state.json"), b"12345")
    assert steps == ["sync 5 bytes", "rename", "sync directory"]


def test_KH14_what_need_not_survive_is_not_synced(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    steps = recorded_steps(patch)
    files.write_atomic(str(tmp_path / "state.json"), b"12345", durable=False)
    assert steps == ["rename"]


@pytest.mark.parametrize("step", ["write", "fsync", "fchmod", "replace"])
def test_KH14_a_failed_step_leaves_the_old_content_and_no_temp(
    tmp_path: Path, patch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "state.json"
    target.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    patch.setattr(os, step, fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_atomic(str(target), b"new")
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["state.json"]


def test_KH14_a_full_disk_leaves_the_old_content_and_no_temp(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    target.write_bytes(b"old")
    script = [sys.executable, "-c", FULL_DISK, str(target)]
    assert int(subprocess.check_output(script, cwd=ROOT, timeout=30)) == errno.EFBIG
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["state.json"]


def test_KH14_a_killed_writer_leaves_old_or_new_content_and_at_most_a_stale_temp(
    tmp_path: Path,
) -> None:
    target = tmp_path / "state.json"
    target.write_bytes(b"z" * 300_000)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(target)], cwd=ROOT, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout and writer.stdout.readline() == b"ready\n"
            caught = wait(partial(stopped_in_a_write, writer.pid, tmp_path), 20, pause=0.003)
            writer.kill()
        assert caught, "no kill met a write; this test has shown nothing"
        content = target.read_bytes()
        assert len(content) == 300_000
        assert len(set(content)) == 1
        assert len(names_in(tmp_path)) == 2
        assert files.remove_stale_temps(str(tmp_path)) == 1
        assert names_in(tmp_path) == ["state.json"]


def stopped_in_a_write(pid: int, directory: Path) -> bool:
    """Stop a writer wherever it is; unless that is within a write, let it go on."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    if len(names_in(directory)) > 1:
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def test_KH14_a_leftover_temp_of_a_writer_with_our_pid_does_not_stand_in_the_way(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    patch.setattr(files, "_serial", iter(range(7, 100)))
    leftover = tmp_path / f".state.json.{os.getpid()}-7.tmp"
    leftover.write_bytes(b"half")
    files.write_atomic(str(tmp_path / "state.json"), b"whole")
    assert (tmp_path / "state.json").read_bytes() == b"whole"
    assert leftover.read_bytes() == b"half"


def test_write_atomic_is_never_seen_half_done_by_a_reader(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write_atomic(str(target), b"a" * 100_000)
    done = threading.Event()
    seen: set[bytes] = set()

    def look() -> None:
        while not done.is_set():
            content = target.read_bytes()
            seen.add(content[:1] if len(set(content)) == 1 and len(content) == 100_000 else content)

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(200):
        files.write_atomic(str(target), b"ab"[turn % 2 : turn % 2 + 1] * 100_000, durable=False)
    done.set()
    reader.join()
    assert seen <= {b"a", b"b"}


def test_write_atomic_from_many_threads_leaves_one_whole_content(tmp_path: Path) -> None:
    target = tmp_path / "state.json"

    def write(letter: bytes) -> None:
        for _ in range(20):
            files.write_atomic(str(target), letter * 5_000, durable=False)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = target.read_bytes()
    assert (len(content), len(set(content))) == (5_000, 1)
    assert names_in(tmp_path) == ["state.json"]


def test_write_atomic_says_when_the_directory_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write_atomic(str(tmp_path / "none" / "state.json"), b"x")


def test_write_atomic_over_a_directory_fails_and_leaves_no_temp(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomic(str(tmp_path / "state.json"), b"x")
    assert names_in(tmp_path) == ["state.json"]


def test_the_first_error_stands_even_when_the_temp_is_gone_too(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    def vanish(old: str, new: str) -> None:
        os.unlink(old)
        raise OSError(errno.EIO, "Input/output error")

    patch.setattr(os, "replace", vanish)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_atomic(str(tmp_path / "state.json"), b"x")


def test_write_atomic_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files.write_atomic(str(tmp_path / "state.json"), b"x")
    files.read_capped(str(tmp_path / "state.json"), 10)
    files.private_dir(str(tmp_path))
    with pytest.raises(FileRefused):
        files.read_capped(str(tmp_path / "state.json"), 0)
    assert len(os.listdir("/proc/self/fd")) == before


# sync_dir


def failing_fsync(patch: pytest.MonkeyPatch, code: int) -> None:
    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    patch.setattr(os, "fsync", fail)


def test_sync_dir_passes_over_a_file_system_that_cannot_sync_directories(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    failing_fsync(patch, errno.EINVAL)
    files.sync_dir(str(tmp_path))


def test_sync_dir_tells_of_a_failing_disk(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    failing_fsync(patch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files.sync_dir(str(tmp_path))


def test_sync_dir_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.sync_dir(str(tmp_path / "file"))


# remove_stale_temps


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_only_temps_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone, ours, first = ended_pid(), os.getpid(), 1
    kept = [
        f".state.json.{first}-1.tmp",
        f"state.json.{gone}-1.tmp",
        f".state.json.{gone}.tmp",
        f".state.json.{gone}-1.tmp.json",
        f".{gone}-1.tmp",
        ".state.json.0-1.tmp",
        ".state.json.99999999999999999999-1.tmp",
        "state.json",
    ]
    for name in (*kept, f".state.json.{gone}-1.tmp", f".b\n.{gone}-20.tmp", f".c.{ours}-3.tmp"):
        (tmp_path / name).touch()
    assert files.remove_stale_temps(str(tmp_path)) == 3
    assert names_in(tmp_path) == sorted(kept)


def test_a_temp_of_a_process_of_another_user_is_left_alone(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    def not_ours(pid: int, number: int) -> None:
        assert (pid, number) == (4242, 0)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / ".state.json.4242-1.tmp").touch()
    patch.setattr(os, "kill", not_ours)
    assert files.remove_stale_temps(str(tmp_path)) == 0


def test_what_cannot_be_removed_does_not_keep_the_others(tmp_path: Path) -> None:
    gone = ended_pid()
    for number in range(4):
        (tmp_path / f".state.json.{gone}-{number}.tmp").touch()
    (tmp_path / f".state.json.{gone}-2.tmp").unlink()
    (tmp_path / f".state.json.{gone}-2.tmp").mkdir()
    assert files.remove_stale_temps(str(tmp_path)) == 3
    assert names_in(tmp_path) == [f".state.json.{gone}-2.tmp"]


def test_a_directory_that_is_not_there_holds_no_temps(tmp_path: Path) -> None:
    assert files.remove_stale_temps(str(tmp_path / "none")) == 0


# read_capped


def refusal(path: Path, limit: int = 100, own: bool = True) -> str:
    with pytest.raises(FileRefused) as refused:
        files.read_capped(str(path), limit, own=own)
    assert str(path) in str(refused.value)
    return refused.value.reason


def test_read_capped_reads_up_to_and_including_the_limit(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    for size in (0, 1, 100):
        target.write_bytes(b"x" * size)
        assert files.read_capped(str(target), 100) == b"x" * size
    target.write_bytes(b"x" * 101)
    assert refusal(target) == "too_large"


def test_read_capped_reads_more_than_one_piece(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    content = os.urandom(1024 * 1024)
    target.write_bytes(content)
    assert files.read_capped(str(target), 1024 * 1024) == content


def test_S4_a_huge_sparse_file_is_refused_without_reading_it(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    with target.open("wb") as file:
        file.truncate(1 << 30)
    patch.setattr(os, "read", lambda fd, size: pytest.fail("it was read"))
    assert refusal(target, 1024 * 1024) == "too_large"


def test_S4_a_file_that_grows_while_it_is_read_is_still_capped(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"x" * 50)
    plain_read, asked = os.read, []

    def growing_read(fd: int, size: int) -> bytes:
        asked.append(size)
        with target.open("ab") as file:
            file.write(b"y" * 1000)
        return plain_read(fd, size)

    patch.setattr(os, "read", growing_read)
    assert refusal(target) == "too_large"
    assert sum(asked) <= 102


def test_S3_a_symlink_is_refused_whatever_it_points_to(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"{}")
    for name, aim in (("file", real), ("dir", tmp_path), ("none", tmp_path / "nowhere")):
        (tmp_path / name).symlink_to(aim)
        assert refusal(tmp_path / name) == "symlink"
    (tmp_path / "loop").symlink_to("loop")
    assert refusal(tmp_path / "loop") == "symlink"


def test_H2_a_fifo_is_refused_at_once_and_its_writer_notices_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "a.json"
    os.mkfifo(fifo)
    opened = threading.Event()

    def write() -> None:
        with fifo.open("wb"):
            opened.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    # Again and again: the writer comes to its open() at some time.
    for _ in range(20):
        start = time.monotonic()
        assert refusal(fifo) == "not_regular"
        assert time.monotonic() - start < 0.5
        assert not opened.wait(0.01), "the FIFO was opened"
    fifo.open("rb").close()
    writer.join()


def test_directories_sockets_and_devices_are_refused(short_tmp: Path) -> None:
    (short_tmp / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_tmp / "socket"))
        assert refusal(short_tmp / "socket") == "not_regular"
    assert refusal(short_tmp / "dir") == "not_regular"
    assert refusal(Path("/dev/zero"), own=False) == "not_regular"


def test_a_file_of_another_user_is_refused_unless_it_may_be_foreign(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"{}")
    patch.setattr(os, "geteuid", lambda: target.stat().st_uid + 1)
    assert refusal(target) == "foreign_owner"
    assert files.read_capped(str(target), 100, own=False) == b"{}"


@pytest.mark.parametrize("kind", ["symlink", "fifo", "socket", "larger"])
def test_a_file_that_is_exchanged_before_it_is_opened_is_refused_too(
    short_tmp: Path, patch: pytest.MonkeyPatch, kind: str
) -> None:
    target, plain_open = short_tmp / "a.json", os.open
    elsewhere = short_tmp / "elsewhere"
    target.write_bytes(b"{}")

    def exchange_and_open(path: str, flags: int, dir_fd: int | None) -> int:
        target.unlink()
        if kind == "symlink":
            elsewhere.write_bytes(b"{}")
            target.symlink_to(elsewhere)
        elif kind == "fifo":
            os.mkfifo(target)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(target))
        else:
            target.write_bytes(b"x" * 101)
        return plain_open(path, flags, dir_fd=dir_fd)

    patch.setattr(os, "open", exchange_and_open)
    reasons = {"symlink": "symlink", "larger": "too_large"}
    assert refusal(target) == reasons.get(kind, "not_regular")


def test_a_missing_or_unreadable_file_is_an_os_error(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_capped(str(tmp_path / "none"), 100)

    def deny(*args: object, **options: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "a.json").touch()
    patch.setattr(os, "open", deny)
    with pytest.raises(PermissionError):
        files.read_capped(str(tmp_path / "a.json"), 100)


def test_read_and_remove_by_directory_entry_follow_the_directory_not_its_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b"ours")
    fd = os.open(tmp_path / "in", os.O_RDONLY | os.O_DIRECTORY)
    try:
        (tmp_path / "in").rename(tmp_path / "elsewhere")
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.json").write_bytes(b"other")
        assert files.read_capped("a.json", 100, dir_fd=fd) == b"ours"
        assert files.remove("a.json", dir_fd=fd)
        assert not files.remove("a.json", dir_fd=fd)
    finally:
        os.close(fd)
    assert (tmp_path / "in" / "a.json").exists()


# private_dir


def test_S2_a_new_directory_and_its_new_parents_are_private_whatever_the_umask(
    tmp_path: Path,
) -> None:
    for number, umask in enumerate((0o000, 0o022, 0o777)):
        leaf = tmp_path / str(number) / "b" / "c"
        before = os.umask(umask)
        try:
            files.private_dir(str(leaf))
        finally:
            os.umask(before)
        assert [mode_of(path) for path in (leaf, leaf.parent, leaf.parent.parent)] == [0o700] * 3


def test_S2_a_loose_directory_of_ours_is_tightened_and_its_parent_left_alone(
    tmp_path: Path,
) -> None:
    leaf = tmp_path / "open" / "questions"
    leaf.mkdir(parents=True)
    leaf.chmod(0o777)
    leaf.parent.chmod(0o755)
    files.private_dir(str(leaf))
    assert (mode_of(leaf), mode_of(leaf.parent)) == (0o700, 0o755)


@pytest.mark.parametrize(("before", "after"), [(0o2750, 0o2700), (0o500, 0o500), (0o701, 0o700)])
def test_tightening_leaves_the_owners_bits(tmp_path: Path, before: int, after: int) -> None:
    leaf = tmp_path / "d"
    leaf.mkdir()
    leaf.chmod(before)
    files.private_dir(str(leaf))
    assert mode_of(leaf) == after
    leaf.chmod(0o700)


def test_private_dir_takes_a_relative_path_and_a_trailing_slash(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    patch.chdir(tmp_path)
    files.private_dir("a/b/")
    files.private_dir("c")
    assert mode_of(tmp_path / "a" / "b") == mode_of(tmp_path / "c") == 0o700


def test_private_dir_follows_a_symlink_to_a_directory_of_ours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("real")
    files.private_dir(str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert mode_of(tmp_path / "real") == 0o700


@pytest.mark.parametrize("leaf", ["file", "file/below", "file/far/below"])
def test_a_file_in_the_way_of_a_directory_is_told(tmp_path: Path, leaf: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        files.private_dir(str(tmp_path / leaf))


@pytest.mark.parametrize("leaf", ["link", "link/below"])
def test_a_dangling_symlink_in_the_way_of_a_directory_is_told(tmp_path: Path, leaf: str) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="link"):
        files.private_dir(str(tmp_path / leaf))


def test_an_empty_path_is_no_directory() -> None:
    with pytest.raises(FileNotFoundError):
        files.private_dir("")


def test_a_directory_of_another_user_is_refused_and_not_changed(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    leaf = tmp_path / "d"
    leaf.mkdir(mode=0o755)
    patch.setattr(os, "geteuid", lambda: leaf.stat().st_uid + 1)
    with pytest.raises(PermissionError, match=rf"another user \(uid {leaf.stat().st_uid}\).*/d"):
        files.private_dir(str(leaf))
    assert mode_of(leaf) == 0o755


# set_aside


def test_KH14_a_bad_file_is_set_aside_and_nothing_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    for n, content in enumerate((b"first", b"second", b"third"), start=1):
        target.write_bytes(content)
        assert files.set_aside(str(target)) == f"{target}.bad-{n}"
    kept = [(tmp_path / f"state.json.bad-{n}").read_bytes() for n in (1, 2, 3)]
    assert kept == [b"first", b"second", b"third"]
    assert not target.exists()


def test_set_aside_does_not_overwrite_a_directory_or_a_dangling_symlink(tmp_path: Path) -> None:
    (tmp_path / "a.bad-1").mkdir()
    (tmp_path / "a.bad-2").symlink_to("nowhere")
    (tmp_path / "a").write_bytes(b"bad")
    assert files.set_aside(str(tmp_path / "a")) == str(tmp_path / "a.bad-3")


def test_set_aside_moves_a_symlink_and_a_fifo_themselves(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    assert os.readlink(files.set_aside(str(tmp_path / "link"))) == "real"
    assert stat.S_ISFIFO(os.lstat(files.set_aside(str(tmp_path / "fifo"))).st_mode)


def test_set_aside_moves_a_directory_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "inside").touch()
    aside = Path(files.set_aside(str(tmp_path / "a")))
    assert names_in(aside) == ["inside"]
    assert names_in(tmp_path) == ["a.bad-1"]


def test_setting_aside_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.set_aside(str(tmp_path / "none"))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("make", ["touch", "mkdir"])
def test_a_failed_rename_gives_the_taken_name_back(
    tmp_path: Path, patch: pytest.MonkeyPatch, make: str
) -> None:
    def fail(old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    getattr(tmp_path / "a", make)()
    patch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.set_aside(str(tmp_path / "a"))
    assert names_in(tmp_path) == ["a"]


def test_two_threads_that_set_files_aside_lose_none(tmp_path: Path) -> None:
    def keep_setting_aside(letter: str) -> None:
        for _ in range(50):
            own = tmp_path / f"own-{letter}"
            own.write_text(letter)
            own.replace(tmp_path / "state.json")
            try:
                files.set_aside(str(tmp_path / "state.json"))
            except FileNotFoundError:
                pass  # the other thread was quicker

    threads = [threading.Thread(target=keep_setting_aside, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    aside = [name for name in names_in(tmp_path) if ".bad-" in name]
    assert aside
    assert {(tmp_path / name).read_text() for name in aside} <= {"a", "b"}


# remove


def test_remove_says_whether_there_was_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert files.remove(str(tmp_path / "a"))
    assert not files.remove(str(tmp_path / "a"))


def test_remove_takes_a_symlink_itself_and_refuses_a_directory(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    assert files.remove(str(tmp_path / "link"))
    with pytest.raises(OSError):
        files.remove(str(tmp_path / "dir"))
    assert names_in(tmp_path) == ["dir"]


def test_a_stopped_writer_is_still_a_writer(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGSTOP)
        name = f".state.json.{child.pid}-1.tmp"
        (tmp_path / name).touch()
        assert files.remove_stale_temps(str(tmp_path)) == 0
        child.kill()
    assert wait(lambda: files.remove_stale_temps(str(tmp_path)) == 1, 5)


# --- append


def test_append_makes_a_private_file_and_tells_its_size(short_tmp):
    path = short_tmp / "log"
    before = os.umask(0)
    try:
        assert files.append(str(path), b"one\n") == 4
    finally:
        os.umask(before)
    assert files.append(str(path), b"two\nthree\n", durable=False) == 14
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_append_ends_a_torn_line_first(short_tmp):
    path = short_tmp / "log"
    path.write_bytes(b"one\nto")
    assert files.append(str(path), b"two\n") == 11
    assert path.read_bytes() == b"one\nto\ntwo\n"


def test_append_leaves_no_part_of_what_did_not_fit(short_tmp, monkeypatch):
    path = short_tmp / "log"
    path.write_bytes(b"one\n")
    really_write = os.write
    room = [3]

    def limited(fd, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = really_write(fd, bytes(data[: room[0]]))
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    with pytest.raises(OSError, match="No space"):
        files.append(str(path), b"two and more\n")
    assert path.read_bytes() == b"one\n"


def test_append_is_on_the_disk_when_it_returns(short_tmp, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    path = short_tmp / "log"
    files.append(str(path), b"one\n")
    files.append(str(path), b"two\n")
    files.append(str(path), b"three\n", durable=False)
    assert synced == [str(path), str(short_tmp), str(path)]


def test_append_takes_only_a_regular_file(short_tmp):
    os.symlink(short_tmp / "other", short_tmp / "link")
    with pytest.raises(OSError):
        files.append(str(short_tmp / "link"), b"x\n")
    assert not (short_tmp / "other").exists()
    os.mkfifo(short_tmp / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        files.append(str(short_tmp / "fifo"), b"x\n")
    with pytest.raises(FileNotFoundError):
        files.append(str(short_tmp / "no" / "log"), b"x\n")
