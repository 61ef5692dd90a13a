"""The operator command: one module a verb, imported when it is asked for.

It reads files and asks the service manager; it never talks to a running daemon, so that one that
hangs can be diagnosed too. The module of a verb has ``USAGE``, the whole text of its ``--help``,
and ``run(words, environ)``, which gets what follows the verb and returns the exit code.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from hermes_bridges import __version__
from hermes_bridges.ctl.terminal import safe
from hermes_bridges.errors import BridgeError, ConfigError

PROGRAM = "hermes-bridges"
EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""As a shell tells of a process that SIGPIPE ended."""
VERBS: dict[str, str] = {
    "status": "how each bridge is: state, connection, queues, losses, last error",
    "check": "whether a bridge could start, and reach what it needs",
    "tail": "the event log of a bridge, and what is added to it",
    "metrics": "the counters in the text format of Prometheus",
    "reset-state": "move the state of a bridge aside",
    "doctor": "what may be wrong with this host, and the remedies",
    "install-units": "write the systemd units",
    "rotate-logs": "rotate the logs without logrotate",
    "completion": "the completion script for a shell",
}
"""Each verb with a line about it; ``reset-state`` stands in the module ``reset_state``."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    environ = os.environ if environ is None else environ
    if sys.stdout is None:
        print(f"{PROGRAM}: stdout is closed", file=sys.stderr)
        return EXIT_FAULT
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A name that the terminal's encoding cannot show is no reason to say nothing.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(words, environ)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"{PROGRAM}: what was to be printed cannot be written: {error}", file=sys.stderr)
        _forget_stdout()
        return EXIT_FAULT
    return code


def usage() -> str:
    """The text of ``--help``."""
    width = max(map(len, VERBS))
    return "\n".join(
        (
            f"usage: {PROGRAM} VERB ...",
            "",
            "Looks after the bridges of this host. It reads files and asks systemd, and never",
            "talks to a bridge that runs.",
            "",
            "verbs:",
            *(f"  {verb:{width}}  {line}" for verb, line in VERBS.items()),
            "",
            f"`{PROGRAM} VERB --help` tells more. --version prints the version.",
            f"Exit code {EXIT_USAGE} for a command line that cannot be understood.",
        )
    )


def _dispatch(words: list[str], environ: Mapping[str, str]) -> int:
    verb = words[0] if words else ""
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb == "--version":
        print(f"hermes-bridges {__version__}")
        return 0
    if verb not in VERBS:
        print(f"{PROGRAM}: {_not_a_verb(verb)}; see {PROGRAM} --help", file=sys.stderr)
        return EXIT_USAGE
    module = importlib.import_module(f"{__name__}.{verb.replace('-', '_')}")
    own = words[1:]
    before_dashes = own[: own.index("--")] if "--" in own else own
    if {"-h", "--help"} & set(before_dashes):
        print(module.USAGE.rstrip("\n"))
        return 0
    try:
        return int(module.run(own, environ))
    except BrokenPipeError:
        raise
    except ConfigError as error:
        for fault in error.faults:
            print(f"{PROGRAM} {verb}: {safe(fault)}", file=sys.stderr)
        return EXIT_USAGE
    except (BridgeError, OSError) as error:
        print(f"{PROGRAM} {verb}: {safe(str(error))}", file=sys.stderr)
        return EXIT_FAULT


def _not_a_verb(word: str) -> str:
    return f"unknown verb {safe(word)!r}" if word else "a verb is missing"


def _forget_stdout() -> None:
    """Nobody takes it; what is still buffered must not be an error when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
