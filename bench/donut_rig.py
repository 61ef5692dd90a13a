"""What the Donut bench measures with: hub, Hermes, and a bridge or a raw loop, a process each."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from rig import Fault, pause, wait

KEY = "standin-key-0123456789"
BENCH = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(BENCH)
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")


class Peer:
    """The process of a peer, see donut_peers.py; its commands are methods here."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(BENCH, "donut_peers.py"), *arguments],
            env={**os.environ, "PYTHONPATH": CHECKOUT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.where: dict[str, str] = self._answer()

    def __getattr__(self, name: str) -> Any:
        def command(*arguments: object) -> Any:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
            self.process.stdin.flush()
            return self._answer()

        return command

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Fault("a peer has ended")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Window(NamedTuple):
    """What happened in a stretch of time."""

    rate: float  # answers a second
    cpu: float  # milliseconds of the candidate's processor time for each
    latencies: list[float]  # seconds from the question to the answer at the hub


class Rig:
    """One run of one candidate. Use as a context manager.

    ``command`` is the bridge's, or ``raw:requests`` or ``raw:http.client``. ``delay`` is what a
    turn of Hermes takes, in seconds.
    """

    def __init__(
        self, command: list[str], *, delay: float, chats: int, typing: bool = False, **more: str
    ) -> None:
        self._command = command
        self._chats = chats
        self._delay = delay
        self._typing = typing
        self._more = more
        self._ends = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Rig":
        self._root = tempfile.mkdtemp(prefix="donut-bench-")
        self._ends.callback(shutil.rmtree, self._root, ignore_errors=True)
        try:
            self.hub = Peer("hub")
            self._ends.callback(self.hub.end)
            self.hermes = Peer("hermes", str(self._delay))
            self._ends.callback(self.hermes.end)
            self.hub.open_chats(self._chats)
            self._ends.callback(self.kill)
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def is_raw(self) -> bool:
        return self._command[0].startswith("raw:")

    def run_raw(self, think: float) -> None:
        where = {**self.hub.where, **self.hermes.where}
        options = {
            **where,
            "key": KEY,
            "library": self._command[0].removeprefix("raw:"),
            "typing": where["typing"] if self._typing else "",
            "chats": self._chats,
            "think": think,
        }
        raw = os.path.join(BENCH, "donut_raw.py")
        self._spawn([sys.executable, raw, json.dumps(options)], {})

    def start(self, online: bool = True) -> float:
        """Start the bridge, and wait until it is there unless told otherwise; when it began."""
        where = self.hub.where
        began = self._spawn(
            self._command,
            {
                "DONUT_BOT_TOKEN": where["token"],
                "DONUT_STREAM_URL": where["stream"],
                "DONUT_SEND_URL": where["send"],
                **({"DONUT_TYPING_URL": where["typing"]} if self._typing else {}),
                "HERMES_BASE_URL": self.hermes.where["base"],
                "HERMES_API_KEY": KEY,
                **self._more,
            },
        )
        if online:
            self._wait(self.hub.online, 20, "a stream", 0.005)
        return began

    def _spawn(self, command: list[str], more: dict[str, str]) -> float:
        environ = {name: os.environ[name] for name in KEPT if name in os.environ}
        environ |= {"HOME": self._root, "PYTHONPATH": CHECKOUT, **more}
        with open(os.path.join(self._root, "stderr"), "wb") as stderr:
            began = time.monotonic()
            self._process = subprocess.Popen(
                command, env=environ, cwd=self._root, stdout=stderr, stderr=stderr
            )
        return began

    def stop(self) -> None:
        """End the bridge as a service manager does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(30):
            raise Fault(f"the bridge ended with {self._process.returncode}: {self._said()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def load(self, seconds: float, warm: float, ahead: int = 2, think: float = 0.0) -> Window:
        """Start the candidate, let people write in all chats, and look at a part of it."""
        if self.is_raw:
            self.run_raw(think)
        else:
            self.start()
            self.hub.talk(self._chats, ahead, think)
        self._wait(self.hub.count, 20, "an answer", 0.01)
        pause(warm)
        self.hub.take()
        began, used = time.monotonic(), self.cpu()
        pause(seconds)
        used = self.cpu() - used
        ended = time.monotonic()
        answers = [answer for answer in self.hub.take() if began <= answer[0] < ended]
        self.check()
        if not answers:
            raise Fault(f"no answer at all; it said: {self._said()}")
        return Window(
            len(answers) / (ended - began),
            used * 1e3 / len(answers),
            [posted - said for posted, said, _ in answers],
        )

    def answers(self, count: int, limit: float) -> list[float]:
        """Wait for so many answers; when the hub had them."""
        self._wait(lambda: self.hub.count() >= count, limit, f"{count} answers", 0.005)
        return [posted for posted, _, _ in self.hub.take()]

    def check(self) -> None:
        """Raises Fault if anything went wrong so far."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise Fault(f"ended with {self._process.returncode}: {self._said()}")
        if refused := self.hub.refused():
            raise Fault(f"the hub refused {len(refused)} posts: {refused[0]}")

    def cpu(self) -> float:
        """Seconds of processor time that the candidate has used, in all its threads."""
        assert self._process is not None
        # The clock of a process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def memory(self, field: str = "VmRSS") -> float:
        """Resident MiB of the bridge; VmHWM is the most that it ever had."""
        assert self._process is not None
        with open(f"/proc/{self._process.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))

    def _wait(self, predicate: Callable[[], Any], limit: float, what: str, pause: float) -> None:
        try:
            wait(predicate, limit, what, pause)
        except Fault as fault:
            raise Fault(f"{fault}; it said: {self._said()}") from None

    def _said(self) -> str:
        try:
            with open(os.path.join(self._root, "stderr"), errors="replace") as file:
                return file.read()[-400:].strip()
        except OSError:
            return ""
