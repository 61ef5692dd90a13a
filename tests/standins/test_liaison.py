"""The brain that follows the skill's text."""

import json

import pytest

from hermes_bridges.standins.liaison import Liaison, read_recipe
from hermes_bridges.standins.model_api import Reply, Request, Said
from hermes_bridges.telegram import skilltree

QID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
SKILL = skilltree.packaged(skilltree.LIAISON)["SKILL.md"].decode()
TOOLS = frozenset({"skill_view", "terminal", "write_file"})
VIEW = Said("tool", json.dumps({"success": True, "content": SKILL}))
TIME = Said("tool", json.dumps({"output": "2026-11-30T14:00:00Z", "exit_code": 0}))
DONE = Said("tool", "{}")


def say(*messages: Said, tools: frozenset[str] = TOOLS) -> Reply:
    return Liaison("pat")(Request(messages, tools))


def human(text: str, quoted: str | None = None) -> Said:
    head = "" if quoted is None else f'[Replying to: "{quoted}"]\n\n'
    return Said("user", head + text)


ASKED = human(' yes, "now"\n', f"❓ [HUB-Q:{QID}] Deploy?")


def test_step_by_step() -> None:
    assert say(ASKED) == Reply("", "skill_view", {"name": "hub-liaison"})
    first = say(ASKED, VIEW)
    assert first.tool == "terminal" and str(first.arguments["command"]).startswith("mkdir ")
    written = say(ASKED, VIEW, TIME)
    assert written.tool == "write_file"
    path = f"~/.pi/coms/hermes-bridge/questions/.{QID}.answer.json.tmp"
    assert written.arguments["path"] == path
    assert json.loads(str(written.arguments["content"])) == {
        "qid": QID,
        "answer": 'yes, "now"',
        "answered_by": "telegram:pat",
        "at": "2026-11-30T14:00:00Z",
    }
    last = say(ASKED, VIEW, TIME, DONE)
    assert last.arguments["command"] == f"mv {path} {path.replace('/.0', '/0')[:-4]}"
    assert say(ASKED, VIEW, TIME, DONE, DONE) == Reply('Passed on: yes, "now"')


def test_notes_of_the_system_are_no_part_of_the_answer() -> None:
    note = "\n\n[System note: This is the user's very first message ever.]"
    asked = human(f"HUB-Q:{QID}: 2{note}")
    written = say(asked, VIEW, TIME)
    assert json.loads(str(written.arguments["content"]))["answer"] == "2"


def test_a_skill_that_was_read_before_is_known() -> None:
    again = Said("tool", json.dumps({"success": True, "dedup": True}))
    odd = Said("tool", "no JSON")
    second = say(ASKED, VIEW, TIME, DONE, DONE, Said("assistant", "ok"), odd, ASKED, again)
    assert second.tool == "terminal"


def test_what_is_no_answer_is_asked_about() -> None:
    assert say(human("hello")).tool is None
    assert "id" in say(human("x", "❓ [HUB-Q:short] ?")).text


def test_what_cannot_be_followed_is_told() -> None:
    other = Said("tool", json.dumps({"content": "# another skill"}))
    assert "cannot be followed" in say(ASKED, other).text
    assert "There is no time" in say(ASKED, VIEW, DONE).text
    assert "no tool skill_view" in say(ASKED, tools=frozenset({"terminal"})).text


def test_a_recipe_must_be_whole() -> None:
    assert read_recipe(SKILL).finish.startswith("mv ")
    for text in ("", SKILL.replace("```json", "```"), SKILL.replace(".tmp`:", "`:")):
        with pytest.raises(ValueError, match="does not show the steps"):
            read_recipe(text)
