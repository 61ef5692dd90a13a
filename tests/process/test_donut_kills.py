"""kill -9 at random moments under load; the hub replays, and the judge reads the journals."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_bridges.standins.donut_faults import Fault
from hermes_bridges.standins.hermes_api import Answer, Call
from tests.harness.donut_scene import DonutScene, Echo
from tests.harness.process import stays, wait
from tests.process.donut_traffic import Traffic

SEED = 23


@pytest.mark.timeout(1500)
def test_KH12_kills_at_random_moments_lose_and_repeat_nothing(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """Each message is answered exactly once; the hub sees repeats by their key, and they have
    the width of one commit."""
    dice = random.Random(SEED)
    kills = counts(30, 300)
    with DonutScene(str(short_tmp), think=Echo((0.0, 0.15), long=0.2)) as scene:
        bridge = scene.start()
        with Traffic(scene, SEED) as traffic:
            for _ in range(kills):
                stays(lambda: True, dice.uniform(0.0, 0.5))
                bridge.kill()
                before = scene.dialled()
                bridge.start(ready=False)
                if dice.random() < 0.9:
                    bridge.wait_ready(before)  # else it may be killed in the middle of its start
        wait(lambda: scene.hub.online, 20, "the last one is there")
        scene.wait_answered(traffic.said, 60)
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["ends"] == kills + 1
        assert report["counts"]["asked"] == len(traffic.said) > kills
        assert report["counts"]["joined"] > 0, "some runs were joined by the next process"
        assert "copies" not in report["counts"]
        # A second restart repeats nothing.
        sends = len(scene.notes("hub", "send"))
        bridge.start()
        stays(lambda: len(scene.notes("hub", "send")) == sends, 0.5)
        assert bridge.stop() == 0


def test_KH12_the_cursor_waits_for_the_slow_chat(short_tmp: Path) -> None:
    """A fast chat does not move it past a slow one; what was answered is not repeated."""
    release = threading.Event()

    def think(call: Call) -> Answer:
        if call.text == "slow":
            release.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(3)])
        stays(lambda: True, 1.2)  # the cursor is written once a second
        slow = scene.say(1, "slow")
        wait(lambda: scene.hermes.active, what="it is on its way")
        fast = [scene.say(2, f"fast {n}") for n in range(5)]
        scene.wait_answered(fast)
        stays(lambda: True, 1.2)
        bridge.kill()
        bridge.start()
        release.set()
        scene.wait_answered([slow])
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["joined"] == 1
        events = scene.notes("hub", "event")
        assert [n["message_id"] for n in events if n["conn"] == 2] == [slow, *fast]


def test_the_very_first_messages_of_a_bot_survive_a_kill(short_tmp: Path) -> None:
    """There is no event yet from which the hub could replay anything."""
    hold = threading.Event()

    def think(call: Call) -> Answer:
        hold.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think, BRIDGE_MAX_CONCURRENT="1") as scene:
        bridge = scene.start()
        messages = [scene.say(chat) for chat in (1, 2, 2, 3)]
        wait(lambda: scene.hermes.active, what="one is on its way")
        scene.wait_events(len(messages))
        stays(lambda: len(scene.notes("hermes", "call")) == 1, 0.3)
        bridge.kill()
        hold.set()
        bridge.start()
        scene.wait_answered(messages)
        assert bridge.stop() == 0
        scene.assert_good()


def test_a_hub_without_event_ids_cannot_replay_but_what_came_is_answered(short_tmp: Path) -> None:
    """Contract section 1: messages are kept with their text until they are settled."""
    with DonutScene(
        str(short_tmp), think=Echo((0.05, 0.15), long=0.2), hub={"event_ids": False}
    ) as scene:
        bridge = scene.start()
        messages: list[int] = []
        for _ in range(4):
            messages += [scene.say(1 + n % 5) for n in range(20)]
            scene.wait_events(len(messages))
            stays(lambda: True, 0.15)  # they are kept within a moment
            bridge.kill()
            bridge.start()
        scene.wait_answered(messages)
        assert bridge.stop() == 0
        scene.assert_good()
        kept = [
            path.name for path in Path(scene.state).iterdir() if b"question" in path.read_bytes()
        ]
        assert not kept, "nothing that was said is left in the state"


@pytest.mark.parametrize("idempotent", [True, False])
def test_KH47_killed_between_the_post_and_its_commit(short_tmp: Path, idempotent: bool) -> None:
    """The one moment in which an answer may come twice; never a third time, and with a hub that
    knows keys not even a second."""
    with DonutScene(str(short_tmp), hub={"idempotent": idempotent}) as scene:
        bridge = scene.start()
        scene.hub.fault(Fault("send", stored=True, delay=0.5))
        message = scene.say(1, "hello")
        wait(lambda: scene.hub.posted(1), what="it is stored")
        bridge.kill()
        for _ in range(2):
            bridge.start()
            scene.wait_answered([scene.say(2)])
            assert bridge.stop() == 0
        assert scene.answered(message) == ["re: hello"] * (1 if idempotent else 2)

        def sends() -> list[str]:
            return [n["key"] for n in scene.notes("hub", "send") if n["reply_to"] == message]

        wait(lambda: len(sends()) == 2, what="the hub has noticed that nobody waits")
        assert len(set(sends())) == 1
        report = scene.assert_good()
        assert report["counts"]["sent_again"] == 1


def test_killed_between_two_parts_the_next_process_posts_the_rest(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), think=Echo(long=1.0, size=(20_000, 20_000))) as scene:
        bridge = scene.start()
        scene.hub.send_delay(0.15)
        message = scene.say(1)
        for parts in (1, 3, 4):
            scene.wait_posts(parts)
            bridge.kill()
            bridge.start()
        scene.wait_posts(6)
        next_one = scene.say(1)
        scene.wait_answered([message, next_one])
        scene.wait_posts(12)
        assert bridge.stop() == 0
        report = scene.assert_good(window=0.5)
        assert report["counts"]["answered"] == 2
        assert report["counts"]["calls"] == 2, "a settled message is not asked again"


def test_after_a_kill_of_both_hermes_is_asked_anew(short_tmp: Path) -> None:
    """Another process of Hermes knows no key: nobody had the answer, so it is asked for again."""
    hold = threading.Event()

    def think(call: Call) -> Answer:
        hold.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think) as scene:
        bridge = scene.start()
        message = scene.say(1, "hello")
        wait(lambda: scene.hermes.active, what="it is on its way")
        bridge.kill()
        scene.restart_hermes()
        hold.set()
        bridge.start()
        scene.wait_answered([message])
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["run_again"] == 1


def test_a_message_that_kills_is_given_up_with_a_notice(short_tmp: Path) -> None:
    """Three starts, then the notice (contract section 9, poison message)."""
    over = threading.Event()

    def think(call: Call) -> Answer:
        over.wait(60)
        return Answer(f"re: {call.text}")

    with DonutScene(str(short_tmp), think=think) as scene:
        bridge = scene.start()
        message = scene.say(1, "poison")
        for start in range(1, 4):
            scene.wait_calls(start)
            bridge.kill()
            bridge.start()
        scene.wait_answered([message])
        assert len(scene.notes("hermes", "call")) == 3
        assert [n["content"] for n in scene.notes("hub", "send")] == [
            "This message could not be answered and was given up."
        ]
        assert "9001" in "".join(bridge.lines("error"))
        over.set()
        scene.wait_answered([scene.say(1, "and now?")])
        assert bridge.stop() == 0
        scene.assert_good(failing=True)
