"""Which texts count as a time stamp: all that JavaScript's ``Date.parse`` takes, and some more.

A stamp is only looked at, never used, and refusing one would lose a human's answer. So it is enough
that there is a day, and that day and time are possible: what is no number, no name of a month and
no sign that matters is skipped.
"""

import re
from collections.abc import Iterator

from hermes_bridges.coms.jsrules import BLANKS

_TOKEN = re.compile(
    rf"(?P<number>[0-9]+)|(?P<word>[^\x00-\x40{BLANKS}]+)|(?P<open>\()|(?P<other>.)", re.DOTALL
)
_PAREN = re.compile(r"[()]")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_UTC = ("z", "ut", "utc", "gmt")
# No stamp is that long; reading one would keep others waiting.
_LONGEST = 1000
# The highest number that can close a time of so many parts; none closes an empty one.
_LAST = (-1, 59, 59, 999)
_END = ("end", "")


def is_date(text: str) -> bool:
    """Tell whether ``text`` can stand for a time (contract section 5, ``at``)."""
    if len(text) > _LONGEST:
        return False
    stamp = _Stamp(text)
    stamp.read()
    return stamp.has_day() and stamp.has_time()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    # A NUL ends the text, and what stands in parentheses is a comment.
    text = text.partition("\0")[0]
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match.lastgroup == "open":
            position = _after_parenthesis(text, position)
        yield match.lastgroup or "", match[0].lower()


def _after_parenthesis(text: str, position: int) -> int:
    depth = 1
    for paren in _PAREN.finditer(text, position):
        depth += 1 if paren[0] == "(" else -1
        if depth == 0:
            return paren.end()
    return len(text)


class _Stamp:
    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._peek = next(self._rest, _END)
        self._day: list[int] = []
        self._year_first = False
        self._named_month = False
        self._time: list[int] = []
        self._utc = False
        self._offset_minutes_due = False

    def read(self) -> None:
        """Sort the numbers of the text into day and time; those of a zone's offset are dropped."""
        while self._peek != _END:
            kind, text = self._next()
            if kind == "number":
                self._number(text)
            elif text[:3] in _MONTHS:
                self._named_month = True
                self._skip("-")
            elif text in _UTC:
                self._utc = bool(self._day or self._time)
            elif text in ("+", "-") and (self._time or self._utc):
                if self._peek[0] == "number":
                    self._next()
                self._offset_minutes_due = self._peek[1] == ":"

    def has_day(self) -> bool:
        """Tell whether there are one to three numbers that can be a day, in JavaScript's orders."""
        if not 1 <= len(self._day) <= 3:
            return False
        first, second, third = (*self._day, 1, 1)[:3]
        if self._named_month:
            return _is_day(first) or _is_day(second)
        if _is_month(first) and _is_day(second):
            return True
        year_first = self._year_first or not _is_day(first)
        return year_first and _is_month(second) and _is_day(third)

    def has_time(self) -> bool:
        """Tell whether there is no time, or one from 00:00:00 to 24:00:00."""
        hour, minute, second, ms = (*self._time, 0, 0, 0, 0)[:4]
        inside = hour <= 23 and minute <= 59 and second <= 59 and ms <= 999
        return len(self._time) <= 4 and (inside or (hour, minute, second, ms) == (24, 0, 0, 0))

    def _number(self, digits: str) -> None:
        number = int(digits.lstrip("0")[:9] or "0")
        if self._skip(":"):
            self._time += [number, 0] if self._skip(":") else [number]
        elif self._offset_minutes_due and number <= 59:
            self._offset_minutes_due = False
        elif self._ends_time(number):
            self._time = [*self._time, number, 0, 0, 0][:4]
            if self._skip(".") and self._peek[0] == "number":
                self._next()
        else:
            self._year_first |= not self._day and len(digits) >= 4
            self._day.append(number)
            self._skip("-")

    def _ends_time(self, number: int) -> bool:
        parts = len(self._time)
        return parts < len(_LAST) and number <= _LAST[parts]

    def _next(self) -> tuple[str, str]:
        token = self._peek
        self._peek = next(self._rest, _END)
        return token

    def _skip(self, text: str) -> bool:
        found = self._peek[1] == text
        if found:
            self._next()
        return found


def _is_month(number: int) -> bool:
    return 1 <= number <= 12


def _is_day(number: int) -> bool:
    return 1 <= number <= 31
