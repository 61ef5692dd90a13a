"""From an answer to posts: cleaned, capped, cut, with whole characters and whole code blocks."""

import re
import time
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hermes_bridges.donut.fences import fences
from hermes_bridges.donut.text import (
    ANSWER_MAX,
    CUT_SHORT,
    PART_LEAST,
    PART_MAX,
    PARTS_MAX,
    TOO_LONG,
    answer_parts,
    clean,
    is_visible,
    pieces,
)

SMALL = PART_LEAST
WHOLE = [
    "a", "b", "é", "€", "😀", " ", "\n", "\r\n", ". ", "。",
    "e\u0301", "e\u0301\u0327\u20dd", "☎\ufe0f", "👍🏽", "👨\u200d👩\u200d👧", "❤\ufe0f\u200d🔥",
    "🇩🇪", "🇨🇿", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u1112\u1161\u11ab", "क\u094dष\u093f", "ｶ\uff9e",
]  # fmt: skip
CHARACTERS = [
    *WHOLE, "\n\n", "\t", "\u200b", "- ", "`",
    "\n```\n", "\n```python\n", "\n~~~\n", "\n   ````\n",
]  # fmt: skip


def runs_of(piece: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts of a few kB: runs of pieces, since a drawn text alone is hardly ever long."""
    run = st.tuples(st.lists(piece, min_size=1, max_size=6), st.sampled_from([1, 3, 40, 200]))
    return st.lists(run, max_size=8).map(lambda runs: "".join("".join(of) * n for of, n in runs))


def size(text: str) -> int:
    return len(text.encode())


def checked(
    answer: str, *, markdown: bool, limit: int = PART_MAX, cut_short: bool = False
) -> list[str]:
    """The parts of an answer, after a look at all that holds for any answer."""
    posts = answer_parts(answer, markdown=markdown, limit=limit, cut_short=cut_short)
    text = clean(answer, limit)
    found = pieces(text, markdown, limit, CUT_SHORT if cut_short else "")
    assert posts == ["".join(piece) for piece in found]
    assert len(posts) <= PARTS_MAX
    assert all(size(post) <= limit and is_visible(post) for post in posts)
    assert all(is_visible(piece.body) for piece in found)
    joined = "".join(piece.body for piece in found)
    assert text.startswith(joined)
    closings = [piece.closing for piece in found]
    if joined != text:
        assert closings[-1].endswith(TOO_LONG)
        assert size(joined + TOO_LONG) <= ANSWER_MAX
        closings[-1] = closings[-1].removesuffix(TOO_LONG)
    elif found and cut_short:
        assert closings[-1].endswith(CUT_SHORT)
        closings[-1] = closings[-1].removesuffix(CUT_SHORT)
    assert size(joined) <= ANSWER_MAX
    for closing in closings:
        assert re.fullmatch(r"(\n?[ \t]*(`{3,}|~{3,}))?", closing)
    for piece in found:
        assert re.fullmatch(r"([ \t]*(`{3,}|~{3,})[^\r\n]*\n)?", piece.opening)
    return posts


@given(runs_of(st.sampled_from(CHARACTERS)), st.booleans(), st.booleans())
def test_any_answer_becomes_posts_that_the_hub_takes(
    answer: str, markdown: bool, cut_short: bool
) -> None:
    checked(answer, markdown=markdown, limit=SMALL, cut_short=cut_short)


@given(
    st.lists(st.sampled_from(WHOLE), min_size=1, max_size=9)
    | st.lists(st.sampled_from([c for c in WHOLE if not c[-1].isspace()]), min_size=1, max_size=9),
    st.integers(10, 200),
)
def test_no_character_is_parted(drawn: list[str], times: int) -> None:
    drawn = ["<", *drawn * times, ">"]
    text = "".join(drawn)
    assume(clean(text, SMALL) == text)
    ends = set(accumulate(map(len, drawn)))
    at = 0
    for piece in pieces(text, False, SMALL):
        at += len(piece.body)
        assert at in ends


@given(runs_of(st.characters(codec="utf-8")), st.booleans())
def test_any_text_at_all_is_cut(answer: str, markdown: bool) -> None:
    checked(answer, markdown=markdown, limit=SMALL)


@given(
    runs_of(
        st.sampled_from(["`", "```", "~~~", "`" * 70, " ", "\n", "\r", "\n```", "a", "- ", "é"])
    )
)
def test_any_heap_of_fences_is_cut(answer: str) -> None:
    checked(answer, markdown=True, limit=SMALL)


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        "```" + "a" * 5000 + "\nbody\n```",
        "```\n" + "x" * 10_000,
        "~~~" + "x" * 10_000,
        "`" * 5000,
        "```\n" + "`" * 5000,
        "```\n" + "x" * 3990 + "\n" + "`" * 5000 + "\nand on",
        " " * 3000 + "```\n" + "x" * 5000,
        "```a\n" * 5000,
        "```" + " a" * 5000 + "\n" + "b " * 5000,
        ("```" + "é" * 1990 + "\n") * 9,
        "a" + "\u0301" * 60_000,
        "x\u200d" * 30_000,
        "🇩" * 60_001,
        "a" + "\u200b" * 60_000 + "b",
        "- " * 30_000 + "```",
        "\n" * 60_000 + "x",
        "data:a/b;x=" * 5000,
        "![" * 9000 + "](data:a/b,c)",
    ],
)
def test_KH01_no_answer_keeps_the_splitter(answer: str, markdown: bool) -> None:
    start = time.process_time()
    for limit in (SMALL, PART_MAX):
        assert checked(answer, markdown=markdown, limit=limit)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("limit", [-1, 0, 1, 3, SMALL - 1])
def test_KH01_a_limit_that_holds_no_character_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        answer_parts("```" + "a" * 5000, markdown=True, limit=limit)


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "```\n",
        "~~~ \n",
        "- ",
        "1. ",
        "> ",
        "!",
        "[",
        "](data:a/b,",
        "data:a/b;x=",
        "MEDIA:\n",
        "<|eos|>",
        "x</s>",
        "NO_REPLY ",
        "\u200b",
        "\u0301",
        " ",
        "\n",
        "🇩",
        "<data:a/b,c",
        'x="',
    ],
)
def test_the_time_grows_with_the_text_only(piece: str, markdown: bool) -> None:
    answer = "x" + piece * (1_000_000 // len(piece)) + "x"
    start = time.process_time()
    checked(answer, markdown=markdown)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize(
    ("answer", "sizes"),
    [
        ("😀" * 5000, [4000] * 5),
        ("é" * 4001, [4000, 4000, 2]),
        ("a" * 3998 + "😀" + "b", [3998, 5]),
        ("a" * 3999 + "\n" + "text", [4000, 4]),
        ("a" * 4000, [4000]),
        ("é" * 2000, [4000]),
        ("a" * 4001, [4000, 1]),
        ("€" * 2000, [3999, 2001]),
    ],
)
def test_KH24_the_limit_is_in_bytes(answer: str, sizes: list[int], markdown: bool) -> None:
    posts = checked(answer, markdown=markdown)
    assert [size(post) for post in posts] == sizes
    assert "".join(posts) == answer


@pytest.mark.parametrize("answer", ["a" * 48_001, "word " * 20_000, "é" * 30_000, "😀 \n" * 20_000])
def test_an_answer_over_48_000_bytes_ends_with_a_notice(answer: str) -> None:
    posts = checked(answer, markdown=True)
    assert posts[-1].endswith(TOO_LONG)
    assert ANSWER_MAX - PART_MAX // 4 - size(TOO_LONG) <= sum(map(size, posts)) <= ANSWER_MAX


def test_48_000_bytes_are_posted_whole() -> None:
    answer = "a" * ANSWER_MAX
    posts = checked(answer, markdown=True)
    assert len(posts) == 12
    assert "".join(posts) == answer


def test_more_than_16_parts_end_with_a_notice() -> None:
    # Each part ends early, at the blank line in its last quarter.
    answer = "".join(f"{'a' * 2900}\n\n" for _ in range(16)) + "c" * 1000
    assert size(answer) < ANSWER_MAX
    posts = checked(answer, markdown=False, limit=3100)
    assert len(posts) == PARTS_MAX
    assert posts[-1].endswith(TOO_LONG)


def test_the_fence_lines_do_not_count_in_the_48_000() -> None:
    answer = "```python\n" + "x = 1\n" * 7_990 + "```"
    assert size(answer) < ANSWER_MAX
    posts = checked(answer, markdown=True)
    assert sum(map(size, posts)) > ANSWER_MAX
    assert posts[-1].endswith("```")


@pytest.mark.parametrize(
    ("before", "separator"),
    [
        ("x", "\n\n"),
        ("x", "\r\n\r\n"),
        ("x", "\n \n\n"),
        ("x y. z", "\n"),
        ("x y. z", "\r\n"),
        ("x y.", " "),
        ("x y?)", "  "),
        ("文字。", ""),
        ("x y", " "),
        ("x", " "),
    ],
)
def test_the_best_boundary_in_the_last_quarter_is_taken(before: str, separator: str) -> None:
    first = "a" * 3100 + before + separator
    # What comes after it is a worse place, or none.
    weaker = {"\n\n": "b\nb. b ", "\n": "b. b b", ". ": "b b", " ": "b"}
    kind = next((kind for kind in weaker if kind in first), "b")
    posts = checked(first + weaker.get(kind, "b") + "c" * 2000, markdown=False)
    assert posts[0] == first
    assert len(posts) == 2


def test_a_boundary_before_the_last_quarter_is_not_taken() -> None:
    posts = checked("a" * 2990 + "\n\n" + "b" * 2000, markdown=True)
    assert [size(post) for post in posts] == [4000, 992]


def test_the_indentation_stays_with_its_line() -> None:
    posts = checked("a" * 3500 + "\n    b" + "c" * 3500, markdown=False)
    assert posts[1].startswith("    b")


def test_a_part_shows_something() -> None:
    assert [size(post) for post in checked("a" + " " * 10_000 + "b", markdown=True)] == [1002]
    posts = checked("a" * 3999 + "\u200b" * 900 + "b" * 9, markdown=True)
    assert len(posts) == 2
    posts = checked("a" * 4000 + "☎\ufe0f" + "\u200b" * 30, markdown=True)
    assert posts[1] == "☎\ufe0f"


lengths = st.lists(st.sampled_from([0, 3, 30, 60, 99]), max_size=12)
code_lines = lengths.map(lambda counts: ["c " * n + "c" * (5 * n + 1) for n in counts])
prose_lines = lengths.map(lambda counts: ["p " * n + "p" for n in counts])
blocks = st.one_of(
    st.tuples(
        st.sampled_from(["```", "````", "~~~", "  ~~~~~"]),
        st.sampled_from(["", "i", " i i", "i" * 90]),
        code_lines,
    ),
    prose_lines,
)


@given(st.lists(blocks, min_size=2, max_size=6), st.booleans())
def test_code_stays_code_in_every_part(document: list, closed: bool) -> None:
    lines: list[str] = []
    for block in document:
        if isinstance(block, list):
            lines += ["", *block, ""]
        else:
            fence, info, code = block
            lines += [fence + info, *code, fence]
    if not closed and lines:
        lines += ["```", "c c c c"]
    look_at_the_code(checked("\n".join(lines), markdown=True, limit=SMALL))


def test_the_marks_that_close_a_block_stay_whole() -> None:
    for count in range(SMALL - 40, SMALL):
        answer = "~~~~~~~~~\n" + "c" * count + "\n~~~~~~~~~\n" + "p" * 100
        look_at_the_code(checked(answer, markdown=True, limit=SMALL))


def look_at_the_code(posts: list[str]) -> None:
    for post in posts:
        opened = ""
        for line in post.removesuffix(TOO_LONG).split("\n"):
            mark = re.match(r" *(`{3,}|~{3,})", line)
            if mark and not opened:
                opened = mark[1]
                assert set(line) <= set("`~ i")
            elif mark and line.strip() == opened:
                opened = ""
            else:
                assert set(line) <= set("c " if opened else "p ")


def test_a_code_block_is_closed_and_reopened() -> None:
    posts = checked("```python\n" + "x = 1\n" * 1000 + "```\nend", markdown=True)
    assert posts[0].startswith("```python\nx = 1\n")
    assert posts[0].endswith("x = 1\n```")
    assert posts[1].startswith("```python\nx = 1\n")
    assert posts[1].endswith("x = 1\n```\nend")


def test_a_line_of_code_is_cut_where_there_is_no_other_way() -> None:
    posts = checked("~~~~\n" + "x" * 5000 + "\n~~~~", markdown=True)
    assert posts[0].endswith("x\n~~~~")
    assert posts[1].startswith("~~~~\nx")


def test_an_info_string_that_does_not_fit_is_left_out() -> None:
    posts = checked("```" + "i" * 600 + "\n" + "x\n" * 3000 + "```", markdown=True)
    assert posts[1].startswith("```\nx\n")


def test_in_plain_text_a_fence_is_text() -> None:
    answer = "```python\n" + "x = 1\n" * 1000 + "```"
    posts = checked(answer, markdown=False)
    assert "".join(posts) == answer


def test_the_note_stands_outside_the_code() -> None:
    (post,) = checked("```\nx = ", markdown=True, cut_short=True)
    assert post == "```\nx =\n```" + CUT_SHORT
    (post,) = checked("Well", markdown=True, cut_short=True)
    assert post == "Well" + CUT_SHORT
    posts = checked("```\n" + "x\n" * 24_000, markdown=True)
    assert posts[-1].endswith("x\n```" + TOO_LONG)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```py\nx\n```\n", [(0, 6, 8, 11)]),
        ("a\n~~~\n```\n~~~~", [(2, 6, 10, 14)]),
        ("````\n```\n````", [(0, 5, 9, 13)]),
        ("```a`b```\n", []),
        ("```\r\nx\r\n```", [(0, 5, 8, 11)]),
        ("- ```\n  x\n  ```\n", [(0, 6, 10, 15)]),
        ('```py\ndef f():\n    """\n    ```\n', [(0, 6, 32, 32)]),
        ("  ```\nx\n    ```", [(0, 6, 8, 15)]),
        ("```", [(0, 3, 4, 4)]),
        ("x ```\n", []),
    ],
)
def test_fences_are_found(text: str, found: list[tuple[int, ...]]) -> None:
    assert [tuple(fence[:4]) for fence in fences(text, 64)] == found


def test_a_fence_in_a_list_item_is_reopened_at_its_indentation() -> None:
    (fence,) = fences("1. ```py x\n   y\n   ```", 64)
    assert (fence.reopening, fence.closing) == ("   ```py x\n", "   ```")


def test_surrogates_in_an_answer() -> None:
    assert answer_parts("hi \ud83d there", markdown=True) == ["hi \ufffd there"]
    assert answer_parts("\ud83d\ude00", markdown=True) == ["😀"]


def test_KH27_no_answer_fails_for_a_lone_surrogate() -> None:
    for post in answer_parts("\udc80 a\ud83d b" * 3000, markdown=True):
        assert post.encode().decode() == post
        assert "\ufffd" in post
