"""What was wrong or doubtful in the daemon before (contract section 7.3)."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from hermes_bridges.coms.presence import HEARTBEAT, Presence
from hermes_bridges.coms.registry import Registry
from tests.coms.looks import delivered, event, names, said, state, wait_state
from tests.harness import wire
from tests.harness.daemon import Daemon, Home, stays, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
CAP = 4096  # UTF-16 units of one message


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def refused(scene: Scene, *flags: str, **options: object) -> str:
    """The one line with which a start is refused, exit code 1 and no traceback."""
    daemon = scene.daemon(*flags, start=False, **options)
    daemon.start(ready=False)
    assert daemon.wait_exit(10) == 1
    lines = daemon.stderr().splitlines()
    assert len(lines) == 1 and "Traceback" not in lines[0], lines
    assert lines[0].startswith("coms-hermes-bridge: ")
    return lines[0]


# D1


def test_D1_a_hangup_is_a_clean_stop_and_the_name_is_free_at_once(scene: Scene) -> None:
    daemon = scene.daemon()
    socket_path = daemon.endpoint
    assert daemon.stop(signal.SIGHUP) == 0
    assert scene.home.entries() == {} and not os.path.exists(socket_path)
    daemon.start()
    assert daemon.ready_line() == ("user-remote", "default", "telegram")


def test_D1_after_a_kill_the_next_start_has_the_name_again(scene: Scene) -> None:
    """The entry's heartbeat is fresh; its process is gone and its socket refuses."""
    daemon = scene.daemon()
    old = daemon.entry()
    daemon.kill()
    assert scene.home.entries() == {"user-remote": old}
    daemon.start()
    assert daemon.ready_line() == ("user-remote", "default", "telegram")
    new = daemon.entry()
    assert old and new and set(scene.home.entries()) == {"user-remote"}
    assert new["session_id"] != old["session_id"]
    assert not os.path.exists(old["endpoint"]), "its socket file is removed"


# D2


@pytest.mark.parametrize("how", ["answer", "cancel"])
def test_D2_a_send_that_fails_after_the_end_sends_no_second_response(
    scene: Scene, how: str
) -> None:
    scene.hermes.rule(match="❓", delay=0.5, exit=1, err="no route")
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    scene.hermes.wait_call(question.qid)
    if how == "answer":
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == said("yes")
    else:
        assert question.cancel()
    wait_state(scene, question.qid, "closed")
    detail = event(scene, "delivery_error", question.qid)["detail"]
    assert detail == {"error": "hermes send failed (1): no route"}
    stays(lambda: state(scene, question.qid) == "closed", 0.2)
    assert len(question.peer.received) == (1 if how == "answer" else 0)


# D3


def test_D3_the_cancel_note_waits_for_the_question(scene: Scene) -> None:
    """Another courier is idle all the time, and still does not take it."""
    scene.hermes.rule(match="❓", delay=0.6)
    scene.daemon(*QUICK, "--max-sends", "4")
    question = scene.peers.one_shot().ask("Ship?")
    scene.hermes.wait_call(question.qid)
    assert question.cancel()
    note = scene.hermes.wait_sent(question.qid, "cancel_note")
    (call,) = scene.hermes.calls(question.qid, "question")
    assert call.end is not None and note.begin["t"] >= call.end["t"]
    assert note.text == (
        f"✖ [HUB-Q:{question.qid}] The question was cancelled — it was answered from the console."
    )


def test_D3_what_was_closed_before_its_send_is_never_sent(scene: Scene) -> None:
    """Neither the question nor a note about it; answers, cancels and time limits alike."""
    scene.hermes.rule(match="Slow", delay=1.3)
    scene.daemon(*QUICK, "--max-sends", "1")
    scene.hermes.wait_call(scene.peers.pi().ask("Slow?").qid)
    timed_out = scene.peers.pi().ask("Next?", reply_timeout_ms=1000)
    cancelled, answered = (scene.peers.pi().ask("Next?") for _ in range(2))
    assert cancelled.cancel()
    scene.answers.write(answered.qid, "yes")
    assert answered.wait()["response"] == said("yes")
    assert timed_out.wait()["error"] == "no remote answer within 1000ms"
    delivered(scene, scene.peers.pi().ask("Last?"))
    for question in (cancelled, answered, timed_out):
        wait_state(scene, question.qid, "closed")
        assert scene.hermes.calls(question.qid) == [], question


# D4


def test_D4_starts_at_one_time_take_different_names(scene: Scene) -> None:
    daemons = [scene.daemon(start=False) for _ in range(4)]
    threads = [threading.Thread(target=daemon.start) for daemon in daemons]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    entries = scene.home.entries()
    assert set(entries) == {"user-remote", "user-remote2", "user-remote3", "user-remote4"}
    assert {e["pid"] for e in entries.values()} == {daemon.pid for daemon in daemons}
    assert all(entry["name"] == name for name, entry in entries.items())
    for daemon in daemons:
        assert daemon.stop() == 0
    assert scene.home.entries() == {}


def test_D4_an_entry_that_another_session_owns_by_now_is_left_alone(scene: Scene) -> None:
    daemon = scene.daemon()
    socket_path = daemon.endpoint
    path = os.path.join(scene.home.agents(), "user-remote.json")
    entry = scene.home.entries()["user-remote"]
    entry["session_id"] = wire.ulid()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(entry, file)
    assert daemon.stop() == 0
    assert scene.home.entries() == {"user-remote": entry}
    assert not os.path.exists(socket_path)


# D5


def test_D5_a_heartbeat_keeps_the_time_of_the_start(short_tmp: Path) -> None:
    """Thirty seconds a beat, so it is turned by hand; a deleted entry comes back with it."""
    home = Home(str(short_tmp))
    registry = Registry(home.coms, "default")
    registry.prepare()
    endpoint = short_tmp / "s"
    endpoint.touch()
    presence = Presence(registry, "user-remote", wire.ulid(), str(endpoint))
    presence.publish()
    first = home.entries()["user-remote"]
    for number in range(1, 4):
        due = presence.beat(100.0, number)
        assert due == 100.0 + HEARTBEAT == 130.0
        wait(lambda: wire.iso() > first["heartbeat_at"], 1, "the clock goes on")
        presence.beat(130.0, number)
        entry = home.entries()["user-remote"]
        assert entry["heartbeat_at"] > first["heartbeat_at"]
        assert {**entry, "heartbeat_at": 0, "queue_depth": 0} == {
            **first,
            "heartbeat_at": 0,
            "queue_depth": 0,
        }
        assert entry["queue_depth"] == number
        os.unlink(os.path.join(home.agents(), "user-remote.json"))
    presence.beat(160.0, 0)
    assert home.entries()["user-remote"]["started_at"] == first["started_at"]


# D6


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--hermes-profil", "x"], "unknown flag: --hermes-profil"),
        (["--hermes-profil=x"], "unknown flag: --hermes-profil"),
        (["--to"], "--to needs a value"),
        (["--to", "--poll-ms", "50"], "--to needs a value"),
        (["--poll-ms"], "--poll-ms needs a value"),
        (["--hermes-profile", ""], "--hermes-profile must be a safe profile name"),
        (["--hermes-profile="], "--hermes-profile must be a safe profile name"),
        (["--to", ""], "--to must be"),
        (["--to="], "--to must be"),
        (["--to", " "], "--to must be"),
        (["--name=a", "--name", "b"], "--name may only be specified once"),
        (["--to", "telegram:1", "--to", "telegram:2"], "--to may only be specified once"),
        (["telegram:1"], "unexpected argument: telegram:1"),
    ],
)
def test_D6_a_flag_that_cannot_be_meant_is_refused(
    scene: Scene, flags: list[str], text: str
) -> None:
    assert refused(scene, *flags).removeprefix("coms-hermes-bridge: ").startswith(text)
    assert scene.home.entries() == {} and scene.hermes.calls() == []


def test_D6_a_value_may_follow_an_equals_sign(scene: Scene) -> None:
    flags = ("--to=telegram:1:2", "--hermes-profile=work", "--poll-ms=50", "--project=red")
    daemon = scene.daemon(*flags, start=False)
    daemon.project = "red"
    daemon.start()
    assert daemon.ready_line() == ("user-remote", "red", "telegram:1:2")
    question = scene.peers.pi(project="red").ask("Ship?")
    call = scene.hermes.wait_sent(question.qid)
    assert call.argv[:-1] == ["--profile", "work", "send", "--to", "telegram:1:2"]


# D7


def test_D7_a_bad_project_or_name_is_one_line(scene: Scene) -> None:
    assert refused(scene, "--project", "a/b").endswith('Invalid project name: "a/b"')
    assert refused(scene, "--name", "a b").endswith('Invalid coms name: "a b"')


@pytest.mark.parametrize("what", ["coms", "questions", "pending", "hermes-bridge", "sockets"])
def test_D7_a_file_in_place_of_a_directory_is_named(scene: Scene, what: str) -> None:
    home = scene.home
    scene.peers.close()
    os.rmdir(home.sockets)
    path = {
        "coms": home.coms,
        "questions": home.questions,
        "pending": home.pending,
        "hermes-bridge": home.bridge,
        "sockets": home.sockets,
    }[what]
    if os.path.isdir(path):
        os.rmdir(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w"):
        pass
    assert f"Not a directory: '{path}'" in refused(scene)
    assert not os.path.isdir(home.sockets) or os.listdir(home.sockets) == []


def test_D7_a_socket_path_that_is_too_long_is_named(short_tmp: Path) -> None:
    rest = len("/sockets/") + 26 + len(".sock")
    coms = str(short_tmp / "c").ljust(107 - rest, "c")
    with Scene(str(short_tmp), coms) as scene:
        daemon = scene.daemon()
        assert len(daemon.endpoint) == 107
        assert daemon.stop() == 0
        line = refused(scene, environ={"PI_COMS_DIR": coms + "c"})
        assert "108" in line and "107" in line and "PI_COMS_DIR" in line
        assert not os.path.exists(coms + "c")


def test_D7_a_long_name_that_is_taken_leaves_nothing_behind(scene: Scene) -> None:
    name = "n" * 64
    first = scene.daemon(name=name)
    sockets = sorted(os.listdir(scene.home.sockets))
    pending = sorted(os.listdir(scene.home.pending))
    line = refused(scene, name=name)
    assert name in line and "taken" in line
    assert set(scene.home.entries()) == {name}
    assert sorted(os.listdir(scene.home.sockets)) == sockets
    assert sorted(os.listdir(scene.home.pending)) == pending
    first.ping()


# D8


def ask_text(scene: Scene, *args: object, **more: object) -> tuple[Question, str]:
    question = scene.peers.pi().ask(*args, **more)  # type: ignore[arg-type]
    return question, scene.hermes.wait_sent(question.qid).text


def framed(question: Question, text: str) -> str:
    """What stands between the header and the reply instruction, both of them whole."""
    head = f"❓ [HUB-Q:{question.qid}] "
    tail = f"\n\n↩ Reply to this message, or type: HUB-Q:{question.qid}: <answer>"
    assert text.startswith(head) and text.endswith(tail)
    assert units(text) <= CAP
    return text.removeprefix(head).removesuffix(tail)


def test_D8_the_context_takes_the_cut(scene: Scene) -> None:
    scene.daemon(*QUICK)
    options = [{"title": "Yes", "description": "do it"}, "No"]
    question, text = ask_text(scene, "Ship?", options, "c" * 9_000)
    body = framed(question, text)
    assert units(text) == CAP
    assert body.startswith("Ship?\n\n📁 Project: default\n\nContext: ccc")
    assert body.endswith("c…\n\nOptions:\n1. Yes — do it\n2. No")


@pytest.mark.parametrize("shift", range(2))
def test_D8_a_cut_leaves_no_half_character(scene: Scene, shift: int) -> None:
    scene.daemon(*QUICK)
    for sign in ("😀", "e\u0301", "👩\u200d👩\u200d👧"):
        question, text = ask_text(scene, "Ship?", None, "x" * shift + sign * 4_000)
        context = framed(question, text).partition("Context: ")[2]
        assert context.endswith("…") and units(text) > CAP - 12
        assert context[shift:-1] == sign * (len(context[shift:-1]) // len(sign))
        assert "\ufffd" not in text


def test_D8_descriptions_are_shortened_before_the_question(scene: Scene) -> None:
    scene.daemon(*QUICK)
    options = [{"title": f"Option {n}", "description": "d" * 1_000} for n in range(1, 7)]
    question, text = ask_text(scene, "q" * 2_000, options, "context")
    body = framed(question, text)
    assert "q" * 2_000 + "\n" in body
    assert all(f"\n{n}. Option {n} — ddd" in body for n in range(1, 7))


def test_D8_an_overlong_question_keeps_options_and_instruction(scene: Scene) -> None:
    scene.daemon(*QUICK)
    options = [{"title": f"Option {n}", "description": "d" * 100} for n in range(1, 4)]
    question, text = ask_text(scene, "q" * 20_000, options)
    body = framed(question, text)
    assert body.startswith("qqq") and "q…\n\n📁 Project: default\n" in body
    assert all(f"\n{n}. Option {n}" in body for n in range(1, 4))
    assert body.count("q") > 3_000


def test_D8_an_endless_list_of_options_keeps_question_and_instruction(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question, text = ask_text(scene, "Which?", [f"Option {n}" for n in range(2_000)])
    body = framed(question, text)
    assert body.startswith("Which?\n\n📁 Project: default\n\nOptions:\n1. Option 0\n2. Option 1\n")


# D9


def test_D9_each_of_several_envelopes_is_answered(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    questions = [asker.prepare(f"Question {number}?") for number in range(3)]
    cancel = wire.cancel(questions[1].qid)
    lines = [
        wire.encode(wire.ping("first")),
        b"\n",
        b"nonsense\n",
        *(wire.encode(question.envelope) for question in questions),
        wire.encode(cancel),
        wire.encode(wire.ping("last")),
    ]
    for question in questions:
        asker.note("prompt", qid=question.qid, prompt=question.envelope["prompt"])
    with wire.Line(daemon.endpoint) as line:
        line.send(b"".join(lines))
        replies = line.read_all()
    for question in questions:
        asker.note_reply(question.qid, "prompt", {"type": "ack", "msg_id": question.qid})
    assert [(reply["type"], reply["msg_id"]) for reply in replies] == [
        ("pong", "first"),
        ("nack", ""),
        *(("ack", question.qid) for question in questions),
        ("ack", cancel["msg_id"]),
        ("pong", "last"),
    ]
    for question in (questions[0], questions[2]):
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == said("yes")


# D10


@pytest.mark.parametrize(
    ("name", "cwd", "context"),
    [
        ("ann", "/srv/x", "Context: From ann @ /srv/x\n"),
        ("ann", None, "Context: From ann\n"),
        (None, "/srv/x", "Context: From /srv/x\n"),
        (None, None, None),
    ],
)
def test_D10_a_sender_without_name_or_directory_is_not_undefined(
    scene: Scene, name: str | None, cwd: str | None, context: str | None
) -> None:
    scene.daemon(*QUICK)
    _, text = ask_text(scene, "Ship?", plain=True, sender_name=name, sender_cwd=cwd)
    assert "undefined" not in text and "None" not in text and "null" not in text
    assert (context in text) if context else ("Context:" not in text)


# D11


def test_D11_control_characters_are_dropped_and_the_rest_is_delivered(scene: Scene) -> None:
    scene.daemon(*QUICK)
    controls = "".join(map(chr, [*range(9), 11, 12, *range(14, 32), 127, *range(128, 160)]))
    options = [{"title": f"Y\0e{controls}s", "description": f"d\0o {controls}it"}]
    question, text = ask_text(scene, f"Sh\0ip{controls}?\n\tnow", options, f"c\0on{controls}text")
    assert framed(question, text) == (
        "Ship?\n\tnow\n\n📁 Project: default\n\nContext: context\n\nOptions:\n1. Yes — do it"
    )
    event(scene, "delivered", question.qid)


# D12


def test_D12_a_time_limit_in_the_prompt_is_kept(scene: Scene) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Soon?", reply_timeout_ms=1000)
    assert question.wait()["error"] == "no remote answer within 1000ms"
    assert names(scene, question.qid)[-1] == "timeout"


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (1000.5, 1000.5),
        (604_800_000, 604_800_000),
        (999, 1_800_000),
        (604_800_001, 1_800_000),
        (0, 1_800_000),
        (-5, 1_800_000),
        ("5000", 1_800_000),
        (True, 1_800_000),
    ],
)
def test_D12_only_a_sensible_time_limit_counts(scene: Scene, given: object, limit: float) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Soon?", reply_timeout_ms=given)
    delivered(scene, question)
    assert scene.home.records()[question.qid]["limit_ms"] == limit


def test_D12_the_flag_is_stronger_than_the_prompt(scene: Scene) -> None:
    scene.daemon(*QUICK, "--timeout", "5000", environ={"PI_COMS_TIMEOUT_MS": "7000"})
    question = scene.peers.pi().ask("Soon?", reply_timeout_ms=2000)
    delivered(scene, question)
    assert scene.home.records()[question.qid]["limit_ms"] == 5000


def test_D12_the_variable_is_not(scene: Scene) -> None:
    scene.daemon(*QUICK, environ={"PI_COMS_TIMEOUT_MS": "7000"})
    for given, limit in ((2000, 2000), (None, 7000)):
        question = scene.peers.pi().ask("Soon?", reply_timeout_ms=given)
        delivered(scene, question)
        assert scene.home.records()[question.qid]["limit_ms"] == limit


@pytest.mark.parametrize("hops", [0, 5, 99, -1, 0.5])
def test_D12_hops_are_not_limited(scene: Scene, hops: float) -> None:
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("How far?", hops=hops)
    scene.hermes.wait_sent(question.qid)


# D13


def test_D13_a_prompt_that_comes_again_is_acked_and_not_sent_again(scene: Scene) -> None:
    daemon: Daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.ask("Ship?")
    assert question.send(), "while it is being sent"
    delivered(scene, question)
    assert question.send(), "while it waits"
    other = wire.prompt(question.qid, "Something else?", asker.path, sender_session="another")
    assert daemon.ask(other)["type"] == "ack"
    delivered(scene, asker.ask("Another?"))
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    wait_state(scene, question.qid, "closed")
    assert len(scene.hermes.calls(question.qid)) == 1
    assert len(question.responses) == 1
    assert names(scene, question.qid).count("question_received") == 1
