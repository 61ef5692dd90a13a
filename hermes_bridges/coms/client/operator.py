"""The way out when the chat is down: questions, and answer (contract section 9)."""

import contextlib
import os
import pwd
import re
from collections.abc import Mapping
from typing import NamedTuple

from hermes_bridges.coms.client.args import Arguments, UsageError
from hermes_bridges.coms.client.loop import Loop
from hermes_bridges.coms.client.scope import (
    DEFAULT_TIMEOUT_MS,
    bridge_dir,
    message_id,
    stamp,
    wall_now,
)
from hermes_bridges.coms.client.terminal import complain, one_line, pretty, read_text, say
from hermes_bridges.coms.envelope import is_ulid
from hermes_bridges.coms.inquiry import OPEN_STATES
from hermes_bridges.coms.jsrules import stringify, trim
from hermes_bridges.coms.records import RECORD_MAX, NewerVersion, decode
from hermes_bridges.coms.registry import valid_project
from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused

_TITLES = ("qid", "age", "project", "peer", "delivered")
# Some time in the year 5138: what is later is no time, and may be too large to count with.
_MOMENT_MAX = 1e11
_ANSWERED_BY = re.compile(r"telegram:\S+")


class Open(NamedTuple):
    """A question that waits for an answer; ``received_at`` is in seconds since 1970."""

    qid: str
    project: str
    peer: str
    delivered: bool
    received_at: float
    text: str
    options: tuple[str, ...]
    answer_waits: bool


def questions(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Print the open questions, the oldest first."""
    project = arguments.value("--project")
    if project is not None and not valid_project(project):
        raise UsageError(f'--project: invalid project name "{project}"')
    found, unread = _open_questions(environ, _directory(arguments, environ))
    found = [item for item in found if project in (None, item.project)]
    now = wall_now()
    if arguments.has("--json"):
        say(pretty([_as_json(item, now, arguments.has("--show")) for item in found]))
    elif found:
        say(_table(found, now, arguments.has("--show")))
    else:
        say("(no open questions)")
    if unread:
        complain(f"{unread} record(s) in {_pending(environ)} could not be read")
    return 0


def answer(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Write an answer file, as the skill does."""
    qid, *words = arguments.operands
    message_id(qid, "qid")
    by = arguments.value("--as")
    if by is not None and not _ANSWERED_BY.fullmatch(by):
        raise UsageError(f'--as: "{by}" does not look like telegram:<user>')
    directory = _directory(arguments, environ)
    text = trim(read_text(loop, words, DEFAULT_TIMEOUT_MS / 1000))
    if not text:
        raise UsageError("the text is empty")
    path = os.path.join(directory, f"{qid}.answer.json")
    if not arguments.has("--force"):
        _check_open(qid, path, environ)
    fields: dict[str, object] = {
        "qid": qid,
        "answer": text,
        "answered_by": by or f"console:{_login()}",
        "at": stamp(),
    }
    files.private_dir(directory)
    files.write_atomic(path, stringify(fields).encode())
    say(f"answered {qid}")
    return 0


def _check_open(qid: str, path: str, environ: Mapping[str, str]) -> None:
    record = _read(qid, os.path.join(_pending(environ), f"{qid}.json"))
    if record is None or record.get("state") not in OPEN_STATES:
        raise BridgeError(f"no open question {qid} (--force writes the answer all the same)")
    if os.path.lexists(path):
        raise BridgeError(f"an answer to {qid} is there and waits (--force replaces it)")


def _open_questions(environ: Mapping[str, str], answers: str) -> tuple[list[Open], int]:
    """The open ones by age, and how many records could not be read."""
    pending = _pending(environ)
    try:
        names = os.listdir(pending)
    except FileNotFoundError:
        return [], 0
    found, unread = [], 0
    for name in names:
        qid, _, ending = name.partition(".")
        if ending != "json" or not is_ulid(qid):
            continue
        try:
            record = _read(qid, os.path.join(pending, name))
        except BridgeError:
            unread += 1
            continue
        if record is not None and record.get("state") in OPEN_STATES:
            waits = os.path.lexists(os.path.join(answers, f"{qid}.answer.json"))
            found.append(_shown(qid, record, waits))
    return sorted(found, key=lambda item: (item.received_at, item.qid)), unread


def _read(qid: str, path: str) -> dict[str, object] | None:
    """A record, None when there is none. Raises BridgeError."""
    try:
        return decode(qid, files.read_capped(path, RECORD_MAX)).body
    except FileNotFoundError:
        return None
    except (OSError, FileRefused) as error:
        raise BridgeError(f"the record cannot be read: {error}") from None
    except NewerVersion:
        raise BridgeError(f"{path} is a record of a later release") from None
    except ValueError as error:
        raise BridgeError(f"{path} is damaged: {error}") from None


def _shown(qid: str, record: Mapping[str, object], answer_waits: bool) -> Open:
    sender, owner = _object(record, "envelope"), _object(record, "owner")
    titles = record.get("options")
    return Open(
        qid=qid,
        project=_text(owner, "project"),
        peer=_text(sender, "sender_name"),
        delivered=record.get("state") == "delivered",
        received_at=_moment(record.get("received_at")),
        text=_text(record, "text") or _text(sender, "prompt"),
        options=tuple(t for t in titles if isinstance(t, str)) if isinstance(titles, list) else (),
        answer_waits=answer_waits,
    )


def _as_json(item: Open, now: float, show: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "qid": item.qid,
        "age_s": round(max(0.0, now - item.received_at), 1),
        "project": item.project,
        "peer": item.peer,
        "delivered": item.delivered,
        "answer_waits": item.answer_waits,
    }
    if show:
        fields.update(text=item.text, options=list(item.options))
    return fields


def _table(found: list[Open], now: float, show: bool) -> str:
    rows = [_TITLES, *(_row(item, now) for item in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
        if show and number:
            lines += _body(found[number - 1])
    return "\n".join(lines)


def _row(item: Open, now: float) -> tuple[str, ...]:
    delivered = "yes" if item.delivered else "no"
    project, peer = one_line(item.project) or "-", one_line(item.peer) or "-"
    return item.qid, _age(now - item.received_at), project, peer, delivered


def _body(item: Open) -> list[str]:
    lines = item.text.split("\n") if item.text else []
    if not item.text:
        lines = [f"{n}. {one_line(title)}" for n, title in enumerate(item.options, 1)]
    if item.answer_waits:
        lines.append("(an answer was given and waits to be taken)")
    return ["", *(f"    {line}".rstrip() for line in lines), ""]


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _pending(environ: Mapping[str, str]) -> str:
    return os.path.join(bridge_dir(environ), "pending")


def _directory(arguments: Arguments, environ: Mapping[str, str]) -> str:
    given = arguments.value("--questions-dir")
    return os.path.abspath(given) if given else os.path.join(bridge_dir(environ), "questions")


def _login() -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _object(fields: Mapping[str, object], name: str) -> dict[str, object]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _moment(value: object) -> float:
    """Seconds since 1970; 0 for what cannot be such."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOMENT_MAX else 0.0


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
