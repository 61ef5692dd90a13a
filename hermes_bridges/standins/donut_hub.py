"""A loopback stand-in for the DonutChat hub: one bot on one side, people on the other.

A bot dials ``stream_url``, and posts to ``send_url`` and ``typing_url`` (contract, section 1). The
hub accepts only what it must: another content type than JSON, a field that it does not know, an id
in another JSON type than it was given out in, and a token in a URL are refused like an empty or too
long content. Every answer but the upgrade is JSON; a refusal is ``{"error": {"code", "message"}}``.
"""

import itertools
import json
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from hermes_bridges.standins.donut_events import Events, Sent, Shape
from hermes_bridges.standins.donut_faults import Fault, Faults
from hermes_bridges.standins.donut_requests import Answer, Dial, admit, read_object, refusal
from hermes_bridges.standins.donut_rooms import Id, Refused, Rooms
from hermes_bridges.standins.http_loop import JSON, Exchange, HttpLoop
from hermes_bridges.standins.journal import Journal
from hermes_bridges.standins.ws_frames import BINARY, TEXT
from hermes_bridges.standins.ws_server import BadHandshake, WsServer, handshake

STREAM, SEND, TYPING = "/bots/v1/stream", "/bots/v1/messages", "/bots/v1/typing"
_T = TypeVar("_T")
# The fields of a request that the journal tells of.
_FACTS = {
    "send": ("chat_id", "reply_to", "thread_id", "content", "content_type"),
    "typing": ("chat_id", "thread_id", "state"),
}


class DonutHub(Faults):
    """Serves until ``close``; everything may be called from any thread.

    ``event_ids`` False is a hub that numbers no events, and so replays none. ``string_ids`` makes
    the ids of messages strings. ``certificate`` names the files of a certificate chain and its key:
    then the URLs are wss and https. ``journal`` is the path of a Journal. The stream pings a client
    that was silent for ``ping_after`` seconds. A typing signal lasts ``typing_seconds``.

    Attributes that may be set at any time: ``token``; ``echo`` (the bot hears its own messages too,
    where a chat has the trigger ``all``); ``shape`` (makes another JSON object of each event);
    ``connected`` (sent in place of the hub's own frame, ``{}``: none is sent). ``dials`` are all
    tries to open the stream.
    """

    def __init__(
        self,
        *,
        token: str = "donutbot_standin",
        bot_id: Id = 77,
        username: str = "helper",
        journal: str | None = None,
        port: int = 0,
        replay_seconds: float = 300.0,
        replay_depth: int = 100,
        idempotent: bool = True,
        event_ids: bool = True,
        string_ids: bool = False,
        certificate: tuple[str, str] | None = None,
        ping_after: float = 20.0,
        pong_within: float = 20.0,
        typing_seconds: float = 6.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.token = token
        self.bot_id = bot_id
        self.username = username
        self.echo = False
        self.shape: Shape | None = None
        self.connected: Mapping[str, Any] | None = None
        self.dials: list[Dial] = []
        self._string_ids = string_ids
        self._ping_after, self._pong_within = ping_after, pong_within
        self._typing_seconds = typing_seconds
        self._clock = clock
        self._journal = Journal(journal)
        # Guards all that follows and `dials`; told of every change. What is offered to a stream
        # while it is held takes no lock and never waits.
        self._changed = threading.Condition()
        self._numbers = itertools.count(9001)
        self._conns = itertools.count(1)
        self._rooms = Rooms(self._new_id, idempotent)
        self._events = Events(replay_seconds, replay_depth, event_ids, clock)
        self._idle: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        tls: ssl.SSLContext | None = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(*certificate)
        self._loop = HttpLoop("donut-hub", self._serve, port, tls)
        self.port = self._loop.port
        end = f"{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.stream_url = f"ws{end}{STREAM}"
        self.send_url = f"http{end}{SEND}"
        self.typing_url = f"http{end}{TYPING}"

    def add_chat(self, chat_id: Id, trigger: str = "mention", member: bool = True) -> None:
        """A chat, or its new settings; nothing is sent about it. ``member``: the bot is in it."""
        with self._changed:
            self._rooms.add(chat_id, trigger, member)

    def say(
        self,
        chat_id: Id,
        text: object,
        sender: str | None = "ana",
        sender_id: Id = 5,
        sender_type: str | None = "user",
        thread_id: Id | None = None,
        message_id: Id | None = None,
        content_type: str = "TX",
    ) -> Id:
        """Somebody writes into a chat; the id of the message. Raises KeyError: no such chat.

        A ``message_id`` that was used before is the same message under a new event id. ``sender``
        and ``sender_type`` None leave that field out.
        """
        began = time.monotonic()
        person: dict[str, Id | None] = {"id": sender_id, "type": sender_type, "username": sender}
        with self._changed:
            message_id = self._new_id() if message_id is None else message_id
            message = {"id": message_id, "content": text, "content_type": content_type}
            event_id = self._speak(chat_id, {**message, "thread_id": thread_id}, person)
        facts = {"event_id": event_id, "chat_id": chat_id, "message_id": message_id}
        self._journal.note("said", **facts, sender=sender, content=text, t=began)
        return message_id

    def flood(self, chat_id: Id, count: int, text: str = "@helper flood") -> list[Id]:
        """That many messages at once."""
        return [self.say(chat_id, f"{text} {number}") for number in range(count)]

    def tell(self, kind: str, chat_id: Id, **fields: object) -> str | None:
        """Another event of a chat, whatever its trigger; its id. Raises KeyError: no such chat."""
        with self._changed:
            if not self._rooms.chat(chat_id).member:
                return None
            return self._happen({"type": kind, "chat_id": chat_id, **fields})

    def frame(self, raw: bytes | Mapping[str, Any], binary: bool = False) -> None:
        """Send any message to the live streams. It is no event of the hub's: never replayed."""
        data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
        with self._changed:
            self._note_message(data)
            for stream in self._events.live.values():
                stream.offer(data, None, BINARY if binary else TEXT)

    def posted(self, chat_id: Id | None = None) -> list[dict[str, Any]]:
        """The bot's messages, in order: of one chat, or all."""
        with self._changed:
            return [p._asdict() for p in self._rooms.posts if chat_id in (None, p.chat_id)]

    def typing(self, chat_id: Id) -> bool:
        """Whether the chat shows that the bot is typing."""
        with self._changed:
            return self._rooms.chat(chat_id).typing_until > self._clock()

    @property
    def online(self) -> bool:
        """Whether the bot holds a live stream."""
        with self._changed:
            return bool(self._events.live)

    def streams(self) -> list[WsServer]:
        """The live ones; each can be cut, closed, stalled, split and fragmented by itself."""
        with self._changed:
            return list(self._events.live.values())

    def wait(self, true: Callable[[], _T], seconds: float) -> _T:
        """The first true answer of ``true``, which is asked after each change; else its last."""
        end = time.monotonic() + seconds
        with self._changed:
            while not (found := true()) and (rest := end - time.monotonic()) > 0:
                self._changed.wait(rest)
            return found

    def cut(self, reset: bool = False) -> None:
        for stream in self.streams():
            stream.cut(reset)

    def close_streams(self, code: int) -> None:
        for stream in self.streams():
            stream.close(code)

    def stall(self) -> None:
        """Half-open: the present streams are neither read nor written; new ones are all right."""
        for stream in self.streams():
            stream.stall(True)

    def unstall(self) -> None:
        for stream in self.streams():
            stream.stall(False)

    def drop_idle(self) -> None:
        """End the kept-alive connections on which no request is under way."""
        with self._changed:
            idle = list(self._idle)
        for sock in idle:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def stop_listening(self, keep: bool = True) -> None:
        """The hub goes down: no connection stays, none is accepted. ``keep``: the replay buffer."""
        self._loop.pause()
        self.cut()
        self._loop.cut()
        self.wait(lambda: not self._events.live, 5)
        if not keep:
            with self._changed:
                self._events.forget()

    def start_listening(self) -> None:
        """The hub is back, on the same port."""
        self._loop.resume()

    def close(self) -> None:
        self.cut()
        self._loop.close()
        self._journal.close()

    def _new_id(self) -> Id:
        number = next(self._numbers)
        return str(number) if self._string_ids else number

    def _speak(
        self, chat_id: Id, message: Mapping[str, Any], sender: Mapping[str, object]
    ) -> str | None:
        known = {name: value for name, value in sender.items() if value is not None}
        whole = {**message, "sender": known}
        chat = self._rooms.chat(chat_id)
        self._rooms.heard(chat_id, message["id"], message["thread_id"])
        if not chat.wants(message["content"], self.username):
            return None
        return self._happen({"type": "message.new", "chat_id": chat_id, "message": whole})

    def _happen(self, event: dict[str, Any]) -> str | None:
        event_id = self._events.happen(event, self.shape)
        self._changed.notify_all()
        return event_id

    def _note_message(self, data: bytes) -> None:
        """The bot may answer what it was sent past the hub's own events."""
        with suppress(ValueError, RecursionError):
            event = json.loads(data)
            if isinstance(event, dict):
                event = event.get("payload", event.get("data", event))
            message = event.get("message") if isinstance(event, dict) else None
            if isinstance(message, dict) and isinstance(message.get("id"), Id):
                if isinstance(event.get("chat_id"), Id):
                    thread_id = message.get("thread_id")
                    known = thread_id if isinstance(thread_id, Id) else None
                    self._rooms.heard(event["chat_id"], message["id"], known)

    def _serve(self, exchange: Exchange) -> None:
        with self._changed:
            self._idle.discard(exchange.sock)
        began = time.monotonic()
        try:
            if exchange.path == STREAM:
                self._dial(exchange)
                return
            if exchange.path not in (SEND, TYPING):
                raise Refused(404, "not_found", "there is nothing here")
            answer, fault = self._post(exchange, began)
        except Refused as refused:
            answer, fault = refusal(refused), None
        with self._changed:
            self._idle.add(exchange.sock)
        exchange.reply(
            answer.status, answer.body, answer.headers, JSON, fault.pause if fault else 0.0
        )

    def _post(self, exchange: Exchange, began: float) -> tuple[Answer, Fault | None]:
        where = "send" if exchange.path == SEND else "typing"
        facts: dict[str, Any] = {"began": began, **dict.fromkeys(_FACTS[where])}
        if where == "send":
            key = exchange.headers.get("idempotency-key")
            facts |= {"message_id": None, "key": key, "repeat": False}
        fault = None
        try:
            admit(exchange, "POST", self.token)
            given = read_object(exchange)
            facts |= {name: given.get(name) for name in _FACTS[where]}
            fault = self.take(where, given.get("chat_id"))
            if fault is not None and not fault.stored:
                answer = self._fail(exchange, fault) or self._carry_out(exchange, given, facts)
            else:
                answer = self._carry_out(exchange, given, facts)
                if fault is not None:
                    answer = self._fail(exchange, fault) or answer
        except Refused as refused:
            answer = refusal(refused)
        except OSError:
            self._journal.note(where, **facts, status=None)
            raise
        self._journal.note(where, **facts, status=answer.status)
        return answer, fault

    def _fail(self, exchange: Exchange, fault: Fault) -> Answer | None:
        """What is to be answered for this fault, None: the right thing. Raises Gone."""
        if fault.delay:
            self._loop.closing.wait(fault.delay)
        if fault.silent:
            exchange.until_hung_up()
        if fault.drop or exchange.hung_up():
            exchange.drop()
        if fault.status is None:
            return None
        return Answer(fault.status, fault.answer(), tuple(fault.headers.items()))

    def _carry_out(
        self, exchange: Exchange, given: dict[str, Any], facts: dict[str, Any]
    ) -> Answer:
        if exchange.path == TYPING:
            with self._changed:
                self._rooms.type(given, self._clock() + self._typing_seconds)
                self._changed.notify_all()
            return Answer(200, b"{}")
        with self._changed:
            draft = self._rooms.draft(given)
            post, repeat = self._rooms.store(draft, facts["key"])
            facts |= {"message_id": None if repeat else post.message_id, "repeat": repeat}
            if self.echo and not repeat:
                me: dict[str, Id] = {"id": self.bot_id, "type": "bot", "username": self.username}
                said: dict[str, Id | None] = {"id": post.message_id, "content": post.content}
                said |= {"content_type": post.content_type, "thread_id": post.thread_id}
                self._speak(post.chat_id, said, me)
            self._changed.notify_all()
        return Answer(200, json.dumps({"id": post.message_id}).encode())

    def _dial(self, exchange: Exchange) -> None:
        last = exchange.query.get("last_event_id")
        conn = next(self._conns)
        try:
            fault = self.take("dial")
            answer = None if fault is None else self._fail(exchange, fault)
            if answer is None:
                admit(exchange, "GET", self.token)
                opening = handshake(exchange.headers)
        except (BadHandshake, Refused) as refused:
            answer = refusal(refused)
        except OSError:
            self._dialled(Dial(conn, None, last, exchange.headers))
            raise
        self._dialled(Dial(conn, 101 if answer is None else answer.status, last, exchange.headers))
        if answer is not None:
            exchange.keep = False
            exchange.reply(answer.status, answer.body, answer.headers)
            return
        exchange.taken = True
        self._stream(exchange, conn, last, opening)

    def _dialled(self, dial: Dial) -> None:
        with self._changed:
            self.dials.append(dial)
            self._changed.notify_all()
        facts = {"conn": dial.conn, "last_event_id": dial.last_event_id}
        self._journal.note("dial", **facts, status=dial.status)

    def _stream(self, exchange: Exchange, conn: int, last: str | None, opening: bytes) -> None:
        stream = WsServer(
            exchange.sock,
            exchange.rest,
            self._written,
            ping_after=self._ping_after,
            pong_within=self._pong_within,
        )
        bot: dict[str, Id] = {"id": self.bot_id, "username": self.username}
        # Who has read this is sure to be told of what happens from then on.
        stream.wire(opening)
        with self._changed:
            self._events.join(conn, stream, last, bot, self.connected)
            self._changed.notify_all()
        try:
            ended = stream.run()
        finally:
            with self._changed:
                del self._events.live[conn]
                self._changed.notify_all()
        self._journal.note("closed", conn=conn, code=ended.code, by=ended.by)

    def _written(self, mark: object, t: float) -> None:
        assert isinstance(mark, Sent)
        self._journal.note("event", **mark._asdict(), t=t)
