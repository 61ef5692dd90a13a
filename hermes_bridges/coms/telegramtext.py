"""The message that asks the human, within what Telegram takes (contract section 5, Text)."""

from collections.abc import Sequence
from typing import NamedTuple

from hermes_bridges.coms.cutting import shorten
from hermes_bridges.coms.jsrules import trim, utf16_len
from hermes_bridges.coms.peertext import harmless
from hermes_bridges.coms.questions import Option, Question

# All in UTF-16 units.
TELEGRAM_CAP = 4096
PROJECT_CAP = 128
# The floors are what is kept of a text before the next one is shortened.
QUESTION_FLOOR = 1000
TITLE_FLOOR = 24
DESCRIPTION_FLOOR = 8

_CONTEXT = "\n\nContext: "
_OPTIONS = "\n\nOptions:"
_DASH = " — "
# A line of an option takes at least 4 units: no more of them than this can be shown.
_MOST_OPTIONS = TELEGRAM_CAP // 4


class _Line(NamedTuple):
    number: str
    title: str
    description: str


def telegram_text(qid: str, project: str, question: Question) -> str:
    """Return the question as the human sees it: at most TELEGRAM_CAP units, nothing in it armed.

    Where it is too long the context is shortened first, then the descriptions of the options, then
    the question, then the titles, and at last options are left out and their number is told. The
    header with the qid and the reply instruction always stay whole.
    """
    head = f"❓ [HUB-Q:{qid}] "
    where = f"\n\n📁 Project: {shorten(project, PROJECT_CAP)}"
    tail = f"\n\n↩ Reply to this message, or type: HUB-Q:{qid}: <answer>"
    room = TELEGRAM_CAP - utf16_len(head + where + tail)
    text = harmless(question.text)
    length = utf16_len(text)
    lines = _lines(question.options)
    least = min(_bare_size(lines), room - min(length, QUESTION_FLOOR))
    options = _options(lines, len(question.options), max(room - length, least))
    room -= utf16_len(options)
    text = shorten(text, room)
    room -= utf16_len(text) + len(_CONTEXT)
    context = harmless(question.context or "")
    context = _CONTEXT + shorten(context, room) if trim(context) and room > 0 else ""
    return head + text + where + context + options + tail


def _lines(options: Sequence[Option]) -> list[_Line]:
    return [
        _Line(f"\n{number}. ", harmless(option.title), harmless(option.description or ""))
        for number, option in enumerate(options[:_MOST_OPTIONS], 1)
    ]


def _bare_size(lines: Sequence[_Line]) -> int:
    return len(_OPTIONS) + sum(utf16_len(line.number + line.title) for line in lines)


def _options(lines: Sequence[_Line], total: int, room: int) -> str:
    """Return the block of options in at most ``room`` units; ``total`` may exceed the lines."""
    if not lines:
        return ""
    spare = room - _bare_size(lines)
    if total > len(lines) or spare < 0:
        return _short_titles(lines, total, room)
    described = [line.description for line in lines if line.description]
    level = _level(described, spare - len(_DASH) * len(described))
    if level < DESCRIPTION_FLOOR:
        level = 0
    block = [_OPTIONS]
    for number, title, description in lines:
        block += (number, title)
        if description and level:
            block += (_DASH, shorten(description, level))
    return "".join(block)


def _short_titles(lines: Sequence[_Line], total: int, room: int) -> str:
    room -= len(_OPTIONS)
    numbers = sum(len(line.number) for line in lines)
    level = _level([line.title for line in lines], room - numbers)
    if total == len(lines) and level >= TITLE_FLOOR:
        return _OPTIONS + "".join(line.number + shorten(line.title, level) for line in lines)
    block = [_OPTIONS]
    room -= utf16_len(_more(total))
    for number, title, _ in lines:
        line = number + shorten(title, TITLE_FLOOR)
        room -= utf16_len(line)
        if room < 0:
            break
        block.append(line)
    return "".join(block) + _more(total - len(block) + 1)


def _more(count: int) -> str:
    return f"\n… {count} more"


def _level(texts: Sequence[str], room: int) -> int:
    """Return the most units to which each of the texts may be shortened so that all fit."""
    sizes = [utf16_len(text) for text in texts]
    low, high = 0, TELEGRAM_CAP
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= room:
            low = middle
        else:
            high = middle - 1
    return low
