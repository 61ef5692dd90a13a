"""A loopback stand-in for the Wishee bridge: connectors on one side, a device's user on the other.

It asks what it is told to ask, and judges all that a connector says: whatever breaks the contract
is in ``violations``, with the section that says so, and the connection goes on. Its journal has the
lines dial, hello, welcome, closed, req, res, event, ping, pong, claim, fault and violation.
"""

import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from hermes_bridges.standins import wishee_claims
from hermes_bridges.standins.http_loop import JSON, Exchange, HttpLoop
from hermes_bridges.standins.wishee_claims import CLAIM, Bound, Claim, Codes
from hermes_bridges.standins.wishee_connection import (
    Asked,
    Connection,
    Lost,
    Res,
    request_in,
    says_more,
)
from hermes_bridges.standins.wishee_faults import WisheeFaults
from hermes_bridges.standins.wishee_judge import Card, Fault, Run
from hermes_bridges.standins.wishee_record import Event, Record, Violation
from hermes_bridges.standins.ws_frames import TEXT
from hermes_bridges.standins.ws_server import (
    ABNORMAL,
    BadHandshake,
    Control,
    Ended,
    WsServer,
    handshake,
)

PATH = "/ws"
UNBOUND = 4001
FRAME_LIMIT = 16 * 1024 * 1024  # bytes that a connector may send in one message
_T = TypeVar("_T")


class NoAgent(Exception):
    """Nobody is there to be asked."""


class WisheeBridge(WisheeFaults):
    """Serves until ``close``; everything may be called from any thread.

    ``certificate`` names the files of a certificate chain and its key: then the URLs are wss and
    https. ``journal`` is the path of a Journal. ``receive_buffer`` is the size in bytes of what the
    kernel takes from a connector before anybody reads it.

    Attributes that may be set at any time: ``open`` (an identity that nobody has bound is bound to
    ``user_id`` by its hello; else it is closed with 4001); ``user_id``. ``connections`` are all
    that were opened, ``claims`` all that came.
    """

    def __init__(
        self,
        *,
        journal: str | None = None,
        port: int = 0,
        user_id: str = "user-1",
        open: bool = True,
        certificate: tuple[str, str] | None = None,
        ping_after: float = 20.0,
        pong_within: float = 20.0,
        receive_buffer: int | None = None,
    ) -> None:
        super().__init__()
        self.user_id = user_id
        self.open = open
        self.connections: list[Connection] = []
        self.claims: list[Claim] = []
        self._ping_after, self._pong_within = ping_after, pong_within
        self._receive_buffer = receive_buffer
        # Guards all that follows and the lists above; told of every change. What is offered to a
        # connection while it is held takes no lock and never waits.
        self._changed = threading.Condition()
        self._dials = itertools.count(1)
        self._requests = itertools.count(1)
        self._record = Record(journal)
        self._codes = Codes()
        tls: ssl.SSLContext | None = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(*certificate)
        self._loop = HttpLoop("wishee-bridge", self._serve, port, tls)
        self.port = self._loop.port
        end = f"{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.url = f"ws{end}{PATH}"
        self.claim_url = f"http{end}{CLAIM}"

    def bind(self, agent_id: str, secret: str, user_id: str | None = None) -> None:
        """This identity belongs to that user (None: ``user_id``) from now on."""
        with self._changed:
            self._codes.bound[agent_id] = Bound(secret, user_id or self.user_id)

    def unbind(self, agent_id: str | None = None) -> None:
        """Nobody has that identity (None: any) any more, nor gets it by a hello: closed 4001."""
        with self._changed:
            self.open = False
            for one in [agent_id] if agent_id is not None else list(self._codes.bound):
                self._codes.bound.pop(one, None)
            live = [c for c in self.connections if c.live and agent_id in (None, c.agent_id)]
        for connection in live:
            connection.note("fault", kind="unbind")
            connection.stream.close(UNBOUND)

    def give_code(self, code: str, user_id: str | None = None, over: str | None = None) -> None:
        """A bind code that may be claimed once; ``over`` is the error of one that may not be."""
        with self._changed:
            if over is None:
                self._codes.open[code] = user_id or self.user_id
            else:
                self._codes.over[code] = over

    def expect_run(self, run_id: str, session_key: str, agent_id: str) -> None:
        """A run that was started at a former bridge."""
        with self._changed:
            self._record.judge.runs[run_id] = Run(run_id, session_key, agent_id, self.user_id)

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        agent_id: str | None = None,
        **more: object,
    ) -> "Future[Res]":
        """Ask the newest live connection (of that agent). ``params`` None: it has no such field.

        ``id`` may be given; it is any JSON value. The future raises Lost. Raises NoAgent.
        """
        with self._changed:
            number = next(self._requests)
            frame = {"type": "req", "id": more.get("id", f"req-{number}"), "method": method}
            if params is not None:
                frame["params"] = dict(params)
            asked = Asked(number, frame["id"], method, params or {})
            self._newest(agent_id).ask(asked, json.dumps(frame).encode())
            return asked.future

    def raw(self, data: object, opcode: int = TEXT) -> "Future[Res] | None":
        """Send a message to the newest live connection: bytes as they are, else as JSON.

        One that is a whole request is to be answered like any other. Raises NoAgent.
        """
        whole = data if isinstance(data, bytes) else json.dumps(data).encode()
        with self._changed:
            connection = self._newest()
            asked = request_in(whole, next(self._requests))
            if asked is not None:
                connection.ask(asked, whole, opcode)
                return asked.future
            connection.note("fault", kind="raw", size=len(whole))
            connection.stream.offer(whole, None, opcode)
            return None

    def _newest(self, agent_id: str | None = None) -> Connection:
        live = self.online(agent_id)
        if not live:
            raise NoAgent("no connector is connected")
        return live[-1]

    def send(self, message: str, session_key: str | None = None, seconds: float = 30.0) -> str:
        """chat.send; its runId."""
        key = {} if session_key is None else {"sessionKey": session_key}
        found = self.request("chat.send", {"message": message, **key}).result(seconds)
        assert found.ok, found.error
        return str(found.payload["runId"])

    def result(self, run_id: str, seconds: float = 60.0) -> str | None:
        """The text of the newest task-result of a run; None: none within that time."""
        found = self.wait(lambda: self.results(run_id), seconds)
        return str(found[-1].payload["text"]) if found else None

    def results(self, run_id: str) -> list[Event]:
        return [e for e in self.of("task-result") if e.payload.get("runId") == run_id]

    def of(self, name: str) -> list[Event]:
        """The events of that name."""
        return [event for event in self.events if event.name == name]

    @property
    def events(self) -> list[Event]:
        """All that came."""
        with self._changed:
            return list(self._record.events)

    @property
    def runs(self) -> dict[str, Run]:
        """Every run that a res or an event has told of, by its id."""
        with self._changed:
            return dict(self._record.judge.runs)

    @property
    def cards(self) -> dict[str, Card]:
        """Every card that was shown, by its id."""
        with self._changed:
            return dict(self._record.judge.cards)

    @property
    def violations(self) -> list[Violation]:
        """All that was against the contract up to now."""
        now = time.monotonic()
        with self._changed:
            for connection in self.connections:
                if connection.ended is None:
                    connection.overdue(now)
                    connection.look_beside(self.connections, now)
            return list(self._record.violations)

    def online(self, agent_id: str | None = None) -> list[Connection]:
        """The live connections, the newest last."""
        with self._changed:
            live = [c for c in self.connections if c.live]
            return [c for c in live if agent_id in (None, c.agent_id)]

    def wait(self, true: Callable[[], _T], seconds: float) -> _T:
        """The first true answer of ``true``, which is asked after each change; else its last."""
        end = time.monotonic() + seconds
        with self._changed:
            while not (found := true()) and (rest := end - time.monotonic()) > 0:
                self._changed.wait(rest)
            return found

    def release(self) -> None:
        """Welcome who has waited for it."""
        with self._changed:
            for connection in self._reached():
                if connection.agent_id is not None and connection.party is None:
                    self._answer_hello(connection)
            self._changed.notify_all()

    def stop_listening(self) -> None:
        """The bridge goes down: no connection stays, none is accepted. It remembers everything."""
        self._loop.pause()
        self.cut()
        self._loop.cut()
        self.wait(lambda: all(c.ended for c in self.connections), 5)

    def start_listening(self) -> None:
        """The bridge is back, on the same port."""
        self._loop.resume()

    def close(self) -> None:
        self.cut()
        self._loop.close()
        self._record.journal.close()

    def _reached(self) -> list[Connection]:
        with self._changed:
            return [c for c in self.connections if c.ended is None]

    def _hampered(self, connection: Connection, on: bool) -> None:
        with self._changed:
            connection.hamper(on)

    def _serve(self, exchange: Exchange) -> None:
        if exchange.path == CLAIM:
            self._claim(exchange)
        elif exchange.path == PATH:
            self._dial(exchange)
        else:
            exchange.reply(404, b'{"error":"there is nothing here"}')

    def _dial(self, exchange: Exchange) -> None:
        number = next(self._dials)
        refusal = self.take_refusal()
        opening = b""
        status: int
        headers: list[tuple[str, str]]
        if refusal is not None:
            status, headers = refusal.status, list(refusal.headers.items())
        else:
            try:
                status, headers, opening = 101, [], handshake(exchange.headers)
            except BadHandshake as bad:
                status, headers = bad.status, bad.headers
        with self._changed:
            self._record.journal.note("dial", conn=number, status=status or None)
            if exchange.target != PATH:
                fault = Fault("1", "the URL is not the one that was given")
                self._record.faults(number, [fault], time.monotonic())
        if not status:
            exchange.until_hung_up()
            exchange.drop()
        if status != 101:
            exchange.keep = False
            exchange.reply(status, b'{"error":"refused"}', headers)
            return
        exchange.taken = True
        if self._receive_buffer is not None:
            exchange.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self._open(exchange, number, opening)

    def _open(self, exchange: Exchange, number: int, opening: bytes) -> None:
        stream = WsServer(
            exchange.sock,
            exchange.rest,
            lambda mark, t: self._written(connection, mark, t),
            ping_after=self._ping_after,
            pong_within=self._pong_within,
            on_message=lambda opcode, raw: self._heard(connection, opcode, raw),
            on_control=lambda control, t: self._controlled(connection, control, t),
            limit=FRAME_LIMIT,
        )
        connection = Connection(number, stream, self._record, time.monotonic())
        with self._changed:
            self.connections.append(connection)
            self._changed.notify_all()
        stream.wire(opening)
        ended = Ended(ABNORMAL, "bot")
        try:
            ended = stream.run()
        finally:
            now = time.monotonic()
            with self._changed:
                connection.look_beside(self.connections, now)
                lost = connection.end(ended, now)
                self._changed.notify_all()
            for asked in lost:
                asked.future.set_exception(Lost(f"no res to {asked.method}: the connection ended"))
        if ended.by == "bot" and ended.code != ABNORMAL and says_more(exchange.sock):
            with self._changed:
                fault = Fault("1", "something after the close frame")
                self._record.faults(number, [fault], time.monotonic())

    def _written(self, connection: Connection, mark: object, t: float) -> None:
        with self._changed:
            connection.written(mark, t)

    def _controlled(self, connection: Connection, control: Control, t: float) -> None:
        with self._changed:
            connection.controlled(control, t)
            self._changed.notify_all()

    def _heard(self, connection: Connection, opcode: int, raw: bytes) -> None:
        with self._changed:
            found = connection.heard(
                opcode, raw, time.monotonic(), lambda frame: self._greet(connection, frame)
            )
            self._changed.notify_all()
        if found is not None:
            asked, res = found
            asked.future.set_result(res)

    def _greet(self, connection: Connection, frame: Mapping[str, Any]) -> None:
        connection.agent_id = str(frame.get("agentId"))
        connection.version = str(frame.get("version"))
        secret = str(frame.get("secret"))
        if frame.get("secret"):
            self._record.secrets.add(secret)
        connection.note("hello", agent_id=connection.agent_id, version=connection.version)
        if self.open and frame.get("agentId"):
            self._codes.bound.setdefault(connection.agent_id, Bound(secret, self.user_id))
        known = self._codes.bound.get(connection.agent_id)
        code = self.take_close()
        if code is not None or known is None or known.secret != secret:
            connection.stream.close(UNBOUND if code is None else code)
        elif self.welcomes:
            self._answer_hello(connection)

    def _answer_hello(self, connection: Connection) -> None:
        user_id = self._codes.bound[str(connection.agent_id)].user_id
        connection.welcome(user_id, self.welcome_shape)

    def _claim(self, exchange: Exchange) -> None:
        body = exchange.body() if exchange.length <= wishee_claims.BODY_LIMIT else b""
        found, faults = wishee_claims.judge(exchange, body)
        script = self.take_script()
        code = exchange.query.get("code")
        if script.delay:
            self._loop.closing.wait(script.delay)
        with self._changed:
            claim, whole = self._codes.answer(code, found, script)
            self.claims.append(claim)
            self._record.journal.note("claim", **claim._asdict())
            self._record.faults(0, faults, time.monotonic())
            self._changed.notify_all()
        if script.drop:
            exchange.drop()
        exchange.reply(script.status, whole, script.headers.items(), JSON, script.pause)
