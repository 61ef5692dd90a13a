"""The whole loop: a peer's question, the real `hermes send`, a person's reply, the real gateway.

The agent in the gateway is driven by a model that follows the installed skill; the answer file that
it writes goes through the bridge to the peer. Nothing is a stand-in but Telegram, the model, and
Herdr, whose pane is this test.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway import delivered
from tests.gateway.telegram_site import DONE_WITHIN, TOKENS, Site
from tests.harness.daemon import wait
from tests.harness.peers import Question

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

HERDR = """#!{python} -IS
import json, sys
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(words) + "\\n")
answers = {{
    "get": {{"pane": {{"workspace_id": "w1", "cwd": "/"}}}},
    "process-info": {{"process_info": {{"foreground_processes": [{{"argv": ["pi"]}}]}}}},
    "list": {{"panes": []}},
    "split": {{"pane": {{"pane_id": "w1:p2"}}}},
}}
if words[1] in answers:
    print(json.dumps({{"result": answers[words[1]]}}))
"""


def answered(site: Site, question: Question, bot: str, say: Callable[[str], str] | None) -> object:
    """Let the person answer a question in the chat of that bot; what the peer got."""
    message = site.shown(TOKENS[bot], question.qid)
    if say is None:
        site.telegram.say(TOKENS[bot], ' 2 or "both"?\nyou\\decide ', message)
    else:
        site.telegram.say(TOKENS[bot], say(question.qid))
    response = question.wait(DONE_WITHIN)
    assert response["error"] is None
    return response["response"]


@pytest.mark.parametrize("version", delivered.VERSIONS)
def test_an_answer_comes_back_through_the_default_profile(version: str, short_tmp: Path) -> None:
    with Site(version, short_tmp) as site:
        site.profile("default")
        done = site.controller("install", "--profile", "default", "--restart")
        assert done.code == 0 and "nothing starts it here" in done.out
        assert not [call for call in site.calls() if "gateway re" in call or "gateway st" in call]
        site.gateway()

        # The restart is asked for by this call, and is the only one there was.
        done = site.controller("install", "--restart")
        assert done.code == 0 and "noted" in done.out.splitlines()
        restarts = [call for call in site.calls() if "restart" in call]
        assert restarts == ["--profile default gateway restart"]

        herdr, calls = short_tmp / "b" / "herdr", short_tmp / "herdr.calls"
        herdr.write_text(HERDR.format(python=sys.executable, calls=str(calls)))
        herdr.chmod(0o755)
        # One gateway runs, so its profile need not be named; and everything is ready.
        result = site.controller("on", "123", "--json", HERDR_PANE_ID="w1:p1").result
        assert (result["paneId"], result["hermesProfile"]) == ("w1:p2", "default")
        last = json.loads(calls.read_text().splitlines()[-1])
        assert last[:3] == ["pane", "run", "w1:p2"] and len(last) == 4

        bridge = site.bridge_by(last[3])
        peer = site.scene.peers.pi()
        options = [{"title": "Yes", "description": "now"}, "No"]
        question = peer.ask("Deploy now?", options, "All green.")
        got = answered(site, question, "default", None)
        assert got == {"kind": "freeform", "text": '2 or "both"?\nyou\\decide'}
        typed = peer.ask("And later?", options)
        got = answered(site, typed, "default", lambda qid: f"HUB-Q:{qid}: 2")
        assert got == {"kind": "selection", "selections": ["No"]}
        by = {event["detail"]["answered_by"] for event in site.scene.home.events(event="answered")}
        assert by == {"telegram:123"}
        wait(lambda: not site.scene.home.answer_files(), 5, "the answer files are gone")
        assert bridge.stop() == 0


def other_directory(site: Site, mode_of: str) -> str:
    """The profile is not ready, because of where answers land; the directory of the remedy."""
    done = site.controller("status", "--profile", "work", "--json")
    assert done.result["ready"] is False
    there = f"{site.host.path('work')}/home/.pi/coms/hermes-bridge/questions"
    assert done.result["answers"] == {"land": there, "bridge": site.scene.home.questions}
    assert done.problems == (
        f"answers of profile work land in {there} (the home of the profile), but the bridge looks"
        f" in {site.scene.home.questions}"
    )
    assert (
        done.remedies[0] == f"give the bridge --questions-dir {there} (status and on take it too)"
    )
    refused = site.controller("on", "123", "--profile", "work", HERDR_PANE_ID="w1:p1")
    assert refused.code == 1 and f"land in {there}" in refused.err
    return there


def test_a_named_profile_with_a_home_of_its_own(short_tmp: Path) -> None:
    with Site("0.19.0", short_tmp) as site:
        site.profile("default")
        site.profile("work", terminal={"home_mode": "profile"})
        assert site.controller("install", "--profile", "work").code == 0
        site.gateway("work", bots=["work"])
        there = other_directory(site, mode_of="work")

        # With the remedy applied, the answer arrives.
        assert site.controller("status", "--questions-dir", there, "--json").result["ready"] is True
        flags = ("--to", "telegram:123", "--hermes-profile", "work", "--questions-dir", there)
        bridge = site.bridge(*flags)
        question = site.scene.peers.one_shot().ask("Which?")
        assert answered(site, question, "work", lambda qid: f"HUB-Q:{qid}: this one") == {
            "kind": "freeform",
            "text": "this one",
        }
        assert bridge.stop() == 0


@pytest.mark.parametrize("version", ["0.22.2.post1"])
def test_a_named_profile_that_is_served_by_the_gateway_of_another(
    version: str, short_tmp: Path
) -> None:
    with Site(version, short_tmp) as site:
        # The mode of the profile whose gateway it is counts, not the one of the served profile.
        site.profile("default", terminal={"home_mode": "profile"})
        site.profile("work", terminal={"home_mode": "real"})
        assert site.controller("install", "--profile", "work").code == 0
        site.gateway(bots=["work"])
        done = site.controller("status")
        assert done.code == 1 and "found 2 (default, work); pass --profile NAME" in done.err
        there = other_directory(site, mode_of="default")
        done = site.controller("install", "--profile", "work", "--restart")
        assert "warning: one gateway serves default, work" in done.err
        assert [call for call in site.calls() if "restart" in call] == [
            "--profile work gateway restart"
        ]

        flags = ("--to", "telegram:123", "--hermes-profile", "work", "--questions-dir", there)
        bridge = site.bridge(*flags)
        question = site.scene.peers.one_shot().ask("Which?", ["this", "that"])
        assert answered(site, question, "work", lambda qid: f"HUB-Q:{qid}: THAT") == {
            "kind": "selection",
            "selections": ["that"],
        }
        assert bridge.stop() == 0
