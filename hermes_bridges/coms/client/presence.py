"""This process as a peer of the pool, for as long as it waits."""

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.inbox import Inbox
from hermes_bridges.coms.client.loop import Loop
from hermes_bridges.coms.client.scope import Scope, stamp
from hermes_bridges.coms.jsrules import parse_json, stringify
from hermes_bridges.coms.registry import Registry, listens
from hermes_bridges.core.clusters import clean_text

_MODEL, _COLOR = "cli", "#FEDE5D"


class Response(NamedTuple):
    """A response envelope; ``error`` is None where there is none to speak of."""

    msg_id: object
    value: object
    error: str | None


class Identity(NamedTuple):
    """How this process signs its envelopes."""

    session: str
    endpoint: str
    name: str
    cwd: str


def identity(registry: Registry, scope: Scope, session: str) -> Identity:
    """The identity of a session. Raises ConfigError when its socket path would be too long."""
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    return Identity(session, registry.endpoint(session), scope.name, clean_text(cwd))


class Presence:
    """This process as a peer: socket, entry and the rules for what arrives; a context manager.

    ``on_response`` and ``on_prompt`` (the latter gets the checked prompt and all its fields) return
    None to take the envelope, or the reason why not. An entry of another live session under the
    same name is left alone: a response finds its way by the endpoint in the prompt.
    """

    def __init__(
        self,
        loop: Loop,
        registry: Registry,
        who: Identity,
        purpose: str,
        on_response: Callable[[Response], str | None],
        on_prompt: Callable[[envelope.Prompt, dict[str, object]], str | None],
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._who = who
        self._purpose = purpose
        self._on_response = on_response
        self._on_prompt = on_prompt

    def __enter__(self) -> Self:
        self._registry.prepare()
        self._inbox = Inbox(self._loop, self._who.endpoint, self._reply)
        with contextlib.ExitStack() as failure:
            failure.callback(self._inbox.close)
            self._register()
            failure.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inbox.close()
        with contextlib.suppress(OSError):
            self._registry.remove(self._who.name, self._who.session)

    def _register(self) -> None:
        who = self._who
        entry: dict[str, object] = {
            "session_id": who.session,
            "name": who.name,
            "purpose": self._purpose,
            "model": _MODEL,
            "color": _COLOR,
            "pid": os.getpid(),
            "endpoint": who.endpoint,
            "cwd": who.cwd,
            "started_at": stamp(),
            "explicit": True,
            "version": 1,
        }
        with self._registry.lock():
            owner = self._registry.owner(who.name)
            if owner is None or not self._in_use(owner):
                self._registry.write(entry)

    def _in_use(self, owner: dict[str, object]) -> bool:
        return self._registry.is_alive(owner) and listens(str(owner["endpoint"]))

    def _reply(self, line: bytes) -> bytes | None:
        message = envelope.parse(line)
        if message is None:
            return None
        if isinstance(message, envelope.Ping):
            return envelope.pong(message.msg_id, self._card())
        fields = _fields(line)
        if fields is None:
            return envelope.nack("", "invalid json")
        if isinstance(message, envelope.Prompt):
            return _taken(message.msg_id, self._on_prompt(message, fields))
        if fields.get("type") == "response" and "response" in fields:
            response = Response(
                fields.get("msg_id"), fields["response"], _error(fields.get("error"))
            )
            return _taken(message.msg_id, self._on_response(response))
        return envelope.nack(message.msg_id, "this peer takes responses and pings")

    def _card(self) -> dict[str, object]:
        return {
            "name": self._who.name,
            "purpose": self._purpose,
            "model": _MODEL,
            "color": _COLOR,
            "context_used_pct": 0,
            "queue_depth": 0,
        }


def _fields(line: bytes) -> dict[str, object] | None:
    """All fields of a line: empty for other JSON than an object, None for what is no JSON."""
    try:
        fields = parse_json(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else {}


def _error(value: object) -> str | None:
    # As a peer's own test for an error: null, an empty text, false and 0 are none.
    if not value and not isinstance(value, (list, dict)):
        return None
    return value if isinstance(value, str) else stringify(value)


def _taken(msg_id: object, reason: str | None) -> bytes:
    return envelope.ack(msg_id) if reason is None else envelope.nack(msg_id, reason)
