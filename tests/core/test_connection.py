import select
import ssl

import pytest

from hermes_bridges.core.connection import Connection, Ended, Patience
from tests.core.ws_peer import TEXT, frame


class Sock:
    """What a TLS socket may say, which no server can be made to bring about at will."""

    def __init__(self) -> None:
        self.received: list = []
        self.sends: list = []
        self.sent = b""

    def recv(self, size: int) -> bytes:
        return self._next(self.received)

    def send(self, data) -> int:
        size = self._next(self.sends) if self.sends else len(data)
        self.sent += bytes(data[:size])
        return size

    def close(self) -> None:
        self.received = [b""]

    def _next(self, script: list):
        one = script.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


@pytest.fixture
def sock() -> Sock:
    return Sock()


@pytest.fixture
def connection(sock) -> Connection:
    return Connection(sock, Patience(15, 15, 15), 0.0)


def test_tls_that_must_write_before_it_can_read(sock, connection):
    sock.received = [ssl.SSLWantWriteError(), frame(TEXT, b"x"), BlockingIOError()]
    assert connection.receive(0) is None
    assert connection.interest(reading=True) == select.POLLOUT
    messages = connection.receive(0)
    assert [m.data for m in messages or []] == [b"x"]
    assert connection.receive(0) is None
    assert connection.interest(reading=True) == select.POLLIN


def test_tls_that_must_read_before_it_can_write(sock, connection):
    sock.sends = [ssl.SSLWantReadError(), 3, ssl.SSLWantWriteError()]
    texts = [b"hello"]
    connection.transmit(lambda: texts.pop() if texts else None, 0)
    # Although nobody wants to read now.
    assert connection.interest(reading=False) == select.POLLIN
    connection.transmit(lambda: None, 0)
    assert connection.interest(reading=False) == select.POLLOUT
    connection.transmit(lambda: None, 0)
    assert connection.interest(reading=False) == 0
    assert len(sock.sent) == 2 + 4 + len(b"hello"), "each byte once"


def test_a_write_that_fails_ends_it(sock, connection):
    sock.sends = [ConnectionResetError(104, "Connection reset by peer")]
    with pytest.raises(Ended, match="Connection reset by peer"):
        connection.transmit(lambda: b"x", 0)


def test_a_close_frame_comes_after_the_frame_that_is_being_written(sock, connection):
    sock.sends = [4, BlockingIOError()]
    texts = [b"hello"]
    connection.transmit(lambda: texts.pop() if texts else None, 0)
    sock.received = [b""]
    connection.close(1001)
    # Two masked frames: 2 + 4 + 5 bytes, and 2 + 4 + 2 bytes.
    assert len(sock.sent) == 11 + 8
    assert (sock.sent[0], sock.sent[11]) == (0x81, 0x88)
