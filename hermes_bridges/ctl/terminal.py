"""Text of files and peers made fit for a terminal."""

import unicodedata

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
