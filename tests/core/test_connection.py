import math
import select
import ssl

import pytest

from hermes_bridges.core.connection import Connection, Ended, Patience
from tests.core.ws_peer import PING, PONG, TEXT, frame


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


# --- what a guest of somebody else's process asks for

STRICT = Patience(15, 20, 20, 20)


@pytest.fixture
def strict(sock) -> Connection:
    made = Connection(sock, STRICT, 0.0, proof=True)
    made.confirmed = True
    return made


def opened(data: bytes) -> list[tuple[int, bytes]]:
    """The short frames that a client has written."""
    found = []
    while data:
        size = data[1] & 0x7F
        mask, payload = data[2:6], data[6 : 6 + size]
        found.append((data[0] & 0xF, bytes(b ^ mask[i % 4] for i, b in enumerate(payload))))
        data = data[6 + size :]
    return found


def test_with_proof_only_the_pong_of_a_ping_of_ours_is_a_sign_of_life(sock, strict):
    assert strict.check(0) == 20
    assert strict.check(20) == 40
    strict.transmit(lambda: None, 20)
    assert opened(sock.sent) == [(PING, b"1")]
    for number, data in enumerate((frame(TEXT, b"x"), frame(PONG), frame(PONG, b"2"))):
        sock.received = [data]
        strict.receive(21 + number)
        assert strict.check(24) == 40
    sock.received = [frame(PONG, b"1")]
    strict.receive(25)
    assert (strict.answered, strict.check(25)) == (1, 45)
    strict.check(45)
    with pytest.raises(Ended, match="no sign of life"):
        strict.check(65)


def test_without_proof_a_ping_is_as_empty_as_ever(sock, connection):
    connection.confirmed = True
    connection.check(15)
    connection.transmit(lambda: None, 15)
    assert opened(sock.sent) == [(PING, b"")]


def test_a_probe_goes_right_behind_its_text(sock, strict):
    texts, numbers = [b"c", b"b", b"a"], []

    def give() -> bytes | None:
        if not texts:
            return None
        if len(texts) != 2:
            numbers.append(strict.probe())
        return texts.pop()

    strict.transmit(give, 5)
    assert opened(sock.sent) == [
        (TEXT, b"a"),
        (PING, b"1"),
        (TEXT, b"b"),
        (TEXT, b"c"),
        (PING, b"2"),
    ]
    assert (numbers, strict.texts) == ([1, 2], 3)
    assert strict.check(6) == 25, "20 s from the first of them"
    sock.received = [frame(PONG, b"1")]
    strict.receive(10)
    assert strict.check(10) == 30, "the second one has time from then on"
    sock.received = [frame(PONG, b"2")]
    strict.receive(12)
    assert (strict.answered, strict.check(12)) == (2, 32)


def test_a_frame_that_goes_on_holds_up_the_pong(sock, strict):
    strict.check(20)
    sock.received = [frame(TEXT, b"hello")[:-1]]
    strict.receive(35)
    assert strict.check(35) == 55
    sock.received = [b"o"]
    strict.receive(40)
    assert strict.check(40) == 55, "which may come now"


def test_a_text_counts_once_its_last_byte_is_taken(sock, strict):
    sock.sends = [3, BlockingIOError()]
    texts = [b"hello"]
    strict.transmit(lambda: texts.pop() if texts else None, 1)
    assert strict.texts == 0
    assert strict.check_writing(1) == 21
    strict.transmit(lambda: None, 2)
    assert strict.texts == 1
    assert strict.check_writing(1_000) == math.inf


def test_a_frame_must_be_written_in_time_however_it_drips(sock, strict):
    sock.sends = [3, BlockingIOError(), 1, BlockingIOError(), 1, BlockingIOError()]
    texts = [b"hello"]
    for now in (1, 10, 19):
        strict.transmit(lambda: texts.pop() if texts else None, now)
        assert strict.check(now) <= 21
    with pytest.raises(Ended, match="has not read for 20 s") as caught:
        strict.check(21)
    assert caught.value.answer is None, "no close frame in the middle of another one"
