"""The whole loop with a real Hermes: ``bin/demo telegram [--auto]``.

The gateway, ``hermes send``, the bridge and its client are real; Telegram and the model are
stand-ins on loopback, and this process is the person with the phone. Everything lies in a home of
its own, which is removed afterwards; the Hermes of the caller is only run, never touched.
"""

import contextlib
import math
import os
import re
import shlex
import shutil
import subprocess
import sys

from hermes_bridges.standins.demo_coms import AUTO_ANSWER, PROJECT
from hermes_bridges.standins.hermes_gateway import USER, HermesHome
from hermes_bridges.standins.liaison import Liaison
from hermes_bridges.standins.model_api import ModelApi
from hermes_bridges.standins.stage import (
    PACKAGE_PLACE,
    Child,
    DemoFailed,
    Stage,
    installed,
    perform,
    tell,
)
from hermes_bridges.standins.telegram_api import HOST, Message, TelegramApi

TOKEN = "123456:STANDIN"
PATIENCE = 120.0  # seconds for anything that no person has to do: each `hermes` takes a few
_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out ca.pem"
    f" -subj /CN={HOST} -addext subjectAltName=DNS:{HOST}"
)


class Loop:
    """The home with everything in it."""

    def __init__(self, home: str, ends: contextlib.ExitStack, hermes: str, auto: bool) -> None:
        self.stage = Stage(self._tell_messages, PATIENCE)
        self._auto = auto
        self._answered = False
        self._told = 0
        certificate, key = make_certificate(home)
        self.telegram = TelegramApi([TOKEN], (certificate, key))
        ends.callback(self.telegram.close)
        model = ModelApi(Liaison(str(USER)))
        ends.callback(model.close)
        own = os.path.join(home, "h")
        os.mkdir(own, 0o700)
        package = {} if installed("bridge-coms") else {"PYTHONPATH": PACKAGE_PLACE}
        self.host = HermesHome(own, hermes, self.telegram, model.base_url, certificate, package)
        ends.callback(self.host.close)
        self.host.write("default", TOKEN)
        ends.callback(self.stage.close)

    def start(self, name: str, program: str, *arguments: str) -> Child:
        """Start one of our commands."""
        return self.stage.start(name, program, arguments, self.host.sending)

    def run(self, name: str, program: str, *arguments: str) -> str:
        """Run one of our commands to its end; what it said. DemoFailed when it fails."""
        child = self.start(name, program, *arguments)
        self.stage.until(lambda: child.ended, f"{program} did not end")
        if (code := child.wait()) != 0:
            raise DemoFailed(f"{program} failed, exit code {code}")
        return child.said

    def answer(self, question: Message) -> None:
        """Let the person reply to a message: what they type, or 2 with ``--auto``."""

        def take(line: str | None) -> bool:
            # At the end of the input nobody can type: as with --auto.
            reply = line or AUTO_ANSWER
            tell("phone", f"(reply to the question) {reply}")
            self.telegram.say(TOKEN, reply, question, USER)
            self._answered = True
            return False

        if self._auto:
            take(None)
            return
        tell("demo", "You are the person with the phone: type a number or any text, and Enter.")
        self.stage.listen(take)
        self.stage.until(lambda: self._answered, "nobody typed", math.inf)

    def _tell_messages(self) -> None:
        for message in self.telegram.messages()[self._told :]:
            self._told += 1
            tell("phone", message.text)


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


def _play(loop: Loop) -> None:
    """From nothing to an answer."""
    stage = loop.stage
    tell("demo", "1. The skill is installed for the agent in the gateway.")
    loop.run("install", "bridge-telegram", "install", "--profile", "default")
    tell("demo", "2. The gateway starts; its Telegram and its model are stand-ins.")
    gateway = loop.host.start()
    stage.until(
        lambda: loop.telegram.polled(TOKEN) or gateway.poll() is not None,
        "the gateway did not connect",
    )
    if gateway.poll() is not None:
        tell("hermes", loop.host.last_words())
        raise DemoFailed(f"the gateway ended, exit code {gateway.returncode}")
    tell("demo", "3. Is everything ready?")
    if re.search(r"^ready +yes$", loop.run("status", "bridge-telegram", "status"), re.M) is None:
        raise DemoFailed("it is not ready")
    tell("demo", "4. The bridge joins the pool, a peer asks, and `hermes send` takes it out.")
    bridge = loop.start("bridge", "bridge-coms", "--project", PROJECT, "--to", f"telegram:{USER}")
    stage.until(lambda: "listening" in bridge.said or bridge.ended, "the bridge was not ready")
    text = "Which region shall the release go to first?"
    options = ("--option", "Europe", "--option", "Asia", "--option", "nowhere today")
    asker = loop.start(
        "asker", "bridge-coms", "ask", "user-remote", text, *options, "--project", PROJECT
    )
    stage.until(lambda: loop.telegram.messages() or asker.ended, "the question did not arrive")
    if not loop.telegram.messages():
        raise DemoFailed("the question was not sent")
    tell("demo", "5. The reply wakes the agent, which follows the skill and writes the file.")
    loop.answer(loop.telegram.messages()[0])
    stage.until(lambda: asker.ended, "the asker had no reply")
    if (code := asker.wait()) != 0:
        raise DemoFailed(f"the question was not answered: the asker's exit code is {code}")
    stage.until(lambda: len(loop.telegram.messages()) > 1, "the agent did not confirm")
    tell("demo", "6. The bridge is stopped.")
    stage.stop(bridge)


def show(auto: bool) -> int:
    """The whole demo; the exit code of the command."""
    hermes = shutil.which("hermes")
    if hermes is None:
        print("demo: there is no hermes on PATH, and this demo needs a real one", file=sys.stderr)
        return 1
    path = os.path.abspath(hermes)
    return perform(lambda home, ends: _play(Loop(home, ends, path, auto)))
