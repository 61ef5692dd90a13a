"""`--check`: what it finds, says and leaves alone (contract sections 2 and 9)."""

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.donut import check
from hermes_bridges.donut.settings import parse
from hermes_bridges.standins import hermes_wire
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import KEY, Fault, HermesApi

TOKEN = "donutbot_hush"


class Scene:
    """A hub, a Hermes, and what ``--check`` says about them."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.hub = DonutHub(token=TOKEN)
        self.hub.add_chat(1, "all")
        self.hermes = HermesApi(profiles=("default", "work"))
        self.home = home
        self.welcome_within = 10.0
        self._capsys = capsys

    def check(self, **environ: str) -> tuple[int, str]:
        given = {
            "HOME": str(self.home),
            "DONUT_BOT_TOKEN": TOKEN,
            "DONUT_STREAM_URL": self.hub.stream_url,
            "HERMES_BASE_URL": self.hermes.base_url,
            "HERMES_API_KEY": KEY,
        }
        code = check.run(parse(["--check"], given | environ), self.welcome_within)
        said = self._capsys.readouterr()
        assert "hush" not in said.out + said.err and KEY not in said.out + said.err
        problems = said.out.count("problem: ")
        assert said.out.count("  remedy: ") == problems
        assert code == (1 if problems else 0)
        return code, said.out

    def problem(self, **environ: str) -> str:
        """The one problem and its remedy."""
        _, said = self.check(**environ)
        (problem,) = said.split("problem: ")[1:]
        return "\n".join(problem.splitlines()[:2])


@pytest.fixture
def scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    made = Scene(tmp_path, capsys)
    yield made
    made.hub.close()
    made.hermes.close()


def test_all_is_well(scene: Scene) -> None:
    code, said = scene.check()
    port = scene.hub.port
    assert code == 0
    version = hermes_wire.VERSION
    assert said.splitlines() == [
        "ok: the settings can be used",
        f"ok: Hermes {version} is well at {scene.hermes.base_url}",
        "ok: Hermes takes the key; its models: hermes-agent",
        f"ok: the hub at ws://127.0.0.1:{port}/bots/v1/stream knows @helper (id 77)",
    ]


def test_the_oldest_hermes_does_not_tell_its_version(scene: Scene) -> None:
    scene.hermes.fail(Fault(status=200, body=b'{"status": "ok"}'), path="/health")
    assert f"ok: Hermes is well at {scene.hermes.base_url}\n" in scene.check()[1]


def test_it_disturbs_nobody_and_leaves_nothing(scene: Scene) -> None:
    state = scene.home / "state"
    state.mkdir()
    lock = state / "donut.lock"
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asked = scene.hub.say(1, "@helper hi")
        threads = threading.active_count()
        code, _ = scene.check(BRIDGE_STATE_DIR=str(state))
    assert code == 0
    (dial,) = scene.hub.dials
    assert (dial.status, dial.last_event_id) == (101, None)
    assert dial.headers["authorization"] == f"Bearer {TOKEN}"
    assert scene.hub.wait(lambda: not scene.hub.streams(), 5), "the stream is still open"
    assert not scene.hub.posted() and not scene.hermes.calls and asked
    assert os.listdir(state) == ["donut.lock"] and os.listdir(scene.home) == ["state"]
    # Those of the stand-ins that still serve a connection may be on their way out.
    assert threading.active_count() <= threads + 3


def test_messages_are_not_answered(scene: Scene) -> None:
    scene.hub.connected = {}
    stop = threading.Event()

    def speak() -> None:
        while not stop.wait(0.01):
            scene.hub.say(1, "@helper hi")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    scene.welcome_within = 0.5
    code, said = scene.check()
    stop.set()
    speaker.join()
    assert code == 1 and "did not say that it is connected (no welcome within 0.5 s)" in said
    assert not scene.hub.posted() and not scene.hermes.calls


def test_a_profile_of_hermes(scene: Scene) -> None:
    assert scene.check(HERMES_BASE_URL=f"{scene.hermes.base_url}/p/work/v1")[0] == 0
    told = scene.problem(HERMES_BASE_URL=f"{scene.hermes.base_url}/p/none")
    assert told.startswith(f"there is no API server of Hermes at {scene.hermes.base_url}/p/none")
    assert "HTTP 404" in told and "HERMES_BASE_URL" in told


def test_a_wrong_key(scene: Scene) -> None:
    told = scene.problem(HERMES_API_KEY="another-key-0123456789")
    assert told.startswith("Hermes refuses HERMES_API_KEY (HTTP 401)\n")
    assert "API_SERVER_KEY" in told


def test_a_hermes_that_is_not_there(scene: Scene) -> None:
    scene.hermes.stop()
    told = scene.problem()
    assert told.startswith("Hermes cannot be asked: 127.0.0.1:")
    assert "Connection refused" in told and "API_SERVER_ENABLED" in told
    scene.hermes.start()
    assert scene.check()[0] == 0


def test_a_hermes_that_does_not_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LIMIT", 0.3)
    scene.hermes.fail(Fault(hang=True), path="/health")
    assert scene.problem().startswith("Hermes cannot be asked: 127.0.0.1:")
    scene.hermes.fail(Fault(drip=0.05), path="/v1/models")
    assert "no whole answer within 0.3 s" in scene.problem()


STRANGE = {
    "no JSON": (Fault(status=200, body=b"<html>"), "something else than Hermes answers at"),
    "another": (Fault(status=200, body=b'{"status": "up"}'), "something else than Hermes"),
    "a list": (Fault(status=200, body=b"[]"), "something else than Hermes answers at"),
    "deep": (Fault(status=200, body=b"[" * 100_000), "something else than Hermes answers at"),
    "redirect": (Fault(status=302, headers={"Location": "http://h/"}), "there is no API server"),
    "method": (Fault(status=405), "there is no API server of Hermes at"),
    "draining": (Fault(status=503), "answers with HTTP 503"),
    "broken": (Fault(status=500), "answers with HTTP 500"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_answers_to_the_question_for_health(scene: Scene, name: str) -> None:
    fault, told = STRANGE[name]
    scene.hermes.fail(fault, path="/health")
    assert told in scene.problem()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": 7}', b'{"data": "ab"}', b'{"data": [1]}'])
def test_strange_lists_of_models(scene: Scene, body: bytes) -> None:
    scene.hermes.fail(Fault(status=200, body=body), path="/v1/models")
    assert "Hermes takes the key; its models: none\n" in scene.check()[1]


def test_what_peers_say_is_made_fit_for_a_terminal(scene: Scene) -> None:
    body = b'{"data": [{"id": "a\\u001b[31m' + b"x" * 500 + b'"}, {"id": null}]}'
    scene.hermes.fail(Fault(status=200, body=body), path="/v1/models")
    scene.hub.connected = {"type": "connected", "bot": {"id": 7, "username": "he\x1blp\u202eer"}}
    _, said = scene.check()
    assert "\x1b" not in said and "\u202e" not in said
    assert max(map(len, said.splitlines())) < 200


def test_a_wrong_token(scene: Scene) -> None:
    scene.hub.token = "donutbot_other"
    told = scene.problem()
    assert told.startswith("the hub refuses DONUT_BOT_TOKEN (upgrade: answered with HTTP 401)")
    scene.hub.token = TOKEN
    scene.hub.connected = {}
    closer = threading.Thread(target=close_soon, args=(scene.hub, 4001), daemon=True)
    closer.start()
    assert "refuses DONUT_BOT_TOKEN (closed by the peer with 4001)" in scene.problem()
    closer.join()


def close_soon(hub: DonutHub, code: int) -> None:
    hub.wait(hub.streams, 10)
    hub.close_streams(code)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (404, "there is no stream for bots at"),
        (302, "there is no stream for bots at"),
        (200, "there is no stream for bots at"),
        (503, "did not say that it is connected"),
        (429, "did not say that it is connected"),
    ],
)
def test_a_hub_that_answers_something_else(scene: Scene, status: int, told: str) -> None:
    scene.hub.refuse(status, {"Location": scene.hub.stream_url, "Retry-After": "100"})
    problem = scene.problem()
    assert told in problem and f"HTTP {status}" in problem and "DONUT_STREAM_URL" in problem
    # One try is all there is.
    assert len(scene.hub.dials) == 1


def test_a_hub_that_is_not_there(scene: Scene) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{sock.getsockname()[1]}/stream?x=hush"
        told = scene.problem(DONUT_STREAM_URL=url)
    assert told.startswith(f"the hub cannot be reached at {url.partition('?')[0]}: ")
    assert "Connection refused" in told and "BRIDGE_PROXY" in told


def test_everything_is_wrong(scene: Scene) -> None:
    scene.hub.token = "donutbot_other"
    code, said = scene.check(HERMES_API_KEY="another-key-0123456789")
    assert (code, said.count("problem: ")) == (1, 2)
