"""What the frames of a Wishee connector must look like, one by one (contract, sections 1 to 3).

Each function returns what is wrong, a text each; nothing that a frame says is in them.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]
Fields = Mapping[str, Check]
_NOTHING: Fields = {}

MAIN = "agent:main:main"  # the session of a request that names none
RUN = re.compile(r"run-[0-9a-f]{32}")
WISHEE_KEY = re.compile(r"agent:[^:]+:wishee:.+", re.DOTALL)
_TURN_ID = re.compile(r".+:\d+|run-[0-9a-f]{32}", re.DOTALL)
_MESSAGE_ID = re.compile(r".+:(\d+|steer\d*)|run-[0-9a-f]{32}:(user\d*|\d+|result)", re.DOTALL)
_ACTIVITY_ID = re.compile(r"hermes(-backfill)?:.+:\d+", re.DOTALL)
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_SECRET = re.compile(r"[0-9a-f]{64}")
LIST_LIMIT = 60
ACTIVITY_LIMIT = 200


def text(value: object) -> bool:
    return isinstance(value, str)


def filled(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def flag(value: object) -> bool:
    return type(value) is bool


def whole(value: object) -> bool:
    return isinstance(value, int) and not flag(value) and value >= 0


def amount(value: object) -> bool:
    return whole(value) or (isinstance(value, float) and value >= 0)


def stamp(value: object) -> bool:
    """Milliseconds since 1970: a number of seconds is far too small."""
    return isinstance(value, int) and not flag(value) and 10**12 <= value < 10**14


def like(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def anything(value: object) -> bool:
    return True


def items(value: object) -> bool:
    return isinstance(value, list)


def differences(what: str, value: object, needed: Fields, optional: Fields = _NOTHING) -> list[str]:
    """How an object differs from one with exactly these fields, each of them right."""
    if not isinstance(value, dict):
        return [f"{what} is no object"]
    known = {**needed, **optional}
    faults = [f"{what} lacks {name}" for name in needed if name not in value]
    faults += [f"{what} has {name}" for name in value if name not in known]
    faults += [
        f"{what}: {name} is wrong ({type(value[name]).__name__})"
        for name, check in known.items()
        if name in value and not check(value[name])
    ]
    return faults


def parse(raw: bytes) -> tuple[Any, list[str]]:
    """The JSON value of a text message. It must be an object, and all of it valid."""
    faults: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            faults.append("a field is there twice")
        return found

    def no_constant(name: str) -> None:
        faults.append(f"{name} is no JSON")

    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None, ["a message that is no JSON in UTF-8"]
    if not isinstance(value, dict):
        faults.append("a message that is no object")
    if raw != raw.strip():
        faults.append("white space around the object")
    if b"\\ud" in raw.lower() and not _is_encodable(value):
        faults.append("half a surrogate pair")
    return value, faults


def _is_encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


_HELLO: Fields = {
    "type": one_of("hello"),
    "agentId": like(_UUID4),
    "secret": like(_SECRET),
    "agentType": one_of("hermes"),
    "version": filled,
}


def hello(frame: object) -> list[str]:
    """The first frame: exactly these five fields (section 1)."""
    return differences("hello", frame, _HELLO)


def answer(frame: dict[str, Any]) -> list[str]:
    """A res, whatever it answers (section 1)."""
    more: Fields = {"payload": anything} if frame.get("ok") is True else {"error": anything}
    faults = differences("res", frame, {"type": text, "id": anything, "ok": flag, **more})
    if not faults and "error" in frame:
        faults += differences("error", frame["error"], {"message": text})
    return faults


def reply(method: str, params: Mapping[str, Any], payload: object) -> list[str]:
    """The payload of a res to this request (section 2)."""
    judge = _REPLIES.get(method)
    if judge is None:
        return [f"{method} is unknown, and was answered"]
    return judge(params, payload)


def _run(params: Mapping[str, Any], payload: object) -> list[str]:
    return differences("the payload", payload, {"runId": like(RUN)})


def _messages(params: Mapping[str, Any], payload: Any) -> list[str]:
    faults = differences("the payload", payload, {"messages": items})
    if faults:
        return faults
    rows = payload["messages"]
    for row in rows:
        faults += differences("a message", row, _MESSAGE, {"ts": stamp})
    return faults + _too_many(params, rows) + _unordered("messages", rows, "ts")


def _turns(params: Mapping[str, Any], payload: Any) -> list[str]:
    faults = differences("the payload", payload, {"turns": items})
    if faults:
        return faults
    turns = payload["turns"]
    for turn in turns:
        wrong = differences("a turn", turn, {"id": like(_TURN_ID), "messages": items}, _TURN)
        if not wrong:
            for row in turn["messages"]:
                wrong += differences("a message", row, _TURN_MESSAGE, {"ts": stamp})
            if turn.get("status") == "inProgress" and "completedAt" in turn:
                wrong.append("a turn in progress has completedAt")
            if turn.get("status") != "failed" and "errorMessage" in turn:
                wrong.append("a turn that has not failed has errorMessage")
        faults += wrong
    if not faults:
        for ids in (
            [turn["id"] for turn in turns],
            [row["id"] for turn in turns for row in turn["messages"]],
        ):
            if len(ids) > len(set(ids)):
                faults.append("an id is there twice")
    return faults + _too_many(params, turns) + _unordered("turns", turns, "startedAt")


def _sessions(params: Mapping[str, Any], payload: Any) -> list[str]:
    faults = differences("the payload", payload, {"sessions": items})
    if faults:
        return faults
    found = payload["sessions"]
    for one in found:
        wrong = differences("a session", one, _SESSION, _SESSION_MORE)
        if not wrong and ("usedTokens" in one) != ("contextWindow" in one):
            wrong.append("a session has only one of usedTokens and contextWindow")
        if not wrong and one["addressable"] != bool(WISHEE_KEY.fullmatch(one["sessionKey"])):
            wrong.append("addressable does not go with the key")
        faults += wrong
    if len(found) > LIST_LIMIT:
        faults.append(f"{len(found)} sessions")
    if not faults and len({one["sessionKey"] for one in found}) < len(found):
        faults.append("a session is there twice")
    return faults + _unordered("sessions", found[::-1], "lastActiveAt")


def _reset(params: Mapping[str, Any], payload: Any) -> list[str]:
    if isinstance(payload, dict) and payload.get("ok") is False:
        return differences("the payload", payload, {"ok": flag, "error": filled})
    return _done(params, payload)


def _done(params: Mapping[str, Any], payload: object) -> list[str]:
    return differences("the payload", payload, {"ok": lambda value: value is True})


def _too_many(params: Mapping[str, Any], rows: list[Any]) -> list[str]:
    limit = params.get("limit", 20)
    most = limit if whole(limit) and 1 <= limit <= 200 else 200
    return [f"{len(rows)} with a limit of {most}"] if len(rows) > most else []


def _unordered(what: str, rows: list[Any], field: str) -> list[str]:
    """Oldest first, as far as they tell: rows written together may be stamped out of order."""
    stamps = [row[field] for row in rows if isinstance(row, dict) and stamp(row.get(field))]
    return [f"{what} in the wrong order"] if stamps and stamps[0] > stamps[-1] else []


_MESSAGE: Fields = {"role": one_of("user", "assistant"), "content": text}
_TURN_MESSAGE: Fields = {**_MESSAGE, "id": like(_MESSAGE_ID)}
_TURN: Fields = {
    "status": one_of("inProgress", "completed", "failed"),
    "startedAt": stamp,
    "completedAt": stamp,
    "errorMessage": filled,
}
_SESSION: Fields = {"sessionKey": filled, "working": flag, "addressable": flag}
_SESSION_MORE: Fields = {
    "title": text,
    "model": text,
    "lastActiveAt": stamp,
    "messageCount": whole,
    "usedTokens": whole,
    "contextWindow": whole,
}
_REPLIES: Mapping[str, Callable[[Mapping[str, Any], Any], list[str]]] = {
    "chat.send": _run,
    "chat.history": _messages,
    "chat.turns": _turns,
    "sessions.list": _sessions,
    "sessions.reset": _reset,
    "approval.respond": _done,
}
METHODS = frozenset(_REPLIES)


def bad_parameter(method: str, params: Mapping[str, Any]) -> str | None:
    """A parameter that must be refused by its name, if there is one (section 10, Validation)."""
    if method not in ("chat.send", "chat.history", "chat.turns", "sessions.reset"):
        return None
    limits = {"sessionKey": 256, "key": 256, "message": 256 * 1024}
    for name, most in limits.items():
        value = params.get(name)
        if name in _PARAMETERS[method] and value is not None:
            if not isinstance(value, str) or "\0" in value:
                return name
            if len(value.encode(errors="replace")) > most:
                return name
    if method == "chat.send" and not params.get("message"):
        return "message"
    limit = params.get("limit")
    if "limit" in _PARAMETERS[method] and limit is not None:
        return None if isinstance(limit, int | float) and not flag(limit) else "limit"
    return None


_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "chat.send": ("sessionKey", "message"),
    "chat.history": ("sessionKey", "limit"),
    "chat.turns": ("sessionKey", "limit"),
    "sessions.reset": ("sessionKey", "key"),
}


_CARD: Fields = {
    "approvalId": filled,
    "agentId": like(_UUID4),
    "taskId": lambda value: value == "" or like(RUN)(value),
    "session": filled,
    "kind": one_of("user_input", "command"),
    "title": filled,
    "rawParams": text,
    "inputSpec": text,
    "ts": stamp,
}
_EVENTS: Mapping[str, Fields] = {
    "task-result": {"runId": like(RUN), "sessionKey": text, "text": text},
    "agent-progress": {
        "sessionKey": text,
        "itemId": like(re.compile(r"run-[0-9a-f]{32}:\d+")),
        "ts": stamp,
    },
    "approval-request": _CARD,
    "approval-resolved": {
        "approvalId": filled,
        "outcome": one_of("approved", "denied", "canceled"),
        "ts": stamp,
    },
    "agent-usage": {
        **dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), whole),
        "costUsd": amount,
        "model": text,
        "ts": stamp,
    },
    "agent-context": {
        "sessionKey": text,
        "usedTokens": whole,
        "contextWindow": whole,
        "ts": stamp,
    },
    "agent-activity": {"runs": items},
}
_ACTIVITY: Fields = {
    "runId": like(_ACTIVITY_ID),
    "sessionKey": filled,
    "startedAt": stamp,
    "endedAt": stamp,
    "source": one_of("bridge", "local"),
}


def event(frame: dict[str, Any]) -> list[str]:
    """An event, with its payload (section 3)."""
    faults = differences("event", frame, {"type": text, "event": text, "payload": anything})
    if faults:
        return faults
    name, payload = frame["event"], frame["payload"]
    if name not in _EVENTS:
        return [f"an event {name[:40]!r} does not exist"]
    faults = differences(name, payload, _EVENTS[name])
    if name == "agent-activity" and not faults:
        if len(payload["runs"]) > ACTIVITY_LIMIT:
            faults.append(f"{len(payload['runs'])} runs in one agent-activity")
        for run in payload["runs"]:
            wrong = differences("a run", run, _ACTIVITY)
            if not wrong and run["endedAt"] < run["startedAt"]:
                wrong.append("a run ends before it starts")
            faults += wrong
    return faults
