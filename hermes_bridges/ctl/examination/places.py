"""The places of the bridges: whose they are, who may read them, and what room is left."""

import os
import stat
from collections.abc import Iterator, Mapping

from hermes_bridges.ctl import bridges
from hermes_bridges.ctl.bridges import COMS, DONUT, Landscape
from hermes_bridges.ctl.examination import Finding
from hermes_bridges.errors import ConfigError

ROOM_NEEDED = 64 * 1024 * 1024
"""Bytes that should be free for state and logs."""
INODES_NEEDED = 200


def examine(environ: Mapping[str, str], landscape: Landscape) -> Iterator[Finding]:
    private, shared = _places(environ, landscape)
    for path in private:
        yield from _private(path)
    yield from _room([*private, *shared])
    yield from _socket_path(environ)


def _places(environ: Mapping[str, str], landscape: Landscape) -> tuple[list[str], list[str]]:
    """What has to be private, and what else is written to; each once."""
    base, pool = bridges.coms_base(environ), bridges.coms_dir(environ)
    wanted = [pool, base]
    if base is not None:
        wanted += [os.path.join(base, part) for part in ("questions", "pending", "status")]
        wanted.append(os.path.join(base, "log.ndjson"))
    if pool is not None:
        wanted.append(os.path.join(pool, "sockets"))
    shared = []
    for one in landscape.bridges:
        if one.bridge == DONUT:
            wanted.append(one.state_dir)
            if one.state_dir:
                wanted += [os.path.join(one.state_dir, n) for n in ("donut.sqlite3", "status.json")]
        elif one.bridge == COMS:
            told = one.told
            wanted += [one.status_path, one.log]
            if told is not None and os.path.isabs(told.text("questions_dir")):
                wanted.append(told.text("questions_dir"))
            if one.log:
                shared.append(os.path.dirname(one.log))
    return list(dict.fromkeys(path for path in wanted if path)), shared


def _private(path: str) -> Iterator[Finding]:
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        # It is made by the first start.
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        yield Finding(f"{path} cannot be looked at: {reason}", "ask as the user of the bridge")
        return
    if os.geteuid() != 0 and found.st_uid != os.geteuid():
        yield Finding(
            f"{path} belongs to another user (uid {found.st_uid})",
            f"give it to the user of the bridge: chown -R USER '{path}'",
        )
    elif stat.S_ISLNK(found.st_mode):
        yield Finding(f"{path} is a symlink to {os.path.realpath(path)}")
    elif found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        yield Finding(
            f"{path} is open to others (mode {mode:04o})",
            f"the next start of the bridge closes it; at once: chmod go= '{path}'",
        )
    elif stat.S_ISDIR(found.st_mode):
        yield Finding(f"{path} is private")


def _room(paths: list[str]) -> Iterator[Finding]:
    seen = set()
    for path in paths:
        place = _nearest(path)
        try:
            device = os.stat(place).st_dev
            found = os.statvfs(place)
        except OSError:
            continue
        if device in seen:
            continue
        seen.add(device)
        free = found.f_bavail * found.f_frsize
        told = f"{free // (1024 * 1024)} MiB are free at {place}"
        if found.f_flag & os.ST_RDONLY:
            yield Finding(f"{place} is on a file system that is read-only", "mount it writable")
        elif free < ROOM_NEEDED:
            yield Finding(
                f"only {told}",
                "make room; hermes-bridges rotate-logs keeps logs small. Without room questions"
                " and answers are kept in memory only, or the bridge ends",
            )
        elif found.f_files and found.f_favail < INODES_NEEDED:
            yield Finding(
                f"only {found.f_favail} files can still be made at {place}",
                "remove files there that nobody needs",
            )
        else:
            yield Finding(told)


def _nearest(path: str) -> str:
    """The directory above a path that is there."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _socket_path(environ: Mapping[str, str]) -> Iterator[Finding]:
    pool = bridges.coms_dir(environ)
    if pool is None:
        return
    from hermes_bridges.coms.envelope import ZERO_QID
    from hermes_bridges.coms.registry import Registry

    try:
        Registry(pool, "default").endpoint(ZERO_QID)
    except ConfigError as error:
        yield Finding(str(error), "set PI_COMS_DIR to a shorter path, for the peers too")
