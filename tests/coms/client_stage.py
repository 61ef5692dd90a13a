"""A pool for the client's tests: scripted peers on real sockets, entries and spool by hand.

Nothing here uses the package: what the client says is judged by the contract alone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.harness.wire import Fields, encode, iso, ulid

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "hermes_bridges.coms"]


class Connection:
    """One accepted connection, read by lines."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.settimeout(10)
        self.buffer = b""

    def line(self) -> bytes | None:
        """The next line without its newline; None at the end."""
        while b"\n" not in self.buffer:
            try:
                data = self.socket.recv(65536)
            except (ConnectionResetError, TimeoutError):
                return None
            if not data:
                return None
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def send(self, *fields: Fields | bytes) -> None:
        for item in fields:
            self.socket.sendall(item if isinstance(item, bytes) else encode(item))


Script = Callable[["Peer", Connection, Fields], None]


def acks(peer: Peer, connection: Connection, envelope: Fields) -> None:
    connection.send({"type": "ack", "msg_id": envelope["msg_id"]})


def answers(response: Any, error: Any = None) -> Script:
    """Acks, and then responds to every prompt."""

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        connection.socket.close()
        if envelope["type"] == "prompt":
            peer.respond(envelope, response, error)

    return script


class Peer:
    """A thread that serves one socket: each envelope is kept and handed to the script."""

    def __init__(self, pool: Pool, name: str, script: Script = acks) -> None:
        self.pool = pool
        self.name = name
        self.script = script
        self.session = ulid()
        self.endpoint = str(pool.sockets / f"{self.session}.sock")
        self.envelopes: Queue[Fields] = Queue()
        self.replies: list[Fields] = []
        self.faults: list[BaseException] = []
        self.release = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.endpoint)
        self._socket.listen(32)
        self._thread = threading.Thread(target=self._serve, name=f"peer-{name}", daemon=True)
        self._thread.start()

    def next(self, kind: str | None = None, seconds: float = 10.0) -> Fields:
        envelope = self.envelopes.get(timeout=seconds)
        assert kind is None or envelope["type"] == kind, envelope
        return envelope

    def nothing_more(self) -> bool:
        return self.envelopes.empty()

    def respond(self, prompt: Fields, response: Any, error: Any = None, **more: Any) -> Fields:
        """One response on a connection of its own; its reply is also kept."""
        fields = response_to(prompt, response, error, **more)
        try:
            line = encode(fields)
            line.decode()
        except UnicodeDecodeError:
            # A lone surrogate travels as an escape only.
            line = json.dumps(fields).encode() + b"\n"
        reply = exchange(prompt["sender_endpoint"], line)
        self.replies.append(reply)
        return reply

    def close(self) -> None:
        self.release.set()
        # shutdown() ends the accept() of the other thread, close() alone would not.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        Path(self.endpoint).unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected:
                self._one(Connection(connected))

    def _one(self, connection: Connection) -> None:
        line = connection.line()
        if line is None:
            return
        envelope = json.loads(line)
        self.envelopes.put(envelope)
        try:
            self.script(self, connection, envelope)
        except OSError as fault:
            self.faults.append(fault)


def response_to(prompt: Fields, response: Any, error: Any = None, **more: Any) -> Fields:
    return {
        "type": "response",
        "msg_id": prompt["msg_id"],
        "sender_session": ulid(),
        "sender_endpoint": "/nowhere.sock",
        "hops": 0,
        "timestamp": iso(),
        "response": response,
        "error": error,
        **more,
    }


def exchange(endpoint: str, *pieces: bytes, pause: float = 0.0) -> Fields:
    """Sends the pieces on one connection; the first line that comes back."""
    return exchange_all(endpoint, *pieces, pause=pause)[0]


def exchange_all(endpoint: str, *pieces: bytes, pause: float = 0.0) -> list[Fields]:
    """The same, all lines until the other side ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(endpoint)
        for number, piece in enumerate(pieces):
            if number and pause:
                time.sleep(pause)
            link.sendall(piece)
        data = b""
        while chunk := link.recv(65536):
            data += chunk
    return [json.loads(line) for line in data.splitlines()]


class Pool:
    """One PI_COMS_DIR below a short directory, and the environment that points to it."""

    def __init__(self, root: Path, project: str = "default") -> None:
        self.root = root
        self.home = root / "h"
        self.coms = root / "c"
        self.project = project
        self.agents = self.coms / "projects" / project / "agents"
        self.sockets = self.coms / "sockets"
        for directory in (self.home, self.agents, self.sockets):
            directory.mkdir(mode=0o700, parents=True)
        self.environ = {
            **os.environ,
            "HOME": str(self.home),
            "PI_COMS_DIR": str(self.coms),
            "PYTHONPATH": str(ROOT),
        }
        self.peers: list[Peer] = []
        self.children: list[subprocess.Popen[bytes]] = []

    def enter(self, name: str, endpoint: str, **more: Any) -> Path:
        """An entry as a pi peer writes it: alive by its heartbeat."""
        entry = {
            "session_id": ulid(),
            "name": name,
            "purpose": f"purpose of {name}",
            "model": "model-x",
            "color": "#38BDF8",
            "pid": os.getpid(),
            "endpoint": endpoint,
            "cwd": "/",
            "started_at": iso(),
            "explicit": False,
            "version": 1,
            "context_used_pct": 0,
            "queue_depth": 0,
            "heartbeat_at": iso(),
            **more,
        }
        path = self.agents / f"{name}.json"
        path.write_text(json.dumps(entry))
        return path

    def peer(self, name: str = "user-remote", script: Script = acks, **more: Any) -> Peer:
        peer = Peer(self, name, script)
        self.peers.append(peer)
        self.enter(name, peer.endpoint, **{"session_id": peer.session, **more})
        return peer

    def stuck(self, name: str = "user-remote", backlog: int = 8) -> socket.socket:
        """A peer that accepts connections (the kernel does) and never reads: stopped."""
        endpoint = str(self.sockets / f"{ulid()}.sock")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(endpoint)
        listening.listen(backlog)
        self.enter(name, endpoint)
        return listening

    def spool(self, name: str = "coms-client") -> Path:
        return self.coms / "cli" / "projects" / self.project / name

    def start(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """The client as a process of its own, from a directory where no package lies."""
        child = subprocess.Popen(
            [*COMMAND, *words],
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=more.pop("stderr", subprocess.PIPE),
            env={**self.environ, **more.pop("env", {})},
            cwd=self.root,
            **more,
        )
        self.children.append(child)
        return child

    def run(self, *words: str, **more: Any) -> tuple[int, str, str]:
        """Exit code and output of a client that ends by itself."""
        data = more.pop("input", None)
        if data is not None:
            more["stdin"] = subprocess.PIPE
        child = self.start(*words, **more)
        out, err = child.communicate(data, timeout=30)
        return child.returncode, (out or b"").decode(), (err or b"").decode()

    def inbox(self, prompt: Fields) -> str:
        return str(prompt["sender_endpoint"])

    def left(self) -> list[str]:
        """Entries and sockets of others than our own peers, and temporary files."""
        own = {Path(peer.endpoint).name for peer in self.peers}
        own |= {f"{peer.name}.json" for peer in self.peers}
        found = [*self.agents.iterdir(), *self.sockets.iterdir(), *self.coms.rglob("*.tmp")]
        return sorted(str(path) for path in found if path.name not in own)

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.terminate()
            child.communicate(timeout=20)
        for peer in self.peers:
            peer.close()


def drain(queue: Queue[Fields]) -> list[Fields]:
    found = []
    while True:
        try:
            found.append(queue.get_nowait())
        except Empty:
            return found
