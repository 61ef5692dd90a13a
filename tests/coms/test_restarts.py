"""Questions outlive their daemon, and several daemons share one HOME (contract section 6)."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.book import CLOSED_MAX, Book
from hermes_bridges.coms.inquiry import Inquiry
from hermes_bridges.coms.records import Owner, Records
from hermes_bridges.core.status import Status
from tests.coms.looks import (
    delivered,
    event,
    gone,
    names,
    own_mtime,
    reasons,
    record_path,
    rewrite,
    said,
    state,
    wait_state,
)
from tests.harness import wire
from tests.harness.daemon import Daemon, mode, stays, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
STOPS = [signal.SIGTERM, signal.SIGKILL]


def end(daemon: Daemon, how: int) -> None:
    if how == signal.SIGKILL:
        daemon.kill()
    else:
        assert daemon.stop(how) == 0


# The record


def test_the_record_stands_before_hermes_is_called(scene: Scene) -> None:
    scene.hermes.rule(delay=0.5)
    daemon = scene.daemon(*QUICK, project="red")
    before = time.time()
    asker = scene.peers.pi(project="red")
    question = asker.ask("Ship?", ["Yes", {"title": "No"}], reply_timeout_ms=90_000)
    scene.hermes.wait_call(question.qid)
    record = scene.home.records()[question.qid]
    entry = daemon.entry()
    assert entry is not None
    assert (record["v"], record["qid"], record["state"]) == (1, question.qid, "sending")
    session = entry["session_id"]
    assert record["owner"] == {"project": "red", "name": "user-remote", "session": session}
    assert record["envelope"] == {
        name: question.envelope[name]
        for name in ("sender_session", "sender_endpoint", "sender_name", "sender_cwd")
    }
    assert record["options"] == ["Yes", "No"]
    assert record["limit_ms"] == 90_000
    assert before <= record["received_at"] <= time.time()
    assert record["deadline"] == pytest.approx(record["received_at"] + 90)
    assert oct(mode(record_path(scene, question.qid))) == "0o600"
    wait_state(scene, question.qid, "delivered")


def test_a_closed_question_keeps_a_small_record(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("q" * 3_000)
    delivered(scene, question)
    scene.answers.write(question.qid, "a" * 20_000)
    question.wait()
    wait_state(scene, question.qid, "closed")
    path = record_path(scene, question.qid)
    wait(lambda: os.path.getsize(path) < 400, what="nothing of it but its outcome")


# Adoption, state by state


@pytest.mark.parametrize("how", STOPS)
def test_a_question_whose_send_was_not_begun_is_sent(scene: Scene, how: int) -> None:
    scene.hermes.rule(match="Slow", hang=True)
    daemon = scene.daemon(*QUICK, "--max-sends", "1")
    scene.hermes.wait_call(scene.peers.pi().ask("Slow?").qid)
    question = scene.peers.pi().ask("Next?", ["Yes"])
    wait_state(scene, question.qid, "received")
    end(daemon, how)
    assert state(scene, question.qid) == "received"
    scene.hermes.forget_rules()
    daemon.start()
    delivered(scene, question)
    (call,) = scene.hermes.calls(question.qid)
    assert "Next?" in call.text and "\n1. Yes\n" in call.text
    assert scene.home.events(question.qid, "delivery_unknown") == []
    scene.answers.write(question.qid, "1")
    assert question.wait()["response"] == {"kind": "selection", "selections": ["Yes"]}


@pytest.mark.parametrize("how", STOPS)
def test_a_send_of_unknown_outcome_is_repeated_once_and_never_again(scene: Scene, how: int) -> None:
    scene.hermes.rule(hang=True)
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    scene.hermes.wait_call(question.qid)
    for number in (1, 2):
        end(daemon, how)
        assert state(scene, question.qid) == "sending"
        daemon.start()
        wait(
            lambda: len(scene.home.events(question.qid, "delivery_unknown")) == number,  # noqa: B023
            what="it is told",
        )
        wait(lambda: len(scene.hermes.calls(question.qid)) == 2, what="sent once more")
    first, second = scene.hermes.calls(question.qid)
    assert first.text == second.text, "the same qid, so that either copy can be answered"
    other = scene.peers.pi().ask("Another?")
    scene.hermes.wait_call(other.qid)
    assert len(scene.hermes.calls(question.qid)) == 2, "never a third time"
    assert event(scene, "delivery_unknown", question.qid)["detail"] == {"phase": "question"}
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes"), "and it can still be answered"


@pytest.mark.parametrize("how", STOPS)
def test_a_delivered_question_waits_for_the_rest_of_its_time(scene: Scene, how: int) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", reply_timeout_ms=60_000)
    delivered(scene, question)
    end(daemon, how)
    rewrite(scene, question.qid, deadline=time.time() + 1)
    daemon.start()
    begin = time.monotonic()
    assert question.wait()["error"] == "no remote answer within 60000ms"
    assert time.monotonic() - begin > 0.1, "it has a little time left"
    wait_state(scene, question.qid, "closed")
    scene.hermes.wait_sent(question.qid, "timeout_note")
    assert len(scene.hermes.calls(question.qid, "question")) == 1


def test_a_question_whose_time_passed_meanwhile_times_out_at_once(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", reply_timeout_ms=1000)
    delivered(scene, question)
    daemon.kill()
    record = scene.home.records()[question.qid]
    wait(lambda: time.time() > record["deadline"], 2)
    daemon.start()
    assert question.wait(1)["error"] == "no remote answer within 1000ms"
    note = scene.hermes.wait_sent(question.qid, "timeout_note")
    assert note.text.endswith("timed out after 1000ms.")
    wait_state(scene, question.qid, "closed")
    assert names(scene, question.qid).count("timeout") == 1


@pytest.mark.parametrize("how", STOPS)
def test_a_response_that_was_not_acked_is_sent(scene: Scene, how: int) -> None:
    daemon = scene.daemon(*QUICK, "--timeout", "600")
    asker = scene.peers.pi()
    question = asker.ask("Ship?")
    asker.down()
    wait_state(scene, question.qid, "replying")
    end(daemon, how)
    asker.up()
    daemon.start()
    assert question.wait()["error"] == "no remote answer within 600ms"
    wait_state(scene, question.qid, "closed")
    assert len(question.responses) == 1
    assert names(scene, question.qid).count("timeout") == 1


def test_an_adopted_question_has_a_new_owner_and_is_known_to_the_listener(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    daemon.restart()
    assert daemon.ask(wire.ping())["agent_card"]["queue_depth"] == 1
    assert question.send(), "a duplicate of it is acked"
    entry = daemon.entry()
    assert entry is not None
    assert scene.home.records()[question.qid]["owner"]["session"] == entry["session_id"]
    assert question.cancel()
    wait_state(scene, question.qid, "closed")
    scene.hermes.wait_sent(question.qid, "cancel_note")
    assert len(scene.hermes.calls(question.qid, "question")) == 1
    assert names(scene, question.qid) == ["question_received", "delivered", "cancelled"]


def test_an_answer_waits_through_any_number_of_restarts(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", ["Yes", "No"])
    delivered(scene, question)
    for how in (signal.SIGKILL, signal.SIGHUP, signal.SIGKILL):
        end(daemon, how)
        daemon.start()
        assert daemon.ready_line() == ("user-remote", "default", "telegram")
    scene.answers.write(question.qid, "No")
    assert question.wait()["response"] == {"kind": "selection", "selections": ["No"]}
    assert len(scene.hermes.calls(question.qid)) == 1


def test_a_large_question_does_not_grow_with_each_restart(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    titles = [f"{number} " + "日" * 6_000 for number in range(9)]
    question = scene.peers.pi().ask("Which?", titles)
    delivered(scene, question)
    sizes = []
    for _ in range(6):
        daemon.kill()
        daemon.start()
        sizes.append(os.path.getsize(record_path(scene, question.qid)))
    assert max(sizes) < 512 * 1024, sizes
    scene.answers.write(question.qid, "9")
    assert question.wait()["response"]["selections"] == [titles[8]]


def test_a_note_under_way_is_sent_once_more_at_most(scene: Scene) -> None:
    scene.hermes.rule(match="⌛", hang=True)
    daemon = scene.daemon(*QUICK, "--timeout", "500")
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    question.wait()
    for _ in range(3):
        scene.hermes.wait_call(question.qid, "timeout_note")
        wait_state(scene, question.qid, "closed")
        daemon.kill()
        daemon.start()
    delivered_later = scene.peers.pi().ask("Another?", reply_timeout_ms=60_000)
    scene.hermes.wait_sent(delivered_later.qid)
    assert 1 <= len(scene.hermes.calls(question.qid, "timeout_note")) <= 2
    assert len(question.peer.received) == 1


# Clocks


def killed(scene: Scene, **more: float) -> tuple[Daemon, Question]:
    """A delivered question whose daemon was killed."""
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", **more)
    delivered(scene, question)
    daemon.kill()
    return daemon, question


def test_what_is_left_is_never_more_than_the_limit(scene: Scene) -> None:
    """The clock was set back while no daemon ran."""
    daemon, question = killed(scene, reply_timeout_ms=1000)
    now = time.time()
    rewrite(scene, question.qid, received_at=now - 1, deadline=now + 5_000)
    daemon.start()
    begin = time.monotonic()
    assert question.wait(5)["error"] == "no remote answer within 1000ms"
    assert 0.5 < time.monotonic() - begin < 2


def test_a_record_from_the_future_gets_its_whole_limit(scene: Scene) -> None:
    """A host without a clock battery: it is long ago by now, and the deadline says nothing."""
    daemon, question = killed(scene, reply_timeout_ms=1000)
    now = time.time()
    rewrite(scene, question.qid, received_at=now + 86_400, deadline=now - 5)
    daemon.start()
    begin = time.monotonic()
    assert question.wait(5)["error"] == "no remote answer within 1000ms"
    assert 0.5 < time.monotonic() - begin < 2


def test_a_deadline_long_ago_is_now(scene: Scene) -> None:
    daemon, question = killed(scene)
    rewrite(scene, question.qid, received_at=1.0, deadline=1801.0)
    daemon.start()
    assert question.wait(2)["error"] == "no remote answer within 1800000ms"


class Clock:
    def __init__(self, wall: float) -> None:
        self.wall = wall

    def __call__(self) -> float:
        return self.wall


def test_in_the_process_the_wall_clock_does_not_count(tmp_path: Path) -> None:
    clock = Clock(1e9)
    records = Records(str(tmp_path), Owner("p", "n", wire.ulid()), lambda reason: None)
    records.open()
    status = Status(None)
    book = Book(records, Admission(), lambda reply: None, status, "/x.sock", wall=clock)
    inquiry = Inquiry(wire.ulid(), "/asker.sock", (), "text")
    inquiry.starts(100.0, clock(), 10_000.0)
    book.enter(inquiry)
    for jump in (1e9 + 86_400, 1e9 - 86_400):
        clock.wall = jump
        assert list(book.expired(109.9)) == []
        assert book.next_deadline() == 110.0
    assert list(book.expired(110.0)) == [inquiry]
    records.close()


# What is left alone


def test_a_record_of_a_newer_version_is_left_alone_and_said_once(scene: Scene) -> None:
    daemon, question = killed(scene)
    rewrite(scene, question.qid, v=2, news="anything")
    with open(record_path(scene, question.qid), "rb") as file:
        before = file.read()
    scene.answers.write(question.qid, "yes")
    for _ in range(2):
        daemon.start()
        other = scene.peers.pi().ask("Another?")
        scene.answers.write(other.qid, "yes")
        other.wait()
        stays(lambda: scene.answers.waiting(question.qid), 0.3, "six scans")
        lines = [line for line in daemon.stderr().splitlines() if question.qid in line]
        assert len(lines) == 1 and "newer version" in lines[0]
        assert daemon.stop() == 0
    with open(record_path(scene, question.qid), "rb") as file:
        assert file.read() == before
    assert question.responses == [] and len(scene.hermes.calls(question.qid)) == 1


@pytest.mark.parametrize("owner", [{"project": "red"}, {"name": "ann"}])
def test_records_of_another_project_or_name_are_left_alone(
    scene: Scene, owner: dict[str, str]
) -> None:
    """Their daemon is dead, and may come back."""
    daemon, question = killed(scene)
    record = scene.home.records()[question.qid]
    rewrite(scene, question.qid, owner={**record["owner"], **owner})
    scene.answers.write(question.qid, "yes")
    daemon.start()
    stays(lambda: scene.answers.waiting(question.qid), 0.4, "eight scans")
    assert scene.home.records()[question.qid]["owner"] == {**record["owner"], **owner}
    other = scene.daemon(*QUICK, **owner)  # type: ignore[arg-type]
    assert question.wait()["response"] == said("yes"), "its own daemon takes it"
    assert other.stop() == 0
    assert reasons(scene) == []


def test_a_living_owner_keeps_its_questions_even_without_an_entry(scene: Scene) -> None:
    """Somebody removed its entry, so another daemon has got its name."""
    first = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    owner = scene.home.records()[question.qid]["owner"]
    os.unlink(os.path.join(scene.home.agents(), "user-remote.json"))
    second = scene.daemon(*QUICK)
    assert second.ready_line() == ("user-remote", "default", "telegram")
    assert scene.home.records()[question.qid]["owner"] == owner
    first.pause()
    scene.answers.write(question.qid, "yes")
    stays(lambda: scene.answers.waiting(question.qid), 0.3, "the second leaves it")
    first.resume()
    assert question.wait()["response"] == said("yes")
    assert first.stop() == 0
    assert scene.home.entries() == {"user-remote": second.entry()}
    assert len(scene.hermes.calls(question.qid)) == 1


def test_a_msg_id_that_is_open_at_another_daemon_is_not_taken_over(scene: Scene) -> None:
    scene.daemon(*QUICK, project="red")
    blue = scene.daemon(*QUICK, project="blue")
    first = scene.peers.pi(project="red").ask("Ship?")
    delivered(scene, first)
    second = scene.peers.pi(project="blue").ask("Ship?", qid=first.qid)
    assert second.wait()["error"] and second.responses[0]["response"] is None
    scene.answers.write(first.qid, "yes")
    assert first.wait()["response"] == said("yes")
    assert len(scene.hermes.calls(first.qid)) == 1
    assert blue.running


# Closed questions


def closed_records(scene: Scene, number: int) -> list[str]:
    """So many closed records of a dead daemon, the oldest first."""
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    scene.answers.write(question.qid, "yes")
    question.wait()
    wait_state(scene, question.qid, "closed")
    assert daemon.stop() == 0
    record = scene.home.records()[question.qid]
    qids = [wire.ulid() for _ in range(number)]
    # Not in the order of their names.
    for age, qid in enumerate(reversed(qids)):
        made = {**record, "qid": qid, "closed_at": record["closed_at"] - 10_000 - age}
        with open(record_path(scene, qid), "w") as file:
            file.write(json.dumps(made) + "\n")
    return [*qids, question.qid]


def test_the_last_thousand_are_remembered_across_restarts(scene: Scene) -> None:
    assert CLOSED_MAX == 1_000
    qids = closed_records(scene, 1_003)
    oldest, kept = qids[:4], qids[4:]
    scene.daemon(*QUICK)
    assert set(scene.home.records()) == set(kept)
    for qid in (kept[0], kept[-1], oldest[0]):
        scene.answers.write(qid, "too late")
        gone(scene, qid)
    for qid in (kept[0], kept[-1]):
        assert event(scene, "late_answer", qid)["detail"] == {"state": "answered"}
        scene.hermes.wait_sent(qid, "late_note")
    assert event(scene, "answer_rejected", oldest[0])["detail"]["reason"] == "foreign_qid"


# The end, and what it leaves


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_keeps_what_was_just_acked(scene: Scene, number: int) -> None:
    """A prompt that was acked right before the signal is in its record."""
    scene.hermes.rule(hang=True)
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = [asker.ask(f"Question {n}?") for n in range(20)]
    assert daemon.stop(number) == 0
    assert set(scene.home.open_records()) == {question.qid for question in questions}
    scene.hermes.forget_rules()
    daemon.start()
    for question in questions:
        scene.hermes.wait_sent(question.qid)
        scene.answers.write(question.qid, "yes")
    for question in questions:
        assert question.wait()["response"] == said("yes")


def test_the_start_removes_what_a_kill_left(scene: Scene) -> None:
    daemon, question = killed(scene)
    socket_path = next(
        os.path.join(scene.home.sockets, name)
        for name in os.listdir(scene.home.sockets)
        if os.path.join(scene.home.sockets, name) != question.peer.path
    )
    temps = [
        os.path.join(directory, f".{question.qid}.json.{daemon.pid}-7.tmp")
        for directory in (scene.home.pending, scene.home.agents())
    ]
    foreign = [
        os.path.join(scene.home.pending, "notes.tmp"),
        os.path.join(scene.home.pending, f".{question.qid}.json.{os.getpid()}-7.tmp"),
        os.path.join(scene.home.sockets, "other.sock"),
    ]
    for path in [*temps, *foreign]:
        with open(path, "w"):
            own_mtime(path, 1)
    daemon.start()
    assert not any(map(os.path.exists, [*temps, socket_path]))
    assert all(map(os.path.exists, foreign)), "only what was its own"
    locks = [n for n in os.listdir(scene.home.pending) if n.startswith(".owner-")]
    assert len(locks) == 1, "the dead owner's lock file is gone as well"


def test_a_start_that_fails_leaves_all_questions_to_the_next(scene: Scene) -> None:
    daemon, question = killed(scene)
    failed = scene.daemon("--timeout", "never", start=False)
    failed.start(ready=False)
    assert failed.wait_exit(10) == 1
    assert state(scene, question.qid) == "delivered"
    daemon.start()
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")


# Damaged records


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(**more: object) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        fields = {**json.loads(data.rstrip(b"\n").rpartition(b"\n")[2]), **more}
        return json.dumps({k: v for k, v in fields.items() if v is not None}).encode() + b"\n"

    return change


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "NUL": lambda data: b"\0" * 4096,
    "truncated first line": lambda data: truncated(data.partition(b"\n")[0]),
    "a list": lambda data: b"[]",
    "deep": lambda data: b"[" * 100_000,
    "no UTF-8": lambda data: b"\xff\xfe",
    "another qid": changed(qid="0" * 26),
    "no state": changed(state=None),
    "unknown state": changed(state="dreaming"),
    "no owner": changed(owner=None),
    "half an owner": changed(owner={"project": "default"}),
    "no envelope": changed(envelope=None),
    "no deadline": changed(deadline=None),
    "a deadline of text": changed(deadline="soon"),
    "version of text": changed(v="1"),
}


def test_KH14_a_damaged_record_is_moved_aside_and_the_others_live_on(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = {name: asker.ask(f"{name}?") for name in [*DAMAGES, "whole"]}
    for question in questions.values():
        delivered(scene, question)
    daemon.kill()
    for name, damage in DAMAGES.items():
        path = record_path(scene, questions[name].qid)
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(damage(data))
    daemon.start()
    for name in DAMAGES:
        qid = questions[name].qid
        path = record_path(scene, qid)
        assert not os.path.exists(path), name
        assert os.path.exists(f"{path}.bad-1"), f"{name}: nothing is thrown away"
        lines = [line for line in daemon.stderr().splitlines() if qid in line]
        assert len(lines) == 1 and "error: " in lines[0] and "damaged" in lines[0], name
    whole = questions["whole"]
    scene.answers.write(whole.qid, "yes")
    assert whole.wait()["response"] == said("yes")
    assert list(scene.home.records()) == [whole.qid]
    daemon.restart()
    assert "damaged" not in daemon.stderr(), "it is told once"


def test_KH14_a_torn_line_at_the_end_costs_only_itself(scene: Scene) -> None:
    """The power went while a state was being appended."""
    daemon, question = killed(scene)
    path = record_path(scene, question.qid)
    with open(path, "rb") as file:
        whole = file.read()
    for tail in (whole[:40], b"\0" * 500, whole[:-1]):
        with open(path, "wb") as file:
            file.write(whole + tail)
        daemon.start()
        assert daemon.ask(wire.ping())["agent_card"]["queue_depth"] == 1
        assert "damaged" not in daemon.stderr()
        daemon.kill()
        assert state(scene, question.qid) == "delivered"
    daemon.start()
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    assert len(scene.hermes.calls(question.qid)) == 1


def test_KH14_what_cannot_be_read_is_not_overwritten(scene: Scene) -> None:
    """A record that is no file of ours: left, told once, and its answer is left as well."""
    daemon, question = killed(scene)
    path = record_path(scene, question.qid)
    kept = os.path.join(scene.home.root, "kept.json")
    os.rename(path, kept)
    os.symlink(kept, path)
    scene.answers.write(question.qid, "yes")
    daemon.start()
    stays(lambda: scene.answers.waiting(question.qid), 0.3, "six scans")
    assert os.path.islink(path)
    lines = [line for line in daemon.stderr().splitlines() if question.qid in line]
    assert len(lines) == 1 and "cannot be read" in lines[0]
    assert daemon.stop() == 0
    os.unlink(path)
    os.rename(kept, path)
    daemon.start()
    assert question.wait()["response"] == said("yes")
