"""The client's own socket: lines in, replies out (contract section 4)."""

import contextlib
import os
import socket
from collections.abc import Callable

from hermes_bridges.coms import envelope
from hermes_bridges.coms.client.loop import READ, WRITE, Loop
from hermes_bridges.coms.registry import listens
from hermes_bridges.errors import BridgeError

VISITORS_MAX = 64
# Seconds without a complete line until a connection is closed.
IDLE = 5.0
BACKLOG = 128
_ACCEPT_AGAIN = 0.5
_CHUNK = 65_536
_REPLIES_MAX = 65_536


class _Visitor:
    """One connection: bytes in, replies out."""

    __slots__ = ("answered", "deadline", "ended", "received", "replies", "socket")

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self.socket = connected
        self.deadline = deadline
        self.received = bytearray()
        self.replies = bytearray()
        self.answered = False
        self.ended = False


class Inbox:
    """A part of a loop that listens and answers each line by ``answer(line)`` (None: not at all).

    After its replies it ends its side of a connection. Raises OSError.
    """

    def __init__(self, loop: Loop, endpoint: str, answer: Callable[[bytes], bytes | None]) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._answer = answer
        self._visitors: list[_Visitor] = []
        self._accept_from = 0.0
        self._socket = _bind(endpoint)
        loop.add(self)

    def step(self, now: float) -> float | None:
        """Close silent connections; accept further ones when there is room."""
        for visitor in [v for v in self._visitors if v.deadline <= now]:
            self._drop(visitor)
        dues = [visitor.deadline for visitor in self._visitors]
        if len(self._visitors) >= VISITORS_MAX:
            self._loop.forget(self._socket)
        elif now < self._accept_from:
            self._loop.forget(self._socket)
            dues.append(self._accept_from)
        else:
            self._loop.watch(self._socket, READ, self._accept)
        return min(dues, default=None)

    def close(self) -> None:
        """Take the socket away and end every connection."""
        self._loop.remove(self)
        self._loop.forget(self._socket)
        with contextlib.suppress(OSError):
            os.unlink(self._endpoint)
        self._socket.close()
        for visitor in list(self._visitors):
            self._drop(visitor)

    def _accept(self, events: int) -> None:
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors: the peer stays in the backlog.
            self._accept_from = self._loop.clock() + _ACCEPT_AGAIN
            return
        connected.setblocking(False)
        visitor = _Visitor(connected, self._loop.clock() + IDLE)
        self._visitors.append(visitor)
        self._loop.watch(connected, READ, lambda events: self._serve(visitor, events))

    def _serve(self, visitor: _Visitor, events: int) -> None:
        try:
            if events & READ:
                data = visitor.socket.recv(_CHUNK)
                if not data:
                    self._drop(visitor)
                    return
                # What comes after the end of our side is read away, so that the peer gets all of it
                # instead of a reset.
                if not visitor.ended:
                    visitor.received += data
                    self._take_lines(visitor)
            self._send(visitor)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(visitor)
            return
        # From one that does not read its replies nothing more is read; it is idle before long.
        wanted = READ if len(visitor.replies) <= _REPLIES_MAX else 0
        if visitor.replies:
            wanted |= WRITE
        self._loop.watch(visitor.socket, wanted, lambda events: self._serve(visitor, events))

    def _take_lines(self, visitor: _Visitor) -> None:
        *lines, rest = visitor.received.split(b"\n")
        for line in lines:
            visitor.deadline = self._loop.clock() + IDLE
            if envelope.over_cap(bytes(line)):
                rest = line
                break
            reply = self._answer(bytes(line))
            if reply is not None:
                visitor.replies += reply
                visitor.answered = True
        visitor.received = rest
        if envelope.over_cap(bytes(rest)):
            visitor.received = bytearray()
            visitor.replies += envelope.nack("", "line too large")
            visitor.answered = True

    def _send(self, visitor: _Visitor) -> None:
        if visitor.replies:
            sent = visitor.socket.send(visitor.replies)
            del visitor.replies[:sent]
        if visitor.answered and not visitor.ended and not visitor.replies and not visitor.received:
            visitor.ended = True
            visitor.socket.shutdown(socket.SHUT_WR)

    def _drop(self, visitor: _Visitor) -> None:
        self._visitors.remove(visitor)
        self._loop.forget(visitor.socket)
        visitor.socket.close()


def _bind(endpoint: str) -> socket.socket:
    if os.path.lexists(endpoint):
        if listens(endpoint):
            raise BridgeError(f"another process listens on {endpoint}")
        os.unlink(endpoint)
    with contextlib.ExitStack() as failure:
        listening = failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.setblocking(False)
        listening.bind(endpoint)
        os.chmod(endpoint, 0o600)
        listening.listen(BACKLOG)
        failure.pop_all()
    return listening
