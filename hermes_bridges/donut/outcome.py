"""What a call of Hermes came to, read off its answer (contract sections 3.7 and 9).

A failed turn usually comes as a 200, with a sentence for people in place of the answer. Such a
sentence is never taken for one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_bridges.donut.keys import valid_session
from hermes_bridges.donut.markers import without_end_tokens
from hermes_bridges.donut.text import is_visible

BUSY = frozenset({408, 425, 429, 503})
"""Statuses for which the same request is to be made again later."""
_MESSAGES_FAULT = frozenset({400, 413, 415, 422})
_WRONG_KEY = frozenset({401, 403})
_WRONG_PLACE = frozenset({404, 405})
# What Hermes says for a model's empty reply: 0.14, then 0.19 to 0.22, and what they say where
# their message catalogue was not packaged.
_EMPTY = "(empty)"
_NO_REPLY = ("⚠️ No reply:", "⚠ No reply:", "explainer.no_reply_prefix")


@dataclass(frozen=True, slots=True)
class Answered:
    """``session`` is the session id to go on with, None for no change; ``cut``: by its length."""

    text: str
    session: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """``told`` is for the log and holds nothing that Hermes said.

    ``kind``: ``connect``, ``broken``, ``too_large``, ``restarted`` (a run that may have begun is
    lost), ``busy``, ``auth``, ``address``, ``status`` (any other), ``answer`` (a 200 without one).
    """

    kind: str
    told: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The run may still go on at Hermes."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Hermes is well, but does not take this message."""

    status: int


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The stop came first; nothing is known."""


Outcome = Answered | Failed | TimedOut | Rejected | Unsettled


def classify(status: int, headers: Mapping[str, str], body: bytes) -> Answered | Failed | Rejected:
    """The outcome of a whole answer; ``headers`` ignores case. Never raises."""
    if status == 200:
        return _read(headers, body)
    if status in _MESSAGES_FAULT:
        return Rejected(status)
    if status in _WRONG_KEY:
        return Failed("auth", f"Hermes refuses HERMES_API_KEY (HTTP {status})")
    if status in _WRONG_PLACE or 300 <= status < 400:
        return Failed("address", f"no API server of Hermes at HERMES_BASE_URL (HTTP {status})")
    if status in BUSY:
        return Failed("busy", f"Hermes does not take it now (HTTP {status})")
    return Failed("status", f"HTTP {status}")


def _read(headers: Mapping[str, str], body: bytes) -> Answered | Failed:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return Failed("answer", "the answer is not JSON")
    if not isinstance(found, dict):
        return Failed("answer", "the answer is not an object")
    report = found.get("hermes")
    if (
        headers.get("X-Hermes-Completed", "").strip().lower() == "false"
        or found.get("error")
        or (isinstance(report, dict) and report.get("failed"))
    ):
        return Failed("answer", "Hermes reports a failed turn")
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return Failed("answer", "the answer holds no choice")
    reason = choice.get("finish_reason")
    # Missing in the answers of some servers.
    if reason not in (None, "", "stop", "length"):
        return Failed("answer", "the turn did not end by itself")
    message = choice.get("message")
    text = _text(message.get("content")) if isinstance(message, dict) else ""
    said = without_end_tokens(text)
    # Nothing but end tokens is an answer, a silent one.
    if not is_visible(text) or said == _EMPTY or said.startswith(_NO_REPLY):
        return Failed("answer", "the answer is empty")
    session = headers.get("X-Hermes-Session-Id", "").strip()
    return Answered(text, session if valid_session(session) else None, reason == "length")


def _text(content: object) -> str:
    """The text of a message; its parts joined, those that are no text left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))
