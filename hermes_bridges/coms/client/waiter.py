"""The detached process that keeps the response to one `send` until somebody asks for it."""

import contextlib
import os
from collections.abc import Mapping

from hermes_bridges.coms.client.args import Arguments
from hermes_bridges.coms.client.loop import Interrupted, Loop
from hermes_bridges.coms.client.presence import Presence, Response, identity
from hermes_bridges.coms.client.scope import message_id, scope_of, timeout_ms
from hermes_bridges.coms.client.spool import Spool, Unreadable
from hermes_bridges.coms.envelope import Prompt
from hermes_bridges.coms.registry import Registry
from hermes_bridges.errors import FileRefused

PURPOSE = "coms client, waits for a response"
READY = b"READY\n"
# Seconds between two looks whether the response is still wanted.
LOOK_AGAIN = 5.0


class Keeper:
    """A part of the waiter's loop: stores the response, and sees when nobody wants it any more."""

    def __init__(self, spool: Spool, message: str) -> None:
        self.done = False
        self._spool = spool
        self._message = message

    def step(self, now: float) -> float | None:
        """Look whether the response is still waited for; it may have been cancelled."""
        if not self._spool.is_marked(self._message):
            self.done = True
        return now + LOOK_AGAIN

    def on_response(self, response: Response) -> str | None:
        """Store the response before it is acked."""
        if response.msg_id != self._message:
            return "msg_id is not awaited here"
        try:
            if self._spool.is_marked(self._message):
                self._spool.store(self._message, response.value, response.error)
        except OSError as error:
            return f"the response could not be stored: {error.strerror}"
        self.done = True
        return None

    def on_prompt(self, prompt: Prompt, fields: Mapping[str, object]) -> str | None:
        """Store a prompt for `reply` before it is acked."""
        try:
            return self._spool.hold(prompt, fields["hops"])
        except OSError as error:
            return f"the prompt could not be stored: {error.strerror}"
        except (FileRefused, Unreadable):
            return "msg_id is in use"


def listen(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Serve until the response is stored, is wanted no more, or the time is over."""
    scope = scope_of(arguments, environ)
    session = message_id(arguments.value("--session") or "", "--session")
    message = message_id(arguments.value("--message") or "", "--message")
    deadline = loop.clock() + timeout_ms(arguments, environ, "--ttl") / 1000
    registry = Registry(scope.coms_dir, scope.project)
    spool = Spool(scope)
    spool.prepare()
    keeper = Keeper(spool, message)
    loop.add(keeper)
    who = identity(registry, scope, session)
    with Presence(loop, registry, who, PURPOSE, keeper.on_response, keeper.on_prompt):
        os.write(1, READY)
        _leave_output()
        with contextlib.suppress(Interrupted):
            loop.run(lambda: keeper.done, deadline)
    return 0


def _leave_output() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)
