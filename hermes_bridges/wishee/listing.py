"""The answer of sessions.list (contract, section 2)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.wishee import transcript
from hermes_bridges.wishee.routing import Route
from hermes_bridges.wishee.sessionkeys import is_ours

LIST_MAX = 60
"""Sessions in a list."""


class Details(NamedTuple):
    """What is stored of a session; ``waits``: the last word in it is the user's."""

    title: str = ""
    model: str = ""
    messages: int | None = None
    waits: bool = False


def sessions(
    routes: Sequence[tuple[str, Route]],
    found: Mapping[str, Details],
    windows: Mapping[str, int],
    working: Collection[str],
    leased: Collection[str],
) -> list[dict[str, Any]]:
    """The sessions of these routes, and before them those of ``working`` that have none yet.

    ``working`` are the keys in which a run of ours goes on, ``leased`` the ids of the sessions that
    somebody works on, and ``windows`` the sizes by model.
    """
    known = {key for key, _ in routes}
    told = [_session(key, True) for key in sorted(set(working) - known)]
    for key, route in routes:
        details = found.get(route.session_id, Details())
        works = key in working or details.waits or route.session_id in leased
        one = _session(key, works, details)
        one |= transcript.stamp("lastActiveAt", route.at)
        window = windows.get(details.model, 0)
        if route.used and window:
            one |= {"usedTokens": route.used, "contextWindow": window}
        told.append(one)
    return told[:LIST_MAX]


def _session(key: str, works: bool, details: Details | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"sessionKey": key, "working": works, "addressable": is_ours(key)}
    if details is None:
        return told
    more = {"title": details.title, "model": details.model, "messageCount": details.messages}
    return told | {name: value for name, value in more.items() if value not in (None, "")}
