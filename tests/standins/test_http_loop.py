"""The server loop under the stand-ins, over real sockets."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
import trustme

from hermes_bridges.standins.http_loop import Exchange, HttpLoop
from hermes_bridges.standins.journal import Journal
from tests.conftest import wait

Serve = Callable[..., HttpLoop]


@pytest.fixture
def serve() -> Iterator[Serve]:
    loops: list[HttpLoop] = []

    def start(handle: Callable[[Exchange], None], **more) -> HttpLoop:
        loops.append(HttpLoop("t", handle, **more))
        return loops[-1]

    yield start
    for loop in loops:
        loop.close()
    assert wait(lambda: not own_threads(), 5)


def own_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == "t" or name.startswith("t-")]


def echo(exchange: Exchange) -> None:
    seen = [exchange.method, exchange.path, exchange.query, exchange.headers, exchange.body()]
    exchange.reply(200, repr(seen).encode(), [("X-Own", "1")])


def raw(loop: HttpLoop, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", loop.port), timeout=10)
    sock.sendall(data)
    return sock


def rest_of(sock: socket.socket) -> bytes:
    data = b""
    with sock:
        while piece := sock.recv(65536):
            data += piece
    return data


def test_a_connection_is_kept_and_requests_may_come_in_pieces_or_together(serve) -> None:
    loop = serve(echo)
    one = b"POST /a?b=c&d= HTTP/1.1\r\nX-Odd:  v \r\nx-odd: w\r\nContent-Length: 3\r\n\r\nxyz"
    sock = raw(loop)
    for byte in one:
        sock.sendall(bytes([byte]))
    sock.sendall(one + one.replace(b"X-Odd", b"Connection: close\r\nX-Odd"))
    said = rest_of(sock)
    assert said.count(b"HTTP/1.1 200 OK\r\n") == 3 and said.count(b"X-Own: 1\r\n") == 3
    assert said.count(b"Connection: close\r\n") == 1
    assert b"['POST', '/a', {'b': 'c', 'd': ''}, {'x-odd': 'v', 'content-length': '3'}" in said
    assert said.endswith(b"b'xyz']")


@pytest.mark.parametrize(
    "head",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad name : x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 8190 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(serve, head) -> None:
    assert rest_of(raw(serve(echo), head)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_head_without_an_end_is_not_kept_for_ever(serve) -> None:
    sock = raw(serve(echo))
    with pytest.raises(OSError):
        for _ in range(10_000):
            sock.sendall(b"X: " + b"x" * 1000 + b"\r\n")
    sock.close()


def test_a_body_that_the_handler_left_is_read_away(serve) -> None:
    loop = serve(lambda exchange: exchange.reply(401))
    client = http.client.HTTPConnection("127.0.0.1", loop.port, timeout=10)
    for _ in range(2):
        client.request("POST", "/", b"x" * 100_000)
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (401, b"")
    client.close()


@pytest.mark.parametrize("reset", [False, True])
def test_a_dropped_connection_ends_without_an_answer(serve, reset) -> None:
    loop = serve(lambda exchange: exchange.drop(reset))
    sock = raw(loop, b"GET / HTTP/1.1\r\n\r\n")
    if reset:
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        sock.close()
    else:
        assert rest_of(sock) == b""


def test_no_answer_ends_the_connection(serve) -> None:
    assert rest_of(raw(serve(lambda exchange: None), b"GET / HTTP/1.1\r\n\r\n")) == b""


def test_a_dripping_answer_and_one_that_hangs_end_with_the_server(serve) -> None:
    started = []

    def handle(exchange: Exchange) -> None:
        started.append(exchange.path)
        if exchange.path == "/drip":
            exchange.reply(200, b"x" * 100_000, pause=0.01)
        exchange.until_hung_up()

    loop = serve(handle)
    dripping = raw(loop, b"GET /drip HTTP/1.1\r\n\r\n")
    assert dripping.recv(5) and dripping.recv(5)
    silent = raw(loop, b"GET /hang HTTP/1.1\r\n\r\n")
    assert wait(lambda: "/hang" in started, 10)
    loop.close()
    assert len(rest_of(dripping)) < 10_000 and rest_of(silent) == b""


def test_it_notices_that_the_client_has_gone(serve) -> None:
    seen = []

    def handle(exchange: Exchange) -> None:
        seen.append(exchange.hung_up())
        exchange.until_hung_up()
        seen.append(exchange.hung_up())

    sock = raw(serve(handle), b"GET / HTTP/1.1\r\n\r\n")
    assert wait(lambda: seen == [False], 10)
    sock.close()
    assert wait(lambda: seen == [False, True], 10)


def test_a_client_that_leaves_within_a_body_is_no_error(serve) -> None:
    done = threading.Event()

    def handle(exchange: Exchange) -> None:
        try:
            exchange.body()
        finally:
            done.set()

    raw(serve(handle), b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx").close()
    assert done.wait(10)


def test_the_socket_can_be_taken_over(serve) -> None:
    def handle(exchange: Exchange) -> None:
        exchange.taken = True
        said = exchange.rest
        while not said.endswith(b"late"):
            said += exchange.sock.recv(100)
        exchange.sock.sendall(said)

    sock = raw(serve(handle), b"GET / HTTP/1.1\r\n\r\nearly ")
    sock.sendall(b"late")
    assert rest_of(sock) == b"early late"


def test_paused_it_refuses_and_keeps_what_stands_and_its_port(serve) -> None:
    loop = serve(echo)
    standing = http.client.HTTPConnection("127.0.0.1", loop.port, timeout=10)
    standing.request("GET", "/")
    standing.getresponse().read()
    port = loop.port
    for _ in range(3):
        loop.pause()
        with pytest.raises(ConnectionRefusedError):
            raw(loop)
        standing.request("GET", "/")
        assert standing.getresponse().read()
        loop.resume()
        raw(loop).close()
    assert loop.port == port
    loop.cut()
    with pytest.raises((http.client.HTTPException, OSError)):
        standing.request("GET", "/")
        standing.getresponse()
    standing.close()
    raw(loop).close()
    loop.pause()


def test_idle_connections_can_be_ended_alone(serve) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(exchange: Exchange) -> None:
        started.set()
        release.wait(10)
        exchange.reply(200)

    loop = serve(handle)
    busy = raw(loop, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert started.wait(10)
    idle = raw(loop)
    assert wait(lambda: loop.cut_idle() == 1, 10)
    assert rest_of(idle) == b""
    release.set()
    assert rest_of(busy).startswith(b"HTTP/1.1 200")


def test_tls(serve, tmp_path) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    loop = serve(echo, tls=server)
    stalled = raw(loop, b"not TLS")
    plain = raw(loop)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with client.wrap_socket(raw(loop), server_hostname="localhost") as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
    assert b"HTTP" not in rest_of(stalled)
    loop.close()
    assert rest_of(plain) == b""


def test_a_journal_is_shared_and_can_be_left_out(tmp_path) -> None:
    path = tmp_path / "j"
    one, two = Journal(str(path)), Journal(str(path))
    one.note("a", n=1)
    two.note("b", text="ä\ud800\n")
    one.close()
    one.note("lost")
    Journal(None).note("nowhere")
    two.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["what"], first["n"], second["text"]) == ("a", 1, "ä\ud800\n")
    assert first["t"] <= second["t"]
