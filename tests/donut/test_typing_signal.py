import itertools
import json
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.bell import Bell
from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.httpclient import HttpClient
from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.service import Service
from hermes_bridges.donut import typing_signal
from hermes_bridges.donut.typing_signal import Board, Place, Signal, TypingSignal
from hermes_bridges.standins.donut_hub import DonutHub
from tests.conftest import wait

TOKEN = "donutbot_typing"


class Hand:
    """A board whose clock and stage are turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.board = Board(clock=lambda: self.now)
        self.bell = Bell()

    def take(self) -> Signal | float | None:
        return self.board.take(self.now, self.bell)

    def sent(self, fault: str | None = None, arrived: bool = True) -> str:
        """Have the next signal sent with that result; what it says."""
        signal = self.take()
        assert isinstance(signal, Signal), signal
        self.board.done(signal, fault, arrived)
        return f"{'start' if signal.start else 'stop'} {signal.place.chat_id}"


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_start_at_once_again_every_4_seconds_and_stop_at_the_end(hand: Hand):
    hand.board.begin("1", 1, "t")
    signal = hand.take()
    assert signal == Signal("1", Place(1, "t"), start=True)
    hand.board.done(signal, None, True)
    assert hand.take() == 1004
    hand.now = 1003.9
    assert hand.take() == 1004
    hand.now = 1004
    assert hand.sent() == "start 1"
    assert hand.take() == 1008
    hand.board.end("1")
    signal = hand.take()
    assert signal == Signal("1", Place(1, "t"), start=False)
    hand.board.done(signal, None, True)
    assert hand.take() is None


def test_the_next_refresh_counts_from_the_begin_of_the_last(hand: Hand):
    hand.board.begin("1", 1, None)
    signal = hand.take()
    assert isinstance(signal, Signal)
    hand.now += 3
    hand.board.done(signal, None, True)
    assert hand.take() == 1004


def test_what_was_never_shown_is_not_ended(hand: Hand):
    hand.board.begin("1", 1, None)
    hand.board.end("1")
    assert hand.take() is None
    hand.board.end("1")
    hand.board.end("unknown")
    assert hand.take() is None


def test_KH25_a_start_in_flight_at_the_end_is_followed_by_its_stop(hand: Hand):
    hand.board.begin("1", 1, None)
    signal = hand.take()
    assert isinstance(signal, Signal)
    hand.board.end("1")
    assert hand.take() is None
    hand.board.done(signal, None, True)
    assert hand.sent() == "stop 1"
    assert hand.take() is None


def test_KH25_back_to_back_turns_need_no_stop_between(hand: Hand):
    hand.board.begin("1", 1, None)
    assert hand.sent() == "start 1"
    hand.board.end("1")
    hand.board.begin("1", 1, None)
    # At once: the answer in between has ended what was shown.
    assert hand.sent() == "start 1"
    hand.board.end("1")
    assert hand.sent() == "stop 1"
    assert hand.take() is None


def test_a_turn_that_begins_while_the_stop_is_in_flight(hand: Hand):
    hand.board.begin("1", 1, None)
    assert hand.sent() == "start 1"
    hand.board.end("1")
    stop = hand.take()
    assert isinstance(stop, Signal) and not stop.start
    hand.board.begin("1", 1, None)
    assert hand.take() is None
    hand.board.done(stop, None, True)
    assert hand.sent() == "start 1"


def test_another_thread_of_the_chat_is_another_place(hand: Hand):
    hand.board.begin("1", 1, "a")
    assert hand.sent() == "start 1"
    hand.board.end("1")
    hand.board.begin("1", 1, "b")
    first, second = hand.take(), None
    assert first == Signal("1", Place(1, "a"), start=False)
    hand.board.done(first, None, True)
    second = hand.take()
    assert second == Signal("1", Place(1, "b"), start=True)


def test_what_has_been_due_for_longest_comes_first(hand: Hand):
    for number in (3, 1, 2):
        hand.board.begin(str(number), number, None)
        hand.now += 1
    assert [hand.sent() for _ in range(3)] == ["start 3", "start 1", "start 2"]


def test_an_idle_stage_is_woken_one_at_a_time(hand: Hand):
    other = Bell()
    assert hand.board.take(hand.now, other) is None
    assert hand.take() is None
    hand.board.begin("1", 1, None)
    assert hand.bell.wait(0)
    assert not other.wait(0)
    hand.board.begin("2", 2, None)
    assert other.wait(0)


def test_KH09_a_paused_chat_gets_nothing_and_the_others_all(hand: Hand):
    hand.board.begin("1", 1, None)
    hand.board.begin("2", 2, None)
    assert {hand.sent(), hand.sent()} == {"start 1", "start 2"}
    hand.board.pause("1", 1010)
    hand.now = 1004
    assert hand.sent() == "start 2"
    assert hand.take() == 1008
    hand.board.end("1")
    assert hand.take() == 1008
    hand.board.begin("1", 1, None)
    hand.now = 1009.9
    assert hand.sent() == "start 2"
    hand.board.end("2")
    assert hand.sent() == "stop 2"
    assert hand.take() == 1010
    # A shorter one that comes later takes nothing off.
    hand.board.pause("1", 1005)
    assert hand.take() == 1010
    hand.now = 1010
    assert hand.sent() == "start 1"
    assert hand.take() == 1014


def test_a_start_that_did_not_arrive_needs_no_stop_and_one_that_may_have_does(hand: Hand):
    hand.board.begin("1", 1, None)
    assert hand.sent("HTTP 500", arrived=False) == "start 1"
    assert hand.take() == 1004
    hand.board.end("1")
    assert hand.take() is None
    hand.board.begin("1", 1, None)
    assert hand.sent("timeout", arrived=True) == "start 1"
    hand.board.end("1")
    assert hand.sent("timeout", arrived=True) == "stop 1"
    assert hand.take() is None


def test_a_refresh_that_fails_leaves_what_was_shown_to_be_ended(hand: Hand):
    hand.board.begin("1", 1, None)
    hand.sent()
    hand.now += 4
    hand.sent("HTTP 500", arrived=False)
    hand.board.end("1")
    assert hand.sent() == "stop 1"


def test_KH44_after_5_failures_a_turn_is_left_without_and_the_next_one_tries_again(
    hand: Hand, caplog
):
    caplog.set_level(logging.INFO)
    for turn in range(3):
        hand.board.begin("1", 1, None)
        for _ in range(5):
            assert hand.sent("HTTP 404", arrived=False) == "start 1"
            hand.now += 4
        assert hand.take() is None, turn
        hand.now += 1000
        assert hand.take() is None
        hand.board.end("1")
        assert hand.take() is None
    assert [r.getMessage() for r in caplog.records] == ["the typing signal fails: HTTP 404"]
    hand.board.begin("1", 1, None)
    hand.sent()
    assert caplog.messages[1:] == ["the typing signal works again"]
    for _ in range(4):
        hand.now += 4
        hand.sent("HTTP 500", arrived=False)
    hand.now += 4
    hand.sent()
    assert len(caplog.messages) == 2


def test_KH44_a_turn_without_the_signal_still_ends_what_it_had_shown(hand: Hand):
    hand.board.begin("1", 1, None)
    hand.sent()
    for _ in range(5):
        hand.now += 4
        hand.sent("HTTP 500", arrived=False)
    hand.board.end("1")
    assert hand.sent() == "stop 1"


def test_end_all_ends_what_is_shown_and_forgets_the_rest(hand: Hand):
    for number in range(3):
        hand.board.begin(str(number), number, None)
        hand.sent()
    hand.board.begin("9", 9, None)
    hand.board.end_all()
    assert {hand.sent() for _ in range(3)} == {"stop 0", "stop 1", "stop 2"}
    assert hand.take() is None


def test_KH25_whatever_the_order_no_start_after_the_end_and_nothing_stays_shown():
    """Random turns, stages, results and times; the hub's view is kept by what arrived."""
    for seed in range(300):
        play(random.Random(seed))


def play(rand: random.Random) -> None:
    hand = Hand()
    wanted: set[int] = set()
    shown: set[Place] = set()
    flying: list[Signal] = []
    for _ in range(rand.randrange(5, 80)):
        chat = rand.randrange(3)
        match rand.randrange(6):
            case 0 if chat not in wanted:
                wanted.add(chat)
                hand.board.begin(str(chat), chat, rand.choice([None, "t"]))
            case 1:
                wanted.discard(chat)
                hand.board.end(str(chat))
            case 2:
                hand.now += rand.choice([0.1, 1, 4])
            case 3 if rand.random() < 0.2:
                hand.board.pause(str(chat), hand.now + rand.choice([0.5, 6]))
            case _:
                if flying and rand.random() < 0.5:
                    land(hand, flying.pop(rand.randrange(len(flying))), shown, rand)
                    continue
                signal = hand.take()
                if isinstance(signal, Signal):
                    assert signal.chat not in [other.chat for other in flying]
                    assert not signal.start or signal.place.chat_id in wanted
                    flying.append(signal)
    for chat in wanted:
        hand.board.end(str(chat))
    hand.now += 10
    while flying:
        land(hand, flying.pop(), shown, rand)
    while isinstance(signal := hand.take(), Signal):
        land(hand, signal, shown, rand)
    assert signal is None
    assert not shown


def land(hand: Hand, signal: Signal, shown: set[Place], rand: random.Random) -> None:
    """A request ends: done and told, done but not told, or not done (a stop always is)."""
    arrived = not signal.start or rand.random() < 0.8
    if arrived:
        (shown.add if signal.start else shown.discard)(signal.place)
    hand.board.done(signal, None if arrived and rand.random() < 0.8 else "fault", arrived)


class Rig:
    """Typing stages in a service, and a hub on loopback that they talk to."""

    def __init__(self, path: Path, stages: int = 2) -> None:
        self.journal = path / "hub.ndjson"
        self.hub = DonutHub(token=TOKEN, journal=str(self.journal))
        for chat in range(1, 9):
            self.hub.add_chat(chat)
        self.board = Board()
        self._cleanup = ExitStack()
        self.deadlines = self._cleanup.enter_context(Deadlines.running())
        self.service = Service("x", Notifier({}), grace=8)
        for number in range(1, stages + 1):
            self.service.add(f"x.typing-{number}", self.stage(), 1)
        self.code: int | None = None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(5)

    def stage(self) -> TypingSignal:
        client = HttpClient(self.deadlines)
        return TypingSignal(self.board, self.hub.typing_url, TOKEN, client, self.deadlines)

    def _run(self) -> None:
        self.code = self.service.run(self.ready.set)

    def calls(self, chat: int | None = None) -> list[dict[str, Any]]:
        """The hub's journal of typing requests that it has answered."""
        lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
        typing = [line for line in lines if line["what"] == "typing"]
        return [line for line in typing if chat in (None, line["chat_id"])]

    def states(self, chat: int) -> list[str]:
        return [call["state"] for call in self.calls(chat)]

    def begin(self, chat: int) -> None:
        self.board.begin(str(chat), chat, None)

    def end(self, chat: int) -> None:
        self.board.end(str(chat))

    def close(self) -> float:
        """Stop the service; the seconds that it took."""
        before = time.monotonic()
        self.service.stop()
        self.thread.join(20)
        took = time.monotonic() - before
        self.hub.close()
        self._cleanup.close()
        assert self.code == 0
        return took


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing_signal, "REFRESH", 0.2)
    monkeypatch.setattr(typing_signal, "LIMIT", 0.5)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert wait(lambda: set(threading.enumerate()) <= before, 5), threading.enumerate()


@pytest.fixture
def rig(_fast: None, short_tmp: Path) -> Iterator[Rig]:
    rig = Rig(short_tmp)
    yield rig
    rig.close()


def test_the_chat_shows_it_for_as_long_as_the_call(rig: Rig):
    rig.begin(1)
    assert rig.hub.wait(lambda: rig.hub.typing(1), 5)
    assert not rig.hub.typing(2)
    assert wait(lambda: rig.states(1) == ["start"] * 3, 5)
    rig.end(1)
    assert rig.hub.wait(lambda: not rig.hub.typing(1), 5)
    assert wait(lambda: rig.states(1)[-1:] == ["stop"], 5)
    begun = [call["began"] for call in rig.calls(1) if call["state"] == "start"]
    assert all(after - before >= 0.15 for before, after in itertools.pairwise(begun))
    assert all(call["status"] == 200 for call in rig.calls())


def test_KH25_200_short_turns_against_a_slow_hub(rig: Rig):
    threads = threading.active_count()
    rig.hub.send_delay(0.3, where="typing")
    rand = random.Random(5)
    # Many end while the first request is in flight, some at the very tick.
    lengths = [0.2, 0.4, *(rand.random() * 0.012 for _ in range(48))] * 4
    turns = []
    for length in lengths:
        rig.begin(1)
        begun = time.monotonic()
        with suppress(ValueError):
            try:
                time.sleep(length)
                if rand.random() < 0.2:
                    raise ValueError
            finally:
                rig.end(1)
        turns.append((begun, time.monotonic()))
        if rand.random() < 0.3:
            time.sleep(rand.random() * 0.02)
    last = turns[-1][1]
    # A start that was in flight, its stop, and time for what must not come.
    time.sleep(1.2)
    assert not rig.hub.typing(1)
    calls = rig.calls(1)
    assert calls[-1]["state"] == "stop"
    assert calls[-1]["began"] < last + 0.3 + 0.2
    for call in calls:
        # What was decided within a turn reaches the hub a moment later.
        inside = [b <= call["began"] <= e + 0.3 for b, e in turns]
        assert any(inside) or call["state"] == "stop"
    # Never two at a time, so the slow hub got no more than it could take.
    for before, after in itertools.pairwise(calls):
        assert after["began"] >= before["t"] - 0.05
    assert threading.active_count() <= threads + 3


def test_KH44_it_goes_on_after_a_single_failure(rig: Rig, caplog):
    rig.hub.send_status(500, where="typing")
    rig.begin(1)
    assert wait(lambda: [c["status"] for c in rig.calls(1)][:3] == [500, 200, 200], 5)
    rig.hub.send_drop(False, where="typing")
    count = len(rig.calls(1))
    assert wait(lambda: len(rig.calls(1)) > count + 3, 5)
    rig.end(1)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_KH44_a_hub_that_hangs_delays_neither_the_turn_nor_another_chat(rig: Rig):
    rig.hub.send_hang(False, times=None, chat=1, where="typing")
    slowest = 0.0
    for _ in range(20):
        before = time.monotonic()
        rig.begin(1)
        rig.end(1)
        slowest = max(slowest, time.monotonic() - before)
    rig.begin(1)
    time.sleep(0.1)
    before = time.monotonic()
    rig.begin(2)
    assert rig.hub.wait(lambda: rig.hub.typing(2), 5)
    assert time.monotonic() - before < 0.4
    before = time.monotonic()
    rig.end(1)
    assert max(slowest, time.monotonic() - before) < 0.3
    rig.hub.heal()
    # The one that hung may have been done, so it is ended.
    assert wait(lambda: "stop" in rig.states(1), 5)


def test_KH44_it_gives_up_with_one_line(rig: Rig, caplog):
    rig.hub.send_status(404, times=None, where="typing")
    for _ in range(2):
        rig.begin(1)
        count = len(rig.calls(1))
        assert wait(lambda: len(rig.calls(1)) == count + 5, 10)  # noqa: B023
        assert not wait(lambda: len(rig.calls(1)) != count + 5, 0.5)  # noqa: B023
        rig.end(1)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == ["the typing signal fails: HTTP 404"]
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("header", [True, False])
def test_KH09_a_busy_hub_pauses_that_chat_only(rig: Rig, header: bool):
    rig.hub.send_busy(1.5, chat=1, header=header, body=not header, where="typing")
    rig.begin(1)
    assert wait(lambda: rig.calls(1), 5)
    rig.begin(2)
    assert wait(lambda: len(rig.calls(2)) >= 4, 5)
    assert wait(lambda: len(rig.calls(1)) >= 2, 5)
    first, second = rig.calls(1)[:2]
    assert (first["status"], second["status"]) == (429, 200)
    assert second["began"] - first["began"] >= 1.5


def test_a_connection_that_the_hub_has_closed_costs_no_refresh(short_tmp: Path):
    rig = Rig(short_tmp, stages=1)
    # After the second the end of the connection shows only once a request has been sent.
    for break_it in (rig.hub.drop_idle, lambda: rig.hub.send_drop(False, where="typing"), None):
        rig.begin(1)
        assert rig.hub.wait(lambda: rig.hub.typing(1), 2)
        rig.end(1)
        assert rig.hub.wait(lambda: not rig.hub.typing(1), 2)
        if break_it is not None:
            break_it()
    rig.close()


def test_KH25_what_is_shown_is_ended_at_the_stop(_fast: None, short_tmp: Path):
    rig = Rig(short_tmp)
    for chat in range(1, 9):
        rig.begin(chat)
    assert wait(lambda: all(rig.hub.typing(chat) for chat in range(1, 9)), 5)
    assert rig.close() < 1
    by_chat = defaultdict(list)
    for call in rig.calls():
        by_chat[call["chat_id"]].append(call["state"])
    assert all(states[-1] == "stop" for states in by_chat.values())
    assert len(by_chat) == 8


def test_a_hub_that_hangs_holds_the_stop_up_for_little_time(_fast: None, short_tmp: Path):
    rig = Rig(short_tmp)
    for chat in range(1, 9):
        rig.begin(chat)
    assert wait(lambda: all(rig.hub.typing(chat) for chat in range(1, 9)), 5)
    rig.hub.send_hang(False, times=None, where="typing")
    time.sleep(0.3)
    assert rig.close() < 0.5 + 1 + 0.5


def test_a_request_that_hangs_ends_with_the_stop(short_tmp: Path):
    """Its own time is 5 s; with nothing in flight but this, the process ends within one."""
    rig = Rig(short_tmp)
    rig.begin(1)
    assert wait(lambda: rig.hub.typing(1), 5)
    rig.hub.send_hang(False, times=None, where="typing")
    for chat in range(1, 9):
        rig.end(chat)
        rig.begin(chat)
    time.sleep(0.3)
    assert rig.close() < 0.9


def test_nothing_to_end_means_a_quick_stop(_fast: None, short_tmp: Path):
    rig = Rig(short_tmp, stages=4)
    assert rig.close() < 0.5
    assert rig.journal.read_text() == ""
