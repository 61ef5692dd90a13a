import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.core.sdnotify import CHILD_UNSET, Notifier


class Manager:
    """The receiving end of a notify socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.socket.settimeout(5)
        self.environ = {"NOTIFY_SOCKET": address}

    def next(self) -> str:
        return self.socket.recv(4096).decode()

    def is_quiet(self) -> bool:
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(5)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Manager]:
    path = f"{short_tmp}/notify"
    manager = Manager(path if request.param == "path" else f"@{path}")
    yield manager
    manager.socket.close()


def test_each_message_reaches_a_path_and_an_abstract_socket(manager: Manager) -> None:
    notifier = Notifier(manager.environ | {"WATCHDOG_USEC": "500000"})
    assert notifier.enabled
    assert notifier.watchdog == 0.5
    notifier.ready("up")
    notifier.status("2 open ✓")
    notifier.watchdog_ping()
    notifier.stopping()
    messages = [manager.next() for _ in range(4)]
    assert messages == ["READY=1\nSTATUS=up", "STATUS=2 open ✓", "WATCHDOG=1", "STOPPING=1"]


def test_a_status_cannot_smuggle_in_another_assignment(manager: Manager) -> None:
    notifier = Notifier(manager.environ)
    notifier.status("a\nSTOPPING=1\r\nb\u2028c\ud83d" + "x" * 5000)
    message = manager.next()
    assert message.startswith("STATUS=a STOPPING=1 b c?xxx")
    assert len(message.splitlines()) == 1
    assert len(message) < 600


def test_no_ping_without_a_watchdog(manager: Manager) -> None:
    notifier = Notifier(manager.environ)
    assert notifier.watchdog is None
    notifier.watchdog_ping()
    assert manager.is_quiet()


def test_no_socket_is_no_operation() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "500000"})
    assert not notifier.enabled
    assert notifier.watchdog is None
    notifier.ready("up")
    notifier.watchdog_ping()
    notifier.stopping()


@pytest.mark.parametrize("address", ["vsock:2:1234", "notify", "\0", ""])
def test_an_address_of_another_kind_is_not_used(address: str) -> None:
    assert not Notifier({"NOTIFY_SOCKET": address}).enabled


@pytest.mark.parametrize("place", ["gone/notify", "x" * 200, "@" + "x" * 200])
def test_KH40_a_missing_socket_breaks_nothing(
    short_tmp: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = place if place.startswith("@") else f"{short_tmp}/{place}"
    notifier = Notifier({"NOTIFY_SOCKET": address})
    with caplog.at_level(logging.DEBUG, "hermes_bridges"):
        notifier.ready("secret status")
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "READY" in caplog.text
    assert "secret" not in caplog.text


def test_KH40_the_watchdog_of_another_process_is_not_ours(manager: Manager) -> None:
    environ = manager.environ | {"WATCHDOG_USEC": "1000000"}
    assert Notifier(environ | {"WATCHDOG_PID": str(os.getpid())}).watchdog == 1.0
    assert Notifier(environ | {"WATCHDOG_PID": "7"}, pid=7).watchdog == 1.0
    other = Notifier(environ | {"WATCHDOG_PID": "7"}, pid=8)
    assert other.enabled
    assert other.watchdog is None
    other.watchdog_ping()
    assert manager.is_quiet()


@pytest.mark.parametrize("text", ["0", "-5", "abc", "1.5", "١", "9" * 30])
def test_a_watchdog_that_is_no_number_is_told_and_not_used(
    manager: Manager, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Notifier(manager.environ | {"WATCHDOG_USEC": text}).watchdog is None
    assert "WATCHDOG_USEC" in caplog.text


def test_a_manager_that_does_not_read_holds_nobody_up(short_tmp: Path) -> None:
    with Manager(f"{short_tmp}/full").socket as full:
        address = f"{short_tmp}/full"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                while True:
                    sender.sendto(b"x", address)
            except BlockingIOError:
                pass
        before = time.monotonic()
        Notifier({"NOTIFY_SOCKET": address}).status("x")
        assert time.monotonic() - before < 2
        assert full.recv(10) == b"x"


def test_the_variables_that_no_child_may_see() -> None:
    assert set(CHILD_UNSET) == {
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
    }
