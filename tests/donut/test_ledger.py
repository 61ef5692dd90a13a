"""The ledger: what is known, open, dropped and lost, and how far the cursor may go."""

import threading
import tracemalloc
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes_bridges.donut.ledger import Ledger

WINDOW, DEPTH = 10.0, 4
SAID = st.lists(
    st.sampled_from(["a", "b", "a again", "b again", "reaction"]), min_size=1, max_size=3
)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("e0", window=300.0, depth=100)


def test_the_cursor_waits_for_the_slowest_message(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.arrive("e2", "b", "1", 0.0)
    ledger.settle("b", "1")
    assert ledger.cursor == "e0"
    ledger.settle("a", "1")
    assert ledger.cursor == "e2"


def test_KH12_a_fast_chat_does_not_carry_the_cursor_past_a_slow_one(ledger: Ledger):
    ledger.arrive("e1", "slow", "1", 0.0)
    for n in range(2, 50):
        ledger.arrive(f"e{n}", "fast", str(n), 1.0)
        ledger.settle("fast", str(n))
        assert ledger.expire(1.0) == []
    assert ledger.cursor == "e0"
    # Killed here, the next start is sent all of it again.
    again = Ledger(ledger.cursor)
    assert again.arrive("e1", "slow", "1", 2.0) == "new"


def test_an_event_without_a_message_holds_the_cursor_only_until_it_is_settled(ledger: Ledger):
    assert ledger.arrive("e1", "a", None, 0.0) == "new"
    assert ledger.cursor == "e0"
    ledger.settle_event("e1")
    assert ledger.cursor == "e1"
    assert ledger.arrive("e1", "a", None, 0.0) == "known"


def test_settle_event_does_not_end_a_message(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert ledger.arrive("e1", "a", None, 0.0) == "known"
    ledger.settle_event("e1")
    assert ledger.is_live("a", "1")
    assert ledger.cursor == "e0"


def test_settle_event_of_an_unknown_event_or_of_none_does_nothing(ledger: Ledger):
    ledger.settle_event("e9")
    ledger.settle_event(None)
    ledger.settle("a", "9")
    ledger.drop("a", "9")
    assert ledger.cursor == "e0"
    assert ledger.expire(0.0) == []


def test_KH28_a_message_in_flight_is_known_and_a_dropped_one_comes_again(ledger: Ledger):
    assert ledger.arrive("e1", "a", "1", 0.0) == "new"
    assert ledger.arrive("e1", "a", "1", 0.0) == "known"
    ledger.drop("a", "1")
    assert not ledger.is_live("a", "1")
    assert ledger.arrive("e1", "a", "1", 0.0) == "again"
    assert ledger.is_live("a", "1")
    ledger.settle("a", "1")
    assert ledger.arrive("e1", "a", "1", 0.0) == "known"


def test_KH29_a_message_under_a_new_event_id_is_the_same_message(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert ledger.arrive("e2", "a", "1", 0.0) == "known"
    ledger.arrive("e3", "b", "1", 0.0)
    ledger.settle("b", "1")
    # Both events of the message hold the cursor, and both let go of it.
    assert ledger.cursor == "e0"
    ledger.settle("a", "1")
    assert ledger.cursor == "e3"
    assert ledger.arrive("e4", "a", "1", 0.0) == "known"
    assert ledger.cursor == "e4"


def test_KH29_a_message_in_flight_is_not_forgotten_by_100_000_others(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    for n in range(2, 100_000):
        ledger.arrive(f"e{n}", "b", str(n), 0.0)
        ledger.settle("b", str(n))
    assert ledger.expire(0.0) == []
    assert ledger.arrive("x1", "a", "1", 0.0) == "known"


def test_equal_message_ids_of_two_chats_are_two_messages(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert ledger.arrive("e2", "b", "1", 0.0) == "new"
    ledger.settle("b", "1")
    assert ledger.is_live("a", "1")


def test_after_the_window_the_cursor_moves_on_and_the_message_stays_open(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert ledger.expire(300.0) == []
    assert ledger.cursor == "e0"
    assert ledger.expire(300.1) == []
    assert ledger.cursor == "e1"
    assert ledger.is_live("a", "1")
    assert ledger.arrive("e1", "a", "1", 301.0) == "known"


def test_after_a_hundred_later_events_the_cursor_moves_on(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    for n in range(2, 101):
        ledger.arrive(f"e{n}", "b", str(n), 0.0)
    assert ledger.cursor == "e0"
    ledger.arrive("e101", "b", "101", 0.0)
    assert ledger.cursor == "e1"


def test_a_dropped_message_is_lost_once_it_cannot_come_again(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.drop("a", "1")
    assert ledger.expire(300.0) == []
    assert ledger.expire(301.0) == [("a", "1")]
    assert ledger.expire(302.0) == []
    # Should it come all the same, it is answered.
    assert ledger.arrive("e1", "a", "1", 303.0) == "new"
    assert ledger.is_live("a", "1")


def test_a_message_dropped_after_its_window_is_lost_at_once(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert ledger.expire(301.0) == []
    ledger.drop("a", "1")
    assert ledger.expire(301.0) == [("a", "1")]


def test_a_message_that_a_later_event_brings_again_is_not_lost(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.arrive("e2", "a", "1", 200.0)
    ledger.drop("a", "1")
    assert ledger.expire(400.0) == []
    assert ledger.cursor == "e1"
    assert ledger.replayable("a")
    assert ledger.expire(501.0) == [("a", "1")]


def test_a_settled_message_cannot_be_dropped(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.settle("a", "1")
    ledger.drop("a", "1")
    assert ledger.expire(301.0) == []
    assert ledger.cursor == "e1"


def test_one_redial_is_worth_while_for_a_drop(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    assert not ledger.replayable("a")
    ledger.drop("a", "1")
    assert ledger.replayable("a")
    assert not ledger.replayable("b")
    ledger.redialled()
    assert not ledger.replayable("a")
    ledger.arrive("e1", "a", "1", 1.0)
    ledger.drop("a", "1")
    assert ledger.replayable("a")


def test_without_a_cursor_a_redial_brings_nothing():
    ledger = Ledger(None)
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.drop("a", "1")
    assert not ledger.replayable("a")


def test_a_stream_that_begins_anew_leaves_what_was_before():
    ledger = Ledger("e0")
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.arrive("e2", "a", "2", 0.0)
    ledger.drop("a", "2")
    ledger.start_at("e9")
    assert ledger.cursor == "e9"
    assert ledger.expire(0.0) == [("a", "2")]
    ledger.settle("a", "1")
    assert ledger.cursor == "e9"
    ledger.start_at(None)
    assert ledger.cursor is None


def test_an_event_id_that_is_used_anew_does_not_hide_a_message(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.arrive("e2", "a", "2", 0.0)
    ledger.settle("a", "2")
    # A hub that begins to count anew; its e1 is another one.
    assert ledger.arrive("e1", "a", "3", 1.0) == "new"
    assert ledger.is_live("a", "1")
    assert ledger.cursor == "e2"
    ledger.settle("a", "3")
    assert ledger.cursor == "e1"
    ledger.drop("a", "1")
    assert ledger.expire(1.0) == [("a", "1")]


def test_an_event_id_behind_the_cursor_that_is_used_anew(ledger: Ledger):
    ledger.arrive("e1", "a", "1", 0.0)
    ledger.settle("a", "1")
    assert ledger.arrive("e1", "a", "2", 0.0) == "new"
    assert ledger.arrive("e1", "a", "2", 0.0) == "known"


def test_without_event_ids_a_message_is_open_until_it_is_settled():
    ledger = Ledger(None)
    assert ledger.arrive(None, "a", "1", 0.0) == "new"
    assert ledger.arrive(None, "a", "1", 0.0) == "known"
    assert ledger.expire(9_999.0) == []
    assert ledger.is_live("a", "1")
    ledger.settle("a", "1")
    assert not ledger.is_live("a", "1")
    assert ledger.cursor is None
    assert ledger.arrive(None, "", None, 0.0) == "new"


def test_without_event_ids_a_dropped_message_is_lost_at_once():
    ledger = Ledger(None)
    ledger.arrive(None, "a", "1", 0.0)
    ledger.drop("a", "1")
    assert ledger.expire(0.0) == [("a", "1")]
    assert ledger.arrive(None, "a", "1", 0.0) == "new"


def test_what_it_remembers_is_bounded():
    ledger = Ledger("e0", depth=100)

    def many(begin: int) -> None:
        for n in range(begin, begin + 20_000):
            ledger.arrive(f"e{n}", f"c{n % 7}", str(n), n / 100)
            if n % 3 == 0:
                ledger.settle(f"c{n % 7}", str(n))
            else:
                ledger.drop(f"c{n % 7}", str(n))
            ledger.expire(n / 100)

    many(0)
    tracemalloc.start()
    try:
        many(20_000)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # The first hundreds of events were made before it was measured, the last ones after.
    assert grown < 200_000


def test_many_threads_settle_what_one_takes_in(ledger: Ledger):
    total, workers = 2_000, 8
    turn = [threading.Semaphore(0) for _ in range(workers)]

    def settle(worker: int) -> None:
        for n in range(worker, total, workers):
            turn[worker].acquire()
            ledger.settle(f"c{worker}", str(n))

    threads = [threading.Thread(target=settle, args=(n,), daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    for n in range(total):
        assert ledger.arrive(f"e{n}", f"c{n % workers}", str(n), 0.0) == "new"
        assert ledger.expire(0.0) == []
        turn[n % workers].release()
    for thread in threads:
        thread.join(10)
    assert ledger.cursor == f"e{total - 1}"
    assert not any(ledger.is_live(f"c{n % workers}", str(n)) for n in range(total))


# The model: the same facts kept naively, beside a hub that replays as the real one does.


@dataclass(frozen=True)
class Event:
    event_id: str
    key: tuple[str, str] | None  # None: an event without a message
    said_at: float


@dataclass
class Hub:
    """Keeps the last events for some time, and sends again what follows a cursor."""

    events: list[Event] = field(default_factory=list)

    def say(self, key: tuple[str, str] | None, now: float) -> Event:
        event = Event(f"e{len(self.events) + 1}", key, now)
        self.events.append(event)
        return event

    def held(self, now: float) -> list[Event]:
        return [event for event in self.events[-DEPTH:] if now - event.said_at <= WINDOW]

    def newest(self) -> str | None:
        return self.events[-1].event_id if self.events else None

    def replay(self, cursor: str | None, now: float) -> list[Event]:
        if cursor is None or cursor == self.newest():
            return []
        held = self.held(now)
        ids = [event.event_id for event in held]
        return held[ids.index(cursor) + 1 :] if cursor in ids else held


@dataclass
class Arrived:
    event_id: str
    key: tuple[str, str] | None
    at: float


class LedgerAndHub(RuleBasedStateMachine):
    """A bridge that takes in events, settles and drops messages, loses its connection, is killed.

    What is settled is on the disk at once, and so is what is kept; the cursor is written late.
    """

    @initialize(has_ids=st.sampled_from([True, True, False]), earlier=st.integers(0, 2))
    def begin(self, has_ids: bool, earlier: int) -> None:
        self.hub = Hub()
        self.has_ids = has_ids
        self.now = 100.0
        self.messages: list[tuple[str, str]] = []
        for _ in range(earlier):
            self.hub.say(None, self.now)
        # On the disk.
        self.written: str | None = None
        self.settled: set[tuple[str, str]] = set()
        self.kept: dict[tuple[str, str], None] = {}
        # For the verdict only.
        self.lost: set[tuple[str, str]] = set()
        self.delivered: set[str] = set()
        self.missed: set[str] = set()
        self.start()
        self.connect()

    def start(self) -> None:
        self.ledger = Ledger(self.written, window=WINDOW, depth=DEPTH)
        self.base = self.written
        self.arrived: list[Arrived] = []
        self.open: set[tuple[str, str]] = set()
        self.dropped: set[tuple[str, str]] = set()
        self.asked: set[tuple[str, str]] = set()
        for key in self.kept:
            assert self.ledger.arrive(None, *key, self.now) == "new"
            self.open.add(key)

    def connect(self) -> None:
        cursor = self.ledger.cursor if self.has_ids else None
        if cursor is not None:
            for event in self.hub.replay(cursor, self.now):
                self.deliver(event)
            return
        # Live events only: what was said meanwhile is never offered.
        self.missed |= {event.event_id for event in self.hub.events} - self.delivered
        newest = self.hub.newest() if self.has_ids else None
        if newest is not None:
            self.ledger.start_at(newest)
            self.base = self.written = newest
            self.arrived = []
            self.lose(self.dropped)

    def deliver(self, event: Event) -> None:
        self.delivered.add(event.event_id)
        key = event.key
        event_id = event.event_id if self.has_ids else None
        chat, message = key or ("a", None)
        answer = self.ledger.arrive(event_id, chat, message, self.now)
        expected = self.expected(event_id, key)
        assert answer in expected
        if event_id is not None and event_id not in [a.event_id for a in self.arrived]:
            self.arrived.append(Arrived(event_id, key, self.now))
        if key is None:
            self.ledger.settle_event(event_id)
        elif key in self.settled:
            self.ledger.settle(*key)
        elif answer == "new" or answer == "again":
            self.open.add(key)
            self.dropped.discard(key)
            self.lost.discard(key)
            if self.written is None:
                self.kept[key] = None
        self.age()

    def expected(self, event_id: str | None, key: tuple[str, str] | None) -> set[str]:
        if key is None:
            known = event_id in [event.event_id for event in self.arrived]
            return {"known"} if known else {"new", "known"} if self.arrived else {"new"}
        if key in self.open:
            return {"known"}
        if key in self.dropped:
            return {"again"}
        # How long it remembers a settled one is its own affair, since the store knows it.
        return {"new", "known"} if key in self.settled else {"new"}

    def lose(self, keys: set[tuple[str, str]]) -> None:
        """What cannot come again is told, each once."""
        keys = set(keys)
        told = self.ledger.expire(self.now)
        assert sorted(told) == sorted(keys)
        self.lost |= keys
        self.dropped -= keys
        for key in keys:
            self.kept.pop(key, None)

    def age(self) -> None:
        """Bring the ledger to the present, and compare what it has lost."""
        self.lose({key for key in self.dropped if not self.holding(key)})

    def holding(self, key: tuple[str, str]) -> list[Arrived]:
        """The events of a message that the cursor has not passed."""
        return [event for event in self.arrived[self.passed() :] if event.key == key]

    def passed(self) -> int:
        """How many of the arrived events the cursor has passed."""
        for n, event in enumerate(self.arrived):
            later = len(self.arrived) - 1 - n
            settled = event.key is None or event.key in self.settled
            if not (settled or later >= DEPTH or self.now - event.at > WINDOW):
                return n
        return len(self.arrived)

    @rule(said=SAID)
    def people_speak(self, said: list[str]) -> None:
        for what in said:
            self.deliver(self.say(what))

    def say(self, what: str) -> Event:
        """In chat a or b a new message (``a``), or the last one under a new id (``a again``)."""
        chat, _, again = what.partition(" ")
        of_chat = [key for key in self.messages if key[0] == chat]
        if chat == "reaction":
            return self.hub.say(None, self.now)
        if not again or not of_chat:
            of_chat.append((chat, f"m{len(self.messages)}"))
            self.messages.append(of_chat[-1])
        return self.hub.say(of_chat[-1], self.now)

    @precondition(lambda self: self.has_ids and self.arrived)
    @rule(back=st.integers(1, DEPTH))
    def an_event_is_sent_twice(self, back: int) -> None:
        seen = {event.event_id for event in self.arrived}
        held = [event for event in self.hub.held(self.now) if event.event_id in seen]
        for event in held[-back:][:1]:
            self.deliver(event)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), answered=st.sampled_from([True, False, False]))
    def one_is_answered_or_pushed_out(self, which: int, answered: bool) -> None:
        key = sorted(self.open)[which % len(self.open)]
        self.open.remove(key)
        if answered:
            self.settled.add(key)
            self.kept.pop(key, None)
            self.ledger.settle(*key)
        else:
            self.dropped.add(key)
            self.asked.discard(key)
            self.ledger.drop(*key)
            self.age()

    @rule(seconds=st.sampled_from([1.0, 1.0, 4.0, WINDOW]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.age()

    @rule()
    def the_cursor_is_written(self) -> None:
        self.written = self.ledger.cursor

    @rule(said=SAID, killed=st.sampled_from([False, False, True]))
    def it_is_cut_off_or_killed(self, said: list[str], killed: bool) -> None:
        for what in said:
            self.say(what)
        if killed:
            self.start()
        self.connect()

    @precondition(lambda self: self.dropped)
    @rule()
    def it_is_redialled_for_what_was_dropped(self) -> None:
        self.ledger.redialled()
        self.asked |= self.dropped
        back = {e.key for e in self.hub.replay(self.ledger.cursor, self.now)} & self.dropped
        self.connect()
        if self.has_ids:
            assert back <= self.open

    @invariant()
    def the_cursor_is_where_the_facts_put_it(self) -> None:
        passed = self.passed()
        assert self.ledger.cursor == (self.arrived[passed - 1].event_id if passed else self.base)

    @invariant()
    def exactly_the_open_ones_are_live(self) -> None:
        assert {key for key in self.messages if self.ledger.is_live(*key)} == self.open

    @invariant()
    def a_redial_is_asked_for_when_it_brings_something(self) -> None:
        for chat in "ab":
            wanted = {key for key in self.dropped - self.asked if key[0] == chat}
            assert self.ledger.replayable(chat) == bool(wanted and self.ledger.cursor is not None)

    @invariant()
    def a_kill_now_would_lose_nothing_that_the_hub_holds(self) -> None:
        again = {event.key for event in self.hub.replay(self.written, self.now)}
        safe = self.settled | self.lost | set(self.kept) | again
        for event in self.hub.held(self.now):
            if event.key is not None and event.event_id not in self.missed:
                assert event.key in safe

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        self.connect()
        for key in sorted(self.open):
            self.settled.add(key)
            self.ledger.settle(*key)
        self.open.clear()
        self.age()
        assert self.ledger.cursor == (self.arrived[-1].event_id if self.arrived else self.base)


TestLedgerAndHub = LedgerAndHub.TestCase
TestLedgerAndHub.settings = settings(max_examples=300, stateful_step_count=30)
