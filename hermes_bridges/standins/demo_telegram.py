"""The whole loop with a real Hermes: ``bin/demo telegram [--auto]``.

The gateway, ``hermes send``, the bridge and its client are real; Telegram and the model are
stand-ins on loopback, and this process is the person with the phone. Everything lies in a home of
its own, which is removed afterwards; the Hermes of the caller is only run, never touched.
"""

import io
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from hermes_bridges.standins.demo import (
    AUTO_ANSWER,
    LONGEST_PLACE,
    PROJECT,
    STOP_SECONDS,
    TERMINAL,
    Child,
    DemoFailed,
    tell,
)
from hermes_bridges.standins.hermes_gateway import USER, HermesHome
from hermes_bridges.standins.liaison import Liaison
from hermes_bridges.standins.model_api import ModelApi
from hermes_bridges.standins.telegram_api import HOST, Message, TelegramApi

TOKEN = "123456:STANDIN"
PATIENCE = 120.0  # seconds for anything that no person has to do: each `hermes` takes a few
_LOOK = 0.1  # seconds between two looks at the stand-ins, which have threads of their own
_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out ca.pem"
    f" -subj /CN={HOST} -addext subjectAltName=DNS:{HOST}"
)


class Loop:
    """The home with everything in it, and the one loop that watches the children."""

    def __init__(self, home: str, hermes: str, auto: bool) -> None:
        self._auto = auto
        self._children: list[Child] = []
        self._selector = selectors.PollSelector()
        self._typed = b""
        certificate, key = make_certificate(home)
        self.telegram = TelegramApi([TOKEN], (certificate, key))
        self._model = ModelApi(Liaison(str(USER)))
        self._told = 0
        own = os.path.join(home, "h")
        os.mkdir(own, 0o700)
        installed = _script("bridge-coms") is not None
        package = {} if installed else {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        self.host = HermesHome(
            own, hermes, self.telegram, self._model.base_url, certificate, package
        )
        self.host.write("default", TOKEN)

    def start(self, name: str, program: str, *arguments: str) -> Child:
        """Start one of our commands."""
        module = {"bridge-coms": "coms", "bridge-telegram": "telegram"}[program]
        tell(name, f"$ {program} {shlex.join(arguments)}")
        script = _script(program)
        words = [script] if script else [sys.executable, "-m", f"hermes_bridges.{module}"]
        child = Child(name, [*words, *arguments], self.host.sending)
        self._children.append(child)
        self._selector.register(child, selectors.EVENT_READ, lambda: self._output(child))
        return child

    def run(self, name: str, program: str, *arguments: str) -> str:
        """Run one of our commands to its end; what it said. DemoFailed when it fails."""
        child = self.start(name, program, *arguments)
        self.until(lambda: child.ended, f"{program} did not end")
        if (code := child.wait()) != 0:
            raise DemoFailed(f"{program} failed, exit code {code}")
        return child.said

    def until(
        self, done: Callable[[], object], what: str, seconds: float | None = PATIENCE
    ) -> None:
        """Turn the loop until ``done``; DemoFailed after that many seconds. None: as it takes."""
        end = None if seconds is None else time.monotonic() + seconds
        while not done():
            if end is not None and time.monotonic() > end:
                raise DemoFailed(f"{what} within {seconds:g} s")
            for key, _ in self._selector.select(_LOOK):
                key.data()
            self._tell_messages()

    def answer(self, question: Message) -> None:
        """Let the person reply to a message: what they type, or 2 with ``--auto``."""
        line = AUTO_ANSWER
        if not self._auto:
            tell("demo", "You are the person with the phone: type a number or any text, and Enter.")
            self._selector.register(TERMINAL, selectors.EVENT_READ, self._type)
            self.until(lambda: b"\n" in self._typed, "nobody typed", None)
            self._selector.unregister(TERMINAL)
            line = self._typed.partition(b"\n")[0].decode(errors="replace") or AUTO_ANSWER
        tell("phone", f"(reply to the question) {line}")
        self.telegram.say(TOKEN, line, question, USER)

    def _type(self) -> None:
        try:
            piece = os.read(TERMINAL, 65536)
        except OSError:
            piece = b""
        # At the end of the input nobody can type: as with --auto.
        self._typed += piece or b"\n"

    def _output(self, child: Child) -> None:
        child.read()
        if child.ended:
            self._selector.unregister(child)

    def _tell_messages(self) -> None:
        for message in self.telegram.messages()[self._told :]:
            self._told += 1
            tell("phone", message.text)

    def close(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.close()
        self._selector.close()
        self.host.close()
        self._model.close()
        self.telegram.close()


def make_certificate(place: str) -> tuple[str, str]:
    """A certificate for the stand-in of Telegram, and its key; DemoFailed when there is none."""
    try:
        subprocess.run(
            shlex.split(_CERTIFICATE),
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise DemoFailed(f"openssl could make no certificate: {error}") from None
    return os.path.join(place, "ca.pem"), os.path.join(place, "key.pem")


def _script(program: str) -> str | None:
    path = os.path.join(os.path.dirname(sys.executable), program)
    return path if os.access(path, os.X_OK) else None


def play(loop: Loop) -> None:
    """From nothing to an answer."""
    tell("demo", "1. The skill is installed for the agent in the gateway.")
    loop.run("install", "bridge-telegram", "install", "--profile", "default")
    tell("demo", "2. The gateway starts; its Telegram and its model are stand-ins.")
    gateway = loop.host.start()
    loop.until(
        lambda: loop.telegram.polled(TOKEN) or gateway.poll() is not None,
        "the gateway did not connect",
    )
    if gateway.poll() is not None:
        raise DemoFailed(f"the gateway ended, exit code {gateway.returncode}")
    tell("demo", "3. Is everything ready?")
    if re.search(r"^ready +yes$", loop.run("status", "bridge-telegram", "status"), re.M) is None:
        raise DemoFailed("it is not ready")
    tell("demo", "4. The bridge joins the pool, a peer asks, and `hermes send` takes it out.")
    bridge = loop.start("bridge", "bridge-coms", "--project", PROJECT, "--to", f"telegram:{USER}")
    loop.until(lambda: "listening" in bridge.said or bridge.ended, "the bridge was not ready")
    text = "Which region shall the release go to first?"
    options = ("--option", "Europe", "--option", "Asia", "--option", "nowhere today")
    asker = loop.start(
        "asker", "bridge-coms", "ask", "user-remote", text, *options, "--project", PROJECT
    )
    loop.until(lambda: loop.telegram.messages() or asker.ended, "the question did not arrive")
    if not loop.telegram.messages():
        raise DemoFailed("the question was not sent")
    tell("demo", "5. The reply wakes the agent, which follows the skill and writes the file.")
    loop.answer(loop.telegram.messages()[0])
    loop.until(lambda: asker.ended, "the asker had no reply")
    if (code := asker.wait()) != 0:
        raise DemoFailed(f"the question was not answered: the asker's exit code is {code}")
    loop.until(lambda: len(loop.telegram.messages()) > 1, "the agent did not confirm")
    tell("demo", "6. The bridge is stopped.")
    bridge.terminate()
    loop.until(lambda: bridge.ended, "the bridge did not stop", STOP_SECONDS)
    if (code := bridge.wait()) != 0:
        raise DemoFailed(f"the bridge's exit code is {code}")


def show(auto: bool) -> int:
    """The whole demo; the exit code of the command."""
    hermes = shutil.which("hermes")
    if hermes is None:
        print("demo: there is no hermes on PATH, and this demo needs a real one", file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    place = tempfile.gettempdir()
    home = tempfile.mkdtemp(prefix="hb-demo-", dir=place if len(place) <= LONGEST_PLACE else "/tmp")
    loop = None
    try:
        loop = Loop(home, os.path.abspath(hermes), auto)
        play(loop)
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
        if loop is not None:
            loop.close()
        shutil.rmtree(home, ignore_errors=True)
    tell("demo", "All went as it should, and nothing is left of it.")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
