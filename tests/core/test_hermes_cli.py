import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.core import hermes_cli
from hermes_bridges.core.hermes_cli import TAIL, HermesCli, Result
from hermes_bridges.core.sdnotify import CHILD_UNSET
from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import ConfigError
from tests.conftest import wait

# Written as a Python program: what the child itself sees, as JSON.
DUMP = f"""#!{sys.executable} -IS
import json, os, signal, sys
json.dump({{
    "argv": sys.argv[1:],
    "environ": dict(os.environ),
    "group": os.getpgid(0),
    "pid": os.getpid(),
    "fds": {{n: os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")
            if os.path.lexists("/proc/self/fd/" + n)}},
    "stdin": os.read(0, 10).decode(),
}}, open(os.environ["DUMP_TO"], "w"))
"""


class Stage:
    """A PATH with a fake hermes on it, and a HOME."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.home = root / "home"
        self.dump = root / "dump"
        self.pids = root / "pids"
        self.bin.mkdir()
        self.home.mkdir()
        self.environ = {
            "PATH": f"{root}/nothing:{self.bin}:/usr/bin:/bin",
            "HOME": str(self.home),
            "DUMP_TO": str(self.dump),
            "PIDS": str(self.pids),
        }

    @property
    def program(self) -> Path:
        return self.bin / "hermes"

    def write(self, text: str, mode: int = 0o755) -> None:
        self.program.write_text(text)
        self.program.chmod(mode)

    def shell(self, text: str) -> HermesCli:
        self.write(f"#!/bin/sh\n{text}\n")
        return self.cli()

    def cli(self, profile: str | None = None) -> HermesCli:
        return HermesCli(self.environ, profile)

    def seen(self, cli: HermesCli, *args: str) -> dict[str, object]:
        result = cli.run(args, 20)
        assert result == Result(code=0), result
        found: dict[str, object] = json.loads(self.dump.read_text())
        return found

    def left(self) -> list[int]:
        """Which of the processes that wrote their ids down still run."""
        pids = [int(word) for word in self.pids.read_text().split()] if self.pids.exists() else []
        return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.fixture
def stage(short_tmp: Path) -> Iterator[Stage]:
    stage = Stage(short_tmp)
    yield stage
    for pid in stage.left():
        os.kill(pid, signal.SIGKILL)


def timed(run: Callable[[], Result]) -> tuple[Result, float]:
    before = time.monotonic()
    result = run()
    return result, time.monotonic() - before


def test_the_outcome_and_both_streams_are_told(stage: Stage) -> None:
    cli = stage.shell('echo "out $*"; echo "err ü" >&2; exit 3')
    assert cli.run(["send", "--to", "x"], 10) == Result(
        code=3, out="out send --to x\n", err="err ü\n"
    )


def test_a_command_that_dies_by_a_signal_has_no_code(stage: Stage) -> None:
    result = stage.shell("kill -USR1 $$").run([], 10)
    assert (result.code, result.signal) == (None, signal.SIGUSR1)
    assert not result.timed_out and not result.stopped and result.error is None


def test_KH08_a_background_child_that_holds_the_pipes_delays_nobody(stage: Stage) -> None:
    cli = stage.shell('sleep 60 & echo $! >>"$PIDS"; echo ok; exit 0')
    result, took = timed(lambda: cli.run([], 10))
    assert result == Result(code=0, out="ok\n")
    assert took < 1.5
    assert wait(lambda: not stage.left(), 2)


def test_KH08_the_whole_group_ends_at_the_limit(stage: Stage) -> None:
    cli = stage.shell('sleep 60 & echo $! $$ >>"$PIDS"; echo begun; wait')
    result, took = timed(lambda: cli.run([], 0.5))
    assert (result.timed_out, result.stopped, result.code) == (True, False, None)
    assert result.out == "begun\n"
    assert 0.5 <= took < 2
    assert wait(lambda: not stage.left(), 2)


def test_KH08_a_megabyte_of_stderr_before_stdout_blocks_nobody(stage: Stage) -> None:
    cli = stage.shell(
        "i=0; while [ $i -lt 16 ]; do head -c 65536 /dev/zero | tr '\\0' x >&2; i=$((i+1)); done;"
        " echo the end >&2; echo done"
    )
    result, took = timed(lambda: cli.run([], 20))
    assert (result.code, result.out) == (0, "done\n")
    assert result.err.endswith("xthe end\n")
    assert len(result.err) <= TAIL
    assert took < 10


def test_KH08_stdin_is_at_its_end(stage: Stage) -> None:
    result, took = timed(lambda: stage.shell("cat; echo eof").run([], 10))
    assert result == Result(code=0, out="eof\n")
    assert took < 2


def test_a_child_that_ignores_sigterm_is_killed(stage: Stage) -> None:
    cli = stage.shell('trap "" TERM; echo $$ >>"$PIDS"; while :; do sleep 60; done')
    result, took = timed(lambda: cli.run([], 0.5))
    assert result.timed_out
    assert result.signal == signal.SIGKILL
    assert 1.0 <= took < 2.5
    assert wait(lambda: not stage.left(), 2)


def test_a_helper_that_ignores_sigterm_is_killed_although_its_leader_obeyed(stage: Stage) -> None:
    cli = stage.shell('(trap "" TERM; while :; do sleep 60; done) & echo $! >>"$PIDS"; wait')
    result, took = timed(lambda: cli.run([], 0.5))
    assert result.timed_out
    assert result.signal == signal.SIGTERM
    assert took < 2
    assert wait(lambda: not stage.left(), 2)


def test_a_child_that_takes_sigterm_as_its_chance_to_finish_may(stage: Stage) -> None:
    cli = stage.shell('trap "echo bye; exit 5" TERM; echo $$ >>"$PIDS"; sleep 60 & wait')
    result, took = timed(lambda: cli.run([], 0.5))
    assert (result.timed_out, result.code, result.out) == (True, 5, "bye\n")
    assert took < 2


def test_a_stopped_child_is_killed(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; kill -STOP $$')
    result, took = timed(lambda: cli.run([], 0.3))
    assert result.timed_out
    assert took < 3
    assert wait(lambda: not stage.left(), 2)


def test_a_child_that_closes_its_pipes_early_is_still_waited_for(stage: Stage) -> None:
    cli = stage.shell("echo early; exec >&- 2>&-; sleep 0.4; exit 4")
    result, took = timed(lambda: cli.run([], 10))
    assert result == Result(code=4, out="early\n")
    assert took >= 0.4


def test_closed_pipes_do_not_hide_a_child_from_its_limit(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; exec >&- 2>&-; sleep 60')
    result, took = timed(lambda: cli.run([], 0.3))
    assert result.timed_out
    assert took < 2
    assert wait(lambda: not stage.left(), 2)


def test_a_child_that_never_stops_writing_ends_at_its_limit(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; exec yes')
    result, took = timed(lambda: cli.run([], 0.3))
    assert result.timed_out
    assert result.out == "y\n" * (len(result.out) // 2)
    assert took < 2


def test_a_helper_that_goes_on_writing_after_its_leader_is_read_for_a_moment(stage: Stage) -> None:
    cli = stage.shell("(sleep 0.05; echo late; exec sleep 60) & exit 0")
    result, took = timed(lambda: cli.run([], 10))
    assert result == Result(code=0, out="late\n")
    assert took < 2


def test_a_helper_outside_the_group_cannot_hold_the_call(stage: Stage) -> None:
    cli = stage.shell("setsid sh -c 'echo $$ >>\"$PIDS\"; exec sleep 60' & sleep 0.2; echo ok")
    result, took = timed(lambda: cli.run([], 10))
    assert result == Result(code=0, out="ok\n")
    assert took < 2


def test_a_stop_ends_the_command(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; sleep 60 & echo $! >>"$PIDS"; echo begun; wait')
    stop = Waker()
    timer = threading.Timer(0.3, stop.wake)
    timer.start()
    result, took = timed(lambda: cli.run([], 60, stop=stop))
    assert (result.stopped, result.timed_out, result.error) == (True, False, None)
    assert result.out == "begun\n"
    assert took < 2
    assert wait(lambda: not stage.left(), 2)
    assert stop.wait(0), "the stop was drained, and other commands would not see it"
    timer.join()
    stop.close()


def test_one_stop_ends_all_commands(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; exec sleep 60')
    stop = Waker()
    results: list[Result] = []
    threads = [
        threading.Thread(target=lambda: results.append(cli.run([], 60, stop=stop)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert wait(lambda: stage.pids.exists() and len(stage.left()) == 4, 10)
    stop.wake()
    for thread in threads:
        thread.join(3)
    assert [result.stopped for result in results] == [True] * 4
    assert wait(lambda: not stage.left(), 2)
    stop.close()


def test_after_a_stop_nothing_is_started(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"')
    stop = Waker()
    stop.wake()
    result = cli.run([], 10, stop=stop)
    assert result.stopped
    assert result.error == "stopped before it was started"
    assert not stage.pids.exists()
    stop.close()


def test_a_stop_that_comes_after_the_exit_changes_nothing(stage: Stage) -> None:
    stop = Waker()
    cli = stage.shell("sleep 60 & exit 0")
    timer = threading.Timer(0.1, stop.wake)
    timer.start()
    assert cli.run([], 10, stop=stop) == Result(code=0)
    timer.join()
    stop.close()


@pytest.mark.parametrize(
    ("script", "unknown"), [("exit 1", False), ("sleep 60", True), ("echo careful >&2", False)]
)
def test_KH23_what_is_known_of_a_delivery(stage: Stage, script: str, unknown: bool) -> None:
    cli = stage.shell(f'echo "$@" >>"$PIDS.texts"; {script}')
    result = cli.run(["send", "text"], 0.5)
    assert result.timed_out is unknown
    assert (result.code == 0) is ("careful" in script)
    assert Path(f"{stage.pids}.texts").read_text() == "send text\n"


def test_a_missing_hermes_is_named(stage: Stage) -> None:
    cli = stage.cli()
    assert cli.run(["send"], 10) == Result(error="hermes was not found on PATH")
    assert cli.find() is None


def test_a_hermes_that_may_not_be_executed_is_named(stage: Stage) -> None:
    stage.write("#!/bin/sh\n", mode=0o644)
    cli = stage.cli()
    assert cli.run(["send"], 10).error == f"{stage.program} is not executable"
    assert cli.find() is None


def test_a_directory_of_that_name_is_no_command(stage: Stage) -> None:
    stage.program.mkdir()
    cli = stage.cli()
    assert cli.find() is None
    assert cli.run(["send"], 10).error in (
        "hermes on PATH is not executable",
        "hermes was not found on PATH",
    )


def test_a_hermes_without_its_interpreter_is_not_called_missing(stage: Stage) -> None:
    stage.write("#!/no/such/python\n")
    error = stage.cli().run(["send"], 10).error
    assert error is not None
    assert str(stage.program) in error and "interpreter" in error


def test_a_hermes_that_is_no_program_is_told(stage: Stage) -> None:
    stage.write("\x7fELF nonsense")
    error = stage.cli().run(["send"], 10).error
    assert error is not None
    assert error.startswith("hermes could not be started: ")


def test_an_argument_that_the_kernel_refuses_is_told(stage: Stage) -> None:
    error = stage.shell("exit 0").run(["send", "x" * 200_000], 10).error
    assert error == "hermes could not be started: Argument list too long"


@pytest.mark.parametrize("value", ["a\0b", "\ud83d"])
def test_an_environment_that_cannot_be_passed_is_told_without_its_values(
    stage: Stage, value: str
) -> None:
    stage.environ["SECRET"] = value
    result = stage.shell("exit 0").run(["send"], 10)
    assert result == Result(error="hermes could not be started: unusable environment")


def test_the_first_hermes_on_the_path_is_found_and_run(stage: Stage) -> None:
    cli = stage.shell("echo me")
    assert cli.find() == str(stage.program)
    assert cli.run([], 10).out == "me\n"


def test_too_few_descriptors_are_told_and_nothing_is_left(stage: Stage) -> None:
    code = """
import os, resource, sys
from hermes_bridges.core.hermes_cli import HermesCli
cli = HermesCli(os.environ)
lowest = os.open("/dev/null", os.O_RDONLY)
os.close(lowest)
for room in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, 4096))
    result = cli.run(["send"], 20)
    print(result.code, result.error)
    if result.code == 0:
        break
left = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
assert len(os.listdir("/proc/self/fd")) <= lowest + 1
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""
    stage.shell("exit 0")
    lines = run_python(code, stage.environ)
    assert lines[-1] == "no child"
    assert lines[-2] == "0 None"
    assert any("could not be started: Too many open files" in line for line in lines)


def test_a_command_that_cannot_be_watched_is_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; exec sleep 60')

    def refuse(pid: int) -> int:
        assert wait(lambda: stage.pids.exists(), 5)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert cli.run([], 10) == Result(error="hermes could not be watched: Too many open files")
    assert not stage.left()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_ignored_sigchld_gives_an_unknown_end_not_a_success(stage: Stage) -> None:
    code = """
import os, signal
from hermes_bridges.core.hermes_cli import HermesCli
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
result = HermesCli(os.environ).run(["send"], 20)
print(result.code, result.signal, result.timed_out)
"""
    stage.shell("sleep 0.3; exit 1")
    assert run_python(code, stage.environ) == ["None None False"]


def run_python(code: str, environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_without_pidfds_is_refused_clearly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(ConfigError, match=r"Linux 5\.3.*Function not implemented"):
        stage.cli()
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ConfigError, match=r"Linux 5\.3"):
        stage.cli()


def test_KH27_lone_surrogates_and_nul_never_reach_the_command_nor_raise(stage: Stage) -> None:
    stage.write(DUMP)
    seen = stage.seen(
        stage.cli(), "hi \ud83d there", "\udc80", "\ud83d\ude00", "a\0b", "\ude00\ud83d", "", "❓ü"
    )
    assert seen["argv"] == [
        "hi \ufffd there",
        "\ufffd",
        "😀",
        "ab",
        "\ufffd\ufffd",
        "",
        "❓ü",
    ]


def test_KH27_texts_are_utf8_whatever_the_locale(stage: Stage) -> None:
    code = """
import os
from hermes_bridges.core.hermes_cli import HermesCli
print(HermesCli(os.environ).run(["send", chr(0x2753)], 20).code)
"""
    stage.write(DUMP)
    environ = stage.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run_python(code, environ) == ["0"]
    written = json.loads(stage.dump.read_text())["argv"]
    assert written == ["send", "❓"]


def test_output_that_is_not_utf8_is_replaced(stage: Stage) -> None:
    assert stage.shell(r"printf 'a\377b'").run([], 10).out == "a\ufffdb"


def test_KH22_a_cut_never_starts_within_a_word(stage: Stage) -> None:
    # 4,096 bytes from the end is in the middle of the secret.
    cli = stage.shell(
        "head -c 5000 /dev/zero | tr '\\0' a; printf ' SECRET123SECRET456 '; "
        "head -c 4085 /dev/zero | tr '\\0' b"
    )
    out = cli.run([], 10).out
    assert "SECRET" not in out
    assert out == "b" * 4085


def test_a_cut_without_any_blank_keeps_whole_characters(stage: Stage) -> None:
    cli = stage.shell("i=0; while [ $i -lt 2000 ]; do printf '€'; i=$((i+1)); done")
    out = cli.run([], 20).out
    assert out == "€" * (TAIL // 3)


def test_a_tail_is_exactly_the_last_of_it(stage: Stage) -> None:
    cli = stage.shell("head -c 4096 /dev/zero | tr '\\0' 'b'")
    assert cli.run([], 10).out == "b" * TAIL
    cli = stage.shell("printf 'ab '; head -c 4096 /dev/zero | tr '\\0' 'b'")
    assert cli.run([], 10).out == "b" * TAIL


def test_KH40_the_child_sees_none_of_the_service_managers_variables(stage: Stage) -> None:
    stage.write(DUMP)
    stage.environ |= dict.fromkeys(CHILD_UNSET, "1") | {"KEPT": "ü \udcff"}
    environ = stage.seen(stage.cli())["environ"]
    assert isinstance(environ, dict)
    assert not set(CHILD_UNSET) & set(environ)
    assert environ["KEPT"] == "ü \udcff"
    assert environ["PATH"] == stage.environ["PATH"]


def test_only_the_given_environment_counts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAY", "1")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    stage.write(DUMP)
    cli = stage.cli()
    stage.environ["LATER"] = "1"
    environ = stage.seen(cli)["environ"]
    assert isinstance(environ, dict)
    assert not {"STRAY", "LATER"} & set(environ)


def test_the_child_is_as_a_users_own_command(stage: Stage) -> None:
    stage.write(DUMP)
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        seen = stage.seen(stage.cli())
    finally:
        os.close(inheritable)
    assert seen["group"] == seen["pid"]
    assert seen["stdin"] == ""
    fds = seen["fds"]
    assert isinstance(fds, dict)
    assert set(fds) == {"0", "1", "2"}
    assert fds["0"] == "/dev/null"


def test_umask_and_signals_are_the_users_own(stage: Stage) -> None:
    cli = stage.shell("exec grep -E '^(Umask|SigBlk|SigIgn):' /proc/self/status")
    former = os.umask(0o027)
    try:
        lines = cli.run([], 10).out.splitlines()
    finally:
        os.umask(former)
    seen = {
        name: int(value, 8 if name == "Umask:" else 16) for name, value in map(str.split, lines)
    }
    # Python itself ignores these two.
    ours = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert seen["Umask:"] == 0o027
    assert seen["SigBlk:"] == 0
    assert not seen["SigIgn:"] & ours


def profile_file(home: Path, text: str | None) -> None:
    path = home / "active_profile"
    if text is None:
        path.unlink(missing_ok=True)
    else:
        home.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def child(stage: Stage, cli: HermesCli) -> tuple[object, object]:
    seen = stage.seen(cli, "send")
    environ = seen["environ"]
    assert isinstance(environ, dict)
    return seen["argv"], environ["HERMES_HOME"]


def test_KH03_the_home_is_always_passed(stage: Stage) -> None:
    stage.write(DUMP)
    root = f"{stage.home}/.hermes"
    assert child(stage, stage.cli()) == (["send"], root)
    assert stage.cli().home == root
    stage.environ["HERMES_HOME"] = f"{stage.home}/other/"
    assert child(stage, stage.cli()) == (["send"], f"{stage.home}/other")
    del stage.environ["HOME"]
    assert child(stage, stage.cli()) == (["send"], f"{stage.home}/other")


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "", "HERMES_HOME": ""}])
def test_KH03_no_home_at_all_is_told_at_the_start(environ: dict[str, str]) -> None:
    for profile in (None, "work"):
        with pytest.raises(ConfigError, match="neither HERMES_HOME nor HOME is set"):
            HermesCli(environ, profile)


def test_KH03_a_given_profile_is_always_named(stage: Stage) -> None:
    stage.write(DUMP)
    root = stage.home / ".hermes"
    profile_file(root, "other")
    cli = stage.cli("work")
    assert child(stage, cli) == (["--profile", "work", "send"], str(root))
    profile_file(root, None)
    assert child(stage, cli) == (["--profile", "work", "send"], str(root))


def test_KH03_switching_the_active_profile_changes_nothing(stage: Stage) -> None:
    stage.write(DUMP)
    root = stage.home / ".hermes"
    (root / "profiles" / "work").mkdir(parents=True)
    (root / "profiles" / "play").mkdir(parents=True)

    profile_file(root, "work\n")
    pinned = stage.cli()
    for text in ("work\n", "play\n", "default\n", None):
        profile_file(root, text)
        assert child(stage, pinned) == (["send"], str(root / "profiles" / "work"))

    for text in (None, "", "default\n"):
        profile_file(root, text)
        default = stage.cli()
        assert child(stage, default) == (["send"], str(root))
        profile_file(root, "play\n")
        assert child(stage, default) == (["--profile", "default", "send"], str(root))


def test_KH03_a_profile_that_cannot_be_looked_up_any_more_is_named(stage: Stage) -> None:
    stage.write(DUMP)
    root = stage.home / ".hermes"
    cli = stage.cli()
    (root / "active_profile").mkdir(parents=True)
    assert child(stage, cli) == (["--profile", "default", "send"], str(root))


def test_KH03_a_home_of_a_profile_is_taken_as_it_is(stage: Stage) -> None:
    stage.write(DUMP)
    home = stage.home / ".hermes" / "profiles" / "work"
    home.mkdir(parents=True)
    profile_file(home, "play")
    profile_file(home.parent.parent, "play")
    stage.environ["HERMES_HOME"] = str(home)
    assert child(stage, stage.cli()) == (["send"], str(home))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("../../etc", "does not hold a profile name"),
        ("a/b", "does not hold a profile name"),
        ("a..b", "does not hold a profile name"),
        ("a\nb", "does not hold a profile name"),
        ("\0" * 100, "does not hold a profile name"),
        ("x" * 10_000, "does not exist"),
        ("ghost", "names ghost, a profile that does not exist"),
    ],
)
def test_KH03_an_active_profile_that_cannot_be_is_told_at_the_start(
    stage: Stage, text: str, fault: str
) -> None:
    profile_file(stage.home / ".hermes", text)
    with pytest.raises(ConfigError, match=fault):
        stage.cli()


def test_KH03_an_active_profile_that_cannot_be_read_is_told_at_the_start(stage: Stage) -> None:
    (stage.home / ".hermes" / "active_profile").mkdir(parents=True)
    with pytest.raises(ConfigError, match="active_profile cannot be read: Is a directory"):
        stage.cli()


def test_a_fifo_as_active_profile_holds_nobody(stage: Stage) -> None:
    (stage.home / ".hermes").mkdir()
    os.mkfifo(stage.home / ".hermes" / "active_profile")
    assert stage.cli().home == f"{stage.home}/.hermes"


def test_a_home_that_is_a_file_has_no_profiles(stage: Stage) -> None:
    (stage.home / ".hermes").write_text("")
    assert stage.cli().home == f"{stage.home}/.hermes"


def test_KH43_a_command_that_is_killed_with_the_daemon_is_told_as_such(stage: Stage) -> None:
    cli = stage.shell('echo $$ >>"$PIDS"; sleep 60')
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(cli.run([], 30)))
    thread.start()
    assert wait(lambda: stage.pids.exists() and stage.left(), 5)
    for pid in stage.left():
        os.killpg(pid, signal.SIGTERM)
    thread.join(3)
    assert results == [Result(signal=signal.SIGTERM)]


def test_a_limit_is_counted_by_the_given_clock(stage: Stage) -> None:
    stage.shell('echo $$ >>"$PIDS"; exec sleep 60')
    late = iter([10.0])
    cli = HermesCli(stage.environ, clock=lambda: time.monotonic() - next(late, 0.0))
    result, took = timed(lambda: cli.run([], 9))
    assert result.timed_out
    assert took < 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_command_that_does_not_go_holds_nobody(stage: Stage) -> None:
    # By this clock each wait is over before the kernel could report anything.
    stage.shell("exec sleep 60")
    hours = itertools.count()
    cli = HermesCli(stage.environ, clock=lambda: next(hours) * 3600.0)
    result, took = timed(lambda: cli.run([], 5))
    assert result == Result(timed_out=True)
    assert took < 2
    assert os.waitid(os.P_ALL, 0, os.WEXITED) is not None


def test_no_descriptor_and_no_zombie_is_left(stage: Stage) -> None:
    cli = stage.shell("echo x; exit 1")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert cli.run([], 10).code == 1
    assert set(os.listdir("/proc/self/fd")) == before
    assert stat.S_ISREG(os.stat(stage.program).st_mode)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_module_knows_the_name_of_the_program() -> None:
    assert hermes_cli.PROGRAM == "hermes"


def test_more_of_the_output_is_kept_when_asked_for(stage: Stage) -> None:
    stage.shell("yes 0123456789 | head -c 20000")
    assert len(HermesCli(stage.environ, tail=30000).run([], 10).out) == 20000
    assert len(HermesCli(stage.environ, tail=100).run([], 10).out) <= 100


def test_a_launched_command_is_on_its_own(stage: Stage, tmp_path: Path) -> None:
    stage.write(DUMP)
    with (tmp_path / "said").open("wb") as said:
        pid = stage.cli("work").launch(["gateway", "restart"], said.fileno())
    assert os.waitid(os.P_PID, pid, os.WEXITED) is not None
    found = json.loads(stage.dump.read_text())
    assert found["argv"] == ["--profile", "work", "gateway", "restart"]
    assert found["environ"]["HERMES_HOME"] == str(stage.home / ".hermes")
    assert found["group"] == found["pid"] == pid
    assert found["stdin"] == ""
    assert {name: found["fds"][name] for name in "012"} == {
        "0": "/dev/null",
        "1": str(tmp_path / "said"),
        "2": str(tmp_path / "said"),
    }


def test_what_cannot_be_launched_is_an_error(stage: Stage) -> None:
    with pytest.raises(FileNotFoundError, match="hermes was not found on PATH"):
        stage.cli().launch([], 1)
    stage.write("#!/nonexistent/interpreter\n")
    with pytest.raises(OSError):
        stage.cli().launch([], 1)
