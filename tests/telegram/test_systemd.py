from pathlib import Path

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram.systemd import UserUnit

from .stage import Stage

NAME = "hermes-coms-bridge@af.service"
SHOW = f"--user show --property=LoadState {NAME}"


@pytest.mark.parametrize(
    "answer, text",
    [
        ("LoadState=not-found\n", "there is no user unit .*: run hermes-bridges install-units"),
        ("LoadState=masked\n", "cannot be used: LoadState=masked"),
        ("", "cannot be used: no LoadState"),
        ((1, "", "Failed to connect to bus\n"), "show failed \\(1\\): Failed to connect to bus"),
    ],
)
def test_a_unit_that_cannot_be_used(
    stage: Stage, answer: str | tuple[int, str, str], text: str
) -> None:
    stage.systemctl({SHOW: answer})
    with pytest.raises(BridgeError, match=text):
        UserUnit(stage.environ, "af").must_exist()


def test_a_host_without_systemd(stage: Stage) -> None:
    environ = stage.environ | {"PATH": str(stage.bin)}
    with pytest.raises(BridgeError, match="systemctl was not found on PATH"):
        UserUnit(environ, "af").must_exist()


@pytest.mark.parametrize("environ", [{}, {"HOME": "here"}, {"XDG_CONFIG_HOME": "there"}])
def test_without_a_home_there_is_no_place_for_it(environ: dict[str, str]) -> None:
    with pytest.raises(BridgeError, match="neither XDG_CONFIG_HOME nor HOME"):
        UserUnit(environ, "af")


def test_nothing_in_a_word_is_special_to_systemd(stage: Stage, tmp_path: Path) -> None:
    stage.systemctl({"--user daemon-reload": "", f"--user restart {NAME}": ""})
    environ = stage.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    UserUnit(environ, "af").start(["/a b/c", 'q"\\', "%h $HOME ;", "'"])
    path = tmp_path / "config/systemd/user" / f"{NAME}.d" / "50-bridge-telegram.conf"
    assert path.read_text().splitlines()[-1] == (
        r'ExecStart="/a b/c" "q\"\\" "%%h $$HOME ;" "'
        """'" $BRIDGE_COMS_FLAGS"""
    )


def test_a_start_that_fails_is_told(stage: Stage) -> None:
    stage.systemctl({"--user daemon-reload": "", f"--user restart {NAME}": (1, "", "no")})
    with pytest.raises(BridgeError, match=r"systemctl --user restart failed \(1\): no"):
        UserUnit(stage.environ, "af").start(["x"])
