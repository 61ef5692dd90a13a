"""A prompt and its response in one call: ask, and send with --await (contract section 9)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.args import Arguments, UsageError
from hermes_bridges.coms.client.loop import Loop, TimedOut
from hermes_bridges.coms.client.peers import Peer, find, withdraw
from hermes_bridges.coms.client.presence import Identity, Presence, Response, identity
from hermes_bridges.coms.client.scope import Scope, fresh_id, scope_of, stamp, timeout_ms
from hermes_bridges.coms.client.spool import Spool
from hermes_bridges.coms.client.terminal import complain, pretty, question, read_text, say
from hermes_bridges.coms.client.wire import ACK_LIMIT, Call, Refused, Unreachable
from hermes_bridges.coms.registry import Registry
from hermes_bridges.errors import BridgeError

PURPOSE = "coms client, asks one question"
# Seconds that a peer has to take a cancel while somebody waits for us to end.
CANCEL_LIMIT = 2.0


class PeerError(BridgeError):
    """The peer has responded with an error."""

    def __init__(self, error: str) -> None:
        super().__init__(f"peer error: {error}")


class Errand(NamedTuple):
    """One prompt that is to be sent; ``limit_ms`` is the time for its response."""

    scope: Scope
    who: Identity
    peer: Peer
    msg_id: str
    line: bytes
    limit_ms: int


class Mailbox:
    """Takes the one response that is waited for."""

    def __init__(self, msg_id: str) -> None:
        self.text: str | None = None
        self.error: str | None = None
        self._msg_id = msg_id

    @property
    def filled(self) -> bool:
        """Whether the response is there."""
        return self.text is not None

    def on_response(self, response: Response) -> str | None:
        """Keep the first response to our prompt; others are no business of ours."""
        if response.msg_id != self._msg_id:
            return "msg_id is not awaited here"
        if self.text is None:
            self.text, self.error = pretty(response.value), response.error
        return None

    def on_prompt(self, prompt: envelope.Prompt, fields: Mapping[str, object]) -> str:
        """Refuse: whoever runs this call waits for an answer and gives none."""
        return "this client waits for a response only"


def ask(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Send a prompt, wait for the response, print it.

    The time limit counts from the moment the text is there; the ack has ACK_LIMIT of it at most.
    """
    errand = compose(loop, arguments, environ)
    Spool(errand.scope).check()
    deadline = loop.clock() + errand.limit_ms / 1000
    mailbox = Mailbox(errand.msg_id)
    registry = Registry(errand.scope.coms_dir, errand.scope.project)
    takers = (mailbox.on_response, mailbox.on_prompt)
    with Presence(loop, registry, errand.who, PURPOSE, *takers):
        try:
            with delivery(loop, errand, deadline, lambda: mailbox.filled):
                wait = f"waiting at most {errand.limit_ms} ms"
                complain(f"sent {errand.msg_id} to {errand.peer.name}, {wait}")
                if not loop.run(lambda: mailbox.filled, deadline):
                    raise TimedOut(f"no response within {errand.limit_ms} ms")
        except TimedOut:
            # One that crossed our cancel is a response all the same.
            if not mailbox.filled:
                raise
    if mailbox.error is not None:
        raise PeerError(mailbox.error)
    say(mailbox.text or "")
    return 0


def compose(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> Errand:
    """Make the prompt that the command line asks for. Raises UsageError and the like."""
    scope = scope_of(arguments, environ)
    limit_ms = timeout_ms(arguments, environ)
    name, *words = arguments.operands
    peer = find(name, scope, arguments)
    text = read_text(loop, words, limit_ms / 1000)
    prompt = question(text, arguments.values("--option"), arguments.value("--context"))
    who = identity(Registry(scope.coms_dir, scope.project), scope, fresh_id())
    msg_id = fresh_id()
    line = envelope.prompt(
        msg_id, who.session, who.endpoint, stamp(), prompt, name=who.name, cwd=who.cwd
    )
    if envelope.over_cap(line[:-1]):
        raise UsageError(
            f"the text is too long: with its envelope it takes {len(line)} bytes, and one line"
            f" holds {envelope.LINE_CAP} characters"
        )
    return Errand(scope, who, peer, msg_id, line, limit_ms)


@contextlib.contextmanager
def delivery(
    loop: Loop, errand: Errand, deadline: float, early: Callable[[], bool]
) -> Iterator[None]:
    """Send the prompt and wait for its ack, or for ``early()``, before the block is entered.

    What ends the block or the wait by an exception (timeout, signal, no ack) withdraws the prompt,
    unless the peer has refused it or cannot have it.
    """
    call = Call(loop, errand.peer.name, errand.peer.endpoint, errand.line)
    try:
        loop.run(lambda: early() or call.done, min(deadline, loop.clock() + ACK_LIMIT))
        if not early():
            call.outcome()
        yield
    except Refused:
        raise
    except BridgeError:
        if call.begun:
            _take_back(loop, errand)
        raise
    finally:
        call.close()


def _take_back(loop: Loop, errand: Errand) -> None:
    try:
        withdraw(loop, errand.scope, errand.peer, errand.msg_id, CANCEL_LIMIT)
    except (Refused, Unreachable, TimedOut) as error:
        complain(f"{errand.msg_id} could not be cancelled: {error}")
    else:
        complain(f"{errand.msg_id} was cancelled")
