"""Starts one of the programs of a folder or a file that bin/vendor or bin/build-zipapp has made.

It lies there as ``__main__.py``. The program is told by the name under which the whole is called,
else by the first word. Every Python 3 has to understand this file, to say that it is too old.
"""

import os
import shutil
import sys

PROGRAMS = {
    "bridge-coms": "hermes_bridges.coms.service",
    "bridge-donut": "hermes_bridges.donut.service",
    "bridge-telegram": "hermes_bridges.telegram.control",
    "hermes-bridges": "hermes_bridges.ctl",
}
ISOLATED = "-IBS"  # from variables, the user's and the system's packages; nothing is written
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")


def main() -> int:
    called = os.path.basename(sys.argv[0])
    words = ([called] if called in PROGRAMS else []) + sys.argv[1:]
    if not words or words[0] not in PROGRAMS:
        print("usage: " + called + " PROGRAM ...", file=sys.stderr)
        print("programs: " + ", ".join(PROGRAMS), file=sys.stderr)
        return 2
    python = sys.executable
    if sys.version_info < (3, 11):  # noqa: UP036
        python = next(filter(None, map(shutil.which, NEWER)), "")
        if not python:
            text = ": Python 3.11 or later is needed, and none was found on PATH"
            print(words[0] + text, file=sys.stderr)
            return 1
    if python != sys.executable or not (sys.flags.isolated and sys.flags.no_site):
        os.execv(python, [python, ISOLATED, *sys.argv])
    # Called by a link, or from a directory that is left: it has to be found all the same.
    sys.path[0] = os.path.realpath(sys.path[0])
    sys.argv = words
    module = __import__(PROGRAMS[words[0]], fromlist=["main"])
    return int(module.main())


if __name__ == "__main__":
    sys.exit(main())
