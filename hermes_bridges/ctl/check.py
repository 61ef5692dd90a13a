"""``hermes-bridges check``: whether a bridge could start here, and reach what it needs."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from hermes_bridges.ctl.arguments import Arguments
from hermes_bridges.ctl.bridges import BRIDGES, COMS
from hermes_bridges.ctl.terminal import SafeLines
from hermes_bridges.errors import BridgeError

_ARGUMENTS = Arguments(
    "check",
    "Says whether the bridge could start with these settings: for coms whether Hermes\n"
    "can send, the directories and the pool; for donut whether Hermes and the hub answer.\n"
    "Nothing is changed, no message is sent, a bridge that runs is not disturbed. The\n"
    "settings are those of the environment and of the flags after --, such as\n"
    "\n"
    "  hermes-bridges check coms -- --project work\n"
    "  hermes-bridges check donut -- --env-file donut.env",
    "For a coms bridge that runs, its own name counts as taken.\n"
    "\n"
    "Exit code: 0 nothing is missing; 1 something is; 2 the settings or the command line\n"
    "cannot be used.",
)
_ARGUMENTS.add_argument("bridge", choices=BRIDGES, help="which bridge")
_ARGUMENTS.add_argument("flags", nargs="*", metavar="FLAG", help="flags of the bridge, after --")
USAGE = _ARGUMENTS.usage_text()


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print a line for each finding; 0 or 1; ConfigError for settings that cannot be used."""
    given = _ARGUMENTS.read(words)
    with _safe_output():
        if given.bridge == COMS:
            return _coms(given.flags, environ)
        return _donut(given.flags, environ)


def _coms(flags: Sequence[str], environ: Mapping[str, str]) -> int:
    from hermes_bridges.coms import check, settings

    return check.run(settings.parse(flags, environ), environ)


def _donut(flags: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        from hermes_bridges.donut import check, settings
    except ModuleNotFoundError as missing:
        raise BridgeError(
            f"the Python package {missing.name} is missing; hermes-bridges doctor tells the remedy"
        ) from None

    parsed = settings.parse(flags, environ)
    for warning in parsed.warnings:
        print(f"note: {warning}")
    return check.run(parsed)


@contextlib.contextmanager
def _safe_output() -> Iterator[None]:
    """What the bridges print may hold words of Hermes and of the hub."""
    lines = SafeLines(sys.stdout)
    with contextlib.redirect_stdout(lines):
        try:
            yield
        finally:
            lines.close()
