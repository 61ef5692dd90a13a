"""Programs of the host's distribution, installed for the tests where they are missing."""

import fcntl
import os
import shutil
import subprocess

import pytest

from tests.conftest import ROOT
from tests.ops.conftest import SYSTEM_PATH

_LIMIT = 300  # seconds, for a slow mirror
# As a package's own scripts ask: no question, and nothing is started.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def program(name: str, package: str) -> str:
    """The path of a program; its package is installed if need be, by one test at a time."""
    lock = os.open(ROOT / "tests/ops", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = shutil.which(name, path=SYSTEM_PATH)
        if found is None:
            _install(package)
            found = shutil.which(name, path=SYSTEM_PATH)
    finally:
        os.close(lock)
    assert found, f"the package {package} brought no {name}"
    return found


def _install(package: str) -> None:
    if os.geteuid() != 0:
        pytest.fail(f"the package {package} is missing, and only root could install it")
    install = ["install", "-y", "--no-install-recommends", package]
    if _apt(*install).returncode != 0:
        # The lists of a bare machine are old, or not there at all.
        _apt("update")
        done = _apt(*install)
        assert done.returncode == 0, f"the package {package} cannot be installed\n{done.stdout}"


def _apt(*words: str) -> "subprocess.CompletedProcess[str]":
    options = ("-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2")
    return subprocess.run(
        ["apt-get", *options, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT,
        cwd="/",
        env={**os.environ, "PATH": SYSTEM_PATH, **_QUIET},
    )
