"""The frames that wait for the socket, are being written, or are to be confirmed."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FRAMES_MAX = 256
BYTES_MAX = 8 * 1024 * 1024

Told = Callable[[bool], None]


@dataclass(slots=True)
class _Frame:
    data: bytes
    size: int
    written: Told | None = None
    confirmed: Told | None = None
    probe: int = 0  # the number of the ping behind it


class Outgoing:
    """The frames of one connection after the other; ``offer`` is for any thread, all else for one.

    Holds FRAMES_MAX frames, where one to be confirmed counts until it is, and BYTES_MAX bytes that
    are not written yet. ``refused_frames`` and ``refused_signals`` count what was not taken.
    """

    def __init__(self) -> None:
        self.refused_frames = 0
        self.refused_signals = 0
        # Guards all that this class holds.
        self._lock = threading.Lock()
        self._open = False
        self._waiting: deque[_Frame] = deque(maxlen=FRAMES_MAX)
        self._in_hand: deque[_Frame] = deque(maxlen=FRAMES_MAX)
        self._unconfirmed: deque[_Frame] = deque(maxlen=FRAMES_MAX)
        self._bytes = 0
        self._settled = 0

    def offer(
        self, data: bytes, signal: bool, written: Told | None, confirmed: Told | None
    ) -> bool:
        """Take a frame; False when closed or full, for a ``signal`` when half full."""
        share = 2 if signal else 1
        with self._lock:
            count = len(self._waiting) + len(self._in_hand) + len(self._unconfirmed)
            room = count < FRAMES_MAX // share and self._bytes + len(data) <= BYTES_MAX // share
            if self._open and room:
                self._add(_Frame(data, len(data), written, confirmed))
                return True
            self.refused_signals += signal
            self.refused_frames += not signal
            return False

    def begin(self, greeting: bytes) -> None:
        """Have the greeting written to a new connection. Nothing else is taken until ``open``."""
        with self._lock:
            self._settled = 0
            self._add(_Frame(greeting, len(greeting)))

    def open(self) -> None:
        """Take frames."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """Take no more frames; what was taken stays."""
        with self._lock:
            self._open = False

    def next(self, probe: Callable[[], int]) -> bytes | None:
        """The next frame to write. ``probe`` has a ping sent behind it and returns its number."""
        with self._lock:
            if not self._waiting:
                return None
            frame = self._waiting.popleft()
            self._in_hand.append(frame)
            if frame.confirmed is not None:
                frame.probe = probe()
            data, frame.data = frame.data, b""
            return data

    def settle(self, texts: int, answered: int) -> list[Told]:
        """Who is to be told of success, when so many texts are written and pings answered."""
        told: list[Told | None] = []
        with self._lock:
            while self._settled < texts:
                self._settled += 1
                frame = self._in_hand.popleft()
                self._bytes -= frame.size
                told.append(frame.written)
                if frame.confirmed is not None:
                    self._unconfirmed.append(frame)
            while self._unconfirmed and self._unconfirmed[0].probe <= answered:
                told.append(self._unconfirmed.popleft().confirmed)
        return [one for one in told if one is not None]

    def drop(self) -> list[Told]:
        """Close, and forget every frame; who is to be told that it came to nothing."""
        told: list[Told | None] = []
        with self._lock:
            self._open = False
            for frame in (*self._in_hand, *self._waiting):
                told += [frame.written, frame.confirmed]
            told += [frame.confirmed for frame in self._unconfirmed]
            for frames in (self._in_hand, self._waiting, self._unconfirmed):
                frames.clear()
            self._bytes = 0
        return [one for one in told if one is not None]

    def is_empty(self) -> bool:
        """Whether every frame that was taken is written, and confirmed where that is wanted."""
        with self._lock:
            return not (self._waiting or self._in_hand or self._unconfirmed)

    def _add(self, frame: _Frame) -> None:
        self._waiting.append(frame)
        self._bytes += frame.size
