"""Who holds a lease of Hermes on a session, and whether that process may still be alive."""

import os
import re
import sys

_PID = re.compile(r"(?:^|:)pid=(\d+)(?::|$)")
_SPACE = re.compile(r"(?:^|:)pidns=(\d+)(?::|$)")


def lives(holder: str) -> bool:
    """Whether the process that a holder names may be alive.

    One of another PID namespace cannot be looked at: any doubt is left to the end of the lease.
    """
    pid, space = _PID.search(holder), _SPACE.search(holder)
    if pid is None or sys.platform == "win32" or (space and space[1] != _own_space()):
        return True
    try:
        os.kill(int(pid[1]), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It is somebody else's, or no process at all.
        return True
    return True


def _own_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").rpartition("[")[2].rstrip("]")
    except OSError:
        return ""
