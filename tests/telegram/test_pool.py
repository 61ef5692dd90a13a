import json
import os
import subprocess
from pathlib import Path

import pytest

from hermes_bridges.telegram import pool


def write(root: Path, text: str) -> None:
    agents = root / ".pi" / "coms" / "projects" / "af" / "agents"
    agents.mkdir(parents=True, exist_ok=True)
    (agents / "user-remote.json").write_text(text)


def test_the_process_of_the_entry(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert pool.bridge_process(home, "af") is None
    write(tmp_path, json.dumps({"name": "user-remote", "pid": 77}))
    assert pool.bridge_process(home, "af") == 77
    assert pool.bridge_process(home, "other") is None
    coms = {"HOME": "/nowhere", "PI_COMS_DIR": str(tmp_path / ".pi" / "coms")}
    assert pool.bridge_process(coms, "af") == 77


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "7"}', '{"pid": true}', '{"pid": -1}', "{}"])
def test_an_odd_entry_names_nobody(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert pool.bridge_process({"HOME": str(tmp_path)}, "af") is None


def test_waiting_for_an_end() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert pool.wait_for_end(process.pid, 0.05) is False
    finally:
        process.kill()
    assert pool.wait_for_end(process.pid, 10) is True
    process.wait()
    assert pool.wait_for_end(process.pid, 10) is True
    assert pool.wait_for_end(os.getpid(), 0) is False
