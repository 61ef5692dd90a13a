"""Nobody else gets an answer, gives one, or uses the daemon up (contract section 7.4)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.answers import Answers
from hermes_bridges.coms.judge import Accept, Judge, Reject
from hermes_bridges.coms.peer import IDLE, Asked, Cancelled, Listener, same_user
from hermes_bridges.coms.replier import (
    OPEN_MAX,
    PATIENCE,
    TRY,
    Outcome,
    Replied,
    Replier,
    Reply,
)
from tests.coms.looks import (
    delivered,
    event,
    gone,
    readable,
    reasons,
    said,
    serves,
    turn,
    wait_state,
)
from tests.harness import journal, wire
from tests.harness.answers import document
from tests.harness.daemon import alive, mode, stays, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
MIB = 1024 * 1024
NOBODY = 65534

# S1


def test_S1_a_known_msg_id_does_not_give_the_answer_to_another_peer(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker, intruder = scene.peers.pi(), scene.peers.pi()
    question = asker.ask("Ship?", ["yes", "no"])
    for _ in range(2):
        theft = intruder.prepare("Ship?", qid=question.qid)
        assert not theft.send()
        assert theft.reply == {
            "type": "nack",
            "msg_id": question.qid,
            "error": "msg_id belongs to an open question of another peer",
        }
        delivered(scene, question)
    daemon.restart()
    assert not intruder.try_ask("Ship?", qid=question.qid).acked, "after a restart as well"
    scene.answers.write(question.qid, "2")
    assert question.wait()["response"] == {"kind": "selection", "selections": ["no"]}
    wait_state(scene, question.qid, "closed")
    assert intruder.received == []
    assert len(scene.hermes.calls(question.qid)) == 1


def test_S1_a_response_under_way_is_not_to_be_had_either(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker, intruder = scene.peers.pi(), scene.peers.pi()
    question = asker.ask("Ship?")
    asker.down()
    scene.answers.write(question.qid, "yes")
    wait_state(scene, question.qid, "replying")
    assert not intruder.try_ask("Ship?", qid=question.qid).acked
    asker.up()
    assert question.wait()["response"] == said("yes")
    assert intruder.received == []


# S2


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_S2_modes_do_not_follow_the_umask(scene: Scene, umask: int) -> None:
    home = scene.home
    scene.peers.close()
    os.rmdir(home.sockets)
    os.rmdir(home.coms)
    daemon = scene.daemon(*QUICK, umask=umask)
    asked = wire.prompt(wire.ulid(), "Ship?", "/nowhere.sock")
    daemon.ask(asked)
    wait_state(scene, asked["msg_id"], "delivered")
    wait(home.status_file, 5, "status file")
    private = (home.coms, home.sockets, home.bridge, home.questions, home.pending, home.status)
    assert {path: oct(mode(path)) for path in private} == dict.fromkeys(private, "0o700")
    files = [
        home.log,
        os.path.join(home.agents(), "user-remote.json"),
        os.path.join(home.status, "default.user-remote.json"),
        os.path.join(home.pending, asked["msg_id"] + ".json"),
        daemon.endpoint,
    ]
    assert {path: oct(mode(path)) for path in files} == dict.fromkeys(files, "0o600")
    (call,) = scene.hermes.calls()
    assert call.begin["umask"] == umask, "hermes has the user's own"


def test_S2_directories_and_a_log_that_are_open_are_closed(scene: Scene) -> None:
    home = scene.home
    loose = (home.coms, home.sockets, home.bridge, home.questions, home.pending, home.status)
    for path in loose:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    with open(home.log, "w"):
        os.chmod(home.log, 0o666)
    scene.daemon(*QUICK)
    scene.peers.pi().ask("Ship?")
    event(scene, "question_received")
    assert {oct(mode(path)) for path in loose} == {"0o700"}
    assert oct(mode(home.log)) == "0o600"


def test_S2_the_bridges_own_directory_is_private_wherever_the_pool_is(short_tmp: Path) -> None:
    with Scene(str(short_tmp), str(short_tmp / "pool")) as scene:
        scene.daemon(*QUICK, umask=0o022)
        scene.peers.pi().ask("Ship?")
        event(scene, "question_received")
        home = scene.home
        assert not home.bridge.startswith(home.coms)
        for path in (home.coms, home.bridge, home.questions, home.pending):
            assert oct(mode(path)) == "0o700", path


def test_S2_of_a_directory_that_was_given_the_parent_is_left_alone(scene: Scene) -> None:
    parent = os.path.join(scene.home.root, "shared")
    os.mkdir(parent)
    os.chmod(parent, 0o755)
    scene.daemon(*QUICK, "--questions-dir", os.path.join(parent, "questions"))
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    assert oct(mode(parent)) == "0o755"
    assert oct(mode(os.path.join(parent, "questions"))) == "0o700"
    assert oct(mode(os.path.join(parent, "log.ndjson"))) == "0o600"
    assert not os.path.exists(scene.home.questions)


# S3


@pytest.mark.parametrize("absolute", [True, False])
def test_S3_a_symlink_is_not_followed(scene: Scene, absolute: bool) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    outside = os.path.join(scene.home.bridge, "outside.json")
    with open(outside, "w") as file:
        json.dump(document(question.qid, "stolen"), file)
    scene.answers.symlink(question.qid, outside if absolute else "../outside.json")
    gone(scene, question.qid)
    detail = event(scene, "answer_rejected", question.qid)["detail"]
    assert detail == {"reason": "invalid_path", "file": f"{question.qid}.answer.json"}
    assert os.path.exists(outside), "only the link is removed"
    scene.answers.write(question.qid, "honest")
    assert question.wait()["response"] == said("honest")
    assert len(question.peer.received) == 1


class Judged:
    """The scan and the judge of answer files by hand, for one open question."""

    def __init__(self, directory: Path) -> None:
        self.qid = wire.ulid()
        self.path = directory / f"{self.qid}.answer.json"
        self.answers = Answers(str(directory))
        self.judge = Judge(self.answers, lambda qid: "open", poll=0.1, allowed=frozenset())

    def decide(self) -> object:
        (found,) = self.answers.scan(0.0)
        return self.judge.decide(found)


def test_S3_a_file_of_another_user_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judged(tmp_path)
    judged.path.write_text(json.dumps(document(judged.qid, "forged")))
    assert isinstance(judged.decide(), Accept)
    monkeypatch.setattr(os, "geteuid", lambda: judged.path.stat().st_uid + 1)
    assert judged.decide() == Reject(judged.qid, "invalid_path")


# S4


def test_S4_a_huge_file_costs_no_memory(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    before = daemon.memory()
    scene.answers.sparse(question.qid, 300 * MIB)
    scene.answers.sparse(wire.ulid(), 300 * MIB)
    wait(lambda: len(reasons(scene)) == 2, 10, "both are rejected")
    assert sorted(reasons(scene)) == ["foreign_qid", "invalid_schema"]
    assert daemon.memory() - before < 8 * MIB
    with open(f"/proc/{daemon.pid}/status") as file:
        (peak,) = (line for line in file if line.startswith("VmHWM"))
    assert int(peak.split()[1]) * 1024 < before + 16 * MIB
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")


@pytest.mark.parametrize(("more", "accepted"), [(0, True), (1, False)])
def test_S4_a_mebibyte_is_the_most(tmp_path: Path, more: int, accepted: bool) -> None:
    judged = Judged(tmp_path)
    frame = len(json.dumps(document(judged.qid, "")))
    text = json.dumps(document(judged.qid, "x" * (MIB - frame + more)))
    assert len(text) == MIB + more
    judged.path.write_text(text)
    assert isinstance(judged.decide(), Accept if accepted else Reject)


# S5


@pytest.mark.parametrize(("flags", "most"), [((), 2), (("--max-sends", "4"), 4)])
def test_S5_children_at_once_are_bounded(scene: Scene, flags: tuple[str, ...], most: int) -> None:
    scene.hermes.rule(delay=0.25)
    daemon = scene.daemon(*QUICK, *flags)
    asker = scene.peers.pi()
    questions = [asker.prepare(f"Question {number}?") for number in range(3 * most)]
    scene.peers.burst(questions, daemon)
    for question in questions:
        scene.hermes.wait_sent(question.qid)
    assert scene.hermes.most_at_once() == most


def test_S5_a_child_ends_with_its_group_at_the_limit(scene: Scene) -> None:
    scene.hermes.rule(hang=True, grandchild=60, ignore_term=True)
    daemon = scene.daemon(*QUICK, "--send-timeout", "300")
    question = scene.peers.pi().ask("Ship?")
    scene.hermes.wait_call(question.qid)
    assert "unknown" in question.wait()["error"]
    pids = _hermes_pids(scene)
    assert len(pids) == 2
    wait(lambda: not any(map(alive, pids)), 2, "nothing of the group lives on")
    assert daemon.children() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_S5_children_end_with_the_daemon(scene: Scene, number: int) -> None:
    scene.hermes.rule(hang=True, grandchild=60)
    daemon = scene.daemon(*QUICK)
    for _ in range(3):
        scene.peers.pi().ask("Ship?")
    wait(lambda: len(scene.hermes.running()) == 2, what="two children")
    wait(lambda: sum(n["what"] == "grandchild" for n in _hermes_notes(scene)) == 2)
    pids = _hermes_pids(scene)
    assert daemon.stop(number) == 0
    wait(lambda: not any(map(alive, pids)), 1, "nothing that it started lives on")


def _hermes_notes(scene: Scene) -> list[dict[str, Any]]:
    return journal.read(scene.hermes.journal)


def _hermes_pids(scene: Scene) -> set[int]:
    """The commands and their helpers."""
    notes = _hermes_notes(scene)
    return {n["pid"] for n in notes} | {n["child"] for n in notes if n["what"] == "grandchild"}


# S6


class Desk:
    def full(self) -> bool:
        return False

    def put(self, item: Asked | Cancelled) -> None:
        pass


@contextlib.contextmanager
def listener(directory: Path) -> Iterator[tuple[Listener, str]]:
    path = str(directory / "daemon.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listening.bind(path)
    listening.listen(64)
    stage = Listener(listening, path, Admission(), {"name": "x"}, Desk(), lambda: None)
    try:
        yield stage, path
    finally:
        stage.close()


def closed(line: wire.Line) -> bool:
    return readable(line.socket.fileno()) and line.socket.recv(1, socket.MSG_PEEK) == b""


@pytest.mark.parametrize("begun", [b"", b'{"type":"pi'])
def test_S6_a_connection_that_sends_no_line_is_closed_after_five_seconds(
    short_tmp: Path, begun: bytes
) -> None:
    with listener(short_tmp) as (stage, path), wire.Line(path) as line:
        assert turn(stage, 100.0) == 100.0 + IDLE == 105.0
        line.send(begun)
        turn(stage, 104.9)
        assert not closed(line)
        turn(stage, 105.0)
        assert closed(line)
        assert stage.counts["connection_idle"] == 1


@pytest.mark.parametrize("served", [0, 1])
def test_S6_an_idle_one_too_however_much_it_said_before(short_tmp: Path, served: int) -> None:
    with listener(short_tmp) as (stage, path), wire.Line(path) as line:
        turn(stage, 100.0)
        for _ in range(served):
            line.send(wire.encode(wire.ping()))
        line.send(b"\n{")
        turn(stage, 103.0)
        assert (line.read_line(1) is not None) if served else True
        # A blank line is none.
        end = 108.0 if served else 105.0
        turn(stage, end - 0.1)
        assert line.socket.fileno() >= 0 and not stage.counts
        turn(stage, end)
        assert closed(line)


def test_S6_a_peer_that_trickles_bytes_is_closed_all_the_same(short_tmp: Path) -> None:
    with listener(short_tmp) as (stage, path), wire.Line(path) as line:
        for tenth in range(49):
            line.send(b" ")
            turn(stage, 100.0 + tenth / 10)
        assert not closed(line)
        turn(stage, 105.0)
        assert closed(line)


def test_S6_connections_at_once_are_bounded_and_the_rest_waits(scene: Scene) -> None:
    daemon = scene.daemon()
    sockets = daemon.open_sockets()
    asker = scene.peers.pi()
    lines = [asker.open_line(daemon.endpoint) for _ in range(300)]
    wait(lambda: daemon.open_sockets() - sockets == 256, what="256 are served")
    stays(lambda: daemon.open_sockets() - sockets == 256, 0.2)
    lines[299].send(wire.encode(wire.ping("late")))
    stays(lambda: not closed(lines[299]), 0.1, "it waits")
    for line in lines[:100]:
        line.close()
    assert lines[299].read_json(2)["msg_id"] == "late"
    for line in lines[100:]:
        line.close()
    wait(lambda: daemon.open_sockets() == sockets, what="all are let go")


def test_S6_a_peer_of_another_user_is_refused(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid()
    with listener(short_tmp) as (stage, path):
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        with wire.Line(path) as line:
            line.send(wire.encode(wire.ping()))
            turn(stage, 0.0)
            turn(stage, 0.0)
            assert line.read_all(1) == []
            assert stage.counts["connection_foreign"] == 1
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert not same_user(left)
        monkeypatch.undo()
        assert same_user(left)


# S7

SECRET = "123456789:AAHk3jd8f7Gh2kL9mNpQrStUvWxYz0123456"


def test_S7_secrets_in_the_output_of_hermes_reach_neither_peer_nor_log(scene: Scene) -> None:
    """In both of its streams; and the variable's own value, which looks like nothing special."""
    plain = "correct-horse-battery"
    text = f"POST https://api.telegram.org/bot{SECRET}/sendMessage failed, password is {plain}"
    scene.hermes.rule(exit=1, err=text, times=1)
    scene.hermes.rule(exit=1, out=text)
    environ = {"TELEGRAM_BOT_TOKEN": SECRET, "MAIL_PASSWORD": plain}
    daemon = scene.daemon(*QUICK, environ=environ)
    for _ in range(2):
        question = scene.peers.pi().ask("Ship?")
        error = question.wait()["error"]
        assert error.startswith("hermes send failed (1): POST https://api.telegram.org/bot***")
        wait_state(scene, question.qid, "closed")
    wait(scene.home.status_file, 5, "status file")
    daemon.kill()
    assert SECRET not in daemon.stderr() and plain not in daemon.stderr()
    looked_at: list[str] = []
    for directory, _, names in os.walk(scene.home.path):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                data = file.read()
            looked_at.append(os.path.basename(path))
            assert SECRET.encode() not in data and plain.encode() not in data, path
    assert {"log.ndjson", "default.user-remote.json", question.qid + ".json"} <= set(looked_at)


def test_S7_the_log_is_bounded(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK, start=False)
    os.makedirs(scene.home.bridge, mode=0o700)
    line = json.dumps({"at": wire.iso(), "qid": "0" * 26, "event": "x", "detail": ""})
    line = line[:-2] + "y" * (1023 - len(line)) + line[-2:] + "\n"
    assert len(line) == 1024
    with open(scene.home.log, "w") as file:
        file.write(line * (10 * 1024))
    daemon.start()
    question = scene.peers.pi().ask("Ship?")
    scene.answers.write(question.qid, "yes")
    question.wait()
    wait(lambda: os.path.exists(scene.home.log + ".1"), what="rotated")
    event(scene, "answered", question.qid)
    assert os.path.getsize(scene.home.log) < 10_000
    assert os.path.getsize(scene.home.log + ".1") <= 10 * MIB
    assert oct(mode(scene.home.log)) == "0o600"


class Replies:
    """A replier by hand, and receivers on real sockets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reports: list[Replied] = []
        # Only the end looks at the clock.
        self.stage = Replier(self.reports.append, lambda qid: False, os.path.lexists)
        self.sockets: list[socket.socket] = []

    def receiver(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        made.bind(str(self.root / name))
        made.listen(128)
        self.sockets.append(made)
        return made

    def put(self, name: str, qid: str = "q") -> None:
        self.stage.put(Reply(qid, str(self.root / name), b'{"type":"response"}\n'))

    def accepted(self, receiver: socket.socket) -> list[socket.socket]:
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(receiver.accept()[0])
        self.sockets += found
        return found


@pytest.fixture
def replies(short_tmp: Path) -> Iterator[Replies]:
    made = Replies(short_tmp)
    yield made
    made.stage.close()
    for opened in made.sockets:
        opened.close()


def test_S7_a_receiver_that_never_acks_costs_ten_seconds_a_try(replies: Replies) -> None:
    receiver = replies.receiver("mute")
    replies.put("mute")
    assert turn(replies.stage, 1000.0) == 1000.0 + TRY == 1010.0
    (first,) = replies.accepted(receiver)
    turn(replies.stage, 1009.9)
    with pytest.raises(BlockingIOError):
        first.recv(1000, socket.MSG_DONTWAIT) and first.recv(1, socket.MSG_DONTWAIT)
    due = turn(replies.stage, 1010.0)
    assert first.recv(1, socket.MSG_DONTWAIT) == b"", "this try is over"
    assert due is not None and 1010.0 < due <= 1011.0
    turn(replies.stage, due)
    assert len(replies.accepted(receiver)) == 1


def test_S7_a_receiver_is_tried_by_one_connection_at_a_time(replies: Replies) -> None:
    receiver = replies.receiver("mute")
    for number in range(5):
        replies.put("mute", f"q{number}")
    turn(replies.stage, 1000.0)
    turn(replies.stage, 1005.0)
    assert len(replies.accepted(receiver)) == 1


def test_S7_at_most_64_receivers_are_tried_at_once(replies: Replies) -> None:
    receivers = [replies.receiver(f"r{number}") for number in range(70)]
    for number in range(70):
        replies.put(f"r{number}")
    turn(replies.stage, 1000.0)
    tried = [receiver for receiver in receivers if replies.accepted(receiver)]
    assert len(tried) == OPEN_MAX == 64
    turn(replies.stage, 1010.0)
    turn(replies.stage, 1010.0)
    assert all(replies.accepted(r) for r in receivers if r not in tried), "then the others"


def test_S7_the_patience_with_a_receiver_is_bounded(replies: Replies) -> None:
    """Whether it is mute in the last try or has just been tried."""
    replies.receiver("mute")
    replies.put("mute")
    turn(replies.stage, 1000.0)
    due = turn(replies.stage, 1000.0 + PATIENCE - 1)
    assert due is not None and replies.reports == []
    turn(replies.stage, due)
    assert replies.reports == []
    turn(replies.stage, due + TRY)
    assert replies.reports == [Replied("q", Outcome.EXPIRED)]
    assert PATIENCE == 86_400.0


def test_S7_a_cancel_is_acked_whoever_sends_it(scene: Scene) -> None:
    """By the wire's rule: who can reach the socket may cancel; other users cannot reach it."""
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    for envelope in (wire.cancel(question.qid, "someone-else"), wire.cancel(wire.ulid())):
        assert daemon.ask(envelope) == {"type": "ack", "msg_id": envelope["msg_id"]}
    wait_state(scene, question.qid, "closed")
    assert event(scene, "cancelled", question.qid)["detail"] == {"reason": "cancel envelope"}


def test_S7_the_text_stands_in_the_argv_as_the_wire_has_it(scene: Scene) -> None:
    """One argument, whatever is in it: no flag, no shell word."""
    scene.daemon(*QUICK, "--to", "telegram:-100:7")
    text = "--to evil; $(touch /tmp/x) `id` | cat > f\n--profile other '\""
    question = scene.peers.pi().ask(text, plain=True)
    call = scene.hermes.wait_sent(question.qid)
    assert call.argv[:3] == ["send", "--to", "telegram:-100:7"]
    assert len(call.argv) == 4 and call.argv[3].startswith(f"❓ [HUB-Q:{question.qid}] {text}\n")


def test_S7_nothing_is_left_open_in_hermes(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    line = scene.peers.pi().open_line(daemon.endpoint)
    call = scene.hermes.wait_sent(scene.peers.pi().ask("Ship?").qid)
    line.close()
    begin = call.begin
    assert sorted(fd for fd, _ in begin["fds"]) == [0, 1, 2]
    assert dict(begin["fds"])[0] == "/dev/null"
    assert begin["pgid"] == call.pid and begin["ppid"] == daemon.pid
    for mask in ("SigBlk", "SigIgn"):
        assert int(begin["signals"][mask], 16) & ~_ignored_by_python() == 0, mask
    serves(scene, daemon)


def _ignored_by_python() -> int:
    """What a Python process ignores by itself and hands on, unless it restores it."""
    code = "print(next(l for l in open('/proc/self/status') if l.startswith('SigIgn')).split()[1])"
    run = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, check=True)
    return int(run.stdout, 16)


def test_S7_a_stalled_receiver_delays_no_other(scene: Scene) -> None:
    scene.daemon(*QUICK)
    stalled = [scene.peers.pi(mood=mood).ask("Ship?") for mood in ("mute", "unread", "deaf")]
    for question in stalled:
        scene.answers.write(question.qid, "yes")
        event(scene, "answered", question.qid)
    question = scene.peers.pi().ask("Ship?")
    begin = time.monotonic()
    scene.answers.write(question.qid, "yes")
    question.wait()
    assert time.monotonic() - begin < 1.0
