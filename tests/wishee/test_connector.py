"""The connector between the stand-in bridge and a host that does what a test says."""

import asyncio
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.standins.wishee_bridge import WisheeBridge
from hermes_bridges.wishee.connector import Connector
from hermes_bridges.wishee.history import HistoryFailed
from hermes_bridges.wishee.settings import parse
from tests.harness.daemon import wait
from tests.wishee.hermes_host import SHORT, STORED, FakeHost, FakeReads

SECONDS = 20.0


def threads_named(beginning: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(beginning)]


class Site:
    """A connector on a loop of its own thread, as in a gateway."""

    def __init__(self, home: Path, bridge: WisheeBridge, **variables: str) -> None:
        self.home = home
        self.directory = home / "wishee-connector"
        self.bridge = bridge
        self.host = FakeHost()
        reads: Any = FakeReads()
        self.reads = reads
        environ = {"HERMES_HOME": str(home), "WISHEE_BRIDGE_URL": bridge.url, **variables}
        self.connector = Connector(parse(environ), self.host, reads, report_every=0.05)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(SECONDS)

    def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        async def work() -> Any:
            return act(*arguments)

        return self.call(work())

    def answer(self, text: str, result: str) -> None:
        wait(lambda: text in self.host.turns, SECONDS, f"the turn {text!r}")
        self.do(self.host.answer, text, result)

    def connect(self) -> None:
        before = len(self.bridge.connections)
        self.call(self.connector.connect())
        self.welcomed(before)

    def welcomed(self, before: int) -> None:
        newer = self.bridge.connections
        wait(lambda: any(c.live for c in newer[before:]), SECONDS, "a welcome")

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


@pytest.fixture
def bridge() -> Iterator[WisheeBridge]:
    made = WisheeBridge()
    yield made
    assert made.violations == []
    made.close()


@contextmanager
def site(home: Path, bridge: WisheeBridge, **variables: str) -> Iterator[Site]:
    made = Site(home, bridge, **variables)
    try:
        made.connect()
        yield made
        made.call(made.connector.disconnect())
    finally:
        made.end()


def ask(bridge: WisheeBridge, method: str, **params: Any) -> Any:
    return bridge.request(method, params).result(SECONDS)


def test_a_turn_from_the_request_to_usage_and_context(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        run_id = bridge.send("hello")
        s.answer("hello", "the answer")
        assert bridge.result(run_id) == "the answer"
        wait(lambda: bridge.of("agent-context"), SECONDS, "the context")
        names = [event.name for event in bridge.events if event.name != "agent-usage"]
        assert names == ["task-result", "agent-context"]
        assert len(bridge.of("agent-usage")) == 2, "at the welcome, and after the turn"
        wait(lambda: "run-" not in (s.directory / "runs.json").read_text(), 5, "the run is over")


def test_the_hello_names_the_version_of_Hermes(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        assert bridge.online()[0].version == s.host.version
        identity = json.loads((s.directory / "binding.json").read_text())
        assert identity["agent_id"] == bridge.online()[0].agent_id
        wait(lambda: json.loads((s.directory / "binding.json").read_text())["bound"], 5, "bound")


def test_requests_reach_what_they_read(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        bridge.send("going on")
        wait(lambda: s.host.turns, SECONDS, "a turn")
        messages = ask(bridge, "chat.history", limit=3).payload["messages"]
        assert messages == [{"role": "user", "content": "a"}]
        assert ask(bridge, "chat.turns", sessionKey=STORED).payload == {"turns": []}
        assert ask(bridge, "sessions.list").payload == {"sessions": []}
        asked = [one for one in s.reads.asked if one[0] in ("history", "turns", "sessions")]
        assert asked == [
            ("history", (SHORT, STORED), 3),
            ("turns", (STORED,), 20, ["going on"]),
            ("sessions", {STORED}, False),
        ]
        s.reads.fault = HistoryFailed("state.db: locked")
        assert ask(bridge, "chat.history").error == "state.db: locked"
        s.reads.fault = None


def test_W25_the_scope_limits_what_is_read(short_tmp: Path, bridge: WisheeBridge):
    foreign = "agent:main:telegram:dm:1"
    with site(short_tmp, bridge, WISHEE_READ_SCOPE="wishee") as s:
        for method in ("chat.history", "chat.turns"):
            assert "WISHEE_READ_SCOPE" in ask(bridge, method, sessionKey=foreign).error
            assert ask(bridge, method).ok
        assert ask(bridge, "sessions.list").ok
        assert ("sessions", set(), True) in s.reads.asked


def test_a_reset_reaches_the_session_and_the_run_in_it(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        assert ask(bridge, "sessions.reset", key=SHORT).payload == {"ok": True}
        bridge.send("going on")
        wait(lambda: s.host.turns, SECONDS, "a turn")
        assert ask(bridge, "sessions.reset", sessionKey=STORED).payload == {"ok": True}
        assert [(key, run and run.message) for key, run in s.host.were_reset] == [
            (STORED, None),
            (STORED, "going on"),
        ]
        assert ask(bridge, "sessions.reset", key="unknown").payload["ok"] is False
        assert "another platform" in ask(bridge, "sessions.reset", key="agent:a:irc:dm:x").error


def test_W22_a_request_that_is_too_large_gets_an_error_res(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge):
        frame = {"type": "req", "id": 5, "method": "chat.send", "params": {"x": "y" * 9_000_000}}
        future = bridge.raw(frame)
        assert future is not None
        assert future.result(SECONDS).error == "params: too large; a message may have 256 KiB"
        assert ask(bridge, "sessions.list").ok, "on the same connection"


def test_W1_a_result_of_a_time_without_the_bridge(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        run_id = bridge.send("hello")
        wait(lambda: "hello" in s.host.turns, SECONDS, "a turn")
        before = len(bridge.connections)
        bridge.stop_listening()
        s.answer("hello", "the answer")
        outbox = s.directory / "outbox.jsonl"
        wait(lambda: outbox.exists() and run_id in outbox.read_text(), SECONDS, "it is kept")
        bridge.start_listening()
        s.welcomed(before)
        assert bridge.result(run_id) == "the answer"
        later = [event.name for event in bridge.events if event.conn > before]
        assert later[0] == "task-result"


def test_W1_what_was_not_sent_is_sent_by_the_next_process(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        run_id = bridge.send("hello")
        wait(lambda: "hello" in s.host.turns, SECONDS, "a turn")
        bridge.stop_listening()
        s.answer("hello", "the answer")
    bridge.start_listening()
    assert not bridge.results(run_id)
    with site(short_tmp, bridge):
        assert bridge.result(run_id) == "the answer"


def test_W3_a_disconnect_in_a_turn_ends_the_run(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        run_id = bridge.send("hello")
        wait(lambda: "hello" in s.host.turns, SECONDS, "a turn")
    assert bridge.result(run_id, 5) == ""


def test_another_user_gets_nothing_of_the_former_one(
    short_tmp: Path, bridge: WisheeBridge, caplog: pytest.LogCaptureFixture
):
    with site(short_tmp, bridge) as s:
        going = bridge.send("going on")
        unsent = bridge.send("unsent", "other")
        wait(lambda: len(s.host.turns) == 2, SECONDS, "two turns")
        bridge.stop_listening()
        s.answer("unsent", "a secret")
        outbox = s.directory / "outbox.jsonl"
        wait(lambda: outbox.exists() and unsent in outbox.read_text(), SECONDS, "it is kept")
        before = len(bridge.connections)
        identity = json.loads((s.directory / "binding.json").read_text())
        bridge.bind(identity["agent_id"], identity["secret"], "user-2")
        bridge.start_listening()
        s.welcomed(before)
        s.answer("going on", "another secret")
        mine = bridge.send("of mine", "third")
        s.answer("of mine", "hello")
        assert bridge.result(mine) == "hello"
        assert not bridge.results(going) and not bridge.results(unsent)
    assert "1 runs and 1 unsent results" in caplog.text and "secret" not in caplog.text


def test_W16_an_agent_that_was_unbound_notes_it(short_tmp: Path, bridge: WisheeBridge):
    def bound() -> object:
        return json.loads((short_tmp / "wishee-connector/binding.json").read_text())["bound"]

    with site(short_tmp, bridge):
        wait(bound, SECONDS, "it is bound")
        bridge.unbind()
        wait(lambda: not bound(), SECONDS, "it is not")


def test_an_operator_finds_how_it_stands(short_tmp: Path, bridge: WisheeBridge):
    file = short_tmp / "wishee-connector" / "status.json"

    def values() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(file.read_text())["values"] if file.exists() else {}
        return found

    with site(short_tmp, bridge) as s:
        wait(lambda: values().get("welcomed"), SECONDS, "it is written")
        assert values()["last_welcome"] and values()["hermes"] == s.host.version
        assert values()["bridge"] == f"127.0.0.1:{bridge.port}"
        bridge.send("hello")
        wait(lambda: values()["runs"] == 1, SECONDS, "a run")
        bridge.stop_listening()
        wait(lambda: not values()["welcomed"], SECONDS, "it is lost")
        wait(lambda: values()["last_error"], SECONDS, "and why")
        s.answer("hello", "a secret")
        wait(lambda: values()["unsent"] == 1, SECONDS, "a result")
        secret = json.loads((s.directory / "binding.json").read_text())["secret"]
        assert secret not in file.read_text() and "a secret" not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
    assert not file.exists(), "a clean end"
    bridge.start_listening()


def test_W18_no_callback_keeps_the_loop_busy(
    short_tmp: Path, bridge: WisheeBridge, monkeypatch: pytest.MonkeyPatch
):
    """Its work is counted in its own time on the processor, as others may be busy as well."""
    ticks: list[tuple[float, float]] = []

    async def tick() -> None:
        while True:
            ticks.append((time.thread_time(), time.monotonic()))
            await asyncio.sleep(0.005)

    fsync = os.fsync

    def slow_fsync(fd: int) -> None:
        time.sleep(0.2)
        fsync(fd)

    with site(short_tmp, bridge) as s:
        monkeypatch.setattr(os, "fsync", slow_fsync)
        ticker = s.do(lambda: asyncio.ensure_future(tick()))
        s.host.at_once = {"short": "x" * 1000, "long": "y" * 500_000}
        sent = [bridge.send("short", f"c{n % 60}") for n in range(200)]
        wait(lambda: bridge.results(sent[-1]), SECONDS, "the last result")
        before = len(bridge.connections)
        running = [
            bridge.request("chat.send", {"message": "going on", "sessionKey": f"r{n}"})
            for n in range(50)
        ]
        assert all(future.result(SECONDS).ok for future in running)
        bridge.cut()
        s.welcomed(before)
        assert bridge.result(bridge.send("long")) == "y" * 500_000
        s.do(ticker.cancel)
        monkeypatch.setattr(os, "fsync", fsync)
    pairs = list(itertools.pairwise(ticks))
    busy = sorted(later[0] - earlier[0] for earlier, later in pairs)
    away = sorted(later[1] - earlier[1] for earlier, later in pairs)
    # 20 ms on a quiet machine; here it is traced, and the processor is shared.
    assert busy[-1] < 0.1, busy[-5:]
    # A wait for the disk would be there once for each message.
    assert away[-20] < 0.15, "it waits for the disk"


def test_W17_it_starts_without_the_bridge(short_tmp: Path, bridge: WisheeBridge):
    bridge.stop_listening()
    made = Site(short_tmp, bridge)
    try:
        made.call(made.connector.connect())
        bridge.start_listening()
        made.welcomed(0)
        made.call(made.connector.disconnect())
    finally:
        made.end()


def test_a_start_that_fails_leaves_no_thread(short_tmp: Path, bridge: WisheeBridge):
    (short_tmp / "wishee-connector").write_text("a file is in the way")
    made = Site(short_tmp, bridge)
    try:
        with pytest.raises((OSError, BridgeError)):
            made.call(made.connector.connect())
        wait(lambda: threads_named("wishee.") == [], 5, "all are over")
    finally:
        made.end()


def test_reads_that_fail_cost_no_turn(
    short_tmp: Path, bridge: WisheeBridge, caplog: pytest.LogCaptureFixture
):
    with site(short_tmp, bridge) as s:
        s.reads.fault = HistoryFailed("state.db: locked")
        run_id = bridge.send("hello")
        s.answer("hello", "the answer")
        assert bridge.result(run_id) == "the answer"
        wait(lambda: "usage and context are not told" in caplog.text, SECONDS, "it is said")
        s.reads.fault = RuntimeError("a fault")
        run_id = bridge.send("again")
        s.answer("again", "the same")
        assert bridge.result(run_id) == "the same"
        wait(lambda: "a fault of the connector" in caplog.text, SECONDS, "it is said")


def test_a_disconnect_takes_every_thread_along(short_tmp: Path, bridge: WisheeBridge):
    with site(short_tmp, bridge) as s:
        ask(bridge, "sessions.list")
        assert threads_named("wishee.link") and threads_named("wishee.disk")
        assert threads_named("wishee.read")
        assert s.connector.turns.working() == set()
    wait(lambda: threads_named("wishee.") == [], 5, "all are over")
