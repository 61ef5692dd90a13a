import itertools
import logging
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.service import Service
from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import BridgeError
from tests.conftest import ROOT, wait

SILENT = Notifier({})


class Probe:
    """A stage that writes down what is called, and on which thread."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events
        self.steps = 0
        self.waits: list[float | None] = []
        self.due: Callable[[float], float | None] = lambda now: None
        self.on_step: Callable[[], object] = lambda: None
        self.on_stop: Callable[[], object] = lambda: None
        self.on_close: Callable[[], object] = lambda: None
        self.threads: set[str] = set()
        self.waker = Waker()

    def step(self, now: float) -> float | None:
        self.threads.add(threading.current_thread().name)
        self.steps += 1
        self.on_step()
        return self.due(now)

    def wait(self, timeout: float | None) -> None:
        self.threads.add(threading.current_thread().name)
        self.waits.append(timeout)
        self.waker.wait(timeout)

    def stop(self) -> None:
        self.events.append(f"stop {self.name}")
        self.waker.wake()
        self.on_stop()

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.append(f"close {self.name}")
        self.on_close()
        self.waker.close()


class Running:
    """A service whose main loop runs on a thread of the test; signals are then not its own."""

    def __init__(self, service: Service, on_ready: Callable[[], None] | None = None) -> None:
        self.service = service
        self.code: int | None = None
        self.ready = threading.Event()
        # A daemon: what fails here must not keep the test run from its end.
        self.thread = threading.Thread(target=self._run, args=(on_ready,), daemon=True)
        self.thread.start()

    def _run(self, on_ready: Callable[[], None] | None) -> None:
        def announce() -> None:
            if on_ready is not None:
                on_ready()
            self.ready.set()

        self.code = self.service.run(announce)

    def end(self, stop: bool = True) -> tuple[int | None, float]:
        before = time.monotonic()
        if stop:
            self.service.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.code, time.monotonic() - before


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert wait(lambda: set(threading.enumerate()) <= before, 3), threading.enumerate()


def test_each_stage_has_one_named_thread_of_its_own(events: list[str]) -> None:
    service = Service("x", SILENT)
    probes = [Probe(name, events) for name in ("a", "b")]
    for probe in probes:
        service.add(f"x.{probe.name}", probe, 1)
    running = Running(service)
    assert wait(lambda: all(probe.waits for probe in probes), 5)
    assert running.end()[0] == 0
    assert [probe.threads for probe in probes] == [{"x.a"}, {"x.b"}]
    assert not service.hung


def test_stages_end_rank_by_rank_each_after_its_last_step(events: list[str]) -> None:
    service = Service("x", SILENT)
    for name, rank in (("store", 9), ("intake", 1), ("middle", 5)):
        service.add(name, Probe(name, events), rank)
    running = Running(service)
    assert running.ready.wait(5)
    assert running.end()[0] == 0
    assert events == [
        "stop intake",
        "close intake",
        "stop middle",
        "close middle",
        "stop store",
        "close store",
    ]


def test_stages_of_one_rank_end_side_by_side(events: list[str]) -> None:
    service = Service("x", SILENT)
    together = threading.Barrier(3)
    for name in ("a", "b", "c"):
        probe = Probe(name, events)
        probe.on_close = lambda: together.wait(5)
        service.add(name, probe, 1)
    assert Running(service).end()[0] == 0
    assert not service.hung


def test_what_was_handed_over_before_the_stop_still_gets_a_step(events: list[str]) -> None:
    for _ in range(50):
        service = Service("x", SILENT)
        probe = Probe("a", events)
        work: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: list[int] = []

        def take(work: "queue.SimpleQueue[int]" = work, done: list[int] = done) -> None:
            while not work.empty():
                done.append(work.get())

        probe.on_step = take
        service.add("a", probe, 1)
        running = Running(service)
        assert running.ready.wait(5)
        work.put(1)
        assert running.end()[0] == 0
        assert done == [1]


def test_a_stage_waits_until_its_next_due_time_and_never_a_negative_one(
    events: list[str],
) -> None:
    now = [100.0]
    dues = iter([105.0, 90.0, float("inf"), None])
    service = Service("x", SILENT, clock=lambda: now[0])
    probe = Probe("a", events)
    probe.due = lambda at: next(dues, None)
    service.add("a", probe, 1)
    running = Running(service)
    assert wait(lambda: len(probe.waits) == 1, 5)
    probe.waker.wake()
    assert wait(lambda: len(probe.waits) == 3, 5)
    probe.waker.wake()
    assert wait(lambda: len(probe.waits) == 4, 5)
    running.service.stop()
    running.thread.join(10)
    assert probe.waits == [5.0, 0.0, None, None]


def test_the_tick_is_called_when_it_is_due(events: list[str]) -> None:
    ticks: list[float] = []

    def tick(now: float) -> float | None:
        ticks.append(now)
        return now + 0.05 if len(ticks) < 4 else None

    running = Running(Service("x", SILENT, tick=tick))
    assert wait(lambda: len(ticks) == 4, 5)
    assert not wait(lambda: len(ticks) > 4, 0.2)
    assert running.end()[0] == 0
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(ticks))


@pytest.mark.parametrize("tick", [None, lambda now: now + 60, lambda now: None])
def test_an_idle_service_does_not_spin(
    events: list[str], tick: Callable[[float], float | None] | None
) -> None:
    service = Service("x", SILENT, tick=tick)
    service.add("a", Probe("a", events), 1)
    running = Running(service)
    assert running.ready.wait(5)
    before = time.process_time()
    time.sleep(0.5)
    spent = time.process_time() - before
    assert running.end()[0] == 0
    assert spent < 0.2


def test_a_stage_that_raises_ends_everything_with_70(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    service = Service("x", SILENT)
    bad, good = Probe("bad", events), Probe("good", events)

    def fail() -> None:
        if bad.steps == 3:
            raise ValueError("boom")

    bad.on_step = fail
    bad.due = lambda now: now
    service.add("x.bad", bad, 1)
    service.add("x.good", good, 2)
    code, took = Running(service).end(stop=False)
    assert (code, service.hung) == (70, False)
    assert took < 1.5
    assert events[0] == "close bad"
    assert events[-2:] == ["stop good", "close good"]
    assert "thread x.bad died" in caplog.text
    assert "ValueError: boom" in caplog.text
    assert 'raise ValueError("boom")' in caplog.text


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_just_leaves_counts_as_dead(
    events: list[str], ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    service = Service("x", SILENT)
    probe = Probe("a", events)

    def leave() -> None:
        raise ending

    probe.on_step = leave
    service.add("a", probe, 1)
    assert Running(service).end(stop=False)[0] == 70
    assert "close a" in events


@pytest.mark.parametrize("method", ["stop", "close"])
def test_a_stage_that_fails_at_its_end_does_not_keep_the_others(
    events: list[str], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("boom")

    service = Service("x", SILENT)
    bad = Probe("bad", events)
    setattr(bad, f"on_{method}", fail)
    service.add("x.bad", bad, 1)
    service.add("x.good", Probe("good", events), 2)
    code, _ = Running(service).end()
    assert code == (70 if method == "close" else 0)
    assert events[-1] == "close good"
    assert "x.bad" in caplog.text and "boom" in caplog.text


def test_a_tick_that_raises_ends_everything_with_70(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def tick(now: float) -> float | None:
        raise ValueError("boom")

    service = Service("x", SILENT, tick=tick)
    service.add("a", Probe("a", events), 1)
    assert Running(service).end(stop=False)[0] == 70
    assert events == ["stop a", "close a"]
    assert "the main loop died" in caplog.text


def test_a_hung_stage_is_named_and_the_others_still_end(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    service = Service("x", SILENT, grace=0.3)
    hung, good = Probe("hung", events), Probe("good", events)
    release = threading.Event()
    hung.on_step = lambda: release.wait(30)
    service.add("x.hung", hung, 1)
    service.add("x.good", good, 2)
    running = Running(service)
    try:
        assert wait(lambda: hung.steps, 5)
        code, took = running.end()
        assert (code, service.hung) == (0, True)
        assert 0.3 <= took < 1.0
        assert events == ["stop hung", "stop good", "close good"]
        assert "still running after the stop: x.hung" in caplog.text
        assert "x.good" not in caplog.text
    finally:
        release.set()


@pytest.mark.parametrize("error", [BridgeError("no"), OSError("no"), ValueError("no")])
def test_a_fault_while_getting_ready_ends_the_stages_and_is_raised(
    events: list[str], error: Exception
) -> None:
    service = Service("x", SILENT)
    service.add("a", Probe("a", events), 1)

    def fail() -> None:
        raise error

    with pytest.raises(type(error), match="no"):
        service.run(fail)
    assert events == ["stop a", "close a"]


def test_ready_is_announced_once_the_threads_run(events: list[str]) -> None:
    service = Service("x", SILENT)
    service.add("x.a", Probe("a", events), 1)
    seen: list[set[str]] = []
    handlers: list[object] = []

    def on_ready() -> None:
        seen.append({thread.name for thread in threading.enumerate()})
        handlers.append(signal.getsignal(signal.SIGTERM))
        service.stop()

    before = signal.getsignal(signal.SIGTERM)
    assert service.run(on_ready) == 0
    assert "x.a" in seen[0]
    assert handlers[0] != before


def test_nothing_is_announced_when_the_stop_came_first(events: list[str]) -> None:
    service = Service("x", SILENT)
    service.add("a", Probe("a", events), 1)
    service.start()
    service.stop()
    assert service.run(lambda: events.append("ready")) == 0
    assert events == ["stop a", "close a"]


def test_nothing_is_announced_when_a_thread_died_first(events: list[str]) -> None:
    service = Service("x", SILENT)
    probe = Probe("a", events)

    def fail() -> None:
        raise ValueError

    probe.on_step = fail
    service.add("a", probe, 1)
    service.start()
    assert wait(lambda: "close a" in events, 5)
    assert wait(lambda: "a" not in {thread.name for thread in threading.enumerate()}, 5)
    assert service.run(lambda: events.append("ready")) == 70
    assert "ready" not in events


def test_threads_that_cannot_be_started_leave_nothing_behind(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "x.b":
            raise RuntimeError("can't start new thread")
        start(thread)

    service = Service("x", SILENT)
    service.add("x.a", Probe("a", events), 1)
    service.add("x.b", Probe("b", events), 1)
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        service.run()
    assert "close a" in events
    assert signal.getsignal(signal.SIGTERM) == before


def test_handlers_and_wakeup_descriptor_are_given_back(events: list[str]) -> None:
    assert threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    mine = Waker()

    def handler(number: int, frame: object) -> None:
        raise AssertionError

    former = {number: signal.signal(number, handler) for number in numbers[:2]}
    former |= {number: signal.signal(number, signal.SIG_IGN) for number in numbers[2:]}
    former_fd = signal.set_wakeup_fd(mine.signal_fd())
    try:
        for number in numbers[:3]:
            service = Service("x", SILENT)
            service.add("a", Probe("a", events), 1)
            inside: list[object] = []

            def on_ready(number: int = number, inside: list[object] = inside) -> None:
                inside.append(signal.getsignal(signal.SIGCHLD))
                os.kill(os.getpid(), number)

            assert service.run(on_ready) == 0
            assert inside == [signal.SIG_DFL]
            assert [signal.getsignal(n) for n in numbers] == [handler] * 2 + [signal.SIG_IGN] * 2
            assert signal.set_wakeup_fd(mine.signal_fd()) == mine.signal_fd()
            assert mine.wait(0) is False
    finally:
        signal.set_wakeup_fd(former_fd)
        for number, handler_before in former.items():
            signal.signal(number, handler_before)
        mine.close()


# The watchdog


class Manager:
    """A service manager's socket, and when what arrived there."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.environ = {"NOTIFY_SOCKET": address}
        self.seen: list[tuple[float, str]] = []

    def listen(self, seconds: float) -> list[tuple[float, str]]:
        """Gather for that long; returns what is new."""
        first = len(self.seen)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                message = self.socket.recv(4096).decode()
            except TimeoutError:
                break
            self.seen.append((time.monotonic(), message))
        return self.seen[first:]

    def await_message(self, start: str, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not any(text.startswith(start) for _, text in self.listen(0.02)):
            assert time.monotonic() < end, f"no {start}: {self.seen}"


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Manager]:
    manager = Manager(f"{'@' if request.param == 'abstract' else ''}{short_tmp}/n")
    yield manager
    manager.socket.close()


def pings(messages: list[tuple[float, str]]) -> list[float]:
    return [at for at, text in messages if text == "WATCHDOG=1"]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def watched(manager: Manager, usec: int = 500_000, **options: object) -> Service:
    notifier = Notifier(manager.environ | {"WATCHDOG_USEC": str(usec)})
    return Service("x", notifier, **options)  # type: ignore[arg-type]


def test_KH13_half_a_second_of_watchdog_is_pinged_in_time(
    manager: Manager, events: list[str]
) -> None:
    service = watched(manager)
    probe = Probe("a", events)
    probe.due = lambda now: now + 0.01
    service.add("a", probe, 1)
    running = Running(service)
    manager.await_message("READY=1")
    # A busy machine may spoil a round; a period that is too long spoils each.
    rounds = [pings(manager.listen(1.2)) for _ in range(3)]
    code, _ = running.end()
    assert code == 0
    assert min(max(gaps(times)) for times in rounds) <= 0.25
    assert min(len(times) for times in rounds) >= 4
    assert max(len(times) for times in rounds) <= 9
    assert "STOPPING=1" in [text for _, text in manager.listen(0.2)]


def test_KH13_a_blocked_stage_silences_the_pings_within_the_limit(
    manager: Manager, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    service = watched(manager)
    probe = Probe("a", events)
    blocked, release = threading.Event(), threading.Event()

    def block() -> None:
        if probe.steps == 2:
            blocked.set()
            release.wait(30)

    probe.on_step = block
    service.add("x.a", probe, 1)
    service.add("x.b", Probe("b", events), 1)
    running = Running(service)
    try:
        manager.await_message("WATCHDOG=1")
        probe.waker.wake()
        assert blocked.wait(5)
        since = time.monotonic()
        times = pings(manager.listen(1.5))
        assert all(at - since <= 0.5 for at in times), times
        release.set()
        assert pings(manager.listen(1.0)), "progress again, but no pings"
        assert running.end()[0] == 0
    finally:
        release.set()
    assert "no progress in x.a" in caplog.text
    assert "progress again" in caplog.text
    assert "x.b" not in caplog.text


def test_KH13_a_wait_that_does_not_return_silences_the_pings(
    manager: Manager, events: list[str]
) -> None:
    service = watched(manager)
    lock = threading.Lock()

    class Locked(Probe):
        def wait(self, timeout: float | None) -> None:
            with lock:
                super().wait(timeout)

    probe = Locked("a", events)
    probe.due = lambda now: now + 0.05
    service.add("a", probe, 1)
    running = Running(service)
    manager.await_message("WATCHDOG=1")
    with lock:
        since = time.monotonic()
        times = pings(manager.listen(1.2))
    assert all(at - since <= 0.6 for at in times), times
    assert pings(manager.listen(1.0))
    assert running.end()[0] == 0


def test_KH13_a_long_step_that_is_allowed_keeps_the_pings(
    manager: Manager, events: list[str]
) -> None:
    service = watched(manager)
    probe = Probe("a", events)
    release = threading.Event()
    probe.on_step = lambda: release.wait(30)
    service.add("a", probe, 1, limit=60)
    running = Running(service)
    try:
        manager.await_message("READY=1")
        assert len(pings(manager.listen(1.5))) >= 5
    finally:
        release.set()
    assert running.end()[0] == 0


def test_KH13_a_hung_main_loop_silences_the_pings(manager: Manager) -> None:
    release = threading.Event()

    def tick(now: float) -> float | None:
        release.wait(30)
        return None

    running = Running(watched(manager, tick=tick))
    try:
        manager.await_message("READY=1")
        manager.listen(0.7)
        assert not pings(manager.seen)
    finally:
        release.set()
    assert running.end()[0] == 0


def test_pings_go_on_while_the_stages_end(manager: Manager, events: list[str]) -> None:
    service = watched(manager, usec=200_000, grace=5.0)
    probe = Probe("a", events)
    probe.on_close = lambda: time.sleep(0.8)
    service.add("a", probe, 1, limit=10)
    running = Running(service)
    manager.await_message("READY=1")
    running.service.stop()
    manager.await_message("STOPPING=1")
    assert len(pings(manager.listen(0.6))) >= 3
    assert running.end(stop=False)[0] == 0


def test_without_a_watchdog_a_stuck_stage_is_still_told(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    service = Service("x", SILENT, clock=lambda: now[0], tick=lambda at: at + 0.01)
    probe = Probe("a", events)
    release = threading.Event()
    probe.on_step = lambda: release.wait(30)
    service.add("x.a", probe, 1, limit=5.0)
    running = Running(service)
    try:
        assert wait(lambda: probe.steps, 5)
        now[0] = 4.0
        assert not wait(lambda: "no progress" in caplog.text, 0.2)
        now[0] = 6.0
        assert wait(lambda: "no progress in x.a" in caplog.text, 5)
    finally:
        release.set()
    assert running.end()[0] == 0


def test_the_status_line_is_told_with_ready_and_when_it_changes(manager: Manager) -> None:
    text = ["starting"]
    ticks: list[float] = []

    def tick(now: float) -> float:
        ticks.append(now)
        return now + 0.02

    notifier = Notifier(manager.environ)
    running = Running(Service("x", notifier, tick=tick, describe=lambda: text[0]))
    manager.await_message("READY=1\nSTATUS=starting")
    manager.listen(0.2)
    text[0] = "2 open"
    manager.await_message("STATUS=2 open")
    manager.listen(0.2)
    assert running.end()[0] == 0
    manager.listen(0.1)
    assert [message for _, message in manager.seen] == [
        "READY=1\nSTATUS=starting",
        "STATUS=2 open",
        "STOPPING=1",
    ]


def test_no_ready_for_a_start_that_failed(manager: Manager, events: list[str]) -> None:
    def fail() -> None:
        raise BridgeError("no")

    with pytest.raises(BridgeError):
        watched(manager).run(fail)
    assert [text for _, text in manager.listen(0.2)] == ["STOPPING=1"]


# Real processes

DAEMON = """
import logging, os, random, sys, threading, time
from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.service import Service
from hermes_bridges.core.waker import Waker

logging.basicConfig(level=logging.INFO, format="%(message)s")
mode = sys.argv[1]

class Stage:
    def __init__(self):
        self.waker = Waker()
        self.others = []
    def step(self, now):
        for other in self.others:
            other.waker.wake()
        if mode == "hang" and self is stages[0]:
            threading.Event().wait()
        if mode == "die" and self is stages[0]:
            raise ValueError("boom")
        return None if mode == "idle" else now + 0.0005
    def wait(self, timeout):
        self.waker.wait(timeout)
    def stop(self):
        self.waker.wake()
    def close(self):
        if mode == "slow":
            print("draining", flush=True)
            time.sleep(20)

stages = [Stage(), Stage(), Stage()]
stages[0].others = stages[1:]
service = Service(
    "daemon",
    Notifier(os.environ),
    tick=None if mode == "idle" else lambda now: now + 0.0003,
    grace=20 if mode == "slow" else 1.5,
    describe=lambda: "fine",
    exits=True,
)
for n, stage in enumerate(stages):
    service.add("daemon-%d" % n, stage, n)
print("up", flush=True)
code = service.run(lambda: print("ready", flush=True))
if service.hung:
    os._exit(code)
print("ended", flush=True)
if mode == "linger":
    time.sleep(0.3)
sys.exit(code)
"""


class Daemon:
    def __init__(self, mode: str, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, mode],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | (environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_line(self, line: str) -> None:
        assert self.process.stdout is not None
        for seen in self.process.stdout:
            if seen.strip() == line:
                return
        raise AssertionError(f"no {line}: {self.end()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 5) -> tuple[int, str]:
        try:
            _, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, err


@pytest.mark.timeout(1200)
def test_KH02_a_stop_at_any_moment_never_hangs(counts: Callable[[int, int], int]) -> None:
    rounds = counts(100, 2000)
    seed = random.randrange(2**32)
    rand = random.Random(seed)
    for turn in range(rounds):
        # An idle one looks only when it is woken, a busy one is hit in the midst of its work.
        daemon = Daemon("idle" if turn % 3 == 0 else "plain")
        early = turn % 4 == 0
        daemon.await_line("up" if early else "ready")
        time.sleep(rand.uniform(0, 0.02))
        daemon.signal(rand.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
        try:
            code, err = daemon.end(3)
        except subprocess.TimeoutExpired:
            pytest.fail(f"hung in turn {turn} of seed {seed}")
        # Before the handlers stand, the signal itself ends the process.
        assert code == 0 or (early and code < 0), (turn, seed, code, err)
        assert early or "Traceback" not in err, (turn, seed, err)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_ends_the_process_with_0(number: signal.Signals) -> None:
    daemon = Daemon("plain")
    daemon.await_line("ready")
    before = time.monotonic()
    daemon.signal(number)
    code, err = daemon.end()
    assert code == 0
    assert err.splitlines() == [f"stopping on {number.name}"]
    assert time.monotonic() - before < 2


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.2])
def test_KH32_further_signals_neither_hang_nor_spoil_the_end(pause: float) -> None:
    daemon = Daemon("slow")
    daemon.await_line("ready")
    before = time.monotonic()
    daemon.signal(signal.SIGTERM)
    daemon.await_line("draining")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        daemon.signal(number)
        time.sleep(pause)
    code, err = daemon.end()
    assert code == 0, err
    assert "Traceback" not in err
    assert time.monotonic() - before < 3


def test_KH32_signals_while_the_interpreter_ends_are_ignored() -> None:
    daemon = Daemon("linger")
    daemon.await_line("ready")
    daemon.signal(signal.SIGTERM)
    daemon.await_line("ended")
    end = time.monotonic() + 5
    while daemon.process.poll() is None and time.monotonic() < end:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            daemon.signal(number)
        time.sleep(0.002)
    assert daemon.end()[0] == 0


def test_KH32_a_second_signal_shortens_the_stop(events: list[str]) -> None:
    service = Service("x", SILENT, grace=30)
    hung = Probe("hung", events)
    release = threading.Event()
    hung.on_step = lambda: release.wait(60)
    service.add("hung", hung, 1)
    running = Running(service)
    try:
        assert wait(lambda: hung.steps, 5)
        service.stop()
        assert wait(lambda: "stop hung" in events, 5)
        assert running.thread.is_alive()
        code, took = running.end()
        assert (code, service.hung) == (0, True)
        assert took < 1.5
    finally:
        release.set()


def test_a_thread_that_dies_ends_the_process_with_70() -> None:
    code, err = Daemon("die").end()
    assert code == 70
    assert "thread daemon-0 died" in err
    assert "ValueError: boom" in err
    assert err.count("Traceback") == 1


def test_a_hung_thread_is_named_and_the_process_ends_in_under_2_seconds() -> None:
    daemon = Daemon("hang")
    daemon.await_line("ready")
    before = time.monotonic()
    daemon.signal(signal.SIGTERM)
    code, err = daemon.end()
    assert code == 0
    assert "still running after the stop: daemon-0" in err
    assert time.monotonic() - before < 2


def test_KH13_ready_and_stopping_frame_the_life_of_the_process(manager: Manager) -> None:
    daemon = Daemon("plain", environ=manager.environ | {"WATCHDOG_USEC": "500000"})
    manager.await_message("READY=1")
    manager.listen(0.4)
    daemon.signal(signal.SIGTERM)
    assert daemon.end()[0] == 0
    manager.listen(0.1)
    texts = [text for _, text in manager.seen]
    assert texts[0] == "READY=1\nSTATUS=fine"
    assert texts[-1] == "STOPPING=1" or texts[-2] == "STOPPING=1"
    assert set(texts[1:]) == {"WATCHDOG=1", "STOPPING=1"}


def test_KH40_a_service_manager_that_is_gone_does_not_stop_the_start(short_tmp: Path) -> None:
    daemon = Daemon("plain", environ={"NOTIFY_SOCKET": f"{short_tmp}/gone"})
    daemon.await_line("ready")
    daemon.signal(signal.SIGTERM)
    assert daemon.end()[0] == 0


def test_the_signal_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    service = Service("x", SILENT)
    with caplog.at_level(logging.INFO):
        service.run(service.stop)
    assert [record.getMessage() for record in caplog.records] == ["stopping on SIGTERM"]
