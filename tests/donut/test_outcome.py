import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

from hermes_bridges.donut.outcome import Answered, Failed, Rejected, classify

NO_HEADERS: CaseInsensitiveDict = CaseInsensitiveDict()
SAYING = {"finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}


def completion(content: Any = "hello", reason: Any = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}}
    if reason is not ...:
        choice["finish_reason"] = reason
    return json.dumps({"object": "chat.completion", "choices": [choice]} | more).encode()


def of(body: bytes, **headers: str):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify(200, CaseInsensitiveDict(names), body)


def test_an_answer() -> None:
    assert of(completion("hello")) == Answered("hello", None, cut=False)


@pytest.mark.parametrize("reason", ["stop", None, "", ...])
def test_an_answer_whose_end_is_ordinary_or_untold(reason) -> None:
    assert of(completion("hello", reason)) == Answered("hello", None, cut=False)


def test_an_answer_that_was_cut_by_its_length() -> None:
    assert of(completion("hello", "length")) == Answered("hello", None, cut=True)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
        ["hello"],
        [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "hello"}, None, 7],
    ],
)
def test_an_answer_in_parts(content) -> None:
    assert of(completion(content)) == Answered("hello", None, cut=False)


@pytest.mark.parametrize(
    "text", ["[SILENT]", "NO_REPLY", "<|eos|>", " </s> ", "(empty) is what it said", "⚠️ No!"]
)
def test_texts_that_only_look_like_failures(text: str) -> None:
    assert of(completion(text)) == Answered(text, None, cut=False)


def test_facts_that_speak_of_success_do_no_harm() -> None:
    body = completion(hermes={"completed": True, "failed": False}, error=None, usage={})
    assert of(body, X_Hermes_Completed="true") == Answered("hello", None, cut=False)


KH06 = {
    "no choices": b'{"choices": []}',
    "choices missing": b"{}",
    "choices of another type": b'{"choices": {"0": {}}}',
    "a choice of another type": b'{"choices": ["hello"]}',
    "no message": b'{"choices": [{"finish_reason": "stop"}]}',
    "a message of another type": b'{"choices": [{"message": "hello"}]}',
    "null": completion(None),
    "nothing": completion(""),
    "blank": completion(" \n\u00a0\u200b\ufeff"),
    "(empty)": completion("(empty)"),
    "(empty) and a token": completion(" (empty)\n<|eos|>"),
    "no reply": completion("⚠️ No reply: the model returned empty content after retries."),
    "no reply, plain": completion("\n⚠ No reply: nothing came."),
    "no reply, untranslated": completion("explainer.no_reply_prefixexplainer.empty_response"),
    "a number": completion(7),
    "an object": completion({"text": "hello"}),
    "parts that hold no text": completion([{"type": "image_url"}, {"type": "text", "text": 7}]),
    "no parts": completion([]),
    "error": completion("HTTP 500: it failed", "error"),
    "tool calls": completion("hello", "tool_calls"),
    "an odd reason": completion("hello", {"stop": True}),
    "an error object": json.dumps({"error": {"message": "x"}, "choices": [SAYING]}).encode(),
    "an error text": json.dumps({"error": "x", "choices": [SAYING]}).encode(),
    "failed": completion(hermes={"completed": False, "failed": True}),
    "HTML": b"<html><body>hello</body></html>",
    "no bytes": b"",
    "half of it": completion()[:-9],
    "a list": b"[" + completion() + b"]",
    "not UTF-8": b'{"choices": "\xff"}',
    "too deep": b"[" * 100_000,
    "too long a number": b"9" * 5000,
}


@pytest.mark.parametrize("body", KH06.values(), ids=KH06)
def test_KH06_a_200_that_is_a_failure(body: bytes) -> None:
    outcome = of(body)
    assert isinstance(outcome, Failed) and outcome.kind == "answer"
    assert "hello" not in outcome.told and "HTTP 500" not in outcome.told


@pytest.mark.parametrize("value", ["false", "False", " false "])
def test_KH06_a_header_that_reports_a_failure(value: str) -> None:
    outcome = of(completion("The model is not reachable."), x_hermes_completed=value)
    assert outcome == Failed("answer", "Hermes reports a failed turn")


@pytest.mark.parametrize("session", ["s2", "donut-77-1234.2", "x" * 256])
def test_KH05_a_session_id_that_comes_back_is_taken_over(session: str) -> None:
    assert of(completion(), X_Hermes_Session_Id=session) == Answered("hello", session, False)


@pytest.mark.parametrize("session", ["", " ", "x" * 257, "a b", "a/b", "a:b", "sé", "a\x00"])
def test_KH05_one_that_is_empty_or_could_not_be_sent_is_not(session: str) -> None:
    assert of(completion(), X_Hermes_Session_Id=session) == Answered("hello", None, False)


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_what_is_the_fault_of_the_message(status: int) -> None:
    assert classify(status, NO_HEADERS, completion()) == Rejected(status)


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (401, "auth", "HERMES_API_KEY"),
        (403, "auth", "HERMES_API_KEY"),
        (404, "address", "HERMES_BASE_URL"),
        (405, "address", "HERMES_BASE_URL"),
        (301, "address", "HERMES_BASE_URL"),
        (307, "address", "HERMES_BASE_URL"),
        (408, "busy", "408"),
        (425, "busy", "425"),
        (429, "busy", "429"),
        (503, "busy", "503"),
        (500, "status", "500"),
        (502, "status", "502"),
        (504, "status", "504"),
        (402, "status", "402"),
        (409, "status", "409"),
        (418, "status", "418"),
        (201, "status", "201"),
        (204, "status", "204"),
        (101, "status", "101"),
        (999, "status", "999"),
    ],
)
def test_every_other_status_is_a_failure(status: int, kind: str, told: str) -> None:
    outcome = classify(status, NO_HEADERS, completion("do not quote me"))
    assert isinstance(outcome, Failed) and outcome.kind == kind
    assert told in outcome.told and str(status) in outcome.told
    assert "quote" not in outcome.told


FIELDS = "choices message content finish_reason hermes failed error text type".split()
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
)


@given(st.binary() | JSONS.map(lambda value: json.dumps(value).encode()), st.text())
def test_no_answer_is_fatal(body: bytes, session: str) -> None:
    outcome = of(body, X_Hermes_Session_Id=session)
    assert isinstance(outcome, Answered | Failed)


@given(JSONS)
def test_no_content_is_fatal_or_posted_as_something_else_than_text(content: Any) -> None:
    outcome = of(completion(content))
    if isinstance(outcome, Answered):
        assert isinstance(outcome.text, str) and not isinstance(content, dict | int | float)
