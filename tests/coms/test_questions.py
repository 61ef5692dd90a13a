"""Prompts, answers, notes and the words of the event log (contract section 5)."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.coms import questions
from hermes_bridges.coms.jsrules import trim
from hermes_bridges.coms.questions import (
    EVENTS,
    PHASES,
    REASONS,
    Answer,
    AnswerRefused,
    Option,
    Question,
    map_answer,
    parse_prompt,
    read_answer,
)
from hermes_bridges.errors import BridgeError

QID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
OTHER = "01ARZ3NDEKTSV4RRFFQ69G5FAW"
FILE = {"qid": QID, "answer": "Yes", "answered_by": "telegram:nick", "at": "2026-07-08T12:34:56Z"}


# Prompts


def asked(fields: object) -> Question:
    return parse_prompt(json.dumps(fields), "n", "/c")


def test_a_prompt_of_json() -> None:
    fields = {
        "question": " Why? ",
        "context": " c ",
        "options": ["A", {"title": "B", "description": "b"}, {"title": "", "description": ""}],
    }
    assert asked(fields) == Question(
        " Why? ", " c ", (Option("A"), Option("B", "b"), Option("", ""))
    )


def test_options_that_are_none_are_dropped_before_they_are_numbered() -> None:
    odd = [None, 1, True, [], ["A"], {}, {"title": 1}, {"title": None, "description": "x"}]
    fields = {"question": "q", "options": [*odd, "A", {"title": "B", "description": 5}]}
    assert asked(fields).options == (Option("A"), Option("B"))


@pytest.mark.parametrize("options", [None, "AB", 5, {"title": "A"}, True])
def test_options_that_are_no_list_are_none(options: object) -> None:
    assert asked({"question": "q", "options": options}).options == ()


@pytest.mark.parametrize("context", [None, 1, [], "", " \t\n", "\xa0\ufeff\u2028"])
def test_a_blank_context_is_none(context: object) -> None:
    assert asked({"question": "q", "context": context}).context is None


@pytest.mark.parametrize("context", ["\x1c", "\x85", "\u200b", " x"])
def test_a_context_that_javascript_does_not_call_blank_counts(context: str) -> None:
    assert asked({"question": "q", "context": context}).context == context


@pytest.mark.parametrize(
    "prompt",
    [
        "Why?",
        "",
        '{"question":1}',
        '{"q":"x"}',
        '["question"]',
        "null",
        '"question"',
        "12",
        "{",
        '{"question":"a"} x',
        '\ufeff{"question":"a"}',
        '{"question":"a\nb"}',
        '{"question":"a","n":NaN}',
        "[" * 60000,
        "9" * 5000,
    ],
)
def test_any_other_prompt_is_plain_text(prompt: str) -> None:
    assert parse_prompt(prompt, "n", "/c") == Question(prompt, "From n @ /c", ())


def test_a_question_of_json_may_be_empty() -> None:
    assert parse_prompt(' {"question":""} ', "n", "/c") == Question("", None, ())


@pytest.mark.parametrize(
    ("name", "cwd", "context"),
    [
        ("n", "/c", "From n @ /c"),
        ("n", None, "From n"),
        ("n", "", "From n"),
        (None, "/c", "From /c"),
        (" ", "/c", "From /c"),
        (None, None, None),
        ("", " ", None),
    ],
)
def test_D10_missing_sender_fields(name: str | None, cwd: str | None, context: str | None) -> None:
    assert parse_prompt("Why?", name, cwd).context == context


def test_KH27_surrogates_inside_a_prompt_are_cleaned() -> None:
    prompt = (
        r'{"question":"\ud83d","context":"\udc80",'
        r'"options":["\ud83d\ude00",{"title":"\ud800","description":"\ude00"}]}'
    )
    assert parse_prompt(prompt, None, None) == Question(
        "\ufffd", "\ufffd", (Option("😀"), Option("\ufffd", "\ufffd"))
    )
    assert parse_prompt("\ud83d", None, None).text == "\ufffd"


@given(st.text('{}[]"\\:,questionabtd8305.-+ \n', max_size=40))
def test_any_prompt_is_read(prompt: str) -> None:
    assert isinstance(parse_prompt(prompt, None, None), Question)


# Notes and errors, character for character


def test_the_notes() -> None:
    assert questions.cancel_note(QID) == (
        f"✖ [HUB-Q:{QID}] The question was cancelled — it was answered from the console."
    )
    assert questions.timeout_note(QID, 1_800_000.0) == (
        f"⌛ [HUB-Q:{QID}] The question timed out after 1800000ms."
    )
    assert questions.late_note(QID) == (
        f"ℹ [HUB-Q:{QID}] This question is already closed; the late answer was ignored."
    )
    assert questions.reject_note(QID, "invalid_json") == (
        f"⚠ [HUB-Q:{QID}] The answer could not be read (invalid_json); please reply again."
    )


@pytest.mark.parametrize(
    ("ms", "printed"),
    [(100.0, "100"), (150.5, "150.5"), (90, "90"), (1e21, "1e+21"), (2**31, "2147483648")],
)
def test_a_timeout_is_printed_as_javascript_does(ms: float, printed: str) -> None:
    assert questions.timeout_error(ms) == f"no remote answer within {printed}ms"
    assert questions.timeout_note(QID, ms).endswith(f" after {printed}ms.")


@pytest.mark.parametrize(
    ("code", "detail", "text"),
    [
        (1, " no token\n", "hermes send failed (1): no token"),
        (2, "", "hermes send failed (2)"),
        (0, " \n\ufeff", "hermes send failed (0)"),
        (None, "", "hermes send failed"),
        (None, "killed", "hermes send failed: killed"),
        (1, "\x85x", "hermes send failed (1): \x85x"),
    ],
)
def test_a_failed_send(code: int | None, detail: str, text: str) -> None:
    assert questions.send_error(code, detail) == text


def test_a_bad_qid() -> None:
    assert questions.bad_qid_error() == "prompt msg_id must be a 26-character Crockford ULID qid"


# Answer files


def written(**fields: object) -> bytes:
    return json.dumps(FILE | fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def refused(raw: bytes) -> str:
    with pytest.raises(AnswerRefused) as caught:
        read_answer(raw, QID)
    assert isinstance(caught.value, BridgeError)
    assert caught.value.reason in REASONS
    return caught.value.reason


def test_an_answer_file() -> None:
    raw = written(extra=[1], answer=" Yes\n")
    assert read_answer(raw, QID) == Answer(QID, " Yes\n", "telegram:nick", FILE["at"])
    assert read_answer(b" \r\n" + raw + b"\n\n", QID).text == " Yes\n"


def test_an_empty_answer_is_one() -> None:
    assert read_answer(written(answer=""), QID).text == ""


def test_L11_a_byte_order_mark_is_accepted() -> None:
    assert read_answer(b"\xef\xbb\xbf" + written(), QID).text == "Yes"


def test_L11_a_raw_newline_in_a_text_is_accepted() -> None:
    raw = written(answer="a|b").replace(b"|", b"\r\n\t")
    assert read_answer(raw, QID).text == "a\r\n\tb"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        written()[:-1],
        written() + b"}",
        written() * 2,
        b"\xff",
        written(answer="\ud83d"),
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"[" * 100000,
        b"\x00" * 100,
        written()[:-1] + b',"n":NaN}',
        b"yes",
        written().replace(b'"Yes"', b"'Yes'"),
    ],
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    assert refused(raw) == "invalid_json"


@pytest.mark.parametrize("raw", [b"null", b"[]", b"1", b'"x"', b"{}", b"9" + b"9" * 5000])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    assert refused(raw) == "invalid_schema"


@pytest.mark.parametrize("name", ["qid", "answer", "answered_by", "at"])
@pytest.mark.parametrize("value", [None, 1, True, ["x"], {}])
def test_a_field_of_another_type_is_refused(name: str, value: object) -> None:
    assert refused(written(**{name: value})) == "invalid_schema"


@pytest.mark.parametrize(
    "fields", [{"answered_by": ""}, {"at": "now"}, {"at": ""}, {"at": "2026-13-01"}]
)
def test_a_field_that_says_nothing_is_refused(fields: dict[str, str]) -> None:
    assert refused(written(**fields)) == "invalid_schema"


def test_the_schema_is_checked_before_the_qid() -> None:
    assert refused(written(qid=OTHER)) == "qid_mismatch"
    assert refused(written(qid="x")) == "qid_mismatch"
    assert refused(written(qid=OTHER, at="now")) == "invalid_schema"


def test_KH11_separators_inside_an_answer_stay() -> None:
    assert read_answer(written(answer="a\u2028b\x85c"), QID).text == "a\u2028b\x85c"


def test_KH27_surrogates_in_an_answer_are_cleaned() -> None:
    raw = written(answer="|", answered_by="?").replace(b"|", rb"\ud83d \ud83d\ude00")
    answer = read_answer(raw.replace(b"?", rb"\udc80"), QID)
    assert (answer.text, answer.answered_by) == ("\ufffd 😀", "\ufffd")


@given(st.binary(max_size=80) | st.text('{}[]"\\:,qidanswerby 01\n', max_size=60).map(str.encode))
def test_any_answer_file_is_read_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(read_answer(raw, QID), Answer)
    except AnswerRefused as error:
        assert error.reason in ("invalid_json", "invalid_schema", "qid_mismatch")


# The meaning of an answer

TITLES = ["Approve", "Revise", " Spaced ", "approve", "12", "İstanbul", "Straße", "ΣΑΣ"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("1", "Approve"),
        ("2", "Revise"),
        ("02", "Revise"),
        ("0000000000000000000002", "Revise"),
        (" 8 \n", "ΣΑΣ"),
        ("\ufeff2\xa0", "Revise"),
        ("\u20282\u2029", "Revise"),
        ("APPROVE", "Approve"),
        ("  revise\t", "Revise"),
        ("12", "12"),
        ("i\u0307stanbul", "İstanbul"),
        ("STRAßE", "Straße"),
        ("σας", "ΣΑΣ"),
    ],
)
def test_an_answer_that_names_an_option(text: str, title: str) -> None:
    assert map_answer(text, TITLES) == {"kind": "selection", "selections": [title]}


@pytest.mark.parametrize(
    ("text", "freeform"),
    [
        ("0", "0"),
        ("00", "00"),
        ("-1", "-1"),
        ("9", "9"),
        ("+1", "+1"),
        ("1.", "1."),
        ("1\n2", "1\n2"),
        ("٢", "٢"),
        ("２", "２"),
        ("²", "²"),
        ("9" * 5000, "9" * 5000),
        ("Spaced", "Spaced"),
        ("strasse", "strasse"),
        ("istanbul", "istanbul"),
        ("\x1c2", "\x1c2"),
        ("\x851\x85", "\x851\x85"),
        (" something else ", "something else"),
        ("", ""),
        ("\xa0", ""),
    ],
)
def test_any_other_answer_is_its_own_text(text: str, freeform: str) -> None:
    assert map_answer(text, TITLES) == {"kind": "freeform", "text": freeform}


def test_without_options_a_number_is_a_text() -> None:
    assert map_answer(" 1 ", []) == {"kind": "freeform", "text": "1"}
    assert map_answer("0", []) == {"kind": "freeform", "text": "0"}


def test_an_empty_title_can_be_answered_by_nothing() -> None:
    assert map_answer(" ", ["A", ""]) == {"kind": "selection", "selections": [""]}


@given(st.text(max_size=12), st.lists(st.text(max_size=6), max_size=6))
def test_an_answer_selects_one_of_the_titles_or_is_kept(text: str, titles: list[str]) -> None:
    match map_answer(text, titles):
        case {"kind": "selection", "selections": [title]}:
            assert title in titles
        case other:
            assert other == {"kind": "freeform", "text": trim(text)}


# The words of the event log


def called(node: ast.Call) -> str:
    """The name that is called, and for a method that of its object before it."""
    match node.func:
        case ast.Attribute(value=ast.Name(id=of) | ast.Attribute(attr=of), attr=name):
            return f"{of}.{name}"
        case ast.Name(id=name):
            return name
    return ""


def named(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name
    return None


def words(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Whatever is used as an event, a reason or a phase."""
    for node in ast.walk(tree):
        match node:
            case ast.Call() if called(node) == "_log.append":
                yield "event", node.args[0]
            case ast.Call() if called(node) == "Reject":
                yield "reason", node.args[1]
            case ast.Call() if called(node) == "AnswerRefused":
                yield "reason", node.args[0]
            case ast.Call() if called(node) in ("Job", "self.tell", "_dispatch.tell"):
                yield "phase", node.args[1]
            case ast.Compare(left=left) if named(left) == "phase":
                yield from (("phase", right) for right in node.comparators)
            case ast.Assign(
                targets=[ast.Attribute(attr="note")], value=ast.Constant() | ast.IfExp() as value
            ):
                yield "phase", value
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                yield from (
                    ("phase", value) for key, value in pairs if key and named(key) == "phase"
                )


def test_the_daemon_uses_every_word_of_the_vocabularies_and_no_other() -> None:
    used: dict[str, set[str]] = {"event": set(), "reason": set(), "phase": set()}
    for path in Path(questions.__file__).parent.glob("*.py"):
        for kind, value in words(ast.parse(path.read_bytes())):
            used[kind] |= {
                node.value
                for node in ast.walk(value)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
    assert used == {"event": EVENTS, "reason": REASONS, "phase": PHASES}
