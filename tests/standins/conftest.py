"""Demos that are started, and ended with the test."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standins.demo_run import Run


@pytest.fixture
def start(short_tmp: Path) -> Iterator[Callable[..., Run]]:
    """Starts demos, and makes sure that they have ended and left nothing."""
    runs: list[Run] = []

    def begin(*arguments: str, stdin: int = subprocess.DEVNULL, **environ: str) -> Run:
        runs.append(Run(short_tmp, *arguments, stdin=stdin, **environ))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.end()
    assert list(short_tmp.iterdir()) == [], "the demo left files behind"
