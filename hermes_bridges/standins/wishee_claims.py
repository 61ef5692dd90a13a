"""Binding by code at the stand-in Wishee bridge: POST /api/bind/claim (contract, section 6)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_bridges.standins import wishee_shapes
from hermes_bridges.standins.http_loop import Exchange
from hermes_bridges.standins.wishee_judge import Fault

CLAIM = "/api/bind/claim"
BODY_LIMIT = 16 * 1024
_BINDING: wishee_shapes.Fields = {
    "agent_id": wishee_shapes.filled,
    "secret": wishee_shapes.filled,
    "bridge_url": wishee_shapes.text,
    "bound": wishee_shapes.flag,
    "claw_id": wishee_shapes.filled,
}


class Bound(NamedTuple):
    """An identity that belongs to somebody."""

    secret: str
    user_id: str


class Claim(NamedTuple):
    """One try to claim a code, and how it was answered."""

    code: str | None
    agent_id: str | None
    status: int | None
    answer: Mapping[str, Any]


@dataclass
class Script:
    """An answer on demand: first the ``delay``; ``drop`` ends the connection without one.

    ``body`` None: the right one. ``pause``: seconds between two bytes.
    """

    status: int = 200
    body: Mapping[str, object] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    pause: float = 0.0


def refused(code: str) -> dict[str, object]:
    """The answer to a code that cannot be claimed."""
    return {"ok": False, "code": code, "error": f"refused: {code}"}


def judge(exchange: Exchange, body: bytes) -> tuple[Any, list[Fault]]:
    """The identity in a claim, and what is wrong with the request."""
    faults = []
    if exchange.method != "POST":
        faults.append("a claim is a POST")
    if list(exchange.query) != ["code"]:
        faults.append("a claim has a code in its query, and nothing else")
    if exchange.headers.get("content-type") != "application/json":
        faults.append("the Content-Type of a claim is application/json")
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        found = None
    faults += wishee_shapes.differences("binding.json", found, _BINDING)
    if isinstance(found, dict) and found.get("agent_id") != found.get("claw_id"):
        faults.append("claw_id does not repeat agent_id")
    return found, [Fault("6", text) for text in faults]


class Codes:
    """The codes that were given out, and who is bound. Guarded by the lock of the bridge."""

    def __init__(self) -> None:
        self.bound: dict[str, Bound] = {}
        self.open: dict[str, str] = {}
        """The user of each code that may be claimed."""
        self.over: dict[str, str] = {}
        """Why each other code that is known may not be, as the bridge says it."""

    def claim(self, code: str, found: Any) -> dict[str, object]:
        """Bind an identity; the answer."""
        if code not in self.open:
            return refused(self.over.get(code, "BIND_CODE_NOT_FOUND"))
        if not isinstance(found, dict) or not found.get("agent_id") or not found.get("secret"):
            return refused("IDENTITY_MISSING")
        agent_id, secret = str(found["agent_id"]), str(found["secret"])
        user_id = self.open[code]
        known = self.bound.get(agent_id)
        if known is not None and known != Bound(secret, user_id):
            return refused("AGENT_CONFLICT")
        del self.open[code]
        self.over[code] = "BIND_CODE_USED"
        self.bound[agent_id] = Bound(secret, user_id)
        return {"ok": True, "message": "bound", "agentType": "hermes"}

    def answer(self, code: str | None, found: Any, script: Script) -> tuple[Claim, bytes]:
        """What happens to a claim, and the body of its answer."""
        agent_id = str(found.get("agent_id")) if isinstance(found, dict) else None
        if script.drop:
            return Claim(code, agent_id, None, {}), b""
        if isinstance(script.body, bytes):
            return Claim(code, agent_id, script.status, {}), script.body
        said = script.body if script.status != 200 or script.body else self.claim(code or "", found)
        return Claim(code, agent_id, script.status, said or {}), json.dumps(said or {}).encode()
