"""The event log is rotated by others while events flow."""

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.daemon import Daemon, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

EACH = {"question_received", "delivered", "answered"}


class Rotation:
    """Rotates the log again and again until the test has what it needs."""

    def __init__(self, scene: Scene, turn: Callable[[str, str], None]) -> None:
        self.log, self.turn = scene.home.log, turn
        self.parts: list[str] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rotation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.07):
                if os.path.exists(self.log) and os.path.getsize(self.log):
                    part = f"{self.log}.part-{len(self.parts)}"
                    self.turn(self.log, part)
                    self.parts.append(part)
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        if self.error is not None:
            raise self.error

    def lines(self) -> list[dict[str, Any]]:
        """Every line of every part; each must be a whole record."""
        records = []
        # The last rotation may have taken the log, and nothing was written since.
        for path in [*self.parts, *filter(os.path.exists, [self.log])]:
            with open(path, "rb") as file:
                data = file.read()
            assert b"\0" not in data, f"NUL in {os.path.basename(path)}"
            assert data.endswith(b"\n") or not data, data[-200:]
            for line in data.split(b"\n")[:-1]:
                record = json.loads(line)
                assert {"at", "qid", "event"} <= set(record), record
                records.append(record)
        return records


def flow(scene: Scene, number: int) -> list[Question]:
    """That many questions, all asked and answered."""
    pis = [scene.peers.pi() for _ in range(4)]
    phone = scene.phone(lambda call: "yes")
    questions = []
    for i in range(number):
        questions.append(pis[i % 4].ask(f"Question {i}?"))
        time.sleep(0.02)  # a steady stream, not a burst
    wait(lambda: all(question.responses for question in questions), 60, "all are answered")
    assert phone.idle
    for question in questions:
        assert len(question.responses) == 1
    return questions


def missing(scene: Scene, rotation: Rotation, questions: list[Question]) -> list[str]:
    """Events that no part holds; none may stand there twice."""

    def count() -> Counter[str]:
        return Counter(f"{r['qid']} {r['event']}" for r in rotation.lines())

    wanted = {f"{question.qid} {event}" for question in questions for event in EACH}
    try:
        wait(lambda: wanted <= set(count()), 2.0)
    except AssertionError:
        pass  # told below
    seen = count()
    twice = [event for event, times in seen.items() if times > 1]
    assert not twice, twice
    return sorted(wanted - set(seen))


@pytest.mark.parametrize("recreate", [False, True])
def test_KH38_rotation_by_rename_loses_no_line(
    scene: Scene, recreate: bool, counts: Callable[[int, int], int]
) -> None:
    daemon = scene.daemon()

    def turn(log: str, part: str) -> None:
        os.rename(log, part)
        if recreate:
            os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o600))

    rotation = Rotation(scene, turn)
    try:
        questions = flow(scene, counts(60, 1000))
    finally:
        rotation.close()
    assert len(rotation.parts) >= 5
    assert missing(scene, rotation, questions) == []
    assert daemon.stop() == 0


def test_KH38_copytruncate_of_a_paused_daemon_loses_no_line(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    """Between copy and truncate no line can be written here, so none may be missing."""
    daemon = scene.daemon()

    def turn(log: str, part: str) -> None:
        daemon.pause()
        try:
            copytruncate(log, part)
        finally:
            daemon.resume()

    rotation = Rotation(scene, turn)
    try:
        questions = flow(scene, counts(60, 1000))
    finally:
        rotation.close()
    assert len(rotation.parts) >= 5
    assert missing(scene, rotation, questions) == []
    assert daemon.stop() == 0


def test_KH38_copytruncate_loses_only_what_falls_between(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    """The accepted window: what is written between the end of the copy and the truncation."""
    daemon: Daemon = scene.daemon()
    lost = 0

    def turn(log: str, part: str) -> None:
        nonlocal lost
        lost += copytruncate(log, part)

    rotation = Rotation(scene, turn)
    try:
        questions = flow(scene, counts(60, 1000))
    finally:
        rotation.close()
    assert len(rotation.parts) >= 5
    gone = missing(scene, rotation, questions)
    # A line may also come between the look at the size and the truncation.
    assert len(gone) <= lost + len(rotation.parts) // 10, f"{len(gone)} lines gone, {lost} seen"
    assert daemon.stop() == 0


def copytruncate(log: str, part: str) -> int:
    """As logrotate does; the number of lines that were seen to fall between."""
    with open(log, "r+b") as file, open(part, "xb") as copy:
        shutil.copyfileobj(file, copy)
        rest = file.read()
        file.truncate(0)
    return rest.count(b"\n")
