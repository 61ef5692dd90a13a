import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.wishee import protocol
from hermes_bridges.wishee.protocol import BadParams, ChatSend, Ignored, Request, Welcome, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def read(raw: bytes) -> dict:
    return json.loads(raw.decode("utf-8"))


def raw(value) -> bytes:
    return json.dumps(value).encode()


# --- what we send


def test_the_frames_have_exactly_their_fields():
    assert protocol.hello("a-1", "s", "0.14.0") == (
        b'{"type":"hello","agentId":"a-1","secret":"s","agentType":"hermes","version":"0.14.0"}'
    )
    assert protocol.res(7, {"ok": True}) == (
        b'{"type":"res","id":7,"ok":true,"payload":{"ok":true}}'
    )
    assert protocol.error("x", "unknown method: y") == (
        b'{"type":"res","id":"x","ok":false,"error":{"message":"unknown method: y"}}'
    )
    assert protocol.event("task-result", {"text": "\u4f60\u597d"}) == (
        '{"type":"event","event":"task-result","payload":{"text":"\u4f60\u597d"}}'.encode()
    )


def test_KH27_halves_of_characters_never_reach_the_wire_wishee():
    text = read(protocol.event("e", {"text": "hi \ud83d there \udc80 \ud83d\ude00"}))
    assert text["payload"]["text"] == "hi \ufffd there \ufffd \U0001f600"
    assert read(protocol.error("\ud800", "\udfff"))["id"] == "\ufffd"


def test_KH27_halves_of_characters_are_replaced_on_the_way_in_wishee():
    request = parse(b'{"type":"req","params":{"message":"hi \\ud83d, \\ud83d\\ude00"}}')
    assert isinstance(request, Request)
    assert protocol.chat_send(request.params).message == "hi \ufffd, \U0001f600"


@given(JSON)
def test_any_id_comes_back_as_it_came(id):
    request = parse(raw({"type": "req", "id": id, "method": "x"}))
    assert isinstance(request, Request)
    assert read(protocol.res(request.id, {})) == {
        "type": "res",
        "id": id,
        "ok": True,
        "payload": {},
    }


# --- what we read


def test_a_welcome():
    assert parse(b'{"type":"welcome","userId":"u-1"}') == Welcome("u-1")
    assert parse(b'{"type":"welcome","userId":17}') == Welcome("17")
    odd: object
    for odd in (None, [], True, {}):
        assert parse(raw({"type": "welcome", "userId": odd})) == Welcome("")
    assert parse(b'{"type":"welcome"}') == Welcome("")


def test_a_request():
    frame = {"type": "req", "id": "r1", "method": "chat.send", "params": {"message": "x"}}
    assert parse(raw(frame)) == Request("r1", "chat.send", {"message": "x"})
    for params in ({}, {"params": None}):
        assert parse(raw({"type": "req", "id": 1, "method": "m", **params})) == Request(1, "m", {})
    assert parse(b'{"type":"req"}') == Request(None, "", {})
    assert parse(raw({"type": "req", "method": ["x"], "params": [1]})) == Request(None, "", [1])


GARBAGE = {
    "nothing": b"",
    "text": b"hello",
    "not UTF-8": b"\xff\xfe",
    "half a character": '{"type":"req","id":"中'.encode()[:-1],
    "cut": b'{"type":"req","id":1',
    "two": b"{}{}",
    "NaN": b'{"type":"req","id":NaN}',
    "infinity": b'{"type":"req","id":1e999}',
    "many digits": b'{"type":"req","id":' + b"9" * 100_000 + b"}",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep id": b'{"type":"req","id":' + b"[" * 500 + b"]" * 500 + b"}",
    "an array": b"[1]",
    "a string": b'"welcome"',
    "a number": b"1",
    "null": b"null",
    "no type": b"{}",
    "an odd type": b'{"type":["req"]}',
    "ours": b'{"type":"res","id":1}',
    "unknown": b'{"type":"ping"}',
}


@pytest.mark.parametrize("frame", GARBAGE.values(), ids=GARBAGE)
def test_W21_a_frame_that_is_none_is_ignored(frame):
    found = parse(frame)
    assert isinstance(found, Ignored)
    assert found.reason


@given(st.binary(max_size=60))
def test_nothing_that_comes_raises(data):
    parse(data)
    protocol.id_of_head(data)


@given(JSON)
def test_no_json_raises(value):
    parse(raw(value))
    parse(raw({"type": "req", "params": value, "id": value, "method": value}))


# --- the beginning of a frame that is too large


def test_W22_the_id_is_found_in_the_beginning():
    for id in ("r-1", 17, None, [1, "x"], {"a": 1}, True, 1.5, "\u4e2d"):
        frame = raw({"type": "req", "id": id, "method": "chat.send", "params": {"m": "x" * 9000}})
        assert protocol.id_of_head(frame[:4096]) == id
    assert protocol.id_of_head(b' { "id" : "a" , "x" : "') == "a"
    frame = raw({"params": {"id": "inner"}, "id": "outer", "message": "x" * 9000})
    assert protocol.id_of_head(frame[:4096]) == "outer"


def test_W22_an_id_that_is_not_in_the_beginning_is_not_guessed():
    for head in (
        raw({"params": {"id": "inner", "m": "x" * 9000}, "id": "r-1"})[:4096],
        b'{"id":12',  # which may go on as 123
        b'{"id":"ab',
        b'{"id":17 ',
        b'{"x":1,"id"',
        b'[{"id":1,',
        b'{"params":"\xff","idx":1,',
        b"",
        b"{" * 4096,
        b'{"id":' + b"[" * 4000,
    ):
        assert protocol.id_of_head(head) is None


def test_W22_wherever_the_beginning_ends_an_id_is_right_or_missing():
    source = random.Random(1)
    for _ in range(200):
        id = source.choice(["r-1", 123456, -1.25, [1, [2]], "中" * 5])
        frame = {"type": "req", "id": id, "method": "x", "params": {"m": "y" * 50}}
        whole = json.dumps(frame, ensure_ascii=source.random() < 0.5).encode()
        assert protocol.id_of_head(whole[: source.randrange(len(whole))]) in (None, id)


# --- parameters


def refused(read, params) -> str:
    with pytest.raises(BadParams) as caught:
        read(params)
    return str(caught.value)


def test_what_is_not_given_has_its_default():
    assert protocol.chat_send({"message": "x"}) == ChatSend("agent:main:main", "x")
    assert protocol.history({}) == ("agent:main:main", 20)
    assert protocol.history({"sessionKey": None, "limit": None}) == ("agent:main:main", 20)
    assert protocol.reset({}) == "agent:main:main"


def test_what_is_given_is_taken():
    assert protocol.chat_send({"sessionKey": "k", "message": " x\n"}) == ChatSend("k", " x\n")
    assert protocol.history({"sessionKey": "k", "limit": 200}) == ("k", 200)
    assert protocol.reset({"key": "a", "sessionKey": "b"}) == "a"
    assert protocol.reset({"sessionKey": "b", "more": 1}) == "b"


ODD = [1, 1.5, True, [], {}, ["x"]]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_W26_a_wrong_type_names_the_parameter(odd):
    assert refused(protocol.chat_send, {"message": odd}) == "message: must be a text"
    assert refused(protocol.chat_send, {"message": "x", "sessionKey": odd}) == (
        "sessionKey: must be a text"
    )
    assert refused(protocol.history, {"sessionKey": odd}) == "sessionKey: must be a text"
    assert refused(protocol.reset, {"key": odd}) == "key: must be a text"
    assert refused(protocol.reset, {"key": "fine", "sessionKey": odd}).startswith("sessionKey")


@pytest.mark.parametrize("limit", [0, -1, 201, 10**30, True, False, "20", 20.5, [], {}], ids=repr)
def test_W26_a_limit_is_a_number_from_1_to_200(limit):
    assert refused(protocol.history, {"limit": limit}) == (
        "limit: must be a whole number from 1 to 200"
    )


@pytest.mark.parametrize("params", [None, 1, "x", [], True], ids=repr)
def test_W26_parameters_that_are_no_object(params):
    for read in (protocol.chat_send, protocol.history, protocol.reset):
        assert refused(read, params) == "params: must be an object"


@pytest.mark.parametrize("message", ["", " ", "\n\t ", "\u3000"], ids=repr)
def test_W26_an_empty_message_starts_no_turn(message):
    assert refused(protocol.chat_send, {"message": message}) == "message: must not be empty"


def test_W26_a_message_must_be_there():
    for params in ({}, {"message": None}):
        assert refused(protocol.chat_send, params) == "message: is missing"


def test_W26_texts_have_a_length_in_bytes():
    longest = "\u4e2d" * (256 * 1024 // 3) + "x"
    assert protocol.chat_send({"message": longest}).message == longest
    assert refused(protocol.chat_send, {"message": longest + "x"}) == (
        "message: must be at most 262144 bytes"
    )
    key = "k" * 256
    assert protocol.reset({"key": key}) == key
    assert refused(protocol.reset, {"key": key + "k"}) == "key: must be at most 256 bytes"
    assert refused(protocol.history, {"sessionKey": "\u4e2d" * 86}).startswith("sessionKey")
    assert refused(protocol.reset, {"key": ""}) == "key: must not be empty"


def test_W26_no_text_holds_a_NUL():
    assert refused(protocol.chat_send, {"message": "a\0b"}) == "message: must not hold a NUL"
    assert refused(protocol.reset, {"key": "\0"}) == "key: must not hold a NUL"
