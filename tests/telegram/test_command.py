import time
from pathlib import Path

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import command
from tests.conftest import wait

ENVIRON = {"PATH": "/usr/bin:/bin"}


def shell(text: str, limit: float = 10.0) -> str:
    return command.run(["sh", "-c", text], ENVIRON, limit)


def failure(text: str, limit: float = 10.0) -> str:
    with pytest.raises(BridgeError) as caught:
        shell(text, limit)
    return str(caught.value)


def test_what_it_prints_is_the_answer() -> None:
    assert shell("printf 'a\\033[31mb'; cat; echo no >&2; echo $PATH") == "ab/usr/bin:/bin\n"


def test_why_it_failed_is_told() -> None:
    assert failure("echo out; echo why >&2; exit 3").endswith("failed (3): why")
    assert failure("echo out; exit 3").endswith("failed (3): out")
    assert failure("exit 3").endswith("failed (3): it said nothing")
    assert failure("kill -9 $$").endswith("failed (-9): it said nothing")


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match=r"^nosuch was not found on PATH$"):
        command.run(["nosuch", "x"], ENVIRON, 1)
    (tmp_path / "odd").write_text("x")
    with pytest.raises(BridgeError, match=r"could not be started: .*Permission denied"):
        command.run([str(tmp_path / "odd")], ENVIRON, 1)
    with pytest.raises(BridgeError, match="could not be started"):
        command.run(["sh", "a\0b"], ENVIRON, 1)


def test_KH08_a_grandchild_that_keeps_the_output_open_holds_nobody_up() -> None:
    started = time.monotonic()
    assert shell("sleep 30 & echo $!", 20).strip().isdigit()
    assert time.monotonic() - started < 10


def test_KH08_at_the_limit_nothing_of_it_is_left(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"sleep 60 & echo $! > {pids}; echo $$ >> {pids}; sleep 60"
    started = time.monotonic()
    assert "took more than 0.3 s" in failure(text, 0.3)
    assert time.monotonic() - started < 10
    assert wait(lambda: not any(map(runs, pids.read_text().split())), 5)


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
