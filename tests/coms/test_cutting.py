"""Cutting text: never inside what a reader sees as one character (contract section 7, D8)."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.coms.cutting import cut, shorten
from hermes_bridges.coms.jsrules import utf16_len
from hermes_bridges.core.clusters import clean_text

CHARACTERS = [
    "a",
    "€",
    "😀",
    "e\u0301",
    "e\u0301\u0327\u20dd",
    "☎\ufe0f",
    "👍🏽",
    "👨\u200d👩\u200d👧",
    "❤\ufe0f\u200d🔥",
    "🇩🇪",
    "🇨🇿",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u1112\u1161\u11ab",
    "क\u094dष\u093f",
    "ｶ\uff9e",
    "ن\u200c",
    "\r\n",
]


@pytest.mark.parametrize("character", CHARACTERS)
def test_D8_a_character_is_kept_whole_or_left_out(character: str) -> None:
    size = utf16_len(character)
    for limit in range(size):
        assert cut(character * 2, limit) == ""
        assert cut("x" + character, 1 + limit) == "x"
    assert cut(character * 2, size) == character
    assert cut(character * 2, 2 * size - 1) == character
    assert cut(character * 2, 2 * size) == character * 2


@given(st.lists(st.sampled_from(CHARACTERS), max_size=12), st.integers(-1, 60))
def test_D8_a_cut_takes_as_many_whole_characters_as_fit(characters: list[str], limit: int) -> None:
    kept = ""
    for character in characters:
        if utf16_len(kept + character) > limit:
            break
        kept += character
    assert cut("".join(characters), limit) == kept


@given(st.text(max_size=60), st.integers(0, 60))
def test_D8_a_cut_is_a_start_within_the_limit(text: str, limit: int) -> None:
    kept = cut(text, limit)
    assert text.startswith(kept)
    assert utf16_len(kept) <= limit
    assert clean_text(kept) == kept


@pytest.mark.parametrize(
    "hostile",
    [
        "a" + "\u0301" * 60_000,
        "\u200d" * 60_000,
        "🇩" * 60_001,
        "क\u094d" * 30_000,
        "👨\u200d" * 30_000,
    ],
)
def test_D8_a_hostile_text_takes_no_time(hostile: str) -> None:
    start = time.monotonic()
    for limit in (4000, 50_000):
        assert utf16_len(cut(hostile, limit)) <= limit
    assert time.monotonic() - start < 1


def test_a_cut_flag_row_keeps_its_pairs() -> None:
    assert cut("🇩🇪🇫🇷🇬🇧", 11) == "🇩🇪🇫🇷"
    assert cut("x🇩🇪🇫🇷", 7) == "x🇩🇪"
    assert cut("🇩x", 2) == "🇩"


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a😀", 2, "a…"), ("😀😀", 3, "😀…"), ("abc", 1, "…")],
)
def test_a_shortened_text_ends_in_an_ellipsis(text: str, limit: int, short: str) -> None:
    assert shorten(text, limit) == short
