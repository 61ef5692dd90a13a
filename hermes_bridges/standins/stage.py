"""What all demos stand on: a home of their own, children, the terminal, and how they end."""

import contextlib
import io
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

PATIENCE = 30.0  # seconds for anything that no person has to do
STOP_SECONDS = 5.0
PACKAGE_PLACE = str(Path(__file__).resolve().parents[2])
_LOOK = 0.05  # seconds between two looks at stand-ins that have threads of their own
_LONGEST_PAUSE = 3600.0
_TERMINAL = 0
_LONGEST_PLACE = 40  # bytes: a Unix socket's path ends at 107, and some 60 come below the home
_NOT_FOR_CHILDREN = (
    "BRIDGE_",
    "CREDENTIALS_DIRECTORY",
    "DONUT_",
    "HERMES_",
    "LISTEN_",
    "LOG_LEVEL",
    "NOTIFY_SOCKET",
    "PI_",
    "STATE_DIRECTORY",
    "WATCHDOG_",
)


class DemoFailed(Exception):
    """Something did not go as it should; the text says what."""


class Source(Protocol):
    """Something that can be waited for."""

    def fileno(self) -> int: ...


class Child:
    """A child process; what it says is told line by line under its name."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self.said = ""
        self.ended = False
        self.may_end = True
        """False while its end, whatever the exit code, would be a failure."""
        self._untold = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=environ["HOME"],
            # Ctrl-C is for the demo, which then ends its children in order.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout

    def fileno(self) -> int:
        return self._output.fileno()

    def read(self) -> None:
        piece = os.read(self.fileno(), 65536).decode(errors="replace")
        self.said += piece
        self.ended = not piece
        whole, newline, self._untold = (self._untold + piece).rpartition("\n")
        if newline:
            tell(self.name, whole)
        if self.ended and self._untold:
            tell(self.name, self._untold)

    def wait(self) -> int:
        """Its exit code, once it has closed its output."""
        return self._process.wait(STOP_SECONDS)

    def terminate(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        """Wait for its end, and insist on it."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


class Stage:
    """The children, the terminal, and the one loop that watches them.

    ``look``, when given, is called in each turn of the loop, many times a second: for whatever
    cannot be waited for by a descriptor. ``patience`` is in seconds.
    """

    def __init__(self, look: Callable[[], None] | None = None, patience: float = PATIENCE) -> None:
        self._look = look
        self._patience = patience
        self._children: list[Child] = []
        self._selector = selectors.PollSelector()
        self._typed = b""
        self._input_ended = False
        self._take: Callable[[str | None], bool] | None = None

    def start(
        self, name: str, program: str, arguments: Sequence[str], environ: Mapping[str, str]
    ) -> Child:
        """Start one of our commands: the installed one, else its module."""
        tell(name, f"$ {shlex.join([program, *arguments])}")
        script = installed(program)
        module = f"hermes_bridges.{program.removeprefix('bridge-')}"
        words = [script] if script else [sys.executable, "-P", "-m", module]
        child = Child(name, [*words, *arguments], environ)
        self._children.append(child)
        self.watch(child, lambda: self._output(child))
        return child

    def watch(self, source: Source, read: Callable[[], None]) -> None:
        """Call ``read`` whenever there is something to be read."""
        self._selector.register(source, selectors.EVENT_READ, read)

    def until(self, done: Callable[[], object], what: str, seconds: float | None = None) -> None:
        """Turn the loop until ``done``; DemoFailed, which says ``what``, after that long.

        None is the patience that this stage has, ``math.inf`` as long as it takes.
        """
        seconds = self._patience if seconds is None else seconds
        end = time.monotonic() + seconds
        while not done():
            rest = end - time.monotonic()
            if rest <= 0:
                raise DemoFailed(f"{what} within {seconds:g} s")
            pause = _LOOK if self._look is not None else min(rest, _LONGEST_PAUSE)
            for key, _ in self._selector.select(pause):
                key.data()
            if self._look is not None:
                self._look()

    def listen(self, take: Callable[[str | None], bool]) -> None:
        """Hand typed lines to ``take``, None at the end of the input, for as long as it says True.

        Lines that nobody listens to are kept.
        """
        self._take = take
        self._hand_on()

    def stop(self, child: Child) -> None:
        """Tell a child to end, and wait for it; DemoFailed when it does not end well."""
        child.may_end = True
        child.terminate()
        self.until(lambda: child.ended, f"the {child.name} did not stop", STOP_SECONDS)
        if (code := child.wait()) != 0:
            raise DemoFailed(f"the {child.name}'s exit code is {code}")

    def close(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.close()
        self._selector.close()

    def _output(self, child: Child) -> None:
        child.read()
        if child.ended:
            self._selector.unregister(child)
            if not child.may_end:
                raise DemoFailed(f"the {child.name} ended, exit code {child.wait()}")

    def _type(self) -> None:
        try:
            piece = os.read(_TERMINAL, 65536)
        except OSError:
            piece = b""
        self._typed += piece
        self._input_ended = not piece
        self._hand_on()

    def _hand_on(self) -> None:
        while self._take is not None:
            line, newline, rest = self._typed.partition(b"\n")
            if not newline and not self._input_ended:
                break
            self._typed = rest
            text = line.decode(errors="replace") if newline or line else None
            if not self._take(text) or text is None:
                self._take = None
        watched = _TERMINAL in self._selector.get_map()
        if self._take is None and watched:
            self._selector.unregister(_TERMINAL)
        elif self._take is not None and not watched:
            self._selector.register(_TERMINAL, selectors.EVENT_READ, self._type)


def installed(program: str) -> str | None:
    """The path of one of our commands, as installed beside this Python; None: it is not."""
    path = os.path.join(os.path.dirname(sys.executable), program)
    return path if os.access(path, os.X_OK) else None


def environment(home: str) -> dict[str, str]:
    """What children get of ours, with that home, and nothing that is meant for the bridges."""
    keep = {n: v for n, v in os.environ.items() if not n.startswith(_NOT_FOR_CHILDREN)}
    return keep | {"HOME": home, "PYTHONPATH": PACKAGE_PLACE}


def tell(who: str, text: str) -> None:
    """Lines to the terminal, each with the name of who says it."""
    print("\n".join(f"{who:>6} │ {line}".rstrip() for line in text.split("\n")), flush=True)


def perform(play: Callable[[str, contextlib.ExitStack], None]) -> int:
    """Play a demo in a home of its own; the exit code of the command.

    The home is removed at the end, after what was given to the stack to be closed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    place = tempfile.gettempdir()
    short = place if len(place) <= _LONGEST_PLACE else "/tmp"
    home = tempfile.mkdtemp(prefix="hb-demo-", dir=short)
    ends = contextlib.ExitStack()
    try:
        play(home, ends)
    except DemoFailed as fault:
        print(f"demo: failed: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    finally:
        # From here on nothing may keep it from clearing up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        ends.close()
        shutil.rmtree(home, ignore_errors=True)
    tell("demo", "All went as it should, and nothing is left of it.")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
