"""``bin/demo telegram``: the whole loop, shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hermes_versions
from tests.conftest import ROOT

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]


def test_the_demo_shows_the_whole_loop_and_leaves_nothing(short_tmp: Path) -> None:
    hermes = hermes_versions.hermes("0.19.0")
    path = f"{hermes.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "hermes_bridges.standins.demo", "telegram", "--auto"],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "TMPDIR": str(short_tmp)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("install │ hub-liaison installed", "ready          yes", '"Asia"', "Passed on: 2"):
        assert text in done.stdout
    assert list(short_tmp.iterdir()) == []
