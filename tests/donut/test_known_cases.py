"""What went wrong elsewhere, played to the whole bridge: a process, a hub and a Hermes.

More of these cases are played in tests/process/test_donut_*.py; those of one module alone are in
that module's tests.
"""

import json
import os
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import Answer, Call, Fault
from tests.harness.donut_scene import FALLBACK, KEY, NOTICES, TOKEN, DonutScene, Echo
from tests.harness.process import stays, wait

SECRET = "sEcreT"  # in each of the secrets


def contents(scene: DonutScene, chat: Any = None) -> list[str]:
    return [post["content"] for post in scene.hub.posted(chat)]


def test_KH05_the_session_id_that_comes_back_is_used_also_after_a_restart(short_tmp: Path) -> None:
    def think(call: Call) -> Answer:
        return Answer("ok", session="s2" if call.text == "one" else None)

    with DonutScene(str(short_tmp), think=think) as scene:
        scene.start()
        for text in ("one", "two"):
            scene.wait_answered([scene.say(1, text)])
        scene.wait_answered([scene.say(2, "elsewhere")])
        # An empty one does not erase it.
        scene.hermes.script(Answer("ok", headers={"X-Hermes-Session-Id": ""}))
        scene.wait_answered([scene.say(1, "three")])
        scene.bridge.restart()
        scene.wait_answered([scene.say(1, "four"), scene.say(2, "elsewhere")])
        sessions = {call.text: call.session for call in scene.hermes.calls}
        assert [sessions[text] for text in ("two", "three", "four")] == ["s2"] * 3
        assert sessions["one"] not in ("s2", sessions["elsewhere"])
        assert len({c.session for c in scene.hermes.calls if c.text == "elsewhere"}) == 1


def completion(**message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]}).encode()


FAILURES = [
    b'{"choices": []}',
    completion(content=None),
    completion(content=""),
    completion(content="   \n"),
    completion(content=[{"type": "image_url", "image_url": "x"}]),
    completion(content="(empty)"),
    b'{"error": {"message": "quota"}}',
    b"<html>Bad gateway</html>",
    b"",
    b"[1, 2]",
]


def test_KH06_no_failure_in_a_200_reaches_the_chat_or_passes_for_a_success(short_tmp: Path) -> None:
    answers = [
        *(Answer(body=body) for body in FAILURES),
        Answer("The provider said no.", finish_reason="error"),
        Answer("The provider said no.", failed=True),
    ]
    with DonutScene(
        str(short_tmp),
        BRIDGE_BREAKER_THRESHOLD=str(len(answers)),
        BRIDGE_FALLBACK_INTERVAL="0",
    ) as scene:
        scene.start()
        scene.hermes.script(*answers)
        for _ in answers:
            message = scene.say(1)
            scene.wait_answered([message])
            assert scene.answered(message) == [FALLBACK]
        # None of them was a success: the breaker has counted them all.
        assert scene.bridge.lines("the breaker is open")
        calls = len(scene.hermes.calls)
        scene.wait_answered([scene.say(1)])
        assert len(scene.hermes.calls) == calls == len(answers)
        assert set(contents(scene)) == {FALLBACK}


def test_KH06_content_in_parts_is_an_answer(short_tmp: Path) -> None:
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "you."}]
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        scene.hermes.script(Answer(body=completion(content=parts)))
        scene.wait_answered([scene.say(1)])
        assert contents(scene) == ["Hello, you."]


def test_KH10_the_next_message_runs_whatever_ended_the_one_before(short_tmp: Path) -> None:
    held = threading.Event()

    def think(call: Call) -> Answer:
        if call.text == "first":
            held.wait(20)
        return Answer(f"re: {call.text}")

    with DonutScene(
        str(short_tmp),
        think=think,
        BRIDGE_REQUEST_TIMEOUT="0.3s",
        BRIDGE_BREAKER_THRESHOLD="2",
        BRIDGE_BREAKER_COOLDOWN="0.2s",
        BRIDGE_FALLBACK_INTERVAL="0",
    ) as scene:
        scene.start()
        # A failure of Hermes, an open breaker, a hub that refuses the answer, and no answer.
        scene.hermes.fail(Fault(status=500), 2)
        failed = [scene.say(1) for _ in range(3)]
        scene.wait_answered(failed)
        assert [scene.answered(message) for message in failed] == [[FALLBACK]] * 3
        stays(lambda: True, 0.25)
        scene.hub.send_status(403, chat=1)
        scene.say(1, "refused by the hub")
        scene.wait_answered([scene.say(1, "behind it")])
        first, second = scene.say(1, "first"), scene.say(1, "second")
        scene.wait_answered([second])
        assert scene.answered(first) == [FALLBACK] and scene.answered(second) == ["re: second"]
        held.set()


def test_KH18_the_parts_of_an_answer_stay_together(short_tmp: Path) -> None:
    echo = Echo(long=1.0, size=(9_000, 9_000))

    def think(call: Call) -> Answer:
        return Answer(status=500) if call.text == "fail" else echo(call)

    with DonutScene(str(short_tmp), think=think, BRIDGE_FALLBACK_INTERVAL="0") as scene:
        scene.start()
        scene.hub.send_delay(0.15, chat=1)
        long = scene.say(1)
        wait(lambda: scene.answered(long), what="its first part is posted")
        # A failure, a reset and another long answer for the same chat, and one for another chat.
        failed = scene.say(1, "fail")
        reset, next_long = scene.say(1, "/new"), scene.say(1)
        other = scene.say(2)
        scene.wait_answered([other])
        assert not scene.answered(failed)
        scene.wait_answered([failed, reset, next_long])
        wait(lambda: len(scene.answered(next_long)) == 3, what="all of it is posted")
        order = [post["reply_to"] for post in scene.hub.posted(1)]
        assert order == [long] * 3 + [failed, reset] + [next_long] * 3
        assert [scene.answered(m)[0].startswith("re: ") for m in (long, next_long)] == [True] * 2


@pytest.mark.parametrize("chat", ["чат—1", "a\nb", " x", "x ", "Ünïcode:%/..", "x" * 300])
def test_KH20_any_chat_id_is_answered(short_tmp: Path, chat: str) -> None:
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        scene.wait_answered([scene.say(chat, "one"), scene.say(chat.strip() + "!", "two")])
        scene.bridge.restart()
        scene.wait_answered([scene.say(chat, "three")])
        sessions = {call.text: call.session for call in scene.hermes.calls}
        assert sessions["one"] == sessions["three"] != sessions["two"]


def certificate(directory: Path) -> tuple[str, str]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    chain, key = directory / "chain.pem", directory / "key.pem"
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    return str(chain), str(key)


def everything_written(scene: DonutScene) -> str:
    """The logs, the state directory, what was posted, and the command lines."""
    found = [bridge.all_stderr() for bridge in scene.bridges]
    for name in os.listdir(scene.state):
        with open(os.path.join(scene.state, name), errors="replace") as file:
            found.append(file.read())
    found.extend(contents(scene))
    for bridge in scene.bridges:
        if bridge.running:
            with open(f"/proc/{bridge.pid}/cmdline") as file:
                found.append(file.read())
    return "".join(found)


def test_KH22_no_secret_is_written_anywhere(short_tmp: Path) -> None:
    echoed = {"error": f"Bearer {TOKEN} and {KEY} are wrong"}
    with DonutScene(
        str(short_tmp),
        LOG_LEVEL="debug",
        BRIDGE_FALLBACK_INTERVAL="0",
        BRIDGE_REQUEST_TIMEOUT="0.5s",
        BRIDGE_BREAKER_THRESHOLD="99",
    ) as scene:
        stream = f"{scene.hub.stream_url}?place={SECRET}"
        scene.bridge.environ["DONUT_STREAM_URL"] = stream
        scene.hub.refuse(500, body=echoed)
        scene.start()
        body = json.dumps(echoed).encode()
        told = {"X-Token": TOKEN, "Location": f"/{TOKEN}"}
        for fault in (
            Fault(status=401, body=body),
            Fault(status=500, headers=told, body=body),
            Fault(status=302, headers=told),
            Fault(status=200, body=body),
            Fault(drop="midway"),
            Fault(hang=True),
        ):
            scene.hermes.fail(fault, 2 if fault.drop else 1)
            scene.wait_answered([scene.say(1)])
        scene.hermes.refuse()
        scene.wait_answered([scene.say(1)])
        scene.hermes.accept()
        for status in (403, 302, 401):
            scene.hub.send_status(status, told, echoed)
            scene.hub.send_status(status, told, echoed, where="typing")
            scene.say(1)
            told_status = partial(scene.bridge.lines, f"HTTP {status}")
            wait(told_status, what=f"{status} is told")
        scene.wait_answered([scene.say(1)])
        # A certificate that nobody vouches for, and a refused connection to the hub.
        other = scene.another()
        with closing(DonutHub(certificate=certificate(short_tmp))) as untrusted:
            for place in (f"127.0.0.1:{untrusted.port}", "127.0.0.1:1"):
                other.environ |= {
                    "DONUT_STREAM_URL": f"wss://{place}/{SECRET}?k={SECRET}",
                    "DONUT_SEND_URL": f"https://{place}/{SECRET}",
                    "BRIDGE_STATE_DIR": os.path.join(scene.root, "other"),
                }
                other.start(ready=False)
                wait(lambda: other.lines("is not open"), what="it tells that the dial failed")
                assert other.stop() == 0
        assert "certificate" in other.all_stderr()
        found = everything_written(scene)
        assert "HERMES_API_KEY" in found and "DONUT_BOT_TOKEN" in found
        assert SECRET not in found
        assert scene.bridge.stop() == 0
        assert SECRET not in everything_written(scene)


def test_KH27_lone_surrogates_do_no_harm(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        scene.hermes.script(Answer("an \udc80 answer \ud83d\ude00"))
        first = scene.say(1, "hi \ud83d there", sender="a\udc80na")
        scene.wait_answered([first])
        assert scene.answered(first) == ["an \ufffd answer 😀"]
        second = scene.say(1, "\udc80")
        scene.wait_answered([second])
        assert [call.text for call in scene.hermes.calls] == ["hi \ufffd there", "\ufffd"]
        assert scene.bridge.running and scene.dialled() == 1


def test_KH29_a_message_that_comes_again_is_run_once(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        message = scene.say(1, "once")
        scene.wait_answered([message])
        for _ in range(2):
            # Under a new event id, to the same process and to the next one.
            scene.say(1, "once", message_id=message)
            scene.wait_answered([scene.say(1)])
            scene.bridge.restart()
        scene.say(1, "once", message_id=message)
        scene.wait_answered([scene.say(1)])
        assert len(scene.answered(message)) == 1
        # Neither Hermes nor the hub had to know that it is the same.
        assert [note["text"] for note in scene.notes("hermes", "call")].count("once") == 1
        assert [n["reply_to"] for n in scene.notes("hub", "send")].count(message) == 1


def test_KH34_a_refused_token_ends_the_bridge_where_that_is_wanted(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.another("--exit-on-auth-failure")
        for refuse in (lambda: scene.hub.refuse(401), lambda: scene.hub.close_streams(4001)):
            if bridge.runs:
                bridge.start()
                refuse()
            else:
                refuse()
                bridge.start(ready=False)
            assert bridge.wait_exit(10.0) == 78
            (line,) = bridge.lines("DONUT_BOT_TOKEN")
            assert TOKEN not in line


def test_KH35_the_bot_never_answers_itself(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), BRIDGE_RESPOND_TO_BOTS="true") as scene:
        scene.hub.echo = True
        scene.start()
        asked = scene.say(1, "hi")
        scene.wait_answered([asked])
        # Its own message, by its sender's id and by its name, whatever the type field says; and
        # an edit and a deletion of it.
        own = scene.hub.posted(1)[0]["message_id"]
        scene.say(1, "re: hi", sender="else", sender_id=77, sender_type="user")
        scene.say(1, "re: hi", sender="Helper", sender_id=78, sender_type="user")
        me = {"id": 77, "type": "bot", "username": "helper"}
        said = {"id": own, "content": "re: hi, edited", "sender": me}
        scene.hub.tell("message.edited", 1, message=said)
        scene.hub.tell("message.deleted", 1, message={"id": own})
        # The same event by two subscriptions.
        who = {"id": 5, "type": "user", "username": "ana"}
        event = {"type": "message.new", "event_id": "x1", "chat_id": 1}
        for _ in range(2):
            scene.hub.frame({**event, "message": {"id": 8001, "content": "twice", "sender": who}})
        scene.wait_answered([8001])
        # Another bot that repeats what we say is answered, but not without end.
        for _ in range(8):
            scene.say(1, "re: hi", sender="parrot", sender_id=900, sender_type="bot")
        last = scene.say(1, "the last")
        scene.wait_answered([last])
        assert [call.text for call in scene.hermes.calls] == (
            ["hi", "twice"] + ["re: hi"] * 5 + ["the last"]
        )
        assert scene.bridge.stop() == 0
        status = scene.bridge.status()
        # Those two, and the echoes of the eight answers.
        assert status["ignored.self"] == 2 + 8 and status["ignored.bot"] == 3
        assert status["ignored.type"] == 2 and status["ignored.duplicate"] == 1


def test_KH36_control_markers_do_not_reach_the_chat(short_tmp: Path) -> None:
    texts = ["[SILENT]", " .NO_REPLY ", "*[SILENT]*", "<|eos|>"]
    shown = {
        "answer<|eos|>": "answer",
        "the sentinel is NO_REPLY, fyi": "the sentinel is NO_REPLY, fyi",
    }
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        scene.hermes.script(*map(Answer, [*texts, *shown]))
        silent = [scene.say(1) for _ in texts]
        scene.wait_answered([scene.say(1) for _ in shown])
        assert contents(scene) == list(shown.values())
        wait(lambda: not scene.hub.typing(1), what="typing has ended")
        assert not [note for note in scene.notes("hub", "send") if note["status"] != 200]
        # They count as handled: the next start repeats none.
        scene.bridge.restart()
        scene.wait_answered([scene.say(1)])
        assert len(scene.hermes.calls) == len(texts) + len(shown) + 1
        assert not any(scene.answered(message) for message in silent)


def test_KH42_each_post_has_its_key_for_good(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), think=Echo(long=1.0, size=(5_000, 5_000))) as scene:
        scene.start()
        first = scene.say(1)
        wait(lambda: len(scene.answered(first)) == 2, what="both parts are posted")
        # An idle connection that breaks after the hub has stored the post.
        scene.hub.send_drop(stored=True)
        second = scene.say(1)
        wait(lambda: len(scene.answered(second)) == 2, what="both parts are posted")
        # A hub that is away until after the next start.
        scene.hub.send_status(503, times=None)
        third = scene.say(1)
        wait(lambda: scene.notes("hub", "send")[-1]["status"] == 503, what="it is refused")
        assert scene.bridge.stop() == 0
        scene.hub.heal()
        scene.bridge.start()
        wait(lambda: len(scene.answered(third)) == 2, what="both parts are posted")
        sends = [(note["content"], note["key"]) for note in scene.notes("hub", "send")]
        # One key a part, whatever became of it and whichever process sent it.
        assert len(set(sends)) == len({key for _, key in sends}) == 6 < len(sends)


def test_KH44_a_typing_signal_that_fails_or_hangs_costs_no_answer(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), BRIDGE_BREAKER_THRESHOLD="1") as scene:
        scene.start()
        scene.wait_answered([scene.say(1)])
        scene.hub.send_status(500, where="typing")
        scene.wait_answered([scene.say(1)])
        scene.hub.send_hang(stored=False, times=None, where="typing")
        scene.wait_answered([scene.say(1), scene.say(2)], 1.0)
        scene.hub.heal()
        scene.hub.send_status(404, times=None, where="typing")
        for _ in range(10):
            scene.wait_answered([scene.say(3)], 1.0)
        assert FALLBACK not in contents(scene)
        assert not scene.bridge.lines("breaker") and not scene.bridge.lines("failed after")
        assert len(scene.bridge.lines("the typing signal fails")) == 1


def test_KH06_what_hermes_cannot_take_is_told_once(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        scene.start()
        scene.hermes.fail(Fault(status=400))
        message = scene.say(1)
        scene.wait_answered([message])
        assert scene.answered(message) == [NOTICES[0]]
