"""Several daemons under one HOME share the questions directory and lose nothing."""

import time
from collections.abc import Callable

from tests.harness import judge
from tests.harness.daemon import stays, wait
from tests.harness.scene import Scene
from tests.process.traffic import assert_good

POLL = ("--poll-ms", "25")


def test_L2_daemons_under_one_home_lose_no_answer(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    """Two pools, and `user-remote` beside `user-remote2`."""
    daemons = [scene.daemon(*POLL, project="red"), scene.daemon(*POLL, project="blue")]
    daemons.append(scene.daemon(*POLL, project="blue"))
    assert set(scene.home.entries("blue")) == {"user-remote", "user-remote2"}
    pis = [
        scene.peers.pi(project="red"),
        scene.peers.pi(project="blue"),
        scene.peers.pi(project="blue", to="user-remote2"),
    ]
    scene.phone(lambda call: f"yes {call.qid}", delay=(0.0, 0.2), seed=2)
    questions = []
    for number in range(counts(16, 200)):
        questions += [pi.ask(f"Question {number}?") for pi in pis]
    wait(lambda: all(question.responses for question in questions), 120, "all are answered")
    for question in questions:
        assert question.responses[0]["response"]["text"] == f"yes {question.qid}"
    assert not [e for e in scene.home.events() if e["event"] == "answer_rejected"]
    for daemon in daemons:
        assert daemon.stop() == 0
    scene.peers.close()
    assert_good(dict(scene.verdict(final=True)))
    assert judge.leftovers(scene.home.path) == []


def test_L2_the_answer_to_a_stopped_daemon_is_left_alone(scene: Scene) -> None:
    others = [scene.daemon(*POLL), scene.daemon(*POLL, project="blue")]
    stopped, killed = scene.daemon(*POLL, project="red"), scene.daemon(*POLL, project="green")
    questions = [scene.peers.pi(project=p).ask("Still there?") for p in ("red", "green")]
    for question in questions:
        scene.hermes.wait_sent(question.qid)
    assert stopped.stop() == 0
    killed.kill()
    for question in questions:
        scene.answers.write(question.qid, "yes")
    stays(lambda: all(scene.answers.waiting(q.qid) for q in questions), 1.0, "nobody takes it")
    stopped.start()
    killed.start()
    for question in questions:
        assert question.wait()["response"] == {"kind": "freeform", "text": "yes"}
    time.sleep(0.1)
    assert [len(question.responses) for question in questions] == [1, 1]
    assert not [e for e in scene.home.events() if e["event"] == "answer_rejected"]
    for daemon in [*others, stopped, killed]:
        assert daemon.stop() == 0
