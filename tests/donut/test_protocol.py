"""The hub's wire: whatever comes is read without an error, what goes out is exact."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.donut import protocol
from hermes_bridges.donut.protocol import Connected, Malformed, Message, Other, decode

SENDER = {"id": 5, "type": "user", "username": "ana"}


def new(fields: dict | None = None, **message: object) -> bytes:
    """A ``message.new``; ``...`` as a value leaves that field out."""
    inner = {
        "id": 9001,
        "content": "hi",
        "content_type": "TX",
        "thread_id": None,
        "sender": SENDER,
        **message,
    }
    frame = {
        "type": "message.new",
        "event_id": "1042",
        "chat_id": 1234,
        "ts": "2026-11-30T12:00:00Z",
        "message": {name: value for name, value in inner.items() if value is not ...},
        **(fields or {}),
    }
    return json.dumps({name: value for name, value in frame.items() if value is not ...}).encode()


def read(raw: bytes) -> Message:
    message = decode(raw)
    assert isinstance(message, Message)
    return message


def from_sender(sender: object) -> Message:
    return read(new(sender=sender))


def test_a_message_is_read() -> None:
    assert decode(new()) == Message("1042", 1234, 9001, None, 5, "ana", "user", "hi")
    message = read(new({"chat_id": "c", "event_id": 7}, id="m", thread_id="t", sender={"id": "s"}))
    assert message == Message("7", "c", "m", "t", "s", None, None, "hi")


def test_ids_are_compared_as_text_and_kept_as_they_came() -> None:
    number, text = read(new()), read(new({"chat_id": "1234"}, id="9001"))
    assert (number.chat, number.message) == (text.chat, text.message) == ("1234", "9001")
    assert (number.chat_id, text.chat_id) == (1234, "1234")
    assert read(new({"chat_id": 0}, id=-1)).chat == "0"
    assert read(new({"event_id": 0})).event_id == "0"
    assert read(new({"chat_id": "a "})).chat != read(new({"chat_id": "a"})).chat
    assert read(new({"chat_id": 10**1000})).chat == "1" + "0" * 1000


def test_the_connected_frame_is_read() -> None:
    raw = (
        b'{"type": "connected", "bot": {"id": 77, "username": "helper"}, "last_event_id": "1041",'
        b' "replay": {"complete": true}}'
    )
    assert decode(raw) == Connected(77, "helper", "1041", True)
    assert decode(b'{"type": "connected"}') == Connected(None, None, None, True)
    assert decode(b'{"type": "connected", "last_event_id": 3, "replay": {"complete": false}}') == (
        Connected(None, None, "3", False)
    )
    assert decode(b'{"type": "connected", "bot": 5, "last_event_id": null, "replay": []}') == (
        Connected(None, None, None, True)
    )


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        (
            b'{"type": "reaction.added", "event_id": "1043", "chat_id": 1}',
            ("1043", "reaction.added"),
        ),
        (
            b'{"type": "message.edited", "event_id": 5, "message": {"id": 1}}',
            ("5", "message.edited"),
        ),
        (b'{"type": "unheard.of", "x": [1e400, -0, 1E5]}', (None, "unheard.of")),
        (b'{"event_id": "9"}', ("9", "")),
        (b'{"type": 5, "id": "9"}', ("9", "")),
        (b'{"type": "a b\\n", "id": "9"}', ("9", "")),
        (b"{}", (None, "")),
    ],
)
def test_other_events_only_have_an_id(raw: bytes, event: tuple[str | None, str]) -> None:
    assert decode(raw) == Other(*event)


@pytest.mark.parametrize("wrapper", ["payload", "data"])
@pytest.mark.parametrize("name", ["event_id", "id"])
def test_a_wrapper_and_a_bare_id_are_tolerated(wrapper: str, name: str) -> None:
    event = {"chat_id": 1, "message": {"id": 2, "content": "hi", "sender": SENDER}, "new": {}}
    for frame in (
        {"type": "message.new", name: "3", wrapper: event},
        {"type": "message.new", wrapper: {**event, name: "3"}},
        {wrapper: {"type": "message.new", **event, name: "3"}},
    ):
        assert decode(json.dumps(frame).encode()) == Message(
            "3", 1, 2, None, 5, "ana", "user", "hi"
        )
    wrapped = {"type": "connected", wrapper: {"bot": {"id": 7}, "last_event_id": "1"}}
    assert decode(json.dumps(wrapped).encode()) == Connected(7, None, "1", True)


@pytest.mark.parametrize("unusable", [None, "", True, 1.0, [], {}, "x" * 1025, "\ud83d", 10**1025])
def test_a_message_without_its_ids_is_malformed(unusable: object) -> None:
    for raw in (
        new({"chat_id": unusable}),
        new(id=unusable),
        new(sender={**SENDER, "id": unusable}),
    ):
        assert decode(raw) == Malformed("1042", "message.new", len(raw))
    assert read(new({"event_id": unusable})).event_id is None
    assert read(new(thread_id=unusable)).thread_id is None


@pytest.mark.parametrize(
    "raw",
    [
        new({"chat_id": ...}),
        new({"message": ...}),
        new({"message": []}),
        new(id=...),
        new(sender=...),
        new(sender="ana"),
        new(sender={}),
    ],
)
def test_a_message_without_a_needed_field_is_malformed(raw: bytes) -> None:
    assert decode(raw) == Malformed("1042", "message.new", len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"[1]",
        b'"text"',
        b"null",
        b"7",
        b"{",
        b'{"type": "a"} x',
        b'{"type": NaN}',
        b'{"type": Infinity}',
        b'\xef\xbb\xbf{"type": "a"}',
        b'{"type": "a\xff"}',
        '{"type": "a"}'.encode("utf-16"),
        b"{" + b'"a":{' * 200_000,
        b'{"a":' + b"[" * 500_000,
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a": "\n"}',
    ],
)
def test_what_is_no_json_object_is_malformed(raw: bytes) -> None:
    assert decode(raw) == Malformed(None, "", len(raw))


def test_huge_numbers_are_no_ids() -> None:
    digits = b"9" * 500_000
    start = time.process_time()
    for number in (digits, b"-" + digits, digits + b".5", b"1e" + digits):
        assert decode(b'{"type": "a", "event_id": ' + number + b', "x": 1}') == Other(None, "a")
    assert time.process_time() - start < 1


def test_of_two_values_for_a_name_the_last_counts() -> None:
    assert decode(b'{"type": "a", "event_id": "1", "type": "b", "event_id": "2"}') == Other(
        "2", "b"
    )


def test_a_frame_of_1_mib_is_read_in_time() -> None:
    start = time.process_time()
    for piece in (b"[],", b'"a",', b"{},", b"1,", b"-1e5,", b'"\\u0061",', b'{"a":"b"},'):
        frame = b'{"type":"a","x":[' + piece * (2**20 // len(piece)) + b"0]}"
        assert decode(frame) == Other(None, "a")
    assert read(new(content="é" * 2**19)).text == "é" * 2**19
    assert time.process_time() - start < 5


@pytest.mark.parametrize("content", [None, "", 5, [], {"text": "hi"}, ...])
def test_content_that_is_no_text_is_empty(content: object) -> None:
    assert read(new(content=content)).text == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "event_id", "id", "chat_id", "message", "sender", "content", "bot"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
types = st.sampled_from(["message.new", "connected", "reaction.added"])


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda value: json.dumps(value).encode(), json_values),
        st.builds(
            lambda kind, fields, message: json.dumps(
                {"type": kind, "event_id": "1", **fields, "message": message}
            ).encode(),
            types,
            st.dictionaries(st.sampled_from(["chat_id", "data", "payload", "bot"]), json_values),
            json_values,
        ),
    )
)
def test_no_frame_raises(raw: bytes) -> None:
    event = decode(raw)
    if isinstance(event, Message):
        assert event.chat and event.message and event.sender
    assert event == decode(raw)


@given(st.data())
def test_no_damaged_frame_raises(data: st.DataObject) -> None:
    raw = bytearray(new(content="h\ud83d"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decode(bytes(raw))


def test_KH27_surrogates_in_what_comes() -> None:
    for escaped, text in (
        (r"hi \ud83d there", "hi \ufffd there"),
        (r"\udc80", "\ufffd"),
        (r"\ud83d\ude00", "😀"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
    ):
        raw = new(content="@", sender={**SENDER, "username": "#", "type": "%"})
        for sign in (b"@", b"#", b"%"):
            raw = raw.replace(sign, escaped.encode())
        message = read(raw)
        assert (message.text, message.sender_name, message.sender_type) == (text, text, text)


def test_KH27_surrogates_in_what_goes() -> None:
    for content, text in (("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "😀"), ('"\udc80"', '"\ufffd"')):
        assert json.loads(protocol.send_body(1, content, "MD", None, None))["content"] == text
        assert json.loads(protocol.request_body(content, content)) == {
            "model": text,
            "messages": [{"role": "user", "content": text}],
            "stream": False,
        }
        assert protocol.with_name(content, "5", "hi") == f"{text}: hi"


@pytest.mark.parametrize(
    ("base", "last", "url"),
    [
        ("wss://h/s", None, "wss://h/s"),
        ("wss://h/s", "1041", "wss://h/s?last_event_id=1041"),
        ("wss://h/s?a=b&c", "1", "wss://h/s?a=b&c&last_event_id=1"),
        ("wss://h/s?a=b", None, "wss://h/s?a=b"),
        ("wss://h/s?", "1", "wss://h/s?last_event_id=1"),
        ("wss://h/s?last_event_id=7&a=b", "1", "wss://h/s?a=b&last_event_id=1"),
        ("wss://h/s#x", "1", "wss://h/s?last_event_id=1"),
        ("wss://h", "a b&c=d/é\r\n", "wss://h?last_event_id=a%20b%26c%3Dd%2F%C3%A9%0D%0A"),
        ("wss://h", "A-z_0.~", "wss://h?last_event_id=A-z_0.~"),
    ],
)
def test_the_stream_url_resumes_after_the_last_event(base: str, last: str, url: str) -> None:
    assert protocol.stream_url(base, last) == url


def test_bodies_to_the_hub() -> None:
    assert protocol.send_body(1234, "é", "MD", 9001, "t") == (
        '{"chat_id":1234,"content":"é","content_type":"MD","reply_to":9001,"thread_id":"t"}'.encode()
    )
    assert protocol.send_body("1234", "a", "TX", None, None) == (
        b'{"chat_id":"1234","content":"a","content_type":"TX"}'
    )
    assert protocol.typing_body(1, "start", None) == b'{"chat_id":1,"state":"start"}'
    assert protocol.typing_body(1, "stop", 0) == b'{"chat_id":1,"state":"stop","thread_id":0}'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id": 5}', 5),
        (b'{"id": "m"}', "m"),
        (b'{"id": 0}', 0),
        (b'{"message_id": "m"}', "m"),
        (b'{"message": {"id": 7}}', 7),
        (b'{"id": null, "message": {"id": 7}}', 7),
        (b'{"ok": true}', None),
        (b'{"id": true}', None),
        (b'{"message": "sent"}', None),
        (b"", None),
        (b"<html>", None),
        (b"[5]", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_id_of_what_was_sent(body: bytes, found: protocol.Id | None) -> None:
    assert protocol.sent_id(body) == found


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (b'{"retry_after": 2.5}', 2.5),
        (b'{"error": {"retry_after": 3}}', 3.0),
        (b'{"retry_after": 0}', 0.0),
        (b'{"retry_after": -1}', None),
        (b'{"retry_after": 90000}', None),
        (b'{"retry_after": true}', None),
        (b'{"retry_after": 1e999}', None),
        (b'{"retry_after": " 2.5 "}', 2.5),
        (b'{"retry_after": "90000"}', None),
        (b'{"retry_after": "1e3"}', None),
        (b'{"retry_after": "soon"}', None),
        (b'{"error": "slow down"}', None),
        (b"no", None),
        (b'{"retry_after": ' + b"9" * 1000 + b"}", None),
    ],
)
def test_the_wait_that_a_body_names(body: bytes, seconds: float | None) -> None:
    assert protocol.asked_delay(None, body) == seconds
    # The header goes first; also there a time beyond a day is taken for a fault.
    assert protocol.asked_delay(7.5, body) == 7.5
    assert protocol.asked_delay(86_401.0, body) is None


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("@helper hi", "hi"),
        ("@HELPER hi", "hi"),
        (" \n@helper\nhi", "hi"),
        ("@helper, hi", "hi"),
        ("@helper: hi", "hi"),
        ("@helper,: hi", ": hi"),
        ("@helper", ""),
        ("@helper:", ""),
        ("@helper2 hi", "@helper2 hi"),
        ("@helperé hi", "@helperé hi"),
        ("@helper_ hi", "@helper_ hi"),
        ("@helper-x", "-x"),
        ("hi @helper", "hi @helper"),
        ("helper hi", "helper hi"),
        ("@helper @helper hi", "@helper hi"),
        ("  keep  ", "  keep  "),
    ],
)
def test_a_leading_mention_is_removed(text: str, rest: str) -> None:
    assert protocol.without_mention(text, "helper") == rest
    assert protocol.without_mention(text, "@Helper") == rest
    assert protocol.without_mention(text, None) == text
    assert protocol.without_mention(text, "") == text


def test_a_username_is_no_pattern() -> None:
    assert protocol.without_mention("@a.b+ hi", "a.b+") == "hi"
    assert protocol.without_mention("@axb hi", "a.b") == "@axb hi"


@pytest.mark.parametrize("text", ["/new", "/reset", " /NEW\n", "\t/Reset "])
def test_a_reset(text: str) -> None:
    assert protocol.is_reset(text)


@pytest.mark.parametrize("text", ["/news", "/new x", "new", "", "/ new", "/new/reset"])
def test_no_reset(text: str) -> None:
    assert not protocol.is_reset(text)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ana", "ana: hi"),
        (" ana\r\nbob\u2028x\t", "ana bob x: hi"),
        ("a\u202eb\x00\x1b", "ab: hi"),
        ("x" * 65, "x" * 64 + ": hi"),
        ("x" * 63 + "e\u0301\u0301", "x" * 63 + ": hi"),
    ],
)
def test_a_name_is_one_short_line(name: str, line: str) -> None:
    assert protocol.with_name(name, "5", "hi") == line


@pytest.mark.parametrize("name", [None, "", " \n", "\x00", "\u200e\u202e", "\u200b", "\u3164"])
def test_without_a_name_that_shows_it_is_the_id(name: str | None) -> None:
    """Or else the text could pass for what another one has written."""
    assert protocol.with_name(name, "5", "ana: hi") == "5: ana: hi"
    assert protocol.with_name(name, "\u200b", "ana: hi") == "?: ana: hi"


def test_a_request_is_the_same_bytes_each_time() -> None:
    body = protocol.request_body("m", 'é "x"\n')
    assert body.decode() == (
        '{"model":"m","messages":[{"role":"user","content":"é \\"x\\"\\n"}],"stream":false}'
    )


@pytest.mark.parametrize(
    ("sender", "person"),
    [
        ({"id": 1, "type": "user"}, True),
        ({"id": 1}, True),
        ({"id": 1, "type": None}, True),
        ({"id": 1, "type": "bot"}, False),
        ({"id": 1, "type": "User"}, False),
        ({"id": 1, "type": ""}, False),
        ({"id": 1, "type": 5}, False),
    ],
)
def test_who_is_a_person(sender: dict, person: bool) -> None:
    assert from_sender(sender).is_person is person


@pytest.mark.parametrize(
    ("sender", "own"),
    [
        ({"id": 77, "type": "user", "is_bot": False, "username": "owner"}, True),
        ({"id": "77", "type": "user"}, True),
        ({"id": 5, "type": "user", "username": "Helper"}, True),
        ({"id": 5, "username": "@helper"}, True),
        ({"id": 5, "type": "bot", "username": "helper2"}, False),
        ({"id": 770, "type": "bot"}, False),
        ({"id": 5, "type": "bot", "username": ""}, False),
    ],
)
def test_KH35_the_bots_own_messages_are_known(sender: dict, own: bool) -> None:
    message = from_sender(sender)
    assert protocol.is_own(message, 77, "helper") is own
    assert protocol.is_own(message, "77", "helper") is own
    assert not protocol.is_own(message, None, None)


def test_KH35_one_of_the_two_facts_is_enough() -> None:
    assert protocol.is_own(from_sender({"id": 77}), 77, None)
    assert protocol.is_own(from_sender({"id": 5, "username": "helper"}), None, "helper")
    assert not protocol.is_own(from_sender({"id": 5, "username": "helper"}), 77, "")
