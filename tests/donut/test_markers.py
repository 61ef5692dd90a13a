"""Words for programs, and media, do not reach the chat."""

import pytest

from hermes_bridges.donut.media import MEDIA_NOTE
from hermes_bridges.donut.text import answer_parts, is_visible


def posted(answer: str) -> str:
    return "|".join(answer_parts(answer, markdown=True))


@pytest.mark.parametrize(
    "answer",
    [
        "[SILENT]",
        " .NO_REPLY ",
        "*[SILENT]*",
        "<|eos|>",
        "   \n",
        "[silent]",
        "**NO_REPLY**.",
        "_NO_REPLY_",
        "NO\\_REPLY",
        "\\[SILENT\\]",
        "`[SILENT]`",
        "```\nNO_REPLY\n```",
        '"NO_REPLY"',
        "（NO_REPLY）。",
        "[SILENT]<|eos|>",
        "<|im_end|>\nNO_REPLY\n</s>\n",
        "[SILENT]\n\nNO_REPLY",
        "<|eos|> <|endoftext|>\n",
        "</s>",
    ],
)
def test_KH36_a_marker_alone_posts_nothing(answer: str) -> None:
    assert answer_parts(answer, markdown=True) == []
    assert answer_parts(answer, markdown=False, cut_short=True) == []


@pytest.mark.parametrize(
    ("answer", "post"),
    [
        ("answer<|eos|>", "answer"),
        ("answer <|eos|>\n<|im_end|> ", "answer"),
        ("answer<|EOT_ID|>", "answer"),
        ("answer</s>", "answer"),
        ("answer<｜end▁of▁sentence｜>", "answer"),
        ("👍<|eos|>", "👍"),
        ("...<|eos|>", "..."),
        ("\n answer \t", "answer"),
    ],
)
def test_KH36_end_tokens_are_cut_off(answer: str, post: str) -> None:
    assert posted(answer) == post


@pytest.mark.parametrize(
    "answer",
    [
        "the sentinel is NO_REPLY, fyi",
        "Say [SILENT]",
        "SILENT",
        "No reply.",
        "NO_REPLY2",
        "👍 [SILENT]",
        "<|eos|> ends a text",
        "`<|eos|>`",
        "<s>old</s>",
        "<|x|>",
        "...",
    ],
)
def test_KH36_a_marker_among_words_is_sent_in_full(answer: str) -> None:
    assert posted(answer) == answer


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("a", True),
        ("😀", True),
        (".", True),
        ("<|eos|>", True),
        ("", False),
        ("   \n", False),
        ("\u200b\u200d\ufeff\ufe0f", False),
        ("\x00\x1b\x85", False),
        ("\u2800\u3164\xad", False),
    ],
)
def test_what_a_reader_can_see(text: str, visible: bool) -> None:
    assert is_visible(text) is visible


@pytest.mark.parametrize(
    ("answer", "post"),
    [
        ("data:image/png;base64,AAAA", "*"),
        ("see data:image/png;base64,AAAA here", "see * here"),
        ("![a chart](data:image/png;base64,AA==)", "*"),
        ("x ![a [b] c](data:image/png;base64,AA== 'title') y", "x * y"),
        ('![](<data:image/png;base64,AA==> "title")', "*"),
        ("[file](data:text/plain,hello)", "*"),
        ("[![alt](data:image/png;base64,AA)](https://x.example)", "[*](https://x.example)"),
        ('<img src="data:image/png;base64,AA==" alt="x">', '<img src="*" alt="x">'),
        ("<data:text/plain,hello>", "<*>"),
        ("(data:text/plain,hello)", "(*)"),
        ("DATA:Image/PNG;Base64,AA", "*"),
        ("data:image/svg+xml;charset=utf-8;base64,AA", "*"),
        ('data:text/plain;charset="utf-8",AA', "*"),
        ("data:a/b,c data:a/b,d", "* *"),
        ("[a](data:a/b,c 'data:a/b,d') e", "* e"),
        ("x](data:a/b,c)", "x](*)"),
        ("![a](data:a/b,c)![b](data:a/b,d)", "**"),
        ("MEDIA:/tmp/a b.png", "*"),
        ("one\nMEDIA:/tmp/a.png\r\n  MEDIA:https://x.example/y\ntwo", "one\n*\r\n*\ntwo"),
    ],
)
def test_inline_media_become_a_note(answer: str, post: str) -> None:
    assert posted(answer) == post.replace("*", MEDIA_NOTE)


@pytest.mark.parametrize(
    "answer",
    [
        "Here is the data: 1, 2/3, 4",
        "data: image/png, AAAA",
        "data:image/png",
        "data:,hello",
        "data:a/b, and more",
        "metadata:image/png;base64,AAAA",
        "the MEDIA: press",
        "Media:/tmp/x",
    ],
)
def test_the_words_in_prose_stay(answer: str) -> None:
    assert posted(answer) == answer


def test_a_huge_image_leaves_the_text_around_it() -> None:
    image = "![i](data:image/png;base64," + "A" * 3_000_000 + ")"
    assert posted(f"before {image} after") == f"before {MEDIA_NOTE} after"
