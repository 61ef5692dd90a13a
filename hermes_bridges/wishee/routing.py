"""Which stored session a chat is on: an entry of Hermes's routing, and its older file of them.

Up to Hermes 0.18 the file ``sessions/sessions.json`` is the only place; later it is a copy that may
lag or be missing (contract, section 4).
"""

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from hermes_bridges.core import files
from hermes_bridges.errors import FileRefused

_FILE_MAX = 64 * 1024 * 1024


class Route(NamedTuple):
    """The present session of a key; ``used`` are the tokens of its last prompt, 0 for unknown.

    ``at`` is when it was used last, in epoch seconds, 0 for unknown.
    """

    session_id: str
    used: int = 0
    at: float = 0.0


class RoutesFile:
    """The file of routes in the sessions folder of Hermes, read again whenever it has changed."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "sessions.json")
        # Guards the two below, of which the second is never changed but replaced.
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._routes: Mapping[str, Route] = {}

    def routes(self) -> Mapping[str, Route]:
        """Every key with its route; none when there is no file that could be read."""
        try:
            found = os.stat(self._path)
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            with self._lock:
                if seen == self._seen:
                    return self._routes
            routes = _decode(files.read_capped(self._path, _FILE_MAX, own=False))
        except (OSError, FileRefused, ValueError, RecursionError):
            return {}
        with self._lock:
            self._seen, self._routes = seen, routes
        return routes


def route_of(entry: object) -> Route | None:
    """What an entry of the routing says, None when it names no session."""
    if not isinstance(entry, dict):
        return None
    session_id, used = entry.get("session_id"), entry.get("last_prompt_tokens")
    if not isinstance(session_id, str) or not session_id:
        return None
    if not isinstance(used, int) or isinstance(used, bool):
        used = 0
    return Route(session_id, max(used, 0), _seconds(entry.get("updated_at")))


def decode_route(text: str) -> Route | None:
    """The same of an entry as JSON."""
    try:
        return route_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _decode(raw: bytes) -> Mapping[str, Route]:
    entries = json.loads(raw.decode("utf-8-sig"))
    if not isinstance(entries, dict):
        raise ValueError("no object")
    # Names with an underscore are notes to the reader.
    found = {key: route_of(entry) for key, entry in entries.items() if key[:1] != "_"}
    return {key: route for key, route in found.items() if route is not None}


def _seconds(stamp: object) -> float:
    """A local time without a zone, as Hermes writes it."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
