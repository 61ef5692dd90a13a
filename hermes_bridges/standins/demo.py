"""The main job of the coms bridge, shown on stand-ins: ``bin/demo [coms] [--auto]``.

In a home of its own, which is removed afterwards, it starts the bridge and asks two questions with
the client, both real; this process is the phone and keeps the terminal. One thread, one ``poll``.
"""

import argparse
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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from hermes_bridges.standins import hermes_command
from hermes_bridges.standins.phone import Phone

PROJECT = "demo"
PATIENCE = 30.0  # seconds for anything that no person has to do
STOP_SECONDS = 5.0
SECOND_LIMIT = {True: 3000, False: 4000}  # ms until the second question is taken back; with --auto
AUTO_ANSWER = "2"
TERMINAL = 0
NOT_FOR_CHILDREN = ("PI_", "HERMES_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
LONGEST_PLACE = 40  # bytes: a Unix socket's path ends at 107, and some 60 come below the home


class DemoFailed(Exception):
    """Something did not go as it should; the text says what."""


class Child:
    """A child process; what it says is told line by line under its name."""

    def __init__(self, name: str, command: Sequence[str], environ: dict[str, str]) -> None:
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
    """The home, the phone, the children, and the one loop that watches them all."""

    def __init__(self, home: str, auto: bool) -> None:
        self.home = Path(home)
        self.messages: list[str] = []
        self._auto = auto
        self._children: list[Child] = []
        self._typed = b""
        self._answered = False
        self._selector = selectors.PollSelector()
        (self.home / "bin").mkdir()
        hermes_command.install(str(self.home / "bin"))
        self._environ = self._environment()
        self._phone = Phone(
            hermes_command.phone_path(self._environ),
            hermes_command.questions_path(self._environ),
            lambda text: tell("phone", text),
            answers=[AUTO_ANSWER] if auto else [],
        )
        self._selector.register(self._phone, selectors.EVENT_READ, self._message)

    def _environment(self) -> dict[str, str]:
        keep = {n: v for n, v in os.environ.items() if not n.startswith(NOT_FOR_CHILDREN)}
        return keep | {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}:{keep.get('PATH', os.defpath)}",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }

    def start(self, name: str, *arguments: str) -> Child:
        """Start ``bridge-coms`` with these arguments."""
        installed = Path(sys.executable).with_name("bridge-coms")
        module = [sys.executable, "-P", "-m", "hermes_bridges.coms"]
        tell(name, f"$ bridge-coms {shlex.join(arguments)}")
        command = [str(installed)] if installed.exists() else module
        child = Child(name, [*command, *arguments], self._environ)
        self._children.append(child)
        self._selector.register(child, selectors.EVENT_READ, lambda: self._output(child))
        return child

    def until(self, done: Callable[[], bool], what: str, seconds: float | None = PATIENCE) -> None:
        """Turn the loop until ``done``; DemoFailed after that many seconds. None: as it takes."""
        end = None if seconds is None else time.monotonic() + seconds
        while not done():
            rest = None if end is None else end - time.monotonic()
            if rest is not None and rest <= 0:
                raise DemoFailed(f"{what} within {seconds:g} s")
            for key, _ in self._selector.select(rest):
                key.data()

    def _output(self, child: Child) -> None:
        child.read()
        if child.ended:
            self._selector.unregister(child)
            if not child.may_end:
                raise DemoFailed(f"the {child.name} ended, exit code {child.wait()}")

    def _message(self) -> None:
        text = self._phone.receive()
        if text is None:
            return
        self.messages.append(text)
        if text.startswith("❓") and not self._auto:
            self._listen_to_person()

    def _listen_to_person(self) -> None:
        """Lines are taken only while a question is open, so that none typed ahead is lost."""
        if b"\n" in self._typed:
            self._take_line()
        elif TERMINAL not in self._selector.get_map():
            self._selector.register(TERMINAL, selectors.EVENT_READ, self._type)

    def _type(self) -> None:
        try:
            piece = os.read(TERMINAL, 65536)
        except OSError:
            piece = b""
        if piece:
            self._typed += piece
        elif self._typed:
            self._typed += b"\n"
        elif self._answered:
            self._selector.unregister(TERMINAL)
        else:
            tell("demo", "Nobody can type here, so the phone answers by itself.")
            self._typed = AUTO_ANSWER.encode() + b"\n"
        if b"\n" in self._typed:
            self._take_line()

    def _take_line(self) -> None:
        line, _, self._typed = self._typed.partition(b"\n")
        if not self._phone.say(line.decode(errors="replace")):
            self._listen_to_person()
            return
        self._answered = True
        if TERMINAL in self._selector.get_map():
            self._selector.unregister(TERMINAL)

    def close(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.close()
        self._selector.close()
        self._phone.close()


def coms(stage: Stage, auto: bool) -> None:
    """One question that is answered, and one that is taken back."""
    tell("demo", "1. The bridge joins the pool as the peer user-remote.")
    bridge = stage.start("bridge", "--project", PROJECT, "--to", "telegram:42")
    bridge.may_end = False
    stage.until(lambda: "listening" in bridge.said, "the bridge was not ready")

    tell("demo", "2. A peer asks; the phone shows the question; the reply goes back.")
    text = "Which region goes first?"
    options = ("--option", "Europe", "--option", "Asia", "--option", "none")
    asker = stage.start("asker", "ask", "user-remote", text, *options, "--project", PROJECT)
    if not auto:
        tell("demo", "You are the person with the phone: type a number or any text, and Enter.")
    stage.until(lambda: asker.ended, "the asker had no reply", PATIENCE if auto else None)
    if (code := asker.wait()) != 0:
        raise DemoFailed(f"the first question was not answered: the asker's exit code is {code}")
    if auto and "Asia" not in asker.said:
        raise DemoFailed("the reply is not the option that was chosen")

    tell("demo", "3. A peer asks and takes its question back; the phone is told.")
    limit = SECOND_LIMIT[auto]
    text = f"Still there? I wait {limit // 1000} s."
    more = ("--timeout", str(limit), "--project", PROJECT)
    asker = stage.start("asker", "ask", "user-remote", text, *more)
    stage.until(lambda: asker.ended, "the second question did not end")
    code = asker.wait()
    if code == 3:
        stage.until(lambda: "✖" in stage.messages[-1], "the phone was not told of the end")
    elif code != 0 or auto:
        raise DemoFailed(f"the second question ended oddly: the asker's exit code is {code}")

    tell("demo", "4. The bridge is stopped.")
    bridge.may_end = True
    bridge.terminate()
    stage.until(lambda: bridge.ended, "the bridge did not stop", STOP_SECONDS)
    if (code := bridge.wait()) != 0:
        raise DemoFailed(f"the bridge's exit code is {code}")
    left = [path.name for path in (stage.home / ".pi/coms").rglob("*") if _is_a_trace(path)]
    if left:
        raise DemoFailed(f"the bridge left behind: {', '.join(left)}")
    tell("bridge", "(exit code 0; its entry and its socket are gone)")


def _is_a_trace(path: Path) -> bool:
    return path.suffix == ".sock" or path.parent.name in ("agents", "questions")


def tell(who: str, text: str) -> None:
    """Lines to the terminal, each with the name of who says it."""
    print("\n".join(f"{who:>6} │ {line}".rstrip() for line in text.split("\n")), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bin/demo", description="A bridge at work, on stand-ins.")
    parser.add_argument("bridge", nargs="?", choices=["coms", "telegram"], default="coms")
    parser.add_argument("--auto", action="store_true", help="the phone answers by itself")
    options = parser.parse_args(argv)
    if options.bridge == "telegram":
        from hermes_bridges.standins import demo_telegram

        return demo_telegram.show(options.auto)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    place = tempfile.gettempdir()
    home = tempfile.mkdtemp(prefix="hb-demo-", dir=place if len(place) <= LONGEST_PLACE else "/tmp")
    stage = None
    try:
        stage = Stage(home, options.auto)
        coms(stage, options.auto)
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
        if stage is not None:
            stage.close()
        shutil.rmtree(home, ignore_errors=True)
    tell("demo", "All went as it should, and nothing is left of it.")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
