"""kill -9 at random moments while questions, answers and cancels flow."""

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.harness import judge
from tests.harness.lag import Lag
from tests.harness.scene import Scene
from tests.process.traffic import Replies, Traffic, assert_good, mixed_writer, settle

SEED = 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_at_random_moments_lose_nothing(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    """Judged by the journals of the peers, the answer writer and the fake `hermes` alone."""
    chance = random.Random(SEED)
    scene.hermes.rule(delay=(0.0, 0.15))
    daemon = scene.daemon("--poll-ms", "200")
    traffic = Traffic(scene, SEED)
    phone = scene.phone(Replies(SEED), delay=(0.0, 0.5), seed=SEED, write=mixed_writer(scene, SEED))
    traffic.start()
    with Lag() as lag:
        for number in range(counts(30, 200)):
            traffic.rate = 30 if number % 2 else 6
            if chance.random() < 0.8:
                daemon.wait_ready()  # else it may be killed in the middle of its start
            time.sleep(chance.uniform(0.0, 1.0))
            if number % 6 == 5:
                # A clean stop among the kills; before the handlers stand it is no clean one.
                codes = (0,) if daemon.ready_line() else (0, -signal.SIGTERM)
                assert daemon.stop() in codes
                daemon.start()
                time.sleep(chance.uniform(0.0, 1.0))
            daemon.kill()
            daemon.start(ready=False)
    daemon.wait_ready()
    assert set(scene.home.entries()) >= {"user-remote"}, "the next start has the same name"
    traffic.close()
    phone.close()
    report = settle(scene, daemon, window=judge.WINDOW + lag.worst)
    assert_good(report)
    assert report["counts"]["responses"] > counts(30, 200), "the loop has tried something"
    assert report["counts"]["cancelled"] > 0
