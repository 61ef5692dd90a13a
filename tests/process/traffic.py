"""Questions, answers and cancels in a steady stream, and the phase that settles them all."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from typing import Any

from tests.harness import judge, wire
from tests.harness.daemon import Call, Daemon, wait
from tests.harness.peers import Peer, Question
from tests.harness.scene import Scene

OPTIONS = ["Ship it", "Wait", {"title": "Ask Ann", "description": "she knows"}]
SAID = ["yes", "2", "ship it", "no — später", "Ask Ann", "99", "grüße 🙂", "line one\nline two"]


class Traffic(threading.Thread):
    """Asks from all kinds of peers, about `rate` times a second, and cancels some.

    A peer whose daemon is down does as its kind does: the question is not asked. Whatever is
    random is drawn from `seed`.
    """

    def __init__(self, scene: Scene, seed: int, rate: float = 10.0, cancels: float = 0.2) -> None:
        super().__init__(name="traffic", daemon=True)
        self.scene, self.rate, self.cancels = scene, rate, cancels
        self.random = random.Random(seed)
        self.pis: list[Peer] = [scene.peers.pi() for _ in range(3)]
        self.due: list[tuple[float, Question]] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._count = 0
        scene.threads.append(self)

    def run(self) -> None:
        try:
            next_ask = time.monotonic()
            while not self._ended.wait(max(0.0, min(0.02, next_ask - time.monotonic()))):
                now = time.monotonic()
                if now >= next_ask:
                    self._ask()
                    next_ask = now + self.random.expovariate(self.rate)
                due = [item for item in self.due if item[0] <= now]
                self.due = [item for item in self.due if item[0] > now]
                for _, question in due:
                    question.cancel(2.0)
        except BaseException as error:
            self.error = error
            raise

    def _ask(self) -> None:
        self._count += 1
        kind = self.random.random()
        peers = self.scene.peers
        if kind < 0.4:
            peer: Peer = peers.one_shot()
        elif kind < 0.6:
            peer = peers.cli()
        else:
            peer = self.random.choice(self.pis)
        options = OPTIONS if self.random.random() < 0.5 else None
        context = "some context" if self.random.random() < 0.5 else None
        question = peer.try_ask(f"Question {self._count}?", options, context, limit=2.0)
        if not question.acked:
            if peer not in self.pis:
                peer.close()  # its human answers on the spot
        elif self.random.random() < self.cancels:
            self.due.append((time.monotonic() + self.random.uniform(0, 0.6), question))

    def close(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join(10)
        if self.error is not None:
            raise self.error


class Replies:
    """What the human says: something from `SAID`, and to some questions nothing."""

    def __init__(self, seed: int, silent: float = 0.15) -> None:
        self.random, self.silent = random.Random(seed), silent

    def __call__(self, call: Call) -> str | None:
        return None if self.random.random() < self.silent else self.random.choice(SAID)


def mixed_writer(scene: Scene, seed: int) -> Any:
    """Writes most answers as the skill does, some in place or with a BOM."""
    chance = random.Random(seed)

    def write(qid: str, text: str) -> None:
        kind = chance.random()
        if kind < 0.7:
            scene.answers.write(qid, text)
        elif kind < 0.9:
            scene.answers.in_place(qid, text)
        else:
            scene.answers.with_bom(qid, text)

    return write


def settle(
    scene: Scene, daemon: Daemon, limit: float = 30.0, window: float = judge.WINDOW
) -> dict[str, Any]:
    """Answers what is open, stops, starts and stops once more; returns the judge's report.

    Afterwards no question is open, and no file is left over. `window` as for the judge.
    """
    home, answers = scene.home, scene.answers
    given = {n["qid"] for n in _notes(scene) if n["what"] == "answer" and n["valid"]}
    known = set(home.open_records())
    for question in scene.peers.questions():
        wanted = question.acked or question.qid in known
        if wanted and not question.responses and question.qid not in given:
            answers.write(question.qid, "settled")
    wait(
        lambda: not [n for n in home.answer_files() if n.endswith(".answer.json")],
        limit,
        "every answer file is taken",
    )
    try:
        wait(lambda: not home.open_records(), 5, "no open record")
    except AssertionError:
        # What is still open was asked by peers that are gone: they cancelled or were answered in
        # the moment of a kill. Waiting for their minute to pass is another test's business.
        finished = {q.qid for q in scene.peers.questions() if q.responses or q.cancelled}
        gone = {q.qid for q in scene.peers.questions() if q.peer.socket is None}
        for qid in home.open_records():
            if qid in finished | gone:
                wire.exchange(daemon.endpoint, wire.cancel(qid))
        wait(lambda: not home.open_records(), limit, "no open record")
    assert daemon.stop() == 0
    scene.peers.close()
    daemon.start()
    assert daemon.stop() == 0
    report = dict(scene.verdict(final=True, window=window))
    report["leftovers"] = judge.leftovers(home.path, home.given_coms_dir)
    return report


def _notes(scene: Scene) -> list[dict[str, Any]]:
    with open(scene.answers.journal.path, "rb") as file:
        return [json.loads(line) for line in file]


def assert_good(report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=1, ensure_ascii=False)
    print(text)
    assert not report["failures"], text
    assert not report.get("leftovers"), text


STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
