"""What the demo of the whole loop says where it cannot be shown; it is shown in tests/gateway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMMAND = [sys.executable, "-m", "hermes_bridges.standins.demo", "telegram", "--auto"]


@pytest.mark.parametrize(
    "script, text",
    [
        (None, "there is no hermes on PATH, and this demo needs a real one"),
        ("exit 3", "demo: failed: bridge-telegram failed, exit code 1"),
    ],
)
def test_what_cannot_be_shown_is_told(short_tmp: Path, script: str | None, text: str) -> None:
    programs = short_tmp / "bin"
    programs.mkdir()
    if script is not None:
        (programs / "hermes").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "hermes").chmod(0o755)
    environ = os.environ | {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(short_tmp)}
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and text in done.stderr, done.stderr
    assert [path.name for path in short_tmp.iterdir()] == ["bin"]


def test_a_host_without_openssl_is_told(short_tmp: Path) -> None:
    (short_tmp / "hermes").write_text("#!/bin/sh\n")
    (short_tmp / "hermes").chmod(0o755)
    environ = os.environ | {"PATH": str(short_tmp), "TMPDIR": str(short_tmp)}
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and "openssl could make no certificate" in done.stderr
    assert [path.name for path in short_tmp.iterdir()] == ["hermes"]
