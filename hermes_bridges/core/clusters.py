"""What a reader sees as one character: where a text may be cut, and halves that are none."""

import re
import unicodedata

_ZWJ = "\u200d"
# Characters that continue the one before them although their category is not a mark: the joiners,
# the half-width voiced sound marks, emoji modifiers, the tag characters of subdivision flags, the
# vowels and finals of conjoining Hangul, and the vowel AM of Thai and Lao.
_CONTINUES = re.compile(
    "[\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
    "\u1160-\u11ff\ud7b0-\ud7c6\ud7cb-\ud7fb\u0e33\u0eb3]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_VIRAMA = 9


def clean_text(text: str) -> str:
    """Join surrogate pairs and replace each lone surrogate by U+FFFD (``String#toWellFormed``)."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_boundary(text: str, at: int) -> bool:
    """Tell whether a cut before index ``at`` leaves every character of ``text`` whole.

    Not to be cut are CRLF, a combining sequence, a ZWJ sequence, an emoji with its modifier, a flag
    and a conjoined syllable. The time is constant, but in a row of flags, which is counted from
    its start.
    """
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == _ZWJ or _CONTINUES.match(after) or unicodedata.category(after)[0] == "M":
        return False
    if before == "\r" and after == "\n":
        return False
    if unicodedata.combining(before) == _VIRAMA and unicodedata.category(after) == "Lo":
        return False
    if _is_regional(before) and _is_regional(after):
        start = at
        while start > 0 and _is_regional(text[start - 1]):
            start -= 1
        return (at - start) % 2 == 0
    return True


def boundary_before(text: str, at: int, start: int = 0) -> int:
    """Return the last boundary from ``start`` up to ``at``; ``start`` itself where there is none.

    The time is linear in ``at``, whatever the text.
    """
    while at > start and not is_boundary(text, at):
        at -= 1
    return at


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
