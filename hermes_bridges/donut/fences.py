"""Fenced code blocks of a Markdown text, so that one can be cut in two."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

_FENCE_LINE = re.compile(
    r"(?<![^\r\n])(?P<lead>[ \t]*+(?:(?:[-+*]|[0-9]{1,9}[.)])[ \t]++)*+)"
    r"(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\r\n]*+)"
)
_NEWLINE = re.compile(r"\r\n|\r|\n")


class Fence(NamedTuple):
    """A fenced block; the positions are indices into its text.

    The opening line begins at ``start`` and the code at ``body``; the closing line begins at
    ``close`` and its marks end at ``end``. Both are past the end of the text where nothing closes
    the block. ``reopening`` and ``closing`` are the lines to add where it is cut in two.
    """

    start: int
    body: int
    close: int
    end: int
    reopening: str
    closing: str


def fences(text: str, most: int) -> list[Fence]:
    """Find the fenced blocks of ``text``, in order.

    A line to add takes at most ``most`` bytes: an info string that does not fit is left out, and a
    fence that does not is taken for text.
    """
    found: list[Fence] = []
    opened: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opened is None:
            if _opens(line) and len(line["lead"] + line["marks"]) < most:
                opened = line
        elif _closes(line, opened):
            found.append(_fence(text, opened, line.start(), line.end("marks"), most))
            opened = None
    if opened is not None:
        found.append(_fence(text, opened, len(text) + 1, len(text) + 1, most))
    return found


def fence_at(found: Sequence[Fence], at: int) -> Fence | None:
    """Return the block that a cut at ``at`` would part."""
    before = bisect_left(found, at, key=lambda fence: fence.start) - 1
    return found[before] if before >= 0 and at < found[before].end else None


def _opens(line: re.Match[str]) -> bool:
    return line["marks"][0] == "~" or "`" not in line["info"]


def _closes(line: re.Match[str], opened: re.Match[str]) -> bool:
    return (
        line["marks"].startswith(opened["marks"])
        and not line["info"].strip()
        and not line["lead"].strip()
        # Further in it is code: an example inside the block.
        and len(line["lead"]) <= len(opened["lead"]) + 3
    )


def _fence(text: str, opened: re.Match[str], close: int, end: int, most: int) -> Fence:
    # A fence that stands in a list item goes on at the item's indentation.
    fence = re.sub(r"\S", " ", opened["lead"]) + opened["marks"]
    info = opened["info"].rstrip()
    newline = _NEWLINE.match(text, opened.end())
    return Fence(
        start=opened.start(),
        body=newline.end() if newline else len(text),
        close=close,
        end=end,
        reopening=f"{fence}{info if len((fence + info).encode()) < most else ''}\n",
        closing=fence,
    )
