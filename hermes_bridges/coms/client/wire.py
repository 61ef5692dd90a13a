"""One envelope out, one line back, on a connection of its own (contract section 4)."""

import contextlib
import errno
import os
import socket

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.loop import READ, WRITE, Loop, TimedOut
from hermes_bridges.coms.registry import SOCKET_PATH_MAX
from hermes_bridges.errors import BridgeError

# Seconds that a peer has for its ack, whatever the time limit of the call.
ACK_LIMIT = 10.0
_CONNECT_AGAIN = 0.05
_CHUNK = 65_536

Fields = dict[str, object]


class Unreachable(BridgeError):
    """No reply will come from the peer's socket."""


class Refused(BridgeError):
    """The peer has answered, and does not take the envelope."""


class Call:
    """A part of a loop that sends one line to a socket and reads one back.

    ``begun`` says that the peer may have the line. A full backlog (a peer that is stopped) is
    tried again until the loop's user gives up.
    """

    def __init__(self, loop: Loop, peer: str, endpoint: str, line: bytes) -> None:
        self.begun = False
        self.reply: bytes | None = None
        self.fault: str | None = None
        self._loop = loop
        self._peer = peer
        self._endpoint = endpoint
        self._out = bytearray(line)
        self._in = bytearray()
        self._connected = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        loop.add(self)

    @property
    def done(self) -> bool:
        """Whether there is a reply, or will be none."""
        return self.reply is not None or self.fault is not None

    def outcome(self) -> Fields:
        """The fields of the ack or pong. Raises Refused, Unreachable or (not done) TimedOut."""
        if self.fault is not None:
            raise Unreachable(f"{self._peer} {self.fault}")
        if self.reply is None:
            raise TimedOut(f"{self._peer} gave no ack in time")
        kind, fields = envelope.reply_kind(self.reply)
        if kind == "nack":
            error = fields.get("error")
            reason = error if error and isinstance(error, str) else "no reason given"
            raise Refused(f"{self._peer} refused: {reason}")
        if kind == "bad":
            raise Refused(f"{self._peer} answered with a line that is no reply")
        return fields

    def step(self, now: float) -> float | None:
        """Connect."""
        if self._connected or self.done:
            return None
        try:
            self._socket.connect(self._endpoint)
        except BlockingIOError:
            return now + _CONNECT_AGAIN
        except OSError as error:
            self._fail(_reason(error))
            return None
        self._connected = True
        self._loop.watch(self._socket, READ | WRITE, self._ready)
        return None

    def close(self) -> None:
        """Give the connection up; twice is fine."""
        if self._socket.fileno() >= 0:
            self._loop.forget(self._socket)
            self._loop.remove(self)
            self._socket.close()

    def _ready(self, events: int) -> None:
        try:
            # Reading first: a peer may have refused the line before it was out.
            if events & READ:
                self._receive()
            if events & WRITE and not self.done:
                self._send()
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_reason(error))

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BrokenPipeError:
            # What it said before it closed is still to be read.
            self._out.clear()
        else:
            self.begun = True
            del self._out[:sent]
        if not self._out:
            self._loop.watch(self._socket, READ, self._ready)

    def _receive(self) -> None:
        data = self._socket.recv(_CHUNK)
        if not data:
            self._fail("closed the connection without a reply")
            return
        self._in += data
        while b"\n" in self._in:
            line, _, self._in = self._in.partition(b"\n")
            if line.strip():
                self.reply = bytes(line)
                self.close()
                return
        if envelope.over_cap(bytes(self._in)):
            self._fail("sent a reply that is too long for a line")

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self.close()


def exchange(loop: Loop, peer: str, endpoint: str, line: bytes, limit: float = ACK_LIMIT) -> Fields:
    """Send a line and wait for its reply at most ``limit`` seconds; raises as Call.outcome."""
    call = Call(loop, peer, endpoint, line)
    try:
        loop.run(lambda: call.done, loop.clock() + limit)
        return call.outcome()
    finally:
        call.close()


def socket_path(peer: str, endpoint: object) -> str:
    """Check an endpoint that another process has written down. Raises Unreachable."""
    if isinstance(endpoint, str) and os.path.isabs(endpoint) and "\0" not in endpoint:
        with contextlib.suppress(UnicodeEncodeError):
            if len(os.fsencode(endpoint)) <= SOCKET_PATH_MAX:
                return endpoint
    raise Unreachable(f"{peer} has an endpoint that is no path of a socket")


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "has no socket any more"
    if error.errno == errno.ECONNREFUSED:
        return "does not listen on its socket any more"
    if error.errno == errno.ECONNRESET:
        return "closed the connection without a reply"
    return f"cannot be reached: {error.strerror or error}"
