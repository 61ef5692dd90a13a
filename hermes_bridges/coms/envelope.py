"""The lines of the coms socket, as they come from peers and go to them (contract section 4)."""

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard

from hermes_bridges.coms.cutting import cut
from hermes_bridges.coms.jsrules import parse_json, stringify, trim, utf16_len
from hermes_bridges.core.clusters import clean_text

# UTF-16 units of one line, its newline included.
LINE_CAP = 65_536
ZERO_QID = "0" * 26
CUT_MARK = "… [cut: the answer was too long for one line]"
REFUSAL = "bridge accepts prompts, cancels, and pings"
REPLY_TIMEOUT_MS = (1_000.0, 7 * 86_400_000.0)

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class Prompt(NamedTuple):
    """A question of a peer.

    ``msg_id`` is as it came, to be echoed (it may hold a lone surrogate, and then is no ULID); the
    other texts hold none. ``reply_timeout_ms`` is None unless it lies within ``REPLY_TIMEOUT_MS``.
    """

    msg_id: str
    prompt: str
    sender_endpoint: str
    sender_session: str | None
    sender_name: str | None
    sender_cwd: str | None
    reply_timeout_ms: float | None


class Cancel(NamedTuple):
    """The end of a peer's interest in its question ``ref_msg_id``."""

    msg_id: str
    ref_msg_id: str


class Ping(NamedTuple):
    """A question for the agent card; ``msg_id`` is any JSON value."""

    msg_id: object


class Refused(NamedTuple):
    """A line to be answered with a nack of this ``msg_id`` (any JSON value) and ``error``."""

    msg_id: object
    error: str


def is_ulid(value: object) -> bool:
    """Tell whether ``value`` is a text of 26 characters of Crockford's alphabet."""
    return isinstance(value, str) and _ULID.fullmatch(value) is not None


def new_ulid(ms: int, entropy: bytes) -> str:
    """Build a ULID from a time in ms since 1970 (48 bits) and 10 random bytes."""
    if len(entropy) != 10:
        raise ValueError("a ULID takes 10 random bytes")
    number = (ms & (2**48 - 1)) << 80 | int.from_bytes(entropy, "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def over_cap(raw: bytes) -> bool:
    """Tell whether the line ``raw`` (without its newline) passes LINE_CAP with a newline added."""
    # A unit takes one to three bytes of UTF-8, replaced bytes included.
    if len(raw) < LINE_CAP:
        return False
    return len(raw) > 3 * LINE_CAP or utf16_len(raw.decode("utf-8", "replace")) >= LINE_CAP


def parse(raw: bytes) -> Prompt | Cancel | Ping | Refused | None:
    """Read one line without its newline; None for a blank one. Never raises."""
    line = raw.decode("utf-8", "replace")
    if not trim(line):
        return None
    try:
        fields = parse_json(line)
    except ValueError:
        return Refused("", "invalid json")
    if not isinstance(fields, dict):
        return Refused("", REFUSAL)
    msg_id = fields.get("msg_id")
    if msg_id is None:
        msg_id = ""
    kind = fields.get("type")
    if kind == "prompt" and _is_prompt(fields):
        return Prompt(
            msg_id=msg_id,
            prompt=clean_text(fields["prompt"]),
            sender_endpoint=clean_text(fields["sender_endpoint"]),
            sender_session=_optional_text(fields, "sender_session"),
            sender_name=_optional_text(fields, "sender_name"),
            sender_cwd=_optional_text(fields, "sender_cwd"),
            reply_timeout_ms=_reply_timeout(fields.get("reply_timeout_ms")),
        )
    if kind == "cancel" and _is_cancel(fields):
        return Cancel(msg_id, fields["ref_msg_id"])
    if kind == "ping":
        return Ping(msg_id)
    return Refused(msg_id, REFUSAL)


def ack(msg_id: object) -> bytes:
    """Build the line that takes an envelope over."""
    return _line({"type": "ack", "msg_id": msg_id})


def nack(msg_id: object, error: str) -> bytes:
    """Build the line that refuses an envelope; an id that would not fit is left out."""
    return _echo({"type": "nack", "msg_id": msg_id, "error": error})


def pong(msg_id: object, card: Mapping[str, object]) -> bytes:
    """Build the reply to a ping; an id that would not fit is left out."""
    return _echo({"type": "pong", "msg_id": msg_id, "agent_card": dict(card)})


def response(
    qid: str, session: str, endpoint: str, timestamp: str, value: object, error: str | None
) -> bytes:
    """Build the one response to a prompt, cut to LINE_CAP where it must be.

    What is cut ends in CUT_MARK: the error, or in ``value`` a text, the ``text`` of a freeform
    answer or the title of a selection. Any other value that is too long becomes its own JSON as a
    text, cut.
    """
    envelope: dict[str, object] = {
        "type": "response",
        "msg_id": qid,
        "sender_session": session,
        "sender_endpoint": endpoint,
        "hops": 0,
        "timestamp": timestamp,
        "response": value,
        "error": error,
    }
    line = _line(envelope)
    if not over_cap(line[:-1]):
        return line
    envelope["msg_id"] = _fit(qid, LINE_CAP // 2, mark="")
    envelope["response"] = envelope["error"] = None
    # What both may take, the two nulls given back.
    room = LINE_CAP - utf16_len(_line(envelope).decode()) + 8
    if error is not None:
        share = room - 4 if value is None else room // 2
        envelope["error"] = error = _fit(error, share)
    room -= utf16_len(stringify(error))
    envelope["response"] = _fit_value(value, room)
    return _line(envelope)


def prompt(
    msg_id: str,
    session: str,
    endpoint: str,
    timestamp: str,
    text: str,
    *,
    name: str,
    cwd: str,
    hops: int = 0,
) -> bytes:
    """Build a prompt as coms peers send it. May pass LINE_CAP: ask over_cap()."""
    return _line(
        {
            "type": "prompt",
            "msg_id": msg_id,
            "sender_session": session,
            "sender_endpoint": endpoint,
            "hops": hops,
            "timestamp": timestamp,
            "prompt": text,
            "sender_name": name,
            "sender_cwd": cwd,
            "conversation_id": None,
            "response_schema": None,
        }
    )


def cancel(msg_id: str, sender: str, to: str, created_at: str, ref_msg_id: str) -> bytes:
    """Build a cancel for the question ``ref_msg_id``."""
    return _line(
        {
            "type": "cancel",
            "msg_id": msg_id,
            "from": sender,
            "to": to,
            "created_at": created_at,
            "ref_msg_id": ref_msg_id,
        }
    )


def ping(msg_id: str) -> bytes:
    """Build a ping."""
    return _line({"type": "ping", "msg_id": msg_id})


def reply_kind(raw: bytes) -> tuple[str, dict[str, object]]:
    """Read the line that answers an envelope: ``ack``, ``nack``, ``pong`` or else ``bad``."""
    try:
        fields = parse_json(raw.decode("utf-8", "replace"))
    except ValueError:
        return "bad", {}
    if not isinstance(fields, dict):
        return "bad", {}
    kind = fields.get("type")
    return (kind if kind in ("ack", "nack", "pong") else "bad"), fields


def _line(envelope: Mapping[str, object]) -> bytes:
    return (stringify(envelope) + "\n").encode()


def _echo(envelope: dict[str, object]) -> bytes:
    bare = _line({**envelope, "msg_id": ""})
    try:
        line = _line(envelope)
    except RecursionError:
        return bare
    return bare if over_cap(line[:-1]) else line


def _is_prompt(fields: dict[str, object]) -> bool:
    texts = ("msg_id", "prompt", "sender_endpoint")
    return _is_number(fields.get("hops")) and all(isinstance(fields.get(n), str) for n in texts)


def _is_cancel(fields: dict[str, object]) -> bool:
    names = ("msg_id", "from", "to", "created_at", "ref_msg_id")
    return all(isinstance(fields.get(name), str) and fields[name] for name in names)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _optional_text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    return clean_text(value) if isinstance(value, str) else None


def _reply_timeout(value: object) -> float | None:
    low, high = REPLY_TIMEOUT_MS
    return float(value) if _is_number(value) and low <= value <= high else None


def _fit_value(value: object, room: int) -> object:
    if _size(value) <= room:
        return value
    if isinstance(value, str):
        return _fit(value, room)
    if isinstance(value, dict):
        match value:
            case {"kind": "freeform", "text": str(text)}:
                frame = _size({**value, "text": ""}) - 2
                return {**value, "text": _fit(text, room - frame)}
            case {"kind": "selection", "selections": [str(title)]}:
                frame = _size({**value, "selections": [""]}) - 2
                return {**value, "selections": [_fit(title, room - frame)]}
    return _fit(stringify(value), room)


def _fit(text: str, room: int, mark: str = CUT_MARK) -> str:
    """Cut ``text`` so that it takes at most ``room`` units as a JSON text, quotes included."""
    if len(text) <= room and _size(text) <= room:
        return text
    text = clean_text(text[:room])
    room -= _size(mark)
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(text[:middle]) - 2 <= room:
            low = middle
        else:
            high = middle - 1
    return cut(text, utf16_len(text[:low])) + mark


def _size(value: object) -> int:
    return utf16_len(stringify(value))
