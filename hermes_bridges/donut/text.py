"""An answer of Hermes as the posts that the hub takes (contract section 4)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hermes_bridges.core.clusters import boundary_before, clean_text, is_boundary
from hermes_bridges.donut.fences import Fence, fence_at, fences
from hermes_bridges.donut.markers import is_silent, without_end_tokens
from hermes_bridges.donut.media import without_media

# All in bytes of UTF-8, but PARTS_MAX.
PART_MAX = 4000
PART_LEAST = 512
ANSWER_MAX = 48_000
PARTS_MAX = 16
TOO_LONG = "\n\n(This answer is too long; the rest of it was left out.)"
CUT_SHORT = "\n\n(This answer was cut off before its end.)"

# White space, controls, and characters that show nothing.
_INVISIBLE = (
    r"\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_VISIBLE = re.compile(f"[^{_INVISIBLE}]")
_GAP = re.compile(f"[{_INVISIBLE}]+")
_BREAK = re.compile(r"[。！？][」』）”’]*\s*|\s+")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SENTENCE_END = re.compile(r"""[.!?…]["'”’»)\]*_]{0,4}\Z""")
# How good it is to cut there; anywhere else is worse.
_BLANK_LINE, _LINE, _SENTENCE, _WORD = 4, 3, 2, 1


class Piece(NamedTuple):
    """One post: a part of the answer, and what was added before and after it."""

    opening: str
    body: str
    closing: str


def answer_parts(
    answer: str, *, markdown: bool, limit: int = PART_MAX, cut_short: bool = False
) -> list[str]:
    """Return the posts of an answer, in order; none for one that asks for silence.

    Each takes at most ``limit`` bytes (at least PART_LEAST, else ValueError) and shows something.
    With ``cut_short`` a note at the end says that the answer ended early.
    """
    text = clean(answer, limit)
    return ["".join(piece) for piece in pieces(text, markdown, limit, CUT_SHORT * cut_short)]


def is_visible(text: str) -> bool:
    """Tell whether ``text`` shows a reader anything."""
    return _VISIBLE.search(text) is not None


def clean(answer: str, limit: int = PART_MAX) -> str:
    """Return what of an answer is to be posted, empty for silence.

    Inline media have become notes; end tokens and the white space around are gone. Where it takes
    more than one post, a gap of more than a quarter of one is shortened to that: each part must
    show something.
    """
    text = without_media(clean_text(answer))
    if is_silent(text):
        return ""
    text = _ending_visibly(without_end_tokens(text))
    if _size(text) > limit:
        text = _GAP.sub(lambda gap: _start(gap[0], limit // 4), text)
    return text


def pieces(text: str, markdown: bool, limit: int = PART_MAX, note: str = "") -> list[Piece]:
    """Cut a cleaned answer into posts of at most ``limit`` bytes; ``note`` goes to its end.

    The bodies, joined, are the text, or its start where it is too long: TOO_LONG then takes the
    place of the note. The time is linear in the text.
    """
    if limit < PART_LEAST:
        raise ValueError(f"a part takes at least {PART_LEAST} bytes")
    if not text:
        return []
    if _size(text) + len(note.encode()) > ANSWER_MAX:
        text, note = _shortened(text), TOO_LONG
    found = fences(text, limit // 8) if markdown else []
    done: list[Piece] = []
    at = used = 0
    while True:
        fence = fence_at(found, at)
        opening = fence.reopening if fence else ""
        room = limit - _size(opening)
        ending = _closed(found, text, len(text)) + note if note else ""
        if _size(text[at:] + ending) <= room:
            return [*done, Piece(opening, text[at:], ending)]
        last = len(done) == PARTS_MAX - 1
        if last:
            room = min(room, ANSWER_MAX - used) - _size(TOO_LONG)
        end = _end(text, at, room, found)
        body, closing = text[at:end], _closed(found, text, end)
        if last:
            return [*done, Piece(opening, body, closing + TOO_LONG)]
        done.append(Piece(opening, body, closing))
        at, used = end, used + _size(body)


def _size(text: str) -> int:
    return len(text.encode())


def _start(text: str, size: int) -> str:
    """The longest start of ``text`` within ``size`` bytes."""
    return text[:size].encode()[:size].decode("utf-8", "ignore")


def _ending_visibly(text: str) -> str:
    """``text`` up to the last character that shows something, what belongs to it included."""
    end = len(text)
    while end > 0 and not _VISIBLE.match(text, end - 1):
        end -= 1
    if end == 0:
        return ""
    while not is_boundary(text, end):
        end += 1
    return text[:end]


def _shortened(text: str) -> str:
    room = ANSWER_MAX - _size(TOO_LONG)
    top = len(_start(text, room))
    # Not by more than a quarter of a part.
    return _ending_visibly(text[: _best(text, top - PART_MAX // 4, top, []) or top])


def _closed(found: Sequence[Fence], text: str, at: int) -> str:
    """What must be added before a cut at ``at`` to close the code block that it parts."""
    fence = fence_at(found, at)
    if fence is None:
        return ""
    return fence.closing if text[at - 1] in "\r\n" else f"\n{fence.closing}"


def _end(text: str, at: int, room: int, found: Sequence[Fence]) -> int:
    """The end of the part that begins at ``at``, whose body and closing take ``room`` bytes."""
    top = at + len(_start(text[at : at + room], room))
    added = [1 + _size(fence.closing) for fence in found if fence.start < top and fence.end > at]
    room -= max(added, default=0)
    body = _start(text[at : at + room], room)
    # The end of the text is no cut: something must be left for the next part.
    top = min(at + len(body), len(text) - 1)
    end = _best(text, at + len(_start(body, room * 3 // 4)), top, found)
    if is_visible(text[at:end]):
        return end
    # One character is longer than a part. The rest shall begin with something that shows.
    while top > at + 1 and not _VISIBLE.match(text, top):
        top -= 1
    return top


def _best(text: str, low: int, top: int, found: Sequence[Fence]) -> int:
    """The best place to cut from ``low`` up to ``top``, else the last one that breaks nothing."""
    begin = low
    while begin > 0 and text[begin - 1].isspace():
        begin -= 1
    best = rank = 0
    for run in _BREAK.finditer(text, begin, top):
        end, worth = _place(text, run, top)
        if end >= low and worth >= max(rank, 1) and is_boundary(text, end):
            if not _awkward(found, end):
                best, rank = end, worth
    if rank:
        return best
    end = boundary_before(text, top)
    fence = fence_at(found, end)
    # The marks that close a block stay whole.
    return fence.close if fence and low <= fence.close < end else end


def _place(text: str, run: re.Match[str], top: int) -> tuple[int, int]:
    """Where to cut at a sentence sign or a run of white space, and how good that is (0: not)."""
    newlines = [newline.end() for newline in _NEWLINE.finditer(text, run.start(), run.end())]
    end = newlines[-1] if newlines else run.end()
    # White space stays together in the earlier part, but what indents the next line.
    parted = text.startswith(("\r", "\n"), end) if newlines else text[end : end + 1].isspace()
    if parted:
        return end, 0
    if newlines:
        return end, _BLANK_LINE if len(newlines) > 1 else _LINE
    if not run[0].isspace() or _SENTENCE_END.search(text, max(0, run.start() - 5), run.start()):
        return end, _SENTENCE
    return end, _WORD


def _awkward(found: Sequence[Fence], at: int) -> bool:
    """Whether a cut at ``at`` would part a code block at, or inside, one of its fences."""
    fence = fence_at(found, at)
    return fence is not None and not fence.body < at < fence.close
