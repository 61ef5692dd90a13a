"""The frames of a WebSocket (RFC 6455) as a server writes and, strictly, reads them."""

import struct
from collections.abc import Iterator

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MESSAGE_LIMIT = 64 * 1024  # bytes that a client may send in one message


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """One frame as a server sends it: unmasked."""
    first = opcode | (0x80 if fin else 0)
    if len(payload) < 126:
        return struct.pack("!BB", first, len(payload)) + payload
    if len(payload) < 65536:
        return struct.pack("!BBH", first, 126, len(payload)) + payload
    return struct.pack("!BBQ", first, 127, len(payload)) + payload


class Violation(Exception):
    """What a client must not send; ``code`` is what the connection is closed with."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class ClientFrames:
    """Reads what a client sends, messages of at most ``limit`` bytes; owned by one thread."""

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._limit = limit
        self._data = b""
        self._opcode = 0
        self._parts = b""

    @property
    def unread(self) -> bool:
        """Whether something is left behind the last message."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The whole messages and control frames in it. Raises Violation."""
        self._data += data
        while (found := self._next()) is not None:
            fin, opcode, payload = found
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            if (opcode == 0) != (self._opcode != 0):
                raise Violation(1002, "a fragment out of place")
            self._opcode = self._opcode or opcode
            self._parts += payload
            if len(self._parts) > self._limit:
                raise Violation(1009, "a message is too long")
            if fin:
                whole, kind = self._parts, self._opcode
                self._parts, self._opcode = b"", 0
                yield kind, whole

    def _next(self) -> tuple[bool, int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        fin, opcode, length = bool(data[0] & 0x80), data[0] & 0x0F, data[1] & 0x7F
        if data[0] & 0x70:
            raise Violation(1002, "a reserved bit is set")
        if opcode not in (0, TEXT, BINARY, CLOSE, PING, PONG):
            raise Violation(1002, "a reserved opcode")
        if not data[1] & 0x80:
            raise Violation(1002, "an unmasked frame")
        if opcode >= CLOSE and (not fin or length > 125):
            raise Violation(1002, "a control frame that is cut or too long")
        place = 2
        if length >= 126:
            place += 2 if length == 126 else 8
            if len(data) < place:
                return None
            length = int.from_bytes(data[2:place], "big")
            if length < (126 if place == 4 else 65536):
                raise Violation(1002, "a length in more bytes than it needs")
            if length > self._limit:
                raise Violation(1009, "a message is too long")
        end = place + 4 + length
        if len(data) < end:
            return None
        mask, masked = data[place : place + 4], data[place + 4 : end]
        self._data = data[end:]
        return fin, opcode, _unmask(mask, masked)


def _unmask(mask: bytes, data: bytes) -> bytes:
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(data), "big")


def may_be_said(payload: bytes, code: int) -> bool:
    """Whether a close frame may hold this payload, which begins with that code."""
    if not payload:
        return True
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return False
    good = 1000 <= code <= 1014 and code not in (1004, 1005, 1006)
    return len(payload) >= 2 and (good or 3000 <= code <= 4999)


def fragments(opcode: int, payload: bytes, size: int) -> bytes:
    """A message in frames of ``size`` bytes, with a ping between each two."""
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    out = b""
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        out += frame(opcode if number == 0 else 0, piece, fin=last)
        out += b"" if last else frame(PING, b"between")
    return out
