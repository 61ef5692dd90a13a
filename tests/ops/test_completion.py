"""The completion script: what it offers is what the commands take."""

import subprocess
from pathlib import Path

import pytest

from hermes_bridges.coms.client.args import GRAMMARS
from hermes_bridges.coms.settings import TABLE
from hermes_bridges.ctl import VERBS, completion
from hermes_bridges.donut.settings import FLAGS
from tests.conftest import ROOT
from tests.ops.asking import Ask
from tests.ops.conftest import SYSTEM_PATH, Operator

SHIPPED = ROOT / "contrib/completion/hermes-bridges.bash"


def offered(*words: str, cwd: str = "/", script: str = "") -> list[str]:
    """What bash would offer for the last of these words."""
    program = (
        f"{script or completion.script()}\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        '_hermes_bridges; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-uc", program, "bash", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PATH": SYSTEM_PATH},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


def test_the_shipped_script_is_the_one_that_is_printed() -> None:
    made = "python -m hermes_bridges completion bash > contrib/completion/hermes-bridges.bash"
    assert SHIPPED.read_text() == completion.script(), f"make it anew: {made}"


def test_verbs_and_their_flags() -> None:
    assert offered("hermes-bridges", "") == [*VERBS, "--help", "--version"]
    assert offered("/usr/bin/hermes-bridges", "re") == ["reset-state"]
    assert offered("hermes-bridges", "status", "--j") == ["--json"]
    assert offered("hermes-bridges", "tail", "d") == ["donut"]
    assert offered("hermes-bridges", "completion", "") == ["bash", "--help"]
    assert offered("hermes-bridges", "tail", "coms", "--lines", "") == []
    assert "--only" in offered("hermes-bridges", "rotate-logs", "--")
    assert "--dry-run" in offered("hermes-bridges", "install-units", "--")


def test_flags_of_the_bridges_are_those_of_their_tables() -> None:
    assert set(offered("bridge-donut", "--")) == {one.flag for one in FLAGS if one.flag}
    assert set(offered("bridge-coms", "--")) == {one.flag for one in TABLE if one.flag}
    client = {verb for verb in GRAMMARS if not verb.startswith("_")}
    words = offered("bridge-coms", "")
    assert client <= set(words) and "_listen" not in words
    for verb in client:
        flags = {flag.name for flag in GRAMMARS[verb].flags} | {"--help"}
        assert set(offered("bridge-coms", verb, "--")) == flags
    assert offered("bridge-coms", "--project", "x", "--pol") == ["--poll-ms"]
    assert offered("bridge-coms", "--log-format", "") == ["text", "json"]


def test_after_two_dashes_check_offers_the_flags_of_the_bridge() -> None:
    assert offered("hermes-bridges", "check", "coms", "--", "--pol") == ["--poll-ms"]
    assert offered("hermes-bridges", "check", "donut", "--", "--env") == ["--env-file"]
    assert offered("hermes-bridges", "check", "coms", "--") == ["--help"]


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a place").mkdir()
    names = offered("bridge-donut", "--env-file", "a", cwd=str(tmp_path))
    assert sorted(names) == ["a file", "a place"]
    assert offered("bridge-coms", "--questions-dir", "", cwd=str(tmp_path)) == ["a place"]


def test_it_is_printed(ask: Ask) -> None:
    assert ask("completion", "bash") == (0, completion.script(), "")


@pytest.mark.parametrize("words", [[], ["zsh"]])
def test_another_shell_is_refused(ask: Ask, words: list[str]) -> None:
    assert ask("completion", *words).code == 2


def test_the_installed_command_prints_it(operator: Operator) -> None:
    done = operator.run("hermes-bridges", "completion", "bash")
    assert done.stdout == SHIPPED.read_text()
    assert offered("hermes-bridges", "stat", script=done.stdout) == ["status"]
    registered = operator.run(
        "/bin/bash", "-c", f"source <({operator.bin}/hermes-bridges completion bash); complete -p"
    )
    for name in ("hermes-bridges", "bridge-coms", "bridge-donut"):
        assert f"complete -F _hermes_bridges {name}" in registered.stdout
