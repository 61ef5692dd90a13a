"""The stand-in Wishee bridge, by its doors. "Section" is one of the contract of the connector."""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import trustme
import websocket

from hermes_bridges.standins import wishee_connection, wishee_judge
from hermes_bridges.standins.wishee_bridge import NoAgent, WisheeBridge
from hermes_bridges.standins.wishee_claims import CLAIM, Script
from hermes_bridges.standins.wishee_connection import Lost
from hermes_bridges.standins.wishee_faults import GARBAGE
from tests.conftest import wait

AGENT = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
SECRET = "5ec2e7" + "0" * 58
HELLO = {
    "type": "hello",
    "agentId": AGENT,
    "secret": SECRET,
    "agentType": "hermes",
    "version": "0.22.2.post1",
}
KEY = "agent:main:main"
TS = 1_796_000_000_000
RUN = "run-" + "a1" * 16
USAGE = {
    **dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 1),
    "costUsd": 0.5,
    "model": "m",
    "ts": TS,
}


class Agent:
    """A connector made by hand: it says what it is told to. ``made`` are those of the test."""

    made: ClassVar[list["Agent"]] = []

    def __init__(self, bridge: WisheeBridge, hello: object = HELLO, **options: Any) -> None:
        self.bridge = bridge
        self.ws = websocket.create_connection(bridge.url, timeout=10, **options)
        self.made.append(self)
        if hello is not None:
            self.say(hello)

    def say(self, frame: object) -> None:
        self.raw(json.dumps(frame))

    def raw(self, data: str | bytes, opcode: int = websocket.ABNF.OPCODE_TEXT) -> None:
        self.ws.send(data, opcode)

    def hear(self) -> Any:
        return json.loads(self.ws.recv())

    def welcomed(self) -> "Agent":
        assert self.hear()["type"] == "welcome"
        return self

    def tell(self, name: str, payload: object) -> None:
        self.say({"type": "event", "event": name, "payload": payload})

    def result(self, run_id: str = RUN, text: str = "done", key: str = KEY) -> None:
        self.tell("task-result", {"runId": run_id, "sessionKey": key, "text": text})

    def answer(self, payload: object, **more: object) -> Any:
        """Answer the next request; the request."""
        asked = self.hear()
        self.say({"type": "res", "id": asked["id"], "ok": True, "payload": payload, **more})
        return asked

    def ping(self) -> None:
        """Send a ping, and take its pong."""
        self.ws.ping("p")
        opcode, _ = self.ws.recv_data(control_frame=True)
        assert opcode == websocket.ABNF.OPCODE_PONG

    def closed(self) -> int | None:
        """The code that it is closed with; None: the connection just ends."""
        try:
            opcode, data = self.ws.recv_data(control_frame=True)
        except (OSError, websocket.WebSocketException):
            return None
        assert opcode == websocket.ABNF.OPCODE_CLOSE
        return int.from_bytes(data[:2], "big")

    def hang_up(self) -> None:
        self.ws.shutdown()


@pytest.fixture(autouse=True)
def _no_agent_is_left() -> Iterator[None]:
    yield
    while Agent.made:
        Agent.made.pop().hang_up()


@pytest.fixture
def bridge(short_tmp: Path) -> Iterator[WisheeBridge]:
    served = WisheeBridge(journal=str(short_tmp / "journal"))
    yield served
    served.close()
    assert wait(lambda: not [t for t in threading.enumerate() if t.name.startswith("wishee-")], 5)


@pytest.fixture
def agent(bridge: WisheeBridge) -> Agent:
    return Agent(bridge).welcomed()


def found(bridge: WisheeBridge, section: str, text: str) -> None:
    """There is exactly this violation."""
    assert bridge.wait(lambda: bridge.violations, 5), "nothing was found"
    (one,) = bridge.violations
    assert (one.section, text in one.text) == (section, True), one


def clean(bridge: WisheeBridge, agent: Agent) -> None:
    """All that was said has been heard, and nothing of it was wrong."""
    agent.ping()
    assert bridge.violations == []


def journal(tmp: Path, *what: str) -> list[dict[str, Any]]:
    lines = (tmp / "journal").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["what"] in what]


def run(bridge: WisheeBridge, agent: Agent, run_id: str = RUN, key: str | None = None) -> str:
    """One chat.send, answered with that runId."""
    params = {"message": "hi"} | ({} if key is None else {"sessionKey": key})
    asked = bridge.request("chat.send", params)
    agent.answer({"runId": run_id})
    return str(asked.result(5).payload["runId"])


# Hello and welcome


def test_section_1_a_hello_is_answered_with_welcome_and_the_user(bridge: WisheeBridge):
    agent = Agent(bridge)
    assert agent.hear() == {"type": "welcome", "userId": "user-1"}
    clean(bridge, agent)
    (connection,) = bridge.online(AGENT)
    assert (connection.agent_id, connection.version) == (AGENT, "0.22.2.post1")
    agent.hang_up()
    assert bridge.wait(lambda: not bridge.online(), 5) is True


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"clawId": AGENT}, "hello has clawId"),
        ({"version": None}, "version is wrong"),
        ({"version": ""}, "version is wrong"),
        ({"agentType": "openclaw"}, "agentType is wrong"),
        ({"secret": "abc"}, "secret is wrong"),
        ({"agentId": "agent-1"}, "agentId is wrong"),
    ],
)
def test_section_1_a_hello_has_exactly_five_fields(bridge: WisheeBridge, change: Any, text: str):
    Agent(bridge, HELLO | change).welcomed()
    found(bridge, "1", text)
    assert "abc" not in bridge.violations[0].text


@pytest.mark.parametrize("name", list(HELLO))
def test_section_1_no_field_of_a_hello_may_be_missing(bridge: WisheeBridge, name: str):
    Agent(bridge, {n: v for n, v in HELLO.items() if n != name})
    found(bridge, "1", f"hello lacks {name}")


def test_section_1_a_first_frame_that_is_no_hello_is_closed(bridge: WisheeBridge):
    agent = Agent(bridge, None)
    agent.tell("agent-usage", USAGE)
    assert agent.closed() == 4001
    assert bridge.violations


def test_section_1_who_is_not_bound_is_closed_with_4001(bridge: WisheeBridge, short_tmp: Path):
    bridge.open = False
    agent = Agent(bridge)
    assert agent.closed() == 4001
    agent.hang_up()
    bridge.bind(AGENT, SECRET, "ana")
    again = Agent(bridge)
    assert again.hear()["userId"] == "ana"
    again.hang_up()
    assert bridge.wait(lambda: all(c.ended for c in bridge.connections), 5)
    assert [one["code"] for one in journal(short_tmp, "closed")] == [4001, 1006]
    assert bridge.violations == []


def test_section_1_a_wrong_secret_is_no_binding(bridge: WisheeBridge):
    bridge.bind(AGENT, "f" * 64)
    assert Agent(bridge).closed() == 4001


def test_section_1_unbinding_kicks_a_live_connection(bridge: WisheeBridge, agent: Agent):
    bridge.unbind(AGENT)
    assert agent.closed() == 4001
    assert Agent(bridge).closed() == 4001
    assert bridge.violations == []


def test_section_1_nothing_may_be_said_before_the_welcome(bridge: WisheeBridge):
    bridge.welcomes = False
    agent = Agent(bridge)
    agent.tell("agent-usage", USAGE)
    found(bridge, "1", "between hello and welcome")
    bridge.release()
    agent.welcomed().hang_up()


def test_section_1_a_hello_may_get_no_answer_and_then_get_it(bridge: WisheeBridge):
    bridge.welcomes = False
    agent = Agent(bridge)
    agent.ws.settimeout(0.2)
    with pytest.raises(websocket.WebSocketTimeoutException):
        agent.hear()
    assert not bridge.online()
    agent.ws.settimeout(10)
    bridge.release()
    clean(bridge, agent.welcomed())


def test_a_welcome_may_have_another_shape_or_be_a_close(bridge: WisheeBridge):
    bridge.welcome_shape = {"type": "welcome", "userId": 7}
    agent = Agent(bridge)
    assert agent.hear() == {"type": "welcome", "userId": 7}
    agent.hang_up()
    bridge.close_hellos(1013, 2)
    assert [Agent(bridge).closed() for _ in range(2)] == [1013, 1013]
    bridge.close_hellos(1013)
    bridge.heal()
    agent = Agent(bridge).welcomed() if bridge.welcome_shape is None else Agent(bridge)
    assert agent.hear()["type"] == "welcome"


# Frames


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("no JSON", "no JSON"),
        ("[]", "no object"),
        ('{"type":"res"', "no JSON"),
        ('{"type":"ping"}', "neither res nor event"),
        ('{"type":"req","id":1,"method":"x"}', "neither res nor event"),
        (json.dumps(HELLO | {"secret": "1" * 64}), "neither res nor event"),
    ],
)
def test_section_1_nothing_but_res_and_event(
    bridge: WisheeBridge, agent: Agent, raw: str, text: str
):
    agent.raw(raw)
    assert bridge.wait(lambda: bridge.violations, 5)
    assert text in " ".join(one.text for one in bridge.violations)
    assert {one.section for one in bridge.violations} == {"1"}
    assert bridge.online()


def usage(**more: object) -> str:
    return json.dumps({"type": "event", "event": "agent-usage", "payload": USAGE | more})


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (usage() + "\n", "white space"),
        (usage().replace('"type"', '"type":"event","type"', 1), "there twice"),
        (usage(costUsd=float("nan")), "NaN is no JSON"),
        (usage(model="\ud83d there"), "half a surrogate pair"),
    ],
)
def test_section_1_one_whole_JSON_object_a_message(
    bridge: WisheeBridge, agent: Agent, raw: str, text: str
):
    agent.raw(raw)
    assert bridge.wait(lambda: bridge.violations, 5)
    assert text in bridge.violations[0].text and bridge.violations[0].section == "1"


def test_section_1_a_whole_pair_of_surrogates_is_a_sign(bridge: WisheeBridge, agent: Agent):
    agent.raw(usage(model="😀"))
    clean(bridge, agent)


def test_section_1_messages_are_text(bridge: WisheeBridge, agent: Agent):
    agent.raw(usage().encode(), websocket.ABNF.OPCODE_BINARY)
    found(bridge, "1", "no text")


def test_section_1_a_frame_that_breaks_RFC_6455_ends_the_connection(
    bridge: WisheeBridge, agent: Agent
):
    assert agent.ws.sock is not None
    agent.ws.sock.sendall(b"\x81\x02{}")
    assert agent.closed() == 1002
    found(bridge, "1", "unmasked")


def test_section_1_nothing_comes_after_a_close(bridge: WisheeBridge, agent: Agent):
    frame = websocket.ABNF.create_frame
    close = frame(b"\x03\xe8", websocket.ABNF.OPCODE_CLOSE).format()
    assert agent.ws.sock is not None
    agent.ws.sock.sendall(close)
    assert agent.ws.sock.recv(100) == b"\x88\x02\x03\xe8"
    agent.ws.sock.sendall(frame(usage(), websocket.ABNF.OPCODE_TEXT).format())
    found(bridge, "1", "after the close")


def test_section_1_nothing_comes_right_behind_a_close(bridge: WisheeBridge, agent: Agent):
    frame = websocket.ABNF.create_frame
    close = frame(b"\x03\xe8", websocket.ABNF.OPCODE_CLOSE).format()
    assert agent.ws.sock is not None
    agent.ws.sock.sendall(close + frame(usage(), websocket.ABNF.OPCODE_TEXT).format())
    found(bridge, "1", "after the close")


def test_a_close_alone_is_right(bridge: WisheeBridge, agent: Agent, short_tmp: Path):
    agent.ws.close(1001)
    assert bridge.wait(lambda: not bridge.online(), 5) is True
    assert wait(lambda: len(threading.enumerate()) < 9, 3)
    assert bridge.violations == []
    (line,) = journal(short_tmp, "closed")
    assert (line["code"], line["by"]) == (1001, "agent")


def test_section_1_the_secret_is_in_no_other_frame(bridge: WisheeBridge, agent: Agent):
    agent.raw(usage(model=f"<{SECRET}>"))
    found(bridge, "1", "secret")
    assert SECRET not in repr(bridge.violations)


def test_the_secret_is_never_in_the_journal(bridge: WisheeBridge, agent: Agent, short_tmp: Path):
    clean(bridge, agent)
    assert SECRET not in (short_tmp / "journal").read_text()


def test_section_9_21_a_connector_holds_one_connection(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_connection, "TWO_AT_ONCE", 0.1)
    second = Agent(bridge).welcomed()
    assert wait(lambda: bridge.violations, 5)
    found(bridge, "9.21", "two connections at once")
    other = Agent(bridge, HELLO | {"agentId": OTHER}).welcomed()
    time.sleep(0.2)
    assert len(bridge.violations) == 1
    for one in (second, other):
        one.hang_up()


def test_section_9_21_a_connection_that_the_bridge_stalls_does_not_count(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_connection, "TWO_AT_ONCE", 0.1)
    bridge.stall()
    second = Agent(bridge).welcomed()
    time.sleep(0.2)
    clean(bridge, second)


# Pings


def test_section_1_the_bridge_pings_and_must_be_answered(short_tmp: Path):
    bridge = WisheeBridge(journal=str(short_tmp / "journal"), ping_after=0.1, pong_within=0.3)
    agent = Agent(bridge).welcomed()
    assert bridge.wait(lambda: bridge.connections[0].ended, 5)  # nobody reads its pings
    found(bridge, "1", "no answer to a ping")
    agent.hang_up()
    bridge.close()
    assert [one["by"] for one in journal(short_tmp, "ping")] == ["bridge"]


def test_pings_and_pongs_are_in_the_journal(bridge: WisheeBridge, agent: Agent, short_tmp: Path):
    agent.ping()
    assert [(one["what"], one["by"]) for one in journal(short_tmp, "ping", "pong")] == [
        ("ping", "agent"),
        ("pong", "bridge"),
    ]


# Requests


def test_section_1_a_request_and_its_res(bridge: WisheeBridge, agent: Agent, short_tmp: Path):
    asked = bridge.request("chat.history", {"sessionKey": "k", "limit": 3})
    request = agent.answer({"messages": [{"role": "user", "content": "hi", "ts": TS}]})
    assert request == {
        "type": "req",
        "id": "req-1",
        "method": "chat.history",
        "params": {"sessionKey": "k", "limit": 3},
    }
    res = asked.result(5)
    assert (res.ok, res.error, len(res.payload["messages"])) == (True, None, 1)
    assert 0 <= res.seconds < 5
    clean(bridge, agent)
    out, back = journal(short_tmp, "req", "res")
    assert (out["n"], out["params"]["limit"], out["method"]) == (1, 3, "chat.history")
    assert (back["n"], back["ok"], back["payload"]) == (1, True, res.payload)
    assert back["t"] - out["t"] == pytest.approx(back["seconds"])


def test_section_1_params_may_be_missing_and_the_id_is_any_JSON_value(
    bridge: WisheeBridge, agent: Agent
):
    ids: list[object] = [None, 7, 7.5, True, "", "七", ["a", {"b": None}], {"k": 2**70}]
    futures = [bridge.request("sessions.list", id=one) for one in ids]
    requests = [agent.hear() for _ in ids]
    assert [one["id"] for one in requests] == ids and "params" not in requests[0]
    for one in reversed(requests):
        agent.say({"type": "res", "id": one["id"], "ok": True, "payload": {"sessions": []}})
    assert all(future.result(5).ok for future in futures)
    clean(bridge, agent)


@pytest.mark.parametrize(
    ("asked", "echoed"), [(1, "1"), (1, True), (1, 1.0), ("a", "b"), (0, None)]
)
def test_section_1_the_id_comes_back_as_it_was(
    bridge: WisheeBridge, agent: Agent, asked: object, echoed: object
):
    bridge.request("sessions.list", id=asked)
    agent.answer({"sessions": []}, id=echoed)
    found(bridge, "1", "no open request")


def test_section_1_a_request_is_answered_once(bridge: WisheeBridge, agent: Agent):
    bridge.request("sessions.list")
    asked = agent.answer({"sessions": []})
    agent.say({"type": "res", "id": asked["id"], "ok": True, "payload": {"sessions": []}})
    found(bridge, "1", "no open request")


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"ok": True}, "lacks payload"),
        ({"ok": True, "payload": {"sessions": []}, "error": {"message": "x"}}, "has error"),
        ({"ok": False}, "lacks error"),
        ({"ok": False, "error": "text"}, "error is no object"),
        ({"ok": False, "error": {"message": 1}}, "message is wrong"),
        ({"ok": False, "error": {"message": "x", "code": 1}}, "error has code"),
        ({"ok": 1, "error": {"message": "x"}}, "ok is wrong"),
        ({"ok": True, "payload": {"sessions": []}, "method": "x"}, "res has method"),
    ],
)
def test_section_1_a_res_has_exactly_its_fields(
    bridge: WisheeBridge, agent: Agent, frame: dict[str, object], text: str
):
    bridge.request("sessions.list")
    agent.say({"type": "res", "id": agent.hear()["id"], **frame})
    found(bridge, "1", text)


def test_section_1_a_res_comes_within_60_seconds(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_connection, "ANSWER_SECONDS", 0.2)
    bridge.request("sessions.list")
    assert wait(lambda: bridge.violations, 5)
    agent.answer({"sessions": []})
    agent.ping()
    found(bridge, "1", "no res to sessions.list")


def test_section_1_a_res_is_not_late_while_the_bridge_does_not_read(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_connection, "ANSWER_SECONDS", 0.2)
    before = bridge.request("sessions.list")
    bridge.stop_reading()
    behind = bridge.request("sessions.list")
    for _ in range(2):
        agent.answer({"sessions": []})
    time.sleep(0.4)
    assert bridge.violations == [] and not before.done()
    bridge.stop_reading(False)
    assert before.result(5).ok and behind.result(5).ok
    assert bridge.violations == []


def test_a_request_is_lost_with_its_connection(bridge: WisheeBridge, agent: Agent):
    asked = bridge.request("sessions.list")
    bridge.cut()
    with pytest.raises(Lost, match=r"sessions\.list"):
        asked.result(5)
    with pytest.raises(NoAgent):
        bridge.request("sessions.list")


def test_section_1_a_request_is_answered_on_its_own_connection(bridge: WisheeBridge, agent: Agent):
    bridge.request("sessions.list")
    asked = agent.hear()
    agent.hang_up()
    again = Agent(bridge).welcomed()
    again.say({"type": "res", "id": asked["id"], "ok": True, "payload": {"sessions": []}})
    found(bridge, "1", "no open request")


def test_section_1_an_unknown_method_is_refused_in_these_words(bridge: WisheeBridge, agent: Agent):
    for message in ("unknown method: chat.abort", "no"):
        asked = bridge.request("chat.abort")
        refuse(agent, message)
        assert asked.result(5).error == message
    found(bridge, "1", "in other words")


def refuse(agent: Agent, message: str) -> None:
    error = {"message": message}
    agent.say({"type": "res", "id": agent.hear()["id"], "ok": False, "error": error})


def test_section_1_an_unknown_method_has_no_answer(bridge: WisheeBridge, agent: Agent):
    bridge.request("chat.abort")
    agent.answer({})
    found(bridge, "2", "chat.abort is unknown")


TURN = {"id": "s:1", "messages": [{"role": "user", "content": "hi", "id": "s:1", "ts": TS}]}
SESSION = {"sessionKey": "agent:main:wishee:dm:k", "working": False, "addressable": True}
GOOD = [
    ("chat.history", {"messages": []}),
    ("chat.history", {"messages": [{"role": "assistant", "content": ""}]}),
    ("chat.turns", {"turns": [TURN]}),
    (
        "chat.turns",
        {"turns": [{"id": RUN, "status": "inProgress", "startedAt": TS, "messages": []}]},
    ),
    (
        "chat.turns",
        {"turns": [TURN | {"status": "failed", "errorMessage": "x", "completedAt": TS}]},
    ),
    ("sessions.list", {"sessions": [SESSION]}),
    ("sessions.list", {"sessions": [SESSION | {"usedTokens": 1, "contextWindow": 2}]}),
    ("sessions.reset", {"ok": True}),
    ("sessions.reset", {"ok": False, "error": "busy"}),
    ("approval.respond", {"ok": True}),
]
BAD = [
    ("chat.send", {}, "lacks runId"),
    ("chat.send", {"runId": "run-1"}, "runId is wrong"),
    ("chat.send", {"runId": RUN, "ok": True}, "has ok"),
    ("chat.history", {"messages": {}}, "messages is wrong"),
    ("chat.history", {"messages": [{"role": "tool", "content": ""}]}, "role is wrong"),
    ("chat.history", {"messages": [{"role": "user", "content": None}]}, "content is wrong"),
    ("chat.history", {"messages": [{"role": "user", "content": "", "ts": TS / 1000}]}, "ts is"),
    ("chat.history", {"messages": [{"role": "user", "content": "", "id": "x"}]}, "has id"),
    ("chat.history", {"messages": [{"role": "user", "content": ""}] * 21}, "21 with a limit of 20"),
    (
        "chat.history",
        {"messages": [{"role": "user", "content": "", "ts": ts} for ts in (TS + 1, TS)]},
        "wrong order",
    ),
    ("chat.turns", {"turns": [TURN | {"status": "running"}]}, "status is wrong"),
    ("chat.turns", {"turns": [TURN | {"id": "1"}]}, "id is wrong"),
    ("chat.turns", {"turns": [TURN | {"startedAt": "now"}]}, "startedAt is wrong"),
    ("chat.turns", {"turns": [TURN | {"model": "m"}]}, "has model"),
    ("chat.turns", {"turns": [TURN, TURN | {"messages": []}]}, "there twice"),
    ("chat.turns", {"turns": [TURN | {"status": "completed", "errorMessage": "x"}]}, "errorMess"),
    ("chat.turns", {"turns": [TURN | {"status": "inProgress", "completedAt": TS}]}, "completedAt"),
    (
        "chat.turns",
        {"turns": [{"id": "s:1", "messages": [{"role": "user", "id": "s:1"}]}]},
        "lacks content",
    ),
    ("sessions.list", {"sessions": [SESSION | {"working": 1}]}, "working is wrong"),
    ("sessions.list", {"sessions": [SESSION | {"usedTokens": 1}]}, "only one of"),
    ("sessions.list", {"sessions": [SESSION | {"addressable": False}]}, "go with the key"),
    (
        "sessions.list",
        {"sessions": [SESSION | {"sessionKey": "agent:main:telegram:dm:1"}]},
        "go with",
    ),
    ("sessions.list", {"sessions": [SESSION, SESSION]}, "there twice"),
    (
        "sessions.list",
        {"sessions": [SESSION | {"sessionKey": f"agent:main:wishee:dm:{n}"} for n in range(61)]},
        "61 sessions",
    ),
    (
        "sessions.list",
        {
            "sessions": [
                SESSION | {"lastActiveAt": TS},
                SESSION | {"sessionKey": "agent:m:wishee:x", "lastActiveAt": TS + 1},
            ]
        },
        "wrong order",
    ),
    ("sessions.reset", {"ok": False}, "lacks error"),
    ("sessions.reset", {"ok": 1}, "ok is wrong"),
    ("approval.respond", {"ok": False}, "ok is wrong"),
]


@pytest.mark.parametrize(("method", "payload"), GOOD)
def test_section_2_what_may_be_answered(
    bridge: WisheeBridge, agent: Agent, method: str, payload: object
):
    bridge.request(method, {})
    agent.answer(payload)
    clean(bridge, agent)


@pytest.mark.parametrize(("method", "payload", "text"), BAD)
def test_section_2_what_may_not_be_answered(
    bridge: WisheeBridge, agent: Agent, method: str, payload: object, text: str
):
    bridge.request(method, {"message": "hi"} if method == "chat.send" else {})
    agent.answer(payload)
    found(bridge, "2", text)


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("chat.send", {}, "message"),
        ("chat.send", {"message": ""}, "message"),
        ("chat.send", {"message": 5}, "message"),
        ("chat.send", {"message": "a\0b"}, "message"),
        ("chat.send", {"message": "é" * (128 * 1024 + 1)}, "message"),
        ("chat.send", {"message": "hi", "sessionKey": ["k"]}, "sessionKey"),
        ("chat.turns", {"sessionKey": "k" * 257}, "sessionKey"),
        ("chat.history", {"limit": "many"}, "limit"),
        ("chat.history", {"limit": True}, "limit"),
        ("sessions.reset", {"key": 1}, "key"),
    ],
)
def test_section_10_a_wrong_parameter_is_refused_by_its_name(
    bridge: WisheeBridge, agent: Agent, method: str, params: dict[str, object], name: str
):
    payload = {"chat.send": {"runId": RUN}, "sessions.reset": {"ok": True}}.get(method)
    bridge.request(method, params)
    refuse(agent, f"{name} is not right")
    clean(bridge, agent)
    bridge.request(method, params)
    refuse(agent, "no")
    found(bridge, "10 Validation", name)
    bridge.request(method, params)
    agent.answer(payload or {"turns" if method == "chat.turns" else "messages": []})
    agent.ping()
    assert bridge.violations[1].section == "10 Validation" and name in bridge.violations[1].text


def test_section_10_a_long_answer_is_cut(bridge: WisheeBridge, agent: Agent):
    bridge.request("chat.history", {})
    agent.answer({"messages": [{"role": "user", "content": "x" * 600_000}]})
    clean(bridge, agent)
    bridge.request("chat.history", {})
    agent.answer({"messages": [{"role": "user", "content": "x" * 300_000}] * 2})
    found(bridge, "10", "bytes")


# Events


CONTEXT = {"sessionKey": KEY, "usedTokens": 1, "contextWindow": 2, "ts": TS}
ACTIVITY = {
    "runId": f"hermes:s:{TS}",
    "sessionKey": "s",
    "startedAt": TS,
    "endedAt": TS + 1,
    "source": "local",
}


@pytest.mark.parametrize(
    ("name", "payload", "text"),
    [
        ("task-result", {"runId": RUN, "sessionKey": KEY}, "lacks text"),
        ("task-result", {"runId": RUN, "sessionKey": KEY, "text": None}, "text is wrong"),
        ("task-result", {"runId": RUN, "sessionKey": KEY, "text": "", "ts": TS}, "has ts"),
        ("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:1"}, "lacks ts"),
        ("agent-progress", {"sessionKey": KEY, "itemId": RUN, "ts": TS}, "itemId is wrong"),
        ("agent-usage", USAGE | {"ts": TS // 1000}, "ts is wrong"),
        ("agent-usage", USAGE | {"ts": float(TS)}, "ts is wrong"),
        ("agent-usage", USAGE | {"input": True}, "input is wrong"),
        ("agent-usage", USAGE | {"costUsd": "1"}, "costUsd is wrong"),
        ("agent-context", CONTEXT | {"contextWindow": None}, "contextWindow is wrong"),
        ("agent-activity", {"runs": [ACTIVITY] * 201}, "201 runs"),
        ("agent-activity", {"runs": [ACTIVITY | {"source": "x"}]}, "source is wrong"),
        ("agent-activity", {"runs": [ACTIVITY | {"runId": "x"}]}, "runId is wrong"),
        ("agent-activity", {"runs": [ACTIVITY | {"endedAt": TS - 1}]}, "ends before"),
        ("approval-resolved", {"approvalId": "x", "outcome": "no", "ts": TS}, "outcome is wrong"),
        ("agent-mood", {}, "does not exist"),
        ("agent-usage", [], "is no object"),
    ],
)
def test_section_3_events_have_exactly_their_fields(
    bridge: WisheeBridge, agent: Agent, name: str, payload: object, text: str
):
    agent.tell(name, payload)
    found(bridge, "3", text)


def test_section_3_an_event_frame_has_three_fields(bridge: WisheeBridge, agent: Agent):
    agent.say({"type": "event", "event": "agent-usage", "payload": USAGE, "id": 1})
    found(bridge, "3", "event has id")


def test_section_3_a_whole_turn(bridge: WisheeBridge, agent: Agent, short_tmp: Path):
    assert run(bridge, agent) == RUN
    agent.tell("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:0", "ts": TS})
    agent.result()
    agent.tell("agent-usage", USAGE)
    agent.tell("agent-context", CONTEXT)
    agent.tell("agent-activity", {"runs": [ACTIVITY]})
    clean(bridge, agent)
    assert bridge.result(RUN, 1) == "done"
    assert [event.name for event in bridge.events][-2:] == ["agent-context", "agent-activity"]
    lines = journal(short_tmp, "event")
    assert [one["event"] for one in lines][:2] == ["agent-progress", "task-result"]
    assert (lines[0]["itemId"], lines[1]["runId"]) == (f"{RUN}:0", RUN)
    assert lines[1]["payload"]["text"] == "done"


def test_section_3_a_task_result_comes_after_the_res(bridge: WisheeBridge, agent: Agent):
    bridge.request("chat.send", {"message": "hi"})
    agent.hear()
    agent.result()
    found(bridge, "3", "no res has told of")


def test_section_3_progress_comes_after_the_res(bridge: WisheeBridge, agent: Agent):
    agent.tell("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:0", "ts": TS})
    found(bridge, "3", "no res has told of")


def test_section_3_no_progress_after_the_task_result(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.result()
    agent.tell("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:0", "ts": TS})
    found(bridge, "3", "after its task-result")


def test_section_3_no_context_before_the_task_result(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.tell("agent-context", CONTEXT)
    found(bridge, "3", "before any task-result")


@pytest.mark.parametrize("key", ["k", "agent:main:wishee:dm:agent:main:main", "七 \u2028"])
def test_section_3_the_session_key_is_the_one_that_was_sent(
    bridge: WisheeBridge, agent: Agent, key: str
):
    run(bridge, agent, key=key)
    agent.result(key=key)
    clean(bridge, agent)
    run(bridge, agent, "run-" + "b" * 32, key=key)
    agent.result("run-" + "b" * 32)
    found(bridge, "3", "another sessionKey")


def test_section_2_a_runId_is_given_once(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    run(bridge, agent)
    found(bridge, "2", "given twice")


def test_section_2_one_task_result_a_run(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.result()
    agent.result()
    found(bridge, "2", "twice on one connection")


def test_section_2_a_result_may_come_again_when_it_was_not_confirmed(
    bridge: WisheeBridge, agent: Agent
):
    run(bridge, agent)
    agent.result()
    assert bridge.result(RUN, 5) == "done"
    bridge.cut()
    again = Agent(bridge).welcomed()
    again.result()
    clean(bridge, again)


def test_section_2_a_result_does_not_change(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.result()
    assert bridge.result(RUN, 5) == "done"
    bridge.cut()
    again = Agent(bridge).welcomed()
    again.result(text="")
    found(bridge, "2", "was changed")


def test_section_2_a_confirmed_result_does_not_come_again(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_judge, "CONFIRM_GRACE", 0.05)
    run(bridge, agent)
    agent.result()
    agent.ping()
    time.sleep(0.2)
    bridge.cut()
    again = Agent(bridge).welcomed()
    again.result()
    found(bridge, "2", "had been confirmed")


def test_section_10_a_pong_that_is_lost_with_its_connection_confirms_nothing(
    bridge: WisheeBridge, agent: Agent
):
    run(bridge, agent)
    agent.result()
    agent.ping()
    bridge.cut(reset=True)
    again = Agent(bridge).welcomed()
    again.result()
    clean(bridge, again)


def test_section_10_a_ping_before_the_result_confirms_nothing(
    bridge: WisheeBridge, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wishee_judge, "CONFIRM_GRACE", 0.0)
    run(bridge, agent)
    payload = {"runId": RUN, "sessionKey": KEY, "text": "done"}
    event = json.dumps({"type": "event", "event": "task-result", "payload": payload})
    frame = websocket.ABNF.create_frame
    ping = frame(b"p", websocket.ABNF.OPCODE_PING).format()
    assert agent.ws.sock is not None
    agent.ws.sock.sendall(ping + frame(event, websocket.ABNF.OPCODE_TEXT).format())
    assert agent.ws.recv_data(control_frame=True)[0] == websocket.ABNF.OPCODE_PONG
    assert bridge.result(RUN, 5)
    bridge.cut()
    again = Agent(bridge).welcomed()
    again.result()
    clean(bridge, again)


def test_section_10_what_was_not_sent_comes_before_usage(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.result()
    assert bridge.result(RUN, 5)
    bridge.cut()
    again = Agent(bridge).welcomed()
    again.tell("agent-usage", USAGE)
    again.result()
    found(bridge, "10 Outbox", "after usage or activity")


def test_section_10_the_result_of_a_request_whose_res_was_lost(bridge: WisheeBridge, agent: Agent):
    bridge.request("chat.send", {"message": "hi", "sessionKey": "k"})
    agent.hear()
    agent.hang_up()
    again = Agent(bridge).welcomed()
    again.result(key="k")
    clean(bridge, again)
    again.result("run-" + "c" * 32, key="k")
    found(bridge, "3", "no res has told of")


def test_section_10_nothing_of_another_user_is_sent(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    bridge.cut()
    bridge.bind(AGENT, SECRET, "bob")
    again = Agent(bridge)
    assert again.hear()["userId"] == "bob"
    again.result()
    found(bridge, "10 Outbox", "of another user")


def test_a_run_of_a_former_bridge_can_be_made_known(bridge: WisheeBridge, agent: Agent):
    bridge.expect_run(RUN, KEY, AGENT)
    agent.result()
    clean(bridge, agent)


def test_section_4_progress_is_throttled(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.tell("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:0", "ts": TS})
    clean(bridge, agent)
    agent.tell("agent-progress", {"sessionKey": KEY, "itemId": f"{RUN}:1", "ts": TS})
    found(bridge, "4 Progress", "too soon")


# Cards

QUESTION = {
    "id": "c1",
    "header": "",
    "question": "Which\n one?",
    "isOther": True,
    "isSecret": False,
    "multiSelect": False,
    "options": [{"label": "red", "description": ""}],
}
COMMAND = {
    "version": 2,
    "type": "exec_approval",
    "source": "hermes",
    "command": "rm -rf /tmp/x",
    "description": "d",
    "allowSession": True,
    "allowPermanent": False,
    "smartDenied": False,
    "availableDecisions": ["accept", "acceptForSession", "decline"],
}


def clarify(
    question: Mapping[str, object] = MappingProxyType({}), **more: object
) -> dict[str, object]:
    spec = {"version": 2, "source": "hermes", "questions": [{**QUESTION, **question}]}
    text = json.dumps({**spec, "isBlocking": True})
    card = {"approvalId": f"{AGENT}:clarify:c1", "agentId": AGENT, "taskId": RUN, "session": KEY}
    card |= {"kind": "user_input", "title": "Which one?", "rawParams": text, "inputSpec": text}
    return {**card, "ts": TS, **more}


def command(
    change: Mapping[str, object] = MappingProxyType({}), **more: object
) -> dict[str, object]:
    text = json.dumps({**COMMAND, **change})
    card = {"approvalId": f"{AGENT}:exec:{'a' * 12}", "agentId": AGENT, "taskId": ""}
    card |= {"session": "agent:main:wishee:dm:k", "kind": "command", "title": "rm -rf /tmp/x"}
    return {**card, "rawParams": text, "inputSpec": text, "ts": TS, **more}


def resolved(outcome: str, card: dict[str, object]) -> dict[str, object]:
    return {"approvalId": card["approvalId"], "outcome": outcome, "ts": TS}


def test_section_5_cards_and_their_ends(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.tell("approval-request", clarify())
    agent.tell("approval-request", command())
    clean(bridge, agent)
    bridge.request("approval.respond", {"approvalId": f"{AGENT}:clarify:c1", "decision": "deny"})
    asked = agent.hear()
    agent.tell("approval-resolved", resolved("denied", clarify()))
    agent.say({"type": "res", "id": asked["id"], "ok": True, "payload": {"ok": True}})
    agent.result()
    agent.tell("approval-resolved", resolved("canceled", command()))
    clean(bridge, agent)
    assert all(card.resolved for card in bridge.cards.values()) and len(bridge.cards) == 2


@pytest.mark.parametrize(
    ("card", "section", "text"),
    [
        (clarify(title="Which one?…"), "5", "title is not the question"),
        (clarify({"question": "x" * 401}, title="x" * 400), "5", "title is not the question"),
        (clarify({"options": []}), "5", "options is wrong"),
        (clarify({"options": [{"label": "red"}]}), "5", "options is wrong"),
        (clarify({"multiSelect": None}), "5", "multiSelect is wrong"),
        (clarify({"id": "c2"}), "5", "another id"),
        (clarify(rawParams="{}"), "5", "rawParams is not inputSpec"),
        (clarify(agentId=OTHER), "5", "agentId of another"),
        (clarify(approvalId=f"{AGENT}:c1"), "5", "approvalId does not begin"),
        (clarify(kind="question"), "3", "kind is wrong"),
        (clarify(session="k"), "3", "another sessionKey"),
        (command(approvalId=f"{AGENT}:exec:zz"), "5", "twelve hex digits"),
        (command({"allowSession": False}), "5", "not those of allowSession"),
        (command({"availableDecisions": ["accept", "always"]}), "5", "not those of"),
        (command({"version": True}), "5", "version is wrong"),
        (command({"extra": 1}), "5", "has extra"),
        (command(title="rm"), "5", "title is not the command"),
    ],
)
def test_section_5_what_is_no_card(
    bridge: WisheeBridge, agent: Agent, card: dict[str, object], section: str, text: str
):
    run(bridge, agent)
    agent.tell("approval-request", card)
    assert bridge.wait(lambda: bridge.violations, 5)
    assert any(one.section == section and text in one.text for one in bridge.violations)


@pytest.mark.parametrize(
    ("question", "title"),
    [("x" * 400, "x" * 400), ("x" * 401, "x" * 399 + "…"), (" \n", "需要你确认"), ("a  b", "a b")],
)
def test_section_5_the_title_is_folded_and_cut(
    bridge: WisheeBridge, agent: Agent, question: str, title: str
):
    run(bridge, agent)
    agent.tell("approval-request", clarify({"question": question, "options": None}, title=title))
    clean(bridge, agent)


def test_section_5_nobody_has_decided_a_card_that_nobody_answered(
    bridge: WisheeBridge, agent: Agent
):
    agent.tell("approval-request", command())
    agent.tell("approval-resolved", resolved("approved", command()))
    found(bridge, "5", "nobody has answered")


def test_section_5_a_card_is_withdrawn_once(bridge: WisheeBridge, agent: Agent):
    agent.tell("approval-request", command())
    agent.tell("approval-resolved", resolved("canceled", command()))
    clean(bridge, agent)
    agent.tell("approval-resolved", resolved("canceled", command()))
    found(bridge, "2", "approval-resolved twice")


def test_section_5_a_card_that_was_lost_may_be_withdrawn(bridge: WisheeBridge, agent: Agent):
    agent.tell("approval-resolved", resolved("canceled", command()))
    clean(bridge, agent)
    other = command(approvalId=f"{AGENT}:exec:{'b' * 12}")
    agent.tell("approval-resolved", resolved("denied", other))
    found(bridge, "5", "nobody has seen")


def test_section_5_no_card_after_the_task_result(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    agent.result()
    agent.tell("approval-request", clarify())
    found(bridge, "3", "after the task-result")


def test_section_5_at_most_64_cards_are_open(bridge: WisheeBridge, agent: Agent):
    for number in range(64):
        agent.tell("approval-request", command(approvalId=f"{AGENT}:exec:{number:012x}"))
    clean(bridge, agent)
    agent.tell("approval-request", command())
    found(bridge, "5", "too many")


# Claims


def claim(bridge: WisheeBridge, code: str = "ABCD", **options: Any) -> tuple[int, Any]:
    binding = {"agent_id": AGENT, "secret": SECRET, "bridge_url": bridge.url, "bound": False}
    body = json.dumps({**binding, "claw_id": AGENT, **options.pop("change", {})})
    headers = {"Content-Type": options.pop("kind", "application/json")}
    http_ = http.client.HTTPConnection("127.0.0.1", bridge.port, timeout=10)
    try:
        method, path = options.pop("method", "POST"), options.pop("path", f"{CLAIM}?code={code}")
        http_.request(method, path, body, headers)
        answer = http_.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        http_.close()


def test_section_6_a_code_binds_once(bridge: WisheeBridge, short_tmp: Path):
    bridge.open = False
    bridge.give_code("ABCD", "ana")
    assert claim(bridge, "NONE") == (
        200,
        {"ok": False, "code": "BIND_CODE_NOT_FOUND", "error": "refused: BIND_CODE_NOT_FOUND"},
    )
    status, answer = claim(bridge)
    assert (status, answer["ok"], answer["agentType"]) == (200, True, "hermes")
    assert claim(bridge)[1]["code"] == "BIND_CODE_USED"
    agent = Agent(bridge)
    assert agent.hear()["userId"] == "ana"
    agent.hang_up()
    assert [one.code for one in bridge.claims] == ["NONE", "ABCD", "ABCD"]
    assert [one["answer"]["ok"] for one in journal(short_tmp, "claim")] == [False, True, False]
    assert bridge.violations == [] and SECRET not in (short_tmp / "journal").read_text()


def test_section_6_codes_that_cannot_be_claimed(bridge: WisheeBridge):
    bridge.give_code("OLD", over="BIND_CODE_EXPIRED")
    assert claim(bridge, "OLD")[1]["code"] == "BIND_CODE_EXPIRED"
    bridge.give_code("ABCD")
    bridge.bind(AGENT, SECRET, "bob")
    assert claim(bridge)[1]["code"] == "AGENT_CONFLICT"
    assert bridge.violations == []
    assert claim(bridge, change={"secret": ""})[1]["code"] == "IDENTITY_MISSING"


def test_section_6_a_claim_can_go_wrong(bridge: WisheeBridge):
    bridge.give_code("ABCD")
    bridge.script_claim(
        Script(503, {"error": "later"}), Script(drop=True), Script(body=b"[]"), Script(delay=0.1)
    )
    assert claim(bridge) == (503, {"error": "later"})
    with pytest.raises((http.client.HTTPException, OSError)):
        claim(bridge)
    assert claim(bridge) == (200, [])
    assert claim(bridge)[1]["ok"] is True
    assert [one.status for one in bridge.claims] == [503, None, 200, 200]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "PUT"}, "is a POST"),
        ({"kind": "text/plain"}, "Content-Type"),
        ({"path": f"{CLAIM}?code=ABCD&secret=x"}, "nothing else"),
        ({"change": {"claw_id": OTHER}}, "claw_id does not repeat"),
        ({"change": {"more": 1}}, "binding.json has more"),
        ({"change": {"bound": "no"}}, "bound is wrong"),
    ],
)
def test_section_6_a_claim_is_the_binding_as_JSON(
    bridge: WisheeBridge, options: dict[str, Any], text: str
):
    claim(bridge, **options)
    found(bridge, "6", text)


# Faults on demand


def test_a_dial_can_be_refused(bridge: WisheeBridge, short_tmp: Path):
    bridge.refuse(503, headers={"Retry-After": "7"})
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        Agent(bridge)
    assert refused.value.status_code == 503
    Agent(bridge).welcomed().hang_up()
    assert [one["status"] for one in journal(short_tmp, "dial")] == [503, 101]


def test_a_dial_can_be_left_without_an_answer(bridge: WisheeBridge, short_tmp: Path):
    bridge.silence()
    with pytest.raises(websocket.WebSocketTimeoutException):
        websocket.create_connection(bridge.url, timeout=0.2)
    assert [one["status"] for one in journal(short_tmp, "dial")] == [None]


def test_section_9_24_the_URL_is_as_it_was_given(bridge: WisheeBridge):
    websocket.create_connection(f"{bridge.url}?secret=x", timeout=5).shutdown()
    found(bridge, "1", "not the one that was given")


def test_cut_close_and_kick(bridge: WisheeBridge, agent: Agent):
    bridge.cut()
    assert agent.closed() is None
    again = Agent(bridge).welcomed()
    bridge.close_connections(4001)
    assert again.closed() == 4001
    Agent(bridge).welcomed().hang_up()  # it is bound all the same
    assert bridge.violations == []


def test_a_stalled_connection_hears_and_says_nothing(bridge: WisheeBridge, agent: Agent):
    bridge.stall()
    asked = bridge.request("sessions.list")
    agent.ws.settimeout(0.2)
    with pytest.raises(websocket.WebSocketTimeoutException):
        agent.hear()
    agent.ws.settimeout(5)
    bridge.stall(False)
    agent.answer({"sessions": []})
    assert asked.result(5).ok
    clean(bridge, agent)


def test_a_bridge_that_stops_reading_fills_the_connection(short_tmp: Path):
    bridge = WisheeBridge(receive_buffer=8192, ping_after=0.1, pong_within=0.2)
    agent = Agent(bridge, sockopt=[(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)]).welcomed()
    bridge.stop_reading()
    agent.ws.settimeout(0.5)
    sent = 0
    with pytest.raises((OSError, websocket.WebSocketException)):
        while sent < 20_000_000:
            agent.raw("x" * 10_000)
            sent += 10_000
    assert sent < 5_000_000 and bridge.connections[0].ended is None
    bridge.request("sessions.list")  # it writes all the same
    assert agent.hear()["method"] == "sessions.list"
    agent.hang_up()
    bridge.close()


def test_pings_can_be_left_unanswered(bridge: WisheeBridge, agent: Agent):
    bridge.mute_pongs()
    agent.ws.ping("p")
    agent.ws.settimeout(0.3)
    with pytest.raises(websocket.WebSocketTimeoutException):
        agent.ws.recv_data(control_frame=True)
    agent.ws.settimeout(5)
    bridge.mute_pongs(False)
    clean(bridge, agent)


def test_a_slow_bridge_reads_and_writes_little_by_little(bridge: WisheeBridge, agent: Agent):
    bridge.slow(40, 0.02)
    began = time.monotonic()
    asked = bridge.request("chat.history", {})
    agent.answer({"messages": [{"role": "user", "content": "x" * 400}]})
    assert asked.result(10).ok
    assert time.monotonic() - began > 0.2
    bridge.slow(0, 0)
    clean(bridge, agent)


def test_section_1_garbage_and_oversized_messages_are_sent_as_they_are(
    bridge: WisheeBridge, agent: Agent
):
    bridge.garbage()
    for message in GARBAGE:
        assert agent.ws.recv_data() == (message.opcode, message.payload)
    assert bridge.raw(b'{"big":"' + b"x" * 9_000_000 + b'"}') is None
    assert len(agent.ws.recv()) > 9_000_000
    clean(bridge, agent)


def test_a_raw_request_is_to_be_answered_like_any_other(bridge: WisheeBridge, agent: Agent):
    asked = bridge.raw({"type": "req", "id": [1], "method": "sessions.list", "more": True})
    assert asked is not None
    agent.answer({"sessions": []})
    assert asked.result(5).ok
    assert bridge.raw({"type": "req", "method": "sessions.list"}) is None
    clean(bridge, agent) if agent.hear() else None


def test_the_bridge_goes_down_and_comes_back_on_its_port(bridge: WisheeBridge, agent: Agent):
    run(bridge, agent)
    bridge.stop_listening()
    with pytest.raises(OSError):
        Agent(bridge)
    bridge.start_listening()
    again = Agent(bridge).welcomed()
    again.result()
    clean(bridge, again)


def test_a_bridge_with_a_certificate(short_tmp: Path):
    authority = trustme.CA()
    files = (str(short_tmp / "c.pem"), str(short_tmp / "k.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    bridge = WisheeBridge(certificate=files)
    assert bridge.url.startswith("wss://") and bridge.claim_url.startswith("https://")
    agent = Agent(bridge, sslopt={"context": context}).welcomed()
    run(bridge, agent)
    agent.result()
    clean(bridge, agent)
    agent.ws.close()
    bridge.close()
    assert bridge.violations == []


def test_send_and_result_are_one_turn(bridge: WisheeBridge, agent: Agent):
    def play() -> None:
        agent.answer({"runId": RUN})
        agent.result(text="4", key="k")

    thread = threading.Thread(target=play, name="connector", daemon=True)
    thread.start()
    assert bridge.result(bridge.send("2 + 2?", "k"), 5) == "4"
    thread.join()
    assert bridge.results(RUN)[0].conn == 1 and bridge.runs[RUN].session_key == "k"
    assert bridge.result("run-other", 0.05) is None
