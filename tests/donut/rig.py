"""The middle of the Donut bridge, put together for the tests: real stand-ins, store and workers.

Time is turned by hand: whoever waits for the stop, as those do who try again, waits not at all,
and the clocks of the rig are that much ahead.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hermes_bridges.core.breaker import Breaker
from hermes_bridges.core.chats import Chats
from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.httpclient import Clients, HttpClient
from hermes_bridges.core.slots import Slots
from hermes_bridges.core.status import Status
from hermes_bridges.donut import protocol
from hermes_bridges.donut.hermes_api import Hermes
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.poster import Poster
from hermes_bridges.donut.protocol import Id, Message
from hermes_bridges.donut.store import Store
from hermes_bridges.donut.turns import Ask, Policy, Turns
from hermes_bridges.donut.typing_signal import Board
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import KEY, Answer, Call, HermesApi

BOT = 77
TOKEN = "donutbot_rig"
NOON = 1_800_000_000.0  # wall clock
LONG = 20.0  # seconds; more than anything here takes
FALLBACK = "The agent is away."


class Time(threading.Event):
    """The stop of a bridge, whose waits pass at once, and the clocks that go with it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.ahead = 0.0
        self.on_wait: Callable[[float], object] = lambda seconds: None
        self._began = time.monotonic()

    def clock(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return NOON + self.clock() - self._began

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.ahead += timeout
        self.on_wait(timeout)
        return self.is_set()


class Worker:
    """What a chat's worker is to its handler."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.expected: list[float | None] = []

    def expect(self, seconds: float | None) -> None:
        self.expected.append(seconds)


class Rig:
    """A hub and a Hermes, and a bridge between them that may be started again (``reopen``)."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.hub = DonutHub(token=TOKEN, bot_id=BOT, journal=str(root / "hub.ndjson"))
        self.hub.add_chat(1, "all")
        self.hub.add_chat(2, "all")
        self.api = HermesApi(self._think, journal=str(root / "hermes.ndjson"), cap=0)
        self.gate = threading.Event()
        self.think: Callable[[Call], Answer] = lambda call: Answer(f"re: {call.text}")
        self.open(**options)

    def open(
        self,
        *,
        concurrent: int = 4,
        timeout: float = LONG,
        threshold: int = 1_000,
        cooldown: float = 30.0,
        fallback: str = FALLBACK,
        interval: float = 60.0,
        token: str = TOKEN,
        send_url: str | None = None,
        markdown: bool = True,
        bot: str | None = str(BOT),
    ) -> None:
        """Start the bridge; ``threshold`` is so high that the breaker is out of the way."""
        self._running = ExitStack()
        self.deadlines = self._running.enter_context(Deadlines.running())
        self.time = Time()
        clock, wall = self.time.clock, self.time.wall
        self.store = Store(str(self.root / "state"), wall=wall)
        self.ledger = Ledger(self.store.cursor())
        self.status = Status(str(self.root / "state" / "status.json"))
        self.slots = Slots(concurrent)
        self.states: list[str] = []
        self.breaker = Breaker(
            threshold, cooldown, timeout, clock=clock, on_change=self.states.append
        )
        self.board = Board()
        self.paused: list[tuple[str, float]] = []
        self.clients = Clients(lambda: HttpClient(self.deadlines), 16)
        self.poster = Poster(
            send_url or self.hub.send_url,
            token,
            "MD" if markdown else "TX",
            self.clients,
            self.store,
            self.status,
            self.time,
            lambda chat, until: self.paused.append((chat, until - clock())),
            clock=clock,
            wall=wall,
            rand=lambda: 1.0,
        )
        hermes = Hermes(
            self.api.base_url,
            KEY,
            self.clients,
            self.time,
            clock=clock,
            wall=wall,
            rand=lambda: 1.0,
        )
        self.turns = Turns(
            Policy("hermes-agent", timeout, fallback, interval, markdown),
            self.slots,
            self.breaker,
            hermes,
            self.store,
            self.ledger,
            self.poster,
            self.board,
            self.status,
            self.time,
            clock=clock,
            wall=wall,
        )
        self.turns.meet(bot)

    def shut(self) -> None:
        self.clients.close()
        self.store.close()
        self._running.close()

    def reopen(self, later: float = 0.0, **options: Any) -> None:
        """Another process goes on with the state, so many seconds later."""
        before = self.time.wall()
        self.shut()
        self.open(**options)
        self.time.ahead += before + later - self.time.wall()

    def stop(self) -> None:
        """As the daemon does first when it is to end."""
        self.time.set()
        self.slots.wake()

    def chats(self, limit: int = 20) -> "Chats[Ask]":
        return Chats(self.turns.handle, limit, 60.0)

    # The people

    def hear(
        self,
        text: str,
        chat: Id = 1,
        sender: str | None = "ana",
        sender_id: Id = 5,
        sender_type: str | None = "user",
        thread_id: Id | None = None,
    ) -> Ask:
        """Somebody writes; what the intake would hand on of it."""
        told: Any = {"sender": sender, "sender_id": sender_id, "sender_type": sender_type}
        message_id = self.hub.say(chat, text, thread_id=thread_id, **told)
        message = Message(
            event_id=f"e{message_id}",
            chat_id=chat,
            message_id=message_id,
            thread_id=thread_id,
            sender_id=sender_id,
            sender_name=sender,
            sender_type=sender_type,
            text=text,
        )
        return Ask(message, protocol.without_mention(text, "helper").strip())

    def handle(self, ask: Ask) -> Worker:
        """What the worker of that chat does with it."""
        self.arrive(ask)
        worker = Worker(ask.message.chat)
        self.turns.handle(worker, ask)
        return worker

    def arrive(self, ask: Ask) -> None:
        message = ask.message
        self.ledger.arrive(message.event_id, message.chat, message.message, self.time.clock())

    def ask(self, text: str, chat: Id = 1, **told: Any) -> Message:
        ask = self.hear(text, chat, **told)
        self.handle(ask)
        return ask.message

    def ask_as_bot(self, text: str, chat: Id = 1) -> Message:
        return self.ask(text, chat, sender="robo", sender_id=900, sender_type="bot")

    def begin_and_stop(self, ask: Ask, **options: Any) -> None:
        """Begin that message, end before its answer comes, and start again; its run goes on."""
        self.stop_at("call", ask)
        self.reopen(**options)

    def stop_at(self, what: str, ask: Ask) -> None:
        before, think = len(self.calls()), self.think

        def held(call: Call) -> Answer:
            assert self.gate.wait(LONG)
            return think(call)

        self.think = held
        thread = threading.Thread(target=self.handle, args=(ask,), name="the one that is stopped")
        thread.start()
        assert self.until(lambda: len(self.calls()) > before)
        self.stop()
        self.deadlines.shut_all()
        thread.join(LONG)
        assert not thread.is_alive()
        self.think = think

    def until(self, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + LONG
        while not (found := true()) and time.monotonic() < end:
            time.sleep(0.005)
        return found

    # What became of it

    def _think(self, call: Call) -> Answer:
        return self.think(call)

    def said(self, chat: Id | None = 1) -> list[str]:
        return [post["content"] for post in self.hub.posted(chat)]

    def calls(self) -> list[dict[str, Any]]:
        return self.noted("hermes", "call")

    def runs(self) -> int:
        return len(self.noted("hermes", "run"))

    def sends(self) -> list[dict[str, Any]]:
        """The tries to post, as the hub saw them."""
        return self.noted("hub", "send")

    def noted(self, journal: str, what: str) -> list[dict[str, Any]]:
        path = self.root / f"{journal}.ndjson"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if line["what"] == what]

    def count(self, name: str) -> int:
        return counters(self.status, self.root / "state" / "status.json").get(name, 0)

    def settled(self, message: Message) -> bool:
        """On the disk; the ledger must agree."""
        on_disk = self.store.is_settled(message.chat, message.message)
        assert not (on_disk and self.ledger.is_live(message.chat, message.message))
        return on_disk

    def failures(self) -> dict[str, int]:
        found = counters(self.status, self.root / "state" / "status.json")
        start = "call_failures."
        return {n.removeprefix(start): c for n, c in found.items() if n.startswith(start) and c}

    def close(self) -> None:
        self.gate.set()
        self.shut()
        self.hub.close()
        self.api.close()


def counters(status: Status, path: Path) -> dict[str, int]:
    status.write()
    found: dict[str, int] = json.loads(path.read_text())["counters"]
    return found


@contextmanager
def running(root: Path, **options: Any) -> Iterator[Rig]:
    (root / "state").mkdir(mode=0o700)
    rig = Rig(root, **options)
    try:
        yield rig
    finally:
        rig.close()


def errors(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
