"""Session keys: the short ones of the device, and those under which Hermes stores (section 4).

Hermes joins the parts of a key with colons and escapes none, so that a key can only be guessed
back: what is guessed counts when Hermes makes the same key of it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

PLATFORM = "wishee"

# Only these make a key of four parts one that Hermes has stored: a chat that has no id.
_CHAT_TYPES = frozenset({"channel", "dm", "forum", "group", "thread"})


class Chat(NamedTuple):
    """What a session's source is made of."""

    chat_type: str
    chat_id: str
    user_id: str
    thread_id: str | None


Build = Callable[[Chat], str]
"""The key under which Hermes stores a session of the Wishee platform with such a source."""


def is_ours(key: str) -> bool:
    """Whether it is the stored key of a Wishee session, which the device may send to."""
    parts = key.split(":")
    return len(parts) >= 5 and parts[0] == "agent" and parts[2] == PLATFORM


def is_foreign(key: str) -> bool:
    """Whether it is the stored key of another platform's session, which can only be read."""
    parts = key.split(":")
    if parts[0] != "agent" or len(parts) < 4 or parts[2] == PLATFORM:
        return False
    return len(parts) > 4 or parts[3] in _CHAT_TYPES


def parse_stored(key: str, build: Build) -> Chat | None:
    """The chat that a key of either form means; None for a key of another platform."""
    if is_foreign(key):
        return None
    if is_ours(key):
        for chat in _readings(key):
            if build(chat) == key:
                return chat
    return Chat("dm", key, key, None)


def stored_key(key: str, build: Build) -> str:
    """The one key of a session, whichever form was given; another platform's key as it is."""
    chat = parse_stored(key, build)
    return key if chat is None else build(chat)


def _readings(key: str) -> Iterator[Chat]:
    _, _, _, chat_type, rest = key.split(":", 4)
    if rest:
        yield Chat(chat_type, rest, rest, None)
    chat_id, _, thread_id = rest.rpartition(":")
    if chat_id and thread_id:
        yield Chat(chat_type, chat_id, chat_id, thread_id)
