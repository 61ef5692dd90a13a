"""Which bridges there are on this host, by the files that they leave and the units of systemd."""

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.coms.presence import MODEL
from hermes_bridges.coms.registry import Entry, Registry, valid_name, valid_project
from hermes_bridges.core import files
from hermes_bridges.ctl import processes, systemd, told
from hermes_bridges.ctl.processes import Holder, Life
from hermes_bridges.ctl.systemd import Unit
from hermes_bridges.ctl.told import Told
from hermes_bridges.errors import ConfigError, FileRefused

COMS, DONUT = "coms", "donut"
BRIDGES = (COMS, DONUT)
STATUS_MOST = 256 * 1024
"""Bytes of a status file that are read."""
PRIVATE_STATE = "/var/lib/private/hermes-bridges"
SYSTEM_STATE = ("/var/lib/hermes-bridges", PRIVATE_STATE)
_FILES_MOST = 200  # status files, or state directories, of one place
_STATE_NAME = "hermes-bridges"
_DONUT_MARKS = ("status.json", "donut.lock", "donut.sqlite3")


class Found(NamedTuple):
    """One bridge, running or not.

    ``told`` is what its status file says, None with the reason in ``trouble`` (empty: there is
    no file). ``age`` is the file's in seconds. ``life`` is that of the process that it names,
    ``holder`` whoever holds the lock that a running bridge has. ``log`` is its event log.
    """

    bridge: str
    instance: str
    status_path: str | None = None
    told: Told | None = None
    trouble: str = ""
    age: float | None = None
    life: Life = Life.GONE
    pid: int | None = None
    holder: Holder = Holder(None)
    state_dir: str | None = None
    log: str | None = None
    unit: Unit | None = None


class Landscape(NamedTuple):
    """What was found, and sentences about what could not be looked at."""

    bridges: tuple[Found, ...]
    notes: tuple[str, ...]


def coms_base(environ: Mapping[str, str]) -> str | None:
    """Where the coms bridges of this HOME keep their state; None without a HOME."""
    home = environ.get("HOME", "")
    return os.path.join(home, ".pi", "coms", "hermes-bridge") if os.path.isabs(home) else None


def coms_dir(environ: Mapping[str, str]) -> str | None:
    """Registry and sockets of the pools; None without a HOME."""
    base = coms_base(environ)
    return environ.get("PI_COMS_DIR") or (os.path.dirname(base) if base else None)


def find(
    environ: Mapping[str, str], state_dirs: Sequence[str] = (), *, ask_systemd: bool = True
) -> Landscape:
    """Look at every place where a bridge may have left something; nothing is changed.

    ``state_dirs`` are further state directories of the Donut bridge. Without ``ask_systemd`` only
    files are looked at.
    """
    notes: list[str] = []
    found = [*_coms(environ, notes), *_donut(environ, state_dirs, notes)]
    units: list[Unit] = []
    if ask_systemd:
        units, told_by_systemd = systemd.units(environ)
        notes += told_by_systemd
    bridges = _with_units(found, units)
    # Two ways to one place may fail alike.
    return Landscape(tuple(_distinct(bridges)), tuple(dict.fromkeys(notes)))


# coms


def _coms(environ: Mapping[str, str], notes: list[str]) -> Iterator[Found]:
    base = coms_base(environ)
    if base is None:
        notes.append("HOME is not set to a directory: coms bridges are not looked for")
        return
    directory = os.path.join(base, "status")
    seen = set()
    for name in _listing(directory, notes):
        stem = name.removesuffix(".json")
        if stem == name or name.startswith("."):
            continue
        found = _coms_by_status(base, stem, os.path.join(directory, name), environ)
        seen.add(found.instance)
        yield found
    # A bridge that could never write its status file has its entry in the registry all the same.
    for project, entry in _entries(environ):
        instance = f"{entry['name']}@{project}"
        if instance not in seen:
            holder = _owner(base, entry.get("session_id"))
            if holder.held:
                pid = _pid(entry.get("pid"))
                log = os.path.join(base, "log.ndjson")
                yield Found(COMS, instance, pid=pid, holder=holder, state_dir=base, log=log)


def _coms_by_status(base: str, stem: str, path: str, environ: Mapping[str, str]) -> Found:
    status, trouble, age = read_status(path)
    project, name = stem.rpartition(".")[::2]
    session: object = None
    log = os.path.join(base, "log.ndjson")
    if status is not None:
        given = status.text("project"), status.text("name")
        if valid_project(given[0]) and valid_name(given[1]):
            project, name = given
        session = status.values.get("session")
        log = status.text("event_log") or log
    pid, start = (status.pid, status.start) if status else (None, None)
    if status is None and valid_project(project):
        # What the file should tell stands in the registry too.
        entry = Registry(coms_dir(environ) or "", project).owner(name)
        if entry is not None:
            session, pid = entry.get("session_id"), _pid(entry.get("pid"))
    return Found(
        COMS,
        f"{name}@{project}",
        path,
        status,
        trouble,
        age,
        processes.life(pid, start) if pid else Life.GONE,
        pid,
        _owner(base, session),
        base,
        log if os.path.isabs(log) and "\0" not in log else None,
    )


def _owner(base: str, session: object) -> Holder:
    if not isinstance(session, str) or not session.isalnum() or len(session) > 64:
        return Holder(None)
    # Nobody but its owner ever takes it, so that it may be tried.
    path = os.path.join(base, "pending", f".owner-{session}.lock")
    return processes.lock_holder(path, probe=True)


def _entries(environ: Mapping[str, str]) -> Iterator[tuple[str, Entry]]:
    place = coms_dir(environ) or ""
    for project in filter(valid_project, _listing(os.path.join(place, "projects"), [])):
        try:
            entries = Registry(place, project).entries()
        except OSError:
            continue
        yield from ((project, entry) for entry in entries if entry.get("model") == MODEL)


# donut


def state_places(environ: Mapping[str, str], more: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Where a state directory of the Donut bridge may be; True: its subdirectories may be too."""
    yield from ((path, False) for path in more)
    if os.path.isabs(environ.get("BRIDGE_STATE_DIR", "")):
        yield environ["BRIDGE_STATE_DIR"], False
    yield from ((p, False) for p in environ.get("STATE_DIRECTORY", "").split(":") if p)
    home = environ.get("HOME", "")
    for variable, usual in (
        ("XDG_STATE_HOME", ".local/state"),
        # systemd before 254 keeps the state of a user's units there.
        ("XDG_CONFIG_HOME", ".config"),
    ):
        for place in dict.fromkeys((environ.get(variable, ""), os.path.join(home, usual))):
            if os.path.isabs(place):
                yield os.path.join(place, _STATE_NAME), True
    yield from ((place, True) for place in SYSTEM_STATE)


def _donut(environ: Mapping[str, str], more: Sequence[str], notes: list[str]) -> Iterator[Found]:
    seen: set[tuple[int, int]] = set()
    for place, deep in state_places(environ, more):
        if place == PRIVATE_STATE and not os.access(place, os.R_OK):
            # Nobody but root looks in there; the units are told by systemd all the same.
            continue
        below = [os.path.join(place, name) for name in _listing(place, notes)] if deep else []
        for path in (place, *below):
            try:
                found = os.stat(path)
                known = (found.st_dev, found.st_ino)
                if not stat.S_ISDIR(found.st_mode) or known in seen:
                    continue
                marks = set(_DONUT_MARKS) & set(os.listdir(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                notes.append(f"{path} cannot be looked at: {error.strerror}")
                continue
            if marks or path in more:
                seen.add(known)
                yield _donut_in(path)


def _donut_in(directory: str) -> Found:
    path = os.path.join(directory, "status.json")
    status, trouble, age = read_status(path)
    name = os.path.basename(os.path.normpath(directory))
    return Found(
        DONUT,
        # The place of a bridge that was given none; units have one below it each, donut-<name>.
        "default" if name == _STATE_NAME else name.removeprefix("donut-") or name,
        path,
        status,
        trouble,
        age,
        processes.life(status.pid, status.start) if status else Life.GONE,
        status.pid if status else None,
        # One that starts right now would take a lock that is tried for that of another bridge.
        processes.lock_holder(os.path.join(directory, "donut.lock"), probe=False),
        directory,
    )


# Both


def read_status(path: str) -> tuple[Told | None, str, float | None]:
    """A status file: what it tells, or else why it tells nothing; and its age in seconds."""
    try:
        # Root looks at files of every user.
        raw = files.read_capped(path, STATUS_MOST, own=False)
        written = os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None, "", None
    except FileRefused as error:
        return None, error.reason.replace("_", " "), None
    except OSError as error:
        return None, error.strerror or str(error), None
    status = told.read(raw)
    if status is None:
        return None, "no status file of a bridge", None
    beat = status.number("beat")
    now = time.monotonic()
    # By the clock that nobody sets, unless the file is from before the last boot.
    age = now - beat if beat is not None and beat <= now else time.time() - written
    return status, "", max(0.0, age)


def _listing(directory: str, notes: list[str]) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notes.append(f"{directory} cannot be looked at: {error.strerror}")
        return []
    if len(names) > _FILES_MOST:
        notes.append(f"{directory} holds {len(names)} files: only {_FILES_MOST} are looked at")
    return names[:_FILES_MOST]


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_units(found: Iterable[Found], units: Iterable[Unit]) -> Iterator[Found]:
    left = list(units)
    for one in found:
        unit = next((u for u in left if _is_of(u, one)), None)
        if unit is not None:
            left.remove(unit)
            one = one._replace(unit=unit)
        yield one
    for unit in left:
        if unit.active != "inactive" or unit.enabled:
            pid = unit.pid or None
            life = processes.life(unit.pid, None) if unit.pid else Life.GONE
            yield Found(unit.bridge, unit.instance, life=life, pid=pid, unit=unit)


def _is_of(unit: Unit, one: Found) -> bool:
    if unit.bridge != one.bridge:
        return False
    pid = one.holder.pid or one.pid
    if unit.pid and pid and one.life is not Life.GONE:
        return unit.pid == pid
    if one.bridge == COMS:
        return one.instance == f"user-remote@{unit.instance}"
    in_system = (one.state_dir or "").startswith(SYSTEM_STATE)
    return one.instance == unit.instance and in_system == (unit.scope == "system")


def _distinct(found: Iterable[Found]) -> Iterator[Found]:
    """No two of a bridge with one name: the later ones get where they are as a part of it."""
    seen: set[tuple[str, str]] = set()
    for one in found:
        place = one.state_dir or (one.unit.scope if one.unit else "")
        if (one.bridge, one.instance) in seen:
            one = one._replace(instance=f"{one.instance} ({place})")
        number = 2
        plain = one.instance
        while (one.bridge, one.instance) in seen:
            one = one._replace(instance=f"{plain} #{number}")
            number += 1
        seen.add((one.bridge, one.instance))
        yield one


def chosen(
    landscape: Landscape, bridge: str | None, instance: str | None = None
) -> tuple[Found, ...]:
    """Those of one bridge, or the one of that name; ConfigError where there is none such."""
    those = [one for one in landscape.bridges if bridge in (None, one.bridge)]
    if instance is None:
        return tuple(those)
    named = [one for one in those if one.instance == instance]
    if not named:
        names = ", ".join(one.instance for one in those) or "none"
        raise ConfigError(f"there is no instance {instance}; there are: {names}")
    return tuple(named)


def public(one: Found) -> dict[str, Any]:
    """The facts of where it is, as the JSON of the verbs has them."""
    return {
        "bridge": one.bridge,
        "instance": one.instance,
        "statusFile": one.status_path,
        "stateDir": one.state_dir,
        "eventLog": one.log,
        "unit": one.unit.name if one.unit else None,
        "pid": one.pid,
    }
