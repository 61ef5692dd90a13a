"""What is taken in: sections 3.1 to 3.4, 5 and 9 of the contract."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core.chats import Chats, Lane
from hermes_bridges.core.status import Status
from hermes_bridges.donut import intake as donut_intake
from hermes_bridges.donut.intake import Intake
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.protocol import Id
from hermes_bridges.donut.store import Store
from hermes_bridges.donut.turns import Ask
from tests.conftest import wait
from tests.donut.rig import LONG, counters, errors

WINDOW = 300.0


class Desk:
    """An intake that is turned by hand, with chats whose handler answers when it is let."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.now = 1000.0
        self.told: list[str] = []
        self.bots: list[str | None] = []
        self.handled: list[Ask] = []
        self.gate = threading.Event()
        self.gate.set()
        self._events = 100
        self.open(**options)

    def open(self, *, limit: int = 20, respond_to_bots: bool = False) -> None:
        self.stopping = threading.Event()
        self.store = Store(str(self.root))
        self.ledger = Ledger(self.store.cursor())
        self.status = Status(str(self.root / "status.json"))
        self.chats: Chats[Ask] = Chats(
            self._handle, limit, 60.0, on_drained=lambda chat: self.intake.drained(chat)
        )
        self.intake = Intake(
            self.chats,
            self.ledger,
            self.store,
            self.status,
            respond_to_bots,
            self.stopping,
            confirm=lambda: self.told.append("confirm"),
            resume=lambda: self.told.append("resume"),
            redial=lambda reason: self.told.append("redial"),
            wrong_bot=lambda: self.told.append("wrong bot"),
            met=self.bots.append,
            clock=lambda: self.now,
        )

    def _handle(self, worker: Lane, ask: Ask | None) -> None:
        assert ask is not None
        self.handled.append(ask)
        assert self.gate.wait(LONG)
        if not self.stopping.is_set():
            self.settle(ask)

    def settle(self, ask: Ask) -> None:
        self.store.settle(ask.message.chat, ask.message.message)
        self.ledger.settle(ask.message.chat, ask.message.message)

    # The hub

    def connect(self, newest: str | None = None, **fields: Any) -> None:
        """A new connection, from the cursor on."""
        self.intake.resume_from()
        bot = {"id": 77, "username": "helper"}
        self.take({"type": "connected", "bot": bot, "last_event_id": newest, **fields})

    def take(self, frame: dict[str, Any] | bytes) -> None:
        raw = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        assert self.intake.offer(raw)
        self.turn()

    def turn(self) -> None:
        self.intake.step(self.now)

    def message(
        self,
        message_id: Id,
        text: Any = "hi",
        chat: Id = 1,
        event_id: str | None = "",
        **sender: Any,
    ) -> dict[str, Any]:
        """A message as the hub sends it; ``event_id`` None: by a hub without such ids."""
        if event_id == "":
            self._events += 1
            event_id = str(self._events)
        who = {"id": 5, "type": "user", "username": "ana", **sender}
        frame = {
            "type": "message.new",
            "event_id": event_id,
            "chat_id": chat,
            "message": {"id": message_id, "content": text, "sender": who},
        }
        return {name: value for name, value in frame.items() if value is not None}

    def hear(self, message_id: Id, *args: Any, **options: Any) -> None:
        self.take(self.message(message_id, *args, **options))

    # What became of it

    def texts(self) -> list[str]:
        return [ask.text for ask in self.handled]

    def until_texts(self, *texts: str) -> None:
        assert wait(lambda: self.texts() == list(texts), LONG), self.texts()

    def idle(self) -> bool:
        return self.chats.queued == 0 and self.chats.busy == 0

    def count(self, name: str) -> int:
        return counters(self.status, self.root / "status.json").get(name, 0)

    def ignored(self) -> dict[str, int]:
        found = counters(self.status, self.root / "status.json")
        return {n.partition(".")[2]: c for n, c in found.items() if n.startswith("ignored.") and c}

    # The end

    def kill(self) -> None:
        """What is in memory is gone, and what is in flight comes to nothing."""
        self.stopping.set()
        self.chats.stop()
        self.gate.set()
        self.chats.close()
        self.store.close()

    def stop(self) -> None:
        self.stopping.set()
        self.chats.stop()
        self.intake.stop()
        self.gate.set()
        self.chats.close()
        self.turn()
        self.intake.close()
        self.store.close()

    def reopen(self, end: Callable[[], None], **options: Any) -> None:
        end()
        del self.handled[:], self.told[:], self.bots[:]
        self.open(**options)


@pytest.fixture
def desk(tmp_path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.kill()


def busy(desk: Desk, message_id: Id = 1, chat: Id = 1) -> None:
    """A message of that chat is in flight."""
    desk.gate.clear()
    before = len(desk.handled)
    desk.hear(message_id, "in flight", chat=chat)
    assert wait(lambda: len(desk.handled) > before, LONG)


# --- what is a message


def test_a_message_is_queued_for_its_chat(desk) -> None:
    desk.connect()
    desk.hear(1, "@Helper, hi ")
    desk.hear(2, "@helper2 hi")
    desk.until_texts("hi", "@helper2 hi")
    assert desk.told == ["confirm"] and desk.bots == ["77"] and desk.ignored() == {}
    assert desk.count("received") == 2


def test_what_is_ignored_is_counted_and_lets_the_cursor_pass(desk) -> None:
    desk.connect("100")
    desk.hear(1, "hi", id=77, username="else")
    desk.hear(2, "hi", id=78, username="Helper", type="user")
    desk.hear(3, "hi", id=900, type="bot")
    desk.hear(4, "hi", id=901, type="service")
    desk.hear(5, "")
    desk.hear(6, 17)
    desk.hear(7, " @helper ")
    desk.take({"type": "reaction.added", "event_id": "a", "chat_id": 1})
    desk.take({"type": "message.deleted", "event_id": "b", "chat_id": 1})
    desk.take({"type": "message.edited", "event_id": "c", "message": {"id": 1, "content": "x"}})
    desk.take(b"no JSON")
    desk.take(b"\xff\xfe")
    desk.take({"type": "message.new", "event_id": "d", "chat_id": None, "message": {}})
    assert desk.ignored() == {"self": 2, "bot": 2, "no_text": 3, "type": 3, "malformed": 3}
    assert desk.handled == [] and desk.ledger.cursor == "d" and desk.told == ["confirm"]
    assert desk.count("received") == 7


def test_a_malformed_frame_is_told_by_its_type_and_size_only(desk, caplog) -> None:
    frame = json.dumps({"type": "message.new", "message": {"content": "open sesame"}}).encode()
    desk.connect()
    desk.take(frame)
    assert f"message.new, {len(frame)} bytes" in caplog.text and "sesame" not in caplog.text


def test_bots_are_answered_where_that_is_wanted_and_the_bot_itself_never(desk) -> None:
    desk.reopen(desk.kill, respond_to_bots=True)
    desk.connect()
    desk.hear(1, "from a bot", id=900, type="bot")
    desk.hear(2, "from myself", id=77, type="bot")
    desk.until_texts("from a bot")
    assert desk.ignored() == {"self": 1}


def test_a_hub_that_does_not_tell_the_bots_id(desk) -> None:
    desk.connect(bot={"username": "helper"})
    desk.hear(1, "from myself", id=77, username="helper")
    desk.hear(2, "hi")
    desk.until_texts("hi")
    assert desk.bots == [None] and desk.store.bot() is None and desk.ignored() == {"self": 1}
    # What it has told once is remembered.
    desk.connect()
    desk.reopen(desk.stop)
    desk.connect(bot={})
    desk.hear(3, "from myself", id=77)
    assert desk.bots == ["77"] and desk.ignored() == {"self": 1}


# --- once


def test_what_is_known_is_a_duplicate(desk) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.hear(2, "queued")
    for message_id in (1, 2):
        # In flight and queued, under another event id, and as text instead of a number.
        desk.hear(message_id, "again")
        desk.hear(str(message_id), "again")
    desk.gate.set()
    desk.until_texts("in flight", "queued")
    assert wait(desk.idle, LONG)
    desk.hear(1, "settled")
    # The same number in another chat is another message.
    desk.hear(1, "another chat", chat=2)
    desk.until_texts("in flight", "queued", "another chat")
    assert desk.ignored() == {"duplicate": 5}
    assert wait(lambda: desk.ledger.cursor == "108", LONG)


def test_KH29_a_settled_message_comes_again_hours_and_restarts_later(desk) -> None:
    desk.connect("100")
    desk.hear(1, event_id="e1")
    desk.until_texts("hi")
    assert wait(desk.idle, LONG)
    for hours, event_id in ((0.1, "e1"), (1.2, "e1"), (7.0, "e9")):
        desk.now += hours * 3600
        desk.reopen(desk.kill)
        desk.connect("100")
        desk.hear(1, event_id=event_id)
        assert wait(desk.idle, LONG) and desk.handled == []
        assert desk.ignored() == {"duplicate": 1}


def test_KH28_what_was_in_flight_at_a_kill_is_not_claimed(desk) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.reopen(desk.kill)
    desk.connect("101")
    desk.hear(1, event_id="101")
    desk.until_texts("hi")
    assert desk.ignored() == {}


# --- full


def test_a_full_queue_gives_up_its_oldest_and_never_the_one_in_flight(desk, caplog) -> None:
    desk.reopen(desk.kill, limit=2)
    desk.connect("100")
    busy(desk, 1)
    for message_id in (2, 3, 4, 5):
        desk.hear(message_id, f"no. {message_id}")
    assert desk.count("dropped") == 2
    assert "message 2 of chat 1" in caplog.text and "message 3 of chat 1" in caplog.text
    assert "no. 2" not in caplog.text
    # They are neither settled nor claimed, and hold the cursor back.
    assert not desk.store.is_settled("1", "2") and not desk.ledger.is_live("1", "2")
    desk.gate.set()
    desk.until_texts("in flight", "no. 4", "no. 5")
    assert wait(desk.idle, LONG) and desk.ledger.cursor == "101"
    assert desk.count("lost") == 0


def test_once_the_chat_is_idle_the_stream_is_redialled_once(desk) -> None:
    desk.reopen(desk.kill, limit=1)
    desk.connect("100")
    busy(desk, 1)
    dropped = desk.message(2, "dropped")
    desk.take(dropped)
    desk.hear(3, "queued")
    desk.turn()
    assert "redial" not in desk.told
    desk.gate.set()
    assert wait(desk.idle, LONG)
    desk.turn()
    assert desk.told.count("redial") == 1
    for _ in range(3):
        desk.now += 10.0
        desk.hear(f"more at {desk.now}")
        assert wait(desk.idle, LONG)
        desk.turn()
    # It did not help, and is not tried for the same message again.
    assert desk.told.count("redial") == 1
    desk.connect(str(desk._events))
    desk.take(dropped)
    assert wait(lambda: desk.texts()[-1] == "dropped", LONG) and wait(desk.idle, LONG)
    assert desk.ledger.cursor == str(desk._events)
    assert (desk.count("dropped"), desk.count("lost")) == (1, 0)


def test_what_is_replayed_pushes_nothing_out(desk) -> None:
    desk.reopen(desk.kill, limit=2)
    desk.connect("100")
    desk.hear(1)
    assert wait(desk.idle, LONG)
    desk.reopen(desk.stop, limit=2)
    desk.connect("160")
    desk.gate.clear()
    for number in range(60):
        desk.hear(10 + number, f"no. {number}", event_id=str(101 + number))
    assert desk.count("dropped") == 0
    desk.gate.set()
    desk.until_texts(*(f"no. {number}" for number in range(60)))


def test_a_replay_is_over_after_what_the_hub_can_hold(desk) -> None:
    desk.reopen(desk.kill, limit=1)
    desk.connect("100")
    desk.connect("never comes")
    busy(desk, 1)
    for number in range(110):
        desk.hear(10 + number)
    assert desk.count("dropped") > 0


def test_a_message_that_is_lost_is_counted_once(desk, caplog) -> None:
    desk.reopen(desk.kill, limit=1)
    desk.connect("100")
    busy(desk, 1)
    desk.hear(2, "dropped")
    desk.hear(3, "queued")
    desk.now += WINDOW + 1
    for _ in range(3):
        desk.turn()
    assert (desk.count("lost"), desk.ledger.cursor) == (1, "103")
    assert caplog.text.count("message 2 of chat 1 is lost") == 1
    # The others were too long on their way too, and are answered all the same.
    desk.gate.set()
    desk.until_texts("in flight", "queued")
    assert wait(desk.idle, LONG)
    desk.hear(2, "dropped", event_id="102")
    assert desk.count("lost") == 1


def test_a_hundred_later_events_end_the_replay_of_a_dropped_message(desk) -> None:
    desk.reopen(desk.kill, limit=1)
    desk.connect("100")
    busy(desk, 1)
    desk.hear(2, "dropped")
    desk.hear(3, "queued")
    lost = []
    for number in range(102):
        desk.take({"type": "reaction.added", "event_id": f"r{number}", "chat_id": 1})
        lost.append(desk.count("lost"))
    # With the message behind it that makes a hundred.
    assert lost == [0] * 98 + [1] * 4


def test_what_is_still_open_past_its_window_is_lost_with_the_process(desk, caplog) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.hear(2, "queued")
    desk.now += WINDOW + 1
    desk.hear(3, "queued, and can be replayed")
    assert desk.count("lost") == 0
    desk.stop()
    assert desk.count("lost") == 2
    desk.open()
    for message in (1, 2):
        assert f"message {message} of chat 1 is lost" in caplog.text
    assert "message 3" not in caplog.text


def test_what_is_answered_past_its_window_is_not_lost(desk, caplog) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.now += WINDOW + 1
    desk.turn()
    desk.gate.set()
    assert wait(desk.idle, LONG)
    desk.reopen(desk.stop)
    assert "lost" not in caplog.text


def test_the_stop_drops_nothing(desk) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.hear(2, "queued")
    desk.stopping.set()
    desk.chats.stop()
    desk.hear(3, "comes too late")
    assert desk.count("dropped") == 0
    desk.reopen(desk.stop)
    assert desk.store.cursor() == "100"
    desk.connect("103")
    for message_id in (1, 2, 3):
        desk.hear(message_id, f"no. {message_id}", event_id=str(100 + message_id))
    desk.until_texts("no. 1", "no. 2", "no. 3")


# --- the cursor on the disk


def test_the_first_cursor_is_stored_at_once_and_the_others_within_a_second(desk) -> None:
    desk.connect("100")
    assert desk.store.cursor() == "100"
    desk.hear(1)
    assert wait(lambda: desk.ledger.cursor == "101", LONG)
    desk.turn()
    assert desk.store.cursor() == "100"
    desk.now += 1.01
    desk.turn()
    assert desk.store.cursor() == "101"
    desk.hear(2)
    assert wait(desk.idle, LONG)
    desk.reopen(desk.stop)
    assert desk.store.cursor() == "102" and desk.intake.resume_from() == "102"


def test_a_later_connection_does_not_move_the_cursor(desk) -> None:
    desk.connect("100")
    busy(desk, 1)
    desk.connect("101")
    assert desk.ledger.cursor == "100" and desk.intake.resume_from() == "100"


def test_a_second_welcome_on_a_connection_moves_nothing(desk) -> None:
    """The cursor would pass what is open, and the next hundred messages would know no limit."""
    desk.gate.clear()
    desk.connect("100")
    desk.hear("m1")
    desk.until_texts("hi")
    welcome = {"type": "connected", "bot": {"id": 77, "username": "helper"}}
    desk.take(welcome | {"last_event_id": "101"})
    assert desk.ledger.cursor == "100" and desk.store.cursor() == "100"
    desk.connect("101")
    desk.take(welcome | {"last_event_id": "199"})
    desk.hear("m1", event_id="101")
    for number in range(30):
        desk.hear(f"n{number}")
    assert desk.chats.queued == 20 and desk.count("dropped") == 10


def test_before_there_is_a_cursor_messages_are_kept(desk) -> None:
    desk.connect(None)
    busy(desk, 1)
    desk.hear(2, "second")
    desk.reopen(desk.kill)
    desk.connect("102")
    desk.until_texts("in flight", "second")
    # And not twice, should the hub send them all the same.
    desk.hear(2, "second", event_id="102")
    assert wait(desk.idle, LONG) and len(desk.handled) == 2 and desk.store.kept() == []


def test_a_gap_in_the_replay_is_told_once(desk, caplog) -> None:
    desk.connect("100")
    desk.connect("200", replay={"complete": False})
    desk.hear(1)
    assert desk.count("gaps") == 1
    assert sum("no longer holds" in record.getMessage() for record in caplog.records) == 1


def test_a_cursor_that_the_hub_refuses_is_left_out_once(desk, caplog) -> None:
    desk.connect("100")
    assert desk.intake.resume_from() == "100"
    desk.intake.without_cursor()
    desk.connect("500")
    assert desk.ledger.cursor == "500" and desk.count("gaps") == 1
    assert desk.intake.resume_from() == "500"


def test_a_refused_cursor_is_left_out_of_the_next_dial_only(desk) -> None:
    desk.connect("100")
    desk.intake.without_cursor()
    assert [desk.intake.resume_from() for _ in range(2)] == [None, "100"]


# --- a hub without event ids


def test_messages_of_a_hub_without_ids_survive_a_kill_in_order_and_once(desk) -> None:
    desk.connect()
    desk.hear(1, "answered", event_id=None)
    desk.until_texts("answered")
    assert wait(desk.idle, LONG)
    desk.gate.clear()
    desk.hear(2, "@helper in flight", event_id=None)
    desk.hear(3, "queued", event_id=None)
    desk.hear(4, "elsewhere", event_id=None, chat="two")
    assert wait(lambda: desk.chats.busy == 2, LONG)
    for _ in range(2):
        desk.reopen(desk.kill)
        desk.gate.clear()
        desk.connect()
        assert wait(lambda: desk.chats.busy == 2, LONG)
    # A second connection brings them no second time.
    desk.connect()
    desk.gate.set()
    assert wait(desk.idle, LONG)
    assert sorted(desk.texts()) == ["elsewhere", "in flight", "queued"]
    assert [text for text in desk.texts() if text != "elsewhere"] == ["in flight", "queued"]
    desk.reopen(desk.kill)
    desk.connect()
    assert wait(desk.idle, LONG) and desk.handled == [] and desk.store.kept() == []


def test_what_such_a_hub_sends_is_a_duplicate_by_its_message_id(desk) -> None:
    desk.connect()
    desk.hear(1, event_id=None)
    assert wait(lambda: desk.idle() and desk.handled, LONG)
    desk.hear(1, event_id=None)
    assert desk.ignored() == {"duplicate": 1} and desk.store.kept() == []


def test_what_was_dropped_of_such_a_hub_is_lost_at_once(desk) -> None:
    desk.reopen(desk.kill, limit=1)
    desk.connect()
    desk.gate.clear()
    for message_id in (1, 2, 3):
        desk.hear(message_id, event_id=None)
        assert wait(lambda: desk.chats.busy, LONG)
    assert (desk.count("dropped"), desk.count("lost")) == (1, 1)
    assert [message.message for message in desk.store.kept()] == ["1", "3"]
    desk.gate.set()
    assert wait(desk.idle, LONG)
    desk.turn()
    assert "redial" not in desk.told


def test_what_comes_in_the_last_moment_is_kept(desk) -> None:
    desk.connect()
    for message_id in range(200):
        assert desk.intake.offer(json.dumps(desk.message(message_id, event_id=None)).encode())
    desk.reopen(desk.stop)
    assert len(desk.store.kept()) == 200
    desk.connect()
    assert wait(lambda: len(desk.handled) == 200 and desk.idle(), LONG)


# --- another bot


def test_the_state_of_another_bot_is_left_alone(desk, caplog) -> None:
    desk.connect("100")
    desk.hear(1)
    assert wait(desk.idle, LONG)
    desk.reopen(desk.stop)
    desk.connect("500", bot={"id": 78, "username": "other"})
    desk.hear(2, event_id="501")
    assert desk.told == ["wrong bot"] and desk.handled == [] and desk.bots == []
    (line,) = errors(caplog)
    assert "--reset-state" in line and "77" in line and "78" in line
    desk.reopen(desk.stop)
    assert (desk.store.bot(), desk.store.cursor()) == ("77", "101")
    # Without an id it is taken for the same, and the id of another JSON type is the same.
    desk.connect("101", bot={"username": "helper"})
    desk.connect("101", bot={"id": "77"})
    assert desk.told == ["confirm", "confirm"] and desk.bots == ["77", "77"]


# --- no room


def test_the_stream_is_told_when_there_is_no_room_and_when_there_is(desk) -> None:
    frame = json.dumps({"type": "else", "chat_id": 1}).encode()
    for _ in range(donut_intake.ROOM):
        assert desk.intake.offer(frame)
    assert not desk.intake.offer(frame)
    desk.turn()
    assert desk.told == []
    while desk.intake.step(desk.now) == desk.now:
        pass
    assert desk.told == ["resume"] and desk.intake.offer(frame)


def test_the_room_has_a_size_too_and_takes_one_frame_of_any(desk) -> None:
    assert desk.intake.offer(b" " * (donut_intake.ROOM_BYTES + 1))
    assert not desk.intake.offer(b"{}")
    desk.turn()
    assert desk.told == ["resume"] and desk.intake.offer(b"{}")
