import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trustme

from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.tcp import ProxyRefused, dial, tls_context


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def held(sock: socket.socket) -> None:
    """For dials that nobody ends."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@contextlib.contextmanager
def full_server() -> Iterator[int]:
    """A port whose queue is full: connects to it hang."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        contextlib.ExitStack() as ex,
    ):
        for _ in range(4):
            filler = ex.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield port_of(listener)


@contextlib.contextmanager
def proxy_that(answer: Callable[[bytes, socket.socket], None]) -> Iterator[str]:
    """A proxy for one connection; ``answer`` gets the head of the request."""

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as client:
            client.settimeout(20)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(4096)
            answer(head, client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port_of(listener)}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def test_it_connects_and_sends_without_delay(server) -> None:
    with dial("127.0.0.1", port_of(server), soon(), hold=held) as sock:
        assert sock.getpeername() == server.getsockname()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert 0 < (sock.gettimeout() or 0) <= 10


def test_the_next_address_is_tried() -> None:
    # localhost is ::1 and 127.0.0.1 here, or the latter alone.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with dial("localhost", port_of(listener), soon(), hold=held) as sock:
            assert sock.getpeername()[0] == "127.0.0.1"


def test_every_socket_is_held_before_it_connects(server) -> None:
    seen = []
    with dial("127.0.0.1", port_of(server), soon(), hold=lambda s: seen.append(s.fileno())) as sock:
        assert seen[-1] == sock.fileno()


def test_a_refused_connection_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = port_of(listener)
    with pytest.raises(ConnectionRefusedError):
        dial("127.0.0.1", port, soon(), hold=held)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".invalid", "a..b"])
def test_a_name_that_does_not_resolve_is_told(host: str) -> None:
    with pytest.raises(socket.gaierror):
        dial(host, 1, soon(), hold=held)


def test_a_connect_that_hangs_ends_in_time() -> None:
    with full_server() as port:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            dial("127.0.0.1", port, began + 0.3, hold=held)
        assert 0.3 <= time.monotonic() - began < 5


def test_without_time_nothing_is_dialled(server) -> None:
    with pytest.raises(TimeoutError):
        dial("127.0.0.1", port_of(server), soon(-1), hold=held)


def test_another_thread_ends_a_connect_that_hangs() -> None:
    with full_server() as port, Deadlines.running() as deadlines:
        dups = []

        def hold(sock: socket.socket) -> None:
            dups.append(sock.dup())
            deadlines.watch(dups[-1], time.monotonic() + 0.2)

        began = time.monotonic()
        with pytest.raises(OSError):
            dial("127.0.0.1", port, began + 60, hold=hold)
        assert time.monotonic() - began < 10
        for dup in dups:
            dup.close()


def test_a_proxy_is_asked_for_a_tunnel() -> None:
    heads = []

    def answer(head: bytes, client: socket.socket) -> None:
        heads.append(head)
        client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n")
        client.sendall(b"\r\n")
        client.sendall(client.recv(100).upper())

    with proxy_that(answer) as proxy:
        with dial("hub.example", 443, soon(), proxy=proxy, hold=held) as sock:
            sock.sendall(b"through")
            assert sock.recv(100) == b"THROUGH"
    assert heads == [b"CONNECT hub.example:443 HTTP/1.1\r\nHost: hub.example:443\r\n\r\n"]


def test_an_address_with_colons_is_put_in_brackets() -> None:
    heads = []

    def answer(head: bytes, client: socket.socket) -> None:
        heads.append(head)
        client.sendall(b"HTTP/1.1 200\r\n\r\n")

    with proxy_that(answer) as proxy:
        dial("2001:db8::1", 80, soon(), proxy=proxy, hold=held).close()
    assert heads[0].startswith(b"CONNECT [2001:db8::1]:80 ")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_reached_without_the_proxy(server, host: str) -> None:
    with dial(host, port_of(server), soon(), proxy="http://127.0.0.1:1", hold=held) as sock:
        assert sock.getpeername() == server.getsockname()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Who, SECRET123?\r\nX: SECRET123\r\n\r\nSECRET123", "answered 407"),
        (b"HTTP/1.0 502 \r\n\r\n", "answered 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0", "did not answer in HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "did not answer in HTTP"),
        (b"", "did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "did not answer in HTTP"),
    ],
)
def test_a_proxy_that_refuses_is_told_in_safe_words(answer: bytes, told: str) -> None:
    with proxy_that(lambda head, client: client.sendall(answer)) as proxy:
        with pytest.raises(ProxyRefused, match=told) as caught:
            dial("hub.example", 443, soon(), proxy=proxy, hold=held)
    assert "SECRET123" not in str(caught.value)


def test_a_proxy_that_drips_is_left_in_time() -> None:
    def drip(head: bytes, client: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000:
            client.sendall(bytes([byte]))
            if stop.wait(0.05):
                return

    stop = threading.Event()
    began = time.monotonic()
    with proxy_that(drip) as proxy, pytest.raises(TimeoutError):
        dial("hub.example", 443, began + 0.4, proxy=proxy, hold=held)
    stop.set()
    assert 0.4 <= time.monotonic() - began < 5


def test_a_proxy_that_is_silent_is_left_in_time() -> None:
    stop = threading.Event()
    began = time.monotonic()
    with proxy_that(lambda head, client: client.close() if stop.wait(20) else None) as proxy:
        with pytest.raises(TimeoutError):
            dial("hub.example", 443, began + 0.4, proxy=proxy, hold=held)
        assert 0.4 <= time.monotonic() - began < 5
        stop.set()


def test_the_system_authorities_are_used_and_names_are_checked(monkeypatch, tmp_path) -> None:
    usual = tls_context()
    assert tls_context() is usual
    assert usual.verify_mode is ssl.CERT_REQUIRED and usual.check_hostname
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert len(tls_context().get_ca_certs()) == 1
