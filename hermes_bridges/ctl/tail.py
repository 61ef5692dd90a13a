"""``hermes-bridges tail``: the event log of a bridge, and what is added to it."""

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from hermes_bridges.ctl import bridges
from hermes_bridges.ctl.arguments import Arguments
from hermes_bridges.ctl.bridges import BRIDGES, COMS, DONUT
from hermes_bridges.ctl.following import Follower
from hermes_bridges.ctl.logfile import LINE_MOST
from hermes_bridges.ctl.systemd import Unit
from hermes_bridges.ctl.terminal import safe
from hermes_bridges.errors import BridgeError

_EVERY = 0.25  # seconds between two looks
_PIECE = 65536
_LINES_MOST = 1_000_000


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:9]) > _LINES_MOST:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {_LINES_MOST}")
    return int(text)


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("must be a path")
    return os.path.abspath(text)


_ARGUMENTS = Arguments(
    "tail",
    "Shows the last lines of a bridge's log, and each line that is added, also after\n"
    "the file was rotated by renaming or by copying and truncating it. For the coms\n"
    "bridge that is its event log. The Donut bridge has none: what it tells on stderr is\n"
    "read from the journal of its unit, or from the file that --file names.",
    "Nothing of a log reaches the terminal that would command it. Ctrl-C ends it.\n"
    "\n"
    "Exit code: 0; 1 where there is no log; 2 for a command line that cannot be\n"
    "understood.",
)
_ARGUMENTS.add_argument("bridge", choices=BRIDGES, help="whose log")
_ARGUMENTS.add_argument("--instance", metavar="NAME", help="which one, as `status` names it")
_ARGUMENTS.add_argument("--file", type=_path, metavar="FILE", help="this file instead")
_ARGUMENTS.add_argument(
    "-n", "--lines", type=_count, default=10, metavar="N", help="begin with the last N (10)"
)
_ARGUMENTS.add_argument("--no-follow", action="store_true", help="end after these lines")
_ARGUMENTS.add_argument("--qid", metavar="QID", help="only events of this question")
_ARGUMENTS.add_argument("--json", action="store_true", help="one JSON object a line")
USAGE = _ARGUMENTS.usage_text()


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print lines until interrupted; BridgeError where there is no log."""
    given = _ARGUMENTS.read(words)
    printer = _Printer(given.qid, given.json)
    if given.file is None and given.bridge == DONUT:
        unit = _unit(environ, given.instance)
        return _journal(unit, given.lines, not given.no_follow, environ, printer)
    path = given.file or _event_log(environ, given.instance)
    if not os.path.lexists(path):
        if given.no_follow:
            raise BridgeError(f"there is no {path}")
        print(f"waiting for {safe(path)}", file=sys.stderr)
    follower = Follower(path, given.lines)
    while True:
        printer.put(follower.lines())
        if given.no_follow:
            printer.put(follower.close())
            return 0
        _pause(_EVERY)


def _event_log(environ: Mapping[str, str], instance: str | None) -> str:
    base = bridges.coms_base(environ)
    if base is None:
        raise BridgeError("HOME is not set to a directory: name the log with --file")
    found = bridges.chosen(bridges.find(environ, ask_systemd=False), COMS, instance)
    logs = sorted({one.log for one in found if one.log}) or [os.path.join(base, "log.ndjson")]
    if len(logs) > 1:
        names = ", ".join(f"{one.instance} ({one.log})" for one in found)
        raise BridgeError(f"there are several logs, choose one with --instance: {names}")
    return logs[0]


def _unit(environ: Mapping[str, str], instance: str | None) -> Unit:
    found = bridges.chosen(bridges.find(environ), DONUT, instance)
    units = [one.unit for one in found if one.unit is not None]
    if len(units) == 1:
        return units[0]
    if units:
        names = ", ".join(one.instance for one in found if one.unit is not None)
        raise BridgeError(f"there are several units, choose one with --instance: {names}")
    raise BridgeError(
        "no unit of the Donut bridge was found: name the file that its stderr goes to with --file"
    )


class _Printer:
    """Prints lines of a log, as JSON or for people, and only those of a question if asked."""

    def __init__(self, qid: str | None, as_json: bool) -> None:
        self._qid = qid
        self._as_json = as_json

    def put(self, lines: Iterable[bytes]) -> None:
        """Print them, and see that they get out."""
        for raw in lines:
            # A file that was truncated under a writer begins with a hole.
            text = raw.lstrip(b"\0").decode("utf-8", "replace").rstrip("\r")
            if not text.strip():
                continue
            record = _record(text)
            if self._qid is not None and (record is None or record.get("qid") != self._qid):
                continue
            if self._as_json:
                print(json.dumps({"text": text} if record is None else record))
            else:
                print(safe(text) if record is None else _for_people(record))
        sys.stdout.flush()


def _record(text: str) -> dict[str, object] | None:
    try:
        record = json.loads(text, parse_constant=lambda name: None)
        # What cannot be written again is no record of ours.
        json.dumps(record)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _for_people(record: Mapping[str, object]) -> str:
    if not isinstance(record.get("event"), str):
        # A line of stderr, told with --log-format json, or of something else.
        text = f"{record.get('at', '')} {record.get('level', '')} {record.get('message', '')}"
        return safe(text.strip() if "message" in record else json.dumps(record))
    line = f"{record.get('at', '-')} {record['event']:<17} {record.get('qid', '-')}"
    detail = record.get("detail")
    if isinstance(detail, dict):
        line += "".join(f" {name}={_value(value)}" for name, value in detail.items())
    elif detail is not None:
        line += f" {_value(detail)}"
    return safe(line)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pause(seconds: float) -> None:
    """Wait; BrokenPipeError as soon as nobody reads what is printed."""
    watched = select.poll()
    try:
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        # It is no file of the system's; then nobody can leave it either.
        pass
    if watched.poll(seconds * 1000):
        raise BrokenPipeError


def _journal(
    unit: Unit, lines: int, follow: bool, environ: Mapping[str, str], printer: _Printer
) -> int:
    argv = ["journalctl", *unit.flags, "--no-pager", "--output=short-iso", f"--lines={lines}"]
    argv += [*(["--follow"] if follow else []), f"--unit={unit.name}"]
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(environ)
        )
    except OSError as error:
        raise BridgeError(f"journalctl could not be started: {error.strerror}") from None
    with child:
        try:
            _copy(child, printer)
        finally:
            child.kill()
    return 0


def _copy(child: "subprocess.Popen[bytes]", printer: _Printer) -> None:
    assert child.stdout is not None
    source, rest = child.stdout.fileno(), b""
    while True:
        # By turns, so that the end of our own reader is noticed in silence too.
        ready, _, _ = select.select([source], [], [], _EVERY)
        if not ready:
            _pause(0)
            continue
        piece = os.read(source, _PIECE)
        *whole, rest = (rest + piece).split(b"\n")
        printer.put(whole)
        if not piece or len(rest) > LINE_MOST:
            printer.put([rest])
            rest = b""
        if not piece:
            return
