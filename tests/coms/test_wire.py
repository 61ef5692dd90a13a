"""The socket to the letter: lines in, replies, and response envelopes (contract section 4)."""

import json
import re
import socket
import time
from pathlib import Path

import pytest

from hermes_bridges.coms.admission import OPEN_MAX, Admission
from hermes_bridges.coms.peer import Asked, Cancelled, Listener
from tests.coms.looks import delivered, event, gone, said, state, turn, wait_state
from tests.harness import wire
from tests.harness.daemon import Daemon, stays, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
CAP = 65_536  # UTF-16 units of a line, its newline included
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
REFUSAL = "bridge accepts prompts, cancels, and pings"
TOO_LARGE = {"type": "nack", "msg_id": "", "error": "line too large"}
INVALID = {"type": "nack", "msg_id": "", "error": "invalid json"}


def replies(daemon: Daemon, data: bytes, half_close: bool = False) -> list[wire.Fields]:
    """Everything that the daemon says to this before it ends its side."""
    with wire.Line(daemon.endpoint) as line:
        line.send(data)
        if half_close:
            line.half_close()
        return line.read_all(2)


def units(data: bytes) -> int:
    return len(data.decode().encode("utf-16-le")) // 2


# The line


@pytest.mark.parametrize("sign", ["a", "é", "日", "😀"])
def test_the_cap_counts_units_and_the_newline(scene: Scene, sign: str) -> None:
    daemon = scene.daemon()
    asker = scene.peers.pi()
    for total in (CAP, CAP + 1):
        envelope = wire.prompt(wire.ulid(), "", asker.path)
        room = total - units(wire.encode(envelope))
        width = units(sign.encode())
        envelope["prompt"] = "x" * (room % width) + sign * (room // width)
        data = wire.encode(envelope)
        assert units(data) == total
        expected = {"type": "ack", "msg_id": envelope["msg_id"]} if total == CAP else TOO_LARGE
        assert replies(daemon, data) == [expected]


def test_an_endless_line_is_refused_before_its_end(scene: Scene) -> None:
    daemon = scene.daemon()
    assert replies(daemon, b"x" * 70_000) == [TOO_LARGE]
    assert replies(daemon, "é".encode() * CAP + b"\n") == [TOO_LARGE]
    with wire.Line(daemon.endpoint) as line:
        line.send(b'{"type":"ping"}' + b" " * CAP)
        assert line.read_all(2) == [TOO_LARGE]


def test_after_a_line_that_is_too_large_nothing_counts(scene: Scene) -> None:
    daemon = scene.daemon()
    asker = scene.peers.pi()
    question = wire.prompt(wire.ulid(), "Ship?", asker.path)
    data = wire.encode(wire.ping("1")) + b"x" * CAP + b"\n" + wire.encode(question)
    assert [reply["type"] for reply in replies(daemon, data)] == ["pong", "nack"]
    delivered(scene, asker.ask("Another?"))
    assert scene.hermes.calls(question["msg_id"]) == []


def test_the_cap_is_on_each_line_not_on_what_is_buffered(scene: Scene) -> None:
    daemon = scene.daemon()
    pings = b"".join(wire.encode({**wire.ping(str(n)), "more": "x" * 9_000}) for n in range(30))
    assert len(pings) > 4 * CAP
    assert [reply["msg_id"] for reply in replies(daemon, pings)] == [str(n) for n in range(30)]


def test_what_is_no_json_is_refused(scene: Scene) -> None:
    daemon = scene.daemon()
    for line in (
        b"hello",
        b"\xef\xbb\xbf" + wire.encode(wire.ping())[:-1],
        b'{"type":"ping","msg_id":Infinity}',
        b'{"type":"ping"}{"type":"ping"}',
        b'{"type":"ping",}',
        b'{"type":"ping","msg_id":"a\tb"}',
        b"\xc2\x85",
    ):
        assert replies(daemon, line + b"\n") == [INVALID], line


def test_blank_lines_are_skipped_and_a_carriage_return_is_fine(scene: Scene) -> None:
    daemon = scene.daemon()
    data = b"\n \t \n\r\n\xef\xbb\xbf\n" + wire.encode(wire.ping("1"))[:-1] + b"\r\n\n"
    assert [reply["msg_id"] for reply in replies(daemon, data)] == ["1"]


def test_invalid_utf8_is_replaced(scene: Scene) -> None:
    daemon = scene.daemon()
    (pong,) = replies(daemon, b'{"type":"ping","msg_id":"a\xff\xc3b"}\n')
    assert pong["msg_id"] == "a\ufffd\ufffdb"


def test_a_last_line_without_its_end_is_dropped(scene: Scene) -> None:
    daemon = scene.daemon()
    asker = scene.peers.pi()
    lost = wire.prompt(wire.ulid(), "Ship?", asker.path)
    assert replies(daemon, wire.encode(lost)[:-1], half_close=True) == []
    data = wire.encode(wire.ping("1")) + wire.encode(lost)[:-1]
    assert [reply["type"] for reply in replies(daemon, data, half_close=True)] == ["pong"]
    delivered(scene, asker.ask("Another?"))
    assert scene.hermes.calls(lost["msg_id"]) == []


def test_a_reply_is_compact_json_on_one_line(scene: Scene) -> None:
    daemon = scene.daemon()
    with wire.Line(daemon.endpoint) as line:
        line.send(b'{"type":"x","msg_id":"a\\u2028\xc2\x85\\n\\ud83d\\ude00"}\n')
        raw = line.read_line()
        assert raw is not None and line.read_line() is None
    expected = f'{{"type":"nack","msg_id":"a\u2028\x85\\n😀","error":"{REFUSAL}"}}'
    assert raw.decode() == expected


def test_the_daemon_ends_its_side_after_the_reply_and_not_before(scene: Scene) -> None:
    daemon = scene.daemon()
    with wire.Line(daemon.endpoint) as line:
        line.send(b" ")
        stays(lambda: not _ended(line), 0.1, "nothing to reply to yet")
        line.send(wire.encode(wire.ping("1"))[1:])
        assert [reply["type"] for reply in line.read_all(2)] == ["nack"]


def _ended(line: wire.Line) -> bool:
    line.socket.settimeout(0)
    try:
        return line.socket.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


# Envelopes

PROMPT = wire.prompt("0" * 26, "Ship?", "/nowhere.sock")
BAD_PROMPTS: dict[str, wire.Fields] = {
    "no msg_id": {"msg_id": None},
    "msg_id a number": {"msg_id": 1},
    "no prompt": {"prompt": None},
    "prompt an object": {"prompt": {"question": "x"}},
    "no sender_endpoint": {"sender_endpoint": None},
    "sender_endpoint a list": {"sender_endpoint": ["x"]},
    "no hops": {"hops": None},
    "hops a text": {"hops": "0"},
    "hops true": {"hops": True},
    "type in capitals": {"type": "Prompt"},
}


def test_a_prompt_that_lacks_something_is_refused(scene: Scene) -> None:
    daemon = scene.daemon()
    for what, change in BAD_PROMPTS.items():
        envelope = {k: v for k, v in {**PROMPT, **change}.items() if v is not None}
        expected = {"type": "nack", "msg_id": envelope.get("msg_id", ""), "error": REFUSAL}
        assert replies(daemon, wire.encode(envelope)) == [expected], what
    assert scene.home.records() == {}


def test_of_a_prompt_only_four_fields_are_needed(scene: Scene) -> None:
    daemon = scene.daemon()
    asker = scene.peers.pi()
    extras: tuple[wire.Fields, ...] = (
        {},
        {"sender_session": 1, "sender_name": [], "sender_cwd": {}, "timestamp": None},
        {"hops": 1.5, "extra": {"deep": [1, None, {"x": "y"}]}, "response_schema": {}},
    )
    for more in extras:
        question = asker.prepare("Ship?", plain=True)
        needed = {k: question.envelope[k] for k in ("type", "msg_id", "prompt", "sender_endpoint")}
        question.envelope = {**needed, "hops": 0, **more}
        question.endpoint = daemon.endpoint
        assert question.send(), more
        scene.hermes.wait_sent(question.qid)


def test_a_prompt_is_acked_with_its_msg_id_and_nothing_more(scene: Scene) -> None:
    daemon = scene.daemon()
    envelope = wire.prompt(wire.ulid(), "Ship?", "/nowhere.sock")
    assert replies(daemon, wire.encode(envelope)) == [{"type": "ack", "msg_id": envelope["msg_id"]}]


def test_a_cancel_needs_five_texts(scene: Scene) -> None:
    daemon = scene.daemon()
    question = scene.peers.pi().ask("Ship?")
    for field in ("msg_id", "from", "to", "created_at", "ref_msg_id"):
        for value in (None, "", 7, ["x"]):
            envelope = {**wire.cancel(question.qid), field: value}
            if value is None:
                del envelope[field]
            nack = {"type": "nack", "msg_id": envelope.get("msg_id", ""), "error": REFUSAL}
            assert replies(daemon, wire.encode(envelope)) == [nack], (field, value)
    delivered(scene, question)


def test_a_cancel_of_what_is_not_open_is_acked_and_nothing_else(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    scene.answers.write(question.qid, "yes")
    question.wait()
    wait_state(scene, question.qid, "closed")
    events = scene.home.events()
    for ref in (question.qid, wire.ulid(), "nonsense"):
        envelope = wire.cancel(ref)
        assert replies(daemon, wire.encode(envelope)) == [
            {"type": "ack", "msg_id": envelope["msg_id"]}
        ]
    delivered(scene, scene.peers.pi().ask("Another?"))
    assert scene.home.events()[: len(events)] == events
    assert scene.home.events(event="cancelled") == []
    assert {call.kind for call in scene.hermes.calls()} == {"question"}


def test_a_ping_gets_the_card(scene: Scene) -> None:
    daemon = scene.daemon(name="ann-remote")
    card = {
        "name": "ann-remote",
        "purpose": "Remote human via Hermes/Telegram",
        "model": "hermes-bridge",
        "color": "#38BDF8",
        "context_used_pct": 0,
        "queue_depth": 0,
    }
    for ping, msg_id in (
        ({"type": "ping", "msg_id": "p"}, "p"),
        ({"type": "ping"}, ""),
        ({"type": "ping", "msg_id": None}, ""),
        ({"type": "ping", "msg_id": "p", "hops": "?", "prompt": 1}, "p"),
    ):
        (pong,) = replies(daemon, wire.encode(ping))
        assert pong == {"type": "pong", "msg_id": msg_id, "agent_card": card}
        assert list(pong["agent_card"]) == list(card)


def test_the_card_counts_the_questions_that_wait(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    depth = lambda: daemon.ask(wire.ping())["agent_card"]["queue_depth"]  # noqa: E731
    questions = [scene.peers.pi().ask("Ship?") for _ in range(3)]
    assert depth() == 3
    scene.answers.write(questions[0].qid, "yes")
    questions[0].wait()
    wait(lambda: depth() == 2, what="the answered one counts no more")
    assert questions[1].cancel()
    assert depth() == 1, "nor the cancelled one"


def test_anything_else_is_refused(scene: Scene) -> None:
    daemon = scene.daemon()
    for envelope in (
        {"type": "response", "msg_id": "r", "response": None, "error": None},
        {"type": "ack", "msg_id": "r"},
        {"type": "", "msg_id": "r"},
        {"msg_id": "r"},
        {"type": ["prompt"], "msg_id": "r"},
    ):
        nack = {"type": "nack", "msg_id": "r", "error": REFUSAL}
        assert replies(daemon, wire.encode(envelope)) == [nack]


NO_ULIDS = (
    "",
    "x",
    "0" * 25,
    "0" * 27,
    *("0" * 25 + letter for letter in "ILOUa"),
    "0" * 26 + "\n",
    "０" * 26,
    "\ud83d",
)


def test_a_msg_id_that_is_no_ulid_gets_an_error_response(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    for msg_id in NO_ULIDS:
        asker.questions[msg_id] = asker.prepare("Ship?")
        # With escapes, so that a lone surrogate arrives.
        envelope = json.dumps(wire.prompt(msg_id, "Ship?", asker.path)).encode() + b"\n"
        assert replies(daemon, envelope) == [{"type": "ack", "msg_id": msg_id}]
    wait(lambda: len(asker.received) == len(NO_ULIDS), what="the responses")
    question = scene.peers.pi().ask("Another?")
    delivered(scene, question)
    assert [response["msg_id"] for response in asker.received] == list(NO_ULIDS)
    for response in asker.received:
        assert response["response"] is None
        assert response["error"] == "prompt msg_id must be a 26-character Crockford ULID qid"
    assert len(scene.hermes.calls()) == 1
    assert {e["qid"] for e in scene.home.events()} == {question.qid}


class Desk:
    """Takes everything, or says that it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.items: list[Asked | Cancelled] = []

    def full(self) -> bool:
        return self.is_full

    def put(self, item: Asked | Cancelled) -> None:
        self.items.append(item)


@pytest.mark.parametrize("what", ["open questions", "desk"])
def test_the_intake_is_bounded(short_tmp: Path, what: str) -> None:
    """Turned by hand: five thousand questions on a disk would take their time."""
    path = str(short_tmp / "daemon.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listening.bind(path)
    listening.listen(8)
    desk, admission = Desk(), Admission()
    stage = Listener(listening, path, admission, {}, desk, lambda: None)
    known = [wire.ulid() for _ in range(OPEN_MAX - 1)]
    for qid in known:
        admission.admit(qid, "/asker.sock")
    assert OPEN_MAX == 5_000

    def reply(qid: str) -> wire.Fields:
        with wire.Line(path) as line:
            line.send(wire.encode(wire.prompt(qid, "Ship?", "/asker.sock")))
            turn(stage, 0.0)
            turn(stage, 0.0)
            return line.read_json(1)

    try:
        if what == "desk":
            desk.is_full = True
        else:
            assert reply(wire.ulid())["type"] == "ack", "the five thousandth"
        last = wire.ulid()
        assert reply(last) == {"type": "nack", "msg_id": last, "error": "queue full"}
        assert reply(known[0])["type"] == "ack", "a duplicate needs no room"
        if what == "desk":
            desk.is_full = False
        else:
            admission.closed(known[1])
        assert reply(wire.ulid())["type"] == "ack", "there is room again"
        assert len(desk.items) == (1 if what == "desk" else 2)
    finally:
        stage.close()


# Responses


def test_the_response_envelope(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    entry = daemon.entry()
    assert entry is not None
    answered = scene.peers.pi().ask("Ship?", ["Yes", "No"])
    scene.answers.write(answered.qid, "no")
    scene.hermes.rule(match="Fail", exit=4, err="no way")
    failed = scene.peers.pi().ask("Fail?")
    for question, value, error in (
        (answered, {"kind": "selection", "selections": ["No"]}, None),
        (failed, None, "hermes send failed (4): no way"),
    ):
        envelope = question.wait()
        assert re.fullmatch(STAMP, envelope.pop("timestamp"))
        assert envelope == {
            "type": "response",
            "msg_id": question.qid,
            "sender_session": entry["session_id"],
            "sender_endpoint": entry["endpoint"],
            "hops": 0,
            "response": value,
            "error": error,
        }


def test_each_response_has_a_connection_of_its_own(scene: Scene) -> None:
    """The pi harness reads only the first line of a connection."""
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = [asker.ask(f"Question {number}?") for number in range(5)]
    for question in questions:
        scene.answers.write(question.qid, "yes")
    for question in questions:
        question.wait()
    with open(asker.journal.path) as file:
        notes = [json.loads(line) for line in file]
    assert sum(note["what"] == "connected" for note in notes) == 5


def test_responses_to_one_asker_go_one_at_a_time(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi(moods=["late"], late=0.5)
    first, second = (asker.ask(f"Question {number}?") for number in range(2))
    scene.answers.write(first.qid, "one")
    first.wait()
    scene.answers.write(second.qid, "two")
    event(scene, "answered", second.qid)
    stays(lambda: not second.responses, 0.2, "the first is not acked yet")
    assert second.wait()["response"] == said("two")


def test_a_response_that_is_refused_does_not_hold_up_the_next(scene: Scene) -> None:
    """An asker may have forgotten one of its questions, and refuses its response from now on."""
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    forgotten, known = (asker.ask(f"Question {number}?") for number in range(2))
    delivered(scene, known)
    del asker.questions[forgotten.qid]
    for question in (forgotten, known):
        scene.answers.write(question.qid, "yes")
        event(scene, "answered", question.qid)
    begin = time.monotonic()
    assert known.wait()["response"] == said("yes")
    assert time.monotonic() - begin < 2
    assert state(scene, forgotten.qid) == "replying", "it is still offered"


def test_an_ack_that_comes_late_is_an_ack(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi(mood="late", late=0.8).ask("Ship?")
    scene.answers.write(question.qid, "yes")
    question.wait()
    assert state(scene, question.qid) == "replying"
    wait_state(scene, question.qid, "closed")
    assert len(question.responses) == 1


def test_after_a_cancel_comes_no_response(scene: Scene) -> None:
    """Neither for an answer that comes later, nor for one whose response waits for its asker."""
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    before, after, last = (asker.ask(f"Question {number}?") for number in range(3))
    for question in (before, after, last):
        delivered(scene, question)
    asker.down()
    scene.answers.write(before.qid, "yes")
    event(scene, "answered", before.qid)
    for question in (before, after):
        assert daemon.ask(wire.cancel(question.qid))["type"] == "ack"
    wait_state(scene, after.qid, "closed")
    scene.answers.write(after.qid, "too late")
    gone(scene, after.qid)
    scene.answers.write(last.qid, "yes")
    event(scene, "answered", last.qid)
    asker.up()
    assert last.wait()["response"] == said("yes"), "its turn comes after the first one's"
    assert [response["msg_id"] for response in asker.received] == [last.qid]


def test_after_a_cancel_and_a_kill_comes_no_response(scene: Scene) -> None:
    """It was offered before, and its asker has not acked it."""
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi(mood="mute")
    question = asker.ask("Ship?")
    delivered(scene, question)
    scene.answers.write(question.qid, "yes")
    wait(lambda: asker.received, what="the response")
    assert daemon.ask(wire.cancel(question.qid))["type"] == "ack"
    wait(lambda: state(scene, question.qid) == "closed", 3, "while that try is under way")
    daemon.kill()
    asker.mood = "ack"
    daemon.start()
    other = asker.ask("Another?")
    scene.answers.write(other.qid, "yes")
    other.wait()
    assert [response["msg_id"] for response in asker.received] == [question.qid, other.qid]


def test_an_asker_that_is_gone_after_its_prompt_is_asked_for_all_the_same(scene: Scene) -> None:
    """As ask-user-remote does when its process is killed: connect, send, leave."""
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.prepare("Ship?")
    asker.note("prompt", qid=question.qid, prompt=question.envelope["prompt"])
    endpoint = daemon.endpoint
    daemon.pause()
    with wire.Line(endpoint) as line:
        line.send(wire.encode(question.envelope))
    daemon.resume()
    scene.hermes.wait_sent(question.qid)
    asker.note_reply(question.qid, "prompt", {"type": "ack", "msg_id": question.qid})
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
