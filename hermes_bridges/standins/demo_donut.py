"""The Donut bridge, shown on stand-ins: ``bin/demo donut [--auto]``.

The hub is a stand-in, the bridge is real, and so is Hermes where its command is installed; only its
model is a stand-in then. A person writes into chats in the terminal; with ``--auto`` a scene is
played. Whatever is expected and does not happen ends it with a reason.
"""

import contextlib
import http.client
import math
import os
import random
import shutil
import socket
import threading
import time
from typing import Any

from hermes_bridges.standins import hermes_api, model_api
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_gateway import HermesHome
from hermes_bridges.standins.stage import Child, DemoFailed, Stage, environment, perform, tell

FALLBACK = "I cannot think right now. Please try again in a moment."
COOLDOWN = 3.0  # seconds that the breaker stays open
THINK = 1.0  # seconds for an answer
HELP = """\
Write a line and press Enter to send it to the chat. A word with "long" gets a long answer.
/chat NAME goes to another chat, /outage and /recover break and mend the model behind Hermes,
/new begins a conversation anew, /help says this again, /quit ends it."""
_GATEWAY_SECONDS = 60.0
_SHOWN = 240  # characters of one message that are shown
_STORY_BYTES = 7_000
_WORDS = (
    "amber bridge cedar dune ember fjord garden harbour island juniper kettle lantern meadow north"
    " orchard pebble quarry river stone thistle umbrella valley willow yonder"
).split()


class Mind:
    """What the agent says: asked by the real Hermes as its model, or by the scripted one."""

    def __init__(self) -> None:
        self.ill = False
        self.asked = 0
        self.over = threading.Event()
        """Set at the end, so that nobody waits for a thought."""

    def as_hermes(self, call: hermes_api.Call) -> hermes_api.Answer:
        said = self._say(call.text, call.turn)
        if said is None:
            text = "The model could not be asked (HTTP 400)."
            return hermes_api.Answer(text, failed=True, error="HTTP 400: out of order")
        return hermes_api.Answer(said)

    def as_model(self, request: model_api.Request) -> model_api.Reply:
        texts = [said.text for said in request.messages if said.role == "user"]
        said = self._say(texts[-1], len(texts))
        return (
            model_api.Reply("out of order", status=400) if said is None else model_api.Reply(said)
        )

    def _say(self, text: str, turn: int) -> str | None:
        self.asked += 1
        if self.ill:
            return None
        self.over.wait(THINK)
        if "long" in text:
            return _story()
        return f"You wrote: {text}\n\nThat was message {turn} of our conversation."


class Scene:
    """The hub with its chats, Hermes, the bridge, and the person who sees all of it."""

    def __init__(self, home: str, ends: contextlib.ExitStack) -> None:
        self.mind = Mind()
        self.hub = DonutHub()
        ends.callback(self.hub.close)
        self.stage = Stage(self._look)
        self.chat = ""
        self.left = False
        self._home = home
        self._ends = ends
        self._chats: dict[str, int] = {}
        self._told = 0
        self.typing: set[str] = set()
        """The chats in which the bot is typing."""
        self._online = False
        self.enter("kitchen")

    def enter(self, chat: str) -> None:
        """Go to a chat of that name."""
        if chat not in self._chats:
            self._chats[chat] = 100 + len(self._chats)
            self.hub.add_chat(self._chats[chat], trigger="all")
        self.chat = chat

    def start_hermes(self) -> str:
        """Start Hermes, the real one if there is one; its base URL. DemoFailed."""
        hermes = shutil.which("hermes")
        if hermes is None:
            tell("demo", "There is no hermes on PATH: a scripted one takes its place.")
            api = hermes_api.HermesApi(self.mind.as_hermes)
            self._ends.callback(api.close)
            return api.base_url
        tell("demo", f"Hermes is {hermes}, with a model that is a stand-in. It takes a moment.")
        model = model_api.ModelApi(self.mind.as_model)
        self._ends.callback(model.close)
        own = os.path.join(self._home, "h")
        os.mkdir(own, 0o700)
        host = HermesHome(own, os.path.abspath(hermes), None, model.base_url, "", {})
        self._ends.callback(host.close)
        port = _free_port()
        variables = {"API_SERVER_ENABLED": "true", "API_SERVER_KEY": hermes_api.KEY}
        variables |= {"API_SERVER_HOST": "127.0.0.1", "API_SERVER_PORT": str(port)}
        host.write("default", variables=variables)
        gateway = host.start()
        self.stage.until(
            lambda: gateway.poll() is not None or _healthy(port),
            "the API server of Hermes did not answer",
            _GATEWAY_SECONDS,
        )
        if gateway.poll() is not None:
            tell("hermes", host.last_words())
            raise DemoFailed(f"the gateway of Hermes ended, exit code {gateway.returncode}")
        return f"http://127.0.0.1:{port}"

    def start_bridge(self, hermes_url: str) -> Child:
        """Start the bridge, and wait until it is online."""
        self._ends.callback(self.mind.over.set)
        self._ends.callback(self.stage.close)
        environ = environment(self._home) | {
            "DONUT_BOT_TOKEN": self.hub.token,
            "DONUT_STREAM_URL": self.hub.stream_url,
            "DONUT_SEND_URL": self.hub.send_url,
            "DONUT_TYPING_URL": self.hub.typing_url,
            "HERMES_BASE_URL": hermes_url,
            "HERMES_API_KEY": hermes_api.KEY,
            "BRIDGE_STATE_DIR": os.path.join(self._home, "state"),
            "BRIDGE_REQUEST_TIMEOUT": "30s",
            "BRIDGE_BREAKER_THRESHOLD": "2",
            "BRIDGE_BREAKER_COOLDOWN": f"{COOLDOWN}s",
            "BRIDGE_FALLBACK_MESSAGE": FALLBACK,
            "BRIDGE_FALLBACK_INTERVAL": "0",
        }
        bridge = self.stage.start("bridge", "bridge-donut", [], environ)
        bridge.may_end = False
        self.stage.until(lambda: self.hub.online, "the bridge was not online")
        return bridge

    def say(self, text: str) -> int:
        """The person writes into the present chat; the id of the message."""
        return int(self.hub.say(self._chats[self.chat], text))

    def answers(self, message: int) -> list[str]:
        """What the bot posted in reply to a message."""
        return [post["content"] for post in self.hub.posted() if post["reply_to"] == message]

    def take(self, line: str | None) -> bool:
        """Do what a typed line says; whether another one is wanted."""
        command, _, rest = (line or "").strip().partition(" ")
        if line is None or command == "/quit":
            self.left = True
        elif command == "/chat" and rest.strip():
            self.enter(rest.strip())
            tell("demo", f"You are in the chat {self.chat}.")
        elif command in ("/outage", "/recover"):
            self.mind.ill = command == "/outage"
            tell("demo", f"The model behind Hermes {'fails' if self.mind.ill else 'works again'}.")
        elif command.startswith("/") and command not in ("/new", "/reset"):
            tell("demo", HELP)
        elif line.strip():
            self.say(line.strip())
        return not self.left

    def _look(self) -> None:
        if self.hub.online != self._online:
            self._online = not self._online
            tell("hub", f"(the bot is {'online' if self._online else 'offline'})")
        for chat, chat_id in self._chats.items():
            if self.hub.typing(chat_id) != (chat in self.typing):
                self.typing ^= {chat}
                tell("bot", f"({chat}) {'is typing …' if chat in self.typing else 'has typed'}")
        for post in self.hub.posted()[self._told :]:
            self._told += 1
            tell("bot", _shown(self._name(post), post["content"]))

    def _name(self, post: dict[str, Any]) -> str:
        return next(name for name, number in self._chats.items() if number == post["chat_id"])


def show(auto: bool) -> int:
    """The whole demo; the exit code of the command."""

    def play(home: str, ends: contextlib.ExitStack) -> None:
        scene = Scene(home, ends)
        bridge = scene.start_bridge(scene.start_hermes())
        if auto:
            _Acts(scene, bridge).play()
        else:
            tell("demo", f"You are in the chat {scene.chat}.\n{HELP}")
            scene.stage.listen(scene.take)
            scene.stage.until(lambda: scene.left, "nobody left", math.inf)
        tell("demo", "The bridge is stopped.")
        scene.stage.stop(bridge)
        scene.stage.until(lambda: not scene.hub.online, "the bot did not go offline")

    return perform(play)


class _Acts:
    """The scene that is played with ``--auto``."""

    def __init__(self, scene: Scene, bridge: Child) -> None:
        self._scene = scene
        self._bridge = bridge
        self._stage = scene.stage

    def play(self) -> None:
        tell("demo", "1. A message, and its answer; the bot is typing meanwhile.")
        self._wants(self._say("Hello!"), "message 1 of our conversation", typing=True)
        tell("demo", "2. Each chat is a conversation of its own.")
        second = self._say("Hello again!")
        self._scene.enter("garden")
        other = self._say("And hello from here.")
        self._wants(second, "message 2 of our conversation")
        self._wants(other, "message 1 of our conversation")
        tell("demo", "3. A long answer comes in parts.")
        message = self._say("Tell me a long story.")
        self._stage.until(
            lambda: len(self._scene.answers(message)) == 2, "the answer had no two parts"
        )
        if "".join(self._scene.answers(message)).split() != _story().split():
            raise DemoFailed("the parts are not the answer")
        self._outage()

    def _outage(self) -> None:
        scene = self._scene
        tell("demo", "4. The model behind Hermes fails. Each message gets the fallback.")
        scene.take("/outage")
        self._wants(self._say("Are you there?"), FALLBACK)
        self._wants(self._say("Still nothing?"), FALLBACK)
        self._stage.until(
            lambda: "breaker is open" in self._bridge.said, "the breaker did not open"
        )
        opened = time.monotonic()
        tell("demo", "5. The breaker is open: the fallback comes at once, and Hermes is not asked.")
        asked = scene.mind.asked
        self._wants(self._say("And now?"), FALLBACK)
        if scene.mind.asked != asked:
            raise DemoFailed("Hermes was asked although the breaker was open")
        tell("demo", f"6. All is well again. After {COOLDOWN:g} s one call may try it.")
        scene.take("/recover")
        self._stage.until(lambda: time.monotonic() > opened + COOLDOWN, "time stood still")
        self._wants(self._say("Are you back?"), "Are you back?")
        self._stage.until(
            lambda: "breaker is closed" in self._bridge.said, "the breaker did not close"
        )

    def _say(self, text: str) -> int:
        tell("you", f"({self._scene.chat}) {text}")
        return self._scene.say(text)

    def _wants(self, message: int, text: str, typing: bool = False) -> None:
        scene = self._scene
        if typing:
            self._stage.until(lambda: scene.typing, "the bot was not typing")
        self._stage.until(lambda: scene.answers(message), "a message was not answered")
        answers = scene.answers(message)
        if len(answers) != 1 or text not in answers[0]:
            raise DemoFailed(f"the answer is {answers!r}, and {text!r} was expected")


def _story() -> str:
    """Some pages; no sentence comes twice, since Hermes would cut that off."""
    chance = random.Random(7)
    story = "# A long walk\n\n"
    while len(story) < _STORY_BYTES:
        sentences = (" ".join(chance.choices(_WORDS, k=9)).capitalize() + "." for _ in range(4))
        story += " ".join(sentences) + "\n\n"
    return story


def _shown(chat: str, text: str) -> str:
    if len(text) <= _SHOWN:
        return f"({chat}) {text}"
    return f"({chat}) {text[:_SHOWN]} …\n({len(text.encode())} bytes)"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
