"""Nonsense on the socket and in the questions directory: no crash, no hang, no traceback."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, wait
from tests.harness.scene import Scene
from tests.harness.wire import Line
from tests.process.fuzz import Case, Files, Lines

SEED = 5
SLOW = 3.0  # s; no single case may take so long


def still_well(scene: Scene, daemon: Daemon) -> None:
    """It answers pings, and a real question makes its way."""
    assert daemon.running, daemon.stderr()[-3000:]
    assert daemon.ping() < 1.0
    question = scene.peers.one_shot().ask("Are you well?")
    scene.hermes.wait_sent(question.qid, deadline=60)
    scene.answers.write(question.qid, "I am")
    assert question.wait(20)["response"] == {"kind": "freeform", "text": "I am"}
    daemon.assert_no_traceback()


def play(endpoint: str, case: Case) -> list[dict[str, Any]]:
    """Sends a case and ends our side; every reply until the daemon ends its own."""
    with Line(endpoint, SLOW) as line:
        size = -(-len(case.data) // case.pieces) or 1
        # The daemon may end it early, as with a line that is too large.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(0, len(case.data), size):
                line.send(case.data[at : at + size])
            line.half_close()
        return line.read_all(SLOW)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fuzzed_lines(scene: Scene, counts: Callable[[int, int], int]) -> None:
    daemon = scene.daemon()
    endpoint = daemon.endpoint
    lines = Lines(SEED, [scene.peers.pi().path, endpoint])
    for number in range(counts(4000, 40000)):
        case = lines.case()
        context = f"case {number} of seed {SEED}: {case.data[:300]!r}"
        begin = time.monotonic()
        try:
            replies = play(endpoint, case)
        except (OSError, ValueError) as error:
            raise AssertionError(f"{context}: {error!r}; {daemon.stderr()[-3000:]}") from error
        assert time.monotonic() - begin < SLOW, context
        for reply in replies:
            assert reply.get("type") in ("ack", "nack", "pong"), f"{context}: {reply}"
        if case.whole:
            assert len(replies) == 1, f"{context}: {replies}"
    assert daemon.open_files() < 150, "connections are closed"
    still_well(scene, daemon)
    assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fuzzed_answer_files(scene: Scene, counts: Callable[[int, int], int]) -> None:
    daemon = scene.daemon("--poll-ms", "50")
    pi = scene.peers.pi()
    outside = Path(scene.home.root, "outside")
    outside.write_text("untouched")
    files = Files(SEED, scene.home.questions, str(outside))
    batch = 250
    for number in range(counts(1000, 10000) // batch):
        asked = [pi.ask(f"Question {number} {i}?", ["A", "B"]) for i in range(3)]
        for _ in range(batch):
            files.put([question.qid for question in asked])
        wait(lambda: not left(scene), 20, f"batch {number} of seed {SEED} is dealt with")
        clear(scene)
        assert daemon.running, daemon.stderr()[-3000:]
        assert daemon.ping() < 1.0
    assert outside.read_text() == "untouched"
    assert daemon.open_files() < 50
    still_well(scene, daemon)
    assert daemon.stop() == 0
    for event in scene.home.events():
        assert set(event) <= {"at", "qid", "event", "detail"}, event
        json.dumps(event).encode("ascii")


def left(scene: Scene) -> list[bytes]:
    """Answer files that still lie there; directories are left alone, as they should be."""
    top = os.fsencode(scene.home.questions)
    return [
        name
        for name in os.listdir(top)
        if name.endswith(b".answer.json") and not is_directory(os.path.join(top, name))
    ]


def is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def clear(scene: Scene) -> None:
    """Away with the directories and with what does not count as an answer file."""
    top = os.fsencode(scene.home.questions)
    for name in os.listdir(top):
        path = os.path.join(top, name)
        if is_directory(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
