"""The bridge's own socket: every peer's connection, on one thread (contract section 4)."""

import contextlib
import logging
import os
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from hermes_bridges.coms import envelope
from hermes_bridges.coms.admission import Admission
from hermes_bridges.coms.envelope import Cancel, Ping, Prompt, Refused
from hermes_bridges.core.waker import Waker

CONNECTIONS_MAX = 256
# Seconds without a complete line until a connection is closed.
IDLE = 5.0
# Seconds in which a refused line may still be read away.
LINGER = 1.0
# Seconds until a failed accept is tried again.
ACCEPT_AGAIN = 1.0
BACKLOG = 1024
_CHUNK = 64 * 1024
_REPLIES_MAX = 64 * 1024
_CHECK_EVERY = 4 * 1024

_log = logging.getLogger("hermes_bridges.coms")


class Asked(NamedTuple):
    """A prompt that was acked."""

    prompt: Prompt


class Cancelled(NamedTuple):
    """An acked cancel of a question that was open."""

    qid: str


class Desk(Protocol):
    """Where acked envelopes go."""

    def full(self) -> bool:
        """Whether no prompt may be put now."""

    def put(self, item: Asked | Cancelled) -> None:
        """Take an item; never blocks."""


class _Connection:
    """One peer's connection: bytes in, replies out."""

    __slots__ = (
        "answered",
        "checked",
        "deadline",
        "doomed",
        "ended",
        "eof",
        "received",
        "replies",
        "socket",
        "watched",
    )

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self.socket = connected
        self.deadline = deadline
        self.received = bytearray()
        self.replies = bytearray()
        self.checked = 0
        self.answered = False
        self.ended = False
        self.doomed = False
        self.eof = False
        self.watched = selectors.EVENT_READ

    def send(self) -> None:
        """Send what the peer takes now; OSError when it is gone."""
        while self.replies:
            try:
                sent = self.socket.send(self.replies)
            except BlockingIOError:
                return
            del self.replies[:sent]

    def end(self) -> None:
        """End our side once everything that was asked is answered and no further line is begun."""
        if self.answered and not self.ended and not self.replies and not self.received:
            self.ended = True
            self.socket.shutdown(socket.SHUT_WR)


class Listener:
    """A stage that serves all peers; lines are small, and handling one never blocks.

    ``withdraw`` is called once, at the end: it takes the entry out of the registry.
    """

    def __init__(
        self,
        listening: socket.socket,
        endpoint: str,
        admission: Admission,
        card: Mapping[str, object],
        desk: Desk,
        withdraw: Callable[[], None],
    ) -> None:
        self._listening = listening
        self._endpoint = endpoint
        self._admission = admission
        self._card = card
        self._desk = desk
        self._withdraw = withdraw
        self._waker = Waker()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._waker.fileno(), selectors.EVENT_READ)
        self._accepting = True
        self._accept_after = 0.0
        self._connections: dict[int, _Connection] = {}
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        # Written by this thread alone; the one that writes the status file only reads it.
        self.counts: dict[str, int] = {}

    def step(self, now: float) -> float | None:
        """Serve what is ready; returns when there is something to do without a peer."""
        ready, self._ready = self._ready, []
        self._admission.refresh()
        for key, events in ready:
            if key.fileobj is self._listening:
                self._accept(now)
            elif key.fd in self._connections:
                self._serve(self._connections[key.fd], events, now)
        for connection in [c for c in self._connections.values() if c.deadline <= now]:
            self._count("connection_idle")
            self._drop(connection)
        self._gate(now)
        due = [connection.deadline for connection in self._connections.values()]
        if not self._accepting:
            due.append(max(self._accept_after, now + LINGER))
        return min(due, default=None)

    def wait(self, timeout: float | None) -> None:
        """Wait until a socket is ready."""
        self._ready = self._selector.select(timeout)
        self._waker.drain()

    def stop(self) -> None:
        """End the wait."""
        self._waker.wake()

    def close(self) -> None:
        """Take the entry and the socket away, then every connection."""
        self._withdraw()
        with contextlib.suppress(OSError):
            os.unlink(self._endpoint)
        self._listening.close()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._waker.close()

    def _accept(self, now: float) -> None:
        while len(self._connections) < CONNECTIONS_MAX:
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, say. The peer stays in the backlog.
                self._accept_after = now + ACCEPT_AGAIN
                self._count("accept_failed")
                _log.error("a connection could not be accepted: %s", error)
                return
            if not same_user(connected):
                self._count("connection_foreign")
                connected.close()
                continue
            connected.setblocking(False)
            self._connections[connected.fileno()] = _Connection(connected, now + IDLE)
            self._selector.register(connected, selectors.EVENT_READ)

    def _gate(self, now: float) -> None:
        """Leave further peers in the backlog while there are too many."""
        accepting = len(self._connections) < CONNECTIONS_MAX and now >= self._accept_after
        if accepting and not self._accepting:
            self._selector.register(self._listening, selectors.EVENT_READ)
        elif not accepting and self._accepting:
            self._selector.unregister(self._listening)
            self._count("accept_paused")
        self._accepting = accepting

    def _serve(self, connection: _Connection, events: int, now: float) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._receive(connection, now)
            connection.send()
            if connection.eof and not connection.replies:
                self._drop(connection)
                return
            connection.end()
        except OSError:
            # The peer is gone: what it sent was taken, what it did not read is its own loss.
            self._drop(connection)
            return
        self._watch(connection)

    def _receive(self, connection: _Connection, now: float) -> None:
        try:
            data = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            # A line that was begun is dropped, as the contract has it.
            connection.received.clear()
            connection.eof = True
        elif not (connection.ended or connection.doomed):
            # What comes after our end cannot be answered any more: it is read away.
            connection.received += data
            self._take_lines(connection, now)

    def _take_lines(self, connection: _Connection, now: float) -> None:
        *lines, rest = connection.received.split(b"\n")
        if lines:
            connection.checked = 0
        connection.received = rest
        for raw in map(bytes, lines):
            if envelope.over_cap(raw):
                self._refuse_line(connection, now)
                return
            if self._handle(connection, raw):
                connection.deadline = now + IDLE
        # Counting units means decoding, so a line that grows byte by byte is not counted each time.
        if len(rest) - connection.checked >= _CHECK_EVERY:
            connection.checked = len(rest)
            if envelope.over_cap(bytes(rest)):
                self._refuse_line(connection, now)

    def _refuse_line(self, connection: _Connection, now: float) -> None:
        """Nack and end; what still comes is read away, so that the nack is not lost to a reset."""
        self._count("line_too_large")
        connection.received.clear()
        connection.doomed = True
        connection.deadline = now + LINGER
        self._reply(connection, envelope.nack("", "line too large"))

    def _handle(self, connection: _Connection, raw: bytes) -> bool:
        """Answer a line; False for a blank one."""
        message = envelope.parse(raw)
        if isinstance(message, Prompt):
            self._prompt(connection, message)
        elif isinstance(message, Cancel):
            withdrawn = self._admission.cancel(message.ref_msg_id)
            self._reply(connection, envelope.ack(message.msg_id))
            if withdrawn:
                self._desk.put(Cancelled(message.ref_msg_id))
        elif isinstance(message, Ping):
            card = {**self._card, "queue_depth": self._admission.depth()}
            self._reply(connection, envelope.pong(message.msg_id, card))
        elif message is not None:
            self._nack(connection, message)
        return message is not None

    def _prompt(self, connection: _Connection, prompt: Prompt) -> None:
        refusal = self._refusal(prompt)
        if refusal is not None:
            self._nack(connection, Refused(prompt.msg_id, refusal))
            return
        # The ack leaves before anything else happens: somebody's dialog waits for it.
        self._reply(connection, envelope.ack(prompt.msg_id))
        if self._admission.asker(prompt.msg_id) is not None:
            if not self._admission.ask_again(prompt.msg_id):
                self._count("prompt_duplicate")
                return
        elif envelope.is_ulid(prompt.msg_id):
            self._admission.admit(prompt.msg_id, prompt.sender_endpoint)
        self._desk.put(Asked(prompt))

    def _refusal(self, prompt: Prompt) -> str | None:
        """Why a prompt cannot be taken."""
        if prompt.sender_endpoint == self._endpoint:
            # Its response would come back as a line that this socket refuses.
            return "sender_endpoint is the bridge itself"
        asker = self._admission.asker(prompt.msg_id)
        if asker is not None and asker != prompt.sender_endpoint:
            return "msg_id belongs to an open question of another peer"
        if self._admission.is_cancelled(prompt.msg_id):
            return "msg_id belongs to a question that is being cancelled"
        if asker is None and (self._admission.full() or self._desk.full()):
            return "queue full"
        return None

    def _nack(self, connection: _Connection, refused: Refused) -> None:
        self._count("nack")
        self._reply(connection, envelope.nack(refused.msg_id, refused.error))

    def _reply(self, connection: _Connection, line: bytes) -> None:
        if connection.ended:
            return
        connection.answered = True
        connection.replies += line
        # A peer that left at once is found out below; what it asked is taken all the same.
        with contextlib.suppress(OSError):
            connection.send()

    def _watch(self, connection: _Connection) -> None:
        """Read, unless the peer has ended its side or leaves its replies lying."""
        events = 0
        if not connection.eof and len(connection.replies) <= _REPLIES_MAX:
            events |= selectors.EVENT_READ
        if connection.replies:
            events |= selectors.EVENT_WRITE
        if events != connection.watched:
            connection.watched = events
            self._selector.modify(connection.socket, events)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _count(self, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1


def same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end runs under our user (``SO_PEERCRED``)."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    return bool(uid == os.geteuid())
