"""What the spool holds for later: await, and reply (contract section 9)."""

import json
import sys
from collections.abc import Mapping

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.args import Arguments, UsageError
from hermes_bridges.coms.client.ask import PeerError
from hermes_bridges.coms.client.loop import Loop, TimedOut
from hermes_bridges.coms.client.presence import identity
from hermes_bridges.coms.client.scope import fresh_id, message_id, scope_of, stamp, timeout_ms
from hermes_bridges.coms.client.spool import Spool, Stored, Unreadable
from hermes_bridges.coms.client.terminal import complain, pretty, read_text, say
from hermes_bridges.coms.client.wire import ACK_LIMIT, exchange, socket_path
from hermes_bridges.coms.registry import Registry
from hermes_bridges.errors import BridgeError

LOOK_AGAIN = 0.1
# Seconds that a file may be unreadable: other clients do not write it in one go.
GRACE = 2.0


class _Watch:
    """A part of a loop that looks for one response in the spool."""

    def __init__(self, spool: Spool, msg_id: str) -> None:
        self.found: Stored | None = None
        self._spool = spool
        self._msg_id = msg_id
        self._bad_since: float | None = None

    def step(self, now: float) -> float | None:
        try:
            self.found = self._spool.stored(self._msg_id)
        except Unreadable:
            if self._bad_since is None:
                self._bad_since = now
            elif now - self._bad_since > GRACE:
                raise
        else:
            self._bad_since = None
        return now + LOOK_AGAIN


def await_response(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Print a response as soon as it is in the spool; it stays there."""
    scope = scope_of(arguments, environ)
    msg_id = message_id(arguments.operands[0])
    limit_ms = timeout_ms(arguments, environ)
    deadline = loop.clock() + limit_ms / 1000
    spool = Spool(scope)
    spool.prepare()
    watch = _Watch(spool, msg_id)
    watch.step(loop.clock())
    if watch.found is None and not spool.is_marked(msg_id):
        complain(
            f"nothing was sent as {msg_id} by {scope.name} in project {scope.project}; waiting"
            " all the same"
        )
    loop.add(watch)
    if not loop.run(lambda: watch.found is not None, deadline):
        raise TimedOut(f"no response to {msg_id} within {limit_ms} ms")
    found = watch.found
    assert found is not None
    if found.error:
        raise PeerError(pretty(found.error))
    say(pretty(found.value))
    return 0


def reply(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Respond to a prompt in the spool, and forget it once the asker has the response."""
    scope = scope_of(arguments, environ)
    msg_id, *words = arguments.operands
    message_id(msg_id)
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("expected a text after the msg_id, or one on standard input")
        words = ["-"]
    spool = Spool(scope)
    spool.prepare()
    inbound = spool.held(msg_id)
    if inbound is None:
        raise BridgeError(f"no prompt {msg_id} in {spool.directory}")
    text = read_text(loop, words, timeout_ms(arguments, environ) / 1000)
    who = identity(Registry(scope.coms_dir, scope.project), scope, fresh_id())
    line = envelope.response(msg_id, who.session, who.endpoint, stamp(), text, None)
    if json.loads(line)["response"] != text:
        raise UsageError("the text is too long for the line of a response")
    exchange(loop, inbound.sender, socket_path(inbound.sender, inbound.endpoint), line, ACK_LIMIT)
    spool.release(msg_id)
    say(f"replied to {inbound.sender} ({msg_id})")
    return 0
