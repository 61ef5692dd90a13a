"""The wire of the Donut hub and the body of a Hermes request, as bytes and values.

Every detail that the hub's public pages leave open is decided here (contract section 1).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_bridges.core.clusters import boundary_before, clean_text
from hermes_bridges.donut.text import is_visible

# A chat, message, thread or sender; goes back to the hub with the type in which it came.
Id = str | int

ID_MAX = 1024  # characters, or digits
NAME_MAX = 64  # characters
DELAY_MAX = 86_400.0  # seconds; a longer wait is taken for a fault
_RESETS = ("/new", "/reset")
_TYPE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Line ends are gone by then; these turn the reading order around.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True, slots=True)
class Connected:
    """The hub's first frame. ``complete`` is False where the replay has a gap."""

    bot_id: Id | None
    username: str | None
    last_event_id: str | None
    complete: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A ``message.new``; no text of it holds a lone surrogate, ``text`` is empty for none."""

    event_id: str | None
    chat_id: Id
    message_id: Id
    thread_id: Id | None
    sender_id: Id
    sender_name: str | None
    sender_type: str | None
    text: str

    @property
    def chat(self) -> str:
        """The chat's id as it is compared and stored."""
        return str(self.chat_id)

    @property
    def message(self) -> str:
        """The message's id as it is compared and stored."""
        return str(self.message_id)

    @property
    def sender(self) -> str:
        """The sender's id as it is compared and stored."""
        return str(self.sender_id)

    @property
    def is_person(self) -> bool:
        """Whether a person wrote it; everything but a user is a bot here (section 9, Senders)."""
        return self.sender_type in (None, "user")


@dataclass(frozen=True, slots=True)
class Other:
    """Any other event; ``type`` is empty where it is none that could be logged."""

    event_id: str | None
    type: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A frame that cannot be used, ``size`` bytes long."""

    event_id: str | None
    type: str
    size: int


def decode(raw: bytes) -> Connected | Message | Other | Malformed:
    """Read one message of the stream. Never raises."""
    frame = _object(raw)
    if frame is None:
        return Malformed(None, "", len(raw))
    fields = _unwrapped(frame)
    event_id = _id_text(fields.get("event_id")) or _id_text(fields.get("id"))
    kind = fields.get("type")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        kind = ""
    if kind == "connected":
        return _connected(fields)
    if kind == "message.new":
        return _message(fields, event_id) or Malformed(event_id, kind, len(raw))
    return Other(event_id, kind)


def stream_url(base: str, last_event_id: str | None) -> str:
    """Return the URL to dial: ``base``, its query kept, to resume after that event if given."""
    address, _, query = base.partition("#")[0].partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("last_event_id=")]
    if last_event_id is not None:
        kept.append(f"last_event_id={_quoted(last_event_id)}")
    return f"{address}?{'&'.join(kept)}" if kept else address


def send_body(
    chat_id: Id, content: str, content_type: str, reply_to: Id | None, thread_id: Id | None
) -> bytes:
    """Build the body of a post."""
    return _json(
        chat_id=chat_id,
        content=content,
        content_type=content_type,
        reply_to=reply_to,
        thread_id=thread_id,
    )


def typing_body(chat_id: Id, state: str, thread_id: Id | None) -> bytes:
    """Build the body of a typing signal; ``state`` is ``start`` or ``stop``."""
    return _json(chat_id=chat_id, state=state, thread_id=thread_id)


def request_body(model: str, text: str) -> bytes:
    """Build the body of a Hermes call: the same bytes for the same arguments, so that it joins."""
    return _json(model=model, messages=[{"role": "user", "content": text}], stream=False)


def sent_id(body: bytes) -> Id | None:
    """Return the id of the message that the hub has stored, from its answer to a post."""
    answer = _object(body) or {}
    for found in (answer.get("id"), answer.get("message_id"), _nested(answer, "message", "id")):
        if (message_id := _id(found)) is not None:
            return message_id
    return None


def asked_delay(header: float | None, body: bytes) -> float | None:
    """Return the seconds to wait that a refusal asks for: its header, as read, or else its body."""
    if header is not None:
        return header if header <= DELAY_MAX else None
    answer = _object(body) or {}
    for found in (answer.get("retry_after"), _nested(answer, "error", "retry_after")):
        if isinstance(found, str) and _SECONDS.fullmatch(found.strip()):
            found = float(found)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return float(found) if 0 <= found <= DELAY_MAX else None
    return None


def without_mention(text: str, username: str | None) -> str:
    """Return ``text`` without a mention of ``username`` at its start (section 9, Mention)."""
    if not username:
        return text
    name = re.escape(username.removeprefix("@"))
    mention = re.match(rf"\s*@{name}(?!\w)[,:]?\s*", text, re.IGNORECASE)
    return text[mention.end() :] if mention else text


def is_reset(text: str) -> bool:
    """Tell whether ``text``, its mention removed, asks for a new session."""
    return text.strip().lower() in _RESETS


def with_name(name: str | None, sender: str, text: str) -> str:
    """Put the sender's name, on one line and at most NAME_MAX characters, before ``text``.

    Where it shows nothing the sender's id stands for it, else ``?``: what somebody writes must not
    pass for what another one does.
    """
    return f"{_label(name or '') or _label(sender) or '?'}: {text}"


def is_own(message: Message, bot_id: Id | None, username: str | None) -> bool:
    """Tell whether the bot itself wrote the message, whatever its sender's type."""
    if bot_id is not None and message.sender == str(bot_id):
        return True
    if not username or not message.sender_name:
        return False
    return _folded(message.sender_name) == _folded(username)


def _label(name: str) -> str:
    """``name`` on one line, at most NAME_MAX characters; empty where nothing of it shows."""
    name = _UNREADABLE.sub("", " ".join(clean_text(name).split()))
    name = name[: boundary_before(name, min(len(name), NAME_MAX))].strip()
    return name if is_visible(name) else ""


def _connected(fields: Mapping[str, object]) -> Connected:
    username = _nested(fields, "bot", "username")
    return Connected(
        bot_id=_id(_nested(fields, "bot", "id")),
        username=_name(username),
        last_event_id=_id_text(fields.get("last_event_id")),
        complete=_nested(fields, "replay", "complete") is not False,
    )


def _message(fields: Mapping[str, object], event_id: str | None) -> Message | None:
    message = fields.get("message")
    if not isinstance(message, dict):
        return None
    chat_id, message_id = _id(fields.get("chat_id")), _id(message.get("id"))
    sender_id = _id(_nested(message, "sender", "id"))
    if chat_id is None or message_id is None or sender_id is None:
        return None
    kind, content = _nested(message, "sender", "type"), message.get("content")
    return Message(
        event_id=event_id,
        chat_id=chat_id,
        message_id=message_id,
        thread_id=_id(message.get("thread_id")),
        sender_id=sender_id,
        sender_name=_name(_nested(message, "sender", "username")),
        # A type that is no text is no user.
        sender_type=None if kind is None else clean_text(kind) if isinstance(kind, str) else "",
        text=clean_text(content) if isinstance(content, str) else "",
    )


def _unwrapped(frame: Mapping[str, object]) -> dict[str, object]:
    """The fields of an event, whether or not they stand in a wrapper of their own."""
    fields: dict[str, object] = {}
    for layer in (frame.get("data"), frame.get("payload"), frame):
        if isinstance(layer, dict):
            fields.update((name, value) for name, value in layer.items() if value is not None)
    return fields


def _nested(fields: Mapping[str, object], outer: str, inner: str) -> object:
    found = fields.get(outer)
    return found.get(inner) if isinstance(found, dict) else None


def _id(value: object) -> Id | None:
    if isinstance(value, str):
        usable = 0 < len(value) <= ID_MAX and not _SURROGATE.search(value)
        return value if usable else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _id_text(value: object) -> str | None:
    found = _id(value)
    return None if found is None else str(found)


def _name(value: object) -> str | None:
    return clean_text(value) if isinstance(value, str) and value.strip() else None


def _folded(username: str) -> str:
    return username.strip().removeprefix("@").casefold()


def _quoted(text: str) -> str:
    return "".join(
        chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )


def _object(raw: bytes) -> dict[str, object] | None:
    """The JSON object that ``raw`` is, or None for anything else."""
    try:
        value = _DECODER.decode(raw.decode())
    # Nesting is followed as deep as the interpreter can.
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _integer(digits: str) -> int | None:
    # No longer one can be an id; int() of them would be slow, and refuses 5,000 digits.
    return int(digits) if len(digits) <= ID_MAX else None


def _constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_constant)


def _json(**fields: object) -> bytes:
    present = {name: value for name, value in fields.items() if value is not None}
    return clean_text(json.dumps(present, ensure_ascii=False, separators=(",", ":"))).encode()
