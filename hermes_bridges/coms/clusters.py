"""Cutting text to a number of UTF-16 units without breaking what a reader sees as one character."""

import re
import unicodedata

from hermes_bridges.coms.jsrules import utf16_len

_ZWJ = "\u200d"
# Characters that continue the one before them although their category is not a mark: the joiners,
# the half-width voiced sound marks, emoji modifiers, the tag characters of subdivision flags, and
# the vowels and finals of conjoining Hangul.
_CONTINUES = re.compile(
    "[\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
    "\u1160-\u11ff\ud7b0-\ud7c6\ud7cb-\ud7fb]"
)
_VIRAMA = 9


def cut(text: str, limit: int) -> str:
    """Return the longest start of ``text`` within ``limit`` UTF-16 units that breaks no character.

    A surrogate pair, a combining sequence, a ZWJ sequence, an emoji with its modifier and a flag
    stay whole; a single character longer than the limit gives the empty string. ``text`` holds no
    lone surrogate. The time is linear in ``limit``, whatever the text.
    """
    if limit <= 0:
        return ""
    if len(text) <= limit and utf16_len(text) <= limit:
        return text
    units = text[:limit].encode("utf-16-le")[: 2 * limit]
    # "ignore" drops the half of a pair at the very end.
    end = len(units.decode("utf-16-le", "ignore"))
    while not _ends_character(text, end):
        end -= 1
    return text[:end]


def shorten(text: str, limit: int) -> str:
    """Return ``text`` if it fits in ``limit`` UTF-16 units, else its start and an ellipsis."""
    return text if utf16_len(text) <= limit else cut(text, limit - 1) + "…"


def _ends_character(text: str, end: int) -> bool:
    if end == 0 or end == len(text):
        return True
    before, after = text[end - 1], text[end]
    if before == _ZWJ or _CONTINUES.match(after) or unicodedata.category(after)[0] == "M":
        return False
    if before == "\r" and after == "\n":
        return False
    if unicodedata.combining(before) == _VIRAMA and unicodedata.category(after) == "Lo":
        return False
    if _is_regional(before) and _is_regional(after):
        start = end
        while start > 0 and _is_regional(text[start - 1]):
            start -= 1
        return (end - start) % 2 == 0
    return True


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
