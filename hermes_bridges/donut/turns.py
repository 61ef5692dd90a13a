"""What a chat's worker does with a message: one turn of Hermes, then the answer (section 3)."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hermes_bridges.core.breaker import Breaker, Permit
from hermes_bridges.core.slots import Slots
from hermes_bridges.core.status import Status
from hermes_bridges.donut import keys, protocol
from hermes_bridges.donut.hermes_api import (
    Answered,
    Failed,
    Hermes,
    Outcome,
    Rejected,
    TimedOut,
    Unsettled,
)
from hermes_bridges.donut.ledger import Ledger
from hermes_bridges.donut.poster import PATIENCE, Place, Poster, Worker
from hermes_bridges.donut.protocol import Message
from hermes_bridges.donut.store import ChatState, Part, Store, Turn
from hermes_bridges.donut.text import answer_parts
from hermes_bridges.donut.typing_signal import Board

MOST_STARTS = 3
"""How often a message is begun; a further start only tells that it was given up."""
REPEATABLE = 300.0
"""Seconds after its begin for which Hermes surely still knows a run by its key."""
BOT_RUN = 5
"""Answers to bots in a row, with no person's message between them."""
LONGEST_TEXT = 65_000
"""Characters; Hermes cuts a longer text off without a word."""
_SLACK = 15.0  # seconds beyond the request timeout until a worker counts as hung
_QUICK = 0.0  # seconds of patience for a notice that is posted while a slot is held

NEW_SESSION = "A new conversation begins here."
NOT_TAKEN = "The agent could not take this message."
GIVEN_UP = "This message could not be answered and was given up."

_log = logging.getLogger("hermes_bridges.donut.turns")


class Ask(NamedTuple):
    """A message to be answered; ``text`` is without the mention of the bot."""

    message: Message
    text: str


class Policy(NamedTuple):
    """The settings that decide how a turn goes; times in seconds."""

    model: str
    request_timeout: float
    fallback_message: str
    fallback_interval: float
    markdown: bool


class Turns:
    """Handles the messages of all chats; ``handle`` runs on the chat's own worker."""

    def __init__(
        self,
        policy: Policy,
        slots: Slots,
        breaker: Breaker,
        hermes: Hermes,
        store: Store,
        ledger: Ledger,
        poster: Poster,
        board: Board,
        status: Status,
        stopping: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._policy = policy
        self._slots = slots
        self._breaker = breaker
        self._hermes = hermes
        self._store = store
        self._ledger = ledger
        self._poster = poster
        self._board = board
        self._status = status
        self._stopping = stopping
        self._clock = clock
        self._wall = wall
        # The bot's id; known before the first message comes, since the stream begins with it.
        self._bot = store.bot()

    def meet(self, bot: str | None) -> None:
        """Learn which bot this is; from the intake's thread."""
        self._bot = bot

    def handle(self, worker: Worker, ask: Ask | None) -> None:
        """One message, or with None what waits in the outbox of the worker's chat."""
        if ask is None:
            self._poster.drain(worker, 0)
        else:
            self._answer(worker, ask)

    def _begin_session(self, worker: Worker, message: Message, state: ChatState) -> None:
        self._store.reset(message.chat, message.message)
        self._settle(message, state=state)
        self._status.count("answered")
        key = keys.notice_key(self._run_key(message), "reset")
        self._poster.say(worker, _place(message), NEW_SESSION, key)

    def _answer(self, worker: Worker, ask: Ask) -> None:
        message = ask.message
        earlier = self._store.turn(message.chat, message.message)
        state = self._store.chat(message.chat)
        if earlier is None:
            if not message.is_person and state.bot_run >= BOT_RUN:
                self._status.count("ignored.bot")
                self._settle(message)
                return
            state = _met(state, message)
        if protocol.is_reset(ask.text):
            self._begin_session(worker, message, state)
            return
        if hopeless := self._hopeless(ask, earlier):
            self._tell(worker, message, *hopeless)
            self._settle(message, state=state)
            return
        outcome, told = self._outcome(worker, ask, state)
        if isinstance(outcome, Unsettled):
            return
        if isinstance(outcome, Answered):
            self._hand_over(worker, message, outcome)
            return
        if not told:
            rejected = isinstance(outcome, Rejected)
            self._tell(worker, message, *(_REJECTED if rejected else self._fallback))
        self._settle(message, state=state)

    def _hopeless(self, ask: Ask, earlier: Turn | None) -> tuple[str, str] | None:
        """The notice for a message that must not be sent (again)."""
        message = ask.message
        if earlier is None:
            return _REJECTED if len(ask.text) > LONGEST_TEXT else None
        if earlier.attempts >= MOST_STARTS:
            why = f"was begun {earlier.attempts} times without an end"
        elif self._wall() - earlier.began_at > REPEATABLE:
            why = "was begun too long ago to be repeated safely"
        else:
            return None
        self._status.count("given_up")
        _log.error("message %.80s of chat %.80s %s: given up", message.message, message.chat, why)
        return _GIVEN_UP

    def _outcome(self, worker: Worker, ask: Ask, state: ChatState) -> tuple[Outcome, bool]:
        """What became of the call, and whether the chat has been told of a failure already."""
        worker.expect(None)
        with self._slots.hold(self._stopping.is_set) as held:
            # Nothing that waits is begun while the process ends.
            if not held or self._stopping.is_set():
                return Unsettled(), False
            permit = self._breaker.admit()
            if permit is None:
                self._status.count("refused_by_breaker")
                return Failed("open", "the breaker is open"), False
            with permit:
                call = self._begin(ask, state)
                outcome = self._call(worker, ask.message, call, self._hermes.turn)
                self._report(permit, outcome)
            if not isinstance(outcome, TimedOut):
                return outcome, False
            # The run may go on at Hermes, so this chat's next message has to wait for it.
            told = self._tell(worker, ask.message, *self._fallback, patience=_QUICK)
            if self._stopping.is_set():
                return Unsettled(), told
            return self._call(worker, ask.message, call, self._hermes.join), told

    def _begin(self, ask: Ask, state: ChatState) -> "_Call":
        message = ask.message
        session = state.session or keys.session_id(self._bot, message.chat, state.generation)
        turn = self._store.begin(message.chat, message.message, session, state.several, state)
        text = ask.text
        if turn.named:
            text = protocol.with_name(message.sender_name, message.sender, text)
        return _Call(
            protocol.request_body(self._policy.model, text),
            turn.session,
            keys.session_key(self._bot, message.chat),
            self._run_key(message),
        )

    def _call(self, worker: Worker, message: Message, call: "_Call", way: "_Way") -> Outcome:
        began = self._clock()
        worker.expect(self._policy.request_timeout + _SLACK)
        self._board.begin(message.chat, message.chat_id, message.thread_id)
        try:
            outcome = way(*call, self._policy.request_timeout)
        finally:
            self._board.end(message.chat)
        if isinstance(outcome, Failed | TimedOut | Rejected):
            kind, why = _described(outcome)
            self._status.count(f"call_failures.{kind}")
            _log.warning(
                "the call for message %.80s of chat %.80s failed after %.1f s: %s",
                message.message,
                message.chat,
                self._clock() - began,
                why,
            )
        return outcome

    def _report(self, permit: Permit, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            permit.done(True)
        elif isinstance(outcome, Failed | TimedOut):
            permit.done(False)

    def _hand_over(self, worker: Worker, message: Message, answer: Answered) -> None:
        texts = answer_parts(answer.text, markdown=self._policy.markdown, cut_short=answer.cut)
        run_key, place, now = self._run_key(message), _place(message), self._wall()
        parts = [
            Part(
                id=0,
                chat=message.chat,
                chat_id=place.chat_id,
                thread_id=place.thread_id,
                reply_to=place.reply_to,
                key=keys.part_key(run_key, number),
                answer=run_key,
                number=number,
                text=part,
                created_at=now,
            )
            for number, part in enumerate(texts, start=1)
        ]
        self._settle(message, session=answer.session, parts=parts)
        self._status.count("answered" if parts else "silent")
        if parts:
            self._poster.drain(worker)

    def _settle(
        self,
        message: Message,
        *,
        session: str | None = None,
        parts: Sequence[Part] = (),
        state: ChatState | None = None,
    ) -> None:
        # In this order: the cursor may pass only what is settled on the disk.
        self._store.settle(
            message.chat, message.message, session=session, parts=parts, chat_state=state
        )
        self._ledger.settle(message.chat, message.message)

    @property
    def _fallback(self) -> tuple[str, str]:
        return "fallback", self._policy.fallback_message

    def _tell(
        self,
        worker: Worker,
        message: Message,
        kind: str,
        text: str,
        patience: float = PATIENCE,
    ) -> bool:
        """Tell the chat, unless it was told something within the interval; False: not posted."""
        now = self._wall()
        since = now - self._store.chat(message.chat).fallback_at
        if not text or 0 <= since < self._policy.fallback_interval:
            self._status.count(f"{kind}_held_back")
            return True
        # Before it is posted: after a kill in between it is rather missed than told twice.
        self._store.note_fallback(message.chat, now)
        key = keys.notice_key(self._run_key(message), kind)
        posted = self._poster.say(worker, _place(message), text, key, patience)
        if posted:
            self._status.count(kind)
        else:
            self._store.note_fallback(message.chat, 0.0)
        return posted

    def _run_key(self, message: Message) -> str:
        return keys.run_key(self._bot, message.chat, message.message)


class _Call(NamedTuple):
    body: bytes
    session: str
    session_key: str
    run_key: str


_Way = Callable[[bytes, str, str, str, float], Outcome]
_REJECTED = ("notice", NOT_TAKEN)
_GIVEN_UP = ("notice", GIVEN_UP)


def _place(message: Message) -> Place:
    return Place(message.chat_id, message.message_id, message.thread_id)


def _met(state: ChatState, message: Message) -> ChatState:
    """The facts of a chat after this message's sender has been seen in it."""
    if not message.is_person:
        return state._replace(bot_run=state.bot_run + 1)
    first = state.first_person or message.sender
    several = state.several or first != message.sender
    return state._replace(first_person=first, several=several, bot_run=0)


def _described(outcome: Failed | TimedOut | Rejected) -> tuple[str, str]:
    """The kind of a failure, as it is counted, and what the log says of it."""
    if isinstance(outcome, Failed):
        return outcome.kind, outcome.told
    if isinstance(outcome, Rejected):
        return "rejected", f"Hermes does not take this message (HTTP {outcome.status})"
    return "timeout", "no answer within the request timeout"
