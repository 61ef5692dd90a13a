"""Values of settings, out of their texts.

Each parser raises ValueError with what is expected, and never quotes the text: it may be a secret.
"""

import re
from collections.abc import Callable

DURATION_MAX = 10 * 365 * 86_400.0
"""Seconds. A longer time is a slip of the pen; it counts as this one, which every wait can take."""

_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h)?")
_WHOLE = re.compile(r"[0-9]{1,9}")
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def boolean(text: str) -> bool:
    """``true/false/1/0/yes/no/on/off`` in any case."""
    word = text.strip().lower()
    if word not in _ON + _OFF:
        raise ValueError("must be true or false (or 1, 0, yes, no, on, off)")
    return word in _ON


def duration(text: str) -> float:
    """Seconds, above 0: a number, or one with a unit (``500ms``, ``30s``, ``2m``, ``1h``)."""
    seconds = _seconds(text)
    if not seconds:
        raise ValueError("must be a time above 0, such as 500ms, 30s, 2m or 1h")
    return seconds


def duration_or_zero(text: str) -> float:
    """As ``duration``, and 0 too."""
    seconds = _seconds(text)
    if seconds is None:
        raise ValueError("must be 0 or a time such as 500ms, 30s, 2m or 1h")
    return seconds


def _seconds(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    return min(float(match[1]) * _SECONDS[match[2]], DURATION_MAX) if match else None


def count(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text) if _WHOLE.fullmatch(text) else 0
    if number < 1:
        raise ValueError("must be a whole number from 1 to 999999999")
    return number


def one_of(*words: str) -> Callable[[str], str]:
    """A parser for exactly these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def word(text: str) -> str:
    """Visible ASCII without white space: what a token is, and what a header can carry."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be ASCII without white space and control characters")
    return text
