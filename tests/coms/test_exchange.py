"""Question, `hermes` call, answer and log to the letter (contract section 5)."""

import json
import os
import re
import time

import pytest

from tests.coms.looks import (
    delivered,
    elsewhere,
    event,
    gone,
    names,
    own_mtime,
    reasons,
    said,
    state,
    wait_state,
)
from tests.harness import journal, wire
from tests.harness.answers import document
from tests.harness.daemon import stays, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
GRACE = 1.0
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def selection(title: str) -> wire.Fields:
    return {"kind": "selection", "selections": [title]}


# The call


def test_the_argv(scene: Scene) -> None:
    scene.daemon(*QUICK, "--to", "telegram:-100:7", "--hermes-profile", "work.1")
    call = scene.hermes.wait_sent(scene.peers.pi().ask("Ship?").qid)
    assert call.argv[:-1] == ["--profile", "work.1", "send", "--to", "telegram:-100:7"]
    assert call.argv[-1].startswith("❓")


def test_every_note_goes_the_same_way(scene: Scene) -> None:
    scene.daemon(*QUICK, "--to", "telegram:1", "--hermes-profile", "work")
    timed_out = scene.peers.pi().ask("Ship?", reply_timeout_ms=1000)
    cancelled, answered = (scene.peers.pi().ask("Ship?") for _ in range(2))
    for question in (cancelled, timed_out, answered):
        delivered(scene, question)
    cancelled.cancel()
    scene.answers.put(answered.qid, b"[]")
    gone(scene, answered.qid)
    scene.answers.write(answered.qid, "yes")
    answered.wait()
    wait_state(scene, answered.qid, "closed")
    scene.answers.write(answered.qid, "again")
    for qid, kind in (
        (cancelled.qid, "cancel_note"),
        (timed_out.qid, "timeout_note"),
        (answered.qid, "reject_note"),
        (answered.qid, "late_note"),
    ):
        call = scene.hermes.wait_sent(qid, kind)
        assert call.argv[:-1] == ["--profile", "work", "send", "--to", "telegram:1"]


FAILURES = [
    ({"exit": 1, "err": "no route\n"}, "hermes send failed (1): no route"),
    ({"exit": 7, "err": "", "out": " said on stdout \n"}, "hermes send failed (7): said on stdout"),
    ({"exit": 1, "err": "the reason", "out": "not this"}, "hermes send failed (1): the reason"),
    ({"exit": 2, "err": " \n\t\n", "out": "not this"}, "hermes send failed (2)"),
    ({"exit": 3, "err": "", "out": ""}, "hermes send failed (3)"),
    ({"signal": 9, "err": "killed"}, "hermes send failed: killed"),
    ({"signal": 15, "err": "", "out": ""}, "hermes send failed"),
    ({"exit": 1, "err": "é\ufffd日\n2 lines"}, "hermes send failed (1): é\ufffd日\n2 lines"),
]


def test_each_way_to_fail_has_its_text(scene: Scene) -> None:
    scene.daemon(*QUICK)
    for number, (behaviour, error) in enumerate(FAILURES):
        scene.hermes.rule(match=f"Failure {number}", **behaviour)  # type: ignore[arg-type]
        question = scene.peers.pi().ask(f"Failure {number}?")
        response = question.wait()
        assert (response["response"], response["error"]) == (None, error)
        assert event(scene, "delivery_error", question.qid)["detail"] == {"error": error}
        wait_state(scene, question.qid, "closed")
        assert names(scene, question.qid) == ["question_received", "delivery_error"]
        assert len(scene.hermes.calls(question.qid)) == 1


def test_a_hermes_that_says_much_and_succeeds_is_a_success(scene: Scene) -> None:
    scene.hermes.rule(err="warning: this and that\n", repeat=10_000)
    scene.daemon(*QUICK)
    delivered(scene, scene.peers.pi().ask("Ship?"))


def test_a_hermes_without_send_is_remembered_and_named(scene: Scene) -> None:
    scene.hermes.rule(no_send=True)
    daemon = scene.daemon(*QUICK)
    first = scene.peers.pi().ask("Ship?")
    error = first.wait()["error"]
    assert error.startswith("hermes send failed (2): ") and "0.19" in error
    calls = len(scene.hermes.calls())
    second = scene.peers.pi().ask("And now?")
    assert second.wait()["error"] == error
    third = scene.peers.pi().ask("Now?")
    third.wait()
    assert len(scene.hermes.calls()) == calls, "no further call"
    (line,) = (line for line in daemon.stderr().splitlines() if "0.19" in line)
    assert "error: " in line
    status = wait(
        lambda: (scene.home.status_file() or {}).get("values", {}).get("hermes"), 7, "in the status"
    )
    assert "0.19" in status


# The text


def text_of(scene: Scene, question: Question) -> str:
    """What stands between header and reply instruction."""
    text = scene.hermes.wait_sent(question.qid).text
    head = f"❓ [HUB-Q:{question.qid}] "
    tail = f"\n\n↩ Reply to this message, or type: HUB-Q:{question.qid}: <answer>"
    assert text.startswith(head) and text.endswith(tail)
    return text.removeprefix(head).removesuffix(tail)


PROJECT = "\n\n📁 Project: default"
PROMPTS: list[tuple[object, str]] = [
    ({"question": "Ship?"}, "Ship?" + PROJECT),
    ({"question": ""}, PROJECT),
    ({"question": "Ship?", "options": []}, "Ship?" + PROJECT),
    ({"question": "Ship?", "context": "  why \n"}, f"Ship?{PROJECT}\n\nContext:   why \n"),
    ({"question": "Ship?", "context": " \n\u00a0\ufeff"}, "Ship?" + PROJECT),
    ({"question": "Ship?", "context": 5}, "Ship?" + PROJECT),
    (
        {"question": "Ship?", "options": ["A", {"title": "B"}]},
        f"Ship?{PROJECT}\n\nOptions:\n1. A\n2. B",
    ),
    (
        {"question": "Ship?", "context": "c", "options": [{"title": "A", "description": "a"}]},
        f"Ship?{PROJECT}\n\nContext: c\n\nOptions:\n1. A — a",
    ),
    (
        {
            "question": "Ship?",
            "options": [
                1,
                None,
                {"title": 2},
                {"name": "x"},
                ["y"],
                "A",
                {"title": "B", "description": 3},
            ],
        },
        f"Ship?{PROJECT}\n\nOptions:\n1. A\n2. B",
    ),
    ({"question": "Ship?", "options": {"title": "A"}}, "Ship?" + PROJECT),
]
FROM = "\n\nContext: From tester @ /tmp/project"
PLAIN: list[str] = [
    "Ship?",
    '"Ship?"',
    "[1]",
    '{"question": 1}',
    '{"text": "Ship?"}',
    '{"question": "Ship?"',
    '{"question": NaN}',
    "17",
    "null",
]


def test_a_json_prompt_is_taken_apart(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    for prompt, expected in PROMPTS:
        question = asker.ask(json.dumps(prompt), plain=True)
        assert text_of(scene, question) == expected, prompt


def test_anything_else_is_plain_text(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi(name="tester")
    for prompt in PLAIN:
        question = asker.ask(prompt, plain=True)
        assert text_of(scene, question) == prompt + PROJECT + FROM


def test_a_prompt_may_begin_like_a_flag(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi(name="tester")
    for prompt in ("--help", "-", "@/etc/passwd", "/etc/passwd", "$HOME"):
        question = asker.ask(prompt, plain=True)
        assert text_of(scene, question) == prompt + PROJECT + FROM


MARKERS = ["MEDIA:/etc/passwd", "media: /x", "MEDıA:/x", "MEDİA:/x", "MEDIA:MEDIA:/x", "`MEDIA:/x`"]


@pytest.mark.parametrize("where", ["question", "context", "title", "description", "sender"])
def test_markers_of_attachments_are_made_harmless(scene: Scene, where: str) -> None:
    """By Hermes's own rule, which ignores case and with it two Turkish letters."""
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    rule = re.compile("MEDIA:", re.IGNORECASE)
    for marker in [*MARKERS, "[[as_document]]", "[[audio_as_voice]]"]:
        text = f"x {marker} y"
        if where == "sender":
            question = asker.ask("Ship?", plain=True, sender_name=text, sender_cwd=marker)
        else:
            option = {"title": "t", "description": "d", where: text}
            fields = {"question": "q", "context": "c", where: text, "options": [option]}
            question = asker.ask(json.dumps(fields), plain=True)
        sent = scene.hermes.wait_sent(question.qid).text
        assert all(sent[m.end()] == "\u200d" for m in rule.finditer(sent)), marker
        assert "[[as_document]]" not in sent and "[[audio_as_voice]]" not in sent
        shown = sent.replace("\u200d", "")
        assert marker in shown, "it can still be read"


# The answer


ANSWERS: list[tuple[str, wire.Fields]] = [
    ("1", selection("Yes")),
    ("02", selection("no way")),
    (" 2\n", selection("no way")),
    ("yes", selection("Yes")),
    ("\ufeff\u00a0YES\u2028\u2029", selection("Yes")),
    ("NO WAY", selection("no way")),
    ("0", said("0")),
    ("-1", said("-1")),
    ("1.", said("1.")),
    ("٢", said("٢")),
    ("99", selection("99")),
    ("98", said("98")),
    ("9" * 5_000, said("9" * 5_000)),
    ("\x1cyes", said("\x1cyes")),
    ("\x85yes", said("\x85yes")),
    ("strasse", said("strasse")),
    ("STRAßE", selection("straße")),
    ("padded", said("padded")),
    ("  yes, but  later ", said("yes, but  later")),
    ("", said("")),
    ("dup", selection("DUP")),
]
TITLES = ["Yes", "no way", "straße", " padded ", "DUP", "dup", "99"]


def test_answers_are_mapped(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = [asker.ask("Which?", TITLES) for _ in ANSWERS]
    for question, (text, _) in zip(questions, ANSWERS, strict=True):
        scene.answers.write(question.qid, text)
    for question, (text, expected) in zip(questions, ANSWERS, strict=True):
        assert question.wait()["response"] == expected, text


def test_without_options_every_answer_is_free(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("How many?")
    scene.answers.write(question.qid, " 1 ")
    assert question.wait()["response"] == said("1")


STAMPS = {
    "2026-01-02T03:04:05.678Z": True,
    "2026-01-02T03:04:05.678901+02:00": True,
    "2026-01-02T03:04:05": True,
    "2026-01-02 03:04:05": True,
    "2026-01-02": True,
    "2026-01-02t03:04:05z": True,
    "2026-01-02T24:00:00Z": True,
    "Fri, 02 Jan 2026 03:04:05 GMT": True,
    "Fri, 02 Jan 2026 03:04:05 +0200": True,
    "2026-01-02 03:04:05 UTC": True,
    "now": False,
    "": False,
    "2026-13-02T03:04:05Z": False,
    "2026-01-02T25:00:00Z": False,
}


def test_the_time_of_an_answer_is_read_leniently(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = {stamp: asker.ask("When?") for stamp in STAMPS}
    for stamp, question in questions.items():
        data = json.dumps(document(question.qid, "x", at=stamp)).encode()
        scene.answers.put(question.qid, data, "x" if STAMPS[stamp] else None)
    for question in questions.values():
        gone(scene, question.qid)
    for stamp, question in questions.items():
        if STAMPS[stamp]:
            assert question.wait()["response"] == said("x"), stamp
        else:
            assert state(scene, question.qid) in ("sending", "delivered", "received"), stamp
    assert sorted(set(reasons(scene))) == ["invalid_schema"]
    assert len(reasons(scene)) == sum(not good for good in STAMPS.values())


SCHEMAS: list[wire.Fields] = [
    {"answer": 1},
    {"answer": ["yes"]},
    {"answered_by": ""},
    {"answered_by": 7},
    {"at": 1767322645},
    {"qid": 5},
]
MISSING = ("qid", "answer", "answered_by", "at")


def test_fields_that_are_not_what_they_must_be(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    whole = document(question.qid, "yes")
    bad = [{**whole, **change} for change in SCHEMAS]
    bad += [{name: value for name, value in whole.items() if name != left} for left in MISSING]
    for fields in bad:
        scene.answers.put(question.qid, json.dumps(fields).encode())
        gone(scene, question.qid)
    wait(lambda: len(reasons(scene)) == len(bad), what="all are logged")
    assert set(reasons(scene)) == {"invalid_schema"}
    scene.answers.put(question.qid, json.dumps({**whole, "more": {"x": [1]}}).encode(), "yes")
    assert question.wait()["response"] == said("yes"), "further fields are fine"


def test_an_answer_is_taken_while_the_question_is_being_sent(scene: Scene) -> None:
    scene.hermes.rule(delay=0.5)
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    call = scene.hermes.wait_call(question.qid)
    scene.answers.write(question.qid, "yes")
    question.wait()
    assert scene.hermes.running() == [call] or time.monotonic() - call.begin["t"] < 0.5
    event(scene, "delivered", question.qid)
    assert names(scene, question.qid) == ["question_received", "answered", "delivered"]


# Rejections, and the order of the checks


def rejected(scene: Scene, name: str) -> tuple[str, str]:
    """(qid, reason) of the one rejection that named this file."""
    found = wait(
        lambda: [
            e for e in scene.home.events(event="answer_rejected") if e["detail"]["file"] == name
        ],
        5,
        f"{name} is rejected",
    )
    assert len(found) == 1
    assert set(found[0]["detail"]) == {"reason", "file"}
    return found[0]["qid"], found[0]["detail"]["reason"]


def test_names_that_name_no_question(scene: Scene) -> None:
    scene.daemon(*QUICK)
    zero, known = "0" * 26, wire.ulid()
    old = scene.answers.stray(known)
    own_mtime(old, 4000)
    for name, expected in (
        ("short.answer.json", (zero, "invalid_qid")),
        (".answer.json", (zero, "invalid_qid")),
        (f"{known}x.answer.json", (zero, "invalid_qid")),
        (f"{known.lower()}.answer.json", (zero, "invalid_qid")),
        (f"{known[:25]}I.answer.json", (zero, "invalid_qid")),
    ):
        path = scene.answers.stray(name, b"{not json")
        assert rejected(scene, name) == expected
        assert not os.path.exists(path)
    _, reason = rejected(scene, known)
    assert reason == "invalid_path" and not os.path.exists(old)


def test_a_qid_that_nobody_asked_is_foreign_after_one_poll(scene: Scene) -> None:
    """Its content is not looked at: no grace for what is no JSON."""
    scene.daemon("--poll-ms", "500")
    qid = wire.ulid()
    path = scene.answers.stray(f"{qid}.answer.json", b"{not json")
    begin = time.monotonic()
    stays(lambda: os.path.exists(path), 0.4, "its record may be about to be written")
    assert rejected(scene, f"{qid}.answer.json") == (qid, "foreign_qid")
    assert time.monotonic() - begin < 0.9
    assert not os.path.exists(path)


def test_an_answer_to_a_closed_question_is_late_whatever_it_holds(scene: Scene) -> None:
    scene.daemon(*QUICK)
    timed_out = scene.peers.pi().ask("Ship?", reply_timeout_ms=1000)
    answered, cancelled = (scene.peers.pi().ask("Ship?") for _ in range(2))
    for question in (answered, cancelled, timed_out):
        delivered(scene, question)
    scene.answers.write(answered.qid, "yes")
    cancelled.cancel()
    answered.wait()
    timed_out.wait()
    for question, outcome in (
        (answered, "answered"),
        (cancelled, "cancelled"),
        (timed_out, "timeout"),
    ):
        qid = question.qid
        wait_state(scene, qid, "closed")
        if outcome == "cancelled":
            scene.answers.symlink(qid, elsewhere(scene, qid))
        else:
            scene.answers.put(qid, b"{not json")
        gone(scene, qid)
        assert event(scene, "late_answer", qid)["detail"] == {"state": outcome}
        note = scene.hermes.wait_sent(qid, "late_note")
        assert note.text == (
            f"ℹ [HUB-Q:{qid}] This question is already closed; the late answer was ignored."
        )
    assert reasons(scene) == []
    assert len(answered.peer.received) == 1 and cancelled.peer.received == []


def test_what_is_no_json_has_its_grace(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    scene.answers.put(question.qid, b"{not json")
    begin = time.monotonic()
    stays(lambda: scene.answers.waiting(question.qid), 0.85 * GRACE)
    name = f"{question.qid}.answer.json"
    assert rejected(scene, name) == (question.qid, "invalid_json")
    assert time.monotonic() - begin < GRACE + 1


def test_the_grace_is_two_polls_if_that_is_longer(scene: Scene) -> None:
    scene.daemon("--poll-ms", "800")
    question = scene.peers.pi().ask("Ship?")
    scene.answers.put(question.qid, b"{not json")
    stays(lambda: scene.answers.waiting(question.qid), 1.4)
    gone(scene, question.qid)
    assert reasons(scene) == ["invalid_json"]


def test_the_order_of_the_checks(scene: Scene) -> None:
    """Of a file with several faults the first of them counts."""
    scene.daemon(*QUICK, "--allow-from", "telegram:ann")
    question = scene.peers.pi().ask("Ship?")
    other = wire.ulid()
    cases = [
        (document(other, "yes", at="now", answered_by="telegram:bob"), "invalid_schema"),
        (document(other, "yes", answered_by="telegram:bob"), "qid_mismatch"),
        (document(question.qid, "yes", answered_by="telegram:bob"), "unauthorized"),
    ]
    for fields, _ in cases:
        scene.answers.put(question.qid, json.dumps(fields).encode())
        gone(scene, question.qid)
    wait(lambda: len(reasons(scene)) == 3, what="all are logged")
    assert reasons(scene) == [reason for _, reason in cases]
    scene.answers.write(question.qid, "yes", answered_by="telegram:ann")
    assert question.wait()["response"] == said("yes")


def test_a_directory_of_that_name_is_ignored(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    paths = [scene.answers.path(question.qid), scene.answers.path(wire.ulid())]
    paths += [os.path.join(scene.home.questions, name) for name in ("x.answer.json", "d")]
    for path in paths:
        os.mkdir(path)
        own_mtime(path, 4000)
    stays(lambda: all(map(os.path.isdir, paths)), 0.3, "six polls")
    assert reasons(scene) == []
    os.rmdir(paths[0])
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")


def test_the_record_of_a_rejection_follows_the_removal(scene: Scene) -> None:
    scene.daemon(*QUICK)
    for number in range(50):
        name = f"{number}.answer.json"
        path = scene.answers.stray(name)
        while name not in _log_text(scene):
            pass
        assert not os.path.exists(path)


def _log_text(scene: Scene) -> str:
    try:
        with open(scene.home.log) as file:
            return file.read()
    except FileNotFoundError:
        return ""


# The log


def test_the_records_of_the_log(scene: Scene) -> None:
    scene.hermes.rule(match="Fail", exit=1, err="no")
    scene.hermes.rule(match="✖", exit=1, err="no note")
    scene.hermes.rule(match="⌛", exit=5, err="")
    scene.hermes.rule(match="ℹ", signal=9, err="", out="")
    scene.hermes.rule(match="⚠", exit=1, err="no reject note")
    scene.daemon(*QUICK, "--to", "telegram:9")
    asker = scene.peers.pi(name="ann")
    answered, cancelled = (asker.ask("Ship?") for _ in range(2))
    timed_out = asker.ask("Ship?", reply_timeout_ms=1100)
    failed = asker.ask("Fail?")
    nameless = scene.peers.pi(name="x").ask("Ship?", sender_name=None)
    for question in (answered, cancelled, timed_out, nameless):
        delivered(scene, question)
    scene.answers.put(answered.qid, b"[]")
    gone(scene, answered.qid)
    scene.answers.write(answered.qid, "yes", answered_by="telegram:bob")
    cancelled.cancel()
    for question in (answered, timed_out, failed):
        question.wait()
    wait_state(scene, answered.qid, "closed")
    scene.answers.put(answered.qid, b"whatever")
    file = f"{answered.qid}.answer.json"
    expected: dict[str, list[tuple[str, wire.Fields]]] = {
        answered.qid: [
            ("question_received", {"from": "ann"}),
            ("delivered", {"to": "telegram:9"}),
            ("answer_rejected", {"reason": "invalid_schema", "file": file}),
            ("answered", {"answered_by": "telegram:bob"}),
            ("late_answer", {"state": "answered"}),
            (
                "delivery_error",
                {"phase": "reject_note", "error": "hermes send failed (1): no reject note"},
            ),
            ("delivery_error", {"phase": "late_note", "error": "hermes send failed"}),
        ],
        cancelled.qid: [
            ("question_received", {"from": "ann"}),
            ("delivered", {"to": "telegram:9"}),
            ("cancelled", {"reason": "cancel envelope"}),
            (
                "delivery_error",
                {"phase": "cancel_note", "error": "hermes send failed (1): no note"},
            ),
        ],
        timed_out.qid: [
            ("question_received", {"from": "ann"}),
            ("delivered", {"to": "telegram:9"}),
            ("timeout", {"timeout_ms": 1100}),
            ("delivery_error", {"phase": "timeout_note", "error": "hermes send failed (5)"}),
        ],
        failed.qid: [
            ("question_received", {"from": "ann"}),
            ("delivery_error", {"error": "hermes send failed (1): no"}),
        ],
    }
    assert sum(map(len, expected.values())) == 17
    for qid, records in expected.items():
        wait(lambda: len(scene.home.events(qid)) >= len(records), 5, f"events of {qid}")  # noqa: B023
        shown = [(e["event"], e.get("detail")) for e in scene.home.events(qid)]
        assert sorted(shown, key=str) == sorted(records, key=str)
        assert shown[0] == records[0]
    for record in journal.read(scene.home.log):
        assert list(record) == ["at", "qid", "event", "detail"]
        assert re.fullmatch(STAMP, record["at"])
    (received,) = scene.home.events(nameless.qid, "question_received")
    assert received.get("detail") in ({}, {"from": None}, None)


# The order of things


def test_the_response_goes_before_the_notes(scene: Scene) -> None:
    """The asker has the timeout before `hermes` is even called for the note."""
    scene.daemon(*QUICK, "--timeout", "700")
    question = scene.peers.pi().ask("Ship?")
    question.wait()
    note = scene.hermes.wait_sent(question.qid, "timeout_note")
    assert note.text == f"⌛ [HUB-Q:{question.qid}] The question timed out after 700ms."
    got = [n for n in journal.read(question.peer.journal.path) if n["what"] == "response"]
    assert got[0]["t"] < note.begin["t"]


def test_no_note_follows_an_answer(scene: Scene) -> None:
    scene.daemon(*QUICK, "--timeout", "800")
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    scene.answers.write(question.qid, "yes")
    question.wait()
    wait_state(scene, question.qid, "closed")
    stays(lambda: len(scene.hermes.calls()) == 1, 0.9, "its time passes")
    assert names(scene, question.qid) == ["question_received", "delivered", "answered"]
    assert len(question.peer.received) == 1
