"""The turns of the Wishee connector, in a real gateway of every version.

One gateway for all tests of a version; each test has a session of its own where it can. The last
ones end that gateway and start it anew.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from tests import hermes_versions
from tests.gateway.wishee_install import Installed
from tests.gateway.wishee_site import ANSWERED_WITHIN, WisheeSite
from tests.harness.daemon import wait

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

OLDEST = "0.14.0"
QUIET = 1.0  # seconds in which something that must not come would have come
_sessions = count(1)
# What runs in the gateway and sends on its own, as cron and background processes do.
_HOOK = """
import json, pathlib, sys

async def handle(event_type, context):
    place = pathlib.Path(__file__).with_name("send.json")
    if not place.exists():
        return
    chat = json.loads(place.read_text())["chat"]
    place.unlink()
    runner = sys.modules["gateway.run"]._gateway_runner_ref()
    (adapter,) = [a for p, a in runner.adapters.items() if p.value == "wishee"]
    sent = await adapter.send(chat, "news that nobody waits for", metadata={"notify": True})
    answer = json.dumps({"success": sent.success, "error": sent.error})
    place.with_name("sent.json").write_text(answer)
"""


class Scene:
    """A site, and the run whose message came in the first moments after the start."""

    def __init__(self, site: WisheeSite) -> None:
        self.site = site
        self.bridge = site.bridge
        self.brain = site.brain
        self.first = self.bridge.send("the first words")

    @property
    def is_oldest(self) -> bool:
        return self.site.version == OLDEST

    def key(self) -> tuple[str, str]:
        """A new session: its short key, and the stored one."""
        key = f"device:{next(_sessions)}"
        return key, f"agent:main:wishee:dm:{key}"

    def hold(self, name: str, key: str) -> str:
        """A turn that goes on until it is released; its runId."""
        run_id = self.bridge.send(f"[[hold {name}]] a long one", key)
        wait(lambda: self.brain.holds(name), ANSWERED_WITHIN, f"a turn that holds {name}")
        return run_id

    def is_alone(self, run_id: str) -> bool:
        """Whether there is one result of it, now and a little later."""
        time.sleep(QUIET)
        return len(self.bridge.results(run_id)) == 1

    def reconnected(self, act: Callable[[], object]) -> int:
        """Do what costs the connection, and wait for the next one; its number."""
        before = len(self.bridge.connections)
        act()
        self.site.connected(before)
        return self.bridge.connections[-1].number


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(version, marks=pytest.mark.xdist_group(f"hermes-{version}"))
        for version in hermes_versions.REQUIREMENTS
    ],
)
def scene(request: pytest.FixtureRequest, wishee_installed: Installed) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="hb-", ignore_cleanup_errors=True) as root:
        site = WisheeSite(request.param, Path(root), wishee_installed)
        hook = site.root / "hooks" / "outsider"
        hook.mkdir(parents=True)
        (hook / "HOOK.yaml").write_text("name: outsider\nevents: [agent:end]\n")
        (hook / "handler.py").write_text(_HOOK)
        with site:
            yield Scene(site)


@pytest.fixture(autouse=True)
def no_violation(scene: Scene) -> Iterator[None]:
    yield
    assert scene.bridge.violations == []


def test_W4_a_message_in_the_first_moments_is_answered(scene: Scene):
    result = scene.bridge.result(scene.first, ANSWERED_WITHIN)
    assert result is not None and result.startswith("heard: the first words")
    assert scene.is_alone(scene.first)


def test_a_message_is_answered_once_and_in_order(scene: Scene):
    key, stored = scene.key()
    assert scene.site.ask("one", key) == "heard: one"
    assert scene.site.ask("two", stored) == "heard: two"
    texts = [one.text for one in scene.site.model.requests[-1].messages]
    assert any("heard: one" in text for text in texts), "it is one session"
    results = scene.bridge.of("task-result")[-2:]
    assert [e.payload["sessionKey"] for e in results] == [key, stored], "as the bridge named it"


def test_sessions_go_on_at_the_same_time(scene: Scene):
    key, _ = scene.key()
    long = scene.hold("beside", key)
    try:
        assert scene.site.ask("meanwhile", scene.key()[0]) == "heard: meanwhile"
        assert not scene.bridge.results(long)
    finally:
        scene.brain.release("beside")
    assert scene.bridge.result(long, ANSWERED_WITHIN) == "heard: [[hold beside]] a long one"


@pytest.mark.parametrize("form", ["short", "stored"])
def test_W11_a_second_message_is_taken_into_the_run_in_either_form_of_the_key(
    scene: Scene, form: str
):
    keys = dict(zip(("short", "stored"), scene.key(), strict=True))
    first = scene.hold(f"second-{form}", keys["short"])
    second = scene.bridge.send("never mind, do this", keys[form])
    assert second != first
    time.sleep(QUIET)
    scene.brain.release(f"second-{form}")
    text = scene.bridge.result(first, ANSWERED_WITHIN)
    assert text is not None and text.endswith("never mind, do this")
    assert scene.is_alone(first) and not scene.bridge.results(second)


def test_W10_W12_a_reset_begins_a_new_session(scene: Scene):
    key, stored = scene.key()
    scene.site.ask("remember this", key)
    for name, one in (("key", key), ("sessionKey", stored)):
        found = scene.bridge.request("sessions.reset", {name: one}).result(ANSWERED_WITHIN)
        assert found.payload == {"ok": True}
    assert scene.site.ask("what was it", key) == "heard: what was it"
    texts = [one.text for one in scene.site.model.requests[-1].messages]
    assert not any("remember this" in text for text in texts)


def test_a_reset_ends_the_run_that_goes_on(scene: Scene):
    key, stored = scene.key()
    run_id = scene.hold("reset", key)
    found = scene.bridge.request("sessions.reset", {"key": stored}).result(ANSWERED_WITHIN)
    assert found.payload == {"ok": True}
    try:
        assert scene.bridge.result(run_id, 10) == ""
    finally:
        scene.brain.release("reset")
    assert scene.site.ask("anew", key) == "heard: anew"
    assert scene.is_alone(run_id)


def test_the_session_of_another_platform_is_not_written_to(scene: Scene):
    key = "agent:main:telegram:dm:123"
    for method, name in (("chat.send", "sessionKey"), ("sessions.reset", "key")):
        asked = {name: key, "message": "hello"}
        found = scene.bridge.request(method, asked).result(ANSWERED_WITHIN)
        assert not found.ok and found.error is not None and "another platform" in found.error


def test_cards_are_not_there_yet_and_this_is_said(scene: Scene):
    asked = {"approvalId": "x", "decision": "approve"}
    found = scene.bridge.request("approval.respond", asked).result(ANSWERED_WITHIN)
    assert not found.ok and found.error is not None and "cards" in found.error


def test_W5_what_no_run_waits_for_fails_and_is_nobodys_result(scene: Scene):
    hook = scene.site.root / "hooks" / "outsider"

    def sent(text: str, key: str, chat: str) -> tuple[dict[str, Any], str]:
        (hook / "send.json").write_text(json.dumps({"chat": chat}))
        result = scene.site.ask(text, key)
        wait((hook / "sent.json").exists, 10, "the hook has sent")
        wait(lambda: (hook / "sent.json").read_text() != "", 10, "all of it")
        answer: dict[str, Any] = json.loads((hook / "sent.json").read_text())
        (hook / "sent.json").unlink()
        return answer, result

    key, _ = scene.key()
    answer, result = sent("to elsewhere", key, "elsewhere")
    assert answer["success"] is False and "no run" in answer["error"]
    assert result == "heard: to elsewhere"
    # Its own chat is another matter; what the turn returns comes first all the same.
    answer, result = sent("to itself", key, key)
    assert answer["success"] is True and result == "heard: to itself"


def test_W2_turns_before_during_and_after_a_cut(scene: Scene):
    key, _ = scene.key()
    run_id = scene.hold("cut", key)
    number = scene.reconnected(scene.bridge.cut)
    assert not scene.bridge.results(run_id)
    scene.brain.release("cut")
    assert scene.bridge.result(run_id, ANSWERED_WITHIN) == "heard: [[hold cut]] a long one"
    assert scene.bridge.results(run_id)[0].conn == number
    outbox = scene.site.directory / "outbox.jsonl"
    wait(lambda: f'"done":"{run_id}"' in outbox.read_text(), 10, "it is confirmed")
    scene.reconnected(scene.bridge.cut)
    assert scene.site.ask("after it", key) == "heard: after it"
    assert len(scene.bridge.results(run_id)) == 1


def test_W1_a_result_of_a_time_without_the_bridge_comes_first(scene: Scene):
    key, _ = scene.key()
    run_id = scene.hold("down", key)
    before = len(scene.bridge.connections)
    scene.bridge.stop_listening()
    scene.brain.release("down")
    outbox = scene.site.directory / "outbox.jsonl"
    wait(lambda: run_id in outbox.read_text(), ANSWERED_WITHIN, "the result is kept")
    scene.bridge.start_listening()
    scene.site.connected(before)
    assert scene.bridge.result(run_id, 10) == "heard: [[hold down]] a long one"
    assert scene.is_alone(run_id)


def test_W1_a_result_that_was_not_confirmed_comes_again(scene: Scene):
    key, _ = scene.key()
    scene.bridge.mute_pongs()
    run_id = scene.bridge.send("unconfirmed", key)
    assert scene.bridge.result(run_id, ANSWERED_WITHIN) == "heard: unconfirmed"
    number = scene.reconnected(scene.bridge.cut)
    found = wait(lambda: len(scene.bridge.results(run_id)) == 2, 10, "it comes again")
    assert found and scene.bridge.results(run_id)[1].conn == number


def test_W3_SIGKILL_in_a_turn(scene: Scene):
    key, _ = scene.key()
    run_id = scene.hold("kill", key)
    before = len(scene.bridge.connections)
    scene.site.kill()
    scene.brain.release("kill")
    scene.site.start()
    assert len(scene.bridge.connections) > before
    result = scene.bridge.result(run_id, ANSWERED_WITHIN)
    # Hermes takes the turn up; what it then tells the model is its own affair.
    assert result is not None and result.startswith("heard: ")
    assert scene.is_alone(run_id)
    assert scene.site.ask("after that", key).endswith("after that")


def test_W3_SIGTERM_in_a_turn(scene: Scene):
    key, _ = scene.key()
    run_id = scene.hold("term", key)
    timer = threading.Timer(3.0, scene.brain.release, ["term"])
    timer.start()
    scene.site.stop(SIGTERM)
    timer.join()
    if scene.is_oldest:
        # It waits for its turns.
        assert scene.bridge.result(run_id, 1) == "heard: [[hold term]] a long one"
    else:
        assert not scene.bridge.results(run_id), "nor is a notice of the stop its result"
    scene.site.start()
    assert scene.bridge.result(run_id, ANSWERED_WITHIN)
    assert scene.is_alone(run_id)


def test_W1_a_result_survives_SIGKILL(scene: Scene):
    key, _ = scene.key()
    run_id = scene.hold("kept", key)
    scene.bridge.stop_listening()
    scene.brain.release("kept")
    outbox = scene.site.directory / "outbox.jsonl"
    wait(lambda: run_id in outbox.read_text(), ANSWERED_WITHIN, "the result is kept")
    scene.site.kill()
    scene.bridge.start_listening()
    scene.site.start()
    assert scene.bridge.result(run_id, 10) == "heard: [[hold kept]] a long one"
    assert scene.is_alone(run_id)
