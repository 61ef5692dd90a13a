"""Signals: a clean stop at any moment, answers in flight are posted, and nothing is begun."""

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_api import Answer, Call
from tests.harness.donut_scene import DonutScene, Echo
from tests.harness.process import stays, wait
from tests.process.donut_traffic import Traffic

SEED = 31
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Held:
    """Hermes answers at once, but for what begins with "held": that waits for `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, call: Call) -> Answer:
        if call.text.startswith("held"):
            self.release.wait(60)
        return Answer(f"re: {call.text}")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_KH02_a_stop_at_any_moment_under_load(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """Exit 0 in time; the judge looks for answers that were not posted, and for late calls."""
    dice = random.Random(SEED)
    took: list[float] = []
    with DonutScene(str(short_tmp), think=Echo((0.0, 0.3), long=0.2)) as scene:
        bridge = scene.start()
        with Traffic(scene, SEED) as traffic:
            for _ in range(counts(30, 300)):
                stays(lambda: True, dice.uniform(0.0, 0.5))
                begin = time.monotonic()
                assert bridge.stop(dice.choice(SIGNALS), limit=6.0) == 0
                took.append(time.monotonic() - begin)
                bridge.start()
        scene.wait_answered(traffic.said, 30)
        assert bridge.stop() == 0
        took.sort()
        print(f"{len(took)} stops: median {took[len(took) // 2]:.3f} s, slowest {took[-1]:.3f} s")
        report = scene.assert_good()
        assert report["counts"]["finished_at_a_stop"] > 0
        assert "repeats" not in report["counts"]
        assert "joined" not in report["counts"] or not report["counts"]["joined"]


def test_KH02_a_signal_at_any_moment_of_the_start(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """Before its handlers stand, a signal ends it as the system does; afterwards cleanly."""
    dice = random.Random(SEED)
    codes: dict[int, int] = {}
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        usual = bridge.started - bridge.begun
        assert bridge.stop() == 0
        for _ in range(counts(20, 300)):
            bridge.start(ready=False)
            stays(lambda: True, dice.uniform(0, usual * 1.2))
            code = bridge.stop(limit=3.0)
            codes[code] = codes.get(code, 0) + 1
        assert set(codes) <= {0, -signal.SIGTERM}, codes
        bridge.start()
        scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_idle_it_ends_within_a_second_and_closes_the_stream_first(
    short_tmp: Path, number: int
) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        assert bridge.stop(number, limit=1.0) == 0
        wait(lambda: scene.notes("hub", "closed"), what="the hub has seen the close")
        assert [(n["code"], n["by"]) for n in scene.notes("hub", "closed")] == [(1001, "bot")]
        assert not scene.hub.typing(1)
        assert bridge.lines("stopping on")


def test_what_is_in_flight_is_posted_and_what_waits_is_left(short_tmp: Path) -> None:
    """The stream is closed at once; the call is waited for; queued ones come again."""
    held = Held()
    with DonutScene(str(short_tmp), think=held, BRIDGE_MAX_CONCURRENT="1") as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(3)])
        flying = scene.say(1, "held")
        scene.wait_calls(2)
        waiting = [scene.say(1, "next"), scene.say(2, "other")]
        wait(lambda: scene.hub.typing(1), what="it types")
        bridge.send_signal(signal.SIGTERM)
        wait(lambda: not scene.hub.online, what="the stream is closed")
        stays(lambda: bridge.running, 0.3)
        held.release.set()
        assert bridge.wait_exit(2) == 0
        assert scene.answered(flying) == ["re: held"]
        assert len(scene.notes("hermes", "call")) == 2
        assert not scene.hub.typing(1)
        bridge.start()
        scene.wait_answered(waiting)
        assert bridge.stop() == 0
        scene.assert_good()


def test_KH31_the_grace_ends_and_the_next_start_joins_the_run(short_tmp: Path) -> None:
    held = Held()
    with DonutScene(str(short_tmp), think=held, BRIDGE_SHUTDOWN_GRACE="0.5s") as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(3)])
        flying = scene.say(1, "held")
        scene.wait_calls(2)
        begin = time.monotonic()
        assert bridge.stop(limit=2.0) == 0
        assert time.monotonic() - begin > 0.4
        assert not scene.answered(flying)
        wait(lambda: not scene.hub.typing(1), what="typing is ended all the same")
        bridge.start()
        scene.wait_calls(3)
        held.release.set()
        scene.wait_answered([flying])
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert report["counts"]["joined"] == 1


@pytest.mark.parametrize("further", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_KH32_a_second_signal_ends_it_within_a_second(
    short_tmp: Path, further: tuple[int, ...]
) -> None:
    """Exit 1, the state is committed: nothing is answered twice, what was open comes again."""
    held = Held()
    with DonutScene(str(short_tmp), think=held) as scene:
        bridge = scene.start()
        done = [scene.say(chat) for chat in range(10, 20)]
        scene.wait_answered(done)
        flying = [scene.say(chat, "held") for chat in (1, 2)]
        scene.wait_calls(12)
        bridge.send_signal(signal.SIGTERM)
        stays(lambda: bridge.running, 0.3)
        begin = time.monotonic()
        for number in further:
            bridge.send_signal(number)
            time.sleep(0.05)
        assert bridge.wait_exit(1.0 - (time.monotonic() - begin)) == 1
        assert bridge.count("answered") == len(done), "the status file is of the end"
        bridge.start()
        held.release.set()
        scene.wait_answered(flying)
        assert bridge.stop() == 0
        report = scene.assert_good()
        assert "repeats" not in report["counts"]


def test_a_stop_ends_every_wait_at_once(short_tmp: Path) -> None:
    """For Hermes that is busy or away, for a hub that wants to be left alone, for a redial."""
    with DonutScene(str(short_tmp), rules={"failing": True}) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(9)])
        scene.hermes.draining = True  # 503, to be waited for
        scene.say(1)
        scene.wait_calls(3)
        assert bridge.stop(limit=1.0) == 0, "busy Hermes"
        scene.hermes.draining = False
        scene.hub.send_busy(30, times=None, chat=2)
        bridge.start()
        scene.wait_answered([scene.say(1)])
        scene.say(2)
        wait(lambda: [n for n in scene.notes("hub", "send") if n["status"] == 429], what="429")
        assert bridge.stop(limit=1.0) == 0, "a hub that is busy"
        scene.hub.heal()
        scene.hermes.refuse()
        bridge.start()
        message = scene.say(1)
        stays(lambda: bridge.running, 0.4)
        assert bridge.stop(limit=1.0) == 0, "Hermes is away"
        scene.hermes.accept()
        scene.hub.stop_listening()
        bridge.start(ready=False)
        wait(lambda: bridge.lines("next try"), what="it waits for its next dial")
        assert bridge.stop(limit=1.0) == 0, "the hub is away"
        scene.hub.start_listening()
        bridge.start()
        scene.wait_answered([message])
        wait(lambda: scene.hub.posted(2), what="what was left in the outbox")
        assert bridge.stop() == 0
        scene.assert_good()


def test_paused_it_goes_on_where_it_was(short_tmp: Path, counts: Callable[[int, int], int]) -> None:
    """SIGSTOP and SIGCONT, as for a suspended machine."""
    dice = random.Random(SEED)
    with DonutScene(str(short_tmp), think=Echo((0.0, 0.1), long=0.2)) as scene:
        bridge = scene.start()
        with Traffic(scene, SEED, rate=15) as traffic:
            for _ in range(counts(3, 15)):
                stays(lambda: True, dice.uniform(0.0, 0.5))
                bridge.pause()
                stays(lambda: True, dice.uniform(0.3, 1.5))
                bridge.resume()
        scene.wait_answered(traffic.said, 30)
        assert bridge.stop() == 0
        scene.assert_good()


def test_two_bridges_on_one_state(short_tmp: Path) -> None:
    """The second one says so and ends with 1; the first one is not disturbed."""
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        second = scene.another()
        second.start(ready=False)
        assert second.wait_exit(5.0) == 1
        assert "in use by another bridge" in second.stderr()
        assert scene.state in second.stderr()
        assert len(second.stderr().strip().splitlines()) == 1
        assert scene.dialled() == 1, "it did not dial"
        scene.wait_answered([scene.say(1)])
        reset = scene.another("--reset-state")
        reset.start(ready=False)
        assert reset.wait_exit(5.0) == 1
        assert bridge.stop() == 0
        second.start()
        scene.wait_answered([scene.say(1)])
        assert second.stop() == 0
