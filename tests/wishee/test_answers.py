import pytest

from hermes_bridges.wishee.answers import RESULT_MAX, Said


def said(*heard: tuple[str, bool]) -> Said:
    made = Said()
    for text, final in heard:
        made.hear(text, final)
    return made


def test_what_the_turn_returns_comes_first():
    assert said(("sent", True)).result(" returned \n") == "returned"


def test_the_last_marked_text_is_the_result_whatever_comes_behind_it():
    heard = (("one", True), ("two", True), ("a notice", False))
    assert said(*heard).result("") == "two"


def test_without_a_marked_text_it_is_the_last_one_and_not_all_of_them():
    assert said(("one", False), ("two", False), ("  ", False)).result(" ") == "two"


def test_nothing_is_an_empty_text():
    assert said().result("") == ""
    assert not said() and said(("x", False))


@pytest.mark.parametrize(
    "head",
    [
        "💭 Reasoning:\n```\nfirst\n\nthen\n```\n\n",
        "💭 **思考**\n````\na ``` b\n````\n\n",
        "> 💭 Reasoning\n> first\n>\n> then\n\n",
        "-# 💭 Reasoning\n-# first\n\n",
    ],
)
def test_W16_thoughts_at_the_very_beginning_are_cut(head: str):
    assert said().result(f"{head}the answer\n") == "the answer"
    kept = f"words\n{head}more"
    assert said().result(kept) == kept, "only at the beginning"


@pytest.mark.parametrize("text", ["💭 only a word", "> quoted\n\nwords", "```\ncode\n```\n\nwords"])
def test_what_only_looks_like_thoughts_stays(text: str):
    assert said().result(text) == text


def test_a_result_fits_into_a_frame():
    assert len(said().result("x" * (RESULT_MAX + 1))) == RESULT_MAX
    assert len(said(("x" * (RESULT_MAX + 1), True)).final) == RESULT_MAX


def test_half_characters_do_not_get_out():
    said().result("a\ud800b").encode()
