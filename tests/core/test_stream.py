import itertools
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trustme

from hermes_bridges.core.dial import Target
from hermes_bridges.core.frames import Oversized
from hermes_bridges.core.stream import Lost, Opened, Refused, Stream
from tests.conftest import wait
from tests.core.ws_peer import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Guest,
    Proxy,
    frame,
    peer,
)

TOKEN = "donutbot_Zw3bLq7TxV9s"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A stream, turned by hand, and all that it has said."""

    def __init__(self, url: str, **options) -> None:
        self.target = Target(url, [("Authorization", f"Bearer {TOKEN}")])
        self.asked = 0
        self.states: list = []
        self.messages: list[bytes] = []
        self.full = False
        self.clock = options.get("clock", time.monotonic)
        self.stream = Stream(self._give_target, self._take, self.states.append, **options)

    def _give_target(self) -> Target:
        self.asked += 1
        return self.target

    def _take(self, message: bytes) -> bool:
        if self.full:
            return False
        self.messages.append(message)
        return True

    def turn(self) -> float | None:
        return self.stream.step(self.clock())

    def until(self, predicate: Callable[[], object], seconds: float = 5) -> object:
        """Turn until it is true. The waits are real and short, whatever the clock is."""
        end = time.monotonic() + seconds
        while not (found := predicate()):
            assert time.monotonic() < end, (self.states, len(self.messages))
            self.turn()
            self.stream.wait(0.01)
        return found

    def until_state(self, kind, count: int = 1, seconds: float = 5):
        """Turn until that many states of the kind have been told; the last of them."""
        self.until(lambda: len(self.of(kind)) >= count, seconds)
        return self.of(kind)[-1]

    def until_length(self, things: list, count: int) -> None:
        self.until(lambda: len(things) >= count)

    def open(self) -> None:
        self.until_state(Opened)
        self.stream.confirm()

    def of(self, kind) -> list:
        return [state for state in self.states if isinstance(state, kind)]


@contextmanager
def rig(url: str, **options) -> Iterator[Rig]:
    made = Rig(url, **options)
    try:
        yield made
    finally:
        made.stream.close()


@contextmanager
def running(made: Rig) -> Iterator[Callable[[], float]]:
    """The stream on a thread of its own, as the service runs it.

    Gives a function that stops it and tells how many seconds that took.
    """
    ended = threading.Event()

    def run() -> None:
        while True:
            last = ended.is_set()
            due = made.stream.step(time.monotonic())
            if last:
                return
            if not ended.is_set():
                made.stream.wait(None if due is None else due - time.monotonic())

    def stop() -> float:
        start = time.monotonic()
        ended.set()
        made.stream.stop()
        thread.join(5)
        assert not thread.is_alive()
        return time.monotonic() - start

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority, monkeypatch, short_tmp) -> ssl.SSLContext:
    """A server's context; the authority is in the system's store for this test."""
    authority.cert_pem.write_to_path(str(short_tmp / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(short_tmp / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "hub.example").configure_cert(context)
    return context


@pytest.fixture(params=["plain", "TLS"])
def maybe_tls(request) -> ssl.SSLContext | None:
    return None if request.param == "plain" else request.getfixturevalue("tls")


def everywhere(host: str, port: int, **options):
    """A name service in which every name is this host."""
    return socket.getaddrinfo("127.0.0.1", port, **options)


def idle(guest: Guest) -> None:
    """Accept, and answer pings until the end."""
    guest.accept()
    for opcode, data in iter(guest.hear, None):
        if opcode == PING:
            guest.send(PONG, data)


def echo(guest: Guest) -> None:
    guest.accept()
    for opcode, data in iter(guest.hear, None):
        if opcode == TEXT:
            guest.send(TEXT, data)


# --- the connection itself


def test_messages_go_both_ways(maybe_tls):
    with peer(echo, tls=maybe_tls) as hub, rig(f"{hub.url}?last_event_id=a%20b") as it:
        it.open()
        assert it.stream.connected
        for text in ("eins", "zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf", "x" * 200_000):
            assert it.stream.offer(text)
        it.until(lambda: len(it.messages) == 3)
        assert [m.decode() for m in it.messages] == [
            "eins",
            "zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf",
            "x" * 200_000,
        ]
        (guest,) = hub.guests
        assert guest.path == "/stream?last_event_id=a%20b"
        assert guest.header("Authorization") == f"Bearer {TOKEN}"
        assert guest.header("Host") == hub.url.split("/")[2]
        assert guest.header("Sec-WebSocket-Extensions") is None
        assert guest.header("Origin") is None


def test_the_scheme_may_be_in_capitals():
    with peer(idle) as hub, rig(hub.url.replace("ws:", "WS:")) as it:
        it.open()


def test_a_certificate_of_an_unknown_authority_ends_the_dial(tls, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with peer(idle, tls=tls) as hub, rig(hub.url) as it:
        refused = it.until_state(Refused)
        assert refused.reason.startswith("TLS: ")
        assert (refused.status, refused.auth) == (None, False)
        assert not hub.guests


def test_a_certificate_for_another_name_ends_the_dial(tls):
    with peer(idle, tls=tls) as hub, rig(hub.url.replace("localhost", "127.0.0.1")) as it:
        assert it.until_state(Refused).reason.startswith("TLS: ")
        assert not hub.guests


def test_frames_split_byte_by_byte(maybe_tls):
    data = (
        frame(TEXT, b'{"a":', final=False)
        + frame(PING, b"still there?")
        + frame(CONTINUATION, b"1}")
        + frame(BINARY, b"\xff\x00")
    )
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        for i in range(len(data)):
            guest.sock.sendall(data[i : i + 1])
        heard.append(guest.hear())
        guest.hear()

    with peer(script, tls=maybe_tls) as hub, rig(hub.url) as it:
        it.until(lambda: heard)
        it.until(lambda: len(it.messages) == 2)
        assert it.messages == [b'{"a":1}', b"\xff\x00"]
        assert heard == [(PONG, b"still there?")]


def test_a_close_is_answered_and_told():
    heard = []

    def script(guest: Guest) -> None:
        guest.accept().say("last words")
        guest.close(1012)
        heard.extend(guest.hear_all())

    with peer(script) as hub, rig(hub.url) as it:
        lost = it.until_state(Lost)
        assert (lost.code, it.messages) == (1012, [b"last words"])
        assert not it.stream.connected
        assert wait(lambda: heard, 5) == [(CLOSE, (1012).to_bytes(2, "big"))]


def test_a_peer_that_hangs_up():
    with peer(lambda guest: guest.accept().say("x")) as hub, rig(hub.url) as it:
        lost = it.until_state(Lost)
        assert (lost.code, lost.reason) == (None, "the peer hung up")
        assert it.messages == [b"x"]


def test_a_message_over_1_MiB_is_read_away():
    def script(guest: Guest) -> None:
        guest.accept().send(TEXT, b"x" * (1024 * 1024 + 1))
        guest.send(TEXT, b"y" * (1024 * 1024))
        guest.say("after it")
        guest.hear()

    with peer(script) as hub, rig(hub.url) as it:
        it.until(lambda: len(it.messages) == 2)
        assert it.messages == [b"y" * (1024 * 1024), b"after it"]
        assert it.states == [Opened(), Oversized(1024 * 1024 + 1)]


def test_a_message_over_16_MiB_is_refused():
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        guest.sock.sendall(frame(TEXT, b"x" * (16 * 1024 * 1024 + 1))[:1_000])
        heard.extend(guest.hear_all())

    with peer(script) as hub, rig(hub.url) as it:
        it.until_state(Lost)
        assert not it.messages
        assert wait(lambda: heard, 5) == [(CLOSE, (1009).to_bytes(2, "big"))]


@pytest.mark.parametrize("seed", range(12))
def test_garbage_after_the_upgrade_never_raises(seed):
    source = random.Random(seed)

    def script(guest: Guest) -> None:
        guest.accept()
        guest.sock.sendall(source.randbytes(source.randrange(1, 5_000)))

    with peer(script) as hub, rig(hub.url) as it:
        it.until(lambda: it.of(Lost) or it.of(Refused))


# --- the dial

ANSWERS = {
    "nothing": b"",
    "zeros": b"\0" * 100,
    "no status": b"HTTP/1.1\r\n\r\n",
    "words": b"HTTP/1.1 a b\r\n\r\n",
    "not UTF-8": b"HTTP/1.1 101 \xff\r\n\r\n",
    "no colon": b"HTTP/1.1 101 ok\r\nfoo\r\n\r\n",
    "no proof": b"HTTP/1.1 101 ok\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "wrong proof": b"HTTP/1.1 101 ok\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: AAAA\r\n\r\n",
    "bad cookie": b"HTTP/1.1 302 ok\r\nSet-Cookie: \x01[]=;;=\r\nLocation: x\r\n\r\n",
    "bad length": b"HTTP/1.1 503 no\r\nContent-Length: many\r\n\r\n",
    "endless head": b"HTTP/1.1 101 ok\r\n" + b"x: y\r\n" * 50_000,
    "blank": b"\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_upgrade(answer):
    with peer(lambda guest: guest.sock.sendall(answer)) as hub, rig(hub.url) as it:
        refused = it.until_state(Refused)
        assert refused.reason.startswith("upgrade: ")
        assert not it.of(Opened)


def test_the_body_of_a_refusal_is_not_waited_for():
    def script(guest: Guest) -> None:
        guest.answer("401 Unauthorized", "Content-Length: 1000000000", body=b"{")
        guest.hear()

    with peer(script) as hub, rig(hub.url) as it:
        start = time.monotonic()
        refused = it.until_state(Refused)
        assert (refused.status, refused.auth) == (401, True)
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_the_dial_is_not_followed(status):
    with peer(idle) as other:

        def script(guest: Guest) -> None:
            guest.answer(f"{status} Elsewhere", f"Location: {other.url}", "Content-Length: 0")

        with peer(script) as hub, rig(hub.url) as it:
            refused = it.until_state(Refused)
            assert (refused.status, refused.auth) == (status, False)
            assert other.accepted == 0


def test_the_proxies_of_the_environment_are_not_used(monkeypatch):
    with peer(idle) as hub, ExitStack() as stack:
        proxy = Proxy(hub.port)
        stack.callback(proxy.close)
        for name in ("http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.address)
            monkeypatch.setenv(name.upper(), proxy.address)
        monkeypatch.setenv("no_proxy", "")
        url = f"ws://hub.example:{hub.port}/"
        with rig(url, resolve=everywhere) as it:
            it.open()
        assert proxy.accepted == 0


def test_the_proxy_of_the_settings_is_asked_by_connect(maybe_tls):
    asked = []

    def resolve(host: str, port: int, **options):
        asked.append(host)
        return everywhere(host, port, **options)

    with peer(echo, tls=maybe_tls) as hub, ExitStack() as stack:
        proxy = Proxy(hub.port)
        stack.callback(proxy.close)
        scheme = "wss" if maybe_tls else "ws"
        address = proxy.address.replace("127.0.0.1", "proxy.example")
        with rig(f"{scheme}://hub.example:8443/s?q=1", proxy=address, resolve=resolve) as it:
            it.open()
            it.stream.offer("by proxy")
            it.until(lambda: it.messages == [b"by proxy"])
        assert asked == ["proxy.example"]
        (head,) = proxy.asked
        assert head.splitlines()[0] == "CONNECT hub.example:8443 HTTP/1.1"
        assert TOKEN not in head
        assert hub.guests[0].header("Host") == "hub.example:8443"


def test_loopback_is_reached_without_the_proxy():
    with peer(idle) as hub, ExitStack() as stack:
        proxy = Proxy(hub.port)
        stack.callback(proxy.close)
        with rig(hub.url, proxy=proxy.address) as it:
            it.open()
        assert proxy.accepted == 0


def test_a_proxy_that_refuses_is_not_the_peer_that_does():
    with ExitStack() as stack:
        proxy = Proxy(1, status="403 Forbidden")
        stack.callback(proxy.close)
        with rig("ws://hub.example/", proxy=proxy.address) as it:
            refused = it.until_state(Refused)
            assert (refused.status, refused.auth) == (None, False)
            assert refused.reason == "proxy: answered with HTTP 403"


@contextmanager
def full_listener() -> Iterator[int]:
    """A port on which a connect gets no answer."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def hanging(where: str) -> Iterator[tuple[str, dict]]:
    """The URL of a peer that lets a dial hang there, and options for the stream."""
    hung = threading.Event()
    with ExitStack() as stack:
        if where == "connect":
            yield f"ws://127.0.0.1:{stack.enter_context(full_listener())}/", {}
            return
        made = stack.enter_context(peer(lambda guest: hung.wait(10), raw=True))
        stack.callback(hung.set)
        if where == "proxy":
            yield "ws://hub.example/", {"proxy": f"http://127.0.0.1:{made.port}"}
        else:
            scheme = {"TLS": "wss", "upgrade": "ws"}[where]
            yield f"{scheme}://127.0.0.1:{made.port}/", {}


PHASES = {"connect": "connection", "proxy": "proxy", "TLS": "TLS", "upgrade": "upgrade"}


@pytest.mark.parametrize("where", PHASES)
def test_stop_ends_a_hanging_dial_at_once(where):
    with hanging(where) as (url, options), rig(url, **options) as it:
        with running(it) as stop:
            assert wait(lambda: it.asked, 5)
            time.sleep(0.1)  # into the hang; a dial that has not come so far must end as well
            assert stop() < 0.5
        assert not it.states


@pytest.mark.parametrize("where", PHASES)
def test_a_hanging_dial_is_given_up(where, monkeypatch):
    monkeypatch.setattr("hermes_bridges.core.stream.DIAL_LIMIT", 0.3)
    with hanging(where) as (url, options), rig(url, **options) as it:
        start = time.monotonic()
        refused = it.until_state(Refused)
        assert 0.2 < time.monotonic() - start < 1.5
        assert refused.reason == f"{PHASES[where]}: not done within 0.3 s"


def test_an_answer_that_drips_does_not_prolong_the_dial(monkeypatch):
    monkeypatch.setattr("hermes_bridges.core.stream.DIAL_LIMIT", 0.4)

    def script(guest: Guest) -> None:
        for byte in itertools.cycle(b"HTTP/1.1 101 ok "):
            guest.sock.sendall(bytes([byte]))
            time.sleep(0.02)

    with peer(script) as hub, rig(hub.url) as it:
        start = time.monotonic()
        it.until_state(Refused)
        assert time.monotonic() - start < 1.5


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch):
    monkeypatch.setattr("hermes_bridges.core.stream.DIAL_LIMIT", 2.0)
    with peer(idle) as hub, full_listener() as dead_port:

        def resolve(host: str, port: int, **options):
            return everywhere(host, dead_port, **options) + everywhere(host, port, **options)

        with rig(f"ws://hub.example:{hub.port}/", resolve=resolve) as it:
            it.open()


def test_a_refused_port_and_an_unknown_name():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with rig(f"ws://127.0.0.1:{port}/") as it:
        assert it.until_state(Refused).reason == "connection: Connection refused"
    with rig(f"ws://{'x' * 64}.example/") as it:
        assert it.until_state(Refused).reason.startswith("name: ")


# --- delays


def test_KH07_delays_grow_while_the_peer_closes_at_once(caplog):
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    kept = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept()
        if len(hub.guests) > 10:
            kept.wait(10)

    with peer(script) as hub, rig(hub.url, clock=clock, rand=lambda: 1.0) as it:
        for tries in range(1, 11):
            lost = it.until_state(Lost, tries)
            assert it.turn() == pytest.approx(clock.now + lost.retry_in)
            clock.now += lost.retry_in
        delays = [lost.retry_in for lost in it.of(Lost)]
        assert delays == pytest.approx([1.1, 2.1, 4.1, 8.1, 16.1, 30.1, 30.1, 30.1, 30.1, 30.1])
        lines = [r for r in caplog.records if r.levelno >= logging.INFO]
        assert len(lines) <= 10
        # Not by being open, and not by being open for a while.
        it.until_state(Opened, 11)
        it.stream.confirm()
        clock.now += 29
        it.stream.redial("a test")
        it.until_state(Opened, 12)
        it.stream.confirm()
        kept.set()
        lost = it.until_state(Lost, 12)
        assert lost.retry_in == pytest.approx(30.1)


def test_KH07_a_drop_after_a_healthy_time_reconnects_fast():
    clock = Clock()
    drop = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept()
        if len(hub.guests) == 4:
            drop.wait(10)

    with peer(script) as hub, rig(hub.url, clock=clock, rand=lambda: 1.0) as it:
        for tries in (1, 2, 3):
            clock.now += it.until_state(Lost, tries).retry_in
        it.until_state(Opened, 4)
        it.stream.confirm()
        clock.now += 31
        drop.set()
        lost = it.until_state(Lost, 4)
        assert lost.retry_in == pytest.approx(1.1)
        assert lost.lasted == pytest.approx(31)


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_a_delay_is_never_zero_and_spread(luck):
    with peer(lambda guest: guest.accept()) as hub, rig(hub.url, rand=lambda: luck) as it:
        assert it.until_state(Lost).retry_in == pytest.approx(0.1 + luck)


REFUSALS = {
    "401": ("401 Unauthorized", (), True, 36.0),
    "403": ("403 Forbidden", (), True, 36.0),
    "429": ("429 Slow Down", ("Retry-After: 77",), False, 77.0),
    "429 for long": ("429 Slow Down", ("Retry-After: 7777",), False, 300.0),
    "429 for shorter than our own": ("429 Slow Down", ("Retry-After: 0",), False, 1.1),
    "503": ("503 Away", (), False, 1.1),
    "503 with a date": ("503 Away", ("Retry-After: Mon, 30 Nov 2026 12:01:30 GMT",), False, 90.0),
    "503 with nonsense": ("503 Away", ("Retry-After: soon",), False, 1.1),
    "401 for long": ("401 Unauthorized", ("retry-after:120",), True, 120.0),
    "200": ("200 OK", (), False, 1.1),
}


@pytest.mark.parametrize(("status", "headers", "auth", "delay"), REFUSALS.values(), ids=REFUSALS)
def test_KH34_a_refusal_before_the_upgrade(status, headers, auth, delay):
    def script(guest: Guest) -> None:
        guest.answer(status, *headers, "Content-Length: 2", body=b"{}")

    now = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT
    with peer(script) as hub, rig(hub.url, rand=lambda: 1.0, wall=lambda: now) as it:
        refused = it.until_state(Refused)
        assert (refused.status, refused.code, refused.auth) == (int(status[:3]), None, auth)
        assert refused.retry_in == pytest.approx(delay)
        assert not it.of(Opened)


@pytest.mark.parametrize("code", [1008, 4001, 4003, 4401, 4403])
def test_KH34_a_close_that_means_the_token(code):
    clock = Clock()
    with (
        peer(lambda guest: guest.accept().close(code)) as hub,
        rig(hub.url, clock=clock, rand=lambda: 0.0) as it,
    ):
        for tries in (1, 2, 3):
            refused = it.until_state(Refused, tries)
            assert (refused.status, refused.code, refused.auth) == (None, code, True)
            # The same each time: neither faster nor ever slower.
            assert refused.retry_in == pytest.approx(24.0)
            clock.now += refused.retry_in
        assert not it.of(Lost)


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 1013, 4000])
def test_KH34_any_other_close_is_an_ordinary_loss(code):
    with (
        peer(lambda guest: guest.accept().close(code)) as hub,
        rig(hub.url, rand=lambda: 1.0) as it,
    ):
        lost = it.until_state(Lost)
        assert (lost.code, lost.retry_in) == (code, pytest.approx(1.1))
        assert not it.of(Refused)


def test_KH34_after_a_refusal_a_good_token_is_taken():
    clock = Clock()

    def script(guest: Guest) -> None:
        if guest.header("Authorization") == "Bearer good":
            idle(guest)
        else:
            guest.answer("401 Unauthorized", "Content-Length: 0")

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        clock.now += it.until_state(Refused).retry_in
        it.target = Target(hub.url, [("Authorization", "Bearer good")])
        it.open()


def test_KH41_the_name_cannot_be_resolved_for_a_long_time(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    failures = 50

    def resolve(host: str, port: int, **options):
        if it.asked <= failures:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return everywhere(host, port, **options)

    with (
        peer(idle) as hub,
        rig(f"ws://hub.example:{hub.port}/", clock=clock, resolve=resolve) as it,
    ):
        down_since = it.stream.since
        for tries in range(1, failures + 1):
            due = it.turn()
            assert len(it.of(Refused)) == tries, "one dial a turn, when it is due"
            assert due is not None
            assert due == pytest.approx(clock.now + it.states[-1].retry_in)
            assert 0.1 <= it.states[-1].retry_in <= 30.1
            assert it.turn() == due
            assert (it.stream.connected, it.stream.since) == (False, down_since)
            clock.now = due
        it.open()
        it.turn()
        assert it.asked == failures + 1
        assert it.stream.connected
        assert it.stream.since == clock.now
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2, lines
        assert "Temporary failure in name resolution" in lines[0]
        assert lines[1].endswith(f"is open after {failures + 1} tries")


def test_KH41_each_dial_asks_for_its_target_anew():
    clock = Clock()

    def script(guest: Guest) -> None:
        if guest.path == "/stream?ticket=2":
            idle(guest)
        else:
            guest.answer("410 Gone", "Content-Length: 0")

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.target = Target(f"{hub.url}?ticket=1")
        clock.now += it.until_state(Refused).retry_in
        it.target = Target(f"{hub.url}?ticket=2")
        it.open()


def test_a_storm_is_at_most_one_line_a_try(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()

    def script(guest: Guest) -> None:
        number = len(hub.guests)
        if number % 2:
            guest.answer(f"50{number % 9} Away", "Content-Length: 0")
        else:
            guest.accept().say("welcome")
            guest.close(1000 + number)

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        for tries in range(1, 41):
            it.until_state(Lost | Refused, tries)
            it.stream.confirm()
            assert len(caplog.records) <= tries + 1
            clock.now += it.states[-1].retry_in


# --- signs of life


@contextmanager
def stalling() -> Iterator[str]:
    stay = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept().say("welcome")
        stay.wait(20)

    with peer(script) as hub:
        yield hub.url
        stay.set()


def test_a_half_open_connection_is_noticed_within_45_s():
    clock = Clock()
    with stalling() as url, rig(url, clock=clock) as it:
        it.open()
        it.until(lambda: it.messages)
        start = clock.now
        while not it.of(Lost):
            assert clock.now - start < 45
            due = it.turn()
            assert due is not None
            assert due > clock.now or it.of(Lost)
            clock.now = due
        assert it.of(Lost)[0].reason == "no sign of life"
        assert it.of(Lost)[0].lasted == pytest.approx(30)


def test_a_half_open_connection_is_noticed_also_when_nothing_can_be_written():
    clock = Clock()
    with stalling() as url, rig(url, clock=clock) as it:
        it.open()
        it.until(lambda: it.messages)
        while it.stream.offer("x" * 100_000):
            it.turn()
        for _ in range(4):
            clock.now += 11
            it.turn()
        assert it.of(Lost)


def test_a_quiet_peer_that_answers_pings_is_kept():
    clock = Clock()
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        for opcode, data in iter(guest.hear, None):
            heard.append(opcode)
            guest.send(PONG, data)

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.open()
        it.turn()
        for pings in range(1, 11):
            clock.now += 15
            it.until_length(heard, pings)
            it.until(lambda: it.turn() == clock.now + 15)
        assert set(heard) == {PING}
        assert it.states == [Opened()]


def test_what_came_while_we_were_late_counts_as_a_sign_of_life():
    clock = Clock()
    said = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept()
        said.wait(10)
        guest.say("here")
        guest.hear_all()

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.open()
        clock.now += 15
        it.turn()
        it.stream.wait(0)
        said.set()
        it.stream.wait(5)
        clock.now += 100
        it.turn()
        assert not it.of(Lost), it.of(Lost)
        assert it.messages == [b"here"]


def test_without_a_welcome_the_connection_is_dropped():
    clock = Clock()
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        heard.extend(guest.hear_all())

    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.until_state(Opened)
        assert it.turn() == pytest.approx(clock.now + 15)
        clock.now += 14.9
        it.turn()
        assert not it.of(Lost)
        clock.now += 0.1
        it.turn()
        assert it.of(Lost)[0].reason == "no welcome within 15 s"
        assert wait(lambda: heard, 5) == [(CLOSE, (1000).to_bytes(2, "big"))]


# --- backpressure


def test_nothing_is_read_while_there_is_no_room(maybe_tls):
    total = 3_000
    written = []

    def script(guest: Guest) -> None:
        guest.accept()
        for number in range(total):
            guest.say(f"{number} {'x' * 10_000}")
            written.append(number)
        guest.hear()

    with peer(script, tls=maybe_tls) as hub, rig(hub.url) as it:
        it.full = True
        it.open()
        with running(it):
            assert wait(lambda: len(written) > 20, 5)
            before = -1
            while len(written) != before:
                before = len(written)
                time.sleep(0.1)
            assert len(written) < total, "the peer must feel it"
            assert not it.messages
            # No spinning either: a waiting stream does nothing.
            used = time.process_time()
            time.sleep(0.2)
            assert time.process_time() - used < 0.1
            it.full = False
            it.stream.resume()
            assert wait(lambda: len(it.messages) == total, 20)
        assert [int(m.split()[0]) for m in it.messages] == list(range(total))
        assert it.states == [Opened()]


def test_silence_is_not_judged_while_we_do_not_listen():
    clock = Clock()
    with peer(stay_and_talk) as hub, rig(hub.url, clock=clock) as it:
        it.full = True
        it.until_state(Opened)
        it.until(lambda: it.turn() is None)
        for _ in range(10):
            clock.now += 100
            assert it.turn() is None
        it.full = False
        it.stream.resume()
        due = it.turn()
        assert due == pytest.approx(clock.now + 15)
        assert it.messages == [b"one"]
        assert not it.of(Lost)


def stay_and_talk(guest: Guest) -> None:
    guest.accept().say("one")
    guest.hear()


def test_what_was_held_outlives_its_connection():
    with peer(lambda guest: guest.accept().say(f"of {len(hub.guests)}")) as hub:
        clock = Clock()
        with rig(hub.url, clock=clock) as it:
            it.full = True
            it.until_state(Opened)
            it.until(lambda: it.turn() is None)
            it.stream.redial("a test")
            it.until_state(Opened, 2)
            it.full = False
            it.until(lambda: len(it.messages) == 2)
            assert it.messages == [b"of 1", b"of 2"]


def test_a_peer_that_does_not_read_cannot_block_us(maybe_tls):
    read = threading.Event()
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        read.wait(20)
        for opcode, data in iter(guest.hear, None):
            if opcode == TEXT:
                heard.append(data.decode())

    with peer(script, tls=maybe_tls) as hub, rig(hub.url) as it:
        it.open()
        offered = []
        for number in itertools.count():
            text = f"{number} {'x' * 50_000}"
            start = time.monotonic()
            taken = it.stream.offer(text)
            it.turn()
            assert time.monotonic() - start < 1
            if not taken:
                break
            offered.append(text)
        assert sum(map(len, offered)) < 50_000_000
        # Many small ones are bounded as well; both bounds end with the stall.
        read.set()
        it.until(lambda: len(heard) == len(offered), 20)
        assert heard == offered
        assert it.stream.offer("again")
        it.until(lambda: heard[-1] == "again")


def test_the_number_of_waiting_texts_is_bounded():
    with stalling() as url, rig(url) as it:
        it.open()
        taken = 0
        while it.stream.offer("x"):
            taken += 1
            assert taken < 1_000
        assert taken == 256


def test_pings_of_a_peer_that_does_not_read_are_not_piled_up():
    read = threading.Event()
    heard = []

    def script(guest: Guest) -> None:
        guest.accept()
        for number in range(5_000):
            guest.send(PING, b"%0100d" % number)
        guest.say("done")
        read.wait(20)
        for one in iter(guest.hear, None):
            heard.append(one)

    with peer(script) as hub, rig(hub.url) as it:
        it.open()
        taken = 0
        while it.stream.offer("x" * 100_000):
            taken += 1
            it.turn()
        it.until(lambda: it.messages)
        read.set()
        last = (PONG, b"%0100d" % 4_999)
        it.until(lambda: last in heard, 20)
        before = [opcode for opcode, _ in heard[: heard.index(last)]]
        assert before.count(PONG) < 100, "the latest one is enough"
        assert before.count(TEXT) < taken, "and it does not wait for all the texts"
        it.until(lambda: [opcode for opcode, _ in heard].count(TEXT) == taken)


def test_an_offer_without_a_connection_is_refused():
    with stalling() as url, rig(url) as it:
        assert not it.stream.offer("x")
        it.open()
        assert it.stream.offer("x")
        it.stream.stop()
        assert not it.stream.offer("x")


def test_what_was_not_written_is_not_sent_to_the_next_connection():
    heard: list = []
    cut = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept()
        if len(hub.guests) == 1:
            cut.wait(10)
        else:
            heard.append(guest.hear())

    clock = Clock()
    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.open()
        it.stream.wait(0)
        # Queued, and the connection ends before the next turn.
        cut.set()
        it.stream.wait(5)
        assert it.stream.offer("old")
        clock.now += it.until_state(Lost).retry_in
        it.until_state(Opened, 2)
        assert it.stream.offer("new")
        it.until(lambda: heard)
        assert heard == [(TEXT, b"new")]


# --- the end of a connection that we want


def closing(heard: list) -> Callable[[Guest], None]:
    def script(guest: Guest) -> None:
        guest.accept()
        heard.append(guest.hear_all())

    return script


def test_stop_closes_with_1001(maybe_tls):
    heard: list = []
    with peer(closing(heard), tls=maybe_tls) as hub, rig(hub.url) as it:
        it.open()
        start = time.monotonic()
        it.stream.stop()
        it.stream.wait(None)
        assert it.turn() is None
        assert time.monotonic() - start < 0.5
        assert not it.stream.connected
        assert wait(lambda: heard, 5) == [[(CLOSE, (1001).to_bytes(2, "big"))]]
        assert it.states == [Opened()]


def test_stop_closes_with_1001_although_something_is_unread():
    heard: list = []

    def script(guest: Guest) -> None:
        guest.accept()
        guest.sock.sendall(frame(TEXT, b"x" * 1_000) * 1_000)
        heard.append(guest.hear_all())

    with peer(script) as hub, rig(hub.url) as it:
        it.full = True
        it.until(lambda: it.of(Opened) and it.turn() is None)
        it.stream.stop()
        it.turn()
        assert not it.messages
        assert wait(lambda: heard, 5) == [[(CLOSE, (1001).to_bytes(2, "big"))]]


def test_stop_ends_a_wait_for_the_next_dial():
    with rig("ws://127.0.0.1:1/", rand=lambda: 1.0) as it, running(it) as stop:
        assert wait(lambda: it.of(Refused), 5)
        assert stop() < 0.5


def test_redial_closes_with_1000_and_dials_at_once():
    heard: list = []
    with peer(closing(heard)) as hub, rig(hub.url, clock=Clock()) as it:
        it.open()
        it.stream.redial("something can come again")
        it.until_state(Opened, 2)
        assert wait(lambda: heard, 5) == [[(CLOSE, (1000).to_bytes(2, "big"))]]
        (lost,) = it.of(Lost)
        assert (lost.reason, lost.retry_in) == ("dialling anew: something can come again", 0)


def test_redial_does_not_shorten_a_delay():
    with rig("ws://127.0.0.1:1/", clock=Clock()) as it:
        it.turn()
        it.stream.redial("x")
        it.turn()
        assert it.asked == 1


def test_close_before_any_step():
    made = Rig("ws://127.0.0.1:1/")
    made.stream.stop()
    assert made.stream.step(0) is None
    made.stream.close()
    made.stream.close()
    made.stream.resume()


# --- secrets


def test_the_token_is_in_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    answers = [
        f"HTTP/1.1 401 {TOKEN}\r\nX: {TOKEN}\r\nContent-Length: 30\r\n\r\n{TOKEN}",
        f"HTTP/1.1 302 x\r\nLocation: ws://x/{TOKEN}\r\n\r\n",
        f"HTTP/1.1 503 x\r\nRetry-After: {TOKEN}\r\n\r\n",
        f"{TOKEN}\r\n\r\n",
        f"HTTP/1.1 {TOKEN}\r\n{TOKEN}\r\n\r\n",
        f"HTTP/1.1 101 ok\r\n{TOKEN}\r\n\r\n",
    ]

    def script(guest: Guest) -> None:
        number = len(hub.guests)
        if number <= len(answers):
            guest.sock.sendall(answers[number - 1].encode())
            return
        guest.accept().say(TOKEN)
        guest.send(CLOSE, (4001).to_bytes(2, "big") + TOKEN.encode())

    clock = Clock()
    with peer(script) as hub, rig(hub.url, clock=clock) as it:
        it.target = it.target._replace(url=f"{hub.url}?secret={TOKEN}")
        for tries in range(1, len(answers) + 2):
            it.until_state(Refused, tries)
            clock.now += it.states[-1].retry_in
        assert it.messages == [TOKEN.encode()]
        assert TOKEN not in caplog.text
        assert TOKEN not in repr(it.states)
        assert len(caplog.records) > len(answers) / 2
