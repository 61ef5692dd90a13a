"""Flags and environment of the coms daemon (contract section 2)."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.coms.jsrules import parse_number
from hermes_bridges.coms.registry import valid_name, valid_project
from hermes_bridges.core.settings import Setting, load
from hermes_bridges.core.settings import usage as core_usage
from hermes_bridges.errors import ConfigError

PROGRAM = "bridge-coms"
INTRO = (
    "A peer of a coms pool that asks a human: prompts become messages of `hermes send`, answers"
    " come back as files. With a verb (list, ask, send, await, reply, ping, cancel, questions,"
    " answer) this is the client instead; see `bridge-coms ask --help`."
)
DEFAULT_TIMEOUT_MS = 1_800_000.0
# Ten years: a longer wait is a slip of the pen, and far inside what a wait can take.
TIMEOUT_MAX_MS = 10 * 365 * 86_400_000.0
MAX_SENDS_MAX = 64
# Bytes; 255 are the end, and a temporary file's name is longer.
_FILE_NAME_MAX = 200

_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SENDER = re.compile(r"telegram:\S+")


def _milliseconds(flag: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        number = parse_number(text)
        if number is None or not math.isfinite(number) or number <= 0:
            raise ValueError(f"{flag} must be a positive number")
        return min(number, TIMEOUT_MAX_MS)

    return parse


def _name(text: str) -> str:
    if not valid_name(text):
        raise ValueError(f'Invalid coms name: "{text}"')
    return text


def _project(text: str) -> str:
    if not valid_project(text):
        raise ValueError(f'Invalid project name: "{text}"')
    return text


def _profile(text: str) -> str:
    if _PROFILE.fullmatch(text) is None or ".." in text:
        raise ValueError("--hermes-profile must be a safe profile name")
    return text


def _target(text: str) -> str:
    if not text.strip() or text.startswith("-") or not text.isprintable():
        raise ValueError("--to must be a target of `hermes send`, such as telegram:<chat>")
    return text


def _directory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("--questions-dir must be a directory")
    return os.path.abspath(text)


def _sends(text: str) -> int:
    number = parse_number(text)
    if number is None or number not in range(1, MAX_SENDS_MAX + 1):
        raise ValueError(f"--max-sends must be a whole number from 1 to {MAX_SENDS_MAX}")
    return int(number)


def _sender(text: str) -> str:
    if _SENDER.fullmatch(text) is None:
        raise ValueError("--allow-from must look like telegram:<user>")
    return text


def _log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError("--log-format must be text or json")
    return text


def _text(text: str) -> str:
    return text


TABLE: tuple[Setting, ...] = (
    Setting(
        "name", _name, "user-remote", "name of the peer in the pool", flag="--name", metavar="NAME"
    ),
    Setting(
        "project", _project, "default", "project of the pool", flag="--project", metavar="NAME"
    ),
    Setting("to", _target, "telegram", "target of `hermes send`", flag="--to", metavar="TARGET"),
    Setting(
        "hermes_profile",
        _profile,
        None,
        "Hermes profile that sends; default: the one that is active at the start",
        flag="--hermes-profile",
        metavar="NAME",
    ),
    Setting(
        "timeout_ms",
        _milliseconds("--timeout"),
        None,
        "how long a question waits for its answer (default: PI_COMS_TIMEOUT_MS, else 1800000)",
        flag="--timeout",
        metavar="MS",
    ),
    Setting(
        "poll_ms",
        _milliseconds("--poll-ms"),
        1000.0,
        "interval of the full scan of the questions directory",
        flag="--poll-ms",
        metavar="MS",
    ),
    Setting(
        "questions_dir",
        _directory,
        None,
        "where answer files arrive (default: $HOME/.pi/coms/hermes-bridge/questions);"
        " the event log is log.ndjson in the directory above it",
        flag="--questions-dir",
        metavar="DIR",
    ),
    Setting(
        "send_timeout_ms",
        _milliseconds("--send-timeout"),
        60_000.0,
        "longest time for one `hermes send`",
        flag="--send-timeout",
        metavar="MS",
    ),
    Setting(
        "max_sends",
        _sends,
        2,
        "how many `hermes send` may run at once",
        flag="--max-sends",
        metavar="N",
    ),
    Setting(
        "allow_from",
        _sender,
        (),
        "accept answers of this person only, may be repeated; a filter, not a security boundary",
        flag="--allow-from",
        repeatable=True,
        metavar="telegram:USER",
    ),
    Setting(
        "log_format",
        _log_format,
        "text",
        "lines on stderr: text or json",
        flag="--log-format",
        metavar="FORMAT",
    ),
    Setting(
        "check",
        _text,
        False,
        "say what is missing for a start, and exit: 0 nothing, 1 something",
        flag="--check",
        switch=True,
    ),
    Setting("version", _text, False, "print the version and exit", flag="--version", switch=True),
    Setting("help", _text, False, "print this help and exit", flag="--help", switch=True),
    Setting(
        "coms_dir",
        _text,
        None,
        "registry and sockets of the pool (default: $HOME/.pi/coms)",
        env="PI_COMS_DIR",
    ),
    Setting(
        "default_timeout_ms",
        _text,
        None,
        "time limit of a question where --timeout is not given; ignored unless positive",
        env="PI_COMS_TIMEOUT_MS",
    ),
)


class Settings(NamedTuple):
    """What the daemon runs with; times in milliseconds, as on the command line."""

    name: str
    project: str
    to: str
    hermes_profile: str | None
    timeout_ms: float
    timeout_given: bool
    poll_ms: float
    questions_dir: str
    log_path: str
    pending_dir: str
    status_dir: str
    coms_dir: str
    send_timeout_ms: float
    max_sends: int
    allow_from: frozenset[str]
    log_format: str
    check: bool
    version: bool
    help: bool
    coms_dirs: frozenset[str]
    """Where bridges that share the questions directory may be registered."""

    def status_path(self, name: str) -> str:
        """The status file of the daemon that got this name."""
        stem = f"{self.project}.{name}"
        if len(stem) + len(".json") > _FILE_NAME_MAX:
            import hashlib  # costs start time, and such names are rare

            stem = f"{stem[:100]}-{hashlib.sha256(stem.encode()).hexdigest()[:8]}"
        return os.path.join(self.status_dir, f"{stem}.json")


def usage() -> str:
    """The text of ``--help``."""
    return core_usage(PROGRAM, TABLE, INTRO)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings; ConfigError with every fault."""
    loaded = load(TABLE, environ, argv)
    values: dict[str, Any] = dict(loaded.values)
    home = environ.get("HOME", "")
    asked = values["version"] or values["help"]
    if not os.path.isabs(home) and not asked:
        raise ConfigError("HOME is not set to a directory: it holds the questions and their state")
    base = os.path.join(home, ".pi", "coms", "hermes-bridge")
    questions_dir = values["questions_dir"] or os.path.join(base, "questions")
    given = "timeout_ms" in loaded.given
    default_coms_dir = os.path.join(home, ".pi", "coms")
    coms_dir = os.path.abspath(values["coms_dir"] or default_coms_dir)
    return Settings(
        name=values["name"],
        project=values["project"],
        to=values["to"],
        hermes_profile=values["hermes_profile"],
        timeout_ms=values["timeout_ms"] if given else _default_timeout(values),
        timeout_given=given,
        poll_ms=values["poll_ms"],
        questions_dir=questions_dir,
        log_path=os.path.join(os.path.dirname(questions_dir), "log.ndjson"),
        pending_dir=os.path.join(base, "pending"),
        status_dir=os.path.join(base, "status"),
        coms_dir=coms_dir,
        send_timeout_ms=values["send_timeout_ms"],
        max_sends=values["max_sends"],
        allow_from=frozenset(values["allow_from"]),
        log_format=values["log_format"],
        check=bool(values["check"]),
        version=bool(values["version"]),
        help=bool(values["help"]),
        coms_dirs=frozenset({coms_dir, default_coms_dir}),
    )


def _default_timeout(values: Mapping[str, Any]) -> float:
    number = parse_number(values["default_timeout_ms"] or "")
    if number is None or not math.isfinite(number) or number <= 0:
        return DEFAULT_TIMEOUT_MS
    return min(number, TIMEOUT_MAX_MS)
