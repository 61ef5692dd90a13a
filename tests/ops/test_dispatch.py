"""The operator command as a whole: its verbs, its help, and how it ends."""

import os
import re
import sys
import types

import pytest

from hermes_bridges import __version__, ctl
from hermes_bridges.ctl import VERBS, main
from hermes_bridges.errors import BridgeError, ConfigError
from tests.ops.conftest import Operator


def test_the_installed_command_tells_its_version_and_every_verb(operator: Operator) -> None:
    for words in (["hermes-bridges"], ["python", "-m", "hermes_bridges"]):
        assert operator.run(*words, "--version").stdout == f"hermes-bridges {__version__}\n"
        done = operator.run(*words, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert all(re.search(rf"^  {verb} ", done.stdout, re.MULTILINE) for verb in VERBS)
    assert operator.run("bridge-donut", "--version").stdout == f"hermes-bridges {__version__}\n"
    if os.geteuid() == 0:
        assert operator.run("python", "-c", "import os; print(os.getuid())").stdout == "65534\n"


@pytest.mark.parametrize("words", [[], ["stat\x1bus"], ["--verbose"]])
def test_a_wrong_verb_is_told_on_stderr_and_nothing_of_it_raw(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, {}) == 2
    told = capsys.readouterr()
    assert told.out == "" and "\x1b" not in told.err and "--help" in told.err


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A verb that does what a test has it do."""
    module = types.SimpleNamespace(USAGE="usage: of the verb\n", run=None)
    monkeypatch.setitem(sys.modules, "hermes_bridges.ctl.made_up", module)
    monkeypatch.setitem(ctl.VERBS, "made-up", "a verb")
    return module


def test_the_words_after_the_verb_are_its_own(verb: types.SimpleNamespace) -> None:
    verb.run = lambda words, environ: len(words) + len(environ)
    assert main(["made-up", "a", "--", "--help"], {"X": "1"}) == 4


def test_help_is_the_usage_of_the_verb(
    verb: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["made-up", "a", "--help"], {}) == 0
    assert capsys.readouterr().out == "usage: of the verb\n"


@pytest.mark.parametrize(
    ("fault", "code", "lines"),
    [
        (ConfigError(["one \x1b[31m", "two"]), 2, 2),
        (BridgeError("a\nb"), 1, 1),
        (OSError(28, "No space left"), 1, 1),
        (KeyboardInterrupt(), 130, 0),
    ],
)
def test_how_a_verb_fails(
    verb: types.SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    fault: BaseException,
    code: int,
    lines: int,
) -> None:
    def run(words: object, environ: object) -> int:
        raise fault

    verb.run = run
    assert main(["made-up"], {}) == code
    told = capsys.readouterr().err
    assert told.count("\n") == lines and "\x1b" not in told
    assert all(line.startswith("hermes-bridges made-up: ") for line in told.splitlines())
