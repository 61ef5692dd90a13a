"""What many tests of the coms daemon look for, waited for with a deadline."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from typing import Any

from hermes_bridges.coms.settings import Settings, parse
from tests.harness.answers import document
from tests.harness.daemon import Daemon, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

Fields = dict[str, Any]


def said(text: str) -> Fields:
    """The value of a response to a free answer."""
    return {"kind": "freeform", "text": text}


def event(scene: Scene, name: str, qid: str | None = None) -> Fields:
    """The first such event of the log, once it is there."""
    return wait(lambda: scene.home.events(qid, name), 10, f"event {name} of {qid}")[0]


def names(scene: Scene, qid: str) -> list[str]:
    """The names of a question's events so far."""
    return [str(e["event"]) for e in scene.home.events(qid)]


def reasons(scene: Scene) -> list[str]:
    """Why answer files were rejected so far."""
    return [e["detail"]["reason"] for e in scene.home.events(event="answer_rejected")]


def state(scene: Scene, qid: str) -> str | None:
    """The state in a question's record."""
    found = scene.home.records().get(qid, {}).get("state")
    return None if found is None else str(found)


def wait_state(scene: Scene, qid: str, wanted: str) -> Fields:
    """The record of a question, once it is in that state."""
    wait(lambda: state(scene, qid) == wanted, 10, f"record of {qid}: {wanted}")
    record: Fields = scene.home.records()[qid]
    return record


def delivered(scene: Scene, question: Question) -> None:
    """Wait until `hermes` has sent a question and the daemon knows it."""
    scene.hermes.wait_sent(question.qid)
    wait_state(scene, question.qid, "delivered")


def elsewhere(scene: Scene, qid: str) -> str:
    """The path of a good answer to a question, outside the questions directory."""
    path = os.path.join(scene.home.root, f"{qid}.json")
    with open(path, "w") as file:
        json.dump(document(qid, "from elsewhere"), file)
    return path


def gone(scene: Scene, qid: str) -> None:
    """Wait until a question's answer file was taken away."""
    wait(lambda: not scene.answers.waiting(qid), 10, f"answer file of {qid} is taken")


def serves(scene: Scene, daemon: Daemon) -> None:
    """It pongs, and a question of a new peer comes all the way round."""
    daemon.ping()
    question = scene.peers.pi().ask("Still there?")
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")


def settings(root: str, *argv: str, **environ: str) -> Settings:
    """The settings of a daemon below a HOME of its own."""
    return parse(argv, {"HOME": root, **environ})


def turn(stage: Any, now: float) -> float | None:
    """One turn of a stage by hand: what is ready now is served, at that time."""
    stage.wait(0)
    due: float | None = stage.step(now)
    return due


def until(stage: Any, now: float, predicate: Callable[[], object], turns: int = 200) -> None:
    """Turns a stage, at that time, until the predicate is true; real sockets need moments."""
    for _ in range(turns):
        stage.wait(0.01)
        stage.step(now)
        if predicate():
            return
    raise AssertionError(f"not within {turns} turns: {predicate!r}")


def readable(fd: int, seconds: float = 0.0) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def own_mtime(path: str, age: float) -> None:
    """Makes a file look as if it was written `age` seconds ago."""
    found = os.stat(path)
    os.utime(path, (found.st_atime, found.st_mtime - age))


def rewrite(scene: Scene, qid: str, **changes: object) -> Fields:
    """Changes fields of a record while its daemon is down; a value of None takes one out."""
    record = {**scene.home.records()[qid], **changes}
    record = {name: value for name, value in record.items() if value is not None}
    with open(record_path(scene, qid), "w", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def record_path(scene: Scene, qid: str) -> str:
    return os.path.join(scene.home.pending, qid + ".json")
