"""Asks the operator command inside the test, about a HOME and a host of the test's own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermes_bridges.core.lifesigns import process_start
from hermes_bridges.ctl import main
from tests.harness.process import CHECKOUT, INHERITED


class Told(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Ask:
    """Call it with the words of a command line. ``environ`` may be changed."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.bin = root / "ctl-bin"
        self.bin.mkdir()
        self.environ: dict[str, str] = {
            "HOME": str(root / "h"),
            "PATH": f"{self.bin}:/usr/bin:/bin",
        }
        self._capsys = capsys
        self.systemctl("exit 1")

    def __call__(self, *words: str, **more: str) -> Told:
        self._capsys.readouterr()
        code = main(words, self.environ | more)
        told = self._capsys.readouterr()
        return Told(code, told.out, told.err)

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """The command in a process of its own, out of the checkout; the caller ends it."""
        inherited = {n: v for n, v in os.environ.items() if n.startswith(INHERITED)}
        return subprocess.Popen(
            [sys.executable, "-m", "hermes_bridges", *words],
            env={**inherited, "PYTHONPATH": CHECKOUT, **self.environ},
            text=True,
            **{"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )

    def status(self, *words: str, **more: str) -> Mapping[str, Any]:
        """What ``status --json`` tells of the only bridge."""
        (one,) = self("status", "--json", *words, **more).json["bridges"]
        found: Mapping[str, Any] = one
        return found

    def systemctl(self, script: str, name: str = "systemctl") -> None:
        """Let this shell script be the ``systemctl`` of the host."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def status_file(path: Path, **more: Any) -> dict[str, Any]:
    """Write a status file as a daemon of this process would; ``values`` are added to the usual."""
    values = {
        "beat": time.monotonic(),
        "process_start": process_start("self"),
        "started_at": "2026-11-30T12:00:00.000Z",
        "state": "running",
        "stuck_seconds": 0,
        **more.pop("values", {}),
    }
    whole = {
        "at": "2026-11-30T12:00:05.000Z",
        "pid": os.getpid(),
        "version": "9.9.9",
        "counters": {},
        "values": values,
        **more,
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(whole))
    return whole
