"""Media inside an answer, which are never posted (section 9, Inline media)."""

import re

MEDIA_NOTE = "(inline media left out)"
# Each part is bounded, and none runs over the begin of another URL: the time grows with the text
# only. What is more than that is no type.
_URL = re.compile(
    r"(?<!\w)data:[\w.+-]{1,100}/[\w.+-]{1,100}"
    r'(?:;[\w.+-]{1,100}(?:=(?:"[^"\n]{0,100}"|[^\s:,;"]{0,100}))?){0,10}'
    r""",[^\s"'`)>]+""",
    re.IGNORECASE,
)
_LINE = re.compile(r"(?<![^\r\n])[ \t]*+MEDIA:[^\r\n]*")
_LINK_END = re.compile(r""">?(?:\s{1,10}(?:"[^"]{0,500}"|'[^']{0,500}'))?\s{0,10}\)""")
_LINK_TEXT_MAX = 1000  # characters


def without_media(answer: str) -> str:
    """Replace each ``data:`` URL, with the link around it, and each MEDIA line by a short note."""
    answer = _LINE.sub(MEDIA_NOTE, answer)
    kept: list[str] = []
    done = 0
    for url in _URL.finditer(answer):
        if url.start() < done:
            continue
        begin, end = _link(answer, done, url.start(), url.end())
        kept += (answer[done:begin], MEDIA_NOTE)
        done = end
    kept.append(answer[done:])
    return "".join(kept)


def _link(text: str, floor: int, begin: int, end: int) -> tuple[int, int]:
    """The Markdown link or image around a URL, else the URL itself; ``floor`` ends the search."""
    opening = begin
    while opening > floor and text[opening - 1] in "< \t":
        opening -= 1
    opening -= len("](")
    closing = _LINK_END.match(text, end)
    if not closing or opening < floor or not text.startswith("](", opening):
        return begin, end
    depth = 0
    for at in range(opening, max(floor, opening - _LINK_TEXT_MAX) - 1, -1):
        depth += (text[at] == "]") - (text[at] == "[")
        if depth == 0:
            image = at > floor and text[at - 1] == "!"
            return at - 1 if image else at, closing.end()
    return begin, end
