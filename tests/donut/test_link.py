"""What is made of the stream's news: sections 1, 6 and 8 of the contract, to a real hub."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.chats import Chats, Lane
from hermes_bridges.core.frames import Oversized
from hermes_bridges.core.status import Status
from hermes_bridges.core.stream import Lost, Opened, Refused, Stream
from hermes_bridges.donut.intake import Intake
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.link import Link
from hermes_bridges.donut.store import Store
from hermes_bridges.donut.turns import Ask
from hermes_bridges.standins.donut_hub import DonutHub
from tests.conftest import wait
from tests.donut.rig import LONG, TOKEN, errors


class Line:
    """A stream with its link and intake, each on a thread, whose messages are settled at once."""

    def __init__(self, root: Path, hub: DonutHub, limit: int = 20) -> None:
        self.hub = hub
        self.path = root / "status.json"
        self.status = Status(str(self.path))
        self.store = Store(str(root))
        self.ledger = Ledger(self.store.cursor())
        self.handled: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refusals: list[str] = []
        self.chats: Chats[Ask] = Chats(
            self._handle, limit, 60.0, on_drained=lambda chat: self.intake.drained(chat)
        )
        self.link = Link(hub.stream_url, TOKEN, self.status)
        self.stream = Stream(
            lambda: self.link.target(self.intake.resume_from()),
            lambda raw: self.intake.offer(raw),
            self.link.changed,
            rand=lambda: 0.0,
        )
        self.intake = Intake(
            self.chats,
            self.ledger,
            self.store,
            self.status,
            False,
            threading.Event(),
            confirm=self.stream.confirm,
            resume=self.stream.resume,
            redial=self.stream.redial,
            wrong_bot=lambda: None,
            met=lambda bot: None,
        )
        self.link.refused_cursor = self.intake.without_cursor
        self.link.refused_token = lambda: self.refusals.append("token")
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(stage,), name="stage")
            for stage in (self.stream, self.intake)
        ]
        for thread in self._threads:
            thread.start()

    def _handle(self, worker: Lane, ask: Ask | None) -> None:
        assert ask is not None
        self.handled.append(ask.text)
        assert self.gate.wait(LONG)
        self.store.settle(ask.message.chat, ask.message.message)
        self.ledger.settle(ask.message.chat, ask.message.message)

    def _run(self, stage: Any) -> None:
        while not self._stopping.is_set():
            due = stage.step(time.monotonic())
            stage.wait(None if due is None else max(0.0, due - time.monotonic()))
        stage.step(time.monotonic())
        stage.close()

    def close(self) -> None:
        self._stopping.set()
        self.gate.set()
        self.stream.stop()
        self.intake.stop()
        for thread in self._threads:
            thread.join(LONG)
        self.chats.stop()
        self.chats.close()
        self.store.close()

    def found(self) -> dict[str, Any]:
        self.status.write()
        found = json.loads(self.path.read_text())
        return {**found["values"], **found["counters"]}


@pytest.fixture
def hub() -> Iterator[DonutHub]:
    hub = DonutHub(token=TOKEN)
    hub.add_chat(1, "all")
    yield hub
    hub.close()


@contextmanager
def line(root: Path, hub: DonutHub, **options: Any) -> Iterator[Line]:
    line = Line(root, hub, **options)
    try:
        assert hub.wait(lambda: hub.online, LONG)
        yield line
    finally:
        line.close()


def dials(hub: DonutHub) -> list[tuple[int | None, str | None]]:
    return [(dial.status, dial.last_event_id) for dial in hub.dials]


def until(true: Callable[[], Any]) -> None:
    assert wait(true, LONG)


# --- to a hub


def test_each_dial_resumes_after_the_last_settled_event(tmp_path, hub) -> None:
    hub.say(1, "before")
    with line(tmp_path, hub) as one:
        hub.say(1, "one")
        until(lambda: one.handled == ["one"])
        hub.cut()
        hub.say(1, "while away")
        until(lambda: one.handled == ["one", "while away"])
        until(lambda: one.ledger.cursor == "1003")
    with line(tmp_path, hub) as one:
        hub.say(1, "after a restart")
        until(lambda: one.handled == ["after a restart"])
    assert dials(hub) == [(101, None), (101, "1002"), (101, "1003")]
    for dial in hub.dials:
        assert dial.headers["authorization"] == f"Bearer {TOKEN}"


def test_what_is_in_flight_is_replayed_and_ignored(tmp_path, hub) -> None:
    with line(tmp_path, hub) as one:
        hub.say(1, "first")
        until(lambda: one.ledger.cursor == "1001")
        one.gate.clear()
        for text in ("in flight", "queued"):
            hub.say(1, text)
        until(lambda: one.handled[1:] == ["in flight"])
        hub.cut()
        until(lambda: one.found().get("ignored.duplicate") == 2)
        one.gate.set()
        until(lambda: one.ledger.cursor == "1003")
        assert one.handled == ["first", "in flight", "queued"]
        assert one.found()["reconnects"] == 1
    assert dials(hub)[1] == (101, "1001")


def test_a_dropped_message_comes_again_by_one_redial(tmp_path, hub) -> None:
    with line(tmp_path, hub, limit=2) as one:
        hub.say(1, "first")
        until(lambda: one.ledger.cursor == "1001")
        one.gate.clear()
        hub.say(1, "in flight")
        until(lambda: len(one.handled) == 2)
        for number in range(5):
            hub.say(1, f"no. {number}")
        until(lambda: one.found().get("dropped") == 3)
        one.gate.set()
        until(lambda: one.ledger.cursor == "1007")
        assert one.handled[2:] == ["no. 3", "no. 4", "no. 0", "no. 1", "no. 2"]
        # Replayed, they pushed nothing out, and the stream was dialled once for all three.
        assert one.found()["dropped"] == 3 and "lost" not in one.found()
    assert dials(hub) == [(101, None), (101, "1002")]


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_cursor_that_the_hub_refuses_is_left_out(tmp_path, hub, status) -> None:
    with line(tmp_path, hub) as one:
        hub.say(1, "one")
        until(lambda: one.ledger.cursor == "1001")
        hub.refuse(status)
        hub.cut()
        until(lambda: len(hub.dials) == 3 and hub.online)
        hub.say(1, "two")
        until(lambda: one.handled == ["one", "two"])
        until(lambda: one.found().get("gaps") == 1)
    assert dials(hub) == [(101, None), (status, "1001"), (101, None)]


def test_another_refusal_keeps_the_cursor(tmp_path, hub) -> None:
    with line(tmp_path, hub) as one:
        hub.say(1, "one")
        until(lambda: one.ledger.cursor == "1001")
        hub.refuse(503)
        hub.cut()
        until(lambda: len(hub.dials) == 3 and hub.online)
    assert dials(hub) == [(101, None), (503, "1001"), (101, "1001")]


def test_a_hub_that_forgot_replays_what_it_holds_and_that_is_a_gap(tmp_path, hub, caplog) -> None:
    with line(tmp_path, hub) as one:
        hub.say(1, "one")
        until(lambda: one.ledger.cursor == "1001")
        hub.stop_listening(keep=False)
        hub.say(1, "missed")
        hub.start_listening()
        until(lambda: one.handled == ["one", "missed"])
        assert one.found()["gaps"] == 1
    assert sum("no longer holds" in r.getMessage() for r in caplog.records) == 1


def test_an_oversized_message_is_skipped_and_the_connection_stays(tmp_path, hub) -> None:
    with line(tmp_path, hub) as one:
        hub.frame(json.dumps({"type": "message.new", "x": "y" * (1024 * 1024)}).encode())
        hub.frame(b"\xff\xff")
        hub.say(1, "one")
        until(lambda: one.handled == ["one"])
        found = one.found()
        assert (found["ignored.oversized"], found["ignored.malformed"]) == (1, 1)
    assert dials(hub) == [(101, None)]


# --- what is said of it


@pytest.fixture
def told(tmp_path) -> Iterator[tuple[Link, Callable[[], dict[str, Any]], list[str]]]:
    status = Status(str(tmp_path / "status.json"))
    link = Link("ws://hub.test/stream?a=b", TOKEN, status)
    called: list[str] = []
    link.refused_cursor = lambda: called.append("cursor")
    link.refused_token = lambda: called.append("token")

    def found() -> dict[str, Any]:
        status.write()
        whole = json.loads((tmp_path / "status.json").read_text())
        return {**whole["values"], **whole["counters"]}

    yield link, found, called


def test_the_target_has_the_cursor_and_never_the_token(told) -> None:
    link, _, _ = told
    assert link.target(None).url == "ws://hub.test/stream?a=b"
    target = link.target("10 41")
    assert target.url == "ws://hub.test/stream?a=b&last_event_id=10%2041"
    assert dict(target.headers) == {"Authorization": f"Bearer {TOKEN}"}


def test_the_connections_state_is_told_and_counted(told) -> None:
    link, found, called = told
    assert link.describe() == found()["connection"] == "connecting"
    link.changed(Opened())
    assert link.describe() == found()["connection"] == "connected"
    link.changed(Lost("the peer has gone", None, 3.0, 1.0))
    assert link.describe() == "disconnected" and found()["reconnects"] == 1
    link.changed(Refused(None, None, False, "refused", 1.0))
    link.changed(Refused(503, None, False, "HTTP 503", 1.0))
    link.changed(Oversized(2_000_000))
    assert found()["reconnects"] == 1 and found()["ignored.oversized"] == 1
    assert called == []


@pytest.mark.parametrize(("status", "code"), [(401, None), (403, None), (None, 4001)])
def test_KH34_a_refused_token_is_named_and_no_other_fault_is_taken_for_it(
    told, caplog, status, code
) -> None:
    link, found, called = told
    link.target("1041")
    link.changed(Refused(status, code, True, "it said no", 30.0))
    assert ["DONUT_BOT_TOKEN" in text for text in errors(caplog)] == [True]
    assert "DONUT_BOT_TOKEN" in found()["connection"] and called == ["token"]
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("status", "cursor", "refused"),
    [
        (400, "1041", True),
        (404, "1041", True),
        (410, "1041", True),
        (404, None, False),
        (409, "1041", False),
        (500, "1041", False),
        (None, "1041", False),
    ],
)
def test_which_refusals_speak_of_the_cursor(told, status, cursor, refused) -> None:
    link, _, called = told
    link.target(cursor)
    link.changed(Refused(status, None, False, "no", 1.0))
    assert called == (["cursor"] if refused else [])
