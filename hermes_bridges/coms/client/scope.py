"""Where a call of the client belongs: project, own name, directories, time limit."""

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from hermes_bridges.coms.client.args import Arguments, UsageError
from hermes_bridges.coms.envelope import is_ulid, new_ulid
from hermes_bridges.coms.registry import valid_name, valid_project
from hermes_bridges.errors import ConfigError

DEFAULT_TIMEOUT_MS = 300_000
TIMEOUT_MAX_MS = 2**31 - 1

_NAME_RULE = "expected up to 64 letters, digits, _ and -, the first a letter or digit"
_PROJECT_RULE = "expected letters, digits, ., _ and -, the first a letter or digit, and no .."


class Scope(NamedTuple):
    """The pool, and who we are in it."""

    project: str
    name: str
    coms_dir: str


def scope_of(arguments: Arguments, environ: Mapping[str, str]) -> Scope:
    """Read --project and --name, or their variables. Raises UsageError or ConfigError."""
    project, source = _first(arguments, "--project", environ, "COMS_CLI_PROJECT", "default")
    if not valid_project(project):
        raise UsageError(f'{source}: invalid project name "{project}" ({_PROJECT_RULE})')
    name, source = _first(arguments, "--name", environ, "COMS_CLI_NAME", "coms-client")
    if not valid_name(name):
        raise UsageError(f'{source}: invalid coms name "{name}" ({_NAME_RULE})')
    return Scope(project, name, coms_dir(environ))


def timeout_ms(arguments: Arguments, environ: Mapping[str, str], flag: str = "--timeout") -> int:
    """Read the time limit in ms, digits only. Raises UsageError."""
    default = str(DEFAULT_TIMEOUT_MS)
    text, source = _first(arguments, flag, environ, "PI_COMS_TIMEOUT_MS", default)
    if not re.fullmatch("0*[0-9]{1,10}", text) or not 1 <= int(text) <= TIMEOUT_MAX_MS:
        raise UsageError(f'{source}: "{text}" is no number of ms from 1 to {TIMEOUT_MAX_MS}')
    return int(text)


def coms_dir(environ: Mapping[str, str]) -> str:
    """The directory of registry, sockets and spool. Raises ConfigError."""
    path = os.path.abspath(
        environ.get("PI_COMS_DIR") or os.path.join(_home(environ, "PI_COMS_DIR"), ".pi", "coms")
    )
    if not path.isprintable():
        # It stands in JSON that others read: bytes that are no UTF-8 would name another place.
        raise ConfigError(f"the coms directory has a name that cannot be told to peers: {path!r}")
    return path


def bridge_dir(environ: Mapping[str, str]) -> str:
    """The directory that the bridges under this HOME share. Raises ConfigError."""
    return os.path.join(_home(environ), ".pi", "coms", "hermes-bridge")


def peer_name(text: str) -> str:
    """Check the name of a peer. Raises UsageError."""
    if not valid_name(text):
        raise UsageError(f'invalid peer name "{text}" ({_NAME_RULE})')
    return text


def message_id(text: str, what: str = "msg_id") -> str:
    """Check an id before it becomes a file name. Raises UsageError."""
    if not is_ulid(text):
        raise UsageError(f'invalid {what} "{text}" (expected a ULID: 26 digits and capitals)')
    return text


def fresh_id(
    wall_ns: Callable[[], int] = time.time_ns, entropy: Callable[[int], bytes] = os.urandom
) -> str:
    """Make a new ULID."""
    return new_ulid(wall_ns() // 1_000_000, entropy(10))


def wall_now() -> float:
    """The wall clock in seconds since 1970."""
    return time.time()


def stamp() -> str:
    """The wall clock in UTC as ``YYYY-MM-DDTHH:MM:SS.mmmZ``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _first(
    arguments: Arguments, flag: str, environ: Mapping[str, str], variable: str, default: str
) -> tuple[str, str]:
    """The value that counts, and where it came from; an empty variable is an unset one."""
    given = arguments.value(flag)
    if given is not None:
        return given, flag
    return environ.get(variable) or default, variable


def _home(environ: Mapping[str, str], instead: str = "") -> str:
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        other = f", or {instead}" if instead else ""
        raise ConfigError(f"HOME is not set to a directory (set it{other})")
    return home
