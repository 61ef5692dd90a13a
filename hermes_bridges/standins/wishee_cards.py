"""What a card of a Wishee connector must look like (contract, section 5)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from hermes_bridges.standins.wishee_shapes import Fields, differences, filled, flag, one_of, text

OPEN_LIMIT = 64
_TITLE_LIMIT = 400
_UNNAMED = "需要你确认"
_EXEC_ID = re.compile(r"[0-9a-f]{12}")


def is_two(value: object) -> bool:
    return type(value) is int and value == 2


def is_options(value: object) -> bool:
    """A list with something in it, or null: an open question has no empty list."""
    return value is None or (
        isinstance(value, list)
        and bool(value)
        and not any(differences("", one, {"label": filled, "description": text}) for one in value)
    )


_QUESTIONS: Fields = {
    "version": is_two,
    "source": one_of("hermes"),
    "questions": lambda value: isinstance(value, list) and len(value) == 1,
    "isBlocking": lambda value: value is True,
}
_QUESTION: Fields = {
    "id": filled,
    "header": one_of(""),
    "question": text,
    "isOther": lambda value: value is True,
    "isSecret": lambda value: value is False,
    "multiSelect": flag,
    "options": is_options,
}
_COMMAND: Fields = {
    "version": is_two,
    "type": one_of("exec_approval"),
    "source": one_of("hermes"),
    "command": text,
    "description": text,
    "allowSession": flag,
    "allowPermanent": flag,
    "smartDenied": flag,
    "availableDecisions": lambda value: isinstance(value, list),
}


def card(payload: Mapping[str, Any], agent_id: str) -> list[str]:
    """An approval-request whose fields have the right types; what is wrong with it."""
    faults = []
    if payload["agentId"] != agent_id:
        faults.append("a card has the agentId of another")
    if payload["rawParams"] != payload["inputSpec"]:
        faults.append("rawParams is not inputSpec")
    try:
        spec = json.loads(payload["inputSpec"])
    except (ValueError, RecursionError):
        return [*faults, "inputSpec is no JSON"]
    kind = {"user_input": "clarify", "command": "exec"}[payload["kind"]]
    start = f"{agent_id}:{kind}:"
    ending = payload["approvalId"].removeprefix(start)
    if not ending or ending == payload["approvalId"]:
        faults.append("approvalId does not begin with the agentId and the kind")
    if kind == "exec":
        return faults + _exec(payload["title"], ending, spec)
    return faults + _clarify(payload["title"], ending, spec)


def _clarify(title: str, clarify_id: str, spec: Any) -> list[str]:
    faults = differences("inputSpec", spec, _QUESTIONS)
    if not faults:
        (question,) = spec["questions"]
        faults = differences("the question", question, _QUESTION)
        if not faults and question["id"] != clarify_id:
            faults.append("the question has another id than the card")
        if not faults and title != _title(question["question"]):
            faults.append("the title is not the question")
    return faults


def _title(question: str) -> str:
    folded = " ".join(question.split())
    if len(folded) > _TITLE_LIMIT:
        folded = folded[: _TITLE_LIMIT - 1] + "…"
    return folded or _UNNAMED


def _exec(title: str, ending: str, spec: Any) -> list[str]:
    faults = differences("inputSpec", spec, _COMMAND)
    if not _EXEC_ID.fullmatch(ending):
        faults.append("approvalId does not end with twelve hex digits")
    if faults:
        return faults
    offered = ["accept", *(["acceptForSession"] if spec["allowSession"] else []), "decline"]
    if spec["availableDecisions"] != offered:
        faults.append("availableDecisions are not those of allowSession")
    if title != spec["command"]:
        faults.append("the title is not the command")
    return faults
