"""The server's side of a WebSocket (RFC 6455), strict with its client, and faulty on demand."""

import base64
import binascii
import hashlib
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hermes_bridges.core.waker import Waker
from hermes_bridges.standins.ws_frames import (
    CLOSE,
    MESSAGE_LIMIT,
    PING,
    PONG,
    TEXT,
    ClientFrames,
    Violation,
    fragments,
    frame,
    may_be_said,
)

ABNORMAL = 1006  # the code of an end without a close frame
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE_SECONDS = 2.0
_PIECE = 256 * 1024
BACKLOG = 200_000  # messages that wait for a client that does not read


class BadHandshake(Exception):
    """A request that does not open a WebSocket; ``status`` and ``headers`` are the answer's."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = [(name.replace("_", "-"), value) for name, value in headers.items()]


def handshake(headers: Mapping[str, str]) -> bytes:
    """The answer that opens the WebSocket, ready to be sent. Raises BadHandshake."""
    if headers.get("upgrade", "").lower() != "websocket":
        raise BadHandshake(426, "this is a WebSocket", Upgrade="websocket")
    if "upgrade" not in map(str.strip, headers.get("connection", "").lower().split(",")):
        raise BadHandshake(400, "Connection must say upgrade")
    if headers.get("sec-websocket-version") != "13":
        raise BadHandshake(426, "version 13 only", Sec_WebSocket_Version="13")
    key = headers.get("sec-websocket-key", "")
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        raise BadHandshake(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n"
    ).encode()


class Ended(NamedTuple):
    """How it ended: the code, and ``hub`` or ``bot`` for who began to end it."""

    code: int
    by: str


class Control(NamedTuple):
    """A ping or pong that this side has written (``sent``) or that came."""

    opcode: int
    payload: bytes
    sent: bool


class WsServer:
    """One open WebSocket. ``run`` belongs to one thread; everything else is for any thread.

    The client is pinged after ``ping_after`` seconds in which nothing came from it, and is gone
    when nothing comes for ``pong_within`` more. ``on_written(mark, t)`` is told, on the thread
    of ``run``, of each offered message once all of it is with the kernel; ``t`` is the monotonic
    time at which its first byte was about to go.

    A client may say nothing but control frames unless there is an ``on_message``, which gets the
    opcode and the payload of each message, of at most ``limit`` bytes. ``on_control`` is told of
    each ping and pong that came or was written. Both are called on the thread of ``run``.
    """

    def __init__(
        self,
        sock: socket.socket,
        unread: bytes,
        on_written: Callable[[object, float], None],
        *,
        ping_after: float,
        pong_within: float,
        backlog: int = BACKLOG,
        on_message: Callable[[int, bytes], None] | None = None,
        on_control: Callable[[Control, float], None] | None = None,
        limit: int = MESSAGE_LIMIT,
    ) -> None:
        self.fault = ""
        """What the client did wrong, where that has ended the connection."""
        self._sock = sock
        self._unread = unread
        self._on_written = on_written
        self._ping_after = ping_after
        self._pong_within = pong_within
        self._backlog = backlog
        self._on_message = on_message
        self._on_control = on_control
        self._frames = ClientFrames(limit)
        self._waker = Waker()
        # Bounded by _backlog. Its ends are safe to use from several threads.
        self._offered: deque[tuple[bytes, object]] = deque()
        self._out = bytearray()
        self._queued = self._sent = 0  # bytes, since the beginning
        # Bounded by what is in _out: where each message ends, its mark, and when it was put there.
        self._marks: deque[tuple[int, object, float]] = deque()
        self._stalled = self._held = self._mute = False
        self._order: Ended | None = None
        self._reset = False
        self._ended: Ended | None = None
        self._leaving: Ended | None = None
        self._leave_by = 0.0
        self._deaf = False
        self._heard = self._pinged = 0.0
        self._write_at = self._read_at = 0.0
        self._size, self._pause = _PIECE, 0.0
        self._sip, self._sip_pause = _PIECE, 0.0
        self._fragment = 0

    def offer(self, payload: bytes, mark: object = None, opcode: int = TEXT) -> None:
        """Send a message. Takes no lock and never blocks; a client too far behind is cut off."""
        wire = frame(opcode, payload)
        if self._fragment:
            wire = fragments(opcode, payload, self._fragment)
        self.wire(wire, mark)

    def wire(self, data: bytes, mark: object = None) -> None:
        """Send these bytes as they are, frames or not."""
        if len(self._offered) >= self._backlog:
            self.cut()
        else:
            self._offered.append((data, mark))
            self._waker.wake()

    def close(self, code: int) -> None:
        """Say the close, with what was offered before it, and wait a moment for the client's."""
        self._order = Ended(code, "hub")
        self._waker.wake()

    def cut(self, reset: bool = False) -> None:
        """End the connection without a close frame, with ``reset`` by an RST in place of a FIN."""
        self._reset = reset
        self._order = Ended(ABNORMAL, "hub")
        self._waker.wake()

    def stall(self, on: bool) -> None:
        """Neither read nor write from now on, as if the network between had gone; or go on."""
        self._stalled = on
        self._waker.wake()

    def hold_reading(self, on: bool) -> None:
        """Write, but read nothing from now on, and judge no silence; or go on."""
        self._held = on
        self._waker.wake()

    def mute_pongs(self, on: bool) -> None:
        """Do not answer pings from now on; or do."""
        self._mute = on

    def sip(self, size: int, pause: float) -> None:
        """Read ``size`` bytes at a time, with so many seconds between; 0 ends that."""
        self._sip, self._sip_pause = size or _PIECE, pause
        self._waker.wake()

    def split(self, size: int, pause: float) -> None:
        """Write ``size`` bytes at a time, with so many seconds between; 0 ends that."""
        self._size, self._pause = size or _PIECE, pause

    def fragment(self, size: int) -> None:
        """Cut each message into frames of ``size`` bytes, with a ping between; 0 ends that."""
        self._fragment = size

    def run(self) -> Ended:
        """Serve the connection to its end. The socket is then the caller's to close."""
        self._sock.setblocking(False)
        self._heard = time.monotonic()
        poll = select.poll()
        poll.register(self._waker.fileno(), select.POLLIN)
        try:
            self._take_in(self._unread)
            while self._ended is None:
                self._turn(poll)
        except OSError:
            self._ended = self._lost()
        finally:
            self._waker.close()
        if self._reset:
            # Closed here and now: a shutdown first, as is usual, would send the FIN.
            linger = struct.pack("ii", 1, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._sock.close()
        return self._ended

    def _lost(self) -> Ended:
        """How it ended when the socket has no more to give."""
        cut = self._order is not None and self._order.code == ABNORMAL
        return self._leaving or Ended(ABNORMAL, "hub" if cut else "bot")

    def _turn(self, poll: "select.poll") -> None:
        self._waker.drain()
        now = time.monotonic()
        self._obey(now)
        due = None if self._stalled else self._due(now)
        if self._ended is not None:
            return
        wanted = 0
        if not self._stalled:
            if now >= self._write_at:
                self._write(now)
            wanted = 0 if self._held or now < self._read_at else select.POLLIN
            more = self._out or (self._offered and self._leaving is None)
            if more and now >= self._write_at:
                wanted |= select.POLLOUT
            if now < self._write_at and (self._out or self._offered):
                due = self._write_at if due is None else min(due, self._write_at)
            if now < self._read_at and not self._held:
                due = self._read_at if due is None else min(due, self._read_at)
        # Registered anew each time: a stalled connection must not see even the client's hang-up.
        if wanted:
            poll.register(self._sock, wanted)
        ready = dict(poll.poll(None if due is None else max(0.0, due - now) * 1000 + 1))
        if wanted:
            poll.unregister(self._sock)
        come = wanted & select.POLLIN and ready.get(self._sock.fileno(), 0) & ~select.POLLOUT
        if come and not self._stalled and not self._held:
            self._read()

    def _due(self, now: float) -> float | None:
        """When there is next something to do about time; pings and gives up on the way."""
        if self._leaving is not None:
            if now >= self._leave_by:
                self._ended = self._leaving
            return self._leave_by
        if self._held:
            self._heard = now
            return None
        if self._pinged <= self._heard:
            if now < self._heard + self._ping_after:
                return self._heard + self._ping_after
            self._pinged = now
            self._queue(frame(PING, b"hub"), self._control(PING, b"hub"))
        if now >= self._pinged + self._pong_within:
            self.fault = "no answer to a ping"
            self._ended = Ended(ABNORMAL, "hub")
        return self._pinged + self._pong_within

    def _obey(self, now: float) -> None:
        order = self._order
        if order is None or self._ended is not None:
            return
        if order.code == ABNORMAL:
            self._ended = order
        elif self._leaving is None and not self._stalled:
            self._leave(order, now)

    def _leave(self, how: Ended, now: float) -> None:
        while self._offered:
            self._queue(*self._offered.popleft())
        self._queue(frame(CLOSE, struct.pack("!H", how.code)))
        self._leaving, self._leave_by = how, now + _CLOSE_SECONDS

    def _queue(self, data: bytes, mark: object = None) -> None:
        self._out += data
        self._queued += len(data)
        if mark is not None:
            self._marks.append((self._queued, mark, time.monotonic()))

    def _write(self, now: float) -> None:
        while self._leaving is None and self._offered and len(self._out) < _PIECE:
            self._queue(*self._offered.popleft())
        while self._out:
            try:
                sent = self._sock.send(self._out[: self._size])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            del self._out[:sent]
            self._sent += sent
            while self._marks and self._marks[0][0] <= self._sent:
                _, mark, t = self._marks.popleft()
                if isinstance(mark, Control):
                    self._tell(mark, t)
                else:
                    self._on_written(mark, t)
            if self._pause:
                self._write_at = now + self._pause
                return
        if self._deaf:
            # Nothing that such a client sends can be told from a close: it sees the end at once.
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def _read(self) -> None:
        while self._ended is None and not self._held:
            try:
                data = self._sock.recv(min(self._sip, 65536))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                self._ended = self._lost()
            else:
                self._take_in(data)
            if self._sip_pause:
                self._read_at = time.monotonic() + self._sip_pause
                return

    def _control(self, opcode: int, payload: bytes) -> Control | None:
        """The mark of a ping or pong of ours, where somebody wants to know of it."""
        return None if self._on_control is None else Control(opcode, payload, True)

    def _tell(self, control: Control, t: float) -> None:
        if self._on_control is not None:
            self._on_control(control, t)

    def _take_in(self, data: bytes) -> None:
        now = time.monotonic()
        if data:
            self._heard = now
        if self._deaf:
            return
        try:
            for opcode, payload in self._frames.feed(data):
                if opcode in (PING, PONG):
                    self._tell(Control(opcode, payload, False), now)
                    if opcode == PING and not self._mute:
                        self._queue(frame(PONG, payload), self._control(PONG, payload))
                elif opcode == CLOSE:
                    self._closed(payload, now)
                    return
                elif self._on_message is None:
                    raise Violation(1003, "nothing is to be said on this stream")
                else:
                    self._on_message(opcode, payload)
        except Violation as fault:
            self.fault = self.fault or str(fault)
            if self._leaving is None:
                self._leave(Ended(fault.code, "hub"), now)
            self._deaf = True

    def _closed(self, payload: bytes, now: float) -> None:
        if self._frames.unread:
            self.fault = "something after the close frame"
        code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
        if not may_be_said(payload, code):
            raise Violation(1002, "a close that must not be")
        if self._leaving is None:
            self._queue(frame(CLOSE, payload[:2]))
            self._write(now)
        self._ended = self._leaving or Ended(code, "bot")
