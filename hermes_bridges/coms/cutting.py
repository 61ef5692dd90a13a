"""Cutting text to a number of UTF-16 units without breaking what a reader sees as one character."""

from hermes_bridges.coms.jsrules import utf16_len
from hermes_bridges.core.clusters import boundary_before


def cut(text: str, limit: int) -> str:
    """Return the longest start of ``text`` within ``limit`` UTF-16 units that breaks no character.

    A single character longer than the limit gives the empty string. ``text`` holds no lone
    surrogate. The time is linear in ``limit``, whatever the text.
    """
    if limit <= 0:
        return ""
    if len(text) <= limit and utf16_len(text) <= limit:
        return text
    units = text[:limit].encode("utf-16-le")[: 2 * limit]
    # "ignore" drops the half of a pair at the very end.
    end = len(units.decode("utf-16-le", "ignore"))
    return text[: boundary_before(text, end)]


def shorten(text: str, limit: int) -> str:
    """Return ``text`` if it fits in ``limit`` UTF-16 units, else its start and an ellipsis."""
    return text if utf16_len(text) <= limit else cut(text, limit - 1) + "…"
