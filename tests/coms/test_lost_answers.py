"""A human's answer is never lost (contract section 7.1)."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms.answers import Answers
from hermes_bridges.coms.judge import Judge, Leave, Reject
from hermes_bridges.coms.replier import GONE, Outcome, Replied, Replier, Reply
from tests.coms.looks import (
    delivered,
    elsewhere,
    event,
    gone,
    own_mtime,
    reasons,
    said,
    state,
    turn,
    until,
    wait_state,
)
from tests.harness import wire
from tests.harness.answers import document
from tests.harness.daemon import Daemon, stays, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
GRACE = 1.0  # s: the larger of this and two polls
DAY = 86_400.0


def end(daemon: Daemon, how: int) -> None:
    if how == signal.SIGKILL:
        daemon.kill()
    else:
        assert daemon.stop(how) == 0


# L1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_L1_an_answer_after_a_restart_reaches_the_asker(scene: Scene, how: int) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.one_shot().ask("Ship?", ["yes", "no"])
    delivered(scene, question)
    end(daemon, how)
    daemon.start()
    scene.answers.write(question.qid, "2")
    assert question.wait()["response"] == {"kind": "selection", "selections": ["no"]}
    assert question.response and question.response["error"] is None
    assert len(scene.hermes.calls(question.qid)) == 1
    assert reasons(scene) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_L1_an_answer_written_while_no_daemon_ran_is_found(scene: Scene, how: int) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    end(daemon, how)
    scene.answers.write(question.qid, "yes")
    daemon.start()
    assert question.wait()["response"] == said("yes")
    gone(scene, question.qid)
    assert reasons(scene) == []


# L2


def test_L2_an_answer_waits_for_the_daemon_that_asked(scene: Scene) -> None:
    """Two pools and two names of one pool look at one directory; the owner is held still."""
    owner = scene.daemon(*QUICK, project="red")
    others = [scene.daemon(*QUICK, project="blue"), scene.daemon(*QUICK, project="red")]
    assert set(scene.home.entries("red")) == {"user-remote", "user-remote2"}
    question = scene.peers.pi(project="red").ask("Which pool?")
    delivered(scene, question)
    owner.pause()
    scene.answers.write(question.qid, "red")
    stays(lambda: scene.answers.waiting(question.qid), 0.4, "eight polls of two others")
    owner.resume()
    assert question.wait()["response"] == said("red")
    assert reasons(scene) == []
    for daemon in [owner, *others]:
        assert daemon.stop() == 0


# L3


def test_L3_a_writers_temporary_file_is_left_alone(scene: Scene) -> None:
    qid = wire.ulid()
    os.makedirs(scene.home.questions, mode=0o700)
    names = (f"{qid}.answer.json.tmp", f".{qid}.answer.json.swp", "4913")
    young = [scene.answers.stray(name) for name in names]
    almost = scene.answers.stray("almost.tmp")
    own_mtime(almost, 3590)
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", qid=qid)
    stays(lambda: all(map(os.path.exists, [*young, almost])), 0.3, "six polls")
    data = json.dumps(document(qid, "yes")).encode()
    with open(young[0], "wb") as file:
        file.write(data)
    scene.answers.note(qid, "yes", "renamed", valid=True)
    os.rename(young[0], scene.answers.path(qid))
    assert question.wait()["response"] == said("yes")
    assert reasons(scene) == []


def test_L3_after_an_hour_it_is_logged_and_removed(scene: Scene) -> None:
    os.makedirs(scene.home.questions, mode=0o700)
    old = scene.answers.stray("left.over")
    own_mtime(old, 3610)
    scene.daemon(*QUICK)
    wait(lambda: not os.path.exists(old), 10, "removed")
    detail = event(scene, "answer_rejected", "0" * 26)["detail"]
    assert detail == {"reason": "invalid_path", "file": "left.over"}
    assert scene.hermes.calls() == [], "no note to the human"


def test_L3_the_hour_begins_with_the_last_change(judged: "Judged") -> None:
    stray = judged.path.with_name("x.tmp")
    stray.touch()
    os.utime(stray, (1000.0, 1000.0))
    for now, wall in ((0.0, 1000.0), (2000.0, 3000.0), (4000.0, 4599.9)):
        judged.wall = wall
        assert judged.leaves(now)
    os.utime(stray, (2000.0, 2000.0))
    judged.wall = 4600.0
    assert judged.leaves(4002.0)
    judged.wall = 5600.0
    verdict = judged.decide(4004.0)
    assert verdict == Reject("0" * 26, "invalid_path")


# L4 and L5


def test_L4_a_slow_writer_gets_grace_as_long_as_the_file_grows(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    slow = scene.answers.slowly(question.qid, "slowly but surely", pieces=4)
    while slow.step():
        stays(lambda: scene.answers.waiting(question.qid), 0.6 * GRACE, "half written")
    assert question.wait()["response"] == said("slowly but surely")
    assert reasons(scene) == []


@pytest.fixture
def judged(tmp_path: Path) -> Iterator["Judged"]:
    yield Judged(tmp_path)


class Judged:
    """The scan and the judge of answer files by hand, for one open question."""

    def __init__(self, directory: Path) -> None:
        self.qid = wire.ulid()
        self.path = directory / f"{self.qid}.answer.json"
        self.answers = Answers(str(directory))
        self.wall = 0.0
        self.judge = Judge(
            self.answers, lambda qid: "open", poll=0.1, allowed=frozenset(), wall=lambda: self.wall
        )

    def decide(self, now: float) -> object:
        (found,) = self.answers.scan(now)
        return self.judge.decide(found)

    def leaves(self, now: float) -> bool:
        return isinstance(self.decide(now), Leave)

    def rejects(self, now: float) -> bool:
        verdict = self.decide(now)
        return isinstance(verdict, Reject) and verdict.reason == "invalid_json"


@pytest.mark.parametrize("change", ["size", "mtime", "inode"])
def test_L4_each_kind_of_change_starts_the_grace_anew(judged: Judged, change: str) -> None:
    judged.path.write_text('{"qid": ')
    before = judged.path.stat()
    assert judged.leaves(0.0) and judged.leaves(0.9)
    if change == "inode":
        os.rename(judged.path, judged.path.with_name("kept"))
        judged.path.write_text('{"qid": ')
        os.unlink(judged.path.with_name("kept"))
    elif change == "size":
        judged.path.write_text('{"qid":  ')
    stamp = before.st_mtime_ns + (change == "mtime")
    os.utime(judged.path, ns=(stamp, stamp))
    after = judged.path.stat()
    assert (after.st_ino != before.st_ino) == (change == "inode")
    assert (after.st_size != before.st_size) == (change == "size")
    assert (after.st_mtime_ns != before.st_mtime_ns) == (change == "mtime")
    assert judged.leaves(1.0) and judged.leaves(1.9)
    assert judged.rejects(2.05)


def test_L5_a_second_partial_file_at_that_path_gets_its_own_grace(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    scene.answers.partial(question.qid, "yes")
    stays(lambda: scene.answers.waiting(question.qid), 0.7 * GRACE)
    os.unlink(scene.answers.path(question.qid))
    scene.answers.partial(question.qid, "yes")
    stays(lambda: scene.answers.waiting(question.qid), 0.7 * GRACE, "the second is left as long")
    scene.answers.in_place(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    assert reasons(scene) == []


def test_L5_a_file_that_went_away_and_came_back_starts_anew(judged: Judged) -> None:
    """The very same file, so nothing but its absence tells."""
    judged.path.write_text('{"qid": ')
    assert judged.leaves(0.0) and judged.leaves(0.9)
    away = judged.path.parent.parent / "away"
    os.rename(judged.path, away)
    assert judged.answers.scan(0.95) == []
    os.rename(away, judged.path)
    assert judged.leaves(1.05) and judged.leaves(2.0)
    assert judged.rejects(2.1)


# L6


@pytest.mark.parametrize("unlink", [True, False], ids=["no file", "nobody listens"])
def test_L6_the_response_waits_for_an_asker_that_is_away(scene: Scene, unlink: bool) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.ask("Ship?")
    asker.down(unlink)
    scene.answers.write(question.qid, "yes")
    event(scene, "answered", question.qid)
    gone(scene, question.qid)
    stays(lambda: state(scene, question.qid) == "replying", 0.3, "the record keeps it")
    asker.up()
    assert question.wait()["response"] == said("yes")
    wait_state(scene, question.qid, "closed")
    assert len(question.responses) == 1


@pytest.mark.parametrize("mood", ["slam", "nack"])
def test_L6_a_try_that_fails_is_repeated_until_it_is_acked(scene: Scene, mood: str) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi(moods=[mood, mood]).ask("Ship?")
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    wait_state(scene, question.qid, "closed")


def test_L6_an_unsent_response_survives_a_kill(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.ask("Ship?", ["yes", "no"])
    asker.down()
    scene.answers.write(question.qid, "1")
    record = wait_state(scene, question.qid, "replying")
    assert record["response"] == {"kind": "selection", "selections": ["yes"]}
    gone(scene, question.qid)
    daemon.kill()
    asker.up()
    daemon.start()
    assert question.wait()["response"] == {"kind": "selection", "selections": ["yes"]}
    wait_state(scene, question.qid, "closed")
    assert len(question.responses) == 1


def test_L6_the_response_is_recorded_before_the_answer_file_goes(scene: Scene) -> None:
    """Whenever the file is not there any more, the record has the response."""
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    asker.down()
    qids = []
    for number in range(5):
        question = asker.prepare(f"Question {number}?", endpoint=daemon.endpoint)
        assert question.send()
        scene.answers.write(question.qid, "yes")
        while scene.answers.waiting(question.qid):
            pass
        daemon.pause()
        qids.append(question.qid)
        assert scene.home.records()[question.qid]["state"] == "replying"
        daemon.resume()
    daemon.kill()
    assert all(state(scene, qid) == "replying" for qid in qids)


class Replies:
    """A replier by hand: its reports, an asker's socket that may be absent, and an entry."""

    def __init__(self, root: Path) -> None:
        self.endpoint = str(root / "asker.sock")
        self.entry = False
        self.cancelled: set[str] = set()
        self.reports: list[Replied] = []
        self.now = 1000.0
        self.stage = Replier(
            self.reports.append,
            self.cancelled.__contains__,
            lambda endpoint: os.path.lexists(endpoint) or self.entry,
            clock=lambda: self.now,
        )

    def put(self, qid: str = "q") -> None:
        self.stage.put(Reply(qid, self.endpoint, b'{"type":"response"}\n'))

    def listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(self.endpoint)
        listener.listen(8)
        return listener

    def go_to(self, moment: float) -> None:
        """Turns the stage at every moment that it asks for, up to this one."""
        while not self.reports:
            due = turn(self.stage, self.now)
            if due is None or due > moment:
                break
            self.now = max(due, self.now + 0.001)
        self.now = moment


@pytest.fixture
def replies(short_tmp: Path) -> Iterator[Replies]:
    made = Replies(short_tmp)
    yield made
    made.stage.close()


def test_L6_an_asker_is_given_up_after_a_minute_without_socket_and_entry(replies: Replies) -> None:
    replies.put()
    begin = replies.now
    replies.go_to(begin + GONE - 1)
    assert replies.reports == []
    replies.go_to(begin + GONE + 31)
    assert replies.reports == [Replied("q", Outcome.GONE)]


def test_L6_an_entry_in_the_registry_keeps_the_response(replies: Replies) -> None:
    replies.entry = True
    replies.put()
    replies.go_to(replies.now + 600)
    assert replies.reports == []
    replies.entry = False
    replies.go_to(replies.now + GONE - 31)
    assert replies.reports == [], "its minute begins with the last sign of life"
    replies.go_to(replies.now + 93)
    assert replies.reports == [Replied("q", Outcome.GONE)]


def test_L6_an_asker_that_comes_back_within_the_minute_gets_it(replies: Replies) -> None:
    replies.put()
    replies.go_to(replies.now + 50)
    with replies.listen() as listener:
        replies.now += 31
        turn(replies.stage, replies.now)
        connection, _ = listener.accept()
        with connection:
            until(replies.stage, replies.now, lambda: connection.recv(100, socket.MSG_PEEK))
            connection.sendall(b'{"type":"ack","msg_id":"q"}\n')
            until(replies.stage, replies.now, lambda: replies.reports)
    assert replies.reports == [Replied("q", Outcome.ACKED)]


# L7


@pytest.mark.parametrize("text", ["a" * 200_000, "é" * 70_000, "x\n" * 40_000, "👍🏽" * 30_000])
def test_L7_an_answer_too_long_for_a_line_is_cut_visibly(scene: Scene, text: str) -> None:
    """The receiver refuses a longer line, as the pi harness does, and would never have it."""
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Tell me all")
    scene.answers.write(question.qid, text + "!")
    got = question.wait()["response"]["text"]
    mark = "… [cut: the answer was too long for one line]"
    assert got.endswith(mark)
    kept = got.removesuffix(mark)
    assert text.strip().startswith(kept[:1000]) and len(json.dumps(kept)) > 30_000
    assert not kept.endswith("👍"), "never inside a cluster"
    wait_state(scene, question.qid, "closed")


# L8


def test_L8_a_log_that_cannot_be_written_stops_nothing(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK, start=False)
    os.makedirs(scene.home.log, mode=0o700)
    daemon.start()
    for number in range(3):
        question = scene.peers.pi().ask(f"Question {number}?")
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == said("yes")
        gone(scene, question.qid)
    told = [line for line in daemon.stderr().splitlines() if "event log" in line]
    assert len(told) == 1 and "events are lost" in told[0]
    os.rmdir(scene.home.log)
    question = scene.peers.pi().ask("Again?")
    scene.answers.write(question.qid, "yes")
    question.wait()
    event(scene, "answered", question.qid)
    assert daemon.stop() == 0


# L9


def test_L9_a_msg_id_that_is_used_again_is_a_new_question(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    first = asker.ask("First?")
    delivered(scene, first)
    scene.answers.write(first.qid, "one")
    first.wait()
    wait_state(scene, first.qid, "closed")
    second = asker.ask("Second?", qid=first.qid)
    wait(lambda: len(scene.hermes.calls(first.qid)) == 2, what="sent to the human as well")
    wait_state(scene, first.qid, "delivered")
    scene.answers.write(first.qid, "two")
    assert second.wait()["response"] == said("two")
    wait_state(scene, first.qid, "closed")
    daemon.restart()
    third = asker.ask("Third?", qid=first.qid)
    scene.answers.write(first.qid, "three")
    assert third.wait()["response"] == said("three")
    assert scene.home.events(first.qid, "late_answer") == []


def test_L9_a_question_that_was_never_sent_is_not_sent_in_place_of_its_successor(
    scene: Scene,
) -> None:
    scene.hermes.rule(match="Slow", delay=0.7)
    scene.daemon(*QUICK, "--max-sends", "1")
    asker = scene.peers.pi()
    scene.hermes.wait_call(asker.ask("Slow?").qid)
    first = asker.ask("First?")
    scene.answers.write(first.qid, "one")
    first.wait()
    wait_state(scene, first.qid, "closed")
    second = asker.ask("Second?", qid=first.qid)
    delivered(scene, second)
    scene.answers.write(second.qid, "two")
    assert second.wait()["response"] == said("two")
    delivered(scene, asker.ask("Last?"))
    _, call, _ = scene.hermes.calls()
    assert call.qid == first.qid and "Second?" in call.text


@pytest.mark.parametrize("code", [0, 1])
def test_L9_a_send_of_the_question_before_says_nothing_of_its_successor(
    scene: Scene, code: int
) -> None:
    scene.hermes.rule(match="First", delay=0.7, exit=code)
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    first = asker.ask("First?")
    scene.hermes.wait_call(first.qid)
    scene.answers.write(first.qid, "one")
    first.wait()
    wait_state(scene, first.qid, "closed")
    second = asker.ask("Second?", qid=first.qid)
    delivered(scene, second)
    assert ["First?" in c.text for c in scene.hermes.calls(first.qid)] == [True, False]
    scene.answers.write(second.qid, "two")
    assert second.wait()["response"] == said("two")


# L10


@pytest.mark.parametrize(
    ("flags", "environ", "limit"),
    [
        (["--timeout", "2147483648"], {}, 2**31),
        (["--timeout", "1e300"], {}, 3650 * DAY * 1000),
        ([], {"PI_COMS_TIMEOUT_MS": "4294967296"}, 2**32),
    ],
)
def test_L10_a_very_long_time_limit_is_no_short_one(
    scene: Scene, flags: list[str], environ: dict[str, str], limit: float
) -> None:
    daemon = scene.daemon(*QUICK, *flags, environ=environ)
    question = scene.peers.pi().ask("Some day?")
    delivered(scene, question)
    record = scene.home.records()[question.qid]
    assert record["limit_ms"] == limit
    assert record["deadline"] - record["received_at"] == pytest.approx(limit / 1000)
    daemon.restart()
    scene.answers.write(question.qid, "today")
    assert question.wait()["response"] == said("today")
    assert scene.home.events(question.qid, "timeout") == []


# L11


def test_L11_a_byte_order_mark_is_accepted(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?", ["yes", "no"])
    scene.answers.with_bom(question.qid, "no")
    assert question.wait()["response"] == {"kind": "selection", "selections": ["no"]}


def test_L11_raw_newlines_in_the_answer_are_accepted(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Why?")
    scene.answers.with_raw_newline(question.qid, "one\ntwo\n\nthree")
    assert question.wait()["response"] == said("one\ntwo\n\nthree")


@pytest.mark.parametrize("reason", ["invalid_json", "invalid_schema", "qid_mismatch"])
def test_L11_the_human_hears_once_that_an_answer_could_not_be_read(
    scene: Scene, reason: str
) -> None:
    bad = {
        "invalid_json": b"{not json",
        "invalid_schema": b"[]",
        "qid_mismatch": json.dumps(document(wire.ulid(), "yes")).encode(),
    }[reason]
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    for _ in range(2):
        scene.answers.put(question.qid, bad)
        gone(scene, question.qid)
    wait(lambda: reasons(scene) == [reason, reason], what="both are logged")
    note = scene.hermes.wait_sent(question.qid, "reject_note")
    assert note.text == (
        f"⚠ [HUB-Q:{question.qid}] The answer could not be read ({reason}); please reply again."
    )
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    wait_state(scene, question.qid, "closed")
    assert len(scene.hermes.calls(question.qid, "reject_note")) == 1


@pytest.mark.parametrize("reason", ["invalid_qid", "foreign_qid", "invalid_path", "unauthorized"])
def test_L11_of_other_rejections_the_human_hears_nothing(scene: Scene, reason: str) -> None:
    scene.daemon(*QUICK, "--allow-from", "telegram:ann", "--max-sends", "1")
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    qid = question.qid
    if reason == "invalid_qid":
        scene.answers.stray("short.answer.json", b"{}")
    elif reason == "foreign_qid":
        scene.answers.write(wire.ulid(), "yes")
    elif reason == "invalid_path":
        scene.answers.symlink(qid, elsewhere(scene, qid))
    else:
        scene.answers.put(
            qid, json.dumps(document(qid, "yes", answered_by="telegram:bob")).encode()
        )
    event(scene, "answer_rejected")
    assert reasons(scene) == [reason]
    scene.answers.write(qid, "yes", answered_by="telegram:ann")
    assert question.wait()["response"] == said("yes")
    delivered(scene, scene.peers.pi().ask("Whatever was to be sent before?"))
    assert [call.kind for call in scene.hermes.calls()] == ["question", "question"]


# L12


@pytest.mark.parametrize("size", [1, 3])
def test_L12_a_character_may_be_split_over_reads(scene: Scene, size: int) -> None:
    daemon = scene.daemon(*QUICK)
    text = "Grüße 👍🏽 日本 — ok?"
    asker = scene.peers.pi()
    question = asker.prepare(text)
    data = wire.encode(question.envelope)
    asker.note("prompt", qid=question.qid, prompt=question.envelope["prompt"])
    begin = data.index("Grüße".encode())
    line = asker.open_line(daemon.endpoint)
    line.send(data[:begin])
    for at in range(begin, begin + 40, size):
        line.send(data[at : at + size])
        daemon.ping()  # so that each piece is a read of its own
    line.send(data[at + size :])
    reply = line.read_json()
    asker.note_reply(question.qid, "prompt", reply)
    assert reply["type"] == "ack"
    call = scene.hermes.wait_sent(question.qid)
    assert call.text.startswith(f"❓ [HUB-Q:{question.qid}] {text}\n")
