"""This installation of the package: where it lies, and how its programs are run from anywhere."""

import os
import sys
import sysconfig

_MODULES = {
    "bridge-coms": "hermes_bridges.coms",
    "bridge-donut": "hermes_bridges.donut",
    "bridge-telegram": "hermes_bridges.telegram",
    "hermes-bridges": "hermes_bridges",
}
_ISOLATION = {"isolated": "-I", "no_site": "-S", "dont_write_bytecode": "-B"}


def place() -> str:
    """What holds the package: a directory, or the one file that everything is in. Absolute."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def python() -> list[str]:
    """This Python, as isolated as it is now, and never with modules of the working directory."""
    own = [flag for name, flag in _ISOLATION.items() if getattr(sys.flags, name)]
    return [sys.executable, "-P", *own]


def command(program: str) -> list[str]:
    """The words that run one of our programs out of this installation; the first is a path."""
    holder = place()
    if os.path.isfile(holder):
        return [*python(), holder, program]
    # Beside a folder that is itself run there are the launchers of a self-contained one.
    if os.path.isfile(os.path.join(holder, "__main__.py")):
        scripts = os.path.join(os.path.dirname(holder), "bin")
    else:
        scripts = sysconfig.get_path("scripts")
    script = os.path.join(scripts, program)
    if os.access(script, os.X_OK):
        return [script]
    return [*python(), "-m", _MODULES[program]]
