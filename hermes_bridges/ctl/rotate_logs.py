"""``hermes-bridges rotate-logs``: rotates the event logs and the files named, without logrotate."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from hermes_bridges.ctl import archive, bridges, rotation_examples
from hermes_bridges.ctl.arguments import Arguments
from hermes_bridges.ctl.rotation import Log, Rules
from hermes_bridges.ctl.terminal import safe
from hermes_bridges.errors import BridgeError, ConfigError

_EVENT_LOG = "log.ndjson"
_STATUS_FILES_MOST = 200
_SIZE = re.compile(r"([0-9]{1,15})([KMGkmg]?)")
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_AGE = re.compile(r"([0-9]{1,9})([smhdw])")
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_KEEP_MOST = 10_000

_EPILOG = """\
A rotated log is <log>-<UTC time>, or <log>-<UTC time>.gz once compressed: as
long as a process may write to it, it stays plain, and a later run compresses
it. What a bridge rotated by itself (log.ndjson.1) is taken over. An empty log
is never rotated; one that is not there, or that was rotated already, is passed
over; symbolic and hard links, FIFOs and devices are refused.

The event log is renamed, and nothing is lost: a bridge looks before each line
whether the file still bears its name. A writer that holds its file open (a
shell's >>, append: in a unit) would go on in the renamed one. Its log is copied
and emptied, with --copytruncate; what it adds in the moment between the two
(some microseconds) is lost. One that does not append (a shell's >) is refused,
as zeros would fill what was emptied. After a crash in the middle, lines may be
there twice.

Several runs at once, and a bridge that rotates its event log, wait for each
other. When the disk is full, the log stays as it was.

Exit code: 0 all is well, also when nothing was due; 1 something could not be
rotated, and stands on stderr (the other logs were rotated); 2 the command line
cannot be understood."""


def _limit(text: str, pattern: re.Pattern[str], units: Mapping[str, int]) -> int | None:
    if text == "never":
        return None
    match = pattern.fullmatch(text)
    if not match:
        raise ValueError
    return int(match[1]) * units[match[2].lower()]


def _size(text: str) -> int | None:
    try:
        return _limit(text, _SIZE, _SIZES)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a size such as 500K, 5M or never") from None


def _age(text: str) -> int | None:
    try:
        return _limit(text, _AGE, _AGES)
    except ValueError:
        raise argparse.ArgumentTypeError("must be an age such as 12h, 7d or never") from None


def _keep(text: str) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= number <= _KEEP_MOST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_KEEP_MOST}")
    return number


def _file(text: str) -> str:
    if not os.path.basename(text) or "\0" in text:
        raise argparse.ArgumentTypeError("must be a file")
    return os.path.abspath(text)


def _arguments() -> Arguments:
    arguments = Arguments(
        "rotate-logs",
        "Rotates the event logs of the coms bridges of this HOME, and the files named,\n"
        "when they have reached a size or an age. For a cron job, without logrotate.",
        _EPILOG,
    )
    arguments.add_argument("files", metavar="FILE", nargs="*", type=_file, help="a further log")
    arguments.add_argument(
        "--size", type=_size, default="5M", help="rotate from this size on (default: 5M)"
    )
    arguments.add_argument(
        "--age",
        type=_age,
        default="7d",
        help="rotate from this age on: since the time in the first line, or else the last"
        " rotation; at once if neither is known (default: 7d)",
    )
    arguments.add_argument(
        "--keep",
        metavar="N",
        type=_keep,
        default=8,
        help="rotated logs to keep, 1 to 10000; older ones are removed (default: 8)",
    )
    arguments.add_argument(
        "--no-gzip", dest="gzip", action="store_false", help="leave rotated logs as they are"
    )
    arguments.add_argument(
        "--copytruncate",
        action="store_true",
        help="copy and empty the files named; the event logs are renamed all the same",
    )
    arguments.add_argument(
        "--only", action="store_true", help="rotate the files named and no event log"
    )
    arguments.add_argument(
        "--force", action="store_true", help="rotate whatever the size and the age"
    )
    arguments.add_argument("-v", "--verbose", action="store_true", help="tell what is done")
    arguments.add_argument(
        "--example",
        choices=tuple(rotation_examples.EXAMPLES),
        help="print an example for this installation, and do nothing else",
    )
    return arguments


USAGE = _arguments().usage_text()


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Rotate what is due; 1 if something could not be."""
    options = _arguments().read(words)
    if options.example:
        print(rotation_examples.render(options.example, environ), end="")
        return 0
    if options.only and not options.files:
        raise ConfigError("--only needs a FILE")
    rules = Rules(
        options.size, options.age, options.keep, options.gzip, options.copytruncate, options.force
    )
    tell = _say if options.verbose else _keep_quiet
    event_logs = [] if options.only else list(_event_logs(environ))
    faults = 0
    for path in dict.fromkeys([*event_logs, *options.files]):
        renamed = path in event_logs
        faults += not _rotated(path, rules._replace(copytruncate=False) if renamed else rules, tell)
    return 1 if faults else 0


def _event_logs(environ: Mapping[str, str]) -> Iterator[str]:
    """The usual one, and those that the bridges of this HOME tell of."""
    base = bridges.coms_base(environ)
    if base is None:
        raise ConfigError("HOME is not set to a directory, where the event log is (see --only)")
    yield os.path.join(base, _EVENT_LOG)
    status = os.path.join(base, "status")
    try:
        names = sorted(name for name in os.listdir(status) if name.endswith(".json"))
    except FileNotFoundError:
        return
    for name in names[:_STATUS_FILES_MOST]:
        told = bridges.read_status(os.path.join(status, name))[0]
        path = told.text("event_log") if told else ""
        # Nothing else is touched, whatever somebody has written there.
        if os.path.isabs(path) and os.path.basename(path) == _EVENT_LOG and "\0" not in path:
            yield os.path.normpath(path)


def _rotated(path: str, rules: Rules, tell: Callable[[str], None]) -> bool:
    if archive.is_rotated(os.path.basename(path)):
        # A shell's pattern for logs finds these too.
        tell(f"{path}: was rotated already")
        return True
    try:
        Log(path, rules, tell=tell).rotate()
    except (BridgeError, OSError) as fault:
        text = str(fault)
        if isinstance(fault, OSError):
            text = f"{path}: cannot be rotated: {fault.strerror or fault}"
        print(f"hermes-bridges rotate-logs: {safe(text)}", file=sys.stderr)
        return False
    return True


def _say(line: str) -> None:
    print(safe(line))


def _keep_quiet(line: str) -> None:
    """A cron job that says something sends mail."""
