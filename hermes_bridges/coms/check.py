"""``--check``: what is missing for a start; nothing is changed (contract section 2)."""

import os
import stat
from collections.abc import Iterator, Mapping

from hermes_bridges.coms.dispatch import SEND_MISSING, send_missing
from hermes_bridges.coms.envelope import ZERO_QID
from hermes_bridges.coms.neighbours import foreign_bridges
from hermes_bridges.coms.records import Owner, Records
from hermes_bridges.coms.registry import Registry
from hermes_bridges.coms.settings import Settings
from hermes_bridges.core.hermes_cli import HermesCli
from hermes_bridges.errors import BridgeError

# Seconds for one `hermes` command: its start alone takes some on a small host.
LIMIT = 30.0


def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Print a line for each finding; 0 when nothing is missing, else 1."""
    missing = 0
    for fault, line in _findings(settings, environ):
        missing += fault
        print(f"{'missing' if fault else 'ok'}: {line}")
    return 1 if missing else 0


def _findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[bool, str]]:
    yield from _hermes(settings, environ)
    yield from _directories(settings)
    yield from _pool(settings)


def _hermes(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[bool, str]]:
    try:
        hermes = HermesCli(environ, settings.hermes_profile)
    except BridgeError as error:
        yield True, str(error)
        return
    path = hermes.find()
    if path is None:
        yield True, "hermes was not found on PATH"
        return
    yield False, f"hermes is {path}"
    result = hermes.run(["send", "--help"], LIMIT)
    if send_missing(result.code, result.err):
        yield True, SEND_MISSING
    elif result.code != 0:
        yield True, f"`hermes send --help` failed: {_reason(result.error, result.code, result.err)}"
    else:
        yield False, "hermes can send"
    if settings.hermes_profile is not None:
        result = hermes.run(["profile", "show", settings.hermes_profile], LIMIT)
        if result.code == 0:
            yield False, f"profile {settings.hermes_profile} exists"
        else:
            reason = _reason(result.error, result.code, result.out or result.err)
            yield True, f"profile {settings.hermes_profile} cannot be used: {reason}"


def _reason(error: str | None, code: int | None, output: str) -> str:
    last = output.strip().splitlines()[-1:] or [f"exit code {code}"]
    return error or last[0]


def _directories(settings: Settings) -> Iterator[tuple[bool, str]]:
    for path in (settings.coms_dir, settings.questions_dir, settings.pending_dir):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            yield False, f"{path} will be made"
            continue
        except OSError as error:
            yield True, f"{path} cannot be looked at: {error.strerror}"
            continue
        if not stat.S_ISDIR(found.st_mode):
            yield True, f"{path} is not a directory"
        elif found.st_uid != os.geteuid():
            yield True, f"{path} belongs to another user"
        elif found.st_mode & 0o077:
            yield False, f"{path} is open to others and will be made private"
        else:
            yield False, f"{path} is private"


def _pool(settings: Settings) -> Iterator[tuple[bool, str]]:
    registry = Registry(settings.coms_dir, settings.project)
    try:
        registry.endpoint(ZERO_QID)
    except BridgeError as error:
        yield True, str(error)
    wanted, name = settings.name, registry.free_name(settings.name)
    if name == wanted:
        yield False, f"the name {wanted} is free in project {settings.project}"
    else:
        yield (
            True,
            f"the name {wanted} is taken in project {settings.project}; a start would be {name},"
            " which ask-user-remote does not look for",
        )
    records = Records(
        settings.pending_dir, Owner(settings.project, wanted, ZERO_QID), lambda reason: None
    )
    for stranger in foreign_bridges(settings.coms_dirs, records):
        yield (
            True,
            f"{stranger} is a bridge of another implementation, which deletes answers that are"
            " not its own: stop it",
        )
