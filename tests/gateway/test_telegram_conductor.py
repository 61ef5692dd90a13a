"""The hub-conductor skill in a real gateway: its commands, as they stand there, reach a peer."""

import json
import re
import sys
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_gateway import USER
from hermes_bridges.standins.model_api import Reply, Request
from tests.gateway.telegram_site import DONE_WITHIN, TOKENS, Site
from tests.harness.daemon import CHECKOUT, wait

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

REQUEST = "Which \"files\" did `you` change? $(touch /tmp/x) It's 'quoted'.\nBring line numbers."
SHELL = re.compile(r"^```sh\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def conduct(request: Request) -> Reply:
    """Follows the skill: looks who is there, and delegates to the one that is called builder."""
    place = max(i for i, said in enumerate(request.messages) if said.role == "user")
    results = [said.text for said in request.messages[place:] if said.role == "tool"]
    if not results:
        return Reply("", "skill_view", {"name": "hub-conductor"})
    commands = SHELL.findall(json.loads(results[0])["content"])
    values = {"<project>": "default", "<peer>": "builder", "<request>": REQUEST}
    for mark, value in values.items():
        commands = [command.replace(mark, value) for command in commands]
    if len(results) <= len(commands):
        command = commands[len(results) - 1]
        return Reply("", "terminal", {"command": command, "timeout": 100})
    output = json.loads(results[-1])["output"]
    return Reply(f"{results[1].count('builder')} peer; it says: {output}")


def test_the_commands_of_the_skill_reach_a_peer(short_tmp: Path) -> None:
    with Site("0.22.2.post1", short_tmp, conduct) as site:
        site.profile("default")
        words = ("install", "--profile", "default", "--skill", "hub-conductor")
        assert site.controller(*words).code == 0
        client = short_tmp / "b" / "bridge-coms"
        client.write_text(
            f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m hermes_bridges.coms "$@"\n'
        )
        client.chmod(0o755)
        # The terminal tool of the agent has the PATH of a login shell.
        profile = Path(site.host.home) / ".bash_profile"
        profile.write_text(f'PATH="{client.parent}:$PATH"\n')
        site.gateway()
        # The peer is a bridge of that name, and the test is the person behind it.
        peer = site.bridge("--name", "builder", "--to", f"telegram:{USER}")
        site.telegram.say(TOKENS["default"], "Ask the builder what it changed.")
        events = site.scene.home.events
        asked = wait(lambda: events(event="question_received"), DONE_WITHIN, "the peer is asked")
        qid = asked[0]["qid"]
        shown = site.shown(TOKENS["default"], qid)
        assert REQUEST in shown.text
        site.scene.answers.write(qid, "src/a.py:7")
        said = site.telegram.wait(
            lambda one: "it says" in one.text, DONE_WITHIN, after=shown.message_id
        )
        assert said is not None and "1 peer; it says: " in said.text and "src/a.py:7" in said.text
        assert peer.stop() == 0
