"""Nothing that comes in ends the daemon or holds it up (contract section 7.2)."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.peer import Asked, Cancelled, Listener
from tests.coms.looks import delivered, event, gone, reasons, said, serves, turn, wait_state
from tests.harness import wire
from tests.harness.daemon import alive, stays, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
SOON = 1.0  # s: what must not wait for anything, on a busy machine

# H1

DEEP = 30_000
REFUSAL = "bridge accepts prompts, cancels, and pings"
HOSTILE = {
    b"null": REFUSAL,
    b"true": REFUSAL,
    b"0": REFUSAL,
    b'"text"': REFUSAL,
    b"[]": REFUSAL,
    b"[null]": REFUSAL,
    b"{}": REFUSAL,
    b'{"type":null}': REFUSAL,
    b'{"type":"prompt"}': REFUSAL,
    b'{"type":{"type":"ping"}}': REFUSAL,
    b"1" * 20_000: REFUSAL,
    b"1e999": REFUSAL,
    b"[" * DEEP: "invalid json",
    b"[" * DEEP + b"]" * DEEP: "invalid json",
    b'{"a":' * 9_000 + b"1" + b"}" * 9_000: "invalid json",
    b"NaN": "invalid json",
    b'{"type":"ping","msg_id":NaN}': "invalid json",
    b"{} {}": "invalid json",
    b"\xff\xfe\x00": "invalid json",
    b"{'type': 'ping'}": "invalid json",
}


def test_H1_lines_that_are_no_envelope_are_refused_and_nothing_else(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    entry = daemon.entry()
    for line, error in HOSTILE.items():
        reply = daemon.ask(line + b"\n")
        assert reply == {"type": "nack", "msg_id": "", "error": error}, line[:40]
    assert daemon.entry() == entry
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes"), "the open question is still there"
    serves(scene, daemon)


@pytest.mark.parametrize("msg_id", [None, True, 1, 1.5, [], ["a"], {"a": None}, "", "\ud83d", "x"])
def test_H1_any_msg_id_is_echoed_or_left_out(scene: Scene, msg_id: object) -> None:
    daemon = scene.daemon()
    line = json.dumps({"type": "nonsense", "msg_id": msg_id}).encode() + b"\n"
    echoed = "" if msg_id is None else msg_id
    assert daemon.ask(line) == {"type": "nack", "msg_id": echoed, "error": REFUSAL}
    pong = daemon.ask(line.replace(b"nonsense", b"ping"))
    assert (pong["type"], pong["msg_id"]) == ("pong", echoed)


# H2


def test_H2_a_fifo_in_place_of_an_answer_blocks_nobody(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = [asker.ask(f"Question {number}?") for number in range(2)]
    scene.answers.fifo(questions[0].qid)
    scene.answers.fifo(wire.ulid())
    assert daemon.ping() < SOON
    scene.answers.write(questions[1].qid, "yes")
    assert questions[1].wait()["response"] == said("yes")
    gone(scene, questions[0].qid)
    wait(lambda: len(reasons(scene)) == 2, what="both are logged")
    assert sorted(reasons(scene)) == ["foreign_qid", "invalid_path"]
    scene.answers.write(questions[0].qid, "this time as a file")
    assert questions[0].wait()["response"] == said("this time as a file")
    assert daemon.stop() == 0


def test_H2_a_fifo_is_not_opened_at_all(scene: Scene) -> None:
    """A writer that waits for a reader goes on waiting."""
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    path = scene.answers.path(question.qid)
    kept = os.path.join(scene.home.root, "fifo")
    os.mkfifo(kept)
    scene.answers.note(question.qid, None, "fifo", valid=False)
    os.link(kept, path)
    stays(lambda: not _has_reader(kept), 0.2, "nobody opens it")
    gone(scene, question.qid)
    assert not _has_reader(kept)


def _has_reader(fifo: str) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


# H3


def test_H3_a_hung_hermes_does_not_keep_the_timeout_from_the_asker(scene: Scene) -> None:
    """The question itself hangs in `hermes`, so no note follows."""
    scene.hermes.rule(hang=True)
    scene.daemon(*QUICK, "--timeout", "400")
    question = scene.peers.one_shot().ask("Ship?")
    begin = time.monotonic()
    got = question.wait()
    assert 0.3 < time.monotonic() - begin < 0.4 + SOON
    assert (got["response"], got["error"]) == (None, "no remote answer within 400ms")
    assert event(scene, "timeout", question.qid)["detail"] == {"timeout_ms": 400}


def test_H3_a_hung_note_does_not_delay_the_response(scene: Scene) -> None:
    scene.hermes.rule(match="⌛", hang=True)
    scene.daemon(*QUICK, "--timeout", "500")
    begin = time.monotonic()
    questions = [scene.peers.pi().ask(f"Question {number}?") for number in range(4)]
    for question in questions:
        assert question.wait()["error"] == "no remote answer within 500ms"
    assert time.monotonic() - begin < 0.5 + SOON
    note = scene.hermes.wait_call(questions[0].qid, "timeout_note")
    assert note.begin["t"] > begin + 0.4


def test_H3_a_send_has_a_time_limit_of_its_own(scene: Scene) -> None:
    scene.hermes.rule(hang=True, ignore_term=True, err="")
    scene.daemon(*QUICK, "--send-timeout", "300")
    question = scene.peers.pi().ask("Ship?")
    error = question.wait()["error"]
    assert error.startswith("hermes send failed: ") and "unknown" in error and "300ms" in error
    (call,) = scene.hermes.calls(question.qid)
    assert not alive(call.pid)
    assert event(scene, "delivery_error", question.qid)["detail"] == {"error": error}
    wait_state(scene, question.qid, "closed")
    assert len(scene.hermes.calls(question.qid)) == 1, "never repeated"


# H4


@pytest.mark.parametrize("stream", ["err", "out"])
def test_H4_a_long_failure_text_reaches_the_asker_bounded(scene: Scene, stream: str) -> None:
    """The receiver refuses a line over the cap, and would hear nothing."""
    text = "".join(f"line {number} of the failure\n" for number in range(8_000))
    scene.hermes.rule(exit=3, err=text if stream == "err" else "", out=text)
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    error = question.wait()["error"]
    assert error.startswith("hermes send failed (3): ")
    assert error.endswith("line 7999 of the failure"), "the end of it tells most"
    assert 1_000 < len(error) <= 4_200
    wait_state(scene, question.qid, "closed")


# H5


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Holds a lock file of the daemon's."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_H5_acks_wait_neither_for_hermes_nor_for_locks_nor_for_the_poll(scene: Scene) -> None:
    scene.hermes.rule(hang=True)
    daemon = scene.daemon("--poll-ms", "60000", "--max-sends", "1")
    asker = scene.peers.pi()
    locks = (
        os.path.join(os.path.dirname(scene.home.agents()), "registry.lock"),
        os.path.join(scene.home.pending, ".adopt.lock"),
    )
    assert all(map(os.path.exists, locks))
    with held(locks[0]), held(locks[1]):
        times = []
        for number in range(20):
            question = asker.prepare(f"Question {number}?", endpoint=daemon.endpoint)
            begin = time.monotonic()
            assert question.send()
            if number % 2:
                assert question.cancel()
            times.append(time.monotonic() - begin)
        assert sorted(times)[10] < 0.1 and max(times) < SOON, times
        assert daemon.ping() < SOON


class StillDesk:
    """A desk that never gets its turn; it notes what the peer has when something is put."""

    def __init__(self) -> None:
        self.items: list[Asked | Cancelled] = []
        self.heard: list[bytes] = []
        self.peer: socket.socket | None = None

    def full(self) -> bool:
        return False

    def put(self, item: Asked | Cancelled) -> None:
        self.items.append(item)
        assert self.peer is not None
        try:
            self.heard.append(self.peer.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            self.heard.append(b"")


def test_H5_the_ack_is_on_the_wire_before_anything_else_is_done(short_tmp: Path) -> None:
    path = str(short_tmp / "daemon.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listening.bind(path)
    listening.listen(8)
    desk = StillDesk()
    stage = Listener(listening, path, Admission(), {"name": "x"}, desk, lambda: None)
    qid = wire.ulid()
    try:
        for envelope in (wire.prompt(qid, "Ship?", "/nowhere.sock"), wire.cancel(qid)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(path)
                peer.sendall(wire.encode(envelope))
                desk.peer = peer
                turn(stage, 0.0)
                turn(stage, 0.0)
            assert json.loads(desk.heard[-1]) == {"type": "ack", "msg_id": envelope["msg_id"]}
        assert [type(item) for item in desk.items] == [Asked, Cancelled]
    finally:
        stage.close()
