"""One connection of a connector to the stand-in Wishee bridge: what it was asked, what it says."""

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_bridges.standins import wishee_shapes
from hermes_bridges.standins.wishee_judge import Fault, Party
from hermes_bridges.standins.wishee_record import Event, Record, noted, told
from hermes_bridges.standins.ws_frames import PING, TEXT
from hermes_bridges.standins.ws_server import Control, Ended, WsServer

ANSWER_SECONDS = 60.0  # for a res (contract, section 1)
TWO_AT_ONCE = 2.0  # seconds for which a connector may seem to hold two connections
LINGER = 1.0  # seconds in which something may still come after a close frame
RESULT_LIMIT = 512 * 1024  # bytes of history or turns (contract, section 10)
_ENVELOPE = 4096
_SIDES = {"hub": "bridge", "bot": "agent"}


class Lost(ConnectionError):
    """A request whose connection ended before its res came."""


class Res(NamedTuple):
    """The answer to a request: a ``payload`` where ``ok``, else the text of the ``error``.

    ``seconds`` have passed since the request went out.
    """

    ok: bool
    payload: Any
    error: str | None
    seconds: float


@dataclass
class Asked:
    """A request that goes out. ``sent_at`` is monotonic, None while it has not gone."""

    number: int
    id: object
    method: str
    params: Mapping[str, Any]
    sent_at: float | None = None
    excused: bool = False
    """The bridge itself was in the way of the answer."""
    late: bool = False
    future: "Future[Res]" = field(default_factory=Future)

    def seconds(self, now: float) -> float:
        """How long it has been out."""
        return 0.0 if self.sent_at is None else now - self.sent_at


def same(value: object) -> str:
    """Equal for equal JSON values alone: 1, 1.0, true and "1" are four."""
    return json.dumps(value, sort_keys=True)


def key_of(params: Mapping[str, Any]) -> str:
    """The session key that a request is about, in the caller's own form."""
    given = params.get("sessionKey")
    return wishee_shapes.MAIN if given is None else str(given)


def request_in(raw: bytes, number: int) -> Asked | None:
    """The request that a message is, if it is a whole one."""
    frame, faults = wishee_shapes.parse(raw)
    if faults or frame.get("type") != "req" or "id" not in frame:
        return None
    method, params = frame.get("method"), frame.get("params") or {}
    if not isinstance(method, str) or not isinstance(params, dict):
        return None
    return Asked(number, frame["id"], method, params)


def says_more(sock: socket.socket) -> bool:
    """Whether a client that has sent its close frame sends anything more."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_WR)
        sock.settimeout(LINGER)
        return bool(sock.recv(1))
    return False


class Connection:
    """From the upgrade to the end. Guarded by the lock of the bridge; times are monotonic.

    ``agent_id`` and ``version`` are known from the hello on, ``party`` from the welcome on.
    """

    def __init__(self, number: int, stream: WsServer, record: Record, opened_at: float) -> None:
        self.number = number
        self.stream = stream
        self.opened_at = opened_at
        self.ended_at: float | None = None
        self.ended: Ended | None = None
        self.agent_id: str | None = None
        self.version: str | None = None
        self.party: Party | None = None
        self.hampered = False
        """The bridge reads or writes nothing on purpose."""
        self.was_hampered = False
        self._record = record
        # Bounded by the requests of the bridge that wait for a res.
        self._asked: dict[str, list[Asked]] = {}

    @property
    def live(self) -> bool:
        """Welcomed, and not over."""
        return self.party is not None and self.ended is None

    def note(self, what: str, **facts: object) -> None:
        """A line of the journal about it."""
        self._record.journal.note(what, conn=self.number, **facts)

    def hamper(self, on: bool) -> None:
        """The bridge stops or goes on reading and writing: nothing is late while it does not."""
        self.hampered = on
        self.was_hampered = self.was_hampered or on
        for asked in self.waiting():
            asked.excused = True

    def welcome(self, user_id: str, shape: Mapping[str, object] | None) -> None:
        """Let it in, with another frame than the right one on demand."""
        assert self.agent_id is not None
        self.party = Party(self.number, self.agent_id, user_id)
        frame = {"type": "welcome", "userId": user_id} if shape is None else shape
        self.stream.offer(json.dumps(frame).encode(), self.party)

    def ask(self, asked: Asked, raw: bytes, opcode: int = TEXT) -> None:
        """Send a request."""
        asked.excused = self.hampered
        self._asked.setdefault(same(asked.id), []).append(asked)
        if asked.method == "approval.respond":
            self._record.judge.responded(str(asked.params.get("approvalId")))
        self.stream.offer(raw, asked, opcode)

    def waiting(self) -> list[Asked]:
        """The requests without a res."""
        return [asked for queue in self._asked.values() for asked in queue]

    def overdue(self, now: float) -> None:
        """Record the requests whose time is over; each once."""
        for asked in self.waiting():
            if asked.seconds(now) > ANSWER_SECONDS and not asked.excused and not asked.late:
                asked.late = True
                text = f"no res to {asked.method} within {ANSWER_SECONDS:g} s"
                self._record.faults(self.number, [Fault("1", text)], now)

    def look_beside(self, connections: "Iterable[Connection]", now: float) -> None:
        """Record a newer live one of the same connector: it holds one (section 9.21)."""
        for new in connections:
            if new.number > self.number and new.live and new.agent_id == self.agent_id:
                if now - new.opened_at > TWO_AT_ONCE and not self.was_hampered:
                    self.was_hampered = True  # it is told once
                    fault = Fault("9.21", "two connections at once")
                    self._record.faults(self.number, [fault], now)

    def end(self, how: Ended, now: float) -> list[Asked]:
        """It is over; the requests that nobody will answer any more."""
        self.overdue(now)
        if self.stream.fault:
            self._record.faults(self.number, [Fault("1", self.stream.fault)], now)
        self.ended, self.ended_at = how, now
        self.note("closed", code=how.code, by=_SIDES[how.by], t=now)
        left = self.waiting()
        self._asked.clear()
        if self.party is not None:
            self.party.ended_at = now
            for asked in left:
                if asked.method == "chat.send":
                    self._record.judge.unanswered(self.party, key_of(asked.params))
        return left

    def written(self, mark: object, t: float) -> None:
        """A welcome or a request has gone out."""
        if isinstance(mark, Asked):
            mark.sent_at = t
            facts = {"n": mark.number, "id": mark.id, "method": mark.method}
            self.note("req", **facts, **noted(dict(mark.params), "params"), t=t)
        elif isinstance(mark, Party):
            self.note("welcome", user_id=mark.user_id, t=t)

    def controlled(self, control: Control, t: float) -> None:
        """A ping or a pong came or went."""
        is_ping = control.opcode == PING
        if self.party is not None and is_ping and not control.sent:
            self._record.judge.pinged(self.party)
        elif self.party is not None and not is_ping and control.sent:
            self._record.judge.ponged(self.party, t)
        by = "bridge" if control.sent else "agent"
        self.note("ping" if is_ping else "pong", by=by, t=t)

    def heard(
        self, opcode: int, raw: bytes, now: float, greet: Callable[[dict[str, Any]], None]
    ) -> tuple[Asked, Res] | None:
        """A message has come; the request that it answers. ``greet`` gets the first one."""
        frame, wrong = wishee_shapes.parse(raw)
        faults = [Fault("1", text) for text in wrong]
        if opcode != TEXT:
            faults.append(Fault("1", "a message that is no text"))
        found = None
        if self.agent_id is None:
            faults += [Fault("1", text) for text in wishee_shapes.hello(frame)]
            greet(frame if isinstance(frame, dict) else {})
        else:
            if any(secret.encode() in raw for secret in self._record.secrets):
                faults.append(Fault("1", "a secret in another frame than hello"))
            if self.party is None:
                faults.append(Fault("1", "a frame between hello and welcome"))
            elif isinstance(frame, dict) and frame.get("type") == "res":
                found, more = self._answered(frame, raw, now)
                faults += more
            elif isinstance(frame, dict) and frame.get("type") == "event":
                faults += self._event(self.party, frame, now)
            else:
                faults.append(Fault("1", "a frame that is neither res nor event"))
        self._record.faults(self.number, faults, now)
        return found

    def _event(self, party: Party, frame: dict[str, Any], now: float) -> list[Fault]:
        faults = [Fault("3", text) for text in wishee_shapes.event(frame)]
        if isinstance(frame.get("event"), str) and isinstance(frame.get("payload"), dict):
            self._record.event(Event(self.number, now, frame["event"], frame["payload"]))
            if not faults:
                faults += self._record.judge.event(party, frame["event"], frame["payload"], now)
        return faults

    def _answered(
        self, frame: dict[str, Any], raw: bytes, now: float
    ) -> tuple[tuple[Asked, Res] | None, list[Fault]]:
        faults = [Fault("1", text) for text in wishee_shapes.answer(frame)]
        queue = self._asked.get(same(frame.get("id")))
        asked = queue.pop(0) if queue else None
        if queue is not None and not queue:
            del self._asked[same(frame.get("id"))]
        res = Res(frame.get("ok") is True, frame.get("payload"), told(frame), 0.0)
        facts: dict[str, object] = {"id": frame.get("id"), "ok": frame.get("ok")}
        if asked is not None:
            res = res._replace(seconds=asked.seconds(now))
            facts |= {"n": asked.number, "method": asked.method, "seconds": res.seconds}
        said = {"error": res.error} if not res.ok else noted(res.payload)
        self.note("res", **facts, **said, t=now)
        if asked is None:
            return None, [*faults, Fault("1", "a res that answers no open request here")]
        if res.seconds > ANSWER_SECONDS and not asked.excused and not asked.late:
            faults.append(Fault("1", f"the res to {asked.method} took {res.seconds:.1f} s"))
        if not faults:
            faults += self._judged(asked, res, len(raw))
        return (asked, res), faults

    def _judged(self, asked: Asked, res: Res, size: int) -> Iterator[Fault]:
        method, params = asked.method, asked.params
        bad = wishee_shapes.bad_parameter(method, params)
        if not res.ok:
            if method not in wishee_shapes.METHODS:
                if res.error != f"unknown method: {method}":
                    yield Fault("1", "an unknown method was refused in other words")
            elif bad is not None and bad not in str(res.error):
                yield Fault("10 Validation", f"the refusal does not name {bad}")
            return
        if bad is not None:
            yield Fault("10 Validation", f"{method} was answered although {bad} is wrong")
        wrong = wishee_shapes.reply(method, params, res.payload)
        yield from (Fault("2", f"{method}: {text}") for text in wrong)
        rows = res.payload.get("messages", res.payload.get("turns")) if not wrong else []
        if size > RESULT_LIMIT + _ENVELOPE and rows is not None and len(rows) > 1:
            yield Fault("10", f"{method}: {size} bytes")
        if method == "chat.send" and not wrong and self.party is not None:
            run_id = res.payload["runId"]
            yield from self._record.judge.started(self.party, run_id, key_of(params))
