"""The bridge that runs now, as the registry of the coms pool tells (contract section 3)."""

import json
import os
import select
from collections.abc import Mapping

from hermes_bridges.core import files
from hermes_bridges.errors import FileRefused

PEER = "user-remote"
"""The only name that ask-user-remote looks for."""
_ENTRY_LIMIT = 65536


def bridge_process(environ: Mapping[str, str], project: str) -> int | None:
    """The process that is registered under the name; it may be gone already."""
    coms = environ.get("PI_COMS_DIR") or os.path.join(environ.get("HOME", ""), ".pi", "coms")
    path = os.path.join(coms, "projects", project, "agents", f"{PEER}.json")
    try:
        entry = json.loads(files.read_capped(path, _ENTRY_LIMIT))
    except (FileRefused, OSError, ValueError):
        return None
    pid = entry.get("pid") if isinstance(entry, dict) else None
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 1 else None


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether the process ends within that time."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        ready, _, _ = select.select([pidfd], [], [], seconds)
    finally:
        os.close(pidfd)
    return bool(ready)
