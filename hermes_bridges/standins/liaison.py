"""A model that follows the hub-liaison skill to the letter, as far as a program can read it.

It is a brain for ``model_api``. It calls ``skill_view`` when a message looks like an answer, and
then takes the steps that the skill's text shows, in that order: commands, the file and its path
come out of the skill, not out of this module. So an error in the recipe shows as a lost answer.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from hermes_bridges.standins.model_api import Reply, Request, Said
from hermes_bridges.standins.phone import understand

SKILL = "hub-liaison"
_QUOTED = re.compile(r'\[Replying to[^"\n]*"(.*?)"\]\n\n(.*)\Z', re.DOTALL)
_SYSTEM_NOTE = re.compile(r"\n\n\[System note: .*\Z", re.DOTALL)
_FENCED = re.compile(r"^```(sh|json)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_TEMPORARY = re.compile(r"^`(~/\S+\.tmp)`:$", re.MULTILINE)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Recipe(NamedTuple):
    """What the skill says to do: two commands, and between them a file with one line."""

    prepare: str
    path: str
    record: str
    finish: str


def read_recipe(skill: str) -> Recipe:
    """The steps of the skill's text; ValueError when they are not there."""
    blocks = _FENCED.findall(skill)
    path = _TEMPORARY.search(skill)
    if [kind for kind, _ in blocks] != ["sh", "json", "sh"] or path is None:
        raise ValueError("the skill does not show the steps")
    return Recipe(blocks[0][1], path[1], blocks[1][1], blocks[2][1])


class Liaison:
    """The brain. ``user`` is what it takes the person for."""

    def __init__(self, user: str) -> None:
        self._user = user

    def __call__(self, request: Request) -> Reply:
        place = max((i for i, one in enumerate(request.messages) if one.role == "user"), default=0)
        said = request.messages[place].text
        results = [one for one in request.messages[place:] if one.role == "tool"]
        quoted = _QUOTED.search(said)
        text = _SYSTEM_NOTE.sub("", quoted[2] if quoted else said)
        understood = understand(text, quoted[1] if quoted else None)
        if isinstance(understood, str):
            return Reply(understood)
        if not results:
            return self._call(request, "skill_view", name=SKILL)
        return self._follow(request, results, understood.qid, understood.answer)

    def _follow(self, request: Request, results: Sequence[Said], qid: str, answer: str) -> Reply:
        recipe = next(filter(None, map(_recipe_in, reversed(request.messages))), None)
        if recipe is None:
            return Reply(f"The skill cannot be followed: {results[0].text[:300]}")
        if len(results) == 1:
            return self._call(request, "terminal", command=recipe.prepare)
        if len(results) == 2:
            time = _TIME.search(results[1].text)
            if time is None:
                return Reply(f"There is no time: {results[1].text[:300]}")
            fields = json.loads(recipe.record)
            values = {"<qid>": qid, "<answer>": answer, "<time>": time[0]}
            values["telegram:<user>"] = f"telegram:{self._user}"
            record = json.dumps({name: values[value] for name, value in fields.items()})
            path = recipe.path.replace("<qid>", qid)
            return self._call(request, "write_file", path=path, content=record)
        if len(results) == 3:
            return self._call(request, "terminal", command=recipe.finish.replace("<qid>", qid))
        return Reply(f"Passed on: {answer}")

    @staticmethod
    def _call(request: Request, tool: str, **arguments: object) -> Reply:
        if tool not in request.tools:
            return Reply(f"I have no tool {tool}, only: {', '.join(sorted(request.tools))}")
        return Reply("", tool, arguments)


def _recipe_in(said: Said) -> Recipe | None:
    """The recipe in a result of ``skill_view``; a second call in one chat returns no text again."""
    if said.role != "tool":
        return None
    try:
        return read_recipe(str(json.loads(said.text)["content"]))
    except (LookupError, TypeError, ValueError):
        return None
