"""The client's loop, call and inbox, turned by hand on real sockets."""

import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hermes_bridges.coms.client.inbox import IDLE, Inbox
from hermes_bridges.coms.client.loop import READ, Interrupted, Loop
from hermes_bridges.coms.client.wire import Call, Refused, Unreachable
from tests.conftest import wait
from tests.harness.wire import encode


class Clock:
    """Turned by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[Loop]:
    with Loop(clock) as loop:
        yield loop


@pytest.fixture
def path(short_tmp: Path) -> str:
    return str(short_tmp / "s.sock")


@pytest.fixture
def server(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(8)
        yield listening


def turn(loop: Loop, clock: Clock, times: int = 1) -> None:
    """Turns that handle what is ready now and wait for nothing."""
    for _ in range(times):
        assert not loop.run(lambda: False, clock.now - 1)
        # `done` is asked before the wait and after it.
        looks = iter([False, True])
        loop.run(looks.__next__, clock.now + 0.01)


# The loop.


def test_a_signal_ends_the_wait_once_and_the_handlers_come_back(clock: Clock) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Loop(clock) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as caught:
            loop.run(lambda: False, clock.now + 1e9)
        assert caught.value.signum == signal.SIGTERM and "SIGTERM" in str(caught.value)
        assert loop.run(lambda: True, clock.now)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_deadline_is_met_without_anything_to_wait_for(loop: Loop, clock: Clock) -> None:
    assert not loop.run(lambda: False, clock.now)
    assert loop.run(lambda: True, clock.now - 5)


def test_a_file_that_an_earlier_callback_gave_up_is_not_served(loop: Loop, clock: Clock) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    served: list[int] = []

    def ready(number: int, events: int) -> None:
        served.append(number)
        loop.forget(pairs[1 - number][0])

    for number, (mine, other) in enumerate(pairs):
        loop.watch(mine, READ, partial(ready, number))
        other.sendall(b"x")
    loop.run(lambda: bool(served), clock.now + 5)
    assert len(served) == 1
    for pair in pairs:
        for one in pair:
            loop.forget(one)
            one.close()


# The call.


def test_a_peer_that_closed_after_its_nack_is_still_understood(
    loop: Loop, clock: Clock, server: socket.socket, path: str
) -> None:
    call = Call(loop, "p", path, b"x" * 100 + b"\n")
    call.step(clock.now)
    connected, _ = server.accept()
    connected.sendall(encode({"type": "nack", "error": "line too large"}))
    connected.shutdown(socket.SHUT_RD)
    assert loop.run(lambda: call.done, clock.now + 5)
    with pytest.raises(Refused, match="p refused: line too large"):
        call.outcome()
    connected.close()
    call.close()


def test_a_peer_that_does_not_read_any_more_and_says_nothing_is_unreachable(
    loop: Loop, clock: Clock, server: socket.socket, path: str
) -> None:
    call = Call(loop, "p", path, b"x" * 100 + b"\n")
    call.step(clock.now)
    connected, _ = server.accept()
    connected.shutdown(socket.SHUT_RD)
    turn(loop, clock, 3)
    assert not call.done and not call.begun
    connected.close()
    assert loop.run(lambda: call.done, clock.now + 5)
    with pytest.raises(Unreachable, match="p closed the connection without a reply"):
        call.outcome()


def test_a_line_goes_out_in_as_many_pieces_as_it_takes(
    loop: Loop, clock: Clock, server: socket.socket, path: str
) -> None:
    line = b"x" * 3_000_000 + b"\n"
    call = Call(loop, "p", path, line)
    call.step(clock.now)
    connected, _ = server.accept()
    connected.setblocking(False)
    received = bytearray()

    def whole() -> bool:
        while select.select([connected], [], [], 0)[0] and len(received) < len(line):
            received.extend(connected.recv(65536))
        return len(received) == len(line)

    assert loop.run(whole, clock.now + 5)
    assert bytes(received) == line and call.begun
    connected.sendall(encode({"type": "ack", "msg_id": "m"}))
    assert loop.run(lambda: call.done, clock.now + 5)
    assert call.outcome() == {"type": "ack", "msg_id": "m"}
    connected.close()


def test_a_reset_is_a_reply_that_will_not_come(
    loop: Loop, clock: Clock, server: socket.socket, path: str
) -> None:
    call = Call(loop, "p", path, b"hello\n")
    call.step(clock.now)
    connected, _ = server.accept()
    turn(loop, clock, 2)
    # Closed with our line unread.
    connected.close()
    assert loop.run(lambda: call.done, clock.now + 5)
    with pytest.raises(Unreachable, match="closed the connection without a reply"):
        call.outcome()


def test_an_error_of_the_kernel_is_told(loop: Loop, clock: Clock, short_tmp: Path) -> None:
    call = Call(loop, "p", str(short_tmp / "file" / "s.sock"), b"hello\n")
    (short_tmp / "file").touch()
    call.step(clock.now)
    with pytest.raises(Unreachable, match=f"p cannot be reached: {os.strerror(errno.ENOTDIR)}"):
        call.outcome()


# The inbox.


class Served:
    """An inbox that answers each line by itself in capitals."""

    def __init__(self, loop: Loop, path: str, answer=bytes.upper) -> None:
        self.lines: list[bytes] = []
        self.loop = loop
        self.inbox = Inbox(loop, path, lambda line: self.taken(answer(line), line))

    def taken(self, reply: bytes | None, line: bytes) -> bytes | None:
        self.lines.append(line)
        return reply and reply + b"\n"


def dial(path: str, data: bytes = b"") -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(path)
    link.sendall(data)
    link.settimeout(0.01)
    return link


def test_a_silent_visitor_is_sent_away_in_time(loop: Loop, clock: Clock, path: str) -> None:
    served = Served(loop, path)
    with dial(path, b"half a li") as link:
        turn(loop, clock, 3)
        clock.now += IDLE - 0.1
        turn(loop, clock)
        with pytest.raises(TimeoutError):
            link.recv(1)
        clock.now += 0.2
        turn(loop, clock)
        assert link.recv(1) == b"" and served.lines == []
    served.inbox.close()
    assert not os.path.exists(path)


def test_a_visitor_that_hangs_up_is_forgotten(loop: Loop, clock: Clock, path: str) -> None:
    served = Served(loop, path, lambda line: None)
    dial(path, b"one\ntwo").close()
    turn(loop, clock, 4)
    assert served.lines == [b"one"] and served.inbox.step(clock.now) is None
    served.inbox.close()


def test_what_comes_after_the_reply_is_read_away(loop: Loop, clock: Clock, path: str) -> None:
    served = Served(loop, path)
    with dial(path, b"one\n") as link:
        turn(loop, clock, 3)
        assert link.recv(9) == b"ONE\n" and link.recv(9) == b""
        link.sendall(b"two\n")
        turn(loop, clock, 2)
        assert served.lines == [b"one"]
    turn(loop, clock, 2)
    assert served.inbox.step(clock.now) is None
    served.inbox.close()


def test_replies_that_are_not_read_wait_and_then_end(loop: Loop, clock: Clock, path: str) -> None:
    """A visitor cannot make us hold more than a little for it."""
    served = Served(loop, path, lambda line: line * 60_000)
    with dial(path, b"x\n" * 40) as link:
        turn(loop, clock, 5)
        before = len(served.lines)
        link.sendall(b"x\n" * 40)
        turn(loop, clock, 3)
        assert len(served.lines) == before == 40
        # Now it reads, and gets every reply to what was read.
        got = bytearray()
        ended = False

        def at_end() -> bool:
            nonlocal ended
            while not ended and select.select([link], [], [], 0)[0]:
                data = link.recv(65536)
                got.extend(data)
                ended = not data
            return ended

        assert loop.run(at_end, clock.now + 5)
        assert bytes(got) == (b"x" * 60_000 + b"\n") * 40
    served.inbox.close()


def test_a_visitor_that_vanishes_with_its_replies_hurts_nobody(
    loop: Loop, clock: Clock, path: str
) -> None:
    served = Served(loop, path, lambda line: line * 60_000)
    link = dial(path, b"x\n" * 40)
    turn(loop, clock, 3)
    link.close()
    turn(loop, clock, 4)
    assert served.inbox.step(clock.now) is None
    served.inbox.close()


def test_without_descriptors_visitors_wait_in_the_backlog(
    loop: Loop, clock: Clock, path: str
) -> None:
    served = Served(loop, path)
    link = dial(path, b"one\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        turn(loop, clock, 2)
        assert served.lines == [] and served.inbox.step(clock.now) == clock.now + 0.5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    clock.now += 0.6
    turn(loop, clock, 4)
    assert link.recv(9) == b"ONE\n"
    link.close()
    served.inbox.close()


def test_a_socket_that_cannot_be_bound_is_an_error(loop: Loop, short_tmp: Path) -> None:
    with pytest.raises(OSError):
        Inbox(loop, str(short_tmp / "missing" / "s.sock"), lambda line: None)


def test_a_connection_that_was_taken_by_nobody_does_not_block(
    loop: Loop, clock: Clock, path: str
) -> None:
    """The listener was ready, and the visitor is gone when it is looked at."""
    served = Served(loop, path)
    served.inbox._accept(READ)
    assert wait(lambda: served.inbox.step(clock.now) is None, 1)
    served.inbox.close()
