import contextlib
import json
import logging
import os
import re
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
import trustme

from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.httpclient import CallFailed, Clients, HttpClient
from tests.conftest import wait

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SECRET = "SECRET123"
LONG = 20.0  # seconds; more than any call here takes


class Peer:
    """A server on loopback. ``play(peer, connection)`` serves each connection in its thread."""

    def __init__(self, play: "Callable[[Peer, Line], object]", tls: ssl.SSLContext | None = None):
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.accepted = 0
        self.over = threading.Event()
        self._play, self._tls = play, tls
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.port = self._listener.getsockname()[1]
        self.place = f"127.0.0.1:{self.port}"
        self.url = (
            f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{self.port}"
        )

    def __enter__(self) -> "Peer":
        return self

    def lines(self) -> int:
        """How many connections are open."""
        return sum(thread.is_alive() for thread in self._threads[1:])

    def __exit__(self, *details: object) -> None:
        self.over.set()
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LONG)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self._listener.accept()[0]
                self.accepted += 1
                self._socks.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            sock.settimeout(LONG)
            if self._tls:
                self._socks.append(sock.dup())
                stack.enter_context(self._socks[-1])
                sock = stack.enter_context(self._tls.wrap_socket(sock, server_side=True))
            self._play(self, Line(self, sock))


class Line:
    """One connection at the peer."""

    def __init__(self, peer: Peer, sock: socket.socket):
        self.peer, self.sock = peer, sock
        self.number = peer.accepted
        self._buffer = b""

    def request(self) -> bytes:
        """Reads a request and notes it; its body, b"" when there is no request."""
        while b"\r\n\r\n" not in self._buffer:
            if not (data := self.sock.recv(65536)):
                return b""
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        size = int(found[1]) if found else 0
        while len(self._buffer) < size:
            self._buffer += self.sock.recv(65536)
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        self.peer.bodies.append(body)
        self.peer.heads.append(head.decode())
        return body or b"(none)"

    def drip(self, data: bytes, pause: float = 0.02) -> None:
        for byte in data:
            if self.peer.over.wait(pause):
                return
            self.sock.sendall(bytes([byte]))

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def always(answer: bytes) -> Callable[[Peer, Line], object]:
    def play(peer: Peer, line: Line) -> None:
        while line.request():
            line.sock.sendall(answer)

    return play


def then_close(answer: bytes) -> Callable[[Peer, Line], object]:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(answer)

    return play


def silent(peer: Peer, line: Line) -> None:
    line.request()
    peer.over.wait(LONG)


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    with Deadlines.running() as deadlines:
        yield deadlines


@pytest.fixture
def client(deadlines) -> Iterator[HttpClient]:
    client = HttpClient(deadlines, body_limit=10_000)
    yield client
    client.close()


@pytest.fixture
def authority(monkeypatch, tmp_path) -> trustme.CA:
    """One that the system trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return authority


def served_by(authority: trustme.CA, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def failing(client: HttpClient, url: str, limit: float = LONG, body: bytes = b"{}") -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        client.post(url, body, {"Authorization": "Bearer " + SECRET}, limit)
    return caught.value


def facts(failure: CallFailed) -> tuple[str, bool, bool]:
    return failure.kind, failure.reused, failure.answered


@contextlib.contextmanager
def taking(at_least: float, at_most: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert at_least <= time.monotonic() - began < at_most


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# --- what comes back


def test_a_post_and_its_answer(client) -> None:
    answer = (
        b"HTTP/1.1 201 Made\r\nContent-Type: a/b\r\nX-Note: \xe9\r\nContent-Length: 3\r\n\r\nyes"
    )
    with Peer(always(answer)) as peer:
        reply = client.post(f"{peer.url}/a/b?c=d", b"\x00\xff", {"X-One": "1"}, LONG)
        assert (reply.status, reply.body, reply.reused) == (201, b"yes", False)
        assert reply.headers["content-TYPE"] == "a/b" and reply.headers["x-note"] == "é"
        assert reply.headers.get("Retry-After") is None
        lines = peer.heads[0].split("\r\n")
        assert lines[0] == "POST /a/b?c=d HTTP/1.1"
        assert {"X-One: 1", "Content-Length: 2", f"Host: {peer.place}"} <= set(lines)
        assert len([line for line in lines if line.startswith("User-Agent: hermes-bridges/")]) == 1
        assert peer.bodies == [b"\x00\xff"]


def test_a_get(client) -> None:
    with Peer(always(OK)) as peer:
        assert client.get(peer.url, {"Authorization": "Bearer x"}, LONG).body == b"ok"
        lines = peer.heads[0].split("\r\n")
        assert lines[0] == "GET / HTTP/1.1" and "Authorization: Bearer x" in lines
        assert "content-length" not in peer.heads[0].lower()


def test_an_empty_body_is_sent_as_such(client) -> None:
    with Peer(always(OK)) as peer:
        client.post(peer.url, b"", {}, LONG)
        assert "Content-Length: 0" in peer.heads[0]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno", b"no"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)  # fmt: skip
def test_forms_of_answers_that_leave_the_connection_usable(client, answer, body) -> None:
    with Peer(always(answer)) as peer:
        for turn in range(3):
            reply = client.post(peer.url, b"{}", {}, LONG)
            assert (reply.body, reply.reused) == (body, turn > 0)
        assert peer.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nto the end",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\nto the end",
        b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nto the end",
    ],
)
def test_answers_that_end_the_connection(client, answer) -> None:
    with Peer(then_close(answer)) as peer:
        for _ in range(3):
            reply = client.post(peer.url, b"{}", {}, LONG)
            assert (reply.body, reply.reused) == (b"to the end", False)
        assert peer.accepted == 3


def test_a_closed_connection_is_closed_for_the_peer_too(client) -> None:
    ended = threading.Event()

    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        if not line.request():
            ended.set()

    with Peer(play) as peer:
        client.post(peer.url, b"{}", {}, LONG)
        assert ended.wait(LONG)


def test_an_idle_connection_that_has_ended_is_replaced_beforehand(client) -> None:
    ended = threading.Event()

    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(OK)
        line.sock.shutdown(socket.SHUT_RDWR)
        ended.set()

    with Peer(play) as peer:
        for _ in range(3):
            assert not client.post(peer.url, b"{}", {}, LONG).reused
            assert ended.wait(LONG)
            ended.clear()


def test_two_peers_take_turns_on_the_one_connection(client) -> None:
    with Peer(always(OK)) as one, Peer(always(OK)) as other:
        for _ in range(2):
            assert not client.post(one.url, b"{}", {}, LONG).reused
            assert not client.post(other.url, b"{}", {}, LONG).reused
        assert client.post(other.url, b"{}", {}, LONG).reused


def test_no_descriptor_is_left_open(deadlines) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    client = HttpClient(deadlines, body_limit=10)
    with Peer(always(OK)) as peer:
        for _ in range(3):
            client.post(peer.url, b"{}", {}, LONG)
        client.close()
        client.post(peer.url, b"{}", {}, LONG)
        client.close()
    with Peer(always(OK.replace(b": 2", b": 99") + b"x" * 97)) as peer:
        assert failing(client, peer.url).kind == "too_large"
    failing(client, f"http://127.0.0.1:{closed_port()}")
    assert wait(lambda: count() <= before, 5)


# --- time


@pytest.mark.parametrize(
    "play",
    [
        silent,
        lambda peer, line: (line.request(), line.drip(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 99)),
        lambda peer, line: (line.request(), line.drip(OK.replace(b": 2", b": 999") + b"x" * 99)),
        lambda peer, line: (line.request(), line.drip(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 99)),
        lambda peer, line: (
            line.request(),
            line.drip(CHUNKED + b"1\r\nx\r\n" * 99),
        ),
        lambda peer, line: (line.request(), line.drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 99)),
    ],
    ids=["silence", "headers", "body", "endless", "chunks", "continue"],
)
@pytest.mark.parametrize("tls", [False, True])
def test_a_call_is_over_in_time_however_the_peer_drips(client, authority, play, tls) -> None:
    with Peer(play, served_by(authority) if tls else None) as peer, taking(0.5, 5):
        failure = failing(client, peer.url, 0.5)
    assert facts(failure) == ("timeout", False, play is not silent)
    assert "no whole answer within 0.5 s" in str(failure)


def test_a_kept_alive_connection_is_watched_too(client) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(OK)
        line.request()
        line.drip(OK, 0.1)

    with Peer(play) as peer:
        client.post(peer.url, b"{}", {}, LONG)
        with taking(0.5, 2.5):
            assert facts(failing(client, peer.url, 0.5)) == ("timeout", True, True)
        # The late rest of that answer is not taken for the next one.
        assert client.post(peer.url, b"{}", {}, LONG) == (
            200,
            {"Content-Length": "2"},
            b"ok",
            False,
        )


def test_the_time_of_one_call_does_not_end_the_next(client) -> None:
    with Peer(always(OK)) as peer:
        client.post(peer.url, b"{}", {}, 0.3)
        time.sleep(0.5)
        assert client.post(peer.url, b"{}", {}, LONG).reused


def test_a_peer_that_does_not_read_is_left_in_time(client) -> None:
    with Peer(lambda peer, line: peer.over.wait(LONG)) as peer, taking(0.5, 5):
        failure = failing(client, peer.url, 0.5, b"x" * 30_000_000)
    assert facts(failure) == ("timeout", False, False)


def test_a_tls_handshake_that_drips_is_no_connection(deadlines) -> None:
    client = HttpClient(deadlines, connect_limit=0.4)
    hello = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
    with Peer(lambda peer, line: line.drip(hello + bytes(16_000))) as peer, taking(0.4, 5):
        failure = failing(client, peer.url.replace("http:", "https:"))
    assert facts(failure) == ("connect", False, False)


def test_the_limit_for_the_connect_does_not_shorten_the_call(deadlines) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.drip(OK, 0.02)

    client = HttpClient(deadlines, connect_limit=0.2)
    with Peer(play) as peer:
        assert client.post(peer.url, b"{}", {}, LONG).body == b"ok"
    client.close()


def test_without_time_nothing_is_sent(client) -> None:
    with Peer(always(OK)) as peer:
        for limit in (0.0, -1.0):
            assert facts(failing(client, peer.url, limit)) == ("connect", False, False)
        assert client.post(peer.url, b"{}", {}, LONG).status == 200
        assert peer.accepted == 1


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\nnot all"])
def test_the_end_of_everything_ends_a_call_at_once(deadlines, client, answer) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(answer)
        threading.Timer(0.1, deadlines.shut_all).start()
        peer.over.wait(LONG)

    with Peer(play) as peer, taking(0, 5):
        assert failing(client, peer.url).kind == "broken"
        assert failing(client, peer.url).kind in ("connect", "broken")


# --- broken connections


def test_a_refused_connection(client) -> None:
    port = closed_port()
    failure = failing(client, f"http://127.0.0.1:{port}/x")
    assert facts(failure) == ("connect", False, False)
    assert str(failure) == f"127.0.0.1:{port}: no connection (Connection refused)"


def test_a_name_that_does_not_resolve(client) -> None:
    failure = failing(client, "https://no-such-host.invalid/x")
    assert facts(failure) == ("connect", False, False)
    assert str(failure).startswith("no-such-host.invalid: no connection (")


def test_a_connection_that_hangs(deadlines) -> None:
    client = HttpClient(deadlines, connect_limit=0.3)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        contextlib.ExitStack() as ex,
    ):
        for _ in range(4):
            filler = ex.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        with taking(0.3, 5):
            failure = failing(client, f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert facts(failure) == ("connect", False, False)


def test_an_end_before_any_byte_of_the_answer(client) -> None:
    with Peer(lambda peer, line: line.request()) as peer:
        failure = failing(client, peer.url)
        assert facts(failure) == ("broken", False, False)
        assert str(failure) == f"{peer.place}: the connection broke (RemoteDisconnected)"


def test_a_reset_after_the_request(client) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.reset()

    with Peer(play) as peer:
        failure = failing(client, peer.url)
        assert facts(failure) == ("broken", False, False)
        assert "Connection reset by peer" in str(failure)


def test_a_reset_while_the_request_is_sent(client) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.sock.recv(10)
        line.reset()

    with Peer(play) as peer:
        assert facts(failing(client, peer.url, body=b"x" * 9_000_000)) == ("broken", False, False)


@pytest.mark.parametrize(
    "answer",
    [
        b"H",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        CHUNKED + b"9\r\nshort",
        CHUNKED + b"2\r\nab\r\n",
        CHUNKED + b"zz\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_that_breaks_off(client, answer, reset) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(answer)
        if reset:
            peer.over.wait(0.1)
            line.reset()

    with Peer(play) as peer:
        assert facts(failing(client, peer.url)) == ("broken", False, True)


def test_conflicting_lengths_do_no_harm(client) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n12345"
    with Peer(then_close(answer)) as peer:
        assert failing(client, peer.url).kind == "broken"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_an_idle_connection_that_ends_when_it_is_used(client, authority, tls, reset) -> None:
    """As at a peer whose keep-alive time is over in just that moment."""

    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(OK)
        line.sock.recv(1)
        if reset:
            line.reset()
        elif tls:
            with contextlib.suppress(OSError):
                line.sock.unwrap()  # type: ignore[attr-defined]

    with Peer(play, served_by(authority) if tls else None) as peer:
        client.post(peer.url, b"{}", {}, LONG)
        assert facts(failing(client, peer.url)) == ("broken", True, False)
        assert not client.post(peer.url, b"{}", {}, LONG).reused


def test_a_reused_connection_that_breaks_in_the_answer_has_answered(client) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(OK)
        line.request()
        line.sock.sendall(b"HTTP/1.1 ")

    with Peer(play) as peer:
        client.post(peer.url, b"{}", {}, LONG)
        assert facts(failing(client, peer.url)) == ("broken", True, True)


def test_nothing_is_tried_twice(client) -> None:
    for answer in (b"", b"HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"):
        with Peer(then_close(answer)) as peer:
            with contextlib.suppress(CallFailed):
                client.post(peer.url, b"{}", {}, LONG)
            assert len(peer.heads) == 1 and peer.accepted == 1


# --- size


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 10001",
        b"Content-Length: 99999999999999",
        b"Transfer-Encoding: chunked",
        b"X: y",
        b"Content-Length: 5, 5",
    ],
)
def test_an_answer_that_is_too_large_is_not_read_to_its_end(client, head) -> None:
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n" if b"chunked" in head else b"x" * 4096

    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        while not peer.over.is_set():
            line.sock.sendall(chunk)

    with Peer(play) as peer:
        failure = failing(client, peer.url)
        assert facts(failure) == ("too_large", False, True)
        assert "over 10000 bytes" in str(failure)


@pytest.mark.parametrize("chunked", [False, True])
def test_an_answer_of_just_the_limit_is_taken(client, chunked) -> None:
    body = b"x" * 10_000
    if chunked:
        answer = b"Transfer-Encoding: chunked\r\n\r\n2710\r\n" + body + b"\r\n0\r\n\r\n"
    else:
        answer = b"Content-Length: 10000\r\n\r\n" + body
    with Peer(always(b"HTTP/1.1 200 OK\r\n" + answer)) as peer:
        for turn in range(2):
            reply = client.post(peer.url, b"{}", {}, LONG)
            assert (reply.body, reply.reused) == (body, turn > 0)


# --- redirects, environment, proxy


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(client, status) -> None:
    with Peer(always(OK)) as elsewhere:
        answer = (
            f"HTTP/1.1 {status} There\r\nLocation: {elsewhere.url}/\r\nContent-Length: 2\r\n\r\nno"
        )
        with Peer(always(answer.encode())) as peer:
            reply = client.post(peer.url, b"{}", {"Authorization": "Bearer " + SECRET}, LONG)
            assert (reply.status, reply.body) == (status, b"no")
            assert client.get(peer.url, {"Authorization": "Bearer " + SECRET}, LONG).reused
        assert elsewhere.accepted == 0


@pytest.mark.parametrize("location", ["http://[", "\xff\xfe", "", "http://x:99999999/", "//"])
def test_a_redirect_to_nonsense_is_an_answer(client, location) -> None:
    answer = f"HTTP/1.1 302 There\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    with Peer(always(answer.encode("latin-1"))) as peer:
        assert client.post(peer.url, b"{}", {}, LONG).status == 302


def test_a_redirect_with_an_endless_body_is_too_large(client) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(b"HTTP/1.1 302 There\r\nLocation: /\r\n\r\n")
        while not peer.over.is_set():
            line.sock.sendall(b"x" * 4096)

    with Peer(play) as peer:
        assert failing(client, peer.url).kind == "too_large"


def test_cookies_are_not_kept(client) -> None:
    with Peer(always(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b; Path=/\r\n\r\n"))) as peer:
        client.post(peer.url, b"{}", {}, LONG)
        client.post(peer.url, b"{}", {}, LONG)
        assert "cookie" not in peer.heads[1].lower()


def test_the_environment_and_netrc_are_not_used(client, monkeypatch, short_tmp) -> None:
    (short_tmp / ".netrc").write_text("default login me password x\n")
    monkeypatch.setenv("HOME", str(short_tmp))
    monkeypatch.setenv("NETRC", str(short_tmp / ".netrc"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/dev/null")
    with Peer(always(OK)) as proxy, Peer(always(OK)) as peer:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        client.post(peer.url, b"{}", {}, LONG)
        assert "authorization" not in peer.heads[0].lower()
        failing(client, "http://no-such-host.invalid/")
        assert proxy.accepted == 0


def test_a_proxy_is_used_for_all_but_loopback(deadlines) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        always(OK)(peer, line)

    with Peer(play) as proxy, Peer(always(OK)) as peer:
        client = HttpClient(deadlines, proxy=proxy.url)
        for _ in range(2):
            url = "http://hub.example:81/x"
            assert (
                client.post(url, b"{}", {"Authorization": "Bearer " + SECRET}, LONG).status == 200
            )
        assert proxy.accepted == 1
        assert [head.split("\r\n")[0] for head in proxy.heads] == [
            "CONNECT hub.example:81 HTTP/1.1",
            "POST /x HTTP/1.1",
            "POST /x HTTP/1.1",
        ]
        assert SECRET not in proxy.heads[0] and "Host: hub.example:81" in proxy.heads[1]
        for host in ("127.0.0.1", "localhost"):
            assert client.post(f"http://{host}:{peer.port}/", b"{}", {}, LONG).status == 200
        assert len(proxy.heads) == 3
        client.close()


def test_tls_goes_through_the_proxy_and_names_the_hub(deadlines, authority) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        line.sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with served_by(authority, "hub.example").wrap_socket(line.sock, server_side=True) as tls:
            always(OK)(peer, Line(peer, tls))

    with Peer(play) as proxy:
        client = HttpClient(deadlines, proxy=proxy.url)
        assert client.post("https://hub.example/x", b"{}", {}, LONG).body == b"ok"
        assert client.post("https://hub.example/x", b"{}", {}, LONG).reused
        failure = failing(client, "https://other.example/x")
        assert failure.kind == "connect" and "certificate refused" in str(failure)
        client.close()


def test_a_proxy_that_refuses_is_no_connection(deadlines) -> None:
    with Peer(then_close(b"HTTP/1.1 407 SECRET123\r\n\r\n")) as proxy:
        failure = failing(HttpClient(deadlines, proxy=proxy.url), "http://hub.example/")
        assert facts(failure) == ("connect", False, False)
        assert str(failure) == "hub.example: no connection (the proxy answered 407)"


@pytest.mark.parametrize("reset", [False, True])
def test_a_proxy_that_hangs_up_is_no_connection(deadlines, reset) -> None:
    def play(peer: Peer, line: Line) -> None:
        line.request()
        if reset:
            line.reset()

    with Peer(play) as proxy:
        failure = failing(HttpClient(deadlines, proxy=proxy.url), "http://hub.example/")
        assert facts(failure) == ("connect", False, False)


# --- TLS


def test_tls_with_a_trusted_certificate(client, authority) -> None:
    with Peer(always(OK), served_by(authority)) as peer:
        assert client.post(peer.url, b"{}", {}, LONG).body == b"ok"
        assert client.post(peer.url, b"{}", {}, LONG).reused


def test_tls_to_an_address(client, authority) -> None:
    with Peer(always(OK), served_by(authority, "127.0.0.1")) as peer:
        url = f"https://127.0.0.1:{peer.port}"
        assert client.post(url, b"{}", {}, LONG).body == b"ok"
    with Peer(always(OK), served_by(authority)) as peer:
        failure = failing(client, f"https://127.0.0.1:{peer.port}")
        assert failure.kind == "connect" and "certificate refused: " in str(failure)


def test_an_untrusted_certificate_is_refused(client, authority) -> None:
    with Peer(always(OK), served_by(trustme.CA())) as peer:
        failure = failing(client, peer.url)
        assert facts(failure) == ("connect", False, False)
        assert "certificate refused: " in str(failure)
        assert not peer.heads


def test_a_certificate_for_another_name_is_refused(client, authority) -> None:
    with Peer(always(OK), served_by(authority, "other.example")) as peer:
        failure = failing(client, peer.url)
        assert failure.kind == "connect" and "certificate refused: " in str(failure)
        assert not peer.heads


def test_a_peer_that_does_not_speak_tls(client, authority) -> None:
    with Peer(lambda peer, line: line.sock.sendall(b"HTTP/1.1 400 What\r\n\r\n")) as peer:
        assert failing(client, peer.url.replace("http:", "https:")).kind == "connect"


# --- secrets


def test_KH22_no_text_holds_what_was_sent_or_received(client, authority, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    word = SECRET.encode()
    plays = [
        then_close(b""),
        then_close(word),
        then_close(b"HTTP/1.1 200 " + word + b"\r\n" + word + b"\r\nX: y\r\n\r\n" + word),
        then_close(b"HTTP/1.1 200 OK\r\nbad " + word + b" header\r\nContent-Length: 2\r\n\r\nok"),
        then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\nX: " + word + b"\r\n\r\n" + word),
        then_close(b"HTTP/1.1 302 X\r\nLocation: /" + word + b"\r\nContent-Length: 0\r\n\r\n"),
        always(b"HTTP/1.1 401 No\r\nContent-Length: 9\r\n\r\n" + word),
        lambda peer, line: line.reset(),
        silent,
    ]
    failures = []
    for play in plays:
        for tls in (False, True):
            with Peer(play, served_by(authority) if tls else None) as peer:
                try:
                    client.post(
                        f"{peer.url}/{SECRET}?token={SECRET}#{SECRET}",
                        word,
                        {"Authorization": "Bearer " + SECRET},
                        0.3,
                    )
                except CallFailed as failure:
                    failures.append(failure)
    for url in (f"http://127.0.0.1:{closed_port()}", "https://no-such-host.invalid"):
        failures.append(failing(client, f"{url}/{SECRET}?token={SECRET}"))
    told = "".join("".join(traceback.format_exception(failure)) for failure in failures)
    assert len(failures) == 12
    assert SECRET not in told
    assert SECRET not in caplog.text
    # Whoever looks behind the exception finds nothing either.
    assert not any(failure.__context__ or failure.__cause__ for failure in failures)


def test_what_the_caller_was_handling_is_not_taken_for_the_cause(client) -> None:
    try:
        raise OSError(5, "not of this call")
    except OSError:
        assert "Connection refused" in str(failing(client, f"http://127.0.0.1:{closed_port()}"))


# --- clients that are lent


def test_the_client_used_last_is_lent_first(deadlines) -> None:
    clients = Clients(lambda: HttpClient(deadlines), 2)
    with clients.borrow() as one, clients.borrow() as two:
        assert one is not two
    with clients.borrow() as again:
        assert again is one
    with clients.borrow() as again, clients.borrow() as other:
        assert (again, other) == (one, two)
    clients.close()


def test_no_more_than_the_limit_are_kept_and_the_rest_is_closed(deadlines) -> None:
    made = []

    def make() -> HttpClient:
        made.append(HttpClient(deadlines))
        return made[-1]

    with Peer(always(OK)) as peer:
        clients = Clients(make, 2)
        with contextlib.ExitStack() as stack:
            for client in [stack.enter_context(clients.borrow()) for _ in range(5)]:
                client.post(peer.url, b"{}", {}, LONG)
            assert peer.lines() == 5
        assert wait(lambda: peer.lines() == 2, 5)
        with clients.borrow(), clients.borrow(), clients.borrow():
            assert len(made) == 6
        clients.close()
        assert wait(lambda: peer.lines() == 0, 5)


def test_a_client_whose_call_failed_is_not_lent_again(deadlines) -> None:
    clients = Clients(lambda: HttpClient(deadlines), 2)
    with pytest.raises(CallFailed), clients.borrow() as bad:
        bad.get(f"http://127.0.0.1:{closed_port()}", {}, LONG)
    with clients.borrow() as other:
        assert other is not bad
    clients.close()


def test_what_comes_back_after_the_end_is_closed(deadlines) -> None:
    clients = Clients(lambda: HttpClient(deadlines), 2)
    with Peer(always(OK)) as peer:
        with clients.borrow() as client:
            client.post(peer.url, b"{}", {}, LONG)
            clients.close()
        with clients.borrow() as other:
            assert other is not client
        assert not client.post(peer.url, b"{}", {}, LONG).reused
        client.close()


def test_many_threads_share_clients(deadlines) -> None:
    def echo(peer: Peer, line: Line) -> None:
        while body := line.request():
            line.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def work(number: int) -> None:
        for turn in range(20):
            body = json.dumps([number, turn]).encode()
            with clients.borrow() as client:
                right.append(client.post(peer.url, body, {}, LONG).body == body)

    right: list[bool] = []
    clients = Clients(lambda: HttpClient(deadlines), 8)
    with Peer(echo) as peer:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert right == [True] * 160 and peer.accepted <= 8
        clients.close()
