"""``--check``: whether Hermes and the hub can be reached; nothing is changed (contract section 2).

No state is read or locked, and no message is answered, so that a bridge that runs is not disturbed.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.dial import Target
from hermes_bridges.core.httpclient import CallFailed, HttpClient, Reply
from hermes_bridges.core.stream import Lost, Refused, State, Stream
from hermes_bridges.donut import protocol
from hermes_bridges.donut.settings import Settings

LIMIT = 10.0
"""Seconds for one question to Hermes."""
WELCOME_WITHIN = 15.0
"""Seconds for the hub's ``connected``, once the stream is open."""
_SHOWN = 60  # characters of what a peer says
_LISTED = 20  # models


class Finding(NamedTuple):
    """One line; one with a ``remedy`` is a problem."""

    text: str
    remedy: str = ""


def run(settings: Settings, welcome_within: float = WELCOME_WITHIN) -> int:
    """Print what is found as it is found; 0 when all is well, else 1."""
    problems = 0
    for text, remedy in _findings(settings, welcome_within):
        problems += bool(remedy)
        print(f"{'problem' if remedy else 'ok'}: {text}", flush=True)
        if remedy:
            print(f"  remedy: {remedy}", flush=True)
    return 1 if problems else 0


def _findings(settings: Settings, welcome_within: float) -> Iterator[Finding]:
    yield Finding("the settings can be used")
    with Deadlines.running() as deadlines:
        client = HttpClient(deadlines)
        try:
            yield from _hermes(settings, client)
        finally:
            client.close()
    yield _hub(settings, welcome_within)


def _hermes(settings: Settings, client: HttpClient) -> Iterator[Finding]:
    base = settings.hermes_url
    headers = {"Authorization": f"Bearer {settings.hermes_key}"}
    try:
        health = client.get(f"{base}/health", headers, LIMIT)
        problem = _health_problem(base, health)
        if problem is not None:
            yield problem
            return
        version = _shown(_fields(health).get("version"))
        yield Finding(f"Hermes {version} is well at {base}".replace("  ", " "))
        yield _models(base, client.get(f"{base}/v1/models", headers, LIMIT))
    except CallFailed as error:
        yield Finding(
            f"Hermes cannot be asked: {error}",
            "see that its gateway runs with API_SERVER_ENABLED=true, and that HERMES_BASE_URL"
            f" ({base}) is where it listens",
        )


def _health_problem(base: str, reply: Reply) -> Finding | None:
    if reply.status == 200 and _fields(reply).get("status") == "ok":
        return None
    if reply.status == 200:
        return Finding(
            f"something else than Hermes answers at {base}",
            "set HERMES_BASE_URL to the address of the API server",
        )
    return _refused(base, reply)


def _models(base: str, reply: Reply) -> Finding:
    if reply.status != 200:
        return _refused(base, reply)
    listed = _fields(reply).get("data")
    models = listed if isinstance(listed, list) else []
    names = ", ".join(_shown(one.get("id")) for one in models[:_LISTED] if isinstance(one, dict))
    return Finding(f"Hermes takes the key; its models: {names or 'none'}")


def _refused(base: str, reply: Reply) -> Finding:
    if reply.status in (401, 403):
        return Finding(
            f"Hermes refuses HERMES_API_KEY (HTTP {reply.status})",
            "it must be the API_SERVER_KEY of that gateway",
        )
    if 300 <= reply.status < 400 or reply.status in (404, 405):
        return Finding(
            f"there is no API server of Hermes at {base} (HTTP {reply.status})",
            "set HERMES_BASE_URL to its address; a path in it must be /p/ and a profile that the"
            " gateway serves, and redirects are not followed",
        )
    return Finding(
        f"Hermes at {base} answers with HTTP {reply.status}",
        "look at its log; when it is starting or stopping, try again",
    )


def _fields(reply: Reply) -> dict[str, Any]:
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class _Dial:
    """What comes of one dial; as a stream tells it."""

    def __init__(self, settings: Settings) -> None:
        self.end: Lost | Refused | protocol.Connected | None = None
        self._target = Target(
            protocol.stream_url(settings.stream_url, None),
            (("Authorization", f"Bearer {settings.bot_token}"),),
        )

    def target(self) -> Target:
        return self._target

    def message(self, raw: bytes) -> bool:
        found = protocol.decode(raw)
        if self.end is None and isinstance(found, protocol.Connected):
            self.end = found
        return True

    def state(self, state: State) -> None:
        if self.end is None and isinstance(state, Lost | Refused):
            self.end = state


def _hub(settings: Settings, welcome_within: float) -> Finding:
    dial = _Dial(settings)
    stream = Stream(
        dial.target,
        dial.message,
        dial.state,
        proxy=settings.proxy,
        confirm_within=welcome_within,
    )
    try:
        while dial.end is None:
            now = time.monotonic()
            due = stream.step(now)
            if dial.end is None:
                stream.wait(None if due is None else due - now)
    finally:
        stream.close()
    place = urlsplit(settings.stream_url)
    return _told(f"{place.scheme}://{place.netloc}{place.path}", dial.end)


def _told(place: str, end: Lost | Refused | protocol.Connected) -> Finding:
    if isinstance(end, protocol.Connected):
        name = f"@{_shown(end.username)}" if end.username else "the bot"
        number = "" if end.bot_id is None else f" (id {_shown(end.bot_id)})"
        return Finding(f"the hub at {place} knows {name}{number}")
    if isinstance(end, Refused) and end.auth:
        return Finding(
            f"the hub refuses DONUT_BOT_TOKEN ({end.reason})",
            "it may be wrong, or have been replaced: set the one that the hub shows now",
        )
    if isinstance(end, Refused) and end.status is None and end.code is None:
        return Finding(
            f"the hub cannot be reached at {place}: {end.reason}",
            "see that DONUT_STREAM_URL is right, and whether it takes a proxy: BRIDGE_PROXY",
        )
    if isinstance(end, Refused) and end.status is not None and end.status not in (429, 503):
        return Finding(
            f"there is no stream for bots at {place} ({end.reason})",
            "set DONUT_STREAM_URL to its address; redirects are not followed",
        )
    return Finding(
        f"the hub at {place} did not say that it is connected ({end.reason})",
        "try again; if it stays so, see that DONUT_STREAM_URL is right",
    )


def _shown(said: object) -> str:
    """What a peer said, fit for a terminal."""
    text = "" if said is None else str(said)
    return "".join(char if char.isprintable() else "?" for char in text[:_SHOWN])
