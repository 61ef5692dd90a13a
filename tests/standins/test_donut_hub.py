"""The stand-in Donut hub, by its doors. "Section" is one of the contract of the Donut bridge."""

import http.client
import json
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import websocket

from hermes_bridges.standins.donut_faults import Fault
from hermes_bridges.standins.donut_hub import SEND, STREAM, TYPING, DonutHub
from hermes_bridges.standins.ws_server import Ended, WsServer
from tests.conftest import wait

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


class Bot:
    """A client of the hub that follows the rules, on one kept-alive connection."""

    def __init__(self, hub: DonutHub) -> None:
        self.hub = hub
        self.http = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=10)
        self.dialled: list[websocket.WebSocket] = []

    def post(self, path: str, body: Any, **headers: str | None) -> tuple[int, Any]:
        status, found, _ = self.ask("POST", path, body, **headers)
        return status, found

    def ask(self, method: str, path: str, body: Any, **headers: str | None) -> tuple[int, Any, Any]:
        given = {
            "Authorization": f"Bearer {self.hub.token}",
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        known = {name: value for name, value in given.items() if value is not None}
        self.http.request(method, path, data, known)
        answer = self.http.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers

    def send(self, key: str | None = None, **body: Any) -> tuple[int, Any]:
        return self.post(SEND, {"chat_id": 1, "content": "x", **body}, Idempotency_Key=key)

    def type(self, **body: Any) -> tuple[int, Any]:
        return self.post(TYPING, {"chat_id": 1, "state": "start", **body})

    def dial(self, last: str | None = None, **options: Any) -> websocket.WebSocket:
        url = self.hub.stream_url + (f"?last_event_id={last}" if last is not None else "")
        header = [f"Authorization: Bearer {self.hub.token}"]
        self.dialled.append(websocket.create_connection(url, header=header, timeout=10, **options))
        return self.dialled[-1]

    def close(self) -> None:
        self.http.close()
        for ws in self.dialled:
            ws.shutdown()


@pytest.fixture
def hub(short_tmp: Path) -> Iterator[DonutHub]:
    served = DonutHub(journal=str(short_tmp / "journal"))
    served.add_chat(1, "all")
    yield served
    served.close()
    assert wait(lambda: not [t for t in threading.enumerate() if t.name.startswith("donut-")], 5)


@pytest.fixture
def bot(hub: DonutHub) -> Iterator[Bot]:
    one = Bot(hub)
    yield one
    one.close()


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    assert isinstance(answer[1]["error"]["message"], str)
    return answer[0], answer[1]["error"]["code"]


def got(ws: websocket.WebSocket) -> Any:
    return json.loads(ws.recv())


def hang_up(ws: websocket.WebSocket) -> None:
    assert ws.sock is not None
    ws.sock.close()


def texts(ws: websocket.WebSocket, count: int) -> list[str]:
    return [got(ws)["message"]["content"] for _ in range(count)]


def journal(tmp: Path, *what: str) -> list[dict[str, Any]]:
    lines = (tmp / "journal").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["what"] in what]


# The stream before the upgrade.


def refused(bot: Bot, path: str = STREAM, **headers: str | None) -> tuple[tuple[int, str], Any]:
    given = {
        "Content_Type": None,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": KEY,
        **headers,
    }
    status, body, found = bot.ask("GET", path, b"", **given)
    bot.http.close()
    assert found["Content-Type"].startswith("application/json")
    assert not bot.hub.online
    return code((status, body)), found


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic donutbot_standin", "Bearer "])
def test_section_1_a_bad_token_is_a_JSON_error_before_the_upgrade(bot: Bot, header: str | None):
    found, headers = refused(bot, Authorization=header)
    assert found == (401, "unauthorized") and headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "query", ["token=x", "access_token=x", "Token=", "a=donutbot_standin", "donutbot%5Fstandin"]
)
def test_section_1_the_token_never_goes_into_the_URL(bot: Bot, query: str):
    assert refused(bot, f"{STREAM}?{query}")[0] == (400, "token_in_url")
    assert code(bot.post(f"{SEND}?{query}", {"chat_id": 1, "content": "x"})) == (
        400,
        "token_in_url",
    )
    assert not bot.hub.posted()


def test_section_1_without_the_token_in_its_header_a_token_in_the_URL_is_none(bot: Bot):
    path = f"{STREAM}?token=donutbot_standin"
    assert refused(bot, path, Authorization=None)[0] == (401, "unauthorized")


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Upgrade": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Connection": "keep-alive"}, 400),
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": None}, 426),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400),
        ({"Sec_WebSocket_Key": "***"}, 400),
    ],
)
def test_section_1_only_a_right_handshake_opens_a_WebSocket(bot: Bot, headers: Any, status: int):
    found, answered = refused(bot, **headers)
    assert found == (status, "bad_handshake")
    if "Sec_WebSocket_Version" in headers:
        assert answered["Sec-WebSocket-Version"] == "13"


def test_section_1_the_stream_is_a_GET_and_the_other_doors_are_POSTs(bot: Bot):
    assert code(bot.ask("PUT", STREAM, b"")[:2]) == (405, "bad_method")
    bot.http.close()
    for path in (SEND, TYPING):
        assert code(bot.ask("GET", path, b"")[:2]) == (405, "bad_method")
    assert code(bot.ask("GET", "/bots/v1", b"")[:2]) == (404, "not_found")


@pytest.mark.parametrize("query", ["last_event_id=", "last_event_id=1&last_event_id=2"])
def test_section_1_a_cursor_is_one_id(bot: Bot, query: str):
    assert refused(bot, f"{STREAM}?{query}")[0] == (400, "bad_cursor")


def test_section_1_an_existing_query_of_the_stream_URL_is_let_through(hub: DonutHub, bot: Bot):
    hub.stream_url += "?region=eu"
    ws = websocket.create_connection(
        f"{hub.stream_url}&last_event_id=5", header=[f"Authorization: Bearer {hub.token}"]
    )
    assert got(ws)["replay"] == {"complete": False}
    ws.close()
    assert [(dial.status, dial.last_event_id) for dial in hub.dials] == [(101, "5")]


def test_section_6_what_a_dial_offered_can_be_looked_at(hub: DonutHub, bot: Bot):
    bot.dial().close()
    assert "sec-websocket-extensions" not in hub.dials[0].headers


# Refused on demand.


def test_section_6_dials_are_refused_on_demand(hub: DonutHub, bot: Bot, short_tmp: Path):
    hub.refuse(503, {"Retry-After": "7"}, times=2)
    for _ in range(2):
        found, headers = refused(bot)
        assert found == (503, "on_demand") and headers["Retry-After"] == "7"
    bot.dial().close()
    assert [one["status"] for one in journal(short_tmp, "dial")] == [503, 503, 101]


def test_section_6_a_dial_is_redirected_on_demand(hub: DonutHub, bot: Bot):
    hub.refuse(302, {"Location": "http://127.0.0.1:1/"}, body={"moved": True})
    status, body, headers = bot.ask("GET", STREAM, b"")
    assert (status, body, headers["Location"]) == (302, {"moved": True}, "http://127.0.0.1:1/")


def test_section_6_a_dial_gets_no_answer_on_demand(hub: DonutHub, bot: Bot, short_tmp: Path):
    hub.fault(Fault("dial", drop=True))
    hub.fault(Fault("dial", silent=True))
    with pytest.raises(http.client.RemoteDisconnected):
        bot.ask("GET", STREAM, b"")
    bot.http.close()
    bot.http.timeout = 0.2
    with pytest.raises(TimeoutError):
        bot.ask("GET", STREAM, b"")
    bot.http.close()
    dials = wait(lambda: len(found := journal(short_tmp, "dial")) == 2 and found, 5)
    assert [one["status"] for one in dials] == [None, None]


def test_section_6_refusals_without_end_are_healed(hub: DonutHub, bot: Bot):
    hub.refuse(401, times=None)
    for _ in range(3):
        assert refused(bot)[0] == (401, "on_demand")
    hub.heal()
    bot.dial().close()


# The stream.


def test_section_1_connected_comes_first_and_then_events(hub: DonutHub, bot: Bot, short_tmp: Path):
    assert not hub.online
    ws = bot.dial()
    assert got(ws) == {
        "type": "connected",
        "bot": {"id": 77, "username": "helper"},
        "last_event_id": None,
        "replay": {"complete": True},
    }
    assert hub.online
    number = hub.say(1, "hi 😀", thread_id="t")
    event = got(ws)
    assert event.pop("ts").endswith("Z")
    assert event == {
        "type": "message.new",
        "event_id": "1001",
        "chat_id": 1,
        "message": {
            "id": number,
            "content": "hi 😀",
            "content_type": "TX",
            "thread_id": "t",
            "sender": {"id": 5, "type": "user", "username": "ana"},
        },
    }
    ws.close()
    assert hub.wait(lambda: not hub.online, 5)
    facts = [
        {name: one[name] for name in one if name not in ("t", "what")}
        for one in journal(short_tmp, "dial", "event", "said")
    ]
    known = {"event_id": "1001", "chat_id": 1, "message_id": number}
    assert {"conn": 1, "last_event_id": None, "status": 101} == facts.pop(0)
    assert {"conn": 1, **known, "replay": False} in facts
    assert {**known, "sender": "ana", "content": "hi 😀"} in facts


def test_section_1_the_newest_id_is_told_to_the_next_stream(hub: DonutHub, bot: Bot):
    hub.say(1, "one")
    ws = bot.dial()
    assert got(ws)["last_event_id"] == "1001"
    hub.say(1, "two")
    assert got(ws)["event_id"] == "1002"  # one was not replayed: there was no last_event_id


def test_section_1_the_default_trigger_is_a_mention(hub: DonutHub, bot: Bot):
    hub.add_chat(2)
    ws = bot.dial()
    got(ws)
    for text in ("hi", "@helper2 hi", "x@helper", "@Helper, hi", "ask @helper", 5):
        hub.say(2, text)
    assert texts(ws, 2) == ["@Helper, hi", "ask @helper"]
    hub.say(1, "last")
    assert texts(ws, 1) == ["last"]


def test_section_1_manual_lets_no_message_through_but_other_events(hub: DonutHub, bot: Bot):
    hub.add_chat(2, "manual")
    ws = bot.dial()
    got(ws)
    hub.say(2, "@helper hi")
    number = hub.tell("reaction.added", 2, message_id=9001, emoji="+")
    event = got(ws)
    assert (event["type"], event["event_id"], event["emoji"]) == ("reaction.added", number, "+")
    ws.close()
    with pytest.raises(ValueError):
        hub.add_chat(3, "sometimes")


def test_section_1_a_bot_sees_only_chats_that_it_was_added_to(hub: DonutHub, bot: Bot):
    hub.add_chat(2, "all", member=False)
    ws = bot.dial()
    got(ws)
    hub.say(2, "@helper hi")
    assert hub.tell("member.added", 2) is None
    hub.say(1, "seen")
    assert texts(ws, 1) == ["seen"]
    ws.close()
    with pytest.raises(KeyError):
        hub.say(3, "no such chat")


def test_section_1_events_take_another_shape_on_demand(hub: DonutHub, bot: Bot):
    hub.shape = lambda event: {"type": event["type"], "id": event["event_id"], "payload": event}
    hub.connected = {"type": "connected", "more": 1}
    ws = bot.dial()
    assert got(ws) == {"type": "connected", "more": 1}
    hub.say(1, "hi")
    assert got(ws)["payload"]["message"]["content"] == "hi"
    hub.connected = {}
    other = bot.dial()
    hub.say(1, "first")
    assert got(other)["payload"]["message"]["content"] == "first"


def test_section_3_a_sender_can_be_a_bot_or_of_no_type(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    got(ws)
    hub.say(1, "a", "robo", "r1", "bot")
    hub.say(1, "b", None, 6, None)
    senders = [got(ws)["message"]["sender"] for _ in range(2)]
    assert senders == [{"id": "r1", "type": "bot", "username": "robo"}, {"id": 6}]


def test_section_3_the_bot_hears_itself_on_demand(hub: DonutHub, bot: Bot):
    hub.echo = True
    ws = bot.dial()
    got(ws)
    _, body = bot.send(content="mine", content_type="MD")
    message = got(ws)["message"]
    assert message["id"] == body["id"] and message["content"] == "mine"
    assert message["sender"] == {"id": 77, "type": "bot", "username": "helper"}


# Replay.


def replayed(bot: Bot, last: str) -> tuple[bool, list[str]]:
    """Whether it is complete, and the ids; a live event ends the reading."""
    ws = bot.dial(last)
    complete = got(ws)["replay"]["complete"]
    end = bot.hub.tell("end", 1)
    found: list[str] = []
    while (number := got(ws)["event_id"]) != end:
        found.append(number)
    ws.close()
    return complete, found


def test_section_1_what_came_after_the_cursor_is_replayed(hub: DonutHub, bot: Bot, short_tmp: Path):
    for text in "abc":
        hub.say(1, text)
    assert replayed(bot, "1001") == (True, ["1002", "1003"])
    assert replayed(bot, "1004") == (True, [])
    assert [one["replay"] for one in journal(short_tmp, "event")] == [True, True, False, False]


def test_section_9_a_cursor_that_the_hub_does_not_know_replays_all_it_holds(
    hub: DonutHub, bot: Bot
):
    hub.say(1, "a")
    hub.say(1, "b")
    assert replayed(bot, "900") == (False, ["1001", "1002"])


def test_section_1_the_buffer_holds_100_events(hub: DonutHub, bot: Bot):
    numbers = [str(1001 + place) for place in range(102)]
    hub.flood(1, 102, "x")
    assert replayed(bot, "1001") == (False, numbers[2:])
    # With the event that ended the reading, 1002 and 1003 have gone too.
    assert replayed(bot, "1003")[0] is True
    assert replayed(bot, "1003")[0] is False


def test_section_1_the_buffer_holds_5_minutes(short_tmp: Path):
    now = [1000.0]
    hub = DonutHub(clock=lambda: now[0])
    hub.add_chat(1, "all")
    bot = Bot(hub)
    hub.say(1, "a")
    now[0] += 200
    hub.say(1, "b")
    now[0] += 100
    ws = bot.dial("1000")
    got(ws)
    assert texts(ws, 2) == ["a", "b"]
    ws.close()
    now[0] += 1
    ws = bot.dial("900")
    assert got(ws)["replay"] == {"complete": False}
    assert texts(ws, 1) == ["b"]
    ws.close()
    now[0] += 300
    ws = bot.dial("1002")
    assert got(ws) == {
        "type": "connected",
        "bot": {"id": 77, "username": "helper"},
        "last_event_id": "1002",
        "replay": {"complete": True},  # nothing came after it
    }
    bot.close()
    hub.close()


def test_section_1_a_hub_without_event_ids_replays_nothing(short_tmp: Path):
    hub = DonutHub(event_ids=False)
    hub.add_chat(1, "all")
    hub.say(1, "before")
    bot = Bot(hub)
    ws = bot.dial("1000")
    assert got(ws) == {"type": "connected", "bot": {"id": 77, "username": "helper"}}
    hub.say(1, "after")
    event = got(ws)
    assert event["message"]["content"] == "after" and "event_id" not in event
    bot.close()
    hub.close()


def test_section_5_the_same_message_comes_under_a_new_event_id(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    got(ws)
    number = hub.say(1, "a")
    hub.say(1, "a", message_id=number)
    first, second = got(ws), got(ws)
    assert first["message"] == second["message"] and first["event_id"] != second["event_id"]


def test_section_6_the_hub_restarts_on_its_port(hub: DonutHub, bot: Bot, short_tmp: Path):
    ws = bot.dial()
    got(ws)
    bot.send()
    hub.stop_listening()
    assert not hub.online
    with pytest.raises(OSError):
        bot.dial()
    with pytest.raises((OSError, http.client.HTTPException)):
        bot.send()
    bot.http.close()
    hub.say(1, "meanwhile")
    hub.start_listening()
    assert replayed(bot, "1000") == (False, ["1001"])
    assert bot.send()[0] == 200
    hub.stop_listening(keep=False)
    hub.start_listening()
    ws = bot.dial("1001")
    hello = got(ws)
    assert (hello["last_event_id"], hello["replay"]) == (None, {"complete": False})
    ws.close()
    closed = journal(short_tmp, "closed")[0]
    assert (closed["code"], closed["by"]) == (1006, "hub")


# What a strict WebSocket server does not take.


def opened(hub: DonutHub) -> socket.socket:
    """A bare socket after the upgrade; its `connected` frame has been read."""
    sock = socket.create_connection(("127.0.0.1", hub.port), timeout=10)
    sock.sendall(
        f"GET {STREAM} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade"
        f"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
        f"Authorization: Bearer {hub.token}\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(1)
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    assert server_frame(sock)[0] == 1
    return sock


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def server_frame(sock: socket.socket) -> tuple[int, bytes]:
    first, length = exactly(sock, 2)
    if length >= 126:
        length = int.from_bytes(exactly(sock, 2 if length == 126 else 8), "big")
    return first & 0x0F, exactly(sock, length)


def masked(first: int, payload: bytes, mask: bytes = b"\1\2\3\4") -> bytes:
    size = len(payload)
    head = struct.pack("!BBQ", first, 255, size)
    if size < 65536:
        head = bytes([first, 0x80 | size]) if size < 126 else struct.pack("!BBH", first, 254, size)
    body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + body


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\x89\x00", 1002),  # unmasked
        (masked(0xC9, b""), 1002),  # a reserved bit, such as compression's
        (masked(0x83, b"x"), 1002),  # a reserved opcode
        (masked(0x8B, b"x"), 1002),
        (masked(0x09, b""), 1002),  # a ping in pieces
        (masked(0x89, b"x" * 126), 1002),  # a ping that is too long
        (masked(0x80, b"x"), 1002),  # a continuation of nothing
        (masked(0x01, b"x") + masked(0x81, b"y"), 1002),  # a message within a message
        (b"\x81\xfe\x00\x05" + b"\0" * 9, 1002),  # a length in two bytes that one could hold
        (b"\x81\xff" + (70_000).to_bytes(8, "big"), 1009),
        ((masked(0x01, b"x" * 40_000) + masked(0x80, b"x" * 40_000)), 1009),
        (masked(0x81, b"x"), 1003),  # the stream is the hub's to speak on
        (masked(0x82, b"x" * 200), 1003),
        (masked(0x82, b"x" * 70_000), 1009),
        (masked(0x88, b"x"), 1002),  # closes that must not be
        (masked(0x88, struct.pack("!H", 1005)), 1002),
        (masked(0x88, struct.pack("!H", 5000)), 1002),
        (masked(0x88, struct.pack("!H", 1000) + b"\xff"), 1002),
    ],
)
def test_section_1_a_client_that_breaks_the_protocol_is_closed(
    hub: DonutHub, short_tmp: Path, data: bytes, status: int
):
    with opened(hub) as sock:
        sock.sendall(data)
        opcode, payload = server_frame(sock)
        assert (opcode, struct.unpack("!H", payload[:2])[0]) == (8, status)
        assert sock.recv(1) == b""
    assert hub.wait(lambda: not hub.online, 1)
    assert wait(lambda: journal(short_tmp, "closed"), 5)[0]["code"] == status


def test_section_1_a_client_may_cut_its_frames_anywhere(hub: DonutHub):
    with opened(hub) as sock:
        sock.sendall(masked(0x01, b"x" * 200)[:3])
        sock.sendall(masked(0x01, b"x" * 200)[3:])
        for byte in masked(0x89, b"ping" * 30) + masked(0x8A, b"") + masked(0x89, b"\xff"):
            sock.sendall(bytes([byte]))
        assert server_frame(sock) == (10, b"ping" * 30)
        assert server_frame(sock) == (10, b"\xff")
        sock.sendall(masked(0x88, struct.pack("!H", 1001) + b"bye"))
        assert server_frame(sock) == (8, struct.pack("!H", 1001))
    with opened(hub) as sock:
        sock.sendall(masked(0x88, b""))
        assert server_frame(sock) == (8, b"")


def test_section_7_the_close_of_a_bot_is_seen(hub: DonutHub, bot: Bot, short_tmp: Path):
    ws = bot.dial()
    ws.close(1001)
    hang_up(bot.dial())
    assert hub.wait(lambda: len(hub.dials) == 2 and not hub.online, 5)
    closed = wait(lambda: len(found := journal(short_tmp, "closed")) == 2 and found, 5)
    assert [(one["code"], one["by"]) for one in closed] == [(1001, "bot"), (1006, "bot")]


# Pings, liveness, presence.


def test_section_1_the_hub_pings_and_a_bot_that_does_not_pong_is_gone(short_tmp: Path):
    hub = DonutHub(journal=str(short_tmp / "journal"), ping_after=0.1, pong_within=0.2)
    with opened(hub) as sock:
        for _ in range(4):
            assert server_frame(sock) == (9, b"hub")
            sock.sendall(masked(0x8A, b"hub"))
        began = time.monotonic()
        assert server_frame(sock) == (9, b"hub")
        assert sock.recv(1) == b""
        assert 0.2 <= time.monotonic() - began < 2
    assert hub.wait(lambda: not hub.online, 5)
    assert [(one["code"], one["by"]) for one in journal(short_tmp, "closed")] == [(1006, "hub")]
    hub.close()


def test_issue_4_a_bot_is_online_exactly_while_it_holds_a_stream(hub: DonutHub, bot: Bot):
    one, other = bot.dial(), bot.dial()
    bot.send()
    one.close()
    assert hub.wait(lambda: len(hub.streams()) == 1, 5) and hub.online
    hub.cut()
    assert hub.wait(lambda: not hub.online, 5)
    with pytest.raises(websocket.WebSocketConnectionClosedException):
        while True:
            other.recv()


# Faults of the stream.


@pytest.mark.parametrize("reset", [False, True])
def test_section_6_a_stream_is_cut(hub: DonutHub, bot: Bot, short_tmp: Path, reset: bool):
    with opened(hub) as sock:
        hub.cut(reset)
        if reset:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        else:
            assert sock.recv(1) == b""
    assert hub.wait(lambda: not hub.online, 5)
    closed = wait(lambda: journal(short_tmp, "closed"), 5)
    assert (closed[0]["code"], closed[0]["by"]) == (1006, "hub")


@pytest.mark.parametrize("status", [1000, 1008, 1012, 4001, 4401])
def test_section_6_a_stream_is_closed_with_a_code(hub: DonutHub, status: int, short_tmp: Path):
    with opened(hub) as sock:
        hub.say(1, "before it")
        hub.close_streams(status)
        assert server_frame(sock)[0] == 1
        assert server_frame(sock) == (8, struct.pack("!H", status))
        sock.sendall(masked(0x88, struct.pack("!H", status)))
        assert sock.recv(1) == b""
    closed = wait(lambda: journal(short_tmp, "closed"), 5)
    assert (closed[0]["code"], closed[0]["by"]) == (status, "hub")


def test_section_6_a_close_that_is_not_answered_ends_all_the_same(hub: DonutHub):
    with opened(hub):
        hub.close_streams(1000)
        assert hub.wait(lambda: not hub.online, 5)


def test_section_6_a_half_open_stream_is_neither_read_nor_written(hub: DonutHub, bot: Bot):
    stalled = bot.dial()
    got(stalled)
    hub.stall()
    hub.say(1, "a")
    stalled.ping()
    stalled.settimeout(0.2)
    with pytest.raises(websocket.WebSocketTimeoutException):
        stalled.recv()
    fresh = bot.dial("1000")
    assert got(fresh)["replay"]["complete"] is False and texts(fresh, 1) == ["a"]
    hub.unstall()
    stalled.settimeout(10)
    assert texts(stalled, 1) == ["a"]
    hub.stall()
    hub.cut()
    assert hub.wait(lambda: not hub.online, 5)


def test_section_6_a_half_open_stream_does_not_even_see_the_client_go(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    hub.stall()
    hang_up(ws)
    assert not hub.wait(lambda: not hub.online, 0.2)
    hub.unstall()
    assert hub.wait(lambda: not hub.online, 5)


def test_section_6_frames_are_split(hub: DonutHub):
    with opened(hub) as sock:
        hub.streams()[0].split(1, 0.02)
        hub.frame(b"x" * 10)
        assert sock.recv(100) == b"\x81"
        began = time.monotonic()
        assert exactly(sock, 11) == b"\x0a" + b"x" * 10
        assert time.monotonic() - began > 0.15
        hub.streams()[0].split(0, 0)
        hub.frame(b"y" * 70_000, binary=True)
        assert server_frame(sock) == (2, b"y" * 70_000)


def test_section_6_messages_are_fragmented_with_pings_between(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    got(ws)
    hub.streams()[0].fragment(7)
    hub.say(1, "in several frames")
    assert texts(ws, 1) == ["in several frames"]
    hub.frame(b"")
    assert ws.recv() == ""
    ws.close()
    with opened(hub) as sock:
        hub.streams()[0].fragment(2)
        hub.frame(b"abc")
        assert exactly(sock, 4) == b"\x01\x02ab"
        assert server_frame(sock) == (9, b"between")
        assert exactly(sock, 3) == b"\x80\x01c"


def test_section_1_anything_can_be_put_on_the_wire(hub: DonutHub, bot: Bot):
    with opened(hub) as sock:
        hub.frame(b"\xff no JSON")
        assert server_frame(sock) == (1, b"\xff no JSON")
        hub.streams()[0].wire(b"\x83\x01x")
        assert exactly(sock, 3) == b"\x83\x01x"
        event = {"type": "message.new", "chat_id": 1, "data": {}}
        event["data"] = {"chat_id": 1, "message": {"id": "m", "thread_id": "t"}}
        hub.frame(event)
        assert json.loads(server_frame(sock)[1]) == event
    # It may be answered like one of the hub's own.
    assert bot.send(reply_to="m", thread_id="t")[0] == 200


def test_section_3_a_flood_comes_whole_and_in_order(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    got(ws)
    hub.flood(1, 2000, "n")
    assert texts(ws, 2000) == [f"n {number}" for number in range(2000)]


def test_a_client_that_is_too_far_behind_is_cut_off():
    left, right = socket.socketpair()
    server = WsServer(left, b"", lambda mark, t: None, ping_after=9, pong_within=9, backlog=3)
    for _ in range(3):
        server.offer(b"x")
    server.offer(b"one too many")
    assert server.run() == Ended(1006, "hub")
    left.close()
    right.close()


# Sending.


def test_section_1_a_message_is_stored_as_it_was_sent(hub: DonutHub, bot: Bot, short_tmp: Path):
    trigger = hub.say(1, "hi", thread_id="t")
    status, body = bot.send(
        "k", content="**a**", content_type="MD", reply_to=trigger, thread_id="t"
    )
    assert status == 200
    post = {
        "message_id": body["id"],
        "chat_id": 1,
        "content": "**a**",
        "content_type": "MD",
        "reply_to": trigger,
        "thread_id": "t",
        "key": "k",
    }
    assert hub.posted(1) == hub.posted() == [post] and hub.posted(2) == []
    line = journal(short_tmp, "send")[0]
    assert line["began"] <= line["t"] and (line["status"], line["repeat"]) == (200, False)
    assert {name: line[name] for name in post} == post


def test_section_1_the_content_has_at_most_4000_bytes_of_UTF8(hub: DonutHub, bot: Bot):
    assert bot.send(content="x" * 4000)[0] == 200
    assert bot.send(content="😀" * 1000)[0] == 200
    assert code(bot.send(content="x" * 4001)) == (400, "content_too_long")
    assert code(bot.send(content="😀" * 1000 + "x")) == (400, "content_too_long")
    assert len(hub.posted()) == 2


@pytest.mark.parametrize(
    "content, error",
    [("", "empty_content"), (" \n\t", "empty_content"), (5, "bad_content"), (None, "bad_content")],
)
def test_section_1_the_content_is_a_text(bot: Bot, content: Any, error: str):
    assert code(bot.send(content=content)) == (400, error)


def test_section_1_the_content_can_be_written_in_UTF8(bot: Bot):
    body = b'{"chat_id": 1, "content": "\\ud83d"}'
    assert code(bot.post(SEND, body)) == (400, "bad_content")
    assert bot.post(SEND, b'{"chat_id": 1, "content": "\\ud83d\\ude00"}')[0] == 200


@pytest.mark.parametrize("kind", ["md", "HTML", None, 1])
def test_section_1_the_content_type_is_MD_or_TX(hub: DonutHub, bot: Bot, kind: Any):
    assert code(bot.send(content_type=kind)) == (400, "bad_content_type")
    assert bot.send(content_type="TX")[0] == bot.send()[0] == 200
    assert [one["content_type"] for one in hub.posted()] == ["TX", "TX"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_section_1_a_request_is_JSON_and_says_so(bot: Bot, kind: str | None):
    body = {"chat_id": 1, "content": "x"}
    assert code(bot.post(SEND, body, Content_Type=kind)) == (415, "bad_media_type")
    assert bot.post(SEND, body, Content_Type="application/json; charset=utf-8")[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_section_1_a_request_is_a_JSON_object(bot: Bot, body: bytes):
    assert code(bot.post(SEND, body)) == (400, "bad_json")


def test_a_request_has_a_limit_too(bot: Bot):
    assert code(bot.send(content="x" * 300_000)) == (413, "too_large")
    assert bot.send()[0] == 200


def test_section_1_a_field_that_is_not_known_is_refused(bot: Bot):
    assert code(bot.send(text="x")) == (400, "unknown_field")
    assert code(bot.type(text="x")) == (400, "unknown_field")


def test_section_1_the_bot_token_is_asked_for_at_every_door(hub: DonutHub, bot: Bot):
    for path in (SEND, TYPING):
        found = bot.ask("POST", path, {"chat_id": 1, "content": "x"}, Authorization="Bearer no")
        assert code(found[:2]) == (401, "unauthorized")
        assert found[2]["WWW-Authenticate"] == "Bearer"
    hub.token = "donutbot_new"
    body = {"chat_id": 1, "content": "x"}
    assert bot.post(SEND, body, Authorization="Bearer donutbot_standin")[0] == 401
    assert bot.post(SEND, body, Authorization="bearer donutbot_new")[0] == 200


def test_section_1_a_bot_writes_only_where_it_is_a_member(hub: DonutHub, bot: Bot):
    hub.add_chat(2, member=False)
    for chat_id in (2, 3, "other"):
        assert code(bot.send(chat_id=chat_id)) == (403, "not_a_member")
        assert code(bot.type(chat_id=chat_id)) == (403, "not_a_member")
    hub.add_chat(2)
    assert bot.send(chat_id=2)[0] == 200
    hub.add_chat(2, member=False)
    assert code(bot.send(chat_id=2)) == (403, "not_a_member")


def test_section_1_ids_come_back_with_their_JSON_type(hub: DonutHub, bot: Bot):
    hub.add_chat("7", "all")
    number = hub.say(1, "x", thread_id=50)
    hub.say("7", "x", message_id="m1", thread_id="60")
    hub.say("7", "x", message_id="70")
    for wrong in ("1", 1.0, True, None, [1]):
        assert code(bot.send(chat_id=wrong)) == (400, "bad_id")
    assert code(bot.send(chat_id=7)) == (400, "bad_id")
    for wrong in (str(number), float(number), True):
        assert code(bot.send(reply_to=wrong)) == (400, "bad_id")
    assert code(bot.send(thread_id="50")) == (400, "bad_id")
    assert code(bot.send(chat_id="7", thread_id=60)) == (400, "bad_id")
    assert code(bot.send(chat_id="7", reply_to=70)) == (400, "bad_id")
    assert not hub.posted()
    assert bot.send(reply_to=number, thread_id=50)[0] == 200
    assert bot.send(chat_id="7", reply_to="m1", thread_id="60")[0] == 200
    assert [one["chat_id"] for one in hub.posted()] == [1, "7"]


def test_section_1_what_is_answered_stands_in_that_chat(hub: DonutHub, bot: Bot):
    hub.add_chat(2, "all")
    number = hub.say(2, "x", thread_id="t")
    assert code(bot.send(reply_to=number)) == (400, "unknown_id")
    assert code(bot.send(thread_id="t")) == (400, "unknown_id")
    assert bot.send(reply_to=None, thread_id=None)[0] == 200


def test_section_1_a_thread_may_begin_with_the_first_reply(hub: DonutHub, bot: Bot):
    first = bot.send()[1]["id"]
    assert bot.send(thread_id=first)[0] == 200
    hub.close()
    named = DonutHub(string_ids=True)
    named.add_chat(1, "all")
    bot = Bot(named)
    first = bot.send()[1]["id"]
    assert isinstance(first, str) and isinstance(named.say(1, "x"), str)
    assert code(bot.send(thread_id=int(first))) == (400, "bad_id")
    assert bot.send(thread_id=first)[0] == 200
    bot.close()
    named.close()


def test_section_4_a_key_that_came_before_stores_nothing(hub: DonutHub, bot: Bot, short_tmp: Path):
    first, again, other = bot.send("k"), bot.send("k"), bot.send("l")
    assert first == again and first != other
    assert len(hub.posted()) == 2
    lines = journal(short_tmp, "send")
    assert [one["repeat"] for one in lines] == [False, True, False]
    assert lines[1]["message_id"] is None and lines[1]["status"] == 200


def test_section_4_a_key_belongs_to_one_message(hub: DonutHub, bot: Bot):
    assert bot.send("k")[0] == 200
    assert code(bot.send("k", content="y")) == (422, "key_reused")
    for bad in ("", "a b", "x" * 256):
        assert code(bot.send(bad)) == (400, "bad_key")
    assert bot.send("x" * 255)[0] == 200


def test_section_4_a_hub_that_does_not_know_keys_stores_twice():
    hub = DonutHub(idempotent=False)
    hub.add_chat(1)
    bot = Bot(hub)
    assert bot.send("k") != bot.send("k")
    assert [one["key"] for one in hub.posted()] == ["k", "k"]
    bot.close()
    hub.close()


# Faults of sending.


def test_section_4_429_of_one_chat_leaves_the_others_alone(hub: DonutHub, bot: Bot):
    hub.add_chat(2)
    hub.send_busy(1.5, times=2, chat=1)
    assert bot.send(chat_id=2)[0] == 200
    for _ in range(2):
        status, body, headers = bot.ask("POST", SEND, {"chat_id": 1, "content": "x"})
        assert (status, headers["Retry-After"], body["retry_after"]) == (429, "1.5", 1.5)
        assert body["error"]["code"] == "rate_limited"
    assert bot.send()[0] == 200
    assert [one["chat_id"] for one in hub.posted()] == [2, 1]


@pytest.mark.parametrize("header, body", [(True, False), (False, True)])
def test_section_4_429_in_the_header_or_in_the_body(
    hub: DonutHub, bot: Bot, header: bool, body: bool
):
    hub.send_busy("3", header=header, body=body, where="typing")
    status, said, headers = bot.ask("POST", TYPING, {"chat_id": 1, "state": "start"})
    assert (status, headers["Retry-After"]) == (429, "3" if header else None)
    assert said.get("retry_after") == ("3" if body else None)
    assert not hub.typing(1)


def test_section_4_any_status_before_or_after_storing(hub: DonutHub, bot: Bot):
    hub.send_status(503, times=1)
    hub.send_status(307, {"Location": hub.send_url})
    hub.send_status(502, body=b"<html>")
    hub.send_status(200, stored=True)
    assert code(bot.send()) == (503, "on_demand")
    assert bot.ask("POST", SEND, {"chat_id": 1, "content": "x"})[2]["Location"] == hub.send_url
    with pytest.raises(json.JSONDecodeError):
        bot.send()
    assert hub.posted() == []
    assert bot.send() == (200, {})  # an answer without an id
    assert len(hub.posted()) == 1


@pytest.mark.parametrize("stored", [False, True])
def test_section_4_no_answer(hub: DonutHub, bot: Bot, short_tmp: Path, stored: bool):
    hub.send_drop(stored)
    hub.send_hang(stored)
    with pytest.raises(http.client.RemoteDisconnected):
        bot.send("k")
    bot.http.close()
    bot.http.timeout = 0.2
    with pytest.raises(TimeoutError):
        bot.send("l")
    bot.http.close()
    assert len(hub.posted()) == (2 if stored else 0)
    lines = wait(lambda: len(found := journal(short_tmp, "send")) == 2 and found, 5)
    assert [one["status"] for one in lines] == [None, None]
    assert [one["message_id"] is not None for one in lines] == [stored, stored]
    assert bot.send("k")[0] == 200 and bot.send("l")[0] == 200
    assert len(hub.posted()) == 2


def test_section_4_slow_answers(hub: DonutHub, bot: Bot):
    hub.add_chat(2)
    hub.send_delay(0.2, chat=1)
    began = time.monotonic()
    bot.send(chat_id=2)
    assert time.monotonic() - began < 0.15
    bot.send()
    bot.send()
    assert time.monotonic() - began > 0.4
    hub.heal()
    hub.send_drip(0.002)
    began = time.monotonic()
    assert bot.send()[0] == 200
    assert time.monotonic() - began > 0.2


def test_section_4_who_hangs_up_during_the_delay_has_stored_nothing(
    hub: DonutHub, bot: Bot, short_tmp: Path
):
    hub.send_delay(0.2)
    bot.http.timeout = 0.05
    with pytest.raises(TimeoutError):
        bot.send()
    bot.http.close()
    assert wait(lambda: journal(short_tmp, "send"), 5)[0]["status"] is None
    assert not hub.posted()


def test_section_4_an_idle_connection_is_closed(hub: DonutHub, bot: Bot):
    bot.send()
    sock = bot.http.sock
    hub.drop_idle()
    assert sock is not None and sock.recv(1) == b""
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        bot.send()
    bot.http.close()
    assert bot.send()[0] == 200


def test_section_4_a_connection_under_way_is_not_idle(hub: DonutHub, bot: Bot):
    bot.send()
    hub.send_delay(0.2, stored=True)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(bot.send()))
    thread.start()
    assert hub.wait(lambda: len(hub.posted()) == 2, 5)
    hub.drop_idle()
    thread.join()
    assert answers[0][0] == 200


# Typing.


def test_section_1_typing_shows_until_it_stops(hub: DonutHub, bot: Bot, short_tmp: Path):
    hub.say(1, "x", thread_id="t")
    assert not hub.typing(1)
    assert bot.type(thread_id="t") == (200, {})
    assert hub.typing(1)
    assert bot.type(state="stop")[0] == 200
    assert not hub.typing(1)
    lines = journal(short_tmp, "typing")
    assert [(one["state"], one["thread_id"], one["status"]) for one in lines] == [
        ("start", "t", 200),
        ("stop", None, 200),
    ]


def test_section_3_typing_expires_unless_it_is_refreshed():
    now = [0.0]
    hub = DonutHub(clock=lambda: now[0])
    hub.add_chat(1)
    bot = Bot(hub)
    bot.type()
    now[0] = 4
    bot.type()
    now[0] = 9.9
    assert hub.typing(1)
    now[0] = 10
    assert not hub.typing(1)
    bot.close()
    hub.close()


def test_section_1_typing_starts_or_stops(bot: Bot):
    for state in ("on", None, 1):
        assert code(bot.type(state=state)) == (400, "bad_state")
    assert code(bot.type(chat_id="1")) == (400, "bad_id")
    assert code(bot.type(thread_id="t")) == (400, "unknown_id")


# The rest.


def test_the_same_by_TLS(tmp_path: Path):
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "pem")
    )
    hub = DonutHub(certificate=(str(tmp_path / "pem"), str(tmp_path / "pem")))
    hub.add_chat(1, "all")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    bot = Bot(hub)
    where = urllib.parse.urlsplit(hub.send_url)
    bot.http = http.client.HTTPSConnection(where.netloc, timeout=10, context=context)
    assert where.scheme == "https" and hub.stream_url.startswith("wss:")
    assert hub.typing_url.startswith("https:")
    ws = bot.dial(sslopt={"context": context})
    got(ws)
    hub.frame(b"x" * 3_000_000)
    hub.flood(1, 100, "n")
    assert len(ws.recv()) == 3_000_000
    assert texts(ws, 100)[-1] == "n 99"
    assert bot.send()[0] == bot.send()[0] == 200
    hub.drop_idle()
    hub.cut()
    assert hub.wait(lambda: not hub.online, 5)
    bot.close()
    hub.close()


def test_issue_4_it_sustains_1000_messages_a_second(hub: DonutHub, bot: Bot):
    ws = bot.dial()
    got(ws)
    trigger = hub.say(1, "x")
    began = time.monotonic()
    for number in range(1000):
        hub.say(1, f"n {number}")
        assert bot.send(f"k{number}", content_type="MD", reply_to=trigger)[0] == 200
    assert texts(ws, 1001)[-1] == "n 999"
    # Ours is the smaller part of this time; a busy machine gets five seconds.
    assert time.monotonic() - began < 5
    ws.close()
