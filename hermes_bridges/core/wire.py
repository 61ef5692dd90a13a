"""The connection below an HTTP client: how far a call has come on it, and its time."""

import http.client
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from hermes_bridges.core.deadlines import Deadlines, Token
from hermes_bridges.core.tcp import dial, tls_context


class Wire:
    """The connection of one client, and how far the call in progress has come on it.

    ``reused``: it has served an earlier call; ``sent``: sending has begun; ``answered``: a byte of
    an answer has come. Belongs to the thread of the client.

    Its duplicate of the socket outlives the connection's own until the call ends: a response that
    closes its connection is still being read then.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        connect_limit: float,
        proxy: str | None,
        clock: Callable[[], float],
    ) -> None:
        self.reused = self.sent = self.answered = False
        self._deadlines = deadlines
        self._connect_limit = connect_limit
        self._proxy = proxy
        self._clock = clock
        self._due = self._connect_due = 0.0
        self._open: object = None  # the connection that is kept
        self._dup: socket.socket | None = None
        self._token: Token | None = None

    def begin(self, limit: float) -> None:
        """A call begins, which may take ``limit`` seconds."""
        now = self._clock()
        self._due = now + limit
        self._connect_due = now + min(limit, self._connect_limit)
        self.reused, self.sent, self.answered = True, False, False
        if self._dup is not None:
            self._token = self._deadlines.watch(self._dup, self._due)

    def dial(self, host: str, port: int) -> socket.socket:
        """A new connection; its time is shorter until it stands."""
        self.reused = False
        return dial(
            host, port, self._connect_due, proxy=self._proxy, hold=self._hold, clock=self._clock
        )

    def opened(self, connection: object, sock: socket.socket) -> None:
        """It stands, TLS included: from here the time of the whole call counts."""
        self._open = connection
        # The deadline ends whatever blocks. A timeout of the socket's own would cost a poll, and
        # a turn of the interpreter's lock, before each read and write.
        sock.settimeout(None)
        self._watch(self._due)

    def closed(self, connection: object) -> None:
        """It will not be kept; an answer may still be read from it."""
        if self._open is connection:
            self._open = None

    def late(self) -> bool:
        """Whether the time of the call is over."""
        return self._clock() >= self._due

    def cut_short(self) -> bool:
        """Whether an end of the connection may have been our own doing."""
        return self.late() or self._deadlines.ended

    def end(self) -> None:
        """The call is over, well or badly; also lets go of a connection closed since."""
        if self._open is None:
            self._drop()
        elif self._token is not None:
            self._deadlines.clear(self._token)
            self._token = None

    def _hold(self, sock: socket.socket) -> None:
        self._drop()
        self._dup = sock.dup()
        self._watch(self._connect_due)

    def _watch(self, due: float) -> None:
        if self._token is not None:
            self._deadlines.clear(self._token)
        if self._dup is not None:
            self._token = self._deadlines.watch(self._dup, due)

    def _drop(self) -> None:
        if self._token is not None:
            self._deadlines.clear(self._token)
            self._token = None
        if self._dup is not None:
            self._dup.close()
            self._dup = None


class _Answer(http.client.HTTPResponse):
    def __init__(self, wire: Wire, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._wire = wire

    def begin(self) -> None:
        if self.fp.peek(1):
            self._wire.answered = True
        super().begin()
        if len(set(self.headers.get_all("Content-Length", ()))) > 1:
            raise http.client.HTTPException("no telling where the answer ends")


class Line(http.client.HTTPConnection):
    """A connection that tells its wire what becomes of it, and is opened when it is first used.

    A request goes out as a whole, by ``getresponse``: the peer gets it in one piece.
    """

    def __init__(self, host: str, port: int, wire: Wire) -> None:
        super().__init__(host, port)
        self._wire = wire
        self._unsent = b""
        self.response_class = partial(_Answer, wire)  # type: ignore[assignment]

    def connect(self) -> None:
        self.sock = self._dialled()
        self._wire.opened(self, self.sock)

    def _dialled(self) -> socket.socket:
        return self._wire.dial(self.host, self.port)

    def send(self, data: bytes) -> None:  # type: ignore[override]
        self._unsent += data

    def getresponse(self) -> http.client.HTTPResponse:
        if self.sock is None:
            self.connect()
        self._wire.sent = True
        request, self._unsent = self._unsent, b""
        self.sock.sendall(request)
        return super().getresponse()

    def close(self) -> None:
        super().close()
        self._wire.closed(self)

    def refresh(self) -> None:
        """Close it if the peer has ended it, or has said something, since the last answer."""
        if self.sock is not None:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            if poll.poll(0):
                self.close()


class SecureLine(Line):
    """The same by TLS, by the rules of ``core.tcp``."""

    default_port = http.client.HTTPS_PORT

    def _dialled(self) -> socket.socket:
        return tls_context().wrap_socket(super()._dialled(), server_hostname=self.host)
