"""From the stream to the chats: every event is ignored, a duplicate, or queued (section 3)."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from hermes_bridges.core.chats import Chats
from hermes_bridges.core.status import Status
from hermes_bridges.core.waker import Waker
from hermes_bridges.donut import protocol
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.protocol import Connected, Malformed, Message
from hermes_bridges.donut.store import Store
from hermes_bridges.donut.turns import Ask

ROOM = 256
"""Frames that may wait here; the stream stops reading when there are more."""
ROOM_BYTES = 4 * 1024 * 1024
REPLAY_DEPTH = 100
"""Events that the hub keeps for a replay, at most."""
_CURSOR_EVERY = 1.0  # seconds between two writes of the cursor
_REDIAL_PAUSE = 5.0  # seconds between two dials for the sake of dropped messages
_A_TURN = 64  # frames handled before the thread looks at the clock again

_log = logging.getLogger("hermes_bridges.donut.intake")


class Intake:
    """Owner of what arrives. The stage of ``donut.intake``; ``offer`` is the stream's.

    ``confirm`` and ``resume`` are told that the hub let us in, and that there is room again;
    ``redial`` that a message which was dropped can be had once more. ``wrong_bot`` is called when
    the state belongs to another bot; nothing is taken in after that. ``met`` is told the bot's id.
    """

    def __init__(
        self,
        chats: Chats[Ask],
        ledger: Ledger,
        store: Store,
        status: Status,
        respond_to_bots: bool,
        stopping: threading.Event,
        *,
        confirm: Callable[[], None],
        resume: Callable[[], None],
        redial: Callable[[str], None],
        wrong_bot: Callable[[], None],
        met: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chats = chats
        self._ledger = ledger
        self._store = store
        self._status = status
        self._respond_to_bots = respond_to_bots
        self._stopping = stopping
        self._confirm = confirm
        self._resume = resume
        self._redial = redial
        self._wrong_bot = wrong_bot
        self._met = met
        self._clock = clock
        self._waker = Waker()
        # Guards _frames, _bytes and _was_full.
        self._lock = threading.Lock()
        # Bounded by ROOM and ROOM_BYTES.
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._was_full = False
        # What the hub said of the bot when it let us in.
        self._bot_id: str | None = None
        self._username: str | None = None
        self._stranger = False
        self._adopted = False
        # The last event of a replay that is going on, and how many of its events came.
        self._replay_end: str | None = None
        self._replayed = 0
        self._cursor_written = ledger.cursor
        self._cursor_due = 0.0
        # Set on the stream's thread.
        self._dialled_with: str | None = None
        self._just_dialled = False
        self._live_only = False
        # Set by workers.
        self._redial_wanted = False
        self._redial_due = 0.0

    # On the stream's thread.

    def offer(self, raw: bytes) -> bool:
        """Take a frame; False when there is no room, and then ``resume`` is called later."""
        with self._lock:
            if len(self._frames) >= ROOM or (self._frames and self._bytes >= ROOM_BYTES):
                self._was_full = True
                return False
            self._frames.append(raw)
            self._bytes += len(raw)
        self._waker.wake()
        return True

    def resume_from(self) -> str | None:
        """The event after which the next dial is to begin; noted, as the replay depends on it."""
        self._dialled_with = None if self._live_only else self._ledger.cursor
        self._live_only = False
        self._just_dialled = True
        return self._dialled_with

    def without_cursor(self) -> None:
        """The next dial begins with live events: the hub refuses the cursor."""
        self._live_only = True

    # On any thread.

    def drained(self, chat: str) -> None:
        """No message of that chat waits any more: one that was dropped may come again."""
        if self._ledger.replayable(chat):
            self._redial_wanted = True
            self._waker.wake()

    # On the intake's thread.

    def step(self, now: float) -> float | None:
        for _ in range(_A_TURN):
            raw = self._next()
            if raw is None:
                break
            self._take(raw, now)
        self._expire(now)
        if now >= self._cursor_due or self._cursor_written is None:
            self._cursor_due = now + _CURSOR_EVERY
            self._write_cursor()
        due = self._cursor_due
        if self._redial_wanted:
            if now >= self._redial_due:
                self._redial_wanted = False
                self._redial_due = now + _REDIAL_PAUSE
                self._ledger.redialled()
                self._redial("messages that were dropped are asked for again")
            due = min(due, self._redial_due)
        with self._lock:
            return now if self._frames else due

    def wait(self, timeout: float | None) -> None:
        self._waker.wait(timeout)

    def stop(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        # What a hub cannot send again is kept, also when it comes in the last moment.
        while (raw := self._next()) is not None:
            self._take(raw, self._clock())
        self._expire(self._clock())
        self._write_cursor()
        kept = {(message.chat, message.message) for message in self._store.kept()}
        self._lose([key for key in self._ledger.stranded() if key not in kept])

    def _next(self) -> bytes | None:
        with self._lock:
            if not self._frames:
                return None
            raw = self._frames.popleft()
            self._bytes -= len(raw)
            has_room = self._was_full and len(self._frames) <= ROOM // 2
            if has_room:
                self._was_full = False
        if has_room:
            self._resume()
        return raw

    def _take(self, raw: bytes, now: float) -> None:
        if self._stranger:
            return
        event = protocol.decode(raw)
        if isinstance(event, Connected):
            self._welcome(event)
            return
        replay = self._replay_end is not None
        if isinstance(event, Message):
            self._status.count("received")
            self._judge(event, replay, now)
        else:
            self._pass(event.event_id, now)
            if isinstance(event, Malformed):
                self._status.count("ignored.malformed")
                _log.warning("an event was not usable: %.80s, %d bytes", event.type, event.size)
            else:
                self._status.count("ignored.type")
        if replay:
            self._replayed += 1
            if event.event_id == self._replay_end or self._replayed >= REPLAY_DEPTH:
                self._replay_end = None

    def _welcome(self, connected: Connected) -> None:
        bot = None if connected.bot_id is None else str(connected.bot_id)
        known = self._store.bot()
        if bot is not None and known is not None and bot != known:
            _log.error(
                "the state belongs to bot %.80s, but DONUT_BOT_TOKEN is of bot %.80s:"
                " use another BRIDGE_STATE_DIR, or move the state aside with --reset-state",
                known,
                bot,
            )
            self._stranger = True
            self._wrong_bot()
            return
        if bot is not None and known is None:
            self._store.set_bot(bot)
        self._bot_id = bot or known
        self._username = connected.username
        self._met(bot or known)
        self._confirm()
        self._adopt()
        if not self._just_dialled:
            # The hub repeats itself: where the replay begins and ends was told by the first.
            return
        self._just_dialled = False
        newest = connected.last_event_id
        asked = self._dialled_with
        self._replay_end = newest if asked is not None and newest != asked else None
        self._replayed = 0
        if asked is not None and not connected.complete:
            self._status.count("gaps")
            _log.warning("the hub no longer holds all events since the last one that was handled")
        if asked is None and newest is not None:
            if self._ledger.cursor is not None:
                self._status.count("gaps")
                _log.warning("the hub did not take the last event's id: begun with live events")
            self._ledger.start_at(newest)
            self._write_cursor()

    def _adopt(self) -> None:
        """Once: queue what an earlier process kept for a hub that has no event ids."""
        if self._adopted:
            return
        self._adopted = True
        for message in self._store.kept():
            self._ledger.arrive(None, message.chat, message.message, self._clock())
            self._queue(message, self._text(message), force=True)

    def _judge(self, message: Message, replay: bool, now: float) -> None:
        chat, key = message.chat, message.message
        text = self._text(message)
        reason = self._ignored(message, text)
        # In this order: a message is settled on the disk before it is no longer open.
        is_open = self._ledger.is_live(chat, key)
        if reason is None and (is_open or self._store.is_settled(chat, key)):
            reason = "duplicate"
        arrival = self._ledger.arrive(message.event_id, chat, key, now)
        if reason is not None:
            self._status.count(f"ignored.{reason}")
            if not is_open or arrival == "new":
                self._ledger.settle(chat, key)
            return
        if message.event_id is None or self._cursor_written is None:
            # After a kill there would be nothing from which the hub could replay it.
            self._store.keep(message)
        self._queue(message, text, force=replay)

    def _ignored(self, message: Message, text: str) -> str | None:
        if protocol.is_own(message, self._bot_id, self._username):
            return "self"
        if not message.is_person and not self._respond_to_bots:
            return "bot"
        return None if text else "no_text"

    def _text(self, message: Message) -> str:
        return protocol.without_mention(message.text, self._username).strip()

    def _pass(self, event_id: str | None, now: float) -> None:
        """Let the cursor go past an event that needs no answer."""
        if event_id is not None:
            self._ledger.arrive(event_id, "", None, now)
            self._ledger.settle_event(event_id)

    def _queue(self, message: Message, text: str, force: bool) -> None:
        ask = Ask(message, text)
        out = self._chats.put(message.chat, ask, force)
        if out is None or (out is ask and self._stopping.is_set()):
            # What is not begun at the end stays unsettled, and comes again.
            return
        self._drop(out.message)

    def _drop(self, message: Message) -> None:
        self._status.count("dropped")
        _log.warning(
            "message %.80s of chat %.80s was dropped: too many wait there",
            message.message,
            message.chat,
        )
        self._ledger.drop(message.chat, message.message)

    def _expire(self, now: float) -> None:
        lost = self._ledger.expire(now)
        self._lose(lost)
        for chat, message in lost:
            self._store.forget(chat, message)

    def _lose(self, lost: list[tuple[str, str]]) -> None:
        for chat, message in lost:
            self._status.count("lost")
            _log.warning("message %.80s of chat %.80s is lost: it cannot come again", message, chat)

    def _write_cursor(self) -> None:
        cursor = self._ledger.cursor
        if cursor != self._cursor_written:
            self._store.set_cursor(cursor)
            self._cursor_written = cursor
