"""Which texts JavaScript's ``Date.parse`` takes for a date.

ISO 8601 is tried first. What does not fit is read on by looser rules: numbers collect into a day of
at most three parts, numbers before a colon into a time; names of months and zones, AM and PM
count; words before the first number and all that stands in parentheses are skipped.
"""

import re
from collections.abc import Iterator

from hermes_bridges.coms.jsrules import BLANKS

# A line or paragraph separator counts as a letter here.
_BLANKS = BLANKS.replace("\u2028\u2029", "")
_TOKEN = re.compile(
    rf"(?P<number>[0-9]+)|(?P<blank>[{_BLANKS}]+)|(?P<symbol>[-+:.)])"
    rf"|(?P<word>[^\x00-\x40{_BLANKS}]+)|(?P<open>\()|(?P<other>.)",
    re.DOTALL,
)
_PAREN = re.compile(r"[()]")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_HALVES = {"am": 0, "pm": 12}
_ZONES = {"z": 0, "ut": 0, "utc": 0, "gmt": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5}
_ZONES |= {"mst": -7, "mdt": -6, "pst": -8, "pdt": -7}
_END = ("end", "")
_MAX_MS = 8_640_000_000_000_000


_SIGNS = {"+": 1, "-": -1}


def is_date(text: str) -> bool:
    """Tell whether ``Date.parse(text)`` is a number; a time without a zone is taken for UTC."""
    reader = _Reader(text)
    try:
        ms = reader.iso()
        if ms is None:
            ms = reader.loose()
    except ValueError:
        return False
    return -_MAX_MS <= ms <= _MAX_MS


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    text = text.partition("\0")[0]
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match.lastgroup == "open":
            position = _after_parenthesis(text, position)
        yield match.lastgroup or "", match[0].lower()
    yield _END


def _after_parenthesis(text: str, position: int) -> int:
    depth = 1
    for paren in _PAREN.finditer(text, position):
        depth += 1 if paren[0] == "(" else -1
        if depth == 0:
            return paren.end()
    return len(text)


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[:9] or "0")


def _is_day(number: int) -> bool:
    return 1 <= number <= 31


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970, Gregorian, of any year; a day 31 runs on where there is none."""
    years = year + 4800 - (month <= 2)
    # Months counted from March, so that the leap day is the last of its year.
    months = (month + 9) % 12
    return (
        years * 365
        + years // 4
        - years // 100
        + years // 400
        + (153 * months + 2) // 5
        + day
        - 2_472_633
    )


def _check(fits: bool) -> None:
    if not fits:
        raise ValueError("no date")


class _Reader:
    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._peek = next(self._rest)
        self._day: list[int] = []
        self._month = 0
        self._time: list[int] = []
        self._noon: int | None = None
        self._zone_sign = 1
        self._zone_hour: int | None = None
        self._zone_minute: int | None = None

    def iso(self) -> int | None:
        """Return the ms since 1970 of an ISO date; None when loose() has to go on from here.

        Raises ValueError where the text is no date however it goes on.
        """
        sign = self._sign()
        year = self._fixed(6 if sign else 4, 0, 999_999)
        if year is None or (sign == -1 and year == 0):
            return None
        self._day.append((sign or 1) * year)
        for high in (12, 31):
            if not self._skip("-"):
                break
            part = self._fixed(2, 1, high)
            if part is None:
                return None
            self._day.append(part)
        if self._skip("t"):
            self._iso_time()
            self._iso_zone()
            _check(self._peek == _END)
        elif self._peek != _END:
            return None
        year, month, day = (*self._day, 1, 1)[:3]
        return self._ms(year, month, day)

    def loose(self) -> int:
        """Read on from where iso() stopped; returns ms since 1970 or raises ValueError."""
        numbers = bool(self._day)
        while self._peek != _END:
            kind, text = self._next()
            if kind == "number":
                self._loose_number(_number(text))
                numbers = True
            elif kind == "word":
                self._loose_word(text, numbers)
            elif text in _SIGNS and (self._time or self._zone_hour == self._zone_minute == 0):
                self._loose_offset(_SIGNS[text])
                numbers = True
            else:
                _check(not (numbers and text in ("+", "-", ")")))
        return self._loose_ms()

    def _iso_time(self) -> None:
        hour = self._must(2, 24)
        high = 59 if hour < 24 else 0
        _check(self._skip(":"))
        self._time = [hour, self._must(2, high)]
        if self._skip(":"):
            self._time.append(self._must(2, high))
            if self._skip("."):
                kind, digits = self._next()
                _check(kind == "number" and (hour < 24 or _number(digits) == 0))

    def _iso_zone(self) -> None:
        if self._skip("z") or not (sign := self._sign()):
            return
        self._zone_sign = sign
        if self._peek[0] == "number" and len(self._peek[1]) == 4:
            self._zone_hour, self._zone_minute = divmod(_number(self._next()[1]), 100)
            _check(self._zone_hour <= 23 and self._zone_minute <= 59)
        else:
            self._zone_hour = self._must(2, 23)
            _check(self._skip(":"))
            self._zone_minute = self._must(2, 59)

    def _loose_number(self, number: int) -> None:
        if self._skip(":"):
            if self._skip(":"):
                _check(not self._time)
                self._time = [number, 0]
            else:
                _check(len(self._time) < 4)
                self._time.append(number)
                self._skip(".")
            return
        dot = self._skip(".")
        if dot and self._expects(number):
            kind, digits = self._next()
            _check(kind == "number")
            self._end_time(number, int(digits[:3].ljust(3, "0")))
        elif self._zone_hour is not None and self._zone_minute is None and number <= 59:
            self._zone_minute = number
        elif self._expects(number):
            self._end_time(number)
            _check(self._peek[0] in ("end", "blank") or self._peek[1] in ("z", "+", "-"))
        else:
            _check(len(self._day) < 3)
            self._day.append(number)
            self._skip("-")

    def _loose_word(self, word: str, numbers: bool) -> None:
        if word in _HALVES and self._time:
            self._noon = _HALVES[word]
        elif word[:3] in _MONTHS:
            self._month = _MONTHS.index(word[:3]) + 1
            self._skip("-")
        elif word in _ZONES and numbers:
            self._zone_sign = 1 if _ZONES[word] >= 0 else -1
            self._zone_hour, self._zone_minute = abs(_ZONES[word]), 0
        else:
            _check(not numbers and self._peek[0] != "number")

    def _loose_offset(self, sign: int) -> None:
        self._zone_sign = sign
        digits = self._next()[1] if self._peek[0] == "number" else ""
        if self._peek[1] == ":":
            self._zone_hour, self._zone_minute = _number(digits), None
            return
        _check(1 <= len(digits) <= 4)
        number = _number(digits)
        self._zone_hour, self._zone_minute = (
            (number, 0) if len(digits) <= 2 else divmod(number, 100)
        )

    def _loose_ms(self) -> int:
        _check(bool(self._day))
        first, second, third = (*self._day, 1, 1)[:3]
        if self._month:
            month = self._month
            day, year = (first, second) if _is_day(first) else (second, first)
        elif _is_day(first):
            month, day, year = first, second, third
        else:
            year, month, day = first, second, third
        _check(1 <= month <= 12 and _is_day(day))
        if 0 <= year < 100:
            year += 2000 if year < 50 else 1900
        return self._ms(year, month, day)

    def _ms(self, year: int, month: int, day: int) -> int:
        hour, minute, second, ms = (*self._time, 0, 0, 0, 0)[:4]
        if self._noon is not None:
            _check(hour <= 12)
            hour = hour % 12 + self._noon
        midnight = (hour, minute, second, ms) == (24, 0, 0, 0)
        _check(midnight or (hour <= 23 and minute <= 59 and second <= 59 and ms <= 999))
        zone = self._zone_sign * ((self._zone_hour or 0) * 60 + (self._zone_minute or 0))
        seconds = (hour * 60 + minute - zone) * 60 + second
        return (_days(year, month, day) * 86_400 + seconds) * 1000 + ms

    def _expects(self, number: int) -> bool:
        limits = (-1, 59, 59, 999, -1)
        return number <= limits[len(self._time)]

    def _end_time(self, *numbers: int) -> None:
        self._time = [*self._time, *numbers, 0, 0, 0][:4]

    def _next(self) -> tuple[str, str]:
        token = self._peek
        self._peek = next(self._rest, _END)
        return token

    def _skip(self, text: str) -> bool:
        found = self._peek[1] == text
        if found:
            self._next()
        return found

    def _sign(self) -> int | None:
        sign = _SIGNS.get(self._peek[1])
        if sign:
            self._next()
        return sign

    def _fixed(self, length: int, low: int, high: int) -> int | None:
        kind, text = self._peek
        if kind != "number" or len(text) != length or not low <= _number(text) <= high:
            return None
        return _number(self._next()[1])

    def _must(self, length: int, high: int) -> int:
        number = self._fixed(length, 0, high)
        if number is None:
            raise ValueError("no time")
        return number
