"""A lean HTTP/1.1 server on loopback: a thread a connection, kept alive, nothing buffered.

The handler gets each request before its body is read. So it can answer, be silent, hang up or take
the socket over at whatever point of the exchange it likes.
"""

import http
import select
import socket
import ssl
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterable

HEAD_LIMIT = 65_536  # bytes of a request line and all headers
LINE_LIMIT = 8_190  # bytes of one of them
DRAIN_LIMIT = 16_000_000  # bytes of a body that is read away when the handler left it
JSON = "application/json; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"


class Gone(OSError):
    """The connection is over: the peer closed it, or this side did."""


class Exchange:
    """One request, and the ways to answer it. It belongs to the connection's thread.

    ``headers`` have lower-case names; of equal ones the first counts. ``sock`` may be read from and
    written to directly once ``taken`` is set; what came after the head is in ``rest``.
    """

    def __init__(
        self, sock: socket.socket, closing: threading.Event, head: bytes, rest: bytes
    ) -> None:
        self.sock = sock
        self.rest = rest
        self.taken = False
        """True: the socket is the handler's, and is closed when the handler returns."""
        self.answered = False
        self.headers: dict[str, str] = {}
        self._closing = closing
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if (
            len(words) != 3
            or not words[2].startswith("HTTP/1.")
            or max(map(len, lines)) > LINE_LIMIT
        ):
            raise ValueError("no HTTP request")
        self.method, self.target, version = words
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise ValueError("a header without a name")
            self.headers.setdefault(name.lower(), value.strip())
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or not length.isascii() or "transfer-encoding" in self.headers:
            raise ValueError("a body without a length")
        self.length = int(length)
        self._unread = self.length
        connection = self.headers.get("connection", "").lower()
        self.keep = connection != "close" and (version != "HTTP/1.0" or connection == "keep-alive")

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def body(self) -> bytes:
        """The whole body; Gone when the client leaves before its end."""
        parts = [self.rest[: self._unread]]
        self.rest = self.rest[self._unread :]
        self._unread -= len(parts[0])
        while self._unread:
            piece = self.sock.recv(min(self._unread, 262_144))
            if not piece:
                raise Gone("the client closed the connection within a request")
            parts.append(piece)
            self._unread -= len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def reply(
        self,
        status: int,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        content_type: str = JSON,
        pause: float = 0.0,
    ) -> None:
        """Answer; ``pause`` seconds between two bytes. OSError when the client has gone."""
        if self._unread > DRAIN_LIMIT:
            self.keep = False
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '-')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if body or status not in (101, 204, 304):
            lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        if not self.keep:
            lines.append("Connection: close")
        data = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        self.answered = True
        self.send(data + (b"" if self.method == "HEAD" else body), pause)

    def send(self, data: bytes, pause: float = 0.0) -> None:
        """Write as it is; ``pause`` seconds between two bytes."""
        if not pause:
            self.sock.sendall(data)
            return
        for byte in data:
            self.sock.sendall(bytes([byte]))
            if self._closing.wait(pause):
                raise Gone("the server closes")

    def hung_up(self) -> bool:
        """Whether the client has closed its side."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLRDHUP)
        return any(event & ~select.POLLIN for _, event in poll.poll(0))

    def until_hung_up(self) -> None:
        """Be silent until the client goes or the server is closed."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        poll.poll()

    def drop(self, reset: bool = False) -> None:
        """Close the connection, with a reset (RST) on demand; always raises Gone."""
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
        raise Gone("dropped")

    def finish(self) -> bytes | None:
        """What the client sent after this request; None when the connection ends with it."""
        if self.taken or not self.answered or not self.keep:
            return None
        self.body()
        return self.rest


class HttpLoop:
    """Listens on 127.0.0.1 until ``close``. ``handle`` runs on the threads of the connections.

    An OSError out of ``handle`` ends the connection, and so does a request that was not answered.
    Threads are called ``<name>`` (accepting) and ``<name>-<n>``. ``port`` 0 takes a free one.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Exchange], None],
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.closing = threading.Event()
        """Set by ``close``: what a handler waits on in place of sleeping."""
        self._name = name
        self._handle = handle
        self._tls = tls
        # Guards the connections with their threads, and which of them wait for a request.
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._idle: set[socket.socket] = set()
        self._count = 0
        self._paused: socket.socket | None = None
        self._listen(port)

    def pause(self) -> None:
        """Refuse connections, and keep the port. Those that stand go on."""
        self._stop_listening()
        # Bound and not listening: the port stays ours, and a client is refused.
        self._paused = socket.socket()
        self._paused.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._paused.bind(("127.0.0.1", self.port))

    def resume(self) -> None:
        """Listen again on the same port."""
        if self._paused is not None:
            self._paused.close()
            self._paused = None
            self._listen(self.port)

    def cut(self) -> None:
        """End every connection that stands; their handlers get an OSError."""
        with self._lock:
            connections = list(self._connections)
        for sock in connections:
            _shut(sock)

    def cut_idle(self) -> int:
        """End the connections on which no request is under way; how many there were."""
        with self._lock:
            idle = list(self._idle)
        for sock in idle:
            _shut(sock)
        return len(idle)

    def close(self) -> None:
        self.closing.set()
        if self._paused is not None:
            self._paused.close()
        else:
            self._stop_listening()
        self.cut()
        with self._lock:
            threads = list(self._connections.values())
        for thread in threads:
            thread.join(5)

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(
            target=self._accept, args=(self._listener,), name=self._name, daemon=True
        )
        self._accepting.start()

    def _stop_listening(self) -> None:
        _shut(self._listener)
        self._accepting.join(5)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._count += 1
                thread = threading.Thread(
                    target=self._serve,
                    args=(sock,),
                    name=f"{self._name}-{self._count}",
                    daemon=True,
                )
                self._connections[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        served = sock
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                served = self._tls.wrap_socket(
                    sock, server_side=True, do_handshake_on_connect=False
                )
                with self._lock:
                    self._connections[served] = self._connections.pop(sock)
                served.do_handshake()
            rest: bytes | None = b""
            while rest is not None and not self.closing.is_set():
                rest = self._exchange(served, rest)
        except OSError:
            pass
        finally:
            with self._lock:
                del self._connections[served]
                self._idle.discard(served)
            # A dup of the socket may live on elsewhere: the peer is to see the end all the same.
            _shut(served)
            served.close()

    def _first_piece(self, sock: socket.socket) -> bytes:
        with self._lock:
            self._idle.add(sock)
        piece = sock.recv(65_536)
        with self._lock:
            self._idle.discard(sock)
        return piece

    def _exchange(self, sock: socket.socket, rest: bytes) -> bytes | None:
        head, end, rest = (rest or self._first_piece(sock)).partition(b"\r\n\r\n")
        if not head:
            return None
        while not end:
            piece = sock.recv(65_536)
            if not piece or len(head) > HEAD_LIMIT:
                return None
            head, end, rest = (head + piece).partition(b"\r\n\r\n")
        try:
            exchange = Exchange(sock, self.closing, head, rest)
        except ValueError:
            sock.sendall(_BAD_REQUEST)
            return None
        self._handle(exchange)
        return exchange.finish()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


_REASONS = {status.value: status.phrase for status in http.HTTPStatus}
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 15\r\nConnection: close\r\n\r\n400 Bad Request"
)
