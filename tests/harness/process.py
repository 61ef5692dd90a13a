"""A daemon as a child process: start, stop, kill and pause it, and look at it from outside.

`wait` is the only way to wait for anything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, TypeVar

from . import journal

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Coverage of the daemon, and the mark by which a test session finds what outlived it.
INHERITED = ("COVERAGE_", "HERMES_BRIDGES_TEST_SESSION")
COMPLAINTS = ("Traceback (most recent call last)", "Exception in thread", "Exception ignored")

T = TypeVar("T")


def wait(predicate: Callable[[], T | None], deadline: float = 10.0, what: str = "") -> T:
    """Calls `predicate` until it is true and returns what it said; fails after `deadline` s."""
    end = time.monotonic() + deadline
    pause = 0.002
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline:g} s: {what or predicate!r} ({value!r})")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def stays(predicate: Callable[[], object], seconds: float, what: str = "") -> None:
    """Fails as soon as `predicate` is false within the next `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert predicate(), f"did not stay so: {what or predicate!r}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _pump(pipe: IO[bytes], path: str) -> None:
    with pipe, open(path, "ab", buffering=0) as file:
        while chunk := os.read(pipe.fileno(), 65536):
            file.write(chunk)


class Process:
    """One daemon process, which may be started again and again; its life is noted down.

    `facts` are part of each note. What it prints goes to a file below `journals` for each run.
    """

    def __init__(
        self,
        command: Iterable[str],
        environ: Mapping[str, str],
        cwd: str,
        journals: str,
        notes: str,
        *,
        umask: int = -1,
        pump: bool = False,
        **facts: Any,
    ) -> None:
        """notes: the name of the journal.
        pump: stdout and stderr go through a pipe, for a daemon that may not write to files.
        """
        self.command = list(command)
        self.environ = dict(environ)
        self.cwd = cwd
        self.journals = journals
        self.umask = umask
        self.pump = pump
        self.facts = facts
        self.process: subprocess.Popen[bytes] | None = None
        self.journal = journal.Journal(os.path.join(journals, notes))
        self.runs: list[str] = []
        self.begun = self.started = 0.0  # monotonic: when it was started, when it was ready

    # Life

    @property
    def pid(self) -> int:
        assert self.process is not None, "the daemon was never started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Starts it, and waits for nothing."""
        assert not self.running, "the daemon runs already"
        number = len(os.listdir(self.journals))
        self.runs.append(os.path.join(self.journals, f"stderr-{number}-{id(self)}.txt"))
        with open(self.runs[-1], "xb") as stderr:
            self.begun = self._note("start")
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.pump else stderr,
                stderr=subprocess.STDOUT,
                env=self.environ,
                cwd=self.cwd,
                umask=self.umask,
            )
        if self.process.stdout is not None:
            arguments = (self.process.stdout, self.runs[-1])
            threading.Thread(target=_pump, args=arguments, name="pump", daemon=True).start()

    def wait_true(self, is_ready: Callable[[], object], deadline: float, what: str) -> None:
        """Waits for a sign that it is ready; fails at once when it ends."""

        def look() -> bool:
            if not self.running:
                raise AssertionError(f"ended with {self.pid_and_code()}: {self.stderr()}")
            return bool(is_ready())

        wait(look, deadline, what)
        self.started = self._note("ready")

    def send_signal(self, number: int) -> None:
        """Sends a signal that asks the daemon to stop (or any other)."""
        self._note("signal", number=int(number))
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        assert self.process is not None
        self._note("kill")
        self.process.kill()
        self.process.wait()
        self._note("dead", code=self.process.returncode)

    def pause(self) -> None:
        self._note("pause")
        os.kill(self.pid, signal.SIGSTOP)
        wait(lambda: self._state() == "T", 5.0, "the daemon is paused")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._note("resume")

    def _state(self) -> str:
        with open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    def wait_exit(self, limit: float = 2.0) -> int:
        """The exit code (negative: the signal); fails if it takes longer than `limit` seconds."""
        assert self.process is not None
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the daemon still runs {limit:g} s after it was to stop: {self.stderr()[-2000:]}"
            ) from None
        self._note("stopped", code=code)
        return code

    def stop(self, number: int = signal.SIGTERM, limit: float = 2.0) -> int:
        self.send_signal(number)
        return self.wait_exit(limit)

    def end(self) -> None:
        """For clean-up: whatever state it is in, it does not run afterwards."""
        if self.running:
            self.kill()
        self.journal.close()

    def _note(self, what: str, **fields: Any) -> float:
        pid = self.process.pid if self.process is not None else None
        return self.journal.note(what, pid=pid, **self.facts, **fields)

    def pid_and_code(self) -> str:
        code = self.process.poll() if self.process is not None else None
        return f"pid {self.process.pid if self.process else None}, code {code}"

    # Looking inside

    def stderr(self) -> str:
        """stdout and stderr of this run."""
        return self._read(self.runs[-1]) if self.runs else ""

    def all_stderr(self) -> str:
        return "".join(map(self._read, self.runs))

    @staticmethod
    def _read(path: str) -> str:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def assert_no_traceback(self) -> None:
        text = self.all_stderr()
        for sign in COMPLAINTS:
            assert sign not in text, text[-6000:]

    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Processor seconds used so far, children not counted."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def open_sockets(self) -> int:
        """As `open_files`, but only sockets: files come and go by themselves."""
        count = 0
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(f"/proc/{self.pid}/fd/{name}").startswith("socket:")
        return count

    def children(self) -> list[int]:
        """Processes whose parent is the daemon."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == self.pid:
                        found.append(int(name))
        return found
