"""The names under which Hermes and the hub know a chat, a run and a post (contract section 3.6).

Ids come in any alphabet and length. Each name is visible ASCII, the same at each start, and of no
other ids: what does not fit is escaped, and hashed where that becomes too long.
"""

import hashlib
import re

SESSION_MAX = 256  # characters of a session id that Hermes takes
_LONG = 200  # characters of a name; beyond, its hash stands for it
_SESSION = re.compile(rf"[A-Za-z0-9._-]{{1,{SESSION_MAX}}}")
# Capitals are escaped too: two sessions differ also where a file system ignores the case.
_UNSAFE_IN_SESSION = re.compile(r"[^a-z0-9-]")
_UNSAFE_IN_KEY = re.compile(r"[^!-~]|[:%]")


def session_id(bot: str | None, chat: str, generation: int) -> str:
    """Return the id of a chat's Hermes session that is the ``generation``-th, from 0."""
    return f"{_session_name(bot, chat)}.{generation}"


def session_key(bot: str | None, chat: str) -> str:
    """Return the key of a chat, whatever its session."""
    return _session_name(bot, chat)


def valid_session(text: str | None) -> bool:
    """Tell whether an id that Hermes returned may be sent back to it."""
    # Newer ones refuse two dots in a row.
    return text is not None and _SESSION.fullmatch(text) is not None and ".." not in text


def run_key(bot: str | None, chat: str, message: str) -> str:
    """Return the idempotency key of the Hermes call for a message."""
    key = ":".join(
        ["donut", *(_escape(part, _UNSAFE_IN_KEY, "%") for part in (bot, chat, message))]
    )
    # Three colons above, one here.
    return key if len(key) <= _LONG else f"donut:{_hash(key)}"


def part_key(run_key: str, part: int) -> str:
    """Return the idempotency key of the ``part``-th post of a run's answer."""
    return f"{run_key}:{part}"


def notice_key(run_key: str, kind: str) -> str:
    """Return the idempotency key of a post in place of an answer; ``kind`` is a word of ours."""
    return f"{run_key}:{kind}"


def _session_name(bot: str | None, chat: str) -> str:
    name = ".".join(["donut", *(_escape(part, _UNSAFE_IN_SESSION, "_") for part in (bot, chat))])
    # No other name begins like this.
    return name if len(name) <= _LONG else f"donut_{_hash(name)}"


def _escape(text: str | None, unsafe: re.Pattern[str], sign: str) -> str:
    """Write each unsafe character as its bytes in hex; None and an empty text as signs alone."""
    if not text:
        return sign if text is None else 2 * sign
    return unsafe.sub(
        lambda char: "".join(
            f"{sign}{byte:02x}" for byte in char[0].encode("utf-8", "surrogatepass")
        ),
        text,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
