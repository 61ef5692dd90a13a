"""``bin/demo donut`` with a real Hermes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hermes_versions
from tests.conftest import ROOT

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2.post1"])
def test_the_demo_shows_all_of_it_and_leaves_nothing(short_tmp: Path, version: str) -> None:
    hermes = hermes_versions.hermes(version)
    done = subprocess.run(
        [sys.executable, "-m", "hermes_bridges.standins.demo", "donut", "--auto"],
        cwd=ROOT,
        env=os.environ
        | {"PATH": f"{hermes.parent}:{os.environ['PATH']}", "TMPDIR": str(short_tmp)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (f"Hermes is {hermes}", "is typing …", "breaker is open", "breaker is closed"):
        assert text in done.stdout
    assert list(short_tmp.iterdir()) == []
