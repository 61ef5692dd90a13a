"""``hermes-bridges status``: how each bridge is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.ctl import bridges, counters, health
from hermes_bridges.ctl.arguments import Arguments, directory
from hermes_bridges.ctl.bridges import BRIDGES, COMS, DONUT, Found
from hermes_bridges.ctl.counters import Counter
from hermes_bridges.ctl.health import DOWN, Health
from hermes_bridges.ctl.terminal import brief_age, safe
from hermes_bridges.ctl.told import Told

_ARGUMENTS = Arguments(
    "status",
    "Tells how each bridge of this host is: its state, since when, its connection and\n"
    "queues, what was dropped and lost, the last error, and for each fault what to do\n"
    "about it. Of the coms bridges those of this HOME are seen, of the Donut bridges\n"
    "those whose state directory is known or is named by --state-dir.",
    "states: healthy (0); degraded, starting, stopping (1); hung, paused, down (2)\n"
    "\n"
    "Exit code: that of the worst bridge, 0 healthy, 1 degraded, 2 down. 2 also where\n"
    "no bridge is found, and for a command line that cannot be understood. After an\n"
    "error a bridge is degraded for 5 minutes.",
)
_ARGUMENTS.add_argument("bridge", nargs="?", choices=BRIDGES, help="only bridges of this kind")
_ARGUMENTS.add_argument("--instance", metavar="NAME", help="only this one, as `status` names it")
_ARGUMENTS.add_argument("--json", action="store_true", help="print the facts as JSON")
_ARGUMENTS.add_argument(
    "--state-dir",
    action="append",
    default=[],
    type=directory,
    metavar="DIR",
    help="a further state directory of a Donut bridge; may be repeated",
)
USAGE = _ARGUMENTS.usage_text()

_HEADER = ("BRIDGE", "INSTANCE", "STATE", "RUNS", "CONNECTION", "QUEUES")
_CELL_MOST = 60
_LINE_MOST = 600


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print how the bridges are; returns 0, 1 or 2."""
    given = _ARGUMENTS.read(words)
    landscape = bridges.find(environ, given.state_dir)
    chosen = bridges.chosen(landscape, given.bridge, given.instance)
    judged = [(one, health.judge(one)) for one in chosen]
    code = max((state.level for _, state in judged), default=DOWN)
    if given.json:
        print(json.dumps(_whole(judged, code, landscape.notes), indent=2))
        return code
    if judged:
        _print_table(judged)
    else:
        print(f"no {f'{given.bridge} ' if given.bridge else ''}bridge was found")
    for note in landscape.notes:
        print(f"note: {safe(note, _LINE_MOST)}")
    return code


def _whole(
    judged: Sequence[tuple[Found, Health]], code: int, notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "at": iso_now(),
        "code": code,
        "bridges": [{**bridges.public(one), **report(one, state)} for one, state in judged],
        "notes": list(notes),
    }


def report(one: Found, state: Health) -> dict[str, Any]:
    """What is known of a bridge, for programs; the names are those of the status file."""
    told = one.told
    facts: dict[str, Any] = {
        "state": state.state,
        "level": state.level,
        "faults": [fault._asdict() for fault in state.faults],
        "age": None if one.age is None else round(one.age, 1),
    }
    if told is not None:
        facts |= {"at": told.at, "version": told.version}
        facts |= {"counters": dict(told.counters), "values": dict(told.values)}
    return facts


def _print_table(judged: Sequence[tuple[Found, Health]]) -> None:
    rows = [_HEADER, *(_row(one, state) for one, state in judged)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def put(row: Sequence[str]) -> None:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())

    put(_HEADER)
    for row, (one, state) in zip(rows[1:], judged, strict=True):
        put(row)
        for line in _details(one, state):
            print(f"  {safe(line, _LINE_MOST)}")


def _row(one: Found, state: Health) -> tuple[str, ...]:
    runs = connection = queues = "-"
    # What one that does not run has told is no news.
    if one.told is not None and state.state not in ("down", "starting"):
        ago = health.seconds_since(one.told.values.get("started_at"))
        runs = "-" if ago is None else brief_age(max(0.0, ago))
        connection = one.told.text("connection") or "-"
        queues = ", ".join(_queues(one.bridge, one.told)) or "-"
    cells = (one.bridge, one.instance, state.state, runs, connection, queues)
    return tuple(safe(cell, _CELL_MOST) for cell in cells)


_QUEUES: Mapping[str, Sequence[tuple[str, str]]] = {
    COMS: (
        ("open", "{} open"),
        ("sends_running", "{} sending"),
        ("sends_waiting", "{} to send"),
        ("replying", "{} to reply"),
    ),
    DONUT: (
        ("queued", "{} queued"),
        ("in_flight", "{} in flight"),
        ("outbox", "{} to post"),
    ),
}


def _queues(bridge: str, told: Told) -> Iterator[str]:
    for name, form in _QUEUES[bridge]:
        number = told.number(name)
        if number is not None:
            yield form.format(number)


def _details(one: Found, state: Health) -> Iterator[str]:
    for fault in state.faults:
        yield f"! {fault.text}"
        yield f"  remedy: {fault.remedy}"
    told = one.told
    if told is None:
        return
    if state.state != "healthy" and state.state != "degraded":
        yield f"last seen: {told.at}"
    else:
        yield _identity(one, told)
    breaker = told.mapping("breaker")
    if one.bridge == DONUT and breaker:
        ago = health.seconds_since(breaker.get("since"))
        since = "" if ago is None else f" for {brief_age(max(0.0, ago))}"
        yield f"breaker: {breaker.get('state')}{since}"
    lost = counters.losses(one.bridge, counters.of(one.bridge, told))
    if lost:
        yield f"drops and losses: {', '.join(map(_shown, lost))}"
    for kind in ("last_error", "last_warning"):
        last = told.mapping(kind)
        if last:
            yield f"{kind.replace('_', ' ')}: {last.get('at')} {last.get('text')}"


def _identity(one: Found, told: Told) -> str:
    text = f"pid {told.pid}, version {told.version}, since {told.text('started_at') or '?'}"
    since = told.text("connection_since")
    if since:
        text += f", {told.text('connection')} since {since}"
    return text + (f", unit {one.unit.name}" if one.unit else "")


def _shown(counter: Counter) -> str:
    name = f"{counter.family} ({counter.part})" if counter.part else counter.family
    return f"{name} {counter.value}"
