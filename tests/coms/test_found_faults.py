"""What went wrong once under odd conditions: stalls, re-used ids, lost directories, floods."""

import contextlib
import json
import math
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.answers import STRAYS, Answers
from hermes_bridges.coms.book import REFUSALS_MAX, Book
from hermes_bridges.coms.envelope import Prompt
from hermes_bridges.coms.inquiry import Inquiry
from hermes_bridges.coms.peer import IDLE, Asked, Cancelled, Listener
from hermes_bridges.coms.presence import HEARTBEAT, Presence
from hermes_bridges.coms.records import Owner, Records
from hermes_bridges.coms.registry import Registry
from hermes_bridges.coms.replier import GONE, Outcome, Replied, Replier, Reply
from hermes_bridges.core.status import Status
from hermes_bridges.errors import BridgeError
from tests.coms.looks import delivered, gone, record_path, said, turn, wait_state
from tests.harness import wire
from tests.harness.answers import document
from tests.harness.daemon import wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")

# A large answer


def test_an_answer_of_a_mebibyte_outlives_a_kill_and_arrives_cut(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.ask("Ship?")
    delivered(scene, question)
    asker.down()
    frame = len(json.dumps(document(question.qid, "")))
    scene.answers.write(question.qid, "a" * (1_048_000 - frame))
    assert os.path.getsize(scene.answers.path(question.qid)) == 1_048_000
    wait_state(scene, question.qid, "replying")
    gone(scene, question.qid)
    daemon.kill()
    daemon.start()
    asker.up()
    text = question.wait()["response"]["text"]
    assert text.startswith("a" * 60_000) and "cut: the answer was too long" in text
    wait_state(scene, question.qid, "closed")
    assert os.path.getsize(record_path(scene, question.qid)) < 1024 * 1024


# Directories that are taken away


@pytest.mark.parametrize("lost", ["pending", "questions"])
def test_a_directory_deleted_under_the_daemon_is_made_again(scene: Scene, lost: str) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    shutil.rmtree(getattr(scene.home, lost))
    question = asker.ask("Ship?")
    delivered(scene, question)
    wait(lambda: os.path.isdir(scene.home.questions), what="the questions directory is back")
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    survivor = asker.ask("And after a restart?")
    delivered(scene, survivor)
    daemon.kill()
    daemon.start()
    scene.answers.write(survivor.qid, "too")
    assert survivor.wait()["response"] == said("too")
    assert len(scene.hermes.calls(survivor.qid)) == 1


def presence_in(root: Path) -> tuple[Registry, Presence]:
    """A published entry, and a file in the place of its socket."""
    registry = Registry(str(root / "coms"), "red")
    registry.prepare()
    session = wire.ulid()
    endpoint = registry.endpoint(session)
    Path(endpoint).touch()
    presence = Presence(registry, "user-remote", session, endpoint)
    with registry.lock(1.0):
        presence.publish()
    return registry, presence


def test_a_deleted_pool_is_made_again_by_the_next_beat(short_tmp: Path) -> None:
    registry, presence = presence_in(short_tmp)
    shutil.rmtree(short_tmp / "coms" / "projects")
    assert presence.beat(100.0, 3) == 100.0 + HEARTBEAT
    with open(os.path.join(registry.agents_dir, "user-remote.json")) as file:
        entry = json.load(file)
    assert (entry["session_id"], entry["queue_depth"]) == (presence.session, 3)


def test_a_removed_socket_ends_the_daemon_but_not_while_it_stops(short_tmp: Path) -> None:
    _, presence = presence_in(short_tmp)
    presence.beat(100.0, 0)
    os.unlink(presence.endpoint)
    with pytest.raises(BridgeError, match="socket was removed"):
        presence.beat(130.0, 0)
    presence.withdraw()
    presence.beat(131.0, 0)


def test_what_is_ignored_stays_so_while_the_directory_cannot_be_read(tmp_path: Path) -> None:
    directory, aside = tmp_path / "questions", tmp_path / "aside"
    directory.mkdir()
    ignored, other = (f"{wire.ulid()}.answer.json" for _ in range(2))
    for name in (ignored, other):
        (directory / name).write_text("{")
    answers = Answers(str(directory))
    assert {found.name for found in answers.scan(100.0)} == {ignored, other}
    answers.ignore(ignored)
    directory.rename(aside)
    directory.touch()
    assert answers.scan(101.0) == []
    directory.unlink()
    aside.rename(directory)
    (found,) = answers.scan(100.0 + STRAYS)
    assert (found.name, found.age) == (other, STRAYS), "and its age is known as well"


# A stall


def test_an_answer_in_time_counts_though_the_daemon_saw_it_after_the_deadline(
    scene: Scene,
) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", reply_timeout_ms=1500)
    delivered(scene, question)
    deadline = scene.home.records()[question.qid]["deadline"]
    daemon.pause()
    scene.answers.write(question.qid, "yes")
    assert time.time() < deadline
    wait(lambda: time.time() > deadline + 0.1, what="its time is over")
    daemon.resume()
    answer = question.wait()
    assert (answer["response"], answer["error"]) == (said("yes"), None)
    assert scene.home.events(question.qid, "timeout") == []


# Ids that are used again


def test_an_asker_may_ask_again_with_the_same_id_at_once(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    qid = wire.ulid()
    for number in range(30):
        question = asker.ask(f"Question {number}?", qid=qid)
        wait(
            lambda: sum(call.ok for call in scene.hermes.calls(qid, "question")) == number + 1,  # noqa: B023
            what=f"question {number} is sent",
        )
        assert f"Question {number}?" in scene.hermes.calls(qid, "question")[-1].text
        scene.answers.write(qid, f"answer {number}")
        assert question.wait()["response"] == said(f"answer {number}")
    assert scene.home.events(event="late_answer") == []


def test_asked_again_before_its_response_was_taken_both_are_answered(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    first = asker.ask("First?")
    delivered(scene, first)
    asker.down()
    scene.answers.write(first.qid, "one")
    wait_state(scene, first.qid, "replying")
    gone(scene, first.qid)
    second = asker.ask("Second?", qid=first.qid)
    assert len(scene.hermes.calls(first.qid)) == 1
    asker.up()
    assert second.wait()["response"] == said("one"), "the asker has one place for both"
    wait(lambda: [c for c in scene.hermes.calls(first.qid) if "Second?" in c.text and c.ok])
    scene.answers.write(first.qid, "two")
    wait(lambda: len(second.responses) == 2, what="the second response")
    assert [r["response"] for r in second.responses] == [said("one"), said("two")]


def test_the_id_of_another_bridges_question_is_refused_and_costs_no_place(scene: Scene) -> None:
    scene.daemon(*QUICK)
    red = scene.daemon(*QUICK, project="red")
    first = scene.peers.pi().ask("Ship?")
    delivered(scene, first)
    asker = scene.peers.pi(project="red")
    second = asker.ask("Ship?", qid=first.qid)
    assert "another bridge" in second.wait()["error"]

    def depth() -> object:
        return red.ask(wire.ping())["agent_card"]["queue_depth"]

    wait(lambda: depth() == 0, what="it is not counted as open")
    other = asker.ask("And this?")
    delivered(scene, other)
    for question in (first, other):
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == said("yes")
    assert len(scene.hermes.calls(first.qid)) == 1


# Odd records

ODD: dict[str, dict[str, object]] = {
    "sends without end": {"sends": math.inf},
    "no number of sends": {"sends": math.nan},
    "huge sends": {"sends": 10**400},
    "a huge deadline": {"deadline": 10**400},
    "received never": {"received_at": -math.inf},
}
ODD_CLOSED: dict[str, dict[str, object]] = {
    "a note without its limit": {"note": "timeout_note", "limit_ms": None},
    "a note with a huge limit": {"note": "timeout_note", "limit_ms": 10**400},
    "no outcome": {"outcome": None},
    "closed in no year": {"closed_at": 10**400},
    "closed without end": {"closed_at": math.inf},
}


def test_odd_numbers_in_records_do_not_end_the_start(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = {name: asker.ask(f"{name}?") for name in [*ODD, *ODD_CLOSED, "whole"]}
    for question in questions.values():
        delivered(scene, question)
    for name in ODD_CLOSED:
        scene.answers.write(questions[name].qid, "yes")
        wait_state(scene, questions[name].qid, "closed")
    daemon.kill()
    records = scene.home.records()
    for name, changes in {**ODD, **ODD_CLOSED}.items():
        qid = questions[name].qid
        with open(record_path(scene, qid), "w") as file:
            file.write(json.dumps({**records[qid], **changes}) + "\n")
    daemon.start()
    for name in [*ODD, *ODD_CLOSED]:
        path = record_path(scene, questions[name].qid)
        assert not os.path.exists(path) and os.path.exists(f"{path}.bad-1"), name
    daemon.assert_no_traceback()
    whole = questions["whole"]
    scene.answers.write(whole.qid, "yes")
    assert whole.wait()["response"] == said("yes")


# Connections


class Heard:
    """In the desk's place: keeps what it is given."""

    def __init__(self) -> None:
        self.items: list[Asked | Cancelled] = []

    def full(self) -> bool:
        return False

    def put(self, item: Asked | Cancelled) -> None:
        self.items.append(item)


@contextlib.contextmanager
def listener(directory: Path, heard: Heard) -> Iterator[tuple[Listener, str]]:
    path = str(directory / "daemon.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listening.bind(path)
    listening.listen(8)
    stage = Listener(listening, path, Admission(), {"name": "x"}, heard, lambda: None)
    try:
        yield stage, path
    finally:
        stage.close()


def test_a_peer_that_sends_blank_lines_is_closed_all_the_same(short_tmp: Path) -> None:
    with listener(short_tmp, Heard()) as (stage, path), wire.Line(path) as line:
        turn(stage, 100.0)
        for second in range(1, 5):
            line.send(b"\n")
            turn(stage, 100.0 + second)
        line.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.socket.recv(1)
        turn(stage, 100.0 + IDLE)
        assert line.socket.recv(1) == b""
        assert stage.counts["connection_idle"] == 1


def test_a_prompt_after_the_bridge_has_ended_its_side_is_not_taken(short_tmp: Path) -> None:
    """Its ack could not be sent any more, so its asker will ask again elsewhere."""
    heard = Heard()
    with listener(short_tmp, heard) as (stage, path), wire.Line(path) as line:
        line.send(wire.encode(wire.ping()))
        turn(stage, 100.0)
        turn(stage, 100.0)
        assert [reply["type"] for reply in line.read_all(1)] == ["pong"], "and the end"
        line.send(wire.encode(wire.prompt(wire.ulid(), "Ship?", "/asker.sock")))
        turn(stage, 101.0)
        assert heard.items == []
        with wire.Line(path) as other:
            asked = wire.prompt(wire.ulid(), "Ship?", "/asker.sock")
            other.send(wire.encode(asked))
            turn(stage, 102.0)
            turn(stage, 102.0)
            assert other.read_json(1) == {"type": "ack", "msg_id": asked["msg_id"]}
        (item,) = heard.items
        assert isinstance(item, Asked) and isinstance(item.prompt, Prompt)
        assert item.prompt.msg_id == asked["msg_id"]


# A response that was forbidden


def book_in(directory: Path, replies: list[Reply], status: Status | None = None) -> Any:
    owner = Owner("default", "user-remote", wire.ulid())
    records = Records(str(directory), owner, lambda reason: None)
    records.open()
    made = Book(records, Admission(), replies.append, status or Status(None), "/x.sock")
    return records, made


def test_a_cancelled_timeout_stays_cancelled_when_its_note_is_sent_later(tmp_path: Path) -> None:
    replies: list[Reply] = []
    records, book = book_in(tmp_path, replies)
    inquiry = Inquiry(wire.ulid(), "/asker.sock", (), "Ship?")
    inquiry.starts(100.0, time.time(), 1_000.0)
    inquiry.sends = 1
    book.enter(inquiry)
    inquiry.note = "timeout_note"
    book.settle(inquiry, "timeout", None, "no remote answer within 1000ms")
    assert [reply.qid for reply in replies] == [inquiry.qid]
    book.forbid(inquiry.qid)
    book.note_sent(inquiry.qid, "timeout_note")
    records.close()
    later: list[Reply] = []
    records, book = book_in(tmp_path, later)
    assert book.adopt(200.0) == [], "nor is the note owed"
    assert later == [] and book.standing(inquiry.qid) == "closed"
    records.close()


# Floods


def test_error_responses_that_wait_for_their_askers_are_bounded(tmp_path: Path) -> None:
    replies: list[Reply] = []
    status = Status(str(tmp_path / "status"))
    records, book = book_in(tmp_path / "pending", replies, status)
    for number in range(REFUSALS_MAX + 50):
        book.refuse(f"bad-{number}", "/nobody.sock", "bad id")
    assert len(replies) == REFUSALS_MAX == 100
    status.write()
    counters = json.loads((tmp_path / "status").read_text())["counters"]
    assert counters == {"refusal_dropped": 50}
    assert book.replied(Replied("bad-0", Outcome.GONE, question=False)) is None
    for number in range(2):
        book.refuse(f"more-{number}", "/nobody.sock", "bad id")
    assert [reply.qid for reply in replies[100:]] == ["more-0"], "one place was free again"
    records.close()


def test_cancelled_questions_do_not_wait_for_a_hanging_hermes(
    scene: Scene, counts: Callable[[int, int], int]
) -> None:
    scene.hermes.rule(hang=True)
    daemon = scene.daemon(*QUICK)
    for _ in range(2):
        scene.hermes.wait_call(scene.peers.pi().ask("Ship?").qid)
    pairs = counts(300, 2000)
    endpoint = daemon.endpoint
    for _ in range(pairs):
        prompt = wire.prompt(wire.ulid(), "Never mind?", "/nobody.sock")
        with wire.Line(endpoint) as line:
            line.send(wire.encode(prompt) + wire.encode(wire.cancel(prompt["msg_id"])))
            assert line.read_json()["type"] == line.read_json()["type"] == "ack"

    def all_cancelled() -> Any:
        written = scene.home.status_file()
        return written and written["counters"].get("cancelled") == pairs and written

    values = wait(all_cancelled, 15, "all are cancelled")["values"]
    assert (values["sends_waiting"], values["sends_running"]) == (0, 2)
    assert len(scene.hermes.calls()) == 2


# Responses


class Receiver:
    """An asker's socket, served by hand: refuses some qids and acks the others."""

    def __init__(self, path: Path, refused: set[str]) -> None:
        self.path = str(path)
        self.refused = refused
        self.seen: list[str] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.bind(self.path)
        self.socket.listen(8)
        self._open: list[socket.socket] = []

    def serve(self) -> None:
        """Replies to what has come in so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connected, _ = self.socket.accept()
                connected.setblocking(False)
                self._open.append(connected)
        for connected in list(self._open):
            with contextlib.suppress(BlockingIOError):
                qid = json.loads(connected.recv(4096))["msg_id"]
                self.seen.append(qid)
                kind = "nack" if qid in self.refused else "ack"
                reply = {"type": kind, "msg_id": qid, "error": "not now"}
                connected.sendall(wire.encode(reply))
                connected.close()
                self._open.remove(connected)

    def close(self) -> None:
        for opened in (self.socket, *self._open):
            opened.close()


def reply_to(receiver: Receiver, qid: str) -> Reply:
    return Reply(qid, receiver.path, wire.encode({"type": "response", "msg_id": qid}))


def test_a_refused_response_delays_no_other_of_its_asker(short_tmp: Path) -> None:
    reports: list[Replied] = []
    receiver = Receiver(short_tmp / "asker", {"b"})
    stage = Replier(reports.append, lambda qid: False, os.path.lexists, clock=lambda: 1000.0)
    with contextlib.closing(receiver), contextlib.closing(stage):
        for qid in "abcd":
            stage.put(reply_to(receiver, qid))
        # The clock stands still, so a backoff would never end.
        due: float | None = 1000.0
        for _ in range(60):
            due = turn(stage, 1000.0)
            receiver.serve()
        assert [(report.qid, report.outcome) for report in reports] == [
            (qid, Outcome.ACKED) for qid in "acd"
        ]
        assert due is not None and due > 1000.0, "the refused one waits alone"
        receiver.refused.clear()
        for _ in range(10):
            turn(stage, due)
            receiver.serve()
        assert reports[3:] == [Replied("b", Outcome.ACKED)]


def test_without_free_descriptors_responses_wait(short_tmp: Path) -> None:
    """Longer than an asker may be away: that no socket can be made says nothing of the asker."""
    reports: list[Replied] = []
    receiver = Receiver(short_tmp / "asker", set())
    now = 1000.0
    stage = Replier(reports.append, lambda qid: False, lambda path: False, clock=lambda: now)
    with contextlib.closing(receiver), contextlib.closing(stage):
        stage.put(reply_to(receiver, "q"))
        with no_free_descriptors():
            while now < 1000.0 + 2 * GONE:
                due = turn(stage, now)
                assert due is not None and due > now
                now = due
        assert reports == [] and receiver.seen == []
        for _ in range(10):
            turn(stage, now)
            receiver.serve()
        assert reports == [Replied("q", Outcome.ACKED)]


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[None]:
    """The limit of this process is the first descriptor that is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
