"""JavaScript's rules for numbers, text and JSON, where Python's own differ.

The peers are node programs, and the wire means what they mean by it.
"""

import json
import math
import re
from itertools import accumulate

# WhiteSpace and LineTerminator of ECMAScript: str.strip() knows neither U+FEFF nor is it content
# with these, it also takes U+001C to U+001F and U+0085.
BLANKS = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PREFIXED = re.compile(r"0(?:[xX]([0-9a-fA-F]+)|[oO]([0-7]+)|[bB]([01]+))")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SAFE_INTEGER = 2**53 - 1
# A string, or what is neither a string nor a bracket.
_NO_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)
_DEPTHS = {"[": 1, "{": 1, "]": -1, "}": -1}
# Levels of nesting that are read: what every Python can read and ``stringify``, on any thread.
DEPTH_MAX = 400


def trim(text: str) -> str:
    """``String#trim``."""
    return text.strip(BLANKS)


def utf16_len(text: str) -> int:
    """``String#length``: the number of UTF-16 units."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parse_number(text: str) -> float | None:
    """``Number(text)``; None where that is not a finite number. An empty text is 0, as there."""
    text = trim(text)
    if not text:
        return 0.0
    if _DECIMAL.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else None
    prefixed = _PREFIXED.fullmatch(text)
    if not prefixed:
        return None
    base = {1: 16, 2: 8, 3: 2}[prefixed.lastindex or 1]
    try:
        return float(int(text[2:], base))
    except OverflowError:
        return None


def format_number(value: float) -> str:
    """``String(value)``: the shortest digits that read back as the same number, never ``100.0``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or "0")
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def parse_json(text: str, *, strict: bool = True) -> object:
    """``JSON.parse(text)``: no byte order mark, no NaN, one value; numbers of any length.

    Raises ValueError for all that it refuses, more than DEPTH_MAX levels of nesting included.
    With ``strict=False`` raw control characters inside strings are accepted.
    """
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise ValueError("nested too deeply")
    try:
        return (_STRICT if strict else _LENIENT).decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _depth(text: str) -> int:
    brackets = _NO_BRACKETS.sub("", text)
    return max(accumulate(map(_DEPTHS.__getitem__, brackets)), default=0)


def stringify(value: object) -> str:
    """``JSON.stringify(value)`` of a value that came from JSON or is built of the same types.

    Raises RecursionError for a value nested beyond what Python can follow.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, (int, float)):
        return _json_number(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quote(k)}:{stringify(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([stringify(item) for item in value]) + "]"
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    if not _SURROGATE.search(quoted):
        return quoted
    quoted = quoted.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", quoted)


def _json_number(value: float) -> str:
    if isinstance(value, int) and -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
        return str(value)
    value = float(value)
    return format_number(value) if math.isfinite(value) else "null"


def _integer(digits: str) -> float:
    # Longer ones are doubles to the peer; int() of them would be slow, and refuses 5,000 digits.
    return int(digits) if len(digits) <= 15 else float(digits)


def _constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_STRICT = json.JSONDecoder(parse_int=_integer, parse_constant=_constant)
_LENIENT = json.JSONDecoder(parse_int=_integer, parse_constant=_constant, strict=False)
