"""Text of files and peers made fit for a terminal."""

import unicodedata
from typing import TextIO

# Control characters, lone surrogates, and what turns or hides the text beside it.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str, limit: int = 0) -> str:
    """One line that changes nothing but the cells that it fills.

    What is not shown as a character becomes a space (line ends, tabs) or ``\\x1b``, ``\\u202e``.
    ``limit``: at most so many characters, the last one ``…`` where something was cut; 0: all.
    """
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in "\n\r\t":
        return " "
    if unicodedata.category(char) not in _HIDDEN:
        return char
    number = ord(char)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def brief_age(seconds: float) -> str:
    """A duration as people say it: ``12 s``, ``3 min``, ``5 h``, ``2 d``."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


class SafeLines:
    """A text stream that makes each line safe before it goes on to another one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._stream.write(safe(line) + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Write what has no line end yet; the other stream stays open."""
        if self._rest:
            self.write("\n")
        self.flush()
