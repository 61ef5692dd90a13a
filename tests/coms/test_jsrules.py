"""JavaScript's rules; every expected value was printed by node."""

import json
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.coms import jsrules

BLANKS = "\t\n\v\f\r \xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
# Any text at all, with surrogates for every second character: by chance hardly one would come.
any_text = st.lists(
    st.characters(codec=None, exclude_categories=()) | st.characters(categories=["Cs"]), max_size=40
).map("".join)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "0"),
        ("00", "0"),
        ("-0", "0"),
        ("1e2", "100"),
        ("150.5", "150.5"),
        ("90.0", "90"),
        ("0x64", "100"),
        ("0X64", "100"),
        ("0b11", "3"),
        ("0B11", "3"),
        ("0o7", "7"),
        ("0O7", "7"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+5", "5"),
        ("-5", "-5"),
        ("  5  ", "5"),
        ("\xa05\ufeff", "5"),
        ("\u20285\u2029", "5"),
        ("\u16805\u3000", "5"),
        ("1e21", "1e+21"),
        ("1e-7", "1e-7"),
        ("1e-999", "0"),
        ("123456789012345680000", "123456789012345680000"),
    ],
)
def test_numbers_that_javascript_reads(text: str, printed: str) -> None:
    value = jsrules.parse_number(text)
    assert value is not None
    assert jsrules.format_number(value) == printed


@pytest.mark.parametrize(
    "text",
    [
        "5s",
        "1_000",
        "Infinity",
        "-Infinity",
        "NaN",
        "nan",
        "inf",
        "1e999",
        "-1e999",
        "0x",
        "0b2",
        "0o8",
        "-0x10",
        "+0b1",
        "1,000",
        "1 000",
        "5..",
        "..5",
        ".",
        "+",
        "-",
        "e5",
        "5e",
        "1e5.5",
        "\x855",
        "\x1c5",
        "٣",
        "５",
        "²",
        "0x1g",
        "0x1.8",
        "1n",
        "--5",
        "null",
        "true",
        "0x_1",
        "0x" + "f" * 300,
        "9" * 400,
        "0b" + "1" * 1100,
    ],
)
def test_texts_that_are_no_finite_number(text: str) -> None:
    assert jsrules.parse_number(text) is None


@pytest.mark.parametrize("text", ["9" * 60_000, "0x" + "f" * 60_000, "0" * 60_000, " " * 60_000])
def test_a_long_number_takes_no_time(text: str) -> None:
    start = time.monotonic()
    jsrules.parse_number(text)
    assert time.monotonic() - start < 0.5


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (100, "100"),
        (150.5, "150.5"),
        (0.0, "0"),
        (-0.0, "0"),
        (-2.25, "-2.25"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (123456.789, "123456.789"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e21, "-1.5e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e-6, "0.000001"),
        (0.000001234, "0.000001234"),
        (1e-7, "1e-7"),
        (-1.5e-7, "-1.5e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2147483648.0, "2147483648"),
        (1800000.0, "1800000"),
        (9007199254740993.0, "9007199254740992"),
        (1e300, "1e+300"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_numbers_are_printed_as_javascript_does(value: float, printed: str) -> None:
    assert jsrules.format_number(value) == printed


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_number_reads_back(value: float) -> None:
    printed = jsrules.format_number(value)
    assert jsrules.parse_number(printed) == value
    assert "e0" not in printed
    assert not printed.endswith(".0")


def test_trim_takes_what_javascript_calls_blank_and_nothing_else() -> None:
    assert jsrules.trim(f"{BLANKS}a b{BLANKS}") == "a b"
    for kept in "\x00\x1c\x1d\x1e\x1f\x85\u180e\u200b\u2060":
        assert jsrules.trim(kept) == kept
    assert jsrules.trim(BLANKS) == ""


@pytest.mark.parametrize(
    ("text", "length"),
    [("", 0), ("abc", 3), ("é", 1), ("€", 1), ("😀", 2), ("\ud83d", 1), ("a\ude00😀", 4)],
)
def test_utf16_length(text: str, length: int) -> None:
    assert jsrules.utf16_len(text) == length


@pytest.mark.parametrize(
    ("text", "again"),
    [
        (' {"b" : 1.0 ,\t"a":[]}\r\n', '{"b":1,"a":[]}'),
        ("-0", "0"),
        ("1e5", "100000"),
        ("1E-7", "1e-7"),
        ("123456789012345678901", "123456789012345680000"),
        ("1e999", "null"),
        ("9" * 5000, "null"),
        ('{"a":1,"a":2}', '{"a":2}'),
        (r'"\ud83d\ude00 \ud83d \u00e9 \u2028"', '"😀 \\ud83d é \u2028"'),
        ('"\x7f\u0085\u2028"', '"\x7f\u0085\u2028"'),
        ("[true,false,null]", "[true,false,null]"),
    ],
)
def test_json_is_read_and_written_as_javascript_does(text: str, again: str) -> None:
    assert jsrules.stringify(jsrules.parse_json(text)) == again


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\ufeff{}",
        "{}\ufeff",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "{} {}",
        "1 2",
        "{}x",
        "01",
        "1.",
        ".5",
        "+1",
        "'a'",
        '"\n"',
        '"\t"',
        '"\x00"',
        r'"\x41"',
        r'"\u12"',
        "[1,]",
        '{"a":1,}',
        "{a:1}",
        "undefined",
        "\xa01",
        "\x0b1",
        "\u20281",
        "// c\n1",
        "[" * 60000,
        '{"a":' * 60000,
    ],
)
def test_json_that_javascript_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        jsrules.parse_json(text)


@pytest.mark.parametrize(
    ("before", "after"), [("[", "]"), ('{"a":', "}"), ('["[{",', "]"), ('["\\\\\\"[[",', "]")]
)
def test_a_nesting_is_read_to_the_same_depth_by_every_python(before: str, after: str) -> None:
    deepest = jsrules.DEPTH_MAX
    value = jsrules.parse_json(before * deepest + "1" + after * deepest)
    assert jsrules.parse_json(jsrules.stringify(value)) == value
    for depth in (deepest + 1, 1_001, 5_000, 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            jsrules.parse_json(before * depth + "1" + after * depth)


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 2_000,
        ["[" * 2_000, {"{" * 2_000: '"' + "[" * 2_000}],
        ["\\", "[" * 2_000, '\\"' + "{" * 2_000],
    ],
)
def test_many_brackets_are_no_deep_nesting(value: object) -> None:
    text = json.dumps(value)
    assert jsrules.parse_json(text) == value
    with pytest.raises(ValueError):
        jsrules.parse_json(text[:-2])


def test_L11_only_raw_control_characters_are_let_through_when_not_strict() -> None:
    assert jsrules.parse_json('{"a":"x\ny\tz"}', strict=False) == {"a": "x\ny\tz"}
    for text in ("\ufeff{}", "NaN", "{} {}", "{"):
        with pytest.raises(ValueError):
            jsrules.parse_json(text, strict=False)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('"\\/', r'"\"\\/"'),
        ("\b\f\n\r\t", r'"\b\f\n\r\t"'),
        ("\x00\x1f\x7f\x80", '"\\u0000\\u001f\x7f\x80"'),
        ("é€😀", '"é€😀"'),
        ("\u2028\u2029", '"\u2028\u2029"'),
        ("\ud83d", r'"\ud83d"'),
        ("\ude00x", r'"\ude00x"'),
        ("\ud83d\ude00", '"😀"'),
    ],
)
def test_texts_are_escaped_as_javascript_does(text: str, written: str) -> None:
    assert jsrules.stringify(text) == written


def test_values_of_our_own_are_written() -> None:
    assert jsrules.stringify({"a": (1, 2.5, -0.0), "b": math.inf}) == '{"a":[1,2.5,0],"b":null}'
    assert jsrules.stringify(10**17 + 1) == "100000000000000000"
    with pytest.raises(TypeError):
        jsrules.stringify({"a": object()})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_is_written_can_be_sent_and_read(value: object) -> None:
    written = jsrules.stringify(value)
    assert "\n" not in written
    assert written.encode().decode() == written
    assert jsrules.stringify(json.loads(written)) == written
    assert jsrules.stringify(jsrules.parse_json(written)) == written


@given(st.text('{}[]:,"\\ud83dENainfty01-+.e \t\n\ufeff', max_size=30))
def test_json_parsing_raises_value_errors_only(text: str) -> None:
    try:
        value = jsrules.parse_json(text)
    except ValueError:
        return
    assert not re.search("NaN|Infinity", re.sub(r'"(?:[^"\\]|\\.)*"', "", text))
    assert jsrules.stringify(value) is not None
