"""Texts on their way in and out: the question, what a peer says, and what a terminal may see."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from hermes_bridges.coms.client.args import UsageError
from hermes_bridges.coms.client.loop import READ, Loop, TimedOut
from hermes_bridges.coms.envelope import LINE_CAP
from hermes_bridges.coms.jsrules import stringify
from hermes_bridges.core.clusters import clean_text
from hermes_bridges.errors import BridgeError

_CHUNK = 65_536
# A UTF-16 unit takes three bytes of UTF-8 at most: what is longer fits no line.
_BYTES_MAX = 3 * LINE_CAP

# Control sequences: CSI, then strings that have an end (OSC, DCS and the like), then short ones.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]")
# What shows nothing itself, and can show other text in another order, or as something else.
_UNSEEN = re.compile(r"[\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
# Ends of lines to some terminals: as such they could begin a forged row.
_OTHER_BREAKS = re.compile(r"[\x85\u2028\u2029]")
_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")


def harmless(text: str) -> str:
    """Drop what would command a terminal or hide: sequences, controls but newline and tab, marks
    of direction, characters without width. Rare line ends become blanks."""
    text = _CONTROLS.sub("", _SEQUENCES.sub("", text))
    return _OTHER_BREAKS.sub(" ", _UNSEEN.sub("", text))


def one_line(text: str) -> str:
    """Put a text of somebody else into one cell of one row."""
    return _BREAKS.sub(" ", text)


def say(text: str) -> None:
    """Print a text on standard output, whatever the locale; UTF-8, as it is unless a terminal.

    Raises BridgeError or OSError.
    """
    if sys.stdout is None:
        raise BridgeError("standard output is closed")
    _put(text, sys.stdout)


def complain(text: str) -> None:
    """The same on standard error, if that can be."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            _put(text, sys.stderr)


def _put(text: str, stream: TextIO) -> None:
    text = clean_text(text)
    if stream.isatty():
        text = harmless(text)
    stream.flush()
    stream.buffer.write(text.encode() + b"\n")
    stream.buffer.flush()


def pretty(value: object) -> str:
    """A response as people read it: a text as it is, else JSON with two spaces."""
    if isinstance(value, str):
        return value
    try:
        return _indented(value, "\n")
    except RecursionError:
        return json.dumps(value)


def _indented(value: object, newline: str) -> str:
    inner = newline + "  "
    if isinstance(value, dict) and value:
        fields = [f"{stringify(k)}: {_indented(v, inner)}" for k, v in value.items()]
        return "{" + inner + ("," + inner).join(fields) + newline + "}"
    if isinstance(value, list) and value:
        items = [_indented(item, inner) for item in value]
        return "[" + inner + ("," + inner).join(items) + newline + "]"
    return stringify(value)


def question(text: str, options: Sequence[str], context: str | None) -> str:
    """The prompt: plain text, or JSON when there are options or a context."""
    if not options and context is None:
        return text
    fields: dict[str, object] = {"question": text}
    if context is not None:
        fields["context"] = clean_text(context)
    fields["options"] = [{"title": clean_text(title)} for title in options]
    return stringify(fields)


def read_text(loop: Loop, words: Sequence[str], limit: float) -> str:
    """The text that the operands give; a lone ``-`` reads it within ``limit`` seconds from stdin.

    Raises UsageError for an empty or far too long one, TimedOut, Interrupted or OSError.
    """
    text = _read_stdin(loop, limit) if tuple(words) == ("-",) else " ".join(words)
    if not text.strip():
        raise UsageError("the text is empty")
    return clean_text(text)


def _read_stdin(loop: Loop, limit: float) -> str:
    if sys.stdin is None:
        raise UsageError("the text is to come from standard input, but that is closed")
    fd = sys.stdin.fileno()
    data = bytearray()
    pieces: list[bytes] = []

    def ready(events: int) -> None:
        pieces.append(os.read(fd, _CHUNK))
        data.extend(pieces[-1])

    loop.watch(fd, READ, ready)
    try:
        ended = loop.run(
            lambda: len(data) > _BYTES_MAX or (bool(pieces) and not pieces[-1]),
            loop.clock() + limit,
        )
    finally:
        loop.forget(fd)
    if not ended:
        raise TimedOut(f"standard input did not end within {limit:g} s")
    if len(data) > _BYTES_MAX:
        raise UsageError(f"the text is too long: at most {LINE_CAP} characters fit one line")
    return data.decode("utf-8", "replace").rstrip("\r\n")
