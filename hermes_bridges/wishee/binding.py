"""Who this agent is to the bridge: ``binding.json``, shared with the published connector.

The file (contract, section 6) keeps that connector's format exactly, so that either can take over
from the other: ``{"agent_id","secret","bridge_url","bound","claw_id"}``. What else it may hold is
kept as it is.
"""

import json
import logging
import os
import secrets
import stat
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_bridges.core import files
from hermes_bridges.core.urls import url
from hermes_bridges.errors import BridgeError, FileRefused
from hermes_bridges.wishee.settings import BRIDGE_URL, DIRECTORY

NAME = "binding.json"

_SIZE_MAX = 64 * 1024
_TEXT_MAX = 1024  # characters
_is_bridge = url("ws", "wss")

_log = logging.getLogger("hermes_bridges.wishee")


class IdentityUnusable(BridgeError):
    """The identity's file is there, and must neither be used nor replaced; the text says why."""


@dataclass(frozen=True)
class Identity:
    """Of an agent. ``bridge_url`` is the file's, ``bound`` whether a bridge has known it."""

    agent_id: str
    secret: str = field(repr=False)
    bridge_url: str
    bound: bool
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields that we do not know."""


class Binding:
    """The identity's file in ``directory``. Everything here is blocking work for one thread.

    ``home`` is the user's, where an older connector may have left an identity below ``.hermes``.
    """

    def __init__(self, directory: str, home: str | None) -> None:
        self.path = os.path.join(directory, NAME)
        self._directory = directory
        self._backup = f"{self.path}.bak"
        legacy = os.path.join(home or "", ".hermes", DIRECTORY, NAME)
        self._legacy = None if home is None or legacy == self.path else legacy
        self._identity: Identity | None = None

    def load_or_create(self) -> Identity:
        """The identity: the file's, else its ``.bak``'s, an older connector's, or a new one.

        A damaged file is moved aside. The directory is made private, and so are the files; what
        killed writers left in it is removed, so that nothing may be writing there yet. Raises
        OSError or IdentityUnusable: then nothing was replaced.
        """
        files.private_dir(self._directory)
        files.remove_stale_temps(self._directory)
        identity, source = self._find()
        if source != self.path:
            self._save(identity)
        else:
            self._make_private(self.path)
        kept = self._readable(self._backup)
        if kept is None or (kept.agent_id, kept.secret) != (identity.agent_id, identity.secret):
            files.write_atomic(self._backup, _encode(identity))
        self._identity = identity
        return identity

    def set_bound(self, bound: bool) -> Identity:
        """Note whether the bridge knows us; the identity as it is then.

        Raises OSError, and then the file is as it was.
        """
        identity = self._identity or self.load_or_create()
        if identity.bound != bound:
            identity = replace(identity, bound=bound)
            self._save(identity)
            self._identity = identity
        return identity

    def _find(self) -> tuple[Identity, str]:
        """An identity, and the file that it comes from."""
        try:
            return read(self.path), self.path
        except FileNotFoundError:
            what = "is missing"
        except ValueError:
            what = f"is damaged, and was moved to {files.set_aside(self.path)}"
        for source in filter(None, (self._backup, self._legacy)):
            identity = self._readable(source)
            if identity is not None:
                _log.warning("%s %s; the identity comes from %s", self.path, what, source)
                return identity, source
        level = logging.INFO if what == "is missing" else logging.ERROR
        _log.log(level, "%s %s; this agent gets a new identity, to be bound", self.path, what)
        return Identity(str(uuid.uuid4()), secrets.token_hex(32), BRIDGE_URL, False), ""

    def _readable(self, path: str) -> Identity | None:
        try:
            return read(path)
        except (OSError, ValueError, IdentityUnusable):
            return None

    def _save(self, identity: Identity) -> None:
        files.write_atomic(self.path, _encode(identity))

    def _make_private(self, path: str) -> None:
        if stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode) & 0o077:
            os.chmod(path, 0o600)


def read(path: str) -> Identity:
    """The identity in a file, which is only looked at.

    Raises ValueError for a damaged file, IdentityUnusable for one that must be left alone, and
    FileNotFoundError.
    """
    try:
        raw = files.read_capped(path, _SIZE_MAX)
    except FileNotFoundError:
        raise
    except FileRefused as fault:
        if fault.reason == "too_large":
            raise ValueError("too large") from None
        raise IdentityUnusable(f"{path} cannot be used: {fault.reason.replace('_', ' ')}") from None
    except OSError as fault:
        raise IdentityUnusable(f"{path} cannot be read: {fault.strerror}") from None
    return _decode(raw)


def _decode(raw: bytes) -> Identity:
    try:
        fields = json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("no object")
    more = {name: value for name, value in fields.items() if name not in _FIELDS}
    # Old files have only the second one.
    agent_id = _text(fields.get("agent_id")) or _text(fields.get("claw_id"))
    secret = _text(fields.get("secret"))
    if agent_id is None or secret is None:
        raise ValueError("no identity")
    return Identity(agent_id, secret, _url(fields), fields.get("bound") is True, more)


_FIELDS = ("agent_id", "secret", "bridge_url", "bound", "claw_id")


def _text(value: object) -> str | None:
    usable = isinstance(value, str) and value.isprintable() and 0 < len(value) <= _TEXT_MAX
    return str(value) if usable else None


def _url(fields: Mapping[str, object]) -> str:
    found = fields.get("bridge_url")
    try:
        return _is_bridge(found) if isinstance(found, str) else BRIDGE_URL
    except ValueError:
        return BRIDGE_URL


def _encode(identity: Identity) -> bytes:
    fields = {
        "agent_id": identity.agent_id,
        "secret": identity.secret,
        "bridge_url": identity.bridge_url,
        "bound": identity.bound,
        "claw_id": identity.agent_id,
        **identity.more,
    }
    return json.dumps(fields, indent=2).encode() + b"\n"
