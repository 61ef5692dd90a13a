"""Scripted peers: everything that asks the daemon something or receives its responses.

One loop thread serves all receiving sockets of a `Peers`; asking is done by the caller's thread.
Every peer notes in its journal what it sent, what was acked, and what it received, which is all
the judge looks at. A peer's `mood` says how it treats the next response.

    OneShot   as ask-user-remote: own socket for one question, gone after its first response
    Cli       as `coms-cli send --await`: a registered explicit peer, waits for its msg_id
    Pi        a long-lived peer: one socket, many questions, matched by msg_id
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import wire
from .daemon import Daemon, Home, wait
from .journal import Journal

Fields = dict[str, Any]
CAP = 65536
ONLY_RESPONSES = "ask-user-remote awaits responses only"

# How a receiver treats a response:
#   ack    read it and ack
#   nack   read it and refuse it; the question stays unanswered
#   mute   read it and say nothing, keeping the connection
#   slam   read it and close without a word
#   late   ack after `Peer.late` seconds
#   unread accept, and never read
#   deaf   do not even accept
MOODS = ("ack", "nack", "mute", "slam", "late", "unread", "deaf")


class Question:
    """One question that a peer asked. Written by the asking thread and by the loop."""

    def __init__(self, peer: Peer, envelope: Fields, endpoint: str | None) -> None:
        self.peer = peer
        self.envelope = envelope
        self.qid: str = envelope["msg_id"]
        self.endpoint = endpoint
        self.reply: Fields | None = None
        self.responses: list[Fields] = []
        self.cancelled = False

    @property
    def acked(self) -> bool:
        return self.reply is not None and self.reply.get("type") == "ack"

    @property
    def response(self) -> Fields | None:
        """The first response envelope."""
        return self.responses[0] if self.responses else None

    def wait(self, deadline: float = 10.0) -> Fields:
        """The first response envelope, once it is there."""
        return wait(lambda: self.response, deadline, f"response to {self.qid}")

    def send(self, limit: float = 5.0) -> bool:
        """Sends the prompt (again); whether it was acked."""
        peer = self.peer
        endpoint = self.endpoint or peer.daemon_endpoint()
        peer.note("prompt", qid=self.qid, prompt=self.envelope.get("prompt"))
        self.reply = peer.deliver(self.qid, "prompt", self.envelope, endpoint, limit)
        return self.acked

    def cancel(self, limit: float = 5.0) -> bool:
        """Sends a cancel; whether it was acked. A one-shot peer then closes its socket."""
        peer = self.peer
        endpoint = self.endpoint or peer.daemon_endpoint()
        peer.note("cancel", qid=self.qid)
        envelope = wire.cancel(self.qid, peer.name, peer.to)
        reply = peer.deliver(self.qid, "cancel", envelope, endpoint, limit)
        self.cancelled = reply is not None and reply.get("type") == "ack"
        if self.cancelled:
            peer.after_cancel(self)
        return self.cancelled

    def __repr__(self) -> str:
        return f"<question {self.qid} of {self.peer.name}, {len(self.responses)} responses>"


class Peer:
    """A listening socket and the questions asked from it."""

    kind = "peer"

    def __init__(self, peers: Peers, name: str, path: str, journal: Journal, **options: Any):
        self.peers = peers
        self.name = name
        self.path = path
        self.journal = journal
        self.project: str = options.pop("project", "default")
        self.to: str = options.pop("to", "user-remote")
        self.mood: str = options.pop("mood", "ack")
        self.moods: list[str] = list(options.pop("moods", ()))  # used up first
        self.late: float = options.pop("late", 1.0)
        assert not options, options
        self.questions: dict[str, Question] = {}
        self.received: list[Fields] = []  # every line that came in, also those that were refused
        self.socket: socket.socket | None = None
        self.up()

    def note(self, what: str, **fields: Any) -> float:
        return self.journal.note(what, peer=self.name, kind=self.kind, **fields)

    # The receiving side

    def up(self) -> None:
        """Binds and listens at `path`."""
        assert self.socket is None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        listener.bind(self.path)
        os.chmod(self.path, 0o600)
        listener.listen(1024)
        self.socket = listener
        self.note("up", path=self.path)
        self.peers.in_loop(lambda: self.peers.watch(self, listener))

    def down(self, unlink: bool = True) -> None:
        """Closes the socket; with `unlink=False` the file stays behind, as after a kill."""
        self.peers.in_loop(lambda: self._down(unlink))

    def _down(self, unlink: bool) -> None:
        listener, self.socket = self.socket, None
        if listener is None:
            return
        self.peers.unwatch(listener)
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self.note("down")

    def close(self) -> None:
        self.down()

    def next_mood(self) -> str:
        return self.moods[0] if self.moods else self.mood

    def take(self, line: bytes) -> tuple[str, bytes]:
        """One line came in: (mood, reply). Runs in the loop."""
        try:
            envelope = json.loads(line)
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict):
            self.note("garbage", line=line[:2000].decode("utf-8", "replace"))
            return "ack", self._nack("", "invalid json")
        self.received.append(envelope)
        msg_id = envelope.get("msg_id")
        if not self._is_response(envelope):
            self.note("refused", envelope=envelope)
            return "ack", self._nack(msg_id, self.refusal())
        if len(line.decode("utf-8", "surrogatepass").encode("utf-16-le")) // 2 + 1 > CAP:
            self.note("refused", qid=msg_id, length=len(line))
            return "ack", self._nack("", "line too large")
        question = self.question_for(str(msg_id))
        fields = {"response": envelope["response"], "error": envelope["error"]}
        if question is None:
            self.note("response", qid=msg_id, accepted=False, mood="unknown", **fields)
            return "ack", self._nack(msg_id, "unknown msg_id")
        mood = self.next_mood()
        if self.moods:
            self.moods.pop(0)
        accepted = mood in ("ack", "late")
        self.note("response", qid=question.qid, accepted=accepted, mood=mood, **fields)
        if accepted:
            question.responses.append(envelope)
        if mood == "nack":
            return mood, self._nack(msg_id, "not now")
        return mood, json.dumps({"type": "ack", "msg_id": msg_id}).encode() + b"\n"

    @staticmethod
    def _is_response(envelope: Fields) -> bool:
        """As the pi harness has it: a response whose sender and msg_id are strings."""
        strings = (envelope.get(name) for name in ("msg_id", "sender_session", "sender_endpoint"))
        return (
            envelope.get("type") == "response"
            and all(isinstance(value, str) for value in strings)
            and "response" in envelope
            and "error" in envelope
        )

    @staticmethod
    def _nack(msg_id: object, error: str) -> bytes:
        return json.dumps({"type": "nack", "msg_id": msg_id, "error": error}).encode() + b"\n"

    def refusal(self) -> str:
        return "expected a response"

    def question_for(self, msg_id: str) -> Question | None:
        return self.questions.get(msg_id)

    def after_reply(self, mood: str) -> None:
        """The reply to a response is written. Runs in the loop."""

    def after_cancel(self, question: Question) -> None:
        """A cancel was acked. Runs in the asking thread."""

    # The asking side

    def daemon_endpoint(self) -> str | None:
        """The endpoint of the daemon's registry entry, looked up by its exact name."""
        entry = self.peers.home.entries(self.project).get(self.to)
        endpoint = entry.get("endpoint") if isinstance(entry, dict) else None
        return endpoint if isinstance(endpoint, str) else None

    def envelope(self, text: str, qid: str | None = None, **more: Any) -> Fields:
        more.setdefault("sender_name", self.name)
        return wire.prompt(qid or wire.ulid(), text, self.path, **more)

    def open_line(self, endpoint: str) -> wire.Line:
        """A raw connection to the daemon that stays open until the peers are closed."""
        line = wire.Line(endpoint)
        self.peers.lines.append(line)
        return line

    def prepare(
        self,
        text: str,
        options: list[Any] | None = None,
        context: str | None = None,
        *,
        plain: bool = False,
        qid: str | None = None,
        endpoint: str | None = None,
        **more: Any,
    ) -> Question:
        """A question that is not sent yet. `plain`: the prompt is `text` itself, not JSON."""
        body = text if plain else wire.question(text, options, context)
        question = Question(self, self.envelope(body, qid, **more), endpoint)
        self.questions[question.qid] = question
        return question

    def try_ask(self, text: str, *args: Any, limit: float = 5.0, **more: Any) -> Question:
        """Asks; whether it was acked is in the question. Arguments as for `prepare`."""
        question = self.prepare(text, *args, **more)
        question.send(limit)
        return question

    def ask(self, text: str, *args: Any, limit: float = 5.0, **more: Any) -> Question:
        """Asks, and it must be acked."""
        question = self.try_ask(text, *args, limit=limit, **more)
        assert question.acked, f"not acked: {question.reply}"
        return question

    def deliver(
        self, qid: str, what: str, envelope: Fields, endpoint: str | None, limit: float
    ) -> Fields | None:
        """Sends one envelope and notes `<what>_ack`, `_nack`, `_unsent` or `_noack`."""
        sent = False
        try:
            if endpoint is None:
                raise ConnectionError("no registry entry")
            with wire.Line(endpoint, limit) as line:
                line.send(wire.encode(envelope))
                sent = True
                reply = line.read_json(limit)
        except (OSError, ValueError) as error:
            self.note(f"{what}_{'noack' if sent else 'unsent'}", qid=qid, error=repr(error))
            return None
        self.note_reply(qid, what, reply)
        return reply

    def note_reply(self, qid: str, what: str, reply: Fields) -> None:
        good = reply.get("type") == "ack" and reply.get("msg_id") is not None
        self.note(f"{what}_{'ack' if good else 'nack'}", qid=qid, reply=reply)


class OneShot(Peer):
    """As ask-user-remote: a socket of its own, closed and unlinked after the first response,
    whatever msg_id that has, or once a cancel was acked."""

    kind = "one_shot"

    def question_for(self, msg_id: str) -> Question | None:
        return next(iter(self.questions.values()), None)

    def refusal(self) -> str:
        return ONLY_RESPONSES

    def after_reply(self, mood: str) -> None:
        if mood in ("ack", "late"):
            self.down()

    def after_cancel(self, question: Question) -> None:
        self.down()

    @property
    def question(self) -> Question:
        return next(iter(self.questions.values()))


class Cli(Peer):
    """As `coms-cli send --await`: registered as an explicit peer while it waits."""

    kind = "cli"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.session = wire.ulid()
        self.entry_path = os.path.join(self.peers.home.agents(self.project), self.name + ".json")
        self.register()

    def register(self) -> None:
        now = wire.iso()
        entry = {
            "session_id": self.session,
            "name": self.name,
            "purpose": "coms-cli",
            "model": "cli",
            "color": "#888888",
            "pid": os.getpid(),
            "endpoint": self.path,
            "cwd": "/",
            "started_at": now,
            "explicit": True,
            "version": 1,
            "context_used_pct": 0,
            "queue_depth": 0,
            "heartbeat_at": now,
        }
        os.makedirs(os.path.dirname(self.entry_path), exist_ok=True)
        temp = self.entry_path + ".tmp"
        with open(temp, "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.rename(temp, self.entry_path)

    def after_reply(self, mood: str) -> None:
        if mood in ("ack", "late") and all(q.responses for q in self.questions.values()):
            self.close()

    def after_cancel(self, question: Question) -> None:
        self.close()

    def down(self, unlink: bool = True) -> None:
        super().down(unlink)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.entry_path)


class Pi(Peer):
    """A long-lived peer: refuses responses to questions that it never asked."""

    kind = "pi"


class _Connection:
    def __init__(self, peer: Peer, sock: socket.socket) -> None:
        self.peer = peer
        self.socket = sock
        self.data = b""
        self.answered = False


class Peers:
    """Makes peers and runs their loop. Sockets lie in the daemon's own sockets directory."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.all: list[Peer] = []
        self.lines: list[wire.Line] = []
        self._journals: dict[str, Journal] = {}
        self._selector = selectors.DefaultSelector()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._unread: list[socket.socket] = []  # accepted and never read
        self._ended = False
        self.error: BaseException | None = None
        os.makedirs(home.sockets, mode=0o700, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self._thread.start()

    # Making them

    def one_shot(self, **options: Any) -> OneShot:
        return self._make(OneShot, "ask-user-remote", **options)

    def cli(self, **options: Any) -> Cli:
        return self._make(Cli, None, **options)

    def pi(self, **options: Any) -> Pi:
        return self._make(Pi, None, **options)

    def _make(self, kind: type[Any], name: str | None, /, **options: Any) -> Any:
        """name=, path= and any option of `Peer`."""
        number = len(self.all)
        name = options.pop("name", None) or name or f"{kind.kind.replace('_', '-')}-{number}"
        path = options.pop("path", None) or os.path.join(self.home.sockets, wire.ulid() + ".sock")
        journal = self._journals.get(kind.kind)
        if journal is None:
            journal = Journal(os.path.join(self.home.journals, f"peer-{kind.kind}.ndjson"))
            self._journals[kind.kind] = journal
        peer = kind(self, name, path, journal, **options)
        self.all.append(peer)
        return peer

    def questions(self) -> list[Question]:
        return [question for peer in list(self.all) for question in list(peer.questions.values())]

    def open_questions(self) -> list[Question]:
        """Acked, neither answered nor cancelled."""
        return [q for q in self.questions() if q.acked and not q.responses and not q.cancelled]

    # Many prompts at one time

    def burst(self, questions: Iterable[Question], daemon: Daemon, limit: float = 20.0) -> None:
        """Sends all prompts at once, each on a connection of its own, and waits for the replies.

        Connects as an event-driven peer does: a listen backlog that is full is a failure.
        """
        endpoint = daemon.endpoint
        end = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            left = 0
            for question in questions:
                question.peer.note(
                    "prompt", qid=question.qid, prompt=question.envelope.get("prompt")
                )
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.setblocking(False)
                try:
                    sock.connect(endpoint)
                    sock.send(wire.encode(question.envelope))
                except OSError as error:
                    question.peer.note("prompt_unsent", qid=question.qid, error=repr(error))
                    sock.close()
                    continue
                selector.register(sock, selectors.EVENT_READ, [question, b""])
                left += 1
            while left and time.monotonic() < end:
                for key, _ in selector.select(0.1):
                    question, data = key.data
                    try:
                        chunk = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    except OSError:
                        chunk = b""
                    key.data[1] = data = data + chunk
                    if chunk and b"\n" not in data:
                        continue
                    if chunk:
                        question.reply = json.loads(data)
                        question.peer.note_reply(question.qid, "prompt", question.reply)
                    else:
                        question.peer.note("prompt_noack", qid=question.qid, error="ended")
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    left -= 1
            for key in list(selector.get_map().values()):
                key.data[0].peer.note("prompt_noack", qid=key.data[0].qid, error="too late")
                key.fileobj.close()  # type: ignore[union-attr]

    # The loop

    def in_loop(self, call: Callable[[], None]) -> None:
        """Runs `call` in the loop thread, and waits for it unless that is the caller."""
        if threading.current_thread() is self._thread:
            call()
            return
        done = threading.Event()

        def run() -> None:
            try:
                call()
            finally:
                done.set()

        self._calls.put(run)
        os.write(self._wake_write, b".")
        if not done.wait(10):
            raise AssertionError(f"the loop of the peers has ended: {self.error!r}")

    def watch(self, peer: Peer, listener: socket.socket) -> None:
        self._selector.register(listener, selectors.EVENT_READ, peer)

    def unwatch(self, listener: socket.socket) -> None:
        with contextlib.suppress(KeyError):  # a deaf peer's socket is not watched all the time
            self._selector.unregister(listener)
        listener.close()

    def _look_away(self, peer: Peer, listener: socket.socket) -> None:
        """A deaf peer's socket stays readable: leave it unwatched for a moment."""

        def look_again() -> None:
            if peer.socket is listener:
                self.watch(peer, listener)

        self._selector.unregister(listener)
        self._at(time.monotonic() + 0.05, look_again)

    def _at(self, due: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (due, self._count, call))

    def _run(self) -> None:
        try:
            while not self._ended:
                self._turn()
        except BaseException as error:
            self.error = error
            raise

    def _turn(self) -> None:
        timeout = 0.2
        if self._timers:
            timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            elif isinstance(key.data, _Connection):
                self._read(key.data)
            elif isinstance(listener := key.fileobj, socket.socket) and key.data.socket is listener:
                self._accept(key.data, listener)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            call()

    def _accept(self, peer: Peer, listener: socket.socket) -> None:
        if peer.next_mood() == "deaf":
            self._look_away(peer, listener)
            return
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EMFILE):
                return
            raise
        sock.setblocking(False)
        connection = _Connection(peer, sock)
        peer.note("connected")
        if peer.next_mood() == "unread":
            self._unread.append(sock)
            return
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            chunk = connection.socket.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(connection)
            return
        if connection.answered:
            return  # only the first line counts
        connection.data += chunk
        line, found, _ = connection.data.partition(b"\n")
        if not found:
            return
        connection.answered = True
        mood, reply = connection.peer.take(line)
        if mood == "late":
            due = time.monotonic() + connection.peer.late
            self._at(due, lambda: self._reply(connection, mood, reply))
        elif mood == "slam":
            self._drop(connection)
        elif mood != "mute":
            self._reply(connection, mood, reply)

    def _reply(self, connection: _Connection, mood: str, reply: bytes) -> None:
        connection.peer.note("replied", mood=mood, reply=reply.decode("utf-8", "replace").strip())
        with contextlib.suppress(OSError):
            connection.socket.send(reply)
            connection.socket.shutdown(socket.SHUT_WR)
        refused = b'"nack"' in reply
        connection.peer.after_reply("nack" if refused else mood)

    def _drop(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def close(self) -> None:
        """Takes all peers down, their socket files with them."""
        if self._ended:
            return
        if self.error is None:
            for peer in self.all:
                peer.close()
        self._ended = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")
        self._thread.join(10)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        for sock in self._unread:
            sock.close()
        for line in self.lines:
            line.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for journal in self._journals.values():
            journal.close()
        if self.error is not None:
            raise self.error
