"""A WebSocket server on loopback that does what a test's script says, and an HTTP proxy."""

import base64
import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PATIENCE = 10.0  # seconds; a peer that waits longer has found a fault


def frame(opcode: int, payload: bytes = b"", final: bool = True) -> bytes:
    """One frame as a server sends it."""
    first = opcode | (0x80 if final else 0)
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    if len(payload) < 65536:
        return bytes((first, 126)) + struct.pack("!H", len(payload)) + payload
    return bytes((first, 127)) + struct.pack("!Q", len(payload)) + payload


def read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            break
        head += byte
    return head


class Guest:
    """One connection to the peer, for its script."""

    def __init__(self, sock: socket.socket, head: bytes) -> None:
        self.sock = sock
        self.head = head.decode("latin-1")

    @property
    def path(self) -> str:
        return self.head.split(" ")[1]

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.lower() == name.lower():
                return value.strip()
        return None

    def accept(self, *more: str) -> "Guest":
        key = f"{self.header('Sec-WebSocket-Key')}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        proof = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.answer(
            "101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {proof}",
            *more,
        )
        return self

    def answer(self, status: str, *headers: str, body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {status}", *headers, "", ""]
        self.sock.sendall("\r\n".join(lines).encode("latin-1") + body)

    def send(self, opcode: int, payload: bytes = b"") -> None:
        self.sock.sendall(frame(opcode, payload))

    def say(self, text: str) -> None:
        self.send(TEXT, text.encode())

    def close(self, code: int) -> None:
        self.send(CLOSE, code.to_bytes(2, "big"))

    def hear(self) -> tuple[int, bytes] | None:
        """The next frame, None at the end. A frame that a client must not send is a failure."""
        first = self._exactly(2)
        if first is None:
            return None
        assert first[0] & 0xF0 == 0x80, "cut, or reserved bits"
        assert first[1] & 0x80, "not masked"
        size = first[1] & 0x7F
        if size > 125:
            layout = "!H" if size == 126 else "!Q"
            (size,) = struct.unpack(layout, self._exactly(struct.calcsize(layout)) or b"")
        mask = self._exactly(4) or b""
        data = self._exactly(size) or b""
        repeated = mask * (size // 4) + mask[: size % 4]
        number = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
        return first[0] & 0x0F, number.to_bytes(size, "big")

    def hear_all(self) -> list[tuple[int, bytes]]:
        found = []
        while (one := self.hear()) is not None:
            found.append(one)
        return found

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                return None
            data += piece
        return data


class Peer:
    """Accepts connections; the script runs for each one on a thread of its own, then it is closed.

    A script may wait on ``ended``, which ``close`` sets. What a script raises, other than an
    OSError, is raised again by ``close``.
    """

    def __init__(
        self,
        script: Callable[[Guest], object],
        *,
        tls: ssl.SSLContext | None = None,
        raw: bool = False,
        backlog: int = 100,
    ) -> None:
        self.script = script
        self.guests: list[Guest] = []
        self.accepted = 0
        self.ended = threading.Event()
        self._tls = tls
        self._raw = raw  # the script gets the connection before anything is read
        self._faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        scheme, host = ("wss", "localhost") if self._tls else ("ws", "127.0.0.1")
        return f"{scheme}://{host}:{self.port}/stream"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._socks.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(PATIENCE)
            if self._tls is not None and not self._raw:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._socks.append(sock)
            guest = Guest(sock, b"" if self._raw else read_head(sock))
            self.guests.append(guest)
            self.script(guest)
        except OSError:
            pass  # it was cut, by the other side or by close()
        except BaseException as fault:
            self._faults.append(fault)
        finally:
            sock.close()

    def close(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)
        for sock in self._socks:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
        for sock in self._socks:
            sock.close()
        if self._faults:
            raise self._faults[0]


@contextmanager
def peer(script: Callable[[Guest], object], **options) -> Iterator[Peer]:
    made = Peer(script, **options)
    try:
        yield made
    finally:
        made.close()


class Proxy(Peer):
    """An HTTP proxy that knows CONNECT only; every name leads to the given port here."""

    def __init__(self, port: int, status: str = "200 OK") -> None:
        self.asked: list[str] = []
        self._target = port
        self._status = status
        super().__init__(self._relay)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _relay(self, guest: Guest) -> None:
        self.asked.append(guest.head)
        guest.answer(self._status)
        if not self._status.startswith("200"):
            return
        with socket.create_connection(("127.0.0.1", self._target)) as onward:
            back = threading.Thread(target=_pump, args=(onward, guest.sock), daemon=True)
            back.start()
            _pump(guest.sock, onward)
            back.join(5)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
