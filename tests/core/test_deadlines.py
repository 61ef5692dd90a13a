import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest
import trustme

from hermes_bridges.core.deadlines import Deadlines
from tests.conftest import wait


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(10)
        yield left, right


def shut(sock: socket.socket) -> bool:
    """Whether reading from it ends at once."""
    return bool(select.select([sock], [], [], 0)[0]) and sock.recv(1, socket.MSG_PEEK) == b""


def test_a_socket_is_shut_when_its_time_has_come_and_not_before(pair) -> None:
    deadlines = Deadlines()
    with pair[0].dup() as dup:
        token = deadlines.watch(dup, 10.0)
        assert deadlines.step(9.99) == 10.0
        assert not shut(pair[0]) and not token.over
        assert deadlines.step(10.0) is None
        assert shut(pair[0]) and token.over
    deadlines.close()


def test_a_cleared_one_is_left_alone(pair) -> None:
    deadlines = Deadlines()
    token = deadlines.watch(pair[0], 10.0)
    deadlines.clear(token)
    deadlines.clear(token)
    assert deadlines.step(11.0) is None
    assert not shut(pair[0]) and not token.over
    deadlines.close()


def test_each_has_its_own_time() -> None:
    deadlines = Deadlines()
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(20)]
        for ends in pairs:
            for end in ends:
                stack.enter_context(end)
        tokens = [deadlines.watch(left, float(i)) for i, (left, _) in enumerate(pairs)]
        deadlines.clear(tokens[3])
        assert deadlines.step(9.5) == 10.0
        assert [i for i, (left, _) in enumerate(pairs) if shut(left)] == [
            i for i in range(10) if i != 3
        ]
        assert [token.over for token in tokens].count(True) == 9
    deadlines.close()


def test_a_socket_that_is_closed_or_gone_does_no_harm(pair) -> None:
    deadlines = Deadlines()
    dup = pair[0].dup()
    deadlines.watch(dup, 1.0)
    dup.close()
    never_connected = socket.socket()
    deadlines.watch(never_connected, 1.0)
    assert deadlines.step(2.0) is None
    never_connected.close()
    deadlines.close()


def test_shut_all_ends_what_there_is_and_what_will_be(pair) -> None:
    deadlines = Deadlines()
    token = deadlines.watch(pair[0], 1e9)
    assert not deadlines.ended
    deadlines.shut_all()
    assert deadlines.ended
    assert shut(pair[0]) and not token.over
    left, right = socket.socketpair()
    with left, right:
        assert not deadlines.watch(left, 1e9).over
        assert shut(left)
    deadlines.close()


def test_hastened_nothing_lasts_longer_and_the_rest_ends_as_it_would() -> None:
    deadlines = Deadlines()
    with contextlib.ExitStack() as stack:
        socks = [end for _ in range(2) for end in map(stack.enter_context, socket.socketpair())]
        early, late, later = (
            deadlines.watch(sock, due) for sock, due in zip(socks, (4.0, 10.0, 11.0), strict=False)
        )
        deadlines.hasten(5.0)
        deadlines.hasten(6.0)
        after = deadlines.watch(socks[3], 20.0)
        assert deadlines.step(4.0) == 5.0
        assert early.over and not late.over
        assert deadlines.step(5.0) is None
        assert late.over and later.over and after.over
    deadlines.close()


def test_a_read_of_another_thread_ends_at_its_time(pair) -> None:
    with Deadlines.running() as deadlines:
        began = time.monotonic()
        token = deadlines.watch(pair[0], began + 0.1)
        assert pair[0].recv(1) == b""
        assert 0.1 <= time.monotonic() - began < 5
        assert wait(lambda: token.over, 5)


def test_an_earlier_time_overtakes_the_one_that_is_waited_for(pair) -> None:
    deadlines = Deadlines()
    deadlines.watch(pair[1], 100.0)
    assert deadlines.step(0.0) == 100.0
    deadlines.wait(0)
    deadlines.watch(pair[0], 50.0)
    began = time.monotonic()
    deadlines.wait(10)
    assert time.monotonic() - began < 5
    assert deadlines.step(0.0) == 50.0
    deadlines.close()


def test_a_later_time_wakes_nobody(pair) -> None:
    deadlines = Deadlines()
    deadlines.watch(pair[0], 50.0)
    assert deadlines.step(0.0) == 50.0
    deadlines.wait(0)
    deadlines.watch(pair[1], 100.0)
    began = time.monotonic()
    deadlines.wait(0.1)
    assert time.monotonic() - began >= 0.1
    deadlines.close()


def test_what_is_watched_before_the_thread_runs_is_not_forgotten(pair) -> None:
    deadlines = Deadlines()
    deadlines.watch(pair[0], time.monotonic() + 0.05)
    due = deadlines.step(time.monotonic())
    assert due is not None
    deadlines.wait(max(0.0, due - time.monotonic()))
    deadlines.step(due)
    assert shut(pair[0])
    deadlines.close()


def test_a_wait_ends_for_a_new_time_and_for_a_stop(pair) -> None:
    deadlines = Deadlines()
    assert deadlines.step(0.0) is None
    deadlines.watch(pair[0], 5.0)
    deadlines.wait(None)
    assert deadlines.step(0.0) == 5.0
    deadlines.stop()
    deadlines.wait(None)
    deadlines.close()


def test_a_connect_that_hangs_is_ended() -> None:
    # A listener whose queue is full lets further connects hang.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as ex:
        for _ in range(4):
            filler = ex.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        sock = ex.enter_context(socket.socket())
        sock.settimeout(20)
        dup = ex.enter_context(sock.dup())
        began = time.monotonic()
        with Deadlines.running() as deadlines:
            deadlines.watch(dup, began + 0.2)
            with pytest.raises(OSError):
                sock.connect(server.getsockname())
        assert time.monotonic() - began < 10


def test_a_tls_read_ends_and_its_tls_object_stays() -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    left, right = socket.socketpair()

    def serve() -> None:
        with server_side.wrap_socket(right, server_side=True) as tls:
            tls.recv(1)

    peer = threading.Thread(target=serve, daemon=True)
    peer.start()
    with client_side.wrap_socket(left, server_hostname="localhost") as tls:
        tls.settimeout(20)
        with Deadlines.running() as deadlines:
            deadlines.watch(tls, time.monotonic() + 0.1)
            with contextlib.suppress(OSError):
                assert tls.recv(1) == b""
        assert tls.cipher() is not None
        with pytest.raises(OSError):
            tls.send(b"not in plain text")
    peer.join(10)
