"""The assembled daemon: its numbers, its exit codes and what it leaves behind."""

import json
import os
import re
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_api import Answer, Call, Fault
from tests.harness.donut_scene import FALLBACK, KEY, TOKEN, DonutScene
from tests.harness.process import stays, wait

COUNTERS = {
    "received",
    *("dropped", "lost", "answered", "fallback", "silent", "refused", "unknown", "reconnects"),
    *("ignored.no_text", "ignored.bot", "ignored.self", "ignored.duplicate", "ignored.type"),
    *("ignored.malformed", "ignored.oversized"),
    *("call_failures.timeout", "call_failures.connect", "call_failures.status"),
}


# --- numbers


def test_the_status_file_has_all_numbers_from_the_start(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        status = wait(bridge.status, what="it is written")
        assert status.keys() >= COUNTERS
        assert not {name: n for name, n in status.items() if name in COUNTERS and n}
        assert (status["queued"], status["in_flight"], status["outbox"]) == (0, 0, 0)
        assert status["breaker"]["state"] == "closed"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*Z", status["breaker"]["since"])
        assert status["pid"] == bridge.pid


def test_it_ends_with_the_last_numbers(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), BRIDGE_BREAKER_THRESHOLD="1") as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        scene.hub.send_status(503, times=None, chat=2)
        scene.say(2)
        wait(lambda: [n for n in scene.notes("hub", "send") if n["status"] == 503], what="503")
        scene.hermes.fail(Fault(status=500))
        scene.wait_answered([scene.say(1)])
        scene.hub.cut()
        wait(lambda: scene.dialled() == 2, what="it is there again")
        assert bridge.stop() == 0
        status = bridge.status()
        assert (status["received"], status["answered"], status["fallback"]) == (3, 2, 1)
        assert (status["outbox"], status["queued"], status["in_flight"]) == (1, 0, 0)
        assert (status["call_failures.status"], status["reconnects"]) == (1, 1)
        assert status["breaker"]["state"] == "open"


def test_what_is_lost_with_the_process_is_counted(short_tmp: Path) -> None:
    """A queued message that the hub holds no longer: the hub forgets after a hundred events."""

    def think(call: Call) -> Answer:
        return Answer("too late", None if call.text == "holds up" else 0.0)

    with DonutScene(str(short_tmp), think=think, BRIDGE_SHUTDOWN_GRACE="0.2s") as scene:
        bridge = scene.start()
        for _ in range(2):
            # With the first one there is an event from which the hub can replay.
            scene.wait_answered([scene.say(1)])
        gone = [scene.say(1, "holds up"), scene.say(1)]
        scene.wait_calls(3)
        for _ in range(110):
            scene.hub.tell("reaction.added", 1)
        last = scene.say(2)
        scene.wait_answered([last])
        assert bridge.stop() == 0
        assert bridge.count("lost") == len(gone)
        for message in gone:
            assert bridge.lines(f"message {message} of chat 1 is lost")


# --- another bot


def test_another_bots_token_ends_it_and_leaves_the_state_alone(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.hub.send_status(503, times=None)
        message = scene.say(1)
        wait(lambda: scene.notes("hub", "send"), what="its answer is refused")
        assert bridge.stop() == 0
        scene.hub.heal()
        scene.hub.bot_id = 78
        bridge.start(ready=False)
        assert bridge.wait_exit(10.0) == 78
        (line,) = bridge.lines("--reset-state")
        assert "77" in line and "78" in line
        # Nothing was said in the other bot's name, and nothing is gone.
        assert scene.hub.posted() == []
        scene.hub.bot_id = 77
        bridge.start()
        scene.wait_answered([message])
        assert bridge.stop() == 0
        scene.hub.bot_id = 78
        reset = scene.another("--reset-state")
        reset.start(ready=False)
        assert reset.wait_exit(10.0) == 0
        aside = reset.stderr().strip().rpartition(" ")[2]
        assert os.path.exists(aside) and aside.startswith(scene.state)
        bridge.start()
        scene.wait_answered([scene.say(1)])


# --- faults at the start


def test_all_faults_of_the_configuration_are_told_at_once(short_tmp: Path) -> None:
    faults = {
        "DONUT_BOT_TOKEN": f"{TOKEN} x",
        "DONUT_SEND_URL": "ftp://hub.test/",
        "BRIDGE_QUEUE_LIMIT": "0",
        "BRIDGE_REQUEST_TIMEOUT": "soon",
        "HERMES_API_KEY": None,
    }
    with DonutScene(str(short_tmp)) as scene:
        for name, value in faults.items():
            scene.bridge.environ.pop(name, None)
            if value is not None:
                scene.bridge.environ[name] = value
        scene.bridge.start(ready=False)
        assert scene.bridge.wait_exit(10.0) == 78
        lines = scene.bridge.stderr().strip().splitlines()
        assert len(lines) == len(faults)
        assert all(any(name in line for line in lines) for name in faults)
        assert TOKEN not in scene.bridge.stderr() and not scene.hub.dials


@pytest.mark.parametrize("content", [b"\0" * 4096, b"SQLite format 3\0" + b"?" * 2000, b"[]"])
def test_a_state_that_cannot_be_used_stops_the_start_and_is_not_touched(
    short_tmp: Path, content: bytes
) -> None:
    with DonutScene(str(short_tmp)) as scene:
        os.mkdir(scene.state, 0o700)
        database = os.path.join(scene.state, "donut.sqlite3")
        with open(database, "wb") as file:
            file.write(content)
        scene.bridge.start(ready=False)
        assert scene.bridge.wait_exit(10.0) == 78
        assert database in scene.bridge.stderr() and not scene.hub.dials
        with open(database, "rb") as file:
            assert file.read() == content


# --- a hub without event ids


def test_messages_of_a_hub_without_ids_survive_a_kill(short_tmp: Path) -> None:
    def think(call: Call) -> Answer:
        return Answer(f"re: {call.text}", 0.3)

    with DonutScene(str(short_tmp), think=think, hub={"event_ids": False}) as scene:
        bridge = scene.start()
        messages = [scene.say(1, f"no. {number}") for number in range(4)]
        scene.wait_calls(2)
        bridge.kill()
        bridge.start()
        scene.wait_answered(messages)
        assert [post["content"] for post in scene.hub.posted(1)] == [
            f"re: no. {number}" for number in range(4)
        ]
        assert bridge.restart()
        stays(lambda: len(scene.hub.posted(1)) == 4, 0.3)


# --- what is written


def test_content_is_in_no_log_and_leaves_the_state(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), think=lambda call: Answer("sesame is open")) as scene:
        bridge = scene.another("--log-format", "json")
        bridge.start()
        scene.wait_answered([scene.say(1, "open sesame", sender="sesame")])
        scene.hermes.fail(Fault(status=500, body=b'{"error": "sesame"}'))
        scene.wait_answered([scene.say(2, "sesame again")])
        scene.hub.frame({"type": "message.new", "message": {"content": "sesame"}})
        scene.hub.send_status(503, times=None, chat=3)
        scene.say(3, "sesame thrice")
        wait(lambda: scene.notes("hub", "send")[-1]["status"] == 503, what="it is refused")
        kept = os.path.join(scene.state, "donut.sqlite3-wal")
        with open(kept, "rb") as file:
            assert b"sesame" in file.read()
        scene.hub.heal()
        wait(lambda: scene.hub.posted(3), what="it is posted")
        assert bridge.stop() == 0
        lines = [json.loads(line) for line in bridge.stderr().splitlines()]
        assert len(lines) >= 3 and "sesame" not in bridge.stderr()
        for name in os.listdir(scene.state):
            with open(os.path.join(scene.state, name), "rb") as file:
                assert b"sesame" not in file.read(), name
        assert FALLBACK not in bridge.stderr() and KEY not in bridge.stderr()
