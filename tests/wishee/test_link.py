import itertools
import json
import logging
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import trustme

from hermes_bridges.core.connection import Patience
from hermes_bridges.wishee import protocol
from hermes_bridges.wishee.link import PATIENCE, Event, Link, Lost, Received, TooLarge, Welcomed
from hermes_bridges.wishee.outgoing import BYTES_MAX, FRAMES_MAX
from tests.conftest import wait
from tests.core.ws_peer import CLOSE, PING, PONG, TEXT, Guest, Proxy, frame, peer

SECRET = "5e" * 32
HELLO = protocol.hello("agent-1", SECRET, "0.22.2")
WELCOME = '{"type":"welcome","userId":"u-1"}'
MiB = 1024 * 1024


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A link, turned by hand or by its own thread, and all that it has told."""

    def __init__(self, url: str, **options) -> None:
        self.events: list[Event] = []
        self.full = False
        self.clock = options.get("clock", time.monotonic)
        self.hellos = 0
        self.link = Link(url, self._give_hello, self._take, **options)

    def _give_hello(self) -> bytes:
        self.hellos += 1
        return HELLO

    def _take(self, event: Event) -> object:
        if self.full and isinstance(event, Received | TooLarge):
            return False
        self.events.append(event)
        return None

    def turn(self) -> float | None:
        return self.link.step(self.clock())

    def until(self, predicate: Callable[[], object], seconds: float = 5) -> object:
        """Turn until it is true. The waits are real and short, whatever the clock is."""
        end = time.monotonic() + seconds
        while not (found := predicate()):
            assert time.monotonic() < end, self.events[-5:]
            self.turn()
            self.link.wait(0.01)
        return found

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def until_event(self, kind, count: int = 1, seconds: float = 5):
        """Turn until that many events of the kind have been told; the last of them."""
        self.until(lambda: len(self.of(kind)) >= count, seconds)
        return self.of(kind)[-1]

    def open(self, count: int = 1) -> None:
        self.until_event(Welcomed, count)

    def received(self) -> list[bytes]:
        return [event.raw for event in self.of(Received)]


@contextmanager
def rig(url: str, **options) -> Iterator[Rig]:
    made = Rig(url, **options)
    try:
        yield made
    finally:
        assert made.link.stop(0)


@contextmanager
def running(url: str, **options) -> Iterator[Rig]:
    """The link on its own thread."""
    made = Rig(url, **options)
    made.link.start()
    try:
        yield made
    finally:
        assert made.link.stop(5)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority, monkeypatch, short_tmp) -> ssl.SSLContext:
    authority.cert_pem.write_to_path(str(short_tmp / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(short_tmp / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture(params=["plain", "TLS"])
def maybe_tls(request) -> ssl.SSLContext | None:
    return None if request.param == "plain" else request.getfixturevalue("tls")


def welcome(guest: Guest) -> Guest:
    """Take the hello as the bridge does."""
    guest.accept()
    assert guest.hear() == (TEXT, HELLO)
    guest.say(WELCOME)
    return guest


def serve(guest: Guest, heard: list[bytes]) -> None:
    """Answer pings, note texts, until the end."""
    for opcode, data in iter(guest.hear, None):
        if opcode == PING:
            guest.send(PONG, data)
        elif opcode == TEXT:
            heard.append(data)


def idle(guest: Guest) -> None:
    serve(welcome(guest), [])


class Told:
    """What a frame's callbacks were told."""

    def __init__(self) -> None:
        self.written: list[bool] = []
        self.confirmed: list[bool] = []

    def offer(self, link: Link, data: bytes) -> bool:
        return link.offer(data, written=self.written.append, confirmed=self.confirmed.append)


# --- the handshake


def test_hello_is_the_first_frame_and_welcome_opens(maybe_tls):
    heard: list[bytes] = []
    with peer(lambda guest: serve(welcome(guest), heard), tls=maybe_tls) as bridge:
        with running(bridge.url) as it:
            assert wait(lambda: it.link.welcomed, 5)
            assert it.of(Welcomed) == [Welcomed("u-1")]
            assert it.link.offer(b'{"type":"event"}')
            assert wait(lambda: heard == [b'{"type":"event"}'], 5)
            (guest,) = bridge.guests
            assert guest.header("Origin") is None
            assert guest.header("Sec-WebSocket-Extensions") is None


def test_frames_go_both_ways_whole_and_in_order(maybe_tls):
    heard: list[bytes] = []
    texts = [f'{{"n":{n},"x":"{"y" * (n % 7) * 30_000}"}}' for n in range(60)]

    def script(guest: Guest) -> None:
        welcome(guest)
        for text in texts:
            guest.say(text)
        serve(guest, heard)

    with peer(script, tls=maybe_tls) as bridge, running(bridge.url) as it:
        assert wait(lambda: len(it.received()) == 60, 10)
        assert [raw.decode() for raw in it.received()] == texts
        for text in texts:
            assert it.link.offer(text.encode())
        assert wait(lambda: len(heard) == 60, 10)
        assert [raw.decode() for raw in heard] == texts


def test_nothing_is_taken_before_the_welcome():
    heard: list = []
    go = threading.Event()

    def script(guest: Guest) -> None:
        guest.accept()
        heard.append(guest.hear())
        go.wait(10)
        guest.say('{"type":"req","id":1,"method":"sessions.list"}')
        guest.say(WELCOME)
        serve(guest, heard)

    with peer(script) as bridge, rig(bridge.url) as it:
        assert not it.link.offer(b"x")
        it.until(lambda: heard)
        told = Told()
        assert not told.offer(it.link, b"x")
        assert not it.link.welcomed
        go.set()
        it.open()
        assert told.offer(it.link, b"y")
        it.until(lambda: b"y" in heard)
        assert it.received() == [], "it could not have been answered"
        assert (told.written, it.link.refused) == ([True], (2, 0))


def test_without_a_welcome_within_15_s_it_is_a_failed_dial():
    clock = Clock()
    with peer(lambda guest: guest.accept().hear_all()) as bridge:
        with rig(bridge.url, clock=clock) as it:
            it.until(lambda: bridge.guests and it.turn() == clock.now + 15)
            clock.now += 15
            lost = it.until_event(Lost)
            assert lost.reason == "no welcome within 15 s"
            assert (lost.code, lost.unbound, lost.refused) == (None, False, False)


def test_the_proxies_of_the_environment_are_not_used(monkeypatch):
    with peer(idle) as bridge, ExitStack() as stack:
        proxy = Proxy(bridge.port)
        stack.callback(proxy.close)
        for name in ("http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.address)
            monkeypatch.setenv(name.upper(), proxy.address)
        with rig(bridge.url) as it:
            it.open()
        assert proxy.accepted == 0


def test_a_certificate_of_an_unknown_authority_ends_the_dial(tls, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with peer(idle, tls=tls) as bridge, rig(bridge.url) as it:
        assert it.until_event(Lost).reason.startswith("TLS: ")
        assert not bridge.guests


def test_a_dial_is_given_5_seconds():
    def hang(guest: Guest) -> None:
        bridge.ended.wait(10)

    clock = Clock()
    with peer(hang, raw=True) as bridge, running(bridge.url, clock=clock) as it:
        assert wait(lambda: bridge.guests, 5)
        clock.now += 4.9
        it.link.resume()  # a wake has it look at the clock
        time.sleep(0.1)
        assert not it.events
        clock.now += 0.2
        it.link.resume()
        assert wait(lambda: it.of(Lost), 5)
        assert it.of(Lost)[0].reason == "upgrade: not done within 5 s"


# --- W21: what is no frame of the protocol


GARBAGE = [b"", b"hello", b"[1]", b"null", b"5", b'{"type":"x"}', b"\xff\xfe", b"{}", b"[" * 9_000]


def test_W21_garbage_has_no_effect_on_the_connection():
    heard: list[bytes] = []

    def script(guest: Guest) -> None:
        guest.accept().hear()
        for garbage in GARBAGE:
            guest.send(TEXT, garbage)
        guest.say(WELCOME)
        for garbage in GARBAGE:
            guest.send(TEXT, garbage)
        guest.say('{"type":"req","id":1,"method":"x"}')
        serve(guest, heard)

    with peer(script) as bridge, rig(bridge.url) as it:
        it.until(lambda: len(it.received()) == len(GARBAGE) + 1)
        assert it.received()[:-1] == GARBAGE
        assert it.link.offer(b"still there")
        it.until(lambda: heard == [b"still there"])
        assert bridge.accepted == 1
        assert not it.of(Lost)


def test_W21_a_connection_that_ends_leaves_no_other_open():
    """Whatever ends it: never are there two of us at the bridge."""
    ends: list[Callable[[Guest], object]] = [
        lambda guest: guest.close(1000),
        lambda guest: guest.close(4001),
        lambda guest: guest.sock.sendall(b"\xff\xff\xff"),
        lambda guest: guest.sock.sendall(frame(TEXT, b"x" * (64 * MiB + 1))[:500]),
        lambda guest: guest.sock.close(),
        lambda guest: guest.send(7),
    ]
    gone: list[bool] = []

    def script(guest: Guest) -> None:
        number = len(bridge.guests)
        welcome(guest)
        if number <= len(ends):
            ends[number - 1](guest)
            gone.append(all(one[0] == CLOSE for one in guest.hear_all()))
        else:
            serve(guest, [])

    clock = Clock()
    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        for number in range(1, len(ends) + 1):
            clock.now += it.until_event(Lost, number).retry_in
        it.open(len(ends) + 1)
        assert bridge.accepted == len(ends) + 1
        # Each of the others has seen its own end.
        assert wait(lambda: len(gone) >= len(ends) - 1, 5)


# --- W22: frames without measure


def test_W22_a_frame_over_8_MiB_is_read_away_and_the_connection_kept():
    large = json.dumps({"type": "req", "id": "big", "method": "x", "params": {"m": "y" * 9 * MiB}})
    heard: list[bytes] = []

    def script(guest: Guest) -> None:
        welcome(guest)
        for _ in range(3):
            guest.say(large)
        guest.say(json.dumps({"type": "req", "id": 2, "params": {"m": "z" * 7 * MiB}}))
        serve(guest, heard)

    with peer(script) as bridge, running(bridge.url) as it:
        assert wait(lambda: it.received(), 20)
        found = it.of(TooLarge)
        assert [event.size for event in found] == [len(large)] * 3
        assert [event.head for event in found] == [large[:4096].encode()] * 3
        assert protocol.id_of_head(found[0].head) == "big"
        assert it.link.offer(protocol.error("big", "too large"))
        assert wait(lambda: heard, 5)
        assert bridge.accepted == 1


def test_W22_one_of_many_small_frames_is_judged_as_a_whole():
    def script(guest: Guest) -> None:
        welcome(guest)
        guest.sock.sendall(frame(TEXT, b'{"id":7,"x":"', final=False))
        for _ in range(9 * 16):
            guest.sock.sendall(frame(0, b"y" * (MiB // 16), final=False))
        guest.sock.sendall(frame(0, b'"}'))
        guest.say("after it")
        guest.hear_all()

    with peer(script) as bridge, running(bridge.url) as it:
        assert wait(lambda: it.received() == [b"after it"], 20)
        (found,) = it.of(TooLarge)
        assert len(found.head) == 4096 and found.head.startswith(b'{"id":7,"x":"yyy')


# --- W19: a bridge that stops reading, or says nothing


def stop_reading(guest: Guest) -> None:
    welcome(guest)
    bridge_stays.wait(30)


bridge_stays = threading.Event()


@pytest.fixture
def unread() -> Iterator[Callable]:
    """A bridge that welcomes, and then neither reads nor says anything."""
    bridge_stays.clear()
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(peer(stop_reading, **options))
        bridge_stays.set()


def test_W19_the_limits_are_those_of_the_contract():
    assert PATIENCE == Patience(confirm=15, ping=20, pong=20, write=20)
    assert (FRAMES_MAX, BYTES_MAX) == (256, 8 * MiB)


def test_W19_a_silent_bridge_is_given_up_after_40_s(unread):
    clock = Clock()
    with rig(unread().url, clock=clock) as it:
        it.open()
        start = clock.now
        while not it.of(Lost):
            assert clock.now - start < 45
            due = it.turn()
            assert due is not None and (due > clock.now or it.of(Lost))
            clock.now = due
        assert it.of(Lost)[0].reason == "no sign of life"


def test_W19_a_bridge_that_does_not_read_is_given_up_20_s_after_a_frame_was_begun(unread):
    clock = Clock()
    with rig(unread().url, clock=clock) as it:
        it.open()
        start = clock.now
        tolds: list[bool] = []
        while it.link.offer(b"x" * 100_000, written=tolds.append):
            it.turn()
        clock.now += 19.9
        it.turn()
        assert not it.of(Lost)
        clock.now += 0.2
        it.turn()
        assert it.of(Lost)[0].reason == "the peer has not read for 20 s"
        assert clock.now - start < 21
        # Each frame was told about once.
        assert tolds.count(False) >= 80
        assert tolds == sorted(tolds, reverse=True)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_W19_in_real_time_and_nobody_else_waits_for_it(secure, unread, request):
    tls = request.getfixturevalue("tls") if secure else None
    patience = Patience(confirm=5, ping=5, pong=5, write=0.5)
    bridge = unread(tls=tls)
    with running(bridge.url, patience=patience) as it:
        assert wait(lambda: it.link.welcomed, 5)
        longest, taken = 0.0, 0
        begin = time.monotonic()
        while not it.of(Lost) and time.monotonic() - begin < 5:
            start = time.monotonic()
            taken += it.link.offer(b"x" * 400_000)
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.001)
        assert it.of(Lost)[0].reason == "the peer has not read for 0.5 s"
        assert longest < 0.1, "offer never waits"
        assert taken > 10
        # It is dialled again, and goes on.
        assert wait(lambda: len(it.of(Welcomed)) == 2, 5)


def test_W19_the_memory_is_bounded_while_the_bridge_does_not_read(unread):
    with running(unread().url) as it:
        assert wait(lambda: it.link.welcomed, 5)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(400):
            it.link.offer(bytes(400_000))
            time.sleep(0.0005)
        assert it.link.refused[0] > 300
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 30_000, f"{grown} KiB"


def test_W19_a_bridge_that_sends_but_does_not_read_is_given_up():
    """Requests go on coming, and prove nothing."""
    clock = Clock()
    said = itertools.count()

    def script(guest: Guest) -> None:
        welcome(guest)
        while not bridge.ended.wait(0.01):
            guest.say(f'{{"type":"req","id":{next(said)}}}')

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.open()
        start = clock.now
        while not it.of(Lost):
            assert clock.now - start < 45
            clock.now += 1
            it.events = it.of(Welcomed)
            it.until(lambda: it.of(Lost) or it.received())
        assert clock.now - start > 39


def test_W19_a_bridge_that_reads_but_sends_no_pong_is_given_up():
    clock = Clock()
    heard: list = []

    def script(guest: Guest) -> None:
        heard.extend(welcome(guest).hear_all())

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.open()
        told = Told()
        assert told.offer(it.link, b"result")
        it.until(lambda: told.written)
        clock.now += 19.9
        it.turn()
        assert not it.of(Lost)
        clock.now += 0.2
        it.turn()
        assert it.of(Lost), "20 s after the ping behind the frame"
        assert told.confirmed == [False]
        # Not even a pong that was not asked for helps.
        assert wait(lambda: [one[0] for one in heard][:2] == [TEXT, PING], 5)


def test_W19_a_large_frame_that_takes_its_time_is_no_silence():
    clock = Clock()
    pieces = threading.Semaphore(0)

    def script(guest: Guest) -> None:
        welcome(guest)
        data = frame(TEXT, b"x" * 60_000)
        for at in range(0, len(data), 1_000):
            pieces.acquire(timeout=10)
            guest.sock.sendall(data[at : at + 1_000])
        serve(guest, [])

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.open()
        for _ in range(59):
            pieces.release()
            it.link.wait(5)
            clock.now += 3
            it.turn()
            assert not it.of(Lost)
        pieces.release(10)
        it.until(lambda: it.received())
        assert not it.of(Lost)


def test_a_quiet_bridge_that_answers_pings_is_kept():
    clock = Clock()
    # A due time tells by which of the two it is whether the pong has come.
    patience = PATIENCE._replace(pong=10)
    with peer(idle) as bridge, rig(bridge.url, clock=clock, patience=patience) as it:
        it.open()
        for _ in range(10):
            clock.now += 20
            it.until(lambda: it.turn() == clock.now + 20)
        assert not it.of(Lost)


def test_our_pong_answers_the_bridges_ping():
    heard: list = []

    def script(guest: Guest) -> None:
        welcome(guest).send(PING, b"there?")
        heard.append(guest.hear())
        guest.hear()

    with peer(script) as bridge, rig(bridge.url) as it:
        it.until(lambda: heard)
        assert heard == [(PONG, b"there?")]


# --- written and confirmed


def test_written_and_confirmed_are_told_once_in_order(maybe_tls):
    heard: list[bytes] = []
    with peer(lambda guest: serve(welcome(guest), heard), tls=maybe_tls) as bridge:
        with running(bridge.url) as it:
            assert wait(lambda: it.link.welcomed, 5)
            order: list = []

            def note(what: str, number: int, good: bool) -> None:
                order.append((what, number, good))

            for number in range(50):
                assert it.link.offer(
                    b"%d" % number + b"x" * 5_000,
                    written=partial(note, "written", number),
                    confirmed=partial(note, "confirmed", number),
                )
            assert wait(lambda: len(order) == 100, 5)
            for what in ("written", "confirmed"):
                assert [one for one in order if one[0] == what] == [
                    (what, n, True) for n in range(50)
                ]
            assert all(order.index(("written", n, True)) < order.index(("confirmed", n, True))
                       for n in range(50))  # fmt: skip
            assert len(heard) == 50


def test_a_result_whose_pong_never_came_is_not_confirmed():
    """The bridge has taken the frame, and died before it could answer."""
    heard: list = []

    def script(guest: Guest) -> None:
        welcome(guest)
        heard.append(guest.hear())
        heard.append(guest.hear())
        guest.sock.close()

    with peer(script) as bridge, rig(bridge.url) as it:
        it.open()
        told = Told()
        assert told.offer(it.link, b"result")
        it.until_event(Lost)
        assert [opcode for opcode, _ in heard] == [TEXT, PING], "the ping is right behind it"
        assert (told.written, told.confirmed) == ([True], [False])


def test_a_pong_confirms_what_was_written_before_its_ping_and_no_more():
    pings: list[bytes] = []
    pong = threading.Semaphore(0)

    def script(guest: Guest) -> None:
        welcome(guest)
        while len(pings) < 3:
            opcode, data = guest.hear() or (0, b"")
            if opcode == PING:
                pings.append(data)
        for answer in (
            b"",
            b"0",
            b"99",
            b"x",
            b"-1",
            "\u0663".encode(),
            pings[1],
            pings[0],
            pings[2],
        ):
            pong.acquire(timeout=10)
            guest.send(PONG, answer)
            guest.say("sent")
        guest.hear_all()

    with peer(script) as bridge, rig(bridge.url) as it:
        it.open()
        tolds = [Told() for _ in range(3)]
        for told in tolds:
            assert told.offer(it.link, b"x")
        it.until(lambda: len(pings) == 3)
        seen = []
        for _ in range(9):
            it.events.clear()
            pong.release()
            it.until(it.received)
            seen.append([len(told.confirmed) for told in tolds])
        assert seen == [[0, 0, 0]] * 6 + [[1, 1, 0]] * 2 + [[1, 1, 1]]


def test_what_was_taken_and_not_sent_is_told_of_at_the_loss_and_not_sent_later():
    heard: list[bytes] = []
    cut = threading.Event()

    def script(guest: Guest) -> None:
        welcome(guest)
        if len(bridge.guests) == 1:
            cut.wait(10)
            guest.sock.close()
        else:
            serve(guest, heard)

    clock = Clock()
    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.open()
        cut.set()
        it.link.wait(5)
        old, new = Told(), Told()
        assert old.offer(it.link, b"old")
        lost = it.until_event(Lost)
        assert (old.written, old.confirmed) == ([False], [False])
        assert not it.link.welcomed and not new.offer(it.link, b"x")
        clock.now += lost.retry_in
        it.open(2)
        assert new.offer(it.link, b"new")
        it.until(lambda: new.confirmed)
        assert heard == [b"new"]


# --- bounds


def test_256_frames_are_taken_and_signals_only_up_to_the_half(unread):
    with rig(unread().url) as it:
        it.open()
        assert sum(it.link.offer(b"s", signal=True) for _ in range(200)) == 128
        assert it.link.refused == (0, 72)
        assert sum(it.link.offer(b"f") for _ in range(200)) == 128
        assert it.link.refused == (72, 72)


def test_8_MiB_are_taken_and_signals_only_up_to_the_half(unread):
    with rig(unread().url) as it:
        it.open()
        assert not it.link.offer(b"x" * (8 * MiB + 1))
        assert it.link.offer(b"x" * (4 * MiB - 10))
        assert it.link.offer(b"x" * 10, signal=True)
        assert not it.link.offer(b"x", signal=True)
        assert it.link.offer(b"x" * (4 * MiB))
        assert not it.link.offer(b"x")


def test_what_is_not_confirmed_counts_as_well():
    def script(guest: Guest) -> None:
        welcome(guest).hear_all()

    with peer(script) as bridge, rig(bridge.url) as it:
        it.open()
        tolds = [Told() for _ in range(300)]
        taken = 0
        for told in tolds:
            taken += told.offer(it.link, b"x")
            it.turn()
        assert taken == FRAMES_MAX
        assert sum(len(told.written) for told in tolds) == taken


# --- a host without room


def test_nothing_is_read_while_the_host_has_no_room():
    written: list[int] = []

    def script(guest: Guest) -> None:
        welcome(guest)
        for number in range(2_000):
            guest.say(f'{{"n":{number},"x":"{"y" * 10_000}"}}')
            written.append(number)
        serve(guest, [])

    with peer(script) as bridge, running(bridge.url) as it:
        it.full = True
        assert wait(lambda: len(written) > 20, 5)
        before = -1
        while len(written) != before:
            before = len(written)
            time.sleep(0.1)
        assert len(written) < 2_000 and not it.received()
        # Waiting costs nothing, and what is offered still goes out.
        told = Told()
        used = time.process_time()
        assert told.offer(it.link, b"x")
        time.sleep(0.2)
        assert time.process_time() - used < 0.1
        assert told.written == [True]
        it.full = False
        it.link.resume()
        assert wait(lambda: len(it.received()) == 2_000, 20)
        assert [json.loads(raw)["n"] for raw in it.received()] == list(range(2_000))
        assert wait(lambda: told.confirmed == [True], 5)


def test_silence_is_not_judged_while_the_host_has_no_room():
    clock = Clock()
    go, pong = threading.Event(), threading.Event()

    def script(guest: Guest) -> None:
        welcome(guest)
        go.wait(10)
        guest.say("{}")
        pong.wait(10)
        serve(guest, [])

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.full = True
        it.open()
        clock.now += 20
        it.turn()  # a ping goes out
        go.set()
        it.until(lambda: it.link.step(clock.now) == float("inf"))
        for _ in range(10):
            clock.now += 100
            it.turn()
        it.full = False
        it.until(it.received)
        assert it.turn() == clock.now + 20, "from now on it is"
        pong.set()
        assert not it.of(Lost)


def test_a_request_of_a_connection_that_is_gone_is_not_done():
    def script(guest: Guest) -> None:
        welcome(guest)
        if len(bridge.guests) == 1:
            for number in range(5):
                guest.say(str(number))
            cut.wait(10)
            guest.sock.close()
        else:
            serve(guest, [])

    cut = threading.Event()
    clock = Clock()
    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.full = True
        it.open()
        it.until(lambda: it.link.step(clock.now) == float("inf"))
        # The bridge does not read any more: that ends it although nothing is read.
        while it.link.offer(b"x" * 100_000):
            it.turn()
        clock.now += 21
        lost = it.until_event(Lost)
        it.full = False
        clock.now += lost.retry_in
        cut.set()
        it.open(2)
        assert it.received() == []


# --- when it dials again


def lose(count: int, clock: Clock, it: Rig) -> Lost:
    lost = it.until_event(Lost, count)
    clock.now += lost.retry_in
    return lost


def test_W27_delays_are_spread_and_grow_with_the_outage():
    clock = Clock()
    luck = itertools.cycle([0.0, 0.5, 0.999])
    ranges = [(60, 0.3, 1.5), (300, 1, 15), (1e9, 5, 60)]
    seen: dict[int, set[float]] = {0: set(), 1: set(), 2: set()}
    with rig("ws://127.0.0.1:1/", clock=clock, rand=lambda: next(luck)) as it:
        start = clock.now
        for tries in range(1, 200):
            age = clock.now - start
            number = next(n for n, (limit, _, _) in enumerate(ranges) if age < limit)
            delay = lose(tries, clock, it).retry_in
            _, low, high = ranges[number]
            assert low <= delay <= high
            seen[number].add(round(delay, 3))
        assert all(len(delays) == 3 for delays in seen.values()), seen


def test_W27_agents_do_not_come_back_in_step():
    delays = []
    for _ in range(40):
        with rig("ws://127.0.0.1:1/", clock=Clock()) as it:
            delays.append(it.until_event(Lost).retry_in)
    assert max(delays) - min(delays) > 0.5
    assert len({round(delay, 4) for delay in delays}) > 30


def test_KH07_a_welcome_that_is_taken_back_at_once_does_not_end_the_outage_wishee(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    with peer(lambda guest: welcome(guest).close(1012)) as bridge:
        with rig(bridge.url, clock=clock, rand=lambda: 0.5) as it:
            start = clock.now
            delays = {}
            for tries in range(1, 120):
                age = clock.now - start
                delays[age] = round(lose(tries, clock, it).retry_in, 6)
            assert {d for age, d in delays.items() if age < 60} == {0.9}
            assert {d for age, d in delays.items() if 60 <= age < 300} == {8.0}
            assert {d for age, d in delays.items() if age >= 300} == {32.5}
            assert len(caplog.records) < 10


def test_KH07_a_drop_after_a_healthy_time_reconnects_fast_wishee():
    clock = Clock()
    cut = threading.Semaphore(0)

    def script(guest: Guest) -> None:
        if len(bridge.guests) <= 80:
            guest.answer("503 Away", "Content-Length: 0")
            return
        welcome(guest)
        cut.acquire(timeout=10)

    with peer(script) as bridge, rig(bridge.url, clock=clock, rand=lambda: 0.5) as it:
        for tries in range(1, 81):
            last = lose(tries, clock, it)
        assert last.retry_in == 8.0
        it.open()
        clock.now += 29
        it.turn()
        cut.release()
        assert lose(81, clock, it).retry_in >= 8.0, "29 s prove little"
        it.open(2)
        clock.now += 30
        cut.release()
        assert lose(82, clock, it).retry_in == pytest.approx(0.9)


def test_after_4001_every_3_s_for_15_minutes_then_every_30_s():
    clock = Clock()

    def script(guest: Guest) -> None:
        guest.accept().hear()
        guest.close(4001)

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        start = clock.now
        for tries in range(1, 310):
            age = clock.now - start
            lost = lose(tries, clock, it)
            assert (lost.unbound, lost.code, lost.refused) == (True, 4001, False)
            assert lost.retry_in == (3 if age < 900 else 30)
        # Once it is bound again it counts anew.
        bridge.script = lambda guest: welcome(guest).close(4001)
        it.open()
        assert lose(310, clock, it).retry_in == 3
        # A bridge that is away is not one that does not know us.
        bridge.close()
        lost = lose(311, clock, it)
        assert 0.3 <= lost.retry_in <= 1.5
        assert not lost.unbound


REFUSALS = {
    "401": (401, (), True, (24, 36)),
    "403": (403, (), True, (24, 36)),
    "429": (429, ("Retry-After: 20",), False, (20, 20)),
    "429 for hours": (429, ("Retry-After: 99999",), False, (300, 300)),
    "429 nonsense": (429, ("Retry-After: soon",), False, (0.3, 1.5)),
    "503": (503, (), False, (0.3, 1.5)),
    "301": (301, ("Location: ws://127.0.0.1:1/",), False, (0.3, 1.5)),
}


@pytest.mark.parametrize(("status", "headers", "refused", "delay"), REFUSALS.values(), ids=REFUSALS)
def test_KH34_a_refusal_before_the_upgrade_wishee(status, headers, refused, delay):
    with peer(lambda guest: guest.answer(f"{status} No", *headers)) as bridge:
        with rig(bridge.url, clock=Clock()) as it:
            lost = it.until_event(Lost)
            assert (lost.refused, lost.unbound, lost.code) == (refused, False, None)
            assert delay[0] <= lost.retry_in <= delay[1]


@pytest.mark.parametrize("code", [1008, 4003, 4401, 4403])
def test_KH34_a_close_that_means_that_we_are_not_wanted_wishee(code, caplog):
    caplog.set_level(logging.INFO)

    def script(guest: Guest) -> None:
        guest.accept().hear()
        guest.close(code)

    clock = Clock()
    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        for tries in range(1, 5):
            lost = lose(tries, clock, it)
            assert (lost.refused, lost.code) == (True, code)
            assert 24 <= lost.retry_in <= 36
        assert len(caplog.records) == 1, "said once"


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 4000])
def test_KH34_any_other_close_is_an_ordinary_loss_wishee(code):
    with peer(lambda guest: welcome(guest).close(code)) as bridge:
        with rig(bridge.url, clock=Clock()) as it:
            lost = it.until_event(Lost)
            assert (lost.refused, lost.unbound, lost.code) == (False, False, code)
            assert lost.retry_in <= 1.5


def test_KH41_the_name_cannot_be_resolved_for_a_long_time_wishee(caplog):
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    tries = itertools.count(1)

    def resolve(host: str, port: int, **options):
        if next(tries) <= 50:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return socket.getaddrinfo("127.0.0.1", port, **options)

    with peer(idle) as bridge:
        url = f"ws://bridge.example:{bridge.port}/ws"
        with rig(url, clock=clock, resolve=resolve) as it:
            for count in range(1, 51):
                lost = lose(count, clock, it)
                assert lost.reason == "name: Temporary failure in name resolution"
                assert not it.link.welcomed
                assert len(caplog.records) <= count
            it.open()
            assert it.hellos == 51, "each dial asks for its hello anew"
            assert "is open after 51 tries" in caplog.text


def test_the_bridge_comes_back_within_2_s_of_its_return():
    """In real time: what others measure from the moment at which the port accepts again."""
    with peer(idle) as first:
        port = first.port
        with running(f"ws://127.0.0.1:{port}/ws") as it:
            assert wait(lambda: it.link.welcomed, 5)
            first.close()
            assert wait(lambda: it.of(Lost), 5)
            time.sleep(1)
            listener = socket.create_server(("127.0.0.1", port))
            start = time.monotonic()
            with listener:
                sock, _ = listener.accept()
                assert time.monotonic() - start < 2
                sock.close()


def test_hurry_dials_at_once():
    clock = Clock()

    def script(guest: Guest) -> None:
        if len(bridge.guests) == 1:
            guest.accept().hear()
            guest.close(4001)
        else:
            idle(guest)

    with peer(script) as bridge, rig(bridge.url, clock=clock) as it:
        it.until_event(Lost)
        it.turn()
        assert it.hellos == 1
        it.link.hurry()
        it.open()
        assert it.hellos == 2
        it.link.hurry()
        it.turn()
        assert it.hellos == 2, "nothing to hurry for"


# --- faults of others


def test_a_callback_that_raises_is_logged_and_disturbs_nobody(caplog):
    heard: list[bytes] = []

    def odd(what: object) -> None:
        events.append(what)
        raise RuntimeError("Event loop is closed")

    events: list = []

    def script(guest: Guest) -> None:
        welcome(guest).say("{}")
        serve(guest, heard)

    with peer(script) as bridge:
        link = Link(bridge.url, lambda: HELLO, odd)
        link.start()
        try:
            assert wait(lambda: Received(b"{}") in events, 5)
            told: list[bool] = []
            assert link.offer(b"x", written=odd, confirmed=told.append)
            assert wait(lambda: told == [True], 5)
        finally:
            assert link.stop(5)
    assert caplog.text.count("Event loop is closed") >= 3
    assert bridge.accepted == 1


def test_a_fault_of_the_link_itself_begins_it_anew(caplog):
    faults = iter([RuntimeError("no identity"), KeyError("x")])

    def hello() -> bytes:
        for fault in faults:
            raise fault
        return HELLO

    events: list[Event] = []
    with peer(idle) as bridge:
        link = Link(bridge.url, hello, events.append)
        link.start()
        try:
            assert wait(lambda: link.welcomed, 10)
        finally:
            assert link.stop(5)
    assert [event.reason for event in events if isinstance(event, Lost)] == [
        "a fault of the link: RuntimeError",
        "a fault of the link: KeyError",
    ]
    assert caplog.text.count("Traceback") == 2


# --- the end


def test_stop_writes_and_confirms_what_was_offered_and_closes_with_1000(maybe_tls):
    heard: list = []

    def script(guest: Guest) -> None:
        welcome(guest)
        for one in iter(guest.hear, None):
            heard.append(one)
            if one[0] == PING:
                guest.send(PONG, one[1])

    with peer(script, tls=maybe_tls) as bridge, running(bridge.url) as it:
        assert wait(lambda: it.link.welcomed, 5)
        told = Told()
        for _ in range(20):
            assert told.offer(it.link, b"x" * 50_000)
        start = time.monotonic()
        assert it.link.stop(4)
        assert time.monotonic() - start < 2
        assert told.confirmed == [True] * 20
        assert wait(lambda: heard[-1] == (CLOSE, (1000).to_bytes(2, "big")), 5)
        assert not it.link.welcomed and not it.link.offer(b"x")
        assert not it.of(Lost), "wanted"


def test_stop_does_not_wait_for_ever_for_a_bridge_that_does_not_read(unread):
    with running(unread().url) as it:
        assert wait(lambda: it.link.welcomed, 5)
        told = Told()
        while told.offer(it.link, b"x" * 100_000):
            time.sleep(0.001)
        start = time.monotonic()
        assert it.link.stop(1)
        assert time.monotonic() - start < 1
        assert False in told.written
        assert len(told.confirmed) >= len(told.written)


@pytest.mark.parametrize("raw", [False, True], ids=["no welcome", "no upgrade"])
def test_stop_ends_a_hanging_dial_at_once(raw):
    def hang(guest: Guest) -> None:
        if not raw:
            guest.accept()
        bridge.ended.wait(10)

    with peer(hang, raw=raw) as bridge, running(bridge.url) as it:
        assert wait(lambda: bridge.guests, 5)
        time.sleep(0.05)
        start = time.monotonic()
        assert it.link.stop(5)
        assert time.monotonic() - start < 0.5


def test_stop_ends_a_wait_for_the_next_dial_and_may_come_twice():
    with running("ws://127.0.0.1:1/", rand=lambda: 1.0) as it:
        assert wait(lambda: it.of(Lost), 5)
        start = time.monotonic()
        assert it.link.stop(5) and it.link.stop(5)
        assert time.monotonic() - start < 0.5
        # Whoever comes later hurts nobody: the descriptors may be another file's by now.
        with ExitStack() as stack:
            files = [stack.enter_context(open("/dev/null", "wb")) for _ in range(10)]
            assert files
            it.link.resume()
            it.link.hurry()
            assert not it.link.offer(b"x")


def test_stop_before_the_start():
    made = Rig("ws://127.0.0.1:1/")
    assert made.link.stop(1)
    assert not made.events


def test_the_thread_has_its_name():
    with running("ws://127.0.0.1:1/"):
        assert "wishee.link" in {thread.name for thread in threading.enumerate()}
    assert "wishee.link" not in {thread.name for thread in threading.enumerate()}


# --- secrets


def test_KH22_neither_secret_nor_words_of_the_bridge_are_in_any_text_wishee(caplog):
    caplog.set_level(logging.DEBUG)
    answers = [
        f"HTTP/1.1 401 {SECRET}\r\nX: {SECRET}\r\n\r\n{SECRET}",
        f"HTTP/1.1 302 x\r\nLocation: ws://x/{SECRET}\r\n\r\n",
        f"{SECRET}\r\n\r\n",
    ]

    def script(guest: Guest) -> None:
        number = len(bridge.guests)
        if number <= len(answers):
            guest.sock.sendall(answers[number - 1].encode())
            return
        welcome(guest).say(SECRET)
        guest.send(CLOSE, (4001).to_bytes(2, "big") + SECRET.encode())

    clock = Clock()
    with peer(script) as bridge:
        url = bridge.url.replace("ws://", "ws://") + f"?k={SECRET}"
        with rig(url, clock=clock) as it:
            for tries in range(1, len(answers) + 2):
                lose(tries, clock, it)
            assert SECRET not in caplog.text
            assert SECRET not in repr(it.of(Lost))
            assert len(caplog.records) >= 3
