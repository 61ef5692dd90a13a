import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges.core.envfile import parse, read

VALUES = {
    "A=1": "1",
    "A=": "",
    " A = x y \t": "x y",
    "A=a=b": "a=b",
    "A=a#b ;c": "a#b ;c",
    "A='x y '": "x y ",
    "A='a\\b\"$c'": 'a\\b"$c',
    'A="x y "': "x y ",
    'A="a\'b"': "a'b",
    r'A="\"\\\$\`"': '"\\$`',
    r'A="\n\x"': r"\n\x",
    "A='one\ntwo'": "one\ntwo",
    'A="one\ntwo"': "one\ntwo",
    'A="one\\\ntwo"': "onetwo",
    "A=one\\\n two": "one two",
    "A=\"a\" 'b'": "ab",
    'A="a" b c': "ab c",
    'A=a"b"': 'a"b"',
    "A='a' # b": "a# b",
    r"A=\ a\ b\ ": " a b ",
    r"A=a\\ ": "a\\",
    r"A=\'a\"": "'a\"",
    "A=ü😀": "ü😀",
}


@pytest.mark.parametrize("text", VALUES)
def test_values_are_read_as_systemd_does(text: str) -> None:
    for end in ("", "\n", "\nB=2\n", "\r\nB=2\r\n"):
        values, faults = parse(text + end)
        assert (values["A"], faults) == (VALUES[text], ()), end
        assert ("B" in values) is ("B" in end)


def test_comments_and_empty_lines_are_nothing() -> None:
    text = "# A=1\n\n  ; B=2\n\t\n#\nC=3\n# 'open\nD=4 # said\n#end \\\nE=5"
    assert parse(text) == ({"C": "3", "D": "4 # said", "E": "5"}, ())
    assert parse("") == ({}, ())


def test_the_last_of_equal_names_counts() -> None:
    assert parse("A=1\nA=2").values == {"A": "2"}


@pytest.mark.parametrize(
    "line", ["A", "export A=hush", "=hush", "1A=hush", "A-B=hush", "\ufeffA=1"]
)
def test_a_line_that_is_no_assignment_is_a_fault(line: str) -> None:
    values, faults = parse(f"# c\nB='\n'\n{line}\nC=3\n")
    assert faults == ("line 4: must be KEY=VALUE or a comment",)
    assert values == {"B": "\n", "C": "3"}


@pytest.mark.parametrize("quoted", ["'hush", '"hush', '"hush\\"', "'a' \"hush"])
def test_a_quote_that_is_never_closed_is_a_fault(quoted: str) -> None:
    values, faults = parse(f"A=1\nB={quoted}\nC=3\n")
    assert faults == ("line 2: the value of B has a quote that is never closed",)
    assert values == {"A": "1"}


def in_double_quotes(value: str) -> str:
    return '"' + "".join(f"\\{char}" if char in '"\\$`' else char for char in value) + '"'


@given(st.dictionaries(st.from_regex(r"[A-Z_]\w{0,8}", fullmatch=True), st.text(), max_size=5))
def test_what_is_quoted_comes_back(wanted: dict[str, str]) -> None:
    wanted = {n: v.replace("\r", "") for n, v in wanted.items() if n.isascii()}
    text = "".join(f"{name}={in_double_quotes(value)}\n" for name, value in wanted.items())
    assert parse(text) == (wanted, ())


@given(st.text(st.sampled_from("AB= \t\n\r'\"\\#;x"), max_size=40))
def test_any_text_is_read_or_told(text: str) -> None:
    values, faults = parse(text)
    assert values or faults or not any(line.strip() for line in uncommented(text))


def uncommented(text: str) -> list[str]:
    lines = text.replace("\r", "\n").split("\n")
    return [line for line in lines if not line.lstrip(" \t").startswith(("#", ";"))]


def test_a_file_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("A=1\nnot this\n")
    link = tmp_path / "link"
    link.symlink_to("file")
    assert read(str(link)) == (
        {"A": "1"},
        (f"{link}, line 2: must be KEY=VALUE or a comment",),
    )


def test_a_pipe_is_read_to_its_end() -> None:
    out, into = os.pipe()
    os.write(into, b"A=1\n")
    os.write(into, b"B=2\n")
    os.close(into)
    try:
        assert read(f"/dev/fd/{out}") == ({"A": "1", "B": "2"}, ())
    finally:
        os.close(out)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    none, large, odd = (tmp_path / name for name in ("none", "large", "odd"))
    large.write_bytes(b"#" * 65_537)
    odd.write_bytes(b"A=hush\xff")
    reasons = {
        none: "No such file or directory",
        tmp_path: "Is a directory",
        large: "is larger than 65536 bytes",
        odd: "is not UTF-8",
    }
    for path, reason in reasons.items():
        assert read(str(path)) == ({}, (f"{path}: {reason}",))
    large.write_bytes(b"#" * 65_536)
    assert read(str(large)) == ({}, ())
