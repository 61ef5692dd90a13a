"""Characters as a reader sees them: boundaries between them, and surrogates that are none."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.core.clusters import boundary_before, clean_text, is_boundary

# Any text at all, with surrogates for every second character: by chance hardly one would come.
any_text = st.lists(
    st.characters(codec=None, exclude_categories=()) | st.characters(categories=["Cs"]), max_size=40
).map("".join)
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
    "ก\u0e33",
]


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("hi \ud83d there", "hi \ufffd there"),
        ("\udc80", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00\ude00", "\ufffd😀\ufffd"),
        ("end\ud83d", "end\ufffd"),
        ("a\x00\u2028", "a\x00\u2028"),
    ],
)
def test_KH27_lone_surrogates_are_replaced_and_pairs_joined(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@given(any_text)
def test_KH27_cleaned_text_can_always_be_encoded(text: str) -> None:
    cleaned = clean_text(text)
    assert units(cleaned) == units(text)
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) == cleaned


@given(st.lists(st.sampled_from(CHARACTERS), max_size=12))
def test_boundaries_are_between_characters_and_nowhere_else(characters: list[str]) -> None:
    text = "".join(characters)
    ends = {len("".join(characters[:count])) for count in range(len(characters) + 1)}
    assert {at for at in range(len(text) + 1) if is_boundary(text, at)} == ends
    for at in range(len(text) + 1):
        assert boundary_before(text, at) == max(end for end in ends if end <= at)


def test_the_search_for_a_boundary_ends_where_it_is_told_to() -> None:
    assert boundary_before("a" + "\u0301" * 9, 8, 5) == 5
    assert boundary_before("a" + "\u0301" * 9, 8) == 0


def test_a_row_of_flags_is_counted_in_pairs() -> None:
    assert [is_boundary("x🇩🇪🇫🇷🇬", at) for at in range(7)] == [
        True, True, False, True, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "hostile",
    ["a" + "\u0301" * 60_000, "\u200d" * 60_000, "🇩" * 60_001, "👨\u200d" * 30_000],
)
def test_a_boundary_in_a_hostile_text_is_found_at_once(hostile: str) -> None:
    start = time.monotonic()
    for at in range(len(hostile) - 5, len(hostile)):
        boundary_before(hostile, at)
    assert time.monotonic() - start < 2
