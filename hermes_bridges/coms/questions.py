"""What a prompt asks, what an answer means, and what is told (contract section 5)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hermes_bridges.coms.jsdates import is_date
from hermes_bridges.coms.jsrules import format_number, parse_json, trim
from hermes_bridges.core.clusters import clean_text
from hermes_bridges.errors import BridgeError

_BOM = b"\xef\xbb\xbf"
_NUMBER = re.compile(r"[0-9]+")

# The closed vocabularies of the event log.
EVENTS = frozenset(
    {
        "question_received",
        "delivered",
        "delivery_error",
        "delivery_unknown",
        "answered",
        "cancelled",
        "timeout",
        "late_answer",
        "answer_rejected",
    }
)
REASONS = frozenset(
    {
        "invalid_path",
        "invalid_qid",
        "foreign_qid",
        "invalid_json",
        "invalid_schema",
        "qid_mismatch",
        "unauthorized",
    }
)
PHASES = frozenset({"question", "timeout_note", "cancel_note", "late_note", "reject_note"})


class Option(NamedTuple):
    """One of the answers that a peer offers."""

    title: str
    description: str | None = None


class Question(NamedTuple):
    """What a prompt asks, as the peer wrote it but for lone surrogates."""

    text: str
    context: str | None = None
    options: tuple[Option, ...] = ()


def parse_prompt(prompt: str, sender_name: str | None, sender_cwd: str | None) -> Question:
    """Read a prompt: JSON of an object with a string ``question``, else plain text."""
    try:
        fields = parse_json(prompt)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("question"), str):
        return Question(clean_text(prompt), _sender(sender_name, sender_cwd))
    context = _text(fields.get("context"))
    listed = fields.get("options")
    options = map(_option, listed) if isinstance(listed, list) else ()
    return Question(
        clean_text(fields["question"]),
        context if context and trim(context) else None,
        tuple(option for option in options if option),
    )


def _sender(name: str | None, cwd: str | None) -> str | None:
    known = [part for part in (name, cwd) if part and trim(part)]
    return f"From {' @ '.join(known)}" if known else None


def _option(value: object) -> Option | None:
    if isinstance(value, str):
        return Option(clean_text(value))
    if isinstance(value, dict):
        title = _text(value.get("title"))
        if title is not None:
            return Option(title, _text(value.get("description")))
    return None


def _text(value: object) -> str | None:
    return clean_text(value) if isinstance(value, str) else None


# What the human is told after the question


def cancel_note(qid: str) -> str:
    """Say that the question needs no answer any more."""
    return f"✖ [HUB-Q:{qid}] The question was cancelled — it was answered from the console."


def timeout_note(qid: str, ms: float) -> str:
    """Say that the time for an answer is over."""
    return f"⌛ [HUB-Q:{qid}] The question timed out after {format_number(ms)}ms."


def late_note(qid: str) -> str:
    """Say that an answer came too late."""
    return f"ℹ [HUB-Q:{qid}] This question is already closed; the late answer was ignored."


def reject_note(qid: str, reason: str) -> str:
    """Say that an answer could not be read."""
    return f"⚠ [HUB-Q:{qid}] The answer could not be read ({reason}); please reply again."


# What the peer is told instead of an answer


def timeout_error(ms: float) -> str:
    """Say that nobody answered in time."""
    return f"no remote answer within {format_number(ms)}ms"


def send_error(code: int | None, detail: str) -> str:
    """Say that the question could not be sent; ``code`` is None when a signal ended ``hermes``."""
    detail = trim(detail)
    return "".join(
        (
            "hermes send failed",
            "" if code is None else f" ({code})",
            f": {detail}" if detail else "",
        )
    )


def bad_qid_error() -> str:
    """Say that a prompt's msg_id can be no qid."""
    return "prompt msg_id must be a 26-character Crockford ULID qid"


# Answers


class AnswerRefused(BridgeError):
    """An answer file whose content cannot be used; ``reason`` is one of REASONS."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Answer(NamedTuple):
    """The content of an answer file."""

    qid: str
    text: str
    answered_by: str
    at: str


def read_answer(raw: bytes, qid: str) -> Answer:
    """Read the content of the answer file of the question ``qid``.

    Raises AnswerRefused: ``invalid_json``, ``invalid_schema`` or ``qid_mismatch``.
    """
    try:
        # Shells and models write byte order marks, and raw newlines in texts: not JSON, but meant.
        fields = parse_json(raw.removeprefix(_BOM).decode("utf-8"), strict=False)
    except ValueError as error:
        raise AnswerRefused("invalid_json") from error
    if not isinstance(fields, dict):
        raise AnswerRefused("invalid_schema")
    texts = [_text(fields.get(name)) for name in ("qid", "answer", "answered_by", "at")]
    match texts:
        case [str(own), str(text), str(answered_by), str(at)] if answered_by and is_date(at):
            if own != qid:
                raise AnswerRefused("qid_mismatch")
            return Answer(own, text, answered_by, at)
    raise AnswerRefused("invalid_schema")


def map_answer(text: str, titles: Sequence[str]) -> dict[str, object]:
    """Map an answer to the value of the response: the option it names, or else its own text.

    An option is named by its number from 1 on, or by its title in any case.
    """
    text = trim(text)
    title = _numbered(text, titles)
    if title is None:
        lowered = text.lower()
        title = next((title for title in titles if title.lower() == lowered), None)
    if title is None:
        return {"kind": "freeform", "text": text}
    return {"kind": "selection", "selections": [title]}


def _numbered(text: str, titles: Sequence[str]) -> str | None:
    digits = text.lstrip("0")
    # int() refuses very long numbers.
    if not _NUMBER.fullmatch(text) or not 1 <= len(digits) <= 9 or int(digits) > len(titles):
        return None
    return titles[int(digits) - 1]
