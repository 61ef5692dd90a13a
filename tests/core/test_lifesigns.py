"""What a daemon's status file tells of the process that writes it."""

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.lifesigns import UNWATCHED, Lifesigns, process_start
from hermes_bridges.core.service import Service
from hermes_bridges.core.status import Status
from tests.conftest import wait

_LOG = logging.getLogger("hermes_bridges.made_up")


class Told:
    """A status file, and the life signs in it."""

    def __init__(self, path: Path, environ: dict[str, str]) -> None:
        self.now = 100.0
        self.path = path
        self.status = Status(str(path))
        self.signs = Lifesigns(environ, self.status, self.redact, clock=lambda: self.now)

    @staticmethod
    def redact(text: str) -> str:
        return text.replace("s3cret", "***")

    def values(self) -> dict[str, Any]:
        self.status.write()
        found: dict[str, Any] = json.loads(self.path.read_text())["values"]
        return found


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path / "status.json", {})
    yield told
    told.signs.close()


def test_it_names_the_process_and_when_it_was_started(told: Told) -> None:
    values = told.values()
    assert values["process_start"] == process_start(os.getpid()) and values["process_start"] > 0
    assert values["started_at"].endswith("Z") and "state" not in values


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert process_start(2**22 + 1) is None
    assert process_start("self/task") is None


def test_the_state_follows_the_service(told: Told) -> None:
    told.signs.ready("on line")
    assert told.values()["state"] == "running"
    told.path.unlink()
    told.signs.stopping()
    # Written at once: nothing else is, until the end of a stop that may take minutes.
    assert json.loads(told.path.read_text())["values"]["state"] == "stopping"
    told.signs.stopped(70)
    values = json.loads(told.path.read_text())["values"]
    assert (values["state"], values["exit_code"]) == ("stopped", 70)


def test_the_beat_is_on_the_clock_that_all_processes_share(told: Told) -> None:
    told.signs.beat(123.4567)
    assert told.values()["beat"] == 123.457


def test_without_pings_it_is_stuck(told: Told) -> None:
    told.signs.beat(100.0 + 0.7 * UNWATCHED)
    assert told.values()["stuck_seconds"] == 0
    told.signs.beat(100.0 + UNWATCHED)
    assert told.values()["stuck_seconds"] == UNWATCHED
    told.now = 130.0
    told.signs.watchdog_ping()
    told.signs.beat(131.0)
    assert told.values()["stuck_seconds"] == 0


def test_the_last_error_and_the_last_warning_are_kept_and_redacted(told: Told) -> None:
    _LOG.error("no room for s3cret %s", "x" * 1000)
    _LOG.warning("the first")
    _LOG.warning("the %s", "second")
    _LOG.info("all is well")
    values = told.values()
    assert values["last_error"]["text"].startswith("no room for *** x")
    assert len(values["last_error"]["text"]) == 500
    assert values["last_warning"]["text"] == "the second"
    assert values["last_warning"]["at"].endswith("Z")


def test_a_message_that_cannot_be_made_up_is_told_as_it_is(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The handlers of the test's own log would raise.
    monkeypatch.setattr(logging.getLogger("hermes_bridges"), "propagate", False)
    _LOG.error("%d of %d", "one")
    assert told.values()["last_error"]["text"] == "%d of %d"


def test_nothing_is_noted_after_the_close(told: Told) -> None:
    told.signs.close()
    _LOG.error("too late")
    assert "last_error" not in told.values()


def test_a_manager_that_wants_no_pings_gets_none(tmp_path: Path) -> None:
    for wanted in (None, "60000000"):
        address = str(tmp_path / f"notify-{wanted}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
            manager.bind(address)
            environ = {"NOTIFY_SOCKET": address} | ({"WATCHDOG_USEC": wanted} if wanted else {})
            told = Told(tmp_path / "status.json", environ)
            told.signs.watchdog_ping()
            told.signs.stopping()
            told.signs.close()
            heard = [manager.recv(100)]
            if wanted:
                heard.append(manager.recv(100))
        assert heard == [b"WATCHDOG=1"] * bool(wanted) + [b"STOPPING=1"]
        assert told.signs.watchdog == (60.0 if wanted else UNWATCHED)


class Hanging:
    """A stage whose step ends when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def step(self, now: float) -> float | None:
        self.go_on.wait()
        return None

    def wait(self, timeout: float | None) -> None:
        self.go_on.wait(timeout)

    def stop(self) -> None:
        self.go_on.set()

    def close(self) -> None:
        pass


def test_a_thread_that_hangs_is_seen_in_the_file_of_a_real_service(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = Status(str(path), every=0.05)
    signs = Lifesigns({"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "600000"}, status, str)

    def tick(now: float) -> float:
        signs.beat(now)
        return status.write_if_due(now)

    hanging = Hanging()
    service = Service("made-up", signs, tick=tick)
    service.add("made.up", hanging, stop_rank=0)

    def look() -> None:
        def values() -> Any:
            return json.loads(path.read_text())["values"] if path.exists() else {}

        try:
            seen.append(wait(lambda: values().get("stuck_seconds"), 5))
            seen.append(values()["last_error"]["text"])
            hanging.go_on.set()
            seen.append(wait(lambda: values().get("stuck_seconds") == 0, 5))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    seen: list[Any] = []
    looker = threading.Thread(target=look, name="looker", daemon=True)
    looker.start()
    begun = time.monotonic()
    assert service.run() == 0
    looker.join()
    signs.close()
    assert time.monotonic() - begun < 10
    assert seen == [1, "no progress in made.up", True]
