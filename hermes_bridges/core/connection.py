"""One open WebSocket: reads, writes and signs of life, without ever blocking."""

import math
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from websocket import ABNF

from hermes_bridges.core.dial import told
from hermes_bridges.core.frames import (
    Closed,
    FrameReader,
    Oversized,
    Ping,
    Pong,
    Text,
    Violation,
)
from hermes_bridges.errors import BridgeError

NORMAL, GOING_AWAY = 1000, 1001

_PIECE = 64 * 1024
_LAST_PIECES = 16
_LONGEST_NUMBER = 20  # digits


class Patience(NamedTuple):
    """Seconds: until the peer must be confirmed, of silence before a ping, and after that ping.

    ``write`` is how long one frame may take to be written.
    """

    confirm: float
    ping: float
    pong: float
    write: float = math.inf


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
    """The frames of one socket. Owned by one thread, except that any may set ``confirmed``.

    Whatever the peer sends is a sign of life; with ``proof`` only a pong to a ping of ours is, and
    a frame that goes on: who sends but does not read is not alive. ``texts`` counts the texts
    whose last byte the kernel has taken, ``answered`` is the number of the latest ping that a pong
    has come for.
    """

    def __init__(
        self,
        sock: socket.socket,
        patience: Patience,
        now: float,
        *,
        reader: FrameReader | None = None,
        proof: bool = False,
    ) -> None:
        self.opened = now
        self.confirmed = False
        self.texts = 0
        self.answered = 0
        self._sock = sock
        self._patience = patience
        self._proof = proof
        self._reader = reader or FrameReader()
        self._confirm_due = now + patience.confirm
        self._heard = now
        self._pinged: float | None = None
        self._ping_wanted = False
        self._pings = 0
        self._end: Ended | None = None
        # Only the latest ping is answered, as the RFC allows: what a peer that does not read can
        # make us keep is bounded.
        self._pong: bytes | None = None
        self._rest = memoryview(b"")  # what is left of the frame that is being written
        self._rest_is_text = False
        self._begun = now  # when that frame was
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
        if not self._proof:
            self._heard, self._pinged = now, None
        messages: list[Text | Oversized] = []
        for event in self._reader.feed(data):
            match event:
                case Text() | Oversized():
                    messages.append(event)
                case Ping():
                    self._pong = event.data
                case Pong():
                    self._note_pong(event.data, now)
                case Closed(code):
                    told_code = "" if code is None else f" with {code}"
                    self._end = Ended(f"closed by the peer{told_code}", code, code or NORMAL)
                case Violation():
                    self._end = Ended(f"bad frame: {event.reason}", answer=event.close_code)
        if self._pinged is not None and self._reader.in_frame:
            # No pong can come before the rest of it.
            self._pinged = now
        return messages

    def _note_pong(self, data: bytes, now: float) -> None:
        number = int(data) if data.isdigit() and len(data) < _LONGEST_NUMBER else 0
        if self.answered < number <= self._pings:
            self.answered = number
            self._heard, self._pinged = now, None if number == self._pings else now

    def probe(self) -> int:
        """Have a ping sent right behind the text that ``next_text`` returns now; its number.

        Once ``answered`` has reached that, the peer has read the text.
        """
        self._ping_wanted = True
        return self._pings + 1

    def transmit(self, next_text: Callable[[], bytes | None], now: float) -> None:
        """Write what the socket takes now: pongs and pings, then the texts that come. Raises Ended.

        ``next_text`` is asked for one only when all before it is written.
        """
        while self._rest or self._load(next_text, now):
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
            if self._rest_is_text and not self._rest:
                self.texts += 1
        self._write_needs = 0

    def _load(self, next_text: Callable[[], bytes | None], now: float) -> bool:
        self._rest_is_text = False
        if self._pong is not None:
            frame = _frame(ABNF.OPCODE_PONG, self._pong)
            self._pong = None
        elif self._ping_wanted:
            self._ping_wanted = False
            self._pings += 1
            if self._proof and self._pinged is None:
                self._pinged = now
            frame = _frame(ABNF.OPCODE_PING, b"%d" % self._pings if self._proof else b"")
        elif (text := next_text()) is not None:
            frame = _frame(ABNF.OPCODE_TEXT, text)
            self._rest_is_text = True
        else:
            return False
        self._rest, self._begun = memoryview(frame), now
        return True

    def check_writing(self, now: float) -> float:
        """When the frame in hand must be written at the latest. Raises Ended when it is not."""
        due = self._begun + self._patience.write if self._rest else math.inf
        if now >= due:
            raise Ended(f"the peer has not read for {self._patience.write:g} s")
        return due

    def check(self, now: float) -> float:
        """Look at the time; returns the next due one. A ping that is due goes by ``transmit``.

        Raises Ended when the peer has been silent for too long, does not read or was not confirmed
        in time.
        """
        writing_due = self.check_writing(now)
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
        return min(due, writing_due, math.inf if self.confirmed else self._confirm_due)

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
