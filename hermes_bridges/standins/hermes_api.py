"""A scripted stand-in for the Hermes API server, on loopback, strict like a real one.

What a run says is decided by a ``brain``, a function from the call to an answer, or by answers that
are scripted ahead; what happens to single requests, by faults. It serves what the bridges use:
health, the models, and chat completions that are not streamed. Unlike a real one of the newest
version it lets the turns of one session overlap, so that a client that causes it is seen.
"""

import hmac
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from hermes_bridges.standins import hermes_wire as wire
from hermes_bridges.standins.hermes_runs import Answer as Answer
from hermes_bridges.standins.hermes_runs import Run, Runs
from hermes_bridges.standins.hermes_wire import Reply, Wanted
from hermes_bridges.standins.http_loop import Exchange, Gone, HttpLoop
from hermes_bridges.standins.journal import Journal

KEY = "standin-key-0123456789"
CAP = 10
CHAT = "/v1/chat/completions"
_GET = ("/health", "/v1/health", "/health/detailed", "/v1/models")
_OPEN = ("/health", "/v1/health")  # without the key


class Call(NamedTuple):
    """One turn that is run. ``n`` counts the requests, ``turn`` those of the session, from 1."""

    n: int
    session: str
    session_key: str | None
    key: str | None
    text: str
    turn: int


Brain = Callable[[Call], Answer]


class Fault(NamedTuple):
    """What happens to one request, whatever the run behind it would say.

    With ``status`` it is answered without a run. ``drop`` closes the connection: before the body is
    read, after it, late (in place of the answer of the run), or midway through that answer;
    ``reset`` makes it a reset. ``hang`` reads the request and is silent. ``delay`` (before anything
    is done) and ``drip`` (between two bytes of the answer) are in seconds.
    """

    status: int | None = None
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    drop: Literal["", "before", "after", "late", "midway"] = ""
    reset: bool = False
    hang: bool = False
    delay: float = 0.0
    drip: float = 0.0


class HermesApi:
    """Serves until ``close``; everything may be called from any thread.

    ``cap`` limits the requests for turns that are at work at once, 0: no limit. ``delay`` is how
    long a run takes when there is no brain, in seconds. ``journal`` is the path of a file that gets
    a line for each call (when it was read), run (its start), ran (its end) and done (the answer).
    """

    def __init__(
        self,
        brain: Brain | None = None,
        *,
        key: str = KEY,
        journal: str | None = None,
        port: int = 0,
        delay: float = 0.0,
        cap: int = CAP,
        profiles: Iterable[str] = ("default",),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cap = cap
        self.draining = False
        """True: turns are refused with 503, as by a gateway that was told to stop."""
        self.pid = os.getpid()
        self.calls: deque[Call] = deque(maxlen=10_000)
        """The latest turns that were run."""
        self._brain = brain or (lambda call: Answer(f"{call.turn}: {call.text}", delay))
        self._key = key.encode()
        self._profiles = frozenset(profiles)
        self._clock = clock
        self._journal = Journal(journal)
        self._numbers = itertools.count(1)
        # Guards the script, the faults, the turns of each session and the requests at work.
        self._lock = threading.Lock()
        self._script: deque[Answer] = deque()  # bounded by what is scripted
        self._faults: dict[str, list[tuple[Fault, float]]] = {}
        self._turns: dict[str, int] = {}
        self._active = 0
        self._runs = Runs(clock)
        self._loop = HttpLoop("hermes-api", self._serve, port)
        self.base_url = f"http://127.0.0.1:{self._loop.port}"

    @property
    def active(self) -> int:
        """Requests for turns that are at work; one whose client has left counts until its end."""
        with self._lock:
            return self._active

    def script(self, *answers: Answer) -> None:
        """What the next runs say, in that order, before the brain is asked again."""
        with self._lock:
            self._script.extend(answers)

    def fail(self, fault: Fault, times: float = 1, path: str = CHAT) -> None:
        """Let the next so many requests to a path have a fault; ``math.inf``: until ``mend``."""
        with self._lock:
            self._faults.setdefault(path, []).append((fault, times))

    def mend(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    def stop(self) -> None:
        """End as by a kill: runs and kept results are gone, connections are cut and refused."""
        self._loop.pause()
        self._runs.kill()
        self._loop.cut()

    def start(self) -> None:
        """Be there again after ``stop``, on the same port, as another process."""
        self.pid += 1
        self.draining = False
        self._runs = Runs(self._clock)
        self._loop.resume()

    def restart(self) -> None:
        self.stop()
        self.start()

    def refuse(self) -> None:
        """Refuse connections, until ``accept``; the process and what it does go on."""
        self._loop.pause()

    def accept(self) -> None:
        self._loop.resume()

    def drop_idle(self) -> int:
        """End the kept-alive connections that wait for a request; how many there were."""
        return self._loop.cut_idle()

    def close(self) -> None:
        self._runs.kill()
        self._loop.close()
        self._journal.close()

    def _serve(self, exchange: Exchange) -> None:
        path = self._own_path(exchange.path)
        fault = self._next_fault(path)
        if fault.delay and self._loop.closing.wait(fault.delay):
            raise Gone("the server closes")
        if fault.drop == "before":
            exchange.drop(fault.reset)
        if path == CHAT and exchange.method == "POST":
            self._serve_chat(exchange, fault)
        else:
            reply = self._before(exchange, fault) or self._plain(path, exchange)
            self._answer(exchange, fault, reply)

    def _own_path(self, path: str) -> str:
        """Without the profile; empty when that profile is not served."""
        if not path.startswith("/p/"):
            return path
        profile, _, rest = path.removeprefix("/p/").partition("/")
        return f"/{rest}" if profile in self._profiles else ""

    def _next_fault(self, path: str) -> Fault:
        with self._lock:
            faults = self._faults.get(path)
            if not faults:
                return Fault()
            fault, times = faults.pop(0)
            if times > 1:
                faults.insert(0, (fault, times - 1))
            return fault

    def _before(self, exchange: Exchange, fault: Fault) -> Reply | None:
        """What a fault does once the request has been read; None: the request goes its way."""
        if fault.drop == "after" or fault.hang or fault.status is not None:
            exchange.body()
        if fault.drop == "after":
            exchange.drop(fault.reset)
        if fault.hang:
            exchange.until_hung_up()
            exchange.drop()
        if fault.status is None:
            return None
        reply = wire.error(fault.status, f"Scripted status {fault.status}", *fault.headers.items())
        return reply if fault.body is None else reply._replace(body=fault.body)

    def _answer(self, exchange: Exchange, fault: Fault, reply: Reply) -> None:
        if fault.drop == "late":
            exchange.drop(fault.reset)
        if fault.drop == "midway":
            head = f"HTTP/1.1 {reply.status} -\r\nContent-Length: {len(reply.body)}\r\n\r\n"
            exchange.send(head.encode() + reply.body[: len(reply.body) // 2])
            exchange.drop(fault.reset)
        exchange.reply(*reply, pause=fault.drip)

    def _plain(self, path: str, exchange: Exchange) -> Reply:
        """Everything but chat completions."""
        if not path:
            return wire.NO_PROFILE
        if path == CHAT:
            return wire.wrong_method("POST")
        if path not in _GET:
            return wire.NOT_FOUND
        if exchange.method != "GET":
            return wire.wrong_method("GET,HEAD")
        if path not in _OPEN and not self._authorized(exchange):
            return wire.UNAUTHORIZED
        if path == "/v1/models":
            return wire.models(int(time.time()))
        health = {"status": "ok", "platform": "hermes-agent", "version": wire.VERSION}
        details = self._details() if path == "/health/detailed" else {}
        return Reply(200, wire.dump(health | details))

    def _authorized(self, exchange: Exchange) -> bool:
        kind, _, key = exchange.headers.get("authorization", "").partition(" ")
        return kind == "Bearer" and hmac.compare_digest(key.strip().encode(), self._key)

    def _details(self) -> dict[str, object]:
        now = datetime.now(UTC).isoformat()
        server = {"state": "connected", "error_code": None, "error_message": None}
        checks = ("state_db", "config", "model", "disk", "gateway", "background_queues")
        active = self.active
        return {
            "gateway_state": "draining" if self.draining else "running",
            "platforms": {"api_server": server | {"updated_at": now}},
            "active_agents": active,
            "gateway_busy": active > 0,
            "gateway_drainable": True,
            "exit_reason": None,
            "updated_at": now,
            "pid": self.pid,
            "readiness": {"status": "ok", "checks": {name: {"status": "ok"} for name in checks}},
        }

    def _serve_chat(self, exchange: Exchange, fault: Fault) -> None:
        n = next(self._numbers)
        status: int | None = None
        hung_up = False
        try:
            reply = self._chat(n, exchange, fault)
            hung_up = exchange.hung_up()
            self._answer(exchange, fault, reply)
            status = reply.status
        finally:
            self._journal.note("done", n=n, status=status, hung_up=hung_up)

    def _chat(self, n: int, exchange: Exchange, fault: Fault) -> Reply:
        refused = self._before(exchange, fault) or self._admit(exchange)
        if refused is not None:
            self._note_call(n, exchange, None, False)
            return refused
        try:
            wanted = wire.read(exchange.headers, exchange.body())
            if isinstance(wanted, Reply):
                self._note_call(n, exchange, None, False)
                return wanted
            runs = self._runs
            run, joined = runs.join(wanted.key, wanted.mark)
            self._note_call(n, exchange, wanted.text, joined)
            if joined:
                run.over.wait()
            else:
                self._run(n, wanted, runs, run)
            if run.answer is None:
                raise Gone("the run came to no end")
            return wire.completion(run.answer, wanted, run.answer.session or wanted.session)
        finally:
            with self._lock:
                self._active -= 1

    def _admit(self, exchange: Exchange) -> Reply | None:
        """Why a request is refused unread; None: it is admitted, and counts as at work."""
        if exchange.length > wire.BODY_LIMIT:
            return wire.TOO_LARGE
        if not self._authorized(exchange):
            return wire.UNAUTHORIZED
        if self.draining:
            return wire.DRAINING
        with self._lock:
            if 0 < self.cap <= self._active:
                return wire.too_many(self.cap)
            self._active += 1
            return None

    def _note_call(self, n: int, exchange: Exchange, text: str | None, joined: bool) -> None:
        self._journal.note(
            "call",
            n=n,
            session=exchange.headers.get("x-hermes-session-id"),
            session_key=exchange.headers.get("x-hermes-session-key"),
            key=exchange.headers.get("idempotency-key"),
            text=text,
            joined=joined,
        )

    def _run(self, n: int, wanted: Wanted, runs: Runs, run: Run) -> None:
        """The run, on the thread of who asked first; it goes on when that client leaves."""
        ended: Answer | None = None
        session = wanted.session
        try:
            self._journal.note("run", n=n, key=wanted.key, session=session)
            with self._lock:
                turn = self._turns.get(session, 0) + 1
                scripted = self._script.popleft() if self._script else None
            call = Call(n, session, wanted.session_key, wanted.key, wanted.text, turn)
            self.calls.append(call)
            answer = scripted or self._brain(call)
            if answer.delay != 0 and run.over.wait(answer.delay):
                raise Gone("killed")
            with self._lock:
                self._turns[answer.session or session] = turn
            self._journal.note("ran", n=n, key=wanted.key)
            ended = answer
        finally:
            runs.end(wanted.key, wanted.mark, run, ended)
