"""Many chats at once: order, how many calls at a time, who is served first, and what is dropped."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.standins.hermes_api import Answer, Call
from tests.harness.donut_scene import FALLBACK, DonutScene, Echo
from tests.harness.process import stays, wait

SEED = 41


class Gate:
    """Says what it heard; the first call waits until the gate opens, the others take `turn` s."""

    def __init__(self, turn: float = 0.0) -> None:
        self.turn = turn
        self.opened = threading.Event()
        self.heard: list[str] = []

    def __call__(self, call: Call) -> Answer:
        self.heard.append(call.text)
        if len(self.heard) == 1:
            self.opened.wait(60)
        return Answer(f"re: {call.text}", self.turn)


def contents(scene: DonutScene, chat: int) -> list[str]:
    return [post["content"] for post in scene.hub.posted(chat)]


@pytest.mark.timeout(600)
def test_each_chat_is_answered_in_order_whatever_the_delays(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """Some answers are long; the judge looks at order, parts, calls at once and who is first."""
    chats, each, concurrent = counts(30, 200), counts(15, 50), 8
    dice = random.Random(SEED)
    with DonutScene(
        str(short_tmp),
        think=Echo((0.0, 0.06), long=0.1),
        BRIDGE_QUEUE_LIMIT=str(each),
        BRIDGE_MAX_CONCURRENT=str(concurrent),
    ) as scene:
        scene.start()
        todo = [chat for chat in range(1, chats + 1) for _ in range(each)]
        dice.shuffle(todo)
        messages = [scene.say(chat) for chat in todo]
        scene.wait_answered(messages, 400)
        assert scene.bridge.stop() == 0
        report = scene.assert_good(first_come=1.0)
        assert report["counts"]["answered"] == len(todo)
        assert report["counts"]["most_at_once"] == concurrent, "it makes use of all it has"
        assert scene.bridge.count("answered") == len(todo)
        assert scene.bridge.count("dropped") == scene.bridge.count("lost") == 0


def test_who_waits_first_is_served_first(short_tmp: Path) -> None:
    gate = Gate()
    with DonutScene(str(short_tmp), think=gate, BRIDGE_MAX_CONCURRENT="1") as scene:
        scene.start()
        scene.say(1, "the first")
        wait(lambda: gate.heard, what="the only slot is taken")
        order = random.Random(SEED).sample(range(2, 32), 30)
        messages = []
        for chat in order:
            messages.append(scene.say(chat, f"in {chat}"))
            stays(lambda: len(gate.heard) == 1, 0.015)
        gate.opened.set()
        scene.wait_answered(messages)
        assert gate.heard == ["the first", *(f"in {chat}" for chat in order)]
        assert scene.bridge.stop() == 0
        scene.assert_good()


def test_a_flooding_chat_delays_no_other_by_more_than_its_turn(short_tmp: Path) -> None:
    """One slot; the others come while a flood of another chat waits, and it is not the fastest."""
    flood, others, heard = 60, range(2, 12), []

    def think(call: Call) -> Answer:
        heard.append(call.text)
        return Answer(f"re: {call.text}", 0.05)

    with DonutScene(
        str(short_tmp), think=think, BRIDGE_MAX_CONCURRENT="1", BRIDGE_QUEUE_LIMIT=str(flood)
    ) as scene:
        scene.start()
        messages = [scene.say(1, f"flood {n}") for n in range(flood)]
        before: list[tuple[int, int]] = []  # calls for the flood made when each other one came
        for chat in others:
            scene.wait_calls(len(heard) + 1)
            before.append((chat, len([text for text in heard if text.startswith("flood")])))
            messages.append(scene.say(chat, f"in {chat}"))
        scene.wait_answered(messages)
        for chat, calls in before:
            place = heard.index(f"in {chat}")
            between = [text for text in heard[:place] if text.startswith("flood")][calls:]
            assert len(between) <= 2, f"in {chat} waited for {between}"
        assert scene.bridge.stop() == 0
        scene.assert_good()


def test_the_oldest_is_dropped_and_comes_again(short_tmp: Path) -> None:
    """Contract section 3.4: what was dropped is asked for again as soon as the queue is empty."""
    gate, limit = Gate(), 5
    with DonutScene(str(short_tmp), think=gate, BRIDGE_QUEUE_LIMIT=str(limit)) as scene:
        scene.start()
        scene.say(1, "0")
        wait(lambda: gate.heard, what="it is in flight")
        messages = [scene.say(1, str(n)) for n in range(1, 30)]
        wait(lambda: len(scene.bridge.lines("dropped")) == 29 - limit, what="the drops are told")
        other = scene.say(2, "of another chat")
        scene.wait_answered([other])
        gate.opened.set()
        scene.wait_answered(messages)
        kept = [0, *range(30 - limit, 30)]
        assert contents(scene, 1) == [f"re: {n}" for n in [*kept, *range(1, 30 - limit)]]
        assert scene.dialled() == 2, "one more dial brings them all"
        assert scene.bridge.stop() == 0
        report = scene.assert_good(overflow=True)
        assert "lost" not in report["counts"]
        assert scene.bridge.count("dropped") == 29 - limit
        assert scene.bridge.count("lost") == 0


def test_what_the_hub_cannot_replay_any_more_is_lost_and_counted(short_tmp: Path) -> None:
    gate, limit, said = Gate(), 5, 150
    with DonutScene(str(short_tmp), think=gate, BRIDGE_QUEUE_LIMIT=str(limit)) as scene:
        scene.start()
        scene.say(1, "0")
        wait(lambda: gate.heard, what="it is in flight")
        messages = [scene.say(1, str(n)) for n in range(1, said)]
        dropped = said - 1 - limit
        wait(lambda: len(scene.bridge.lines("dropped")) == dropped, what="the drops are told")
        gate.opened.set()
        scene.wait_answered(messages[-100:])
        assert scene.bridge.stop() == 0
        report = scene.assert_good(overflow=True)
        status = scene.bridge.status()
        # The hub holds a hundred events, and the cursor stands before the first of them.
        assert status["lost"] == len(scene.bridge.lines("cannot come again")) == said - 100 - 1
        assert report["counts"]["lost"] == status["lost"]
        assert status["dropped"] == dropped


def test_a_backlog_of_the_replay_pushes_nothing_out(short_tmp: Path) -> None:
    """What came while the bridge was away is answered whole and in order, whatever the limit."""
    with DonutScene(str(short_tmp), BRIDGE_QUEUE_LIMIT="3") as scene:
        scene.start()
        scene.wait_answered([scene.say(1)])
        assert scene.bridge.stop() == 0
        messages = [scene.say(1 + n % 2) for n in range(90)]
        scene.start()
        scene.wait_answered(messages)
        assert scene.bridge.stop() == 0
        scene.assert_good()
        assert scene.bridge.count("dropped") == 0


def test_a_slow_chat_holds_one_slot_and_no_more(short_tmp: Path) -> None:
    """Hermes is slow with one chat: the others are answered meanwhile, by the other slot."""
    release = threading.Event()

    def think(call: Call) -> Answer:
        if call.text.startswith("slow"):
            release.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think, BRIDGE_MAX_CONCURRENT="2") as scene:
        scene.start()
        slow = [scene.say(1, f"slow {n}") for n in range(3)]
        quick = [scene.say(2 + n % 5) for n in range(50)]
        scene.wait_answered(quick)
        assert not scene.hub.posted(1)
        release.set()
        scene.wait_answered(slow)
        assert scene.bridge.stop() == 0
        scene.assert_good()


def test_a_failing_hermes_is_left_alone_and_probed_by_one(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """The breaker, from outside: half-open it lets one call through, of fifty chats that ask."""
    cooldown, chats = 1.0, range(1, 51)
    broken, hold = threading.Event(), threading.Event()
    broken.set()

    def think(call: Call) -> Answer:
        if call.text.startswith("probe"):
            hold.wait(60)
        return Answer(status=500, body=b"{}") if broken.is_set() else Answer(f"re: {call.text}")

    with DonutScene(
        str(short_tmp),
        think=think,
        rules={"failing": True},
        BRIDGE_MAX_CONCURRENT="50",
        BRIDGE_BREAKER_THRESHOLD="3",
        BRIDGE_BREAKER_COOLDOWN=f"{cooldown}s",
        BRIDGE_FALLBACK_INTERVAL="0",
    ) as scene:
        bridge = scene.start()
        for n in range(3):
            scene.wait_answered([scene.say(1, f"bad {n}")])
        wait(lambda: bridge.lines("breaker is open"), what="the breaker opens")
        calls = len(scene.hermes.calls)
        scene.wait_answered([scene.say(chat) for chat in chats])
        assert len(scene.hermes.calls) == calls, "no call is made while it is open"
        for _ in range(counts(2, 20)):
            hold.clear()
            calls = len(scene.hermes.calls)
            stays(lambda: True, cooldown * 1.1)
            assert len(scene.hermes.calls) == calls
            probes = [scene.say(chat, f"probe {chat}") for chat in chats]
            wait_told(scene, probes, len(probes) - 1)
            assert len(scene.hermes.calls) == calls + 1, "one probe"
            hold.set()
            scene.wait_answered(probes)
        broken.clear()
        stays(lambda: True, cooldown * 1.1)
        scene.wait_answered([scene.say(1, "probe again")])
        messages = [scene.say(chat, f"well {chat}") for chat in chats]
        scene.wait_answered(messages)
        assert told(scene, messages) == 0, "it is closed again"
        assert bridge.lines("breaker is closed")
        assert bridge.stop() == 0
        scene.assert_good()


def wait_told(scene: DonutScene, messages: list[Any], number: int) -> None:
    wait(lambda: told(scene, messages) == number, what=f"{number} of them are told")


def told(scene: DonutScene, messages: list[Any]) -> int:
    """How many of these messages got the fallback."""
    wanted = set(messages)
    posts = scene.hub.posted()
    return sum(1 for p in posts if p["reply_to"] in wanted and p["content"] == FALLBACK)
