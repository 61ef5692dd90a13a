"""Runs one command of another program than ``hermes``: a time limit, no shell, no pipes.

Output goes to files without a name, so that a grandchild that keeps them open holds nobody up.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram.hermes_facts import plain

OUTPUT_LIMIT = 1 << 20
"""Bytes of an output that are read."""
_QUOTE_LIMIT = 300


def run(argv: Sequence[str], environ: Mapping[str, str], limit: float) -> str:
    """What the command printed. Raises BridgeError when it fails or takes over ``limit`` seconds.

    Then nothing of its process group is left.
    """
    told = f"{argv[0]} {argv[1]} {argv[2]}" if len(argv) > 2 else " ".join(argv)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environ),
                process_group=0,
            )
        except FileNotFoundError:
            raise BridgeError(f"{argv[0]} was not found on PATH") from None
        except (OSError, ValueError) as error:
            raise BridgeError(f"{argv[0]} could not be started: {error}") from None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise BridgeError(f"{told} took more than {limit:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            reason = _read(err).strip() or _read(out).strip() or "it said nothing"
            raise BridgeError(f"{told} failed ({code}): {reason[-_QUOTE_LIMIT:]}")
        return _read(out)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return plain(file.read(OUTPUT_LIMIT).decode("utf-8", "replace"))
