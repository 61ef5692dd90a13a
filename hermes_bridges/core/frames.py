"""Reads what a WebSocket server sends (RFC 6455), in pieces of any size. Pure."""

import struct
from dataclasses import dataclass

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_CONTROL_MAX = 125

PROTOCOL_ERROR = 1002
TOO_BIG = 1009


@dataclass(frozen=True, slots=True)
class Text:
    """A whole message, text or binary, as it came: whether it is UTF-8 is for others to judge."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping, to be answered by a pong with the same data."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """An answer to a ping of ours, or an unasked one."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer's close frame; ``code`` is None when it gave none."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Oversized:
    """A message of ``size`` bytes that was read away; told once it has ended.

    ``head`` is as much of its beginning as the reader was asked to keep.
    """

    size: int
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Violation:
    """What the peer must not send; the connection is to be closed with ``close_code``."""

    close_code: int
    reason: str


Event = Text | Ping | Pong | Closed | Oversized | Violation


class FrameReader:
    """Turns the bytes of one connection into events; how they are cut makes no difference.

    A message of more than ``limit`` bytes is read away without being kept, but for its first
    ``keep`` bytes; one of more than ``abort`` bytes is a violation as soon as a frame's header
    announces it (contract, section 6). After a close or a violation nothing follows. Nothing that
    a peer sends raises here.
    """

    def __init__(
        self, limit: int = 1024 * 1024, abort: int = 16 * 1024 * 1024, keep: int = 0
    ) -> None:
        self._limit = limit
        self._abort = abort
        self._keep = keep
        self._unread = bytearray()
        self._over = False
        # The frame in hand, once its header is there; `_left` counts its missing payload bytes.
        self._in_frame = False
        self._opcode = 0
        self._final = False
        self._left = 0
        self._control = bytearray()
        # The message in hand, which may be spread over several frames.
        self._in_message = False
        self._size = 0
        self._message = bytearray()

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and not ended: nothing else can come before the rest of it."""
        return self._in_frame

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the stream; returns what is complete by them, in order."""
        events: list[Event] = []
        if self._over:
            return events
        self._unread += data
        while not self._over:
            if not self._in_frame:
                violation = self._read_header()
                if violation is not None:
                    self._end(events, violation)
                if not self._in_frame:
                    break
            self._read_payload()
            if self._left:
                break
            self._in_frame = False
            self._finish_frame(events)
        return events

    def _read_header(self) -> Violation | None:
        """Begin the next frame if its header is all there."""
        unread = self._unread
        if len(unread) < 2:
            return None
        opcode, masked, length = unread[0] & 0x0F, unread[1] & 0x80, unread[1] & 0x7F
        if unread[0] & 0x70:
            return Violation(PROTOCOL_ERROR, "reserved bits are set")
        if masked:
            return Violation(PROTOCOL_ERROR, "a masked frame")
        final = bool(unread[0] & 0x80)
        if opcode in (_CLOSE, _PING, _PONG):
            if not final or length > _CONTROL_MAX:
                return Violation(PROTOCOL_ERROR, "a control frame that is cut or too long")
        elif opcode not in (_CONTINUATION, _TEXT, _BINARY):
            return Violation(PROTOCOL_ERROR, "an unknown kind of frame")
        elif (opcode == _CONTINUATION) != self._in_message:
            return Violation(PROTOCOL_ERROR, "a continuation out of place")
        header = 2
        if length > _CONTROL_MAX:
            layout = "!H" if length == 126 else "!Q"
            header += struct.calcsize(layout)
            if len(unread) < header:
                return None
            (length,) = struct.unpack_from(layout, unread, 2)
        del unread[:header]
        self._in_frame, self._opcode, self._final, self._left = True, opcode, final, length
        return None if opcode >= _CLOSE else self._announce(length)

    def _announce(self, length: int) -> Violation | None:
        """Count the payload of a data frame into its message before it is read."""
        self._in_message = True
        self._size += length
        if self._size > self._abort:
            return Violation(TOO_BIG, "a message beyond all bounds")
        if self._size > self._limit:
            del self._message[self._keep :]
        return None

    def _read_payload(self) -> None:
        piece = self._unread[: self._left]
        del self._unread[: self._left]
        self._left -= len(piece)
        if self._opcode >= _CLOSE:
            self._control += piece
        elif self._size <= self._limit:
            self._message += piece
        else:
            self._message += piece[: max(0, self._keep - len(self._message))]

    def _finish_frame(self, events: list[Event]) -> None:
        if self._opcode >= _CLOSE:
            data = bytes(self._control)
            self._control.clear()
            if self._opcode == _PING:
                events.append(Ping(data))
            elif self._opcode == _PONG:
                events.append(Pong(data))
            else:
                self._end(events, _read_close(data))
        elif self._final:
            if self._size > self._limit:
                events.append(Oversized(self._size, bytes(self._message)))
            else:
                events.append(Text(bytes(self._message)))
            self._message.clear()
            self._in_message, self._size = False, 0

    def _end(self, events: list[Event], last: Event) -> None:
        events.append(last)
        self._over, self._in_frame = True, False
        self._unread.clear()
        self._message.clear()


def _read_close(data: bytes) -> Closed | Violation:
    if not data:
        return Closed(None, "")
    if len(data) == 1:
        return Violation(PROTOCOL_ERROR, "half a close code")
    return Closed(int.from_bytes(data[:2], "big"), data[2:].decode("utf-8", "replace"))
