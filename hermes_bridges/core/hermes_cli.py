"""Runs one ``hermes`` command: own process group, a time limit, bounded output."""

import errno
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from hermes_bridges.core.sdnotify import CHILD_UNSET
from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import ConfigError

PROGRAM = "hermes"
TAIL = 4096
"""Bytes kept of the end of each output stream, unless told otherwise."""

_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
_GRACE_AT_STOP = 0.1  # the same when the daemon ends: a second signal leaves it 0.3 s in all
_LINGER = 0.2  # seconds for the rest of the output once the leader has exited
_REAP = 1.0  # seconds until a killed leader must have gone
_CHUNK = 65536
_TORN_WORD = re.compile(rb"[^\s]{0,1024}\s")
_TORN_CHARACTER = bytes(range(0x80, 0xC0))
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_DEFAULT_NAMES = ("", "default")
_PROFILE_FILE_LIMIT = 4096


class Result(NamedTuple):
    """How one command ended.

    ``code`` is the exit status and ``signal`` the signal that ended it; both are None when it
    was not started or its end could not be learnt. ``out`` and ``err`` are the tails of its
    output as it wrote them: the caller masks secrets. ``timed_out`` and ``stopped`` tell that it
    was ended early: what it had done by then is unknown. ``error`` is set when it did not run at
    all; together with ``stopped`` when the stop came before the start.
    """

    code: int | None = None
    signal: int | None = None
    out: str = ""
    err: str = ""
    timed_out: bool = False
    stopped: bool = False
    error: str | None = None


class HermesCli:
    """Runs ``hermes`` for one profile, which is settled here and never changes afterwards.

    ``home`` is the HERMES_HOME that every child gets, ``tail`` the number of bytes that are kept
    of the end of each output stream. Immutable: any number of threads may call ``run`` at once.
    Raises ConfigError when no home or profile can be made out, or when there are no pidfds (Linux
    before 5.3).
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        profile: str | None = None,
        *,
        tail: int = TAIL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _need_pidfd()
        self._tail = tail
        self._clock = clock
        self.profile = profile
        self.home = self._root = _hermes_root(environ)
        self._follows_default = False
        if profile is None and not _is_profile_home(self._root):
            active = _active_profile(self._root)
            if active is None:
                self._follows_default = True
            else:
                self.home = _profile_home(self._root, active)
        self._environ = {name: environ[name] for name in environ if name not in CHILD_UNSET}
        self._environ["HERMES_HOME"] = self.home

    def run(self, args: Sequence[str], limit: float, *, stop: Waker | None = None) -> Result:
        """Run ``hermes args`` for at most ``limit`` seconds, or until ``stop`` is woken.

        ``stop`` is only looked at, never drained: one waker ends any number of commands. Returns
        at the latest about a second after the limit or the stop; by then everything in the
        command's process group has been killed. Raises nothing for a command that fails.
        """
        if stop is not None and stop.pending():
            return Result(stopped=True, error="stopped before it was started")
        try:
            process = subprocess.Popen(
                self._argv(args),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=self._environ,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            return Result(error=self._start_error(error))
        return _Child(process, self._tail, self._clock).follow(limit, stop)

    def launch(self, args: Sequence[str], output: int) -> int:
        """Start ``hermes args`` and leave it alone; returns its process id.

        For a command that may become a daemon, which ``run`` would kill: it gets a session of its
        own, and what it prints goes to the descriptor ``output``, which must be no pipe to this
        process. The caller may wait for it. Raises OSError when it cannot be started.
        """
        path = self.find()
        if path is None:
            raise FileNotFoundError(errno.ENOENT, f"{PROGRAM} was not found on PATH")
        return os.posix_spawn(
            path,
            self._argv(args),
            self._environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            ],
            setsid=True,
        )

    def find(self) -> str | None:
        """The path of the ``hermes`` that ``run`` would start; None when there is none."""
        return next((path for path in self._candidates() if os.access(path, os.X_OK)), None)

    def _argv(self, args: Sequence[str]) -> list[bytes]:
        return [_clean(arg) for arg in (PROGRAM, *self._profile_args(), *args)]

    def _profile_args(self) -> list[str]:
        if self.profile is not None:
            return ["--profile", self.profile]
        # With a root as its home, hermes follows active_profile; only once that names another
        # profile must the default one be asked for.
        if self._follows_default and not _is_default_active(self._root):
            return ["--profile", "default"]
        return []

    def _candidates(self) -> list[str]:
        paths = [os.path.join(folder, PROGRAM) for folder in os.get_exec_path(self._environ)]
        return [path for path in paths if os.path.isfile(path)]

    def _start_error(self, error: OSError | ValueError) -> str:
        found = next(iter(self._candidates()), None)
        if isinstance(error, FileNotFoundError):
            if found is None:
                return f"{PROGRAM} was not found on PATH"
            return f"{found} could not be started: the interpreter it names is missing"
        if isinstance(error, PermissionError):
            return f"{found or PROGRAM + ' on PATH'} is not executable"
        reason = error.strerror if isinstance(error, OSError) else "unusable environment"
        return f"{PROGRAM} could not be started: {reason}"


class _Output:
    """The tail of one output stream, read without ever blocking."""

    def __init__(self, pipe: IO[bytes], tail: int) -> None:
        self.fd = pipe.fileno()
        self._tail = tail
        self.open = True
        self._kept = bytearray()
        self._cut = False
        os.set_blocking(self.fd, False)

    def read(self) -> bool:
        """Take what is there; False at the end of the stream."""
        chunk = os.read(self.fd, _CHUNK)
        self.open = bool(chunk)
        self._kept += chunk
        if len(self._kept) > self._tail:
            self._cut = True
            del self._kept[: -self._tail]
        return self.open

    def text(self) -> str:
        kept = bytes(self._kept)
        if self._cut:
            # The first word may be the rest of a secret, which no mask would know again.
            torn = _TORN_WORD.match(kept)
            kept = kept[torn.end() :] if torn else kept.lstrip(_TORN_CHARACTER)
        return kept.decode("utf-8", "replace")


class _Child:
    """One running command. Owned by the thread that runs it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", tail: int, clock: Callable[[], float]
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._clock = clock
        self._pipes = (process.stdout, process.stderr)
        self._outputs = (_Output(process.stdout, tail), _Output(process.stderr, tail))
        self._pidfd = -1
        self._exited_at: float | None = None
        self._stop_seen = False
        self._selector = selectors.PollSelector()

    def follow(self, limit: float, stop: Waker | None) -> Result:
        """Read and wait until the command has ended, by itself or by force."""
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            return Result(error=f"{PROGRAM} could not be watched: {error.strerror}")
        else:
            return self._follow(limit, stop)
        finally:
            self._close()

    def _follow(self, limit: float, stop: Waker | None) -> Result:
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._on_exit)
        for output in self._outputs:
            self._selector.register(output.fd, selectors.EVENT_READ, output.read)
        if stop is not None:
            self._selector.register(stop.fileno(), selectors.EVENT_READ, self._on_stop)
        self._turn(self._clock() + limit, stoppable=True)
        cut_short = self._exited_at is None
        if cut_short:
            self._signal_group(signal.SIGTERM)
            grace = _GRACE_AT_STOP if self._stop_seen else _GRACE
            self._turn(self._clock() + grace)
        # Before the leader is reaped, as long as its number cannot be anybody else's. After an
        # exit by itself too: nothing that it left in its group may outlive it.
        self._signal_group(signal.SIGKILL)
        self._turn(self._clock() + _REAP)
        code, number = self._exit_status()
        return Result(
            code=code,
            signal=number,
            out=self._outputs[0].text(),
            err=self._outputs[1].text(),
            timed_out=cut_short and not self._stop_seen,
            stopped=cut_short and self._stop_seen,
        )

    def _turn(self, deadline: float, *, stoppable: bool = False) -> None:
        """Serve what is readable until all has ended, the deadline, or (stoppable) the stop."""
        while True:
            if self._exited_at is not None:
                if not any(output.open for output in self._outputs):
                    return
                deadline = min(deadline, self._exited_at + _LINGER)
            left = deadline - self._clock()
            if left <= 0 or (stoppable and self._stop_seen):
                return
            for key, _ in self._selector.select(left):
                if not key.data():
                    self._selector.unregister(key.fileobj)

    def _on_exit(self) -> bool:
        self._exited_at = self._clock()
        return False

    def _on_stop(self) -> bool:
        self._stop_seen = True
        return False

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            # Nobody is left in it, or the command runs as another user.
            pass

    def _exit_status(self) -> tuple[int | None, int | None]:
        if self._exited_at is None:
            # Killed and still there: stuck in the kernel. Popen reaps it at some later start.
            return None, None
        try:
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # SIGCHLD is ignored in this process, and the kernel threw the status away: Popen
            # would call that a success.
            return None, None
        code = self._process.wait()
        return (code, None) if code >= 0 else (None, -code)

    def _close(self) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)


def _need_pidfd() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        reason = getattr(error, "strerror", None) or "not known to this Python"
        raise ConfigError(f"pidfd_open is needed (Linux 5.3 or newer): {reason}") from None


def _hermes_root(environ: Mapping[str, str]) -> str:
    home = environ.get("HERMES_HOME", "")
    if home:
        return os.path.abspath(home)
    home = environ.get("HOME", "")
    if home:
        return os.path.join(os.path.abspath(home), ".hermes")
    raise ConfigError("neither HERMES_HOME nor HOME is set: hermes would not know its profile")


def _is_profile_home(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == "profiles"


def _active_profile(root: str) -> str | None:
    """The profile that was chosen for ``root``; None for the default one."""
    try:
        name = _read_active_profile(root)
    except OSError as error:
        raise ConfigError(f"{root}/active_profile cannot be read: {error.strerror}") from None
    if name in _DEFAULT_NAMES:
        return None
    if not _PROFILE_NAME.fullmatch(name) or ".." in name:
        raise ConfigError(f"{root}/active_profile does not hold a profile name")
    if not os.path.isdir(_profile_home(root, name)):
        raise ConfigError(f"{root}/active_profile names {name}, a profile that does not exist")
    return name


def _is_default_active(root: str) -> bool:
    try:
        return _read_active_profile(root) in _DEFAULT_NAMES
    except OSError:
        return False


def _profile_home(root: str, name: str) -> str:
    return os.path.join(root, "profiles", name)


def _read_active_profile(root: str) -> str:
    path = os.path.join(root, "active_profile")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(fd, _PROFILE_FILE_LIMIT).decode("utf-8", "replace").strip()
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _clean(text: str) -> bytes:
    """What can stand in an argv: no NUL, a surrogate pair joined, a lone one replaced."""
    # "utf-16" needs no codec module, whose loading fails when descriptors are short.
    units = text.replace("\0", "").encode("utf-16", "surrogatepass")
    return units.decode("utf-16", "replace").encode()
