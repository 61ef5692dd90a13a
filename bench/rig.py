"""What the bench measures with: one bridge under a private HOME, a fast `hermes`, and an asker.

The standard library only, and nothing of the package: any bridge that keeps the coms contract can
be put in here.
"""

import json
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

FLAGS = ["--name", "user-remote", "--project", "default", "--to", "telegram:1"]
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Built-ins of the shell alone, but for the wait that a measure may ask for.
HERMES = """#!/bin/sh
for text; do :; done
qid=${{text#*HUB-Q:}}
qid=${{qid%%]*}}
read -r hold < {root}/hold
echo "begin $qid" > {root}/calls
[ "$hold" = 0 ] || sleep "$hold"
echo "end $qid" > {root}/calls
"""


class Fault(Exception):
    """The bridge did not do what was to be measured."""


def wait(predicate: Callable[[], Any], limit: float, what: str, pause: float = 0.0005) -> Any:
    end = time.monotonic() + limit
    while not (found := predicate()):
        if time.monotonic() > end:
            raise Fault(f"not within {limit:g} s: {what}")
        time.sleep(pause)
    return found


def ulid() -> str:
    number = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


class Ears(threading.Thread):
    """Stamps what arrives: responses at the askers' sockets, and begins and ends of `hermes`."""

    def __init__(self, calls: str) -> None:
        super().__init__(name="ears", daemon=True)
        self.responses: dict[str, float] = {}
        self.begins: dict[str, float] = {}
        self.ended = self.running = self.most = 0
        self._selector = selectors.DefaultSelector()
        self._calls = os.open(calls, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._selector.register(self._calls, selectors.EVENT_READ, self._hermes)
        self._stop_read, self._stop_write = os.pipe()
        self._selector.register(self._stop_read, selectors.EVENT_READ, None)

    def listen(self, path: str, qid: str | None = None) -> None:
        """Takes responses there: for that question, or whatever comes."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(4096)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._take(listener, qid))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def close(self) -> None:
        os.write(self._stop_write, b".")
        self.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for fd in (self._calls, self._stop_read, self._stop_write):
            os.close(fd)

    def _hermes(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._calls, 65536)).split(b"\n")
        for line in lines:
            what, _, qid = line.decode().partition(" ")
            if what == "begin":
                self.begins.setdefault(qid, time.monotonic())
                self.running += 1
                self.most = max(self.most, self.running)
            else:
                self.running -= 1
                self.ended += 1

    def _take(self, listener: socket.socket, qid: str | None) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        data = bytearray()

        def read() -> None:
            chunk = connection.recv(65536)
            data.extend(chunk)
            if chunk and b"\n" not in data:
                return
            self._selector.unregister(connection)
            if chunk:
                at = time.monotonic()
                found = qid or json.loads(data)["msg_id"]
                connection.sendall(json.dumps({"type": "ack", "msg_id": found}).encode() + b"\n")
                self.responses.setdefault(found, at)
            connection.close()

        self._selector.register(connection, selectors.EVENT_READ, read)


class Rig:
    """One run of one bridge. Use as a context manager; it is started and listening inside."""

    def __init__(self, command: list[str], checkout: str) -> None:
        self.root = tempfile.mkdtemp(prefix="cb", dir="/tmp")
        self.home = os.path.join(self.root, "h")
        self.coms = os.path.join(self.home, ".pi/coms")
        self.questions = os.path.join(self.coms, "hermes-bridge/questions")
        self.entry_path = os.path.join(self.coms, "projects/default/agents/user-remote.json")
        self.command = [*command, *FLAGS]
        os.makedirs(self.home, mode=0o700)
        os.mkdir(os.path.join(self.root, "b"))
        os.mkdir(os.path.join(self.root, "a"))
        os.mkfifo(os.path.join(self.root, "calls"))
        self.hold(0)
        with open(os.path.join(self.root, "b/hermes"), "w") as script:
            script.write(HERMES.format(root=self.root))
        os.chmod(script.name, 0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PI_", "HERMES_"))}
        self.environ = {
            **kept,
            "HOME": self.home,
            "PATH": os.path.join(self.root, "b") + ":" + os.environ["PATH"],
            "PYTHONPATH": checkout,
        }
        self.ears = Ears(os.path.join(self.root, "calls"))
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""
        self.started = 0.0  # seconds from the spawn to the registry entry
        self._count = 0

    def __enter__(self) -> "Rig":
        self.ears.start()
        try:
            with open(os.path.join(self.root, "stderr"), "wb") as stderr:
                begin = time.monotonic()
                self.process = subprocess.Popen(
                    self.command,
                    env=self.environ,
                    cwd=self.home,
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    start_new_session=True,
                )
            wait(self._entry, 30, f"a registry entry; {self.command} said: {self._said()}")
            self.started = time.monotonic() - begin
            self.endpoint = str(self._entry()["endpoint"])
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise Fault(f"{self.command} cannot be started: {error}") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            for pid in self._processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait()
        self.ears.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _entry(self) -> dict[str, Any]:
        if self.process is not None and self.process.poll() is not None:
            raise Fault(f"{self.command} ended with {self.process.returncode}: {self._said()}")
        try:
            with open(self.entry_path) as file:
                entry = json.load(file)
        except (OSError, ValueError):
            return {}
        return entry if isinstance(entry, dict) else {}

    def _said(self) -> str:
        with open(os.path.join(self.root, "stderr"), errors="replace") as file:
            return file.read()[-400:].strip()

    # Asking and answering

    def hold(self, seconds: float) -> None:
        """How long each `hermes` takes from now on."""
        beside = os.path.join(self.root, "hold.new")
        with open(beside, "w") as file:
            file.write(f"{seconds:g}\n")
        os.rename(beside, os.path.join(self.root, "hold"))

    def listener(self, qid: str | None = None) -> str:
        """A new socket that takes responses."""
        self._count += 1
        path = os.path.join(self.root, f"a/{self._count}.sock")
        self.ears.listen(path, qid)
        return path

    def exchange(self, fields: dict[str, Any], expected: str) -> float:
        """Seconds from before the connect until the reply is there."""
        line = json.dumps(fields).encode() + b"\n"
        begin = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            try:
                connection.connect(self.endpoint)
                connection.sendall(line)
                reply = connection.recv(65536)
                while b"\n" not in reply and (chunk := connection.recv(65536)):
                    reply += chunk
            except OSError as error:
                raise Fault(f"no {expected}: {error}") from error
        took = time.monotonic() - begin
        if json.loads(reply or b"{}").get("type") != expected:
            raise Fault(f"no {expected} but {reply[:200]!r}")
        return took

    def ask(self, endpoint: str | None = None) -> tuple[str, float, float]:
        """A new question, from a socket of its own unless told: (qid, when, seconds to the ack)."""
        qid = ulid()
        fields = {
            "type": "prompt",
            "msg_id": qid,
            "prompt": json.dumps({"question": f"Ship {qid} now?", "options": ["yes", "no"]}),
            "sender_session": "bench",
            "sender_endpoint": endpoint or self.listener(qid),
            "sender_name": "bench",
            "sender_cwd": self.home,
            "hops": 0,
        }
        at = time.monotonic()
        return qid, at, self.exchange(fields, "ack")

    def ping(self) -> float:
        return self.exchange({"type": "ping", "msg_id": "p", "from": "bench"}, "pong")

    def prepare_answer(self, qid: str) -> str:
        """The answer file, beside the directory that is watched."""
        path = os.path.join(self.root, qid)
        with open(path, "w") as file:
            json.dump(
                {
                    "qid": qid,
                    "answer": "yes",
                    "answered_by": "telegram:bench",
                    "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                },
                file,
            )
        return path

    def answer(self, qid: str, prepared: str) -> float:
        """Puts the file where it is looked for; returns when that began."""
        at = time.monotonic()
        os.rename(prepared, os.path.join(self.questions, f"{qid}.answer.json"))
        return at

    def settle(self, calls: int, limit: float = 120) -> None:
        """Waits until that many `hermes` calls have ended since the start."""
        wait(lambda: self.ears.ended >= calls, limit, f"{calls} calls of hermes ended", 0.01)

    # What it costs

    def _processes(self) -> list[int]:
        """Everything in the session of the bridge."""
        assert self.process is not None
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, _, _, session = file.read().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state != "Z":
                found.append(int(name))
        return found

    def memory(self) -> float:
        """Resident MiB."""
        pages = 0
        for pid in self._processes():
            with open(f"/proc/{pid}/statm") as file:
                pages += int(file.read().split()[1])
        return pages * resource.getpagesize() / 2**20

    def cpu(self) -> float:
        """Milliseconds on a processor so far, of the threads that still live."""
        total = 0
        for pid in self._processes():
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                    total += int(file.read().split()[0])
        return total / 1e6


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)
