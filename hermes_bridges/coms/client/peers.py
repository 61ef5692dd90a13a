"""The peers of a pool as the client sees them: list, ping, cancel (contract section 9)."""

from collections.abc import Mapping
from typing import NamedTuple

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.args import Arguments
from hermes_bridges.coms.client.loop import Loop
from hermes_bridges.coms.client.scope import (
    Scope,
    fresh_id,
    message_id,
    peer_name,
    scope_of,
    stamp,
    timeout_ms,
)
from hermes_bridges.coms.client.spool import Spool
from hermes_bridges.coms.client.terminal import one_line, pretty, say
from hermes_bridges.coms.client.wire import ACK_LIMIT, exchange, socket_path
from hermes_bridges.coms.registry import Registry
from hermes_bridges.errors import BridgeError


class Peer(NamedTuple):
    """A peer that can be spoken to."""

    name: str
    endpoint: str


def list_peers(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Print the live peers; those that are dead go, as with every reader of a pool."""
    scope = scope_of(arguments, environ)
    found = _others(Registry(scope.coms_dir, scope.project).live(), scope, arguments)
    if arguments.has("--json"):
        say(pretty(found))
    elif found:
        rows = [[_cell(entry, field) for field in ("name", "model", "purpose")] for entry in found]
        say("\n".join("\t".join(row) for row in rows))
    else:
        say(f'(no live peers in project "{scope.project}")')
    return 0


def ping(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Ask a peer for its card; print it with the time that took."""
    scope = scope_of(arguments, environ)
    peer = find(arguments.operands[0], scope, arguments)
    limit = min(ACK_LIMIT, timeout_ms(arguments, environ) / 1000)
    begun = loop.clock()
    fields = exchange(loop, peer.name, peer.endpoint, envelope.ping(fresh_id()), limit)
    took = f"{(loop.clock() - begun) * 1000:.1f} ms"
    card = fields.get("agent_card")
    if not isinstance(card, dict):
        # coms-cli acks a ping: it is there, and has no card.
        card = {"name": peer.name}
    cells = [_cell(card, field) for field in ("name", "model", "purpose")]
    say("\t".join([*cells, f"queue {_cell(card, 'queue_depth') or '?'}", took]))
    return 0


def cancel(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Withdraw a prompt; a waiter of ours need not wait for its response any more."""
    scope = scope_of(arguments, environ)
    msg_id = message_id(arguments.operands[1])
    peer = find(arguments.operands[0], scope, arguments)
    withdraw(loop, scope, peer, msg_id, ACK_LIMIT)
    Spool(scope).unmark(msg_id)
    say(f"cancelled {msg_id}")
    return 0


def withdraw(loop: Loop, scope: Scope, peer: Peer, msg_id: str, limit: float) -> None:
    """Send a cancel. Raises Refused, Unreachable or TimedOut, and Interrupted."""
    line = envelope.cancel(fresh_id(), scope.name, peer.name, stamp(), msg_id)
    exchange(loop, peer.name, peer.endpoint, line, limit)


def find(name: str, scope: Scope, arguments: Arguments) -> Peer:
    """The live peer of that name, ourselves not counted. Raises UsageError or BridgeError."""
    peer_name(name)
    entries = Registry(scope.coms_dir, scope.project).live()
    others = _others(entries, scope, arguments)
    for entry in others:
        if entry["name"] == name:
            return Peer(name, socket_path(name, entry["endpoint"]))
    names = ", ".join(str(entry["name"]) for entry in others) or "none"
    explicit = any(e["name"] == name != scope.name for e in entries)
    hint = "; it is an explicit one, which needs --all" if explicit else ""
    raise BridgeError(
        f'no live peer "{name}" in project "{scope.project}" (live peers: {names}){hint}'
    )


def _others(
    entries: list[dict[str, object]], scope: Scope, arguments: Arguments
) -> list[dict[str, object]]:
    every = arguments.has("--all")
    return [e for e in entries if e["name"] != scope.name and (every or not e.get("explicit"))]


def _cell(entry: Mapping[str, object], field: str) -> str:
    value = entry.get(field, "")
    return one_line(value if isinstance(value, str) else pretty(value))
