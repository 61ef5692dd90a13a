"""A demo as a child process."""

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


class Run:
    """One demo as a child process whose temporary files lie in a directory of the test."""

    def __init__(
        self, place: Path, *arguments: str, stdin: int = subprocess.DEVNULL, **environ: str
    ) -> None:
        self.place = place
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hermes_bridges.standins.demo", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(place)} | environ,
        )

    def until(self, text: str) -> None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while text not in self.said:
            ready, _, _ = select.select([fd], [], [], 30)
            piece = os.read(fd, 65536) if ready else b""
            assert piece, f"no {text!r} in:\n{self.said}"
            self.said += piece.decode()

    def end(self) -> int:
        out, _ = self.process.communicate(timeout=60)
        self.said += out.decode()
        return self.process.returncode


def gone(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True
