"""The lines of the coms socket (contract section 4)."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_bridges.coms import envelope
from hermes_bridges.coms.envelope import (
    CUT_MARK,
    LINE_CAP,
    REFUSAL,
    Cancel,
    Ping,
    Prompt,
    Refused,
)
from hermes_bridges.coms.jsrules import utf16_len

QID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
PROMPT: dict[str, Any] = {
    "type": "prompt",
    "msg_id": QID,
    "prompt": "Why?",
    "sender_endpoint": "/run/a.sock",
    "hops": 0,
}
CANCEL = {
    "type": "cancel",
    "msg_id": "c1",
    "from": "ask-user-remote",
    "to": "user-remote",
    "created_at": "2026-07-08T12:00:00.000Z",
    "ref_msg_id": QID,
}


def line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def parsed(value: object) -> object:
    return envelope.parse(line(value))


def prompt_of(raw: bytes) -> Prompt:
    found = envelope.parse(raw)
    assert isinstance(found, Prompt)
    return found


# What comes in


def test_a_prompt_with_the_least_fields() -> None:
    assert parsed(PROMPT) == Prompt(QID, "Why?", "/run/a.sock", None, None, None, None)


def test_a_prompt_with_all_fields() -> None:
    found = parsed(
        PROMPT
        | {
            "sender_session": "s",
            "sender_name": "n",
            "sender_cwd": "/c",
            "reply_timeout_ms": 5000,
            "conversation_id": None,
            "response_schema": {"deep": [[]]},
            "timestamp": "t",
        }
    )
    assert found == Prompt(QID, "Why?", "/run/a.sock", "s", "n", "/c", 5000.0)


@pytest.mark.parametrize("name", ["sender_session", "sender_name", "sender_cwd"])
@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_an_optional_field_of_another_type_counts_as_missing(name: str, value: object) -> None:
    found = parsed(PROMPT | {name: value})
    assert isinstance(found, Prompt)
    assert getattr(found, name) is None


@pytest.mark.parametrize("name", ["msg_id", "prompt", "sender_endpoint", "hops"])
@pytest.mark.parametrize("value", [None, True, [], {}, "missing"])
def test_a_prompt_without_a_needed_field_is_refused(name: str, value: object) -> None:
    fields = PROMPT | {name: value}
    if value == "missing":
        del fields[name]
    found = parsed(fields)
    assert isinstance(found, Refused)
    assert found.error == "bridge accepts prompts, cancels, and pings"
    assert found.msg_id == ("" if fields.get("msg_id") is None else fields["msg_id"])


@pytest.mark.parametrize(
    "hops", ["0", "-1", "99", "2.5", "1e3", "1e999", "9" * 5000, "-" + "9" * 400]
)
def test_D12_any_number_of_hops_is_taken(hops: str) -> None:
    raw = line(PROMPT).replace(b'"hops": 0', f'"hops": {hops}'.encode())
    assert isinstance(envelope.parse(raw), Prompt)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ("1000", 1000.0),
        ("604800000", 604800000.0),
        ("1500.5", 1500.5),
        ("999.9", None),
        ("604800001", None),
        ("0", None),
        ("-5000", None),
        ("1e999", None),
        ("9" * 5000, None),
        ('"5000"', None),
        ("true", None),
        ("null", None),
    ],
)
def test_D12_a_time_limit_is_taken_within_its_range(given: str, limit: float | None) -> None:
    raw = line(PROMPT)[:-1] + f',"reply_timeout_ms":{given}}}'.encode()
    assert prompt_of(raw).reply_timeout_ms == limit


def test_a_cancel() -> None:
    assert parsed(CANCEL) == Cancel("c1", QID)
    assert parsed(CANCEL | {"ref_msg_id": "no ulid"}) == Cancel("c1", "no ulid")


@pytest.mark.parametrize("name", ["msg_id", "from", "to", "created_at", "ref_msg_id"])
@pytest.mark.parametrize("value", ["", None, 1, True])
def test_a_cancel_without_a_needed_field_is_refused(name: str, value: object) -> None:
    fields = CANCEL | {name: value}
    assert parsed(fields) == Refused("" if fields["msg_id"] is None else fields["msg_id"], REFUSAL)


@pytest.mark.parametrize(
    ("fields", "msg_id"),
    [
        ({}, ""),
        ({"msg_id": None}, ""),
        ({"msg_id": "p"}, "p"),
        ({"msg_id": 7}, 7),
        ({"msg_id": False}, False),
    ],
)
def test_a_ping_is_always_valid(fields: dict[str, object], msg_id: object) -> None:
    assert parsed({"type": "ping", **fields}) == Ping(msg_id)


@pytest.mark.parametrize(
    "raw", ["null", "[]", "[null]", "1", '"ping"', "true", "{}", '{"type":null}']
)
def test_H1_what_is_no_envelope_is_refused(raw: str) -> None:
    assert envelope.parse(raw.encode()) == Refused("", REFUSAL)


@pytest.mark.parametrize(
    ("msg_id", "echoed"),
    [
        ('"x"', '"x"'),
        ("null", '""'),
        ("0", "0"),
        ("-0.0", "0"),
        ("1.50", "1.5"),
        ("1e21", "1e+21"),
        ("1e999", "null"),
        ("false", "false"),
        ('{"a": [1, null]}', '{"a":[1,null]}'),
        (r'"\ud83d"', r'"\ud83d"'),
        (r'"\ud83d\ude00é"', '"😀é"'),
    ],
)
def test_a_refusal_echoes_any_id(msg_id: str, echoed: str) -> None:
    found = envelope.parse(f'{{"type":"response","msg_id":{msg_id}}}'.encode())
    assert isinstance(found, Refused)
    expected = f'{{"type":"nack","msg_id":{echoed},"error":"{REFUSAL}"}}\n'
    assert envelope.nack(found.msg_id, found.error) == expected.encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf{}",
        b'{"type":"ping","n":NaN}',
        b'{"type":"ping","n":-Infinity}',
        b'{"type":"ping"}{"type":"ping"}',
        b'{"type":"ping"} 1',
        b'{"type":"ping"',
        b"'ping'",
        b'{"type":"pi\tng"}',
        b'{"type":"ping"}\x00',
        b"[" * 65_000,
        b'{"a":' * 13_000,
        b"not json",
        b"\xff",
    ],
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    assert envelope.parse(raw) == Refused("", "invalid json")


@pytest.mark.parametrize("raw", [b"", b" ", b"\r", b"\t \r", "\xa0\u2028\ufeff".encode()])
def test_a_blank_line_is_nothing(raw: bytes) -> None:
    assert envelope.parse(raw) is None


def test_a_line_may_end_in_a_carriage_return() -> None:
    assert envelope.parse(line(PROMPT) + b"\r") == parsed(PROMPT)


def test_of_two_fields_of_a_name_the_last_counts() -> None:
    assert envelope.parse(b'{"type":"prompt","type":"ping","msg_id":1,"msg_id":2}') == Ping(2)


def test_KH11_separators_inside_a_text_stay() -> None:
    text = "a\u2028b\u2029c\x85d"
    assert prompt_of(line(PROMPT | {"prompt": text})).prompt == text


def test_L12_a_whole_line_is_decoded_at_once_and_bad_bytes_are_replaced() -> None:
    assert prompt_of(line(PROMPT | {"prompt": "€😀"})).prompt == "€😀"
    raw = line(PROMPT | {"prompt": "€"}).replace("€".encode(), b"\xe2\x82|\xff|\xed\xa0\x80")
    assert prompt_of(raw).prompt == "\ufffd|\ufffd|\ufffd\ufffd\ufffd"


def test_KH27_lone_surrogates_are_cleaned_but_the_id_is_kept() -> None:
    raw = (
        rb'{"type":"prompt","msg_id":"\ud83d","prompt":"hi \ud83d there \ud83d\ude00",'
        rb'"sender_endpoint":"/a\udc80","sender_session":"\ude00","sender_name":"\udc80",'
        rb'"sender_cwd":"\ud800","hops":1}'
    )
    found = prompt_of(raw)
    assert found == Prompt(
        "\ud83d", "hi \ufffd there 😀", "/a\ufffd", "\ufffd", "\ufffd", "\ufffd", None
    )
    assert envelope.ack(found.msg_id) == b'{"type":"ack","msg_id":"\\ud83d"}\n'


def test_a_nesting_that_can_be_read_but_not_followed_is_answered_all_the_same() -> None:
    for depth in range(50, 2000, 50):
        raw = b'{"type":"ping","msg_id":' + b"[" * depth + b"]" * depth + b"}"
        found = envelope.parse(raw)
        assert isinstance(found, (Ping, Refused))
        reply = envelope.pong(found.msg_id, {}) if isinstance(found, Ping) else b"x\n"
        assert reply.endswith(b"\n")


@pytest.mark.parametrize(
    "filler", [b"9", b"[", b"\\", b'"', b"{", b" ", b"0.", b"1e9", b"\xff", b"a"]
)
def test_a_hostile_line_takes_no_time(filler: bytes) -> None:
    long = filler * (65_000 // len(filler))
    start = time.monotonic()
    for raw in (long, b'{"type":"ping","msg_id":' + long + b"}", b'{"a":"' + long + b'"}'):
        envelope.over_cap(raw)
        envelope.parse(raw)
    assert time.monotonic() - start < 0.5


json_texts = st.text('{}[]:,"\\ud83dtypemsg_id01-. \t\r', max_size=40)
odd_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
odd_envelopes = st.fixed_dictionaries(
    {"type": st.sampled_from(["prompt", "cancel", "ping", "response", 1])},
    optional={
        name: odd_values for name in {**PROMPT, **CANCEL, "reply_timeout_ms": 1} if name != "type"
    },
)


@settings(max_examples=60)
@given(st.binary(max_size=60) | json_texts.map(str.encode) | odd_envelopes.map(line))
def test_anything_is_answered(raw: bytes) -> None:
    found = envelope.parse(raw)
    assert found is None or isinstance(found, (Prompt, Cancel, Ping, Refused))
    if isinstance(found, Refused):
        reply = json.loads(envelope.nack(found.msg_id, found.error))
        assert reply["type"] == "nack"
    elif found is not None:
        assert envelope.ack(found.msg_id).endswith(b"}\n")


# The cap


@pytest.mark.parametrize("char", ["x", "é", "€", "😀"])
def test_the_cap_counts_units_with_the_newline(char: str) -> None:
    units = utf16_len(char)
    fits = (LINE_CAP - 1) // units
    assert not envelope.over_cap(char.encode() * fits)
    assert envelope.over_cap(char.encode() * (fits + 1))


def test_the_cap_counts_replaced_bytes_as_they_will_be() -> None:
    assert not envelope.over_cap(b"\xff" * (LINE_CAP - 1))
    assert envelope.over_cap(b"\xff" * LINE_CAP)
    assert not envelope.over_cap(b"\xf0\x9f\x98x" * ((LINE_CAP - 1) // 2))
    assert envelope.over_cap(b"\xff" * 4 * LINE_CAP)


# What goes out


def test_replies_are_compact() -> None:
    assert envelope.ack(QID) == f'{{"type":"ack","msg_id":"{QID}"}}\n'.encode()
    assert envelope.nack("", "line too large") == (
        b'{"type":"nack","msg_id":"","error":"line too large"}\n'
    )
    card = {"name": "user-remote", "purpose": "Ä", "context_used_pct": 0, "queue_depth": 2}
    assert (
        envelope.pong(1.0, card)
        == (
            '{"type":"pong","msg_id":1,"agent_card":{"name":"user-remote","purpose":"Ä",'
            '"context_used_pct":0,"queue_depth":2}}\n'
        ).encode()
    )


def test_an_id_that_would_make_a_reply_too_long_is_left_out() -> None:
    long = "x" * (LINE_CAP - 40)
    assert envelope.nack(long, REFUSAL) == envelope.nack("", REFUSAL)
    assert envelope.pong(long, {"name": "n"}) == envelope.pong("", {"name": "n"})
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    assert envelope.nack(deep, REFUSAL) == envelope.nack("", REFUSAL)


def answer(value: object, error: str | None = None, qid: str = QID) -> dict[str, Any]:
    raw = envelope.response(qid, "S", "/run/b.sock", "2026-07-08T12:00:00.000Z", value, error)
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert not envelope.over_cap(raw[:-1])
    fields: dict[str, Any] = json.loads(raw)
    return fields


def test_a_response_has_its_fields_in_order() -> None:
    raw = envelope.response(QID, "S", "/e", "t", {"kind": "freeform", "text": "é\u2028"}, None)
    assert (
        raw
        == (
            f'{{"type":"response","msg_id":"{QID}","sender_session":"S","sender_endpoint":"/e",'
            '"hops":0,"timestamp":"t","response":{"kind":"freeform","text":"é\u2028"},"error":null}\n'
        ).encode()
    )
    assert b'"response":null,"error":"no"}' in envelope.response(QID, "S", "/e", "t", None, "no")


FILLERS = [
    "x",
    "\n",
    '"',
    "\\",
    "\x01",
    "é",
    "€",
    "😀",
    "e\u0301",
    "👨\u200d👩\u200d👧",
    "🇩🇪",
    "\ud83d",
]


@pytest.mark.parametrize("filler", FILLERS)
def test_L7_a_long_answer_is_cut_to_fit_with_a_mark(filler: str) -> None:
    fields = answer({"kind": "freeform", "text": filler * 200_000})
    assert fields["error"] is None
    assert fields["response"]["kind"] == "freeform"
    text = fields["response"]["text"]
    assert text.endswith(CUT_MARK)
    kept = text.removesuffix(CUT_MARK)
    whole = filler if filler != "\ud83d" else "\ufffd"
    assert kept == whole * (len(kept) // len(whole))
    size = utf16_len(json.dumps(fields, ensure_ascii=False, separators=(",", ":"))) + 1
    assert LINE_CAP - 12 <= size <= LINE_CAP


def test_L7_an_answer_that_just_fits_is_whole() -> None:
    frame = len(envelope.response(QID, "S", "/e", "t", {"kind": "freeform", "text": ""}, None))
    for text in ("x" * (LINE_CAP - frame), '"' * ((LINE_CAP - frame) // 2)):
        raw = envelope.response(QID, "S", "/e", "t", {"kind": "freeform", "text": text}, None)
        assert json.loads(raw)["response"]["text"] == text
    raw = envelope.response(
        QID, "S", "/e", "t", {"kind": "freeform", "text": "x" * (LINE_CAP - frame + 1)}, None
    )
    assert json.loads(raw)["response"]["text"].endswith(CUT_MARK)
    assert utf16_len(raw.decode()) == LINE_CAP


def test_L7_a_long_title_is_cut_to_fit() -> None:
    fields = answer({"kind": "selection", "selections": ["t" * 70_000]})
    assert fields["response"]["kind"] == "selection"
    assert fields["response"]["selections"][0].endswith(f"t{CUT_MARK}")


@pytest.mark.parametrize(
    "value", ["x" * 70_000, [["a" * 40_000], ["b" * 40_000]], {"kind": "x" * 66_000}]
)
def test_L7_any_other_long_value_becomes_a_cut_text(value: object) -> None:
    text = answer(value)["response"]
    assert text.endswith(CUT_MARK)
    assert utf16_len(text) > LINE_CAP // 2


def test_H4_a_long_error_is_cut_to_fit() -> None:
    raw = envelope.response(QID, "S", "/e", "t", None, "z" * 200_000)
    assert len(raw.decode()) == LINE_CAP
    fields = answer(None, "hermes send failed (1): " + "z\n" * 100_000)
    assert fields["response"] is None
    assert fields["error"].startswith("hermes send failed (1): z\nz\n")
    assert fields["error"].endswith(CUT_MARK)


def test_a_long_error_and_a_long_value_share_the_line() -> None:
    fields = answer({"kind": "freeform", "text": "x" * 70_000}, "z" * 70_000)
    assert len(fields["error"]) > 30_000
    assert len(fields["response"]["text"]) > 30_000


@pytest.mark.parametrize("filler", ["x", "\\", "\ud83d"])
def test_a_prompt_id_that_fills_a_line_still_gets_its_error(filler: str) -> None:
    fields = answer(None, "prompt msg_id must be a ULID", filler * 65_000)
    assert fields["error"] == "prompt msg_id must be a ULID"
    assert utf16_len(fields["msg_id"]) > 10_000


@given(
    st.text(max_size=8).flatmap(lambda piece: st.integers(0, 9000).map(lambda n: piece * n)),
    st.none() | st.text(max_size=20),
)
def test_L7_every_response_fits(text: str, error: str | None) -> None:
    fields = answer({"kind": "freeform", "text": text}, error)
    assert fields["error"] == error
    kept = fields["response"]["text"]
    assert kept == text or (
        kept.endswith(CUT_MARK) and text.startswith(kept.removesuffix(CUT_MARK))
    )


def test_a_built_prompt_is_read_as_one() -> None:
    raw = envelope.prompt(QID, "S", "/e", "t", "Why?", name="n", cwd="/c")
    assert raw.endswith(b"\n")
    assert json.loads(raw) == {
        "type": "prompt",
        "msg_id": QID,
        "sender_session": "S",
        "sender_endpoint": "/e",
        "hops": 0,
        "timestamp": "t",
        "prompt": "Why?",
        "sender_name": "n",
        "sender_cwd": "/c",
        "conversation_id": None,
        "response_schema": None,
    }
    assert envelope.parse(raw[:-1]) == Prompt(QID, "Why?", "/e", "S", "n", "/c", None)


def test_a_built_cancel_and_ping_are_read_as_such() -> None:
    raw = envelope.cancel("c", "me", "user-remote", "t", QID)
    assert envelope.parse(raw[:-1]) == Cancel("c", QID)
    assert envelope.parse(envelope.ping("p")[:-1]) == Ping("p")


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"type":"ack","msg_id":"x"}', "ack"),
        (b'{"type":"nack","error":"e"}\r\n', "nack"),
        (b'{"type":"pong","agent_card":{}}\n', "pong"),
        (b'{"type":"response"}', "bad"),
        (b'{"type":["ack"]}', "bad"),
        (b"{}", "bad"),
        (b"null", "bad"),
        (b"[]", "bad"),
        (b"", "bad"),
        (b"\xff", "bad"),
        (b"[" * 60_000, "bad"),
    ],
)
def test_the_kind_of_a_reply(raw: bytes, kind: str) -> None:
    found, fields = envelope.reply_kind(raw)
    assert found == kind
    assert isinstance(fields, dict)
    if kind == "nack":
        assert fields["error"] == "e"


# Ids


@pytest.mark.parametrize("text", [QID, envelope.ZERO_QID, "Z" * 26])
def test_a_ulid(text: str) -> None:
    assert envelope.is_ulid(text)


@pytest.mark.parametrize(
    "value",
    [
        "",
        QID[:-1],
        QID + "0",
        QID + "\n",
        QID.lower(),
        QID[:-1] + "I",
        QID[:-1] + "L",
        QID[:-1] + "O",
        QID[:-1] + "U",
        "٣" * 26,
        None,
        1,
        [QID],
    ],
)
def test_no_ulid(value: object) -> None:
    assert not envelope.is_ulid(value)


def test_a_new_ulid_holds_time_and_entropy() -> None:
    assert envelope.new_ulid(0, bytes(10)) == envelope.ZERO_QID
    assert envelope.new_ulid(2**48 - 1, b"\xff" * 10) == "7" + "Z" * 25
    assert envelope.new_ulid(1469918176385, b"\x00" * 9 + b"\x01") == "01ARYZ6S41" + "0" * 15 + "1"
    assert envelope.new_ulid(1, bytes(10)) < envelope.new_ulid(2, bytes(10))
    with pytest.raises(ValueError):
        envelope.new_ulid(0, bytes(9))
