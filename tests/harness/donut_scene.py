"""A whole scene of the Donut bridge: a hub, a scripted Hermes, the real bridge, and the clean-up.

The hub and Hermes are stand-ins in this process; the bridge is a child that knows nothing of it.
Of the product only the stand-ins are used here.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import Answer, Call, HermesApi

from . import donut_judge
from .journal import Journal
from .lag import Lag
from .process import CHECKOUT, INHERITED, Process, wait

COMMAND = (sys.executable, "-m", "hermes_bridges.donut")
TOKEN = "donutbot_Zw3bLq7TxV9sEcreT"
KEY = "hermes-key-Pf81nQd2sEcreT"
FALLBACK = "The agent is away."
NOTICES = (
    "The agent could not take this message.",
    "This message could not be answered and was given up.",
)

Think = Callable[[Call], Answer]


class Echo:
    """Says what it heard, after a while, and sometimes at length; a text decides both.

    `delay` (seconds) and `size` (bytes) are ranges; `long` is how many answers of one have a size,
    the others are short.
    """

    def __init__(
        self,
        delay: tuple[float, float] = (0.0, 0.0),
        long: float = 0.0,
        size: tuple[int, int] = (5_000, 14_000),
    ) -> None:
        self.delay, self.long, self.size = delay, long, size

    def __call__(self, call: Call) -> Answer:
        dice = random.Random(call.text)
        delay = dice.uniform(*self.delay)
        text = f"re: {call.text}"
        if dice.random() < self.long:
            text += "\n" + prose(dice, dice.randint(*self.size))
        return Answer(text, delay)


def prose(dice: random.Random, size: int) -> str:
    words: list[str] = []
    left = size
    while left > 0:
        word = dice.choice(("lorem", "ipsum", "dolor", "süß", "日本", "🙂"))
        words.append(word + dice.choice((" ", " ", " ", ". ", "\n", "\n\n")))
        left -= len(words[-1].encode())
    return "".join(words).strip()


class Brain:
    """Hermes's brain: notes what it says, for the judge. `think` may be changed at any time."""

    def __init__(self, think: Think, path: str) -> None:
        self.think = think
        self.journal = Journal(path)

    def __call__(self, call: Call) -> Answer:
        answer = self.think(call)
        good = answer.status == 200 and answer.body is None and bool(answer.text.strip())
        good = good and not answer.failed and not answer.partial
        silent = answer.text in ("[SILENT]", "NO_REPLY")
        facts = {"n": call.n, "key": call.key, "text": answer.text, "good": good}
        self.journal.note("answer", **facts, silent=silent)
        return answer


class Bridge(Process):
    """The bridge as a child process, and what is to be seen of it from outside."""

    def __init__(
        self,
        scene: DonutScene,
        environ: Mapping[str, str | None],
        *flags: str,
        command: Iterable[str] = COMMAND,
        pump: bool = False,
    ) -> None:
        self.scene = scene
        variables: dict[str, str | None] = {
            "HOME": scene.home,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": CHECKOUT,
            "LANG": "C.UTF-8",
            **{k: v for k, v in os.environ.items() if k.startswith(INHERITED)},
            "DONUT_BOT_TOKEN": TOKEN,
            "DONUT_STREAM_URL": scene.hub.stream_url,
            "DONUT_SEND_URL": scene.hub.send_url,
            "DONUT_TYPING_URL": scene.hub.typing_url,
            "HERMES_BASE_URL": scene.hermes.base_url,
            "HERMES_API_KEY": KEY,
            "BRIDGE_STATE_DIR": scene.state,
            "BRIDGE_FALLBACK_MESSAGE": FALLBACK,
            **environ,
        }
        super().__init__(
            [*command, *flags],
            {name: value for name, value in variables.items() if value is not None},
            scene.home,
            scene.journals,
            "bridge.ndjson",
            pump=pump,
        )

    def start(self, ready: bool = True, deadline: float = 20.0) -> Bridge:
        """Starts it; with `ready` waits until the hub has let it in."""
        before = self.scene.dialled()
        self.launch()
        if ready:
            self.wait_ready(before, deadline)
        return self

    def wait_ready(self, before: int = 0, deadline: float = 20.0) -> None:
        """Until the hub has let in more streams than `before`, and one is open."""
        self.wait_true(
            lambda: self.scene.dialled() > before and self.scene.hub.online,
            deadline,
            "the stream is open",
        )

    def restart(self, limit: float = 5.0) -> Bridge:
        assert self.stop(limit=limit) == 0
        return self.start()

    def status(self) -> dict[str, Any]:
        """Counters and values of the status file, which may be five seconds old; {}: none yet."""
        try:
            with open(os.path.join(self.scene.state, "status.json"), encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return {}
        return {**found["values"], **found["counters"], "pid": found["pid"]}

    def count(self, name: str) -> int:
        return int(self.status().get(name, 0))

    def lines(self, sign: str) -> list[str]:
        """Lines of this run's log that hold it."""
        return [line for line in self.stderr().splitlines() if sign in line]


class DonutScene:
    """Use as a context manager, with a short directory; keywords are variables of the bridge.

    `hub` and `hermes` are options of the stand-ins, `think` says what Hermes answers, `rules` are
    those of the judge that do not follow from the variables. Chats are added when they are first
    used. On a good end the bridge has not written a traceback.
    """

    def __init__(
        self,
        root: str,
        *,
        think: Think | None = None,
        hub: Mapping[str, Any] | None = None,
        hermes: Mapping[str, Any] | None = None,
        rules: Mapping[str, Any] | None = None,
        pump: bool = False,
        **environ: str | None,
    ) -> None:
        self.root = root
        self.home, self.state, self.journals = (os.path.join(root, name) for name in "hsj")
        os.mkdir(self.home, 0o700)
        os.mkdir(self.journals, 0o700)
        self.lag = Lag()
        self.lag.start()
        self.brain = Brain(think or Echo(), self._path("brain"))
        self.hub = DonutHub(token=TOKEN, journal=self._path("hub"), **(hub or {}))
        options: dict[str, Any] = {"key": KEY, "journal": self._path("hermes"), **(hermes or {})}
        self.hermes = HermesApi(self.brain, **{"cap": 0, **options})
        self.environ = environ
        self.bridges: list[Bridge] = []
        self.bridge = self.another(pump=pump)
        self.judged_by = self._rules(environ, rules or {})
        self.bridge.journal.note("rules", **self.judged_by)
        # Guards the chats and the numbers: messages are said by several threads.
        self._lock = threading.Lock()
        self._chats: set[int | str] = set()
        self._numbers = itertools.count(1)

    def _path(self, name: str) -> str:
        return os.path.join(self.journals, f"{name}.ndjson")

    def _rules(self, environ: Mapping[str, str | None], rules: Mapping[str, Any]) -> dict[str, Any]:
        def seconds(name: str, usual: float) -> float:
            return float((environ.get(name) or str(usual)).removesuffix("s"))

        fallback = environ.get("BRIDGE_FALLBACK_MESSAGE", FALLBACK)
        return {
            "concurrent": int(environ.get("BRIDGE_MAX_CONCURRENT") or 4),
            "timeout": seconds("BRIDGE_REQUEST_TIMEOUT", 120.0),
            "fallback": fallback or "",
            "fallback_interval": seconds("BRIDGE_FALLBACK_INTERVAL", 60.0),
            "notices": list(NOTICES),
            **rules,
        }

    def another(self, *flags: str, **options: Any) -> Bridge:
        """One more bridge with the same variables, not started; the first one is `bridge`."""
        bridge = Bridge(self, self.environ, *flags, **options)
        self.bridges.append(bridge)
        return bridge

    def start(self) -> Bridge:
        return self.bridge.start()

    # The people

    def say(self, chat: int | str, text: str | None = None, **options: Any) -> Any:
        """Somebody writes into a chat; the message's id. Without a text it is one of its own."""
        with self._lock:
            if chat not in self._chats:
                self.hub.add_chat(chat, "all")
                self._chats.add(chat)
            if text is None:
                text = f"question {next(self._numbers)} in {chat}"
        return self.hub.say(chat, text, **options)

    def answers(self, chat: int | str | None = None) -> list[dict[str, Any]]:
        """What the bot has posted, but for notices."""
        notices = {FALLBACK, *NOTICES}
        return [post for post in self.hub.posted(chat) if post["content"] not in notices]

    def answered(self, message: Any) -> list[str]:
        """What was posted in reply to that message."""
        return [post["content"] for post in self.hub.posted() if post["reply_to"] == message]

    def wait_answered(self, messages: Iterable[Any], deadline: float = 20.0) -> None:
        left = set(messages)

        def none_left() -> bool:
            left.difference_update(post["reply_to"] for post in self.hub.posted())
            return not left

        try:
            wait(none_left, deadline, "all are answered")
        except AssertionError as error:
            error.add_note(f"not answered: {len(left)}, such as {sorted(left, key=str)[:10]}")
            raise

    def wait_posts(self, number: int, deadline: float = 20.0) -> None:
        wait(lambda: len(self.hub.posted()) >= number, deadline, f"{number} posts")

    def wait_calls(self, number: int, deadline: float = 20.0) -> None:
        """Until Hermes has had so many requests for a turn, also those that joined a run."""
        wait(lambda: len(self.notes("hermes", "call")) >= number, deadline, f"{number} calls")

    def wait_events(self, number: int, deadline: float = 20.0) -> None:
        """Until the hub has written so many events to streams, replayed ones too."""
        wait(lambda: len(self.notes("hub", "event")) >= number, deadline, f"{number} events")

    def wait_dials(self, number: int, deadline: float = 40.0) -> None:
        wait(lambda: self.dialled() >= number, deadline, f"{number} streams")

    def dialled(self) -> int:
        """How many streams the hub has let in."""
        return sum(1 for dial in list(self.hub.dials) if dial.status == 101)

    def stop_hub(self, keep: bool = True) -> None:
        """It cuts all connections and accepts none, until `hub.start_listening`."""
        self.bridge.journal.note("hub_stopped")
        self.hub.stop_listening(keep)

    def restart_hermes(self) -> None:
        """Its runs end without a result, and a new process knows no key."""
        self.hermes.stop()
        self.bridge.journal.note("hermes_restarted")
        self.hermes.start()

    def notes(self, journal: str, what: str) -> list[dict[str, Any]]:
        return [
            n for n in donut_judge.read(self.journals, f"{journal}.ndjson") if n["what"] == what
        ]

    # The end

    def verdict(self, **rules: Any) -> dict[str, Any]:
        """What the judge says of the journals so far; keywords change its rules."""
        self.bridge.journal.note("rules", lag=self.lag.worst)
        run = donut_judge.load(self.journals)
        for name, value in rules.items():
            setattr(run.rules, name, value)
        return donut_judge.judge(run)

    def assert_good(self, **rules: Any) -> dict[str, Any]:
        report = self.verdict(**rules)
        text = json.dumps(report, indent=1, ensure_ascii=False)
        print(text)
        assert not report["failures"], text[:6000]
        return report

    def close(self) -> None:
        try:
            for bridge in self.bridges:
                bridge.end()
        finally:
            self.lag.close()
            self.hub.close()
            self.hermes.close()
            self.brain.journal.close()

    def __enter__(self) -> DonutScene:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
        if error is None:
            for bridge in self.bridges:
                bridge.assert_no_traceback()
        elif isinstance(error, AssertionError):
            for bridge in self.bridges:
                if text := bridge.all_stderr().strip():
                    error.add_note(f"the bridge said:\n{text[-4000:]}")
