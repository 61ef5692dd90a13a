"""Signals: a clean stop within two seconds at any moment, and nothing left running."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import journal
from tests.harness.daemon import Daemon, alive, wait
from tests.harness.scene import Scene
from tests.process.traffic import STOPS

SEED = 11


def assert_gone(scene: Scene, daemon: Daemon) -> None:
    """Entry and socket are removed, no child lives on, and every record can be read."""
    home = scene.home
    entries = [e for e in home.entries(daemon.project).values() if e.get("pid") == daemon.pid]
    assert not entries, entries
    own = {peer.path for peer in scene.peers.all}
    sockets = [s for s in os.listdir(home.sockets) if os.path.join(home.sockets, s) not in own]
    assert not sockets, sockets
    notes = journal.read(scene.hermes.journal)
    pids = {n["pid"] for n in notes} | {n["child"] for n in notes if n["what"] == "grandchild"}
    wait(lambda: not any(map(alive, pids)), 0.5, "no child of the daemon lives on")
    assert len(home.records()) == len(home.record_names()), "every record can be read"


def state_of(scene: Scene, qid: str) -> object:
    return scene.home.records().get(qid, {}).get("state")


@pytest.mark.parametrize("number", STOPS)
def test_each_signal_ends_it_and_the_next_start_goes_on(scene: Scene, number: int) -> None:
    daemon = scene.daemon()
    question = scene.peers.pi().ask("Still there?")
    scene.hermes.wait_sent(question.qid)
    wait(lambda: state_of(scene, question.qid) == "delivered", what="delivered is known")
    assert daemon.stop(number) == 0
    assert_gone(scene, daemon)
    assert list(scene.home.open_records()) == [question.qid]
    scene.answers.write(question.qid, "yes")
    daemon.start()
    assert question.wait()["response"] == {"kind": "freeform", "text": "yes"}
    assert len(scene.hermes.calls(question.qid)) == 1, "it was delivered, and is not sent again"
    assert daemon.stop() == 0


def test_after_a_kill_the_next_start_takes_over(scene: Scene) -> None:
    """The same name, all open questions, and not a word of another daemon."""
    daemon = scene.daemon()
    first = daemon.entry()
    question = scene.peers.pi().ask("Still there?")
    wait(lambda: state_of(scene, question.qid) == "delivered", what="delivered is known")
    daemon.kill()
    daemon.start()
    assert set(scene.home.entries()) == {"user-remote"}
    second = daemon.entry()
    assert first and second and first["session_id"] != second["session_id"]
    own = os.path.basename(second["endpoint"])
    peer = os.path.basename(scene.peers.all[0].path)
    assert set(os.listdir(scene.home.sockets)) == {own, peer}, "its stale socket is removed"
    assert "another" not in daemon.all_stderr()
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == {"kind": "freeform", "text": "yes"}
    assert len(scene.hermes.calls(question.qid)) == 1, "it was delivered, and is not sent again"
    assert daemon.stop() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_KH32_further_signals_during_the_stop(scene: Scene, second: int) -> None:
    scene.hermes.rule(match="HUB-Q", hang=True, ignore_term=True)
    daemon = scene.daemon()
    pi = scene.peers.pi()
    questions = [pi.ask(f"Question {i}?") for i in range(10)]
    wait(lambda: len(scene.hermes.running()) == 2, what="two children")
    begin = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    daemon.send_signal(second)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait_exit(2.0 - (time.monotonic() - begin)) == 0
    assert_gone(scene, daemon)
    assert set(scene.home.open_records()) == {question.qid for question in questions}


def idle(scene: Scene, daemon: Daemon) -> None:
    pass


def sending(scene: Scene, daemon: Daemon) -> None:
    scene.hermes.rule(match="HUB-Q", hang=True)
    scene.peers.pi().ask("Slow?")


def deaf_child(scene: Scene, daemon: Daemon) -> None:
    scene.hermes.rule(match="HUB-Q", hang=True, ignore_term=True)
    pi = scene.peers.pi()
    for i in range(4):
        pi.ask(f"Deaf {i}?")


def helpers(scene: Scene, daemon: Daemon) -> None:
    scene.hermes.rule(match="HUB-Q", grandchild=60, delay=0.05)
    pi = scene.peers.pi()
    for i in range(4):
        pi.ask(f"Helper {i}?")


def burst(scene: Scene, daemon: Daemon) -> None:
    pi = scene.peers.pi()
    questions = [pi.prepare(f"Many {i}?") for i in range(40)]
    scene.peers.burst(questions, daemon)
    assert all(question.acked for question in questions)


def mute_receiver(scene: Scene, daemon: Daemon) -> None:
    peers = [scene.peers.pi(mood=mood) for mood in ("mute", "unread", "deaf")]
    for question in [peer.ask("Mute?") for peer in peers]:
        scene.answers.write(question.qid, "said")


def open_connections(scene: Scene, daemon: Daemon) -> None:
    peer = scene.peers.pi()
    for data in (b"", b'{"type":', b'{"type":"ping"}\n'):
        line = peer.open_line(daemon.endpoint)
        line.send(data)


SITUATIONS = [idle, sending, deaf_child, helpers, burst, mute_receiver, open_connections]


def stop_in_every_situation(root: Path, seed: int, times: int) -> list[float]:
    """Starts and stops one daemon that often, in a new home; how long each stop took."""
    chance = random.Random(seed)
    took = []
    situations = itertools.cycle(SITUATIONS)
    with Scene(str(root)) as scene:
        daemon = scene.daemon(start=False)
        for _ in range(times):
            daemon.start(ready=False)
            wait(daemon.ready_line, 20, "the ready line")
            scene.hermes.forget_rules()
            situation = next(situations)
            situation(scene, daemon)
            time.sleep(chance.uniform(0, 0.15))
            begin = time.monotonic()
            code = daemon.stop(chance.choice(STOPS))
            took.append(time.monotonic() - begin)
            assert code == 0, f"{situation.__name__}: {daemon.stderr()[-3000:]}"
            assert_gone(scene, daemon)
    return took


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stop_takes_less_than_two_seconds_at_any_moment(
    short_tmp: Path, counts: Callable[[int, int], int]
) -> None:
    """Idle, with `hermes` running, in a burst, with receivers that do not answer."""
    each = counts(12, 20)
    homes = counts(60, 500) // each
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(stop_in_every_situation, short_tmp / str(i), SEED + i, each)
            for i in range(homes)
        ]
        took = sorted(second for run in runs for second in run.result())
    print(f"{len(took)} stops: median {took[len(took) // 2]:.3f} s, slowest {took[-1]:.3f} s")
    assert len(took) == each * homes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_KH02_a_signal_at_any_moment_of_the_start(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    """Before its handlers stand, a signal ends it as the system does; afterwards cleanly."""
    chance = random.Random(SEED)
    daemon = scene.daemon()
    usual = daemon.started - daemon.begun
    assert daemon.stop() == 0
    codes: dict[int, int] = {}
    for number in range(counts(30, 300)):
        daemon.start(ready=False)
        if number % 2:
            time.sleep(chance.uniform(0, usual * 1.2))
        else:
            wait(daemon.ready_line, 20, "the ready line")
            time.sleep(chance.uniform(0, 0.02))
        was_ready = daemon.ready_line() is not None
        code = daemon.stop(signal.SIGTERM, limit=3.0)
        codes[code] = codes.get(code, 0) + 1
        assert code == 0 or (code == -signal.SIGTERM and not was_ready), daemon.stderr()
        assert scene.home.entries() == {}, f"an entry is left over, exit code {code}"
        daemon.assert_no_traceback()
    print(f"exit codes: {codes}")
    assert codes[0] >= counts(30, 300) // 2
    daemon.start()
    assert daemon.stop() == 0
    assert os.listdir(scene.home.sockets) == [], "a clean start removes stale sockets"
