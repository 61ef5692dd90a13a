"""A real Hermes with its API server on loopback, and a model whose answers the question decides."""

import http.client
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hermes_bridges.standins.hermes_gateway import HermesHome
from hermes_bridges.standins.model_api import ModelApi, Reply, Request
from tests import hermes_versions
from tests.harness.daemon import INHERITED, wait

KEY = "test-key-0123456789abcdef"
STARTED_WITHIN = 60.0
CAP = 3
"""How many turns the server takes at once, where its version has such a limit."""
ANSWERED_WITHIN = 60.0  # the first turn of the oldest version takes some seconds
_DIRECTIVE = re.compile(r"\[\[(\w+) ?(.*?)\]\]")


class Agent:
    """The brain of the model: it says what it has heard in this conversation so far.

    What the last text holds in brackets changes that: ``[[say TEXT]]``, ``[[long BYTES]]``,
    ``[[count]]`` (of the texts), ``[[empty]]``, ``[[fail STATUS]]``, ``[[finish REASON]]``,
    ``[[tokens USED]]``; between ``hold`` and ``release`` one with ``[[hold]]`` waits. ``heard`` are
    the texts that have come.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._released = threading.Event()
        self.release()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def __call__(self, request: Request) -> Reply:
        texts = [said.text for said in request.messages if said.role == "user"]
        self.heard.append(texts[-1])
        # Some versions put a text that was not answered before the next one.
        found = dict(_DIRECTIVE.findall(texts[-1].rpartition("\n\n")[2]))
        if "hold" in found:
            self._released.wait(ANSWERED_WITHIN)
        if "fail" in found:
            return Reply("this is a made failure", status=int(found["fail"]))
        if "long" in found:
            return Reply(prose(int(found["long"])))
        if "empty" in found:
            return Reply("")
        text = str(len(texts)) if "count" in found else f"heard: {' | '.join(texts)}"
        text = found.get("say", text)
        tokens = int(found.get("tokens", 100))
        return Reply(text, finish=found.get("finish", "stop"), tokens=tokens)


def prose(size: int) -> str:
    """That many bytes of varied words: newer versions take repeated ones for a loop."""
    dice = random.Random(size)
    words: list[str] = []
    left = size
    while left > 0:
        word = "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(dice.randint(2, 9)))
        words.append(word + dice.choice(("\n", " ", " ", " ", ". ")))
        left -= len(words[-1])
    return "".join(words)[:size].rstrip().ljust(size, "x")


class Answer(NamedTuple):
    """What the API server said: the headers' names in lower case, the body as text."""

    status: int
    headers: Mapping[str, str]
    body: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the assistant said."""
        text: str = self.json["choices"][0]["message"]["content"]
        return text


class RealHermes:
    """Use as a context manager, with a short directory; ``more`` are sections of its config."""

    def __init__(self, version: str, root: Path, **more: Mapping[str, object]) -> None:
        self.version = version
        self.agent = Agent()
        self.model = ModelApi(self.agent)
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        inherited = {n: v for n, v in os.environ.items() if n.startswith(INHERITED)}
        # Newer versions refuse to work in $HOME/.hermes below a test runner.
        inherited["HERMES_STATE_DB_GUARD_BYPASS"] = "1"
        home = root / "hermes"
        home.mkdir()
        hermes = str(hermes_versions.hermes(version))
        self.host = HermesHome(str(home), hermes, None, self.model.base_url, "", inherited)
        variables = {
            "API_SERVER_ENABLED": "true",
            "API_SERVER_KEY": KEY,
            "API_SERVER_HOST": "127.0.0.1",
            "API_SERVER_PORT": str(self.port),
        }
        config = {"gateway": {"api_server": {"max_concurrent_runs": CAP}}, **more}
        self.host.write("default", "", variables=variables, **config)

    def start(self) -> None:
        """Start the gateway, and wait until its API server has answered a turn."""
        process = self.host.start()
        wait(
            lambda: self.is_up() or process.poll() is not None,
            STARTED_WITHIN,
            f"hermes {self.version}",
        )
        assert process.poll() is None, self.said()
        # While they are still starting, newer versions fail a turn now and then.
        wait(lambda: self.ask("warm", "warm").status == 200, ANSWERED_WITHIN, "a first turn")

    def stop(self) -> None:
        """End the gateway; its port refuses connections afterwards."""
        self.host.close()

    def is_up(self) -> bool:
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def said(self) -> str:
        """What the gateway printed."""
        return (Path(self.host.home) / "gateway-default.txt").read_text()

    def get(self, path: str, key: str | None = None) -> Answer:
        return self._call("GET", path, None, {"Authorization": f"Bearer {key}"} if key else {})

    def ask(
        self, text: str, session: str | None = None, again: str | None = None, key: str = KEY
    ) -> Answer:
        """One turn by plain HTTP; ``again`` is its idempotency key."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if session is not None:
            headers["X-Hermes-Session-Id"] = session
        if again is not None:
            headers["Idempotency-Key"] = again
        messages = [{"role": "user", "content": text}]
        body = {"model": "hermes-agent", "messages": messages, "stream": False}
        return self._call("POST", "/v1/chat/completions", json.dumps(body), headers)

    def _call(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWERED_WITHIN)
        began = time.monotonic()
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            found = {name.lower(): text for name, text in answer.getheaders()}
            text = answer.read().decode()
        finally:
            connection.close()
        return Answer(answer.status, found, text, time.monotonic() - began)

    def close(self) -> None:
        self.agent.release()
        self.host.close()
        self.model.close()

    def __enter__(self) -> "RealHermes":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
        if isinstance(error, AssertionError):
            error.add_note(f"hermes {self.version} printed: {self.said()[-1500:]}")
            error.add_note(f"the model heard: {self.agent.heard[-10:]}")


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
