"""Names of sessions and runs: safe in a header, stable, and never one for two."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.donut import keys

SESSION = re.compile(r"[A-Za-z0-9._-]{1,256}")
HEADER = re.compile(r"[!-~]{1,300}")
ALIKE = [
    "a", "A", "a ", " a", "a\n", "a\x00", "a:b", "b:c", "a.b", "a_b", "a-b", "a%b", "a%3ab", "a_3a",
    "None", "none", "", "_", "%", ".", ":", "5", "05", "-5", "é", "e\u0301", "чат—1", "a\nb", " x",
    "x ", "x", "😀", "/", "..", "0", "h", "x" * 300, "x" * 301, "X" * 300, "\ufffd", "\ud83d",
]  # fmt: skip
ids = st.one_of(
    st.sampled_from(ALIKE), st.text("a:.", max_size=3), st.text("aA:._%-3 "), st.text(max_size=4)
)
bots = st.none() | ids


@pytest.mark.parametrize(
    "chat", ["чат—1", "a\nb", " x", "x ", "x" * 300, "é" * 1024, "\r\n", "", ".."]
)
def test_KH20_any_chat_id_gives_names_that_a_header_takes(chat: str) -> None:
    assert SESSION.fullmatch(keys.session_id("77", chat, 0))
    assert keys.valid_session(keys.session_id("77", chat, 0))
    assert SESSION.fullmatch(keys.session_key("77", chat))
    run = keys.run_key("77", chat, chat)
    for key in (run, keys.part_key(run, 16), keys.notice_key(run, "fallback")):
        assert HEADER.fullmatch(key)


def test_KH20_a_name_stays_the_same_from_start_to_start() -> None:
    assert keys.session_id("77", "1234", 0) == "donut.77.1234.0"
    assert keys.session_id("77", "", 0) == "donut.77.__.0"
    assert keys.session_id(None, "чат", 3) == "donut._._d1_87_d0_b0_d1_82.3"
    assert keys.session_id("77", "x" * 300, 0) == (
        "donut_ef281e7a5f37cb6dfdfc3e5afd7740b0660053e8954a0920c15a2b38b971b0fe.0"
    )
    assert keys.session_key("77", "1234") == "donut.77.1234"
    assert keys.run_key("77", "1234", "9001") == "donut:77:1234:9001"
    assert keys.run_key(None, "a b", "Ü:") == "donut:%:a%20b:%c3%9c%3a"
    assert keys.part_key("donut:77:1234:9001", 2) == "donut:77:1234:9001:2"
    assert keys.notice_key("donut:77:1234:9001", "reset") == "donut:77:1234:9001:reset"


def test_KH21_no_two_chats_share_a_name() -> None:
    pairs = [(bot, chat) for bot in [None, *ALIKE] for chat in ALIKE]
    sessions = {keys.session_id(bot, chat, number) for bot, chat in pairs for number in (0, 1, 10)}
    assert len(sessions) == 3 * len(pairs)
    assert len({name.lower() for name in sessions}) == len(sessions)
    assert len({keys.session_key(bot, chat) for bot, chat in pairs}) == len(pairs)
    runs = {keys.run_key(bot, chat, message) for bot, chat in pairs for message in ALIKE}
    assert len(runs) == len(pairs) * len(ALIKE)


@given(
    st.tuples(bots, ids, st.integers(0, 20)),
    st.tuples(bots, ids, st.integers(0, 20)),
)
def test_KH21_different_chats_have_different_sessions(one, other) -> None:
    names = keys.session_id(*one), keys.session_id(*other)
    assert all(map(SESSION.fullmatch, names))
    assert all(map(keys.valid_session, names))
    assert (names[0] == names[1]) == (one == other)
    scopes = keys.session_key(*one[:2]), keys.session_key(*other[:2])
    assert (scopes[0] == scopes[1]) == (one[:2] == other[:2])


@given(st.tuples(bots, ids, ids), st.tuples(bots, ids, ids), st.integers(1, 16))
def test_KH21_different_messages_have_different_keys(one, other, part: int) -> None:
    runs = keys.run_key(*one), keys.run_key(*other)
    assert (runs[0] == runs[1]) == (one == other)
    names = {
        *runs,
        *(keys.part_key(run, part) for run in runs),
        *(keys.notice_key(run, "fallback") for run in runs),
    }
    assert len(names) == (3 if one == other else 6)
    assert all(map(HEADER.fullmatch, names))


@pytest.mark.parametrize("sign", [*":._%- ", "\n", "%3a", "_3a"])
def test_KH21_no_sign_inside_an_id_parts_it(sign: str) -> None:
    one, other = ("a", f"b{sign}c"), (f"a{sign}b", "c")
    assert keys.session_id(*one, 0) != keys.session_id(*other, 0)
    assert keys.session_key(*one) != keys.session_key(*other)
    assert (
        len(
            {
                keys.run_key(*one, "d"),
                keys.run_key(*other, "d"),
                keys.run_key("a", "b", f"c{sign}d"),
            }
        )
        == 3
    )


def test_a_hash_stands_for_nothing_else() -> None:
    name = keys.session_id("77", "x" * 300, 0).removesuffix(".0")
    prefix, hashed = name[:5], name[6:]
    assert (prefix, len(hashed)) == ("donut", 64)
    for chat in (hashed, f"h.{hashed}", f"_{hashed}"):
        assert keys.session_id(None, chat, 0).removesuffix(".0") != name
        assert keys.session_id("", chat, 0).removesuffix(".0") != name
    run = keys.run_key("77", "x" * 300, "1").removeprefix("donut:")
    assert len(run) == 64
    assert f"donut:{run}" not in (keys.run_key("", run, ""), keys.run_key(None, "", run))


@pytest.mark.parametrize(
    "text", ["a", "A.b_c-9", "x" * 256, "donut.77.1234.0", "20261130_1142_fab8"]
)
def test_a_session_that_may_be_taken_over(text: str) -> None:
    assert keys.valid_session(text)


@pytest.mark.parametrize(
    "text", [None, "", " ", "a b", "a\n", "é", "a:b", "a/b", "a..b", "x" * 257, "٣"]
)
def test_a_session_that_may_not(text: str | None) -> None:
    assert not keys.valid_session(text)
