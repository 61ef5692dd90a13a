"""Files that hold settings: ``KEY=VALUE`` lines, as systemd reads an ``EnvironmentFile=``."""

import os
import re
from typing import NamedTuple

_LIMIT = 65536
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK = re.compile(r"[ \t\n]*")
_SPACE = re.compile(r"[ \t]*")
_COMMENT = re.compile(r"[#;][^\n]*")
_KEY = re.compile(r"[^=\n]*")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
# What is escaped at its end keeps the white space before it.
_BARE = re.compile(r"((?:[^\\\n]*\\.)*)([^\\\n]*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class EnvFile(NamedTuple):
    """The variables of a file, and a sentence for each thing in it that cannot be read."""

    values: dict[str, str]
    faults: tuple[str, ...]


def read(path: str) -> EnvFile:
    """Read a file of settings; what goes wrong is among the faults."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return EnvFile({}, (f"{path}: {reason}",))
    values, faults = parse(text)
    return EnvFile(values, tuple(f"{path}, {fault}" for fault in faults))


def read_text(path: str) -> str:
    """The text of a file of at most 64 KiB that holds settings or one secret.

    Links are followed: that is how secrets are mounted. Never waits on a FIFO. Raises OSError, or
    ValueError with what is wrong with the content.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    data = b""
    try:
        while len(data) <= _LIMIT and (more := os.read(fd, _LIMIT + 1)):
            data += more
    finally:
        os.close(fd)
    if len(data) > _LIMIT:
        raise ValueError(f"is larger than {_LIMIT} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Not chained: the exception holds the content.
        raise ValueError("is not UTF-8") from None


def parse(text: str) -> EnvFile:
    """The variables of such a text; the last of equal names counts.

    Stricter than systemd, which passes over what it does not understand: such a line is a fault.
    """
    values: dict[str, str] = {}
    faults: list[str] = []
    text = re.sub("\r\n?", "\n", text) + "\n"
    at = _after(_BLANK, text, 0)
    while at < len(text):
        if _COMMENT.match(text, at):
            at = _after(_BLANK, text, _after(_COMMENT, text, at))
            continue
        line = f"line {text.count(chr(10), 0, at) + 1}"
        end = _after(_KEY, text, at)
        name = text[at:end].rstrip()
        value, at = "", end
        if text[end] == "=":
            read_value, at = _value(text, end + 1)
            if read_value is None:
                faults.append(f"{line}: the value of {name} has a quote that is never closed")
                break
            value = read_value
        if text[end] == "=" and _NAME.fullmatch(name):
            values[name] = value
        else:
            faults.append(f"{line}: must be KEY=VALUE or a comment")
        at = _after(_BLANK, text, at)
    return EnvFile(values, tuple(faults))


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _value(text: str, at: int) -> tuple[str | None, int]:
    """Quoted pieces, one after the other, then what is not quoted up to the line's end."""
    value = ""
    while text[at := _after(_SPACE, text, at)] in "'\"":
        if match := _SINGLE.match(text, at):
            value += match[1]
        elif match := _DOUBLE.match(text, at):
            value += _ESCAPE.sub(_double_escape, match[1])
        else:
            return None, at
        at = match.end()
    match = _BARE.match(text, at)
    assert match is not None
    value += _ESCAPE.sub(_bare_escape, match[1]) + match[2].rstrip(" \t")
    return value, match.end()


def _bare_escape(match: re.Match[str]) -> str:
    return match[1].strip("\n")


def _double_escape(match: re.Match[str]) -> str:
    return match[1].strip("\n") if match[1] in '"\\`$\n' else match[0]
