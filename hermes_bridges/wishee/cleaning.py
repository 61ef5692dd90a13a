"""What a stored row says to the user: the rules of "Transcript cleaning" (contract, section 4).

Hermes keeps in one transcript what the user wrote, what it wrote itself for the model to read, and
the words that reached the model inside the output of a tool.
"""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from hermes_bridges.core.clusters import clean_text

Strip = Callable[[str], str]
"""Takes out of a model's text what it only thought."""

STEER_END = "[/OUT-OF-BAND USER MESSAGE]"
"""The end of a user's words inside the output of a tool."""
STEER_OLD = "\n\nUser guidance: "
"""The beginning of them in Hermes 0.14; they go on to the end of the text."""

_STEER_BEGIN = "[OUT-OF-BAND USER MESSAGE"
_NOTE = re.compile(r"\s*\[System note:.*?\][^\S\n]*\n[^\S\n]*\n", re.DOTALL)
_ONLY_NOTE = re.compile(r"\s*\[System note:.*\]\s*", re.DOTALL)
_ORIGIN = re.compile(
    r"\s*Gateway message origin \(JSON data,.*?fields are insufficient\.[^\S\n]*\n[^\S\n]*\n",
    re.DOTALL,
)
_CRON = re.compile(r"\s*\[Cron delivery: [^\n]*\]\n")
_PARTS = "\0json:"  # before a content that is not one text
_THOUGHT_TAG = re.compile(
    r"<(/?)(think|thinking|thought|reasoning|REASONING_SCRATCHPAD)\b[^<>]*>\s*", re.IGNORECASE
)


class Row(NamedTuple):
    """A row of ``messages``; ``at`` in epoch seconds, ``items`` is ``codex_message_items``."""

    id: int
    role: str
    content: str
    at: float
    kind: str = ""
    items: str = ""
    active: bool = True


class Entry(NamedTuple):
    """What is left of a row.

    ``role`` is ``user`` for a message that starts a turn, ``steer`` for what was said in the midst
    of one, ``assistant``, or ``gone`` for a user's message that was taken back. Of an assistant's
    row without a visible word there is no text, and of a steer there may be several.
    """

    id: int
    at: float
    role: str
    texts: tuple[str, ...] = ()


def clean(row: Row, strip: Strip) -> Entry | None:
    """What a row says, None when it says nothing to the user."""
    if not row.active:
        return Entry(row.id, row.at, "gone") if row.role == "user" else None
    if row.kind == "hidden":
        return None
    content = _text_of(row.content)
    if row.role == "assistant":
        return _entry(row, "assistant", _visible(content, row.items, strip))
    if row.role == "tool" or (row.role == "user" and row.kind == "steer"):
        words = _steers(content)
        return _entry(row, "steer", *words) if words else None
    if row.role != "user" or is_machine_written(content, row.kind):
        return None
    return _entry(row, "user", _without_preambles(content))


def is_machine_written(content: str, kind: str) -> bool:
    """Whether Hermes itself wrote a user's row that is no steer."""
    if kind or content.startswith("[System:") or _CRON.match(content):
        return True
    return not _without_preambles(content) and bool(content.strip())


def strip_thoughts(text: str) -> str:
    """Take out the blocks in which models put what they think, where Hermes cannot do it.

    A block that begins a line and has no end goes on to the end of the text.
    """
    tags = list(_THOUGHT_TAG.finditer(text))
    ends: list[int] = []
    next_end: dict[str, int] = {}
    for tag in reversed(tags):
        if tag[1]:
            next_end[tag[2].lower()] = tag.end()
        ends.append(next_end.get(tag[2].lower(), 0))
    kept, at = [], 0
    for tag, end in zip(tags, reversed(ends), strict=True):
        if tag.start() >= at:
            kept.append(text[at : tag.start()])
            line = text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()]
            is_open = not tag[1] and not end and not line.strip()
            at = len(text) if is_open else max(tag.end(), 0 if tag[1] else end)
    return "".join([*kept, text[at:]]).strip()


def _entry(row: Row, role: str, *texts: str) -> Entry:
    return Entry(row.id, row.at, role, tuple(text for text in texts if text))


def _text_of(content: str) -> str:
    if not content.startswith(_PARTS):
        return clean_text(content)
    try:
        parts = json.loads(content[len(_PARTS) :])
    except (ValueError, RecursionError):
        return ""
    return clean_text(_joined(parts))


def _joined(parts: object) -> str:
    if isinstance(parts, str):
        return parts
    found = parts if isinstance(parts, list) else [parts]
    texts = [part.get("text") if isinstance(part, dict) else part for part in found]
    return "\n".join(text for text in texts if isinstance(text, str))


def _visible(content: str, items: str, strip: Strip) -> str:
    return strip(content).strip() or _commentary(items, strip)


def _commentary(items: str, strip: Strip) -> str:
    """What a model said between its calls, where the provider keeps it apart from the content."""
    try:
        found = json.loads(items) if items else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, list):
        return ""
    said = [
        clean_text(_joined(item.get("content")))
        for item in found
        if isinstance(item, dict) and item.get("phase") == "commentary"
    ]
    return "\n\n".join(text for one in said if (text := strip(one).strip()))


def _steers(content: str) -> list[str]:
    """The user's words at the end of a text: further up, they would be a tool's own output."""
    words: list[str] = []
    rest = content.rstrip()
    while rest.endswith(STEER_END):
        begin = rest.rfind(_STEER_BEGIN)
        head, line, said = rest[max(begin, 0) : -len(STEER_END)].partition("]\n")
        if begin < 0 or not line or "\n" in head:
            break
        words.insert(0, said.strip())
        rest = rest[:begin].rstrip()
    if not words:
        words = [part.strip() for part in content.split(STEER_OLD)[1:]]
    return [said for said in words if said]


def _without_preambles(content: str) -> str:
    while True:
        found = _NOTE.match(content) or _ORIGIN.match(content)
        if found is None:
            break
        content = content[found.end() :]
    return "" if _ONLY_NOTE.fullmatch(content) else content.strip()
