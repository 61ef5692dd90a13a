"""The coms client: ``python -m hermes_bridges.coms <verb>`` (contract section 9)."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from hermes_bridges.coms.client.args import (
    GRAMMARS,
    Arguments,
    UsageError,
    help_text,
    parse,
    usage,
)
from hermes_bridges.coms.client.loop import Interrupted, Loop, TimedOut
from hermes_bridges.coms.client.terminal import complain, say
from hermes_bridges.coms.verbs import VERBS
from hermes_bridges.errors import BridgeError

__all__ = ["VERBS", "main"]

Verb = Callable[[Loop, Arguments, Mapping[str, str]], int]


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one verb on the main thread.

    Returns 0, 1 for a peer's error and other failures, 2 for a command line that cannot be used,
    3 for a timeout, 128 and the signal's number after a signal (130 for Ctrl-C).
    """
    code = _guarded(argv, environ)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # It was told, or nobody reads; the interpreter's last flush shall not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return code or 1
    return code


def _guarded(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        return _run(argv, environ)
    except UsageError as error:
        complain(str(error))
        if argv and argv[0] in GRAMMARS:
            complain(usage(argv[0]))
        return 2
    except TimedOut as error:
        complain(str(error))
        return 3
    except Interrupted as error:
        return 128 + error.signum
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Nobody reads our output.
        return 1
    except (BridgeError, OSError) as error:
        complain(str(error))
        return 1


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if not argv or argv[0] not in VERBS:
        known = ", ".join(sorted(verb for verb in VERBS if not verb.startswith("_")))
        raise UsageError(f"expected one of: {known}")
    verb, *rest = argv
    arguments = parse(verb, rest)
    if arguments.has("--help"):
        say(help_text(verb))
        return 0
    with Loop() as loop:
        return _function(verb)(loop, arguments, environ)


def _function(verb: str) -> Verb:
    # Imported when called: a client should start at once.
    if verb in ("list", "ping", "cancel"):
        from hermes_bridges.coms.client import peers

        return {"list": peers.list_peers, "ping": peers.ping, "cancel": peers.cancel}[verb]
    if verb in ("await", "reply"):
        from hermes_bridges.coms.client import mail

        return {"await": mail.await_response, "reply": mail.reply}[verb]
    if verb in ("questions", "answer"):
        from hermes_bridges.coms.client import operator

        return {"questions": operator.questions, "answer": operator.answer}[verb]
    if verb == "ask":
        from hermes_bridges.coms.client.ask import ask

        return ask
    if verb == "send":
        from hermes_bridges.coms.client.send import send

        return send
    from hermes_bridges.coms.client.waiter import listen

    return listen
