"""Ends what hangs in a socket: at its due time, or all of it at once."""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hermes_bridges.core.waker import Waker


class Token:
    """One watched socket; given out by ``Deadlines.watch``."""

    def __init__(self, sock: socket.socket, due: float) -> None:
        self.sock = sock
        self.due = due
        self.over = False
        """It was shut because its time had come. Stays False when ``shut_all`` did it."""


class Deadlines:
    """Shuts sockets whose time is over, from its own thread: a stage of the service.

    A socket's own timeout counts from byte to byte, so that a peer that drips could hold a call
    for ever. The shutdown ends a connect, a TLS handshake, a read or a write of another thread at
    once, as if the peer had closed. Watch a ``dup()`` of the raw socket: it shares the connection,
    and a TLS object on the original stays intact.

    ``watch``, ``clear``, ``hasten`` and ``shut_all`` may be called by any thread, also before the
    stage runs. ``ended`` is True after ``shut_all``.
    """

    def __init__(self) -> None:
        # Guards _tokens, _next, _latest and ended. The shutdown, which cannot block, is made while
        # it is held: after clear() the owner may close the socket, and another get its number.
        self._lock = threading.Lock()
        self._tokens: set[Token] = set()
        self._next = math.inf  # when the thread will look again by itself
        self._latest = math.inf  # no socket's time ends later
        self._waker = Waker()
        self._stopping = False
        self.ended = False

    @classmethod
    @contextmanager
    def running(cls, clock: Callable[[], float] = time.monotonic) -> "Iterator[Deadlines]":
        """Deadlines with a thread of their own, for as long as the block lasts."""
        deadlines = cls()
        thread = threading.Thread(
            target=deadlines._run, args=(clock,), name="deadlines", daemon=True
        )
        thread.start()
        try:
            yield deadlines
        finally:
            deadlines.stop()
            thread.join()
            deadlines.close()

    def watch(self, sock: socket.socket, due: float) -> Token:
        """Shut ``sock`` at ``due`` (monotonic), or at once after ``shut_all``.

        The caller owns the socket: it calls ``clear`` first and closes it then.
        """
        with self._lock:
            token = Token(sock, min(due, self._latest))
            if self.ended:
                _shut(sock)
            self._tokens.add(token)
            # Times that were cleared are left in _next: the thread then looks once in vain.
            sooner = token.due < self._next
            if sooner:
                self._next = token.due
        if sooner:
            self._waker.wake()
        return token

    def clear(self, token: Token) -> None:
        """Forget it; from here on its socket is not touched. Twice is fine."""
        with self._lock:
            self._tokens.discard(token)

    def hasten(self, latest: float) -> None:
        """Let no time end later than ``latest`` (monotonic): of what is watched now or ever."""
        with self._lock:
            self._latest = min(self._latest, latest)
            for token in self._tokens:
                token.due = min(token.due, latest)
        self._waker.wake()

    def shut_all(self) -> None:
        """Shut everything that is watched now and whatever will be watched."""
        with self._lock:
            self.ended = True
            for token in self._tokens:
                _shut(token.sock)

    def step(self, now: float) -> float | None:
        """Shut what is due; the next due time, None while nothing is watched."""
        with self._lock:
            for token in [token for token in self._tokens if token.due <= now]:
                token.over = True
                _shut(token.sock)
                self._tokens.remove(token)
            self._next = min((token.due for token in self._tokens), default=math.inf)
            return None if self._next == math.inf else self._next

    def wait(self, timeout: float | None) -> None:
        self._waker.wait(timeout)

    def stop(self) -> None:
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()

    def _run(self, clock: Callable[[], float]) -> None:
        while not self._stopping:
            due = self.step(clock())
            self.wait(None if due is None else due - clock())


def _shut(sock: socket.socket) -> None:
    try:
        # The base class's: that of a TLS socket would drop TLS first, and another thread's write
        # would go out in plain text.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        # Not connected any more: nobody waits in it.
        pass
