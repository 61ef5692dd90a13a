"""A prompt whose response is fetched later: send, and the start of its waiter."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from hermes_bridges.coms.client.args import Arguments
from hermes_bridges.coms.client.ask import Errand, ask, compose, delivery
from hermes_bridges.coms.client.loop import READ, Loop
from hermes_bridges.coms.client.spool import Spool
from hermes_bridges.coms.client.terminal import say
from hermes_bridges.coms.client.waiter import READY
from hermes_bridges.core import installation
from hermes_bridges.core.sdnotify import CHILD_UNSET
from hermes_bridges.errors import BridgeError

# Seconds for the start of the waiter, on a small and busy host.
START_LIMIT = 10.0
_OUTPUT_MAX = 4096
# Run from this very package, wherever it lies, and never from what lies in the working directory.
_BOOT = """\
import os, sys
root = sys.argv.pop(1)
sys.path.insert(0, root)
import hermes_bridges
sys.path.remove(root)
from hermes_bridges.coms.client import main
sys.exit(main(sys.argv[1:], os.environ))
"""


def send(loop: Loop, arguments: Arguments, environ: Mapping[str, str]) -> int:
    """Send a prompt, leave a waiter behind, print the msg_id."""
    if arguments.has("--await"):
        return ask(loop, arguments, environ)
    errand = compose(loop, arguments, environ)
    deadline = loop.clock() + errand.limit_ms / 1000
    spool = Spool(errand.scope)
    spool.prepare()
    with contextlib.ExitStack() as failure:
        # Without its marker a waiter ends by itself, should it not hear of the end.
        spool.mark(errand.msg_id, errand.peer.name)
        failure.callback(spool.unmark, errand.msg_id)
        waiter = _start(errand, environ)
        failure.callback(_end, waiter)
        _await_ready(loop, waiter)
        with delivery(loop, errand, deadline, lambda: False):
            failure.pop_all()
    say(errand.msg_id)
    return 0


def _start(errand: Errand, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    flags = {
        "--project": errand.scope.project,
        "--name": errand.scope.name,
        "--session": errand.who.session,
        "--message": errand.msg_id,
        "--ttl": str(errand.limit_ms),
    }
    words = [word for pair in flags.items() for word in pair]
    return subprocess.Popen(
        [*installation.python(), "-c", _BOOT, installation.place(), "_listen", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={name: value for name, value in environ.items() if name not in CHILD_UNSET},
    )


def _await_ready(loop: Loop, waiter: subprocess.Popen[bytes]) -> None:
    pipe = waiter.stdout
    assert pipe is not None
    said = bytearray()
    ended = False

    def read(events: int) -> None:
        nonlocal ended
        data = os.read(pipe.fileno(), _OUTPUT_MAX)
        said.extend(data)
        ended = not data or len(said) > _OUTPUT_MAX

    loop.watch(pipe, READ, read)
    try:
        loop.run(lambda: ended or READY in said, loop.clock() + START_LIMIT)
    finally:
        loop.forget(pipe)
        pipe.close()
    if READY not in said:
        reason = said.decode("utf-8", "replace").strip() or "it said nothing"
        raise BridgeError(f"the waiter did not start: {reason}")


def _end(waiter: subprocess.Popen[bytes]) -> None:
    """End the waiter's group, whatever it has come to."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(waiter.pid, signal.SIGTERM)
