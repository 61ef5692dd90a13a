"""One open WebSocket: reads, writes and signs of life, without ever blocking."""

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from websocket import ABNF

from hermes_bridges.core.dial import told
from hermes_bridges.core.frames import Closed, FrameReader, Oversized, Ping, Text, Violation
from hermes_bridges.errors import BridgeError

NORMAL, GOING_AWAY = 1000, 1001

_PIECE = 64 * 1024
_LAST_PIECES = 16


class Patience(NamedTuple):
    """Seconds: until the peer must be confirmed, of silence before a ping, and after that ping."""

    confirm: float
    ping: float
    pong: float


class Ended(BridgeError):
    """The connection is over; the text is safe to log.

    ``code`` is that of the peer's close frame; ``answer`` is the code to close with, None where a
    close frame makes no sense any more.
    """

    def __init__(self, reason: str, code: int | None = None, answer: int | None = None) -> None:
        self.code = code
        self.answer = answer
        super().__init__(reason)


class Connection:
    """The frames of one socket. Owned by one thread, except that any may set ``confirmed``."""

    def __init__(self, sock: socket.socket, patience: Patience, now: float) -> None:
        self.opened = now
        self.confirmed = False
        self._sock = sock
        self._patience = patience
        self._reader = FrameReader()
        self._confirm_due = now + patience.confirm
        self._heard = now
        self._pinged: float | None = None
        self._ping_wanted = False
        self._end: Ended | None = None
        # Only the latest ping is answered, as the RFC allows: what a peer that does not read can
        # make us keep is bounded.
        self._pong: bytes | None = None
        self._rest = memoryview(b"")  # what is left of the frame that is being written
        # What the socket must be polled for before the next try; TLS may turn them round.
        self._read_needs = select.POLLIN
        self._write_needs = 0

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._sock.fileno()

    def interest(self, reading: bool) -> int:
        """What to poll the socket for; 0 for nothing."""
        return (self._read_needs if reading else 0) | self._write_needs

    def receive(self, now: float) -> list[Text | Oversized] | None:
        """Read one piece; None when nothing is there. Control frames are seen to here.

        Raises Ended, for a close frame and a violation by the call after the messages before it.
        """
        if self._end is not None:
            raise self._end
        try:
            data = self._sock.recv(_PIECE)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._read_needs = select.POLLIN
            return None
        except ssl.SSLWantWriteError:
            self._read_needs = select.POLLOUT
            return None
        except OSError as fault:
            raise Ended(told(fault)) from None
        if not data:
            raise Ended("the peer hung up")
        self._heard, self._pinged = now, None
        messages: list[Text | Oversized] = []
        for event in self._reader.feed(data):
            match event:
                case Text() | Oversized():
                    messages.append(event)
                case Ping():
                    self._pong = event.data
                case Closed(code):
                    told_code = "" if code is None else f" with {code}"
                    self._end = Ended(f"closed by the peer{told_code}", code, code or NORMAL)
                case Violation():
                    self._end = Ended(f"bad frame: {event.reason}", answer=event.close_code)
        return messages

    def transmit(self, next_text: Callable[[], bytes | None]) -> None:
        """Write what the socket takes now: pongs and pings, then the texts that come. Raises Ended.

        ``next_text`` is asked for one only when all before it is written.
        """
        while self._rest or self._load(next_text):
            try:
                sent = self._sock.send(self._rest)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._write_needs = select.POLLOUT
                return
            except ssl.SSLWantReadError:
                self._write_needs = select.POLLIN
                return
            except OSError as fault:
                raise Ended(told(fault)) from None
            self._rest = self._rest[sent:]
        self._write_needs = 0

    def _load(self, next_text: Callable[[], bytes | None]) -> bool:
        if self._pong is not None:
            frame = _frame(ABNF.OPCODE_PONG, self._pong)
            self._pong = None
        elif self._ping_wanted:
            frame = _frame(ABNF.OPCODE_PING, b"")
            self._ping_wanted = False
        elif (text := next_text()) is not None:
            frame = _frame(ABNF.OPCODE_TEXT, text)
        else:
            return False
        self._rest = memoryview(frame)
        return True

    def check(self, now: float) -> float:
        """Look at the time; returns the next due one. A ping that is due goes by ``transmit``.

        Raises Ended when the peer has been silent for too long or was not confirmed in time.
        """
        if not self.confirmed and now >= self._confirm_due:
            reason = f"no welcome within {self._patience.confirm:g} s"
            raise Ended(reason, answer=NORMAL)
        if self._pinged is None and now >= self._heard + self._patience.ping:
            self._pinged = now
            self._ping_wanted = True
        if self._pinged is None:
            due = self._heard + self._patience.ping
        else:
            due = self._pinged + self._patience.pong
            if now >= due:
                raise Ended("no sign of life")
        return due if self.confirmed else min(due, self._confirm_due)

    def excuse(self, now: float) -> None:
        """Count silence from now on only: it was we who did not listen."""
        self._heard, self._pinged = now, None
        self._confirm_due = max(self._confirm_due, now + self._patience.confirm)

    def close(self, code: int | None) -> None:
        """Let go of the socket; a close frame goes out first if it can without waiting."""
        with suppress(OSError):
            if code is not None:
                frame = _frame(ABNF.OPCODE_CLOSE, code.to_bytes(2, "big"))
                self._sock.send(bytes(self._rest) + frame)
                # With something unread the kernel would end the connection by a reset, in which
                # the close frame may get lost.
                for _ in range(_LAST_PIECES):
                    if not self._sock.recv(_PIECE):
                        break
        self._sock.close()


def _frame(opcode: int, data: bytes) -> bytes:
    return ABNF.create_frame(data, opcode).format()
