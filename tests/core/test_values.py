from collections.abc import Callable

import pytest

from hermes_bridges.core.values import (
    DURATION_MAX,
    boolean,
    count,
    duration,
    duration_or_zero,
    one_of,
    word,
)

HUSH = "\x00hush\x00"
NO_DURATIONS = ["", " ", "s", "-1", "+1", "1 s", " 1", "1s ", "1S", "1d", "1m30s", "1e3", "1_0"]
NO_DURATIONS += ["inf", "nan", "1,5", "1..5", ".", "١", "0x1", "1s\n"]


def refused(parse: Callable[[str], object], text: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("500ms", 0.5),
        ("30s", 30),
        ("2m", 120),
        ("1h", 3600),
        ("1.5h", 5400),
        ("0.25", 0.25),
        (".5s", 0.5),
        ("5.s", 5),
        ("007", 7),
        ("9" * 400 + "h", DURATION_MAX),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == duration_or_zero(text) == seconds


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_what_is_no_duration(text: str) -> None:
    assert refused(duration, text).startswith("must be a time above 0, such as 500ms, 30s")
    assert refused(duration_or_zero, text).startswith("must be 0 or a time such as 500ms, 30s")


@pytest.mark.parametrize("text", ["0", "0s", "0.0h", "00", "0ms"])
def test_zero_only_where_it_makes_sense(text: str) -> None:
    assert duration_or_zero(text) == 0
    assert "above 0" in refused(duration, text)


def test_booleans() -> None:
    for text in ("true", "1", "yes", "on", "TRUE", "On", " yes "):
        assert boolean(text) is True
    for text in ("false", "0", "no", "off", "False"):
        assert boolean(text) is False
    for text in ("", "2", "y", "t", "enabled", "truee"):
        assert refused(boolean, text) == "must be true or false (or 1, 0, yes, no, on, off)"


def test_counts() -> None:
    assert [count(text) for text in ("1", "20", "007", "999999999")] == [1, 20, 7, 999_999_999]
    for text in ("0", "-1", "+1", "1.0", "", " 1", "1e3", "1_0", "٣", "1000000000", "9" * 5000):
        assert refused(count, text) == "must be a whole number from 1 to 999999999"


def test_words_of_a_list() -> None:
    parse = one_of("a", "b", "c")
    assert parse("b") == "b"
    for text in ("B", "", "d", " b"):
        assert refused(parse, text) == "must be a, b or c"


def test_words_that_a_header_can_carry() -> None:
    assert word("donutbot_~!x") == "donutbot_~!x"
    for text in ("", "a b", "a\tb", "a\n", "\x00", "\x7f", "é", "a\u200b", "\udc80", "\u00a0"):
        assert refused(word, text) == "must be ASCII without white space and control characters"


@pytest.mark.parametrize("parse", [boolean, count, duration, duration_or_zero, one_of("a"), word])
def test_what_is_refused_is_not_quoted(parse: Callable[[str], object]) -> None:
    assert "hush" not in refused(parse, HUSH)
