"""The hub or Hermes goes away, is slow, or says nothing, while people go on writing."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_api import Answer, Call
from tests.harness.donut_scene import FALLBACK, DonutScene, Echo
from tests.harness.process import stays, wait
from tests.process.donut_traffic import Traffic

SEED = 53


class Slow:
    """A text that begins with a number takes that many seconds, and others none."""

    def __call__(self, call: Call) -> Answer:
        word = call.text.partition(" ")[0]
        return Answer(f"re: {call.text}", float(word) if word[:1].isdigit() else 0.0)


def contents(scene: DonutScene, chat: int) -> list[str]:
    return [post["content"] for post in scene.hub.posted(chat)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_restarts_of_the_hub_lose_nothing(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """It comes back with what it held, after moments or after a while; cut or closed."""
    dice = random.Random(SEED)
    with DonutScene(str(short_tmp), think=Echo((0.0, 0.1), long=0.2)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        # Posts that found no hub are tried again after some seconds: no more is said meanwhile.
        with Traffic(scene, SEED, rate=15) as traffic:
            for number in range(counts(4, 30)):
                before = scene.dialled()
                stays(lambda: True, dice.uniform(0.1, 0.6))
                how = number % 4
                if how == 0:
                    scene.hub.cut(reset=dice.random() < 0.5)
                elif how == 1:
                    scene.hub.close_streams(dice.choice([1000, 1001, 1011, 1012]))
                else:
                    scene.stop_hub()
                    stays(lambda: True, dice.uniform(0.0, 0.8))
                    scene.hub.start_listening()
                scene.wait_dials(before + 1)
        scene.wait_answered(traffic.said, 60)
        wait(lambda: scene.hub.online, 40, "it is back")
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["answered"] > 20
        assert bridge.count("reconnects") >= counts(4, 30)


def test_a_hub_that_has_forgotten_all_is_told_as_a_gap(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1), scene.say(2)])
        scene.stop_hub(keep=False)
        scene.hub.start_listening()
        scene.wait_dials(2)
        scene.wait_answered([scene.say(1)])
        wait(lambda: bridge.lines("no longer holds"), what="the gap is told")
        assert bridge.stop() == 0
        scene.assert_good()


@pytest.mark.slow
def test_a_half_open_connection_is_noticed_within_45_seconds(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        scene.hub.stall()
        begin = time.monotonic()
        messages = [scene.say(1 + n % 3) for n in range(20)]
        wait(lambda: scene.dialled() == 2, 46, "a second dial")
        assert time.monotonic() - begin > 10, "it does not give up at once"
        scene.wait_answered(messages)
        assert bridge.stop() == 0
        scene.assert_good()


def test_a_stream_in_pieces_is_read_all_the_same(short_tmp: Path) -> None:
    """Frames byte by byte, and messages in fragments with pings between."""
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.hub.streams()[0].split(1, 0.0)
        scene.hub.streams()[0].fragment(7)
        scene.wait_answered([scene.say(1 + n % 3, f"grüße 🙂 {n}") for n in range(10)])
        assert scene.dialled() == 1
        assert bridge.stop() == 0
        scene.assert_good()


def test_KH31_a_slow_answer_within_the_limit_is_posted_once(short_tmp: Path) -> None:
    """Other chats go on, typing is refreshed, and a stop ends the waiting in its grace."""
    with DonutScene(str(short_tmp), think=Slow(), BRIDGE_SHUTDOWN_GRACE="1s") as scene:
        bridge = scene.start()
        slow = scene.say(1, "5 seconds")
        scene.wait_calls(1)
        begin = time.monotonic()
        others = [scene.say(2 + n % 4) for n in range(20)]
        scene.wait_answered(others)
        assert time.monotonic() - begin < 4.0
        wait(lambda: scene.hub.typing(1), what="it types")
        scene.wait_answered([slow])
        wait(lambda: not scene.hub.typing(1), what="typing is ended")
        starts = [
            n["began"]
            for n in scene.notes("hub", "typing")
            if n["chat_id"] == 1 and n["state"] == "start"
        ]
        assert len(starts) == 2 and 3.5 < starts[1] - starts[0] < 4.8, starts
        stalled = scene.say(1, "30 seconds")
        scene.wait_calls(len(others) + 2)
        assert bridge.stop(limit=2.5) == 0
        assert not scene.answered(stalled)
        scene.assert_good(final=False)


def test_KH19_a_late_answer_comes_in_its_order(short_tmp: Path) -> None:
    """After the time limit the chat is told; its next message waits until the run has ended."""
    with DonutScene(
        str(short_tmp), think=Slow(), rules={"failing": True}, BRIDGE_REQUEST_TIMEOUT="1.5s"
    ) as scene:
        bridge = scene.start()
        scene.say(1, "2.2 seconds")
        scene.wait_calls(1)
        scene.wait_answered([scene.say(1, "the next"), scene.say(2)])
        assert contents(scene, 1) == [FALLBACK, "re: 2.2 seconds", "re: the next"]
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["joined"] == 1
        assert bridge.status()["call_failures.timeout"] == 1, "it counts once"
        assert bridge.status()["fallback"] == 1


def test_KH19_a_run_without_an_end_is_given_up_after_a_second_limit(short_tmp: Path) -> None:
    with DonutScene(
        str(short_tmp), think=Slow(), rules={"failing": True}, BRIDGE_REQUEST_TIMEOUT="1s"
    ) as scene:
        bridge = scene.start()
        scene.say(1, "4 seconds")
        scene.wait_calls(1)
        scene.wait_answered([scene.say(1, "the next")])
        assert contents(scene, 1) == [FALLBACK, "re: the next"]
        stays(lambda: len(contents(scene, 1)) == 2, 2.5, "what comes after that is not posted")
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["outlived"] == 1


@pytest.mark.parametrize("hermes", ["the same", "another"])
def test_killed_while_it_waits_for_a_late_answer(short_tmp: Path, hermes: str) -> None:
    """The next process joins the run if it is still there; the chat is told once only."""
    with DonutScene(
        str(short_tmp),
        think=Slow(),
        rules={"failing": True},
        BRIDGE_REQUEST_TIMEOUT="1s",
    ) as scene:
        bridge = scene.start()
        message = scene.say(1, "2.8 seconds")
        scene.wait_posts(1)
        scene.wait_calls(2)
        bridge.kill()
        if hermes == "another":
            scene.restart_hermes()
        bridge.start()
        wait(lambda: len(scene.answered(message)) == 2 or bridge.lines("failed after"), 15)
        scene.wait_answered([scene.say(1, "the next")])
        said = contents(scene, 1)
        if hermes == "the same":
            assert said == [FALLBACK, "re: 2.8 seconds", "re: the next"]
        else:
            assert said[0] == FALLBACK and said[-1] == "re: the next"
            assert said.count(FALLBACK) == 1
        assert bridge.stop() == 0
        scene.assert_good()


def test_hermes_restarts_in_the_middle_of_a_turn(short_tmp: Path) -> None:
    """The run is gone, and a second one could do its work again: the chat is told instead."""
    hold = threading.Event()

    def think(call: Call) -> Answer:
        if call.text == "held":
            hold.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think, rules={"failing": True}) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        message = scene.say(1, "held")
        scene.wait_calls(2)
        scene.restart_hermes()
        hold.set()
        scene.wait_answered([message])
        assert scene.answered(message) == [FALLBACK]
        scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert "run_again" not in report["counts"]


def test_hermes_is_away_for_a_moment(short_tmp: Path) -> None:
    """Not connected yet: tried again, for a while; nobody needs to know."""
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        scene.hermes.stop()
        messages = [scene.say(chat) for chat in range(1, 7)]
        stays(lambda: True, 0.8)
        scene.hermes.start()
        scene.wait_answered(messages)
        assert bridge.stop() == 0
        scene.assert_good(failing=True)  # the signal of typing is there without a call
        assert all(FALLBACK not in scene.answered(message) for message in messages)


def test_KH28_what_failed_was_told_and_is_not_done_again(short_tmp: Path) -> None:
    """A message is settled by its fallback: when it comes again, nothing happens."""
    with DonutScene(
        str(short_tmp),
        think=lambda call: Answer(status=500, body=b"{}"),
        rules={"failing": True},
    ) as scene:
        bridge = scene.start()
        message = scene.say(1, "hello")
        scene.wait_answered([message])
        scene.brain.think = Echo()
        scene.say(1, "hello", message_id=message)
        scene.wait_answered([scene.say(1, "after it")])
        assert contents(scene, 1) == [FALLBACK, "re: after it"]
        assert bridge.stop() == 0
        assert bridge.status()["ignored.duplicate"] == 1
        scene.assert_good()


def test_KH09_one_chats_flood_limit_holds_up_no_other(short_tmp: Path) -> None:
    """429 for one chat: its answers wait and keep their order, typing for it rests, others go."""
    with DonutScene(str(short_tmp), think=Echo(long=0.5)) as scene:
        bridge = scene.start()
        scene.hub.send_busy(2.5, chat=1)
        begin = time.monotonic()
        limited = [scene.say(1) for _ in range(3)]
        wait(lambda: [n for n in scene.notes("hub", "send") if n["status"] == 429], what="429")
        others = [scene.say(chat) for chat in range(2, 12)]
        scene.wait_answered(others)
        assert time.monotonic() - begin < 2.0
        assert not scene.hub.posted(1)
        scene.wait_answered(limited)
        first = next(n for n in scene.notes("hub", "send") if n["status"] == 429)
        second = next(
            n for n in scene.notes("hub", "send") if n["message_id"] and n["chat_id"] == 1
        )
        assert second["began"] - first["t"] >= 2.5
        assert second["key"] == first["key"]
        assert bridge.stop() == 0
        scene.assert_good()


@pytest.mark.slow
def test_KH04_what_may_have_been_stored_is_not_sent_again(short_tmp: Path) -> None:
    """503, then a request that is stored and never answered: no third one, and no notice."""
    with DonutScene(str(short_tmp), BRIDGE_SHUTDOWN_GRACE="1s") as scene:
        bridge = scene.start()
        scene.hub.send_status(503)
        scene.hub.send_hang(stored=True)
        scene.say(1, "hello")
        scene.wait_posts(1)
        after = scene.say(1, "after it")
        scene.wait_answered([after], 25)
        assert contents(scene, 1) == ["re: hello", "re: after it"]
        assert bridge.stop() == 0
        assert bridge.status()["unknown"] == 1
        sends = [n["status"] for n in scene.notes("hub", "send")]
        assert sorted(map(str, sends)) == ["200", "503", "None"]
        scene.assert_good()


def test_KH25_typing_ends_with_the_turn(short_tmp: Path) -> None:
    """A slow typing endpoint and many short turns; no signal begins after the first reply."""
    with DonutScene(str(short_tmp), think=Echo((0.0, 0.05))) as scene:
        bridge = scene.start()
        scene.hub.send_delay(0.3, where="typing")
        scene.wait_answered([scene.say(1)])
        base = bridge.threads()
        for n in range(30):
            scene.wait_answered([scene.say(1) for _ in range(1 + n % 2)])
        stays(lambda: True, 1.0)  # a signal that was under way, and the one that ends it
        stays(lambda: not scene.hub.typing(1), 0.5)
        assert bridge.threads() <= base + 1
        assert bridge.stop() == 0
        scene.assert_good()
