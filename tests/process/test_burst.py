"""Many prompts at one moment."""

import time

import pytest

from tests.harness import judge
from tests.harness.daemon import wait
from tests.harness.lag import Lag
from tests.harness.scene import Scene
from tests.process.traffic import assert_good, settle

PROMPTS = 500


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_500_prompts_at_once_are_all_answered_once(scene: Scene) -> None:
    scene.hermes.rule(calls=range(12), delay=0.2)  # long enough to be seen side by side
    daemon = scene.daemon()
    peers = scene.peers
    pis = [peers.pi() for _ in range(10)]
    askers = [pis[i // 2 % 10] if i % 2 else peers.one_shot() for i in range(PROMPTS)]
    questions = [peer.prepare(f"Question {i}?") for i, peer in enumerate(askers)]
    phone = scene.phone(lambda call: "yes to " + call.text.split("?")[0][-3:])

    peers.burst(questions, daemon)
    refused = [question for question in questions if not question.acked]
    assert not refused, f"{len(refused)} were not acked, such as {refused[0].reply}"
    assert daemon.ping() < 1.0, "others are served meanwhile"
    wait(lambda: all(question.responses for question in questions), 200, "all are answered")

    assert phone.idle
    assert len(scene.hermes.calls(kind="question")) == PROMPTS
    assert scene.hermes.most_at_once() <= 2, "never more children than --max-sends"
    assert daemon.stop() == 0
    peers.close()
    report = dict(scene.verdict(final=True))
    assert_good(report)
    assert report["counts"]["responses"] == PROMPTS
    assert judge.leftovers(scene.home.path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kill_just_after_a_burst_loses_no_question(scene: Scene) -> None:
    """What was acked is on record within the accepted window, however many came at once."""
    scene.hermes.rule(delay=0.5, times=2)
    daemon = scene.daemon()
    pis = [scene.peers.pi() for _ in range(10)]
    questions = [pis[i % 10].prepare(f"Question {i}?") for i in range(PROMPTS)]
    with Lag() as lag:
        scene.peers.burst(questions, daemon)
        assert all(question.acked for question in questions)
        time.sleep(judge.WINDOW + lag.worst)
        daemon.kill()
    daemon.start()
    recorded = len(scene.home.records())
    assert recorded == PROMPTS, f"{recorded} of {PROMPTS} questions are on record"
    report = settle(scene, daemon, limit=100, window=0.0)
    assert_good(report)
    assert report["counts"]["responses"] == PROMPTS
