"""The main job of the coms bridge, shown on stand-ins: ``bin/demo [coms] [--auto]``.

In a home of its own it starts the bridge and asks two questions with the client, both real; this
process is the phone and keeps the terminal.
"""

import contextlib
import math
from pathlib import Path

from hermes_bridges.standins import hermes_command
from hermes_bridges.standins.phone import Phone
from hermes_bridges.standins.stage import (
    PATIENCE,
    Child,
    DemoFailed,
    Stage,
    environment,
    perform,
    tell,
)

PROJECT = "demo"
AUTO_ANSWER = "2"
_SECOND_LIMIT = {True: 3000, False: 4000}  # ms until the second question is taken back; with --auto


class Pool:
    """The pool with its bridge, and the phone."""

    def __init__(self, home: str, ends: contextlib.ExitStack, auto: bool) -> None:
        self.home = Path(home)
        self.stage = Stage()
        self.messages: list[str] = []
        self._auto = auto
        self._answered = False
        ends.callback(self.stage.close)
        programs = self.home / "bin"
        programs.mkdir()
        hermes_command.install(str(programs))
        self._environ = environment(home)
        self._environ["PATH"] = f"{programs}:{self._environ.get('PATH', '/usr/bin:/bin')}"
        self._phone = Phone(
            hermes_command.phone_path(self._environ),
            hermes_command.questions_path(self._environ),
            lambda text: tell("phone", text),
            answers=[AUTO_ANSWER] if auto else [],
        )
        ends.callback(self._phone.close)
        self.stage.watch(self._phone, self._message)

    def start(self, name: str, *arguments: str) -> Child:
        """Start ``bridge-coms`` with these arguments."""
        return self.stage.start(name, "bridge-coms", arguments, self._environ)

    def _message(self) -> None:
        text = self._phone.receive()
        if text is None:
            return
        self.messages.append(text)
        if text.startswith("❓") and not self._auto:
            # Lines are taken only while a question is open, so that none typed ahead is lost.
            self.stage.listen(self._take)

    def _take(self, line: str | None) -> bool:
        """Answer with a typed line; whether another one is needed."""
        if line is None:
            if self._answered:
                return False
            tell("demo", "Nobody can type here, so the phone answers by itself.")
            line = AUTO_ANSWER
        if not self._phone.say(line):
            return True
        self._answered = True
        return False


def show(auto: bool) -> int:
    """The whole demo; the exit code of the command."""
    return perform(lambda home, ends: _play(Pool(home, ends, auto), auto))


def _play(pool: Pool, auto: bool) -> None:
    """One question that is answered, and one that is taken back."""
    stage = pool.stage
    tell("demo", "1. The bridge joins the pool as the peer user-remote.")
    bridge = pool.start("bridge", "--project", PROJECT, "--to", "telegram:42")
    bridge.may_end = False
    stage.until(lambda: "listening" in bridge.said, "the bridge was not ready")

    tell("demo", "2. A peer asks; the phone shows the question; the reply goes back.")
    text = "Which region goes first?"
    options = ("--option", "Europe", "--option", "Asia", "--option", "none")
    asker = pool.start("asker", "ask", "user-remote", text, *options, "--project", PROJECT)
    if not auto:
        tell("demo", "You are the person with the phone: type a number or any text, and Enter.")
    stage.until(lambda: asker.ended, "the asker had no reply", PATIENCE if auto else math.inf)
    if (code := asker.wait()) != 0:
        raise DemoFailed(f"the first question was not answered: the asker's exit code is {code}")
    if auto and "Asia" not in asker.said:
        raise DemoFailed("the reply is not the option that was chosen")

    tell("demo", "3. A peer asks and takes its question back; the phone is told.")
    limit = _SECOND_LIMIT[auto]
    text = f"Still there? I wait {limit // 1000} s."
    more = ("--timeout", str(limit), "--project", PROJECT)
    asker = pool.start("asker", "ask", "user-remote", text, *more)
    stage.until(lambda: asker.ended, "the second question did not end")
    code = asker.wait()
    if code == 3:
        stage.until(lambda: "✖" in pool.messages[-1], "the phone was not told of the end")
    elif code != 0 or auto:
        raise DemoFailed(f"the second question ended oddly: the asker's exit code is {code}")

    tell("demo", "4. The bridge is stopped.")
    stage.stop(bridge)
    left = [path.name for path in (pool.home / ".pi/coms").rglob("*") if _is_a_trace(path)]
    if left:
        raise DemoFailed(f"the bridge left behind: {', '.join(left)}")
    tell("bridge", "(exit code 0; its entry and its socket are gone)")


def _is_a_trace(path: Path) -> bool:
    return path.suffix == ".sock" or path.parent.name in ("agents", "questions")
