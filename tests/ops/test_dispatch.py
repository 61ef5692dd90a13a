"""The operator command as a whole: its verbs, its help, and how it ends."""

import importlib
import io
import os
import re
import sys
import types
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_bridges import __version__, ctl
from hermes_bridges.ctl import VERBS, main
from hermes_bridges.ctl.arguments import Arguments
from hermes_bridges.ctl.terminal import SafeLines, brief_age, safe
from hermes_bridges.errors import BridgeError, ConfigError
from tests.ops.asking import Ask
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


def test_the_help_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words, {}) == 0
        assert capsys.readouterr().out == ctl.usage() + "\n"
    assert main(["--version"], {}) == 0
    assert capsys.readouterr().out == f"hermes-bridges {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["status"]])
def test_output_that_cannot_be_written_is_told(ask: Ask, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        _, said = (child := ask.start(*words, stdout=full)).communicate(timeout=20)
    assert child.returncode == 1
    assert said == (
        "hermes-bridges: what was to be printed cannot be written: [Errno 28] No space left on"
        " device\n"
    )


def test_without_a_stdout(ask: Ask) -> None:
    child = ask.start("--help", preexec_fn=lambda: os.close(1))
    assert child.communicate(timeout=20)[1] == "hermes-bridges: stdout is closed\n"
    assert child.returncode == 1


def test_nobody_reads_what_is_printed(ask: Ask) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = ask.start("completion", "bash", stdout=writing)
    os.close(writing)
    assert child.communicate(timeout=20)[1] == "" and child.returncode == 141


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_each_verb_is_whole_and_fits(verb: str, capsys) -> None:
    assert main([verb, "--help"], {}) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: hermes-bridges {verb}")
    assert max(map(len, told.splitlines())) <= 85
    assert "Exit code:" in told
    module = importlib.import_module(f"hermes_bridges.ctl.{verb.replace('-', '_')}")
    parsers = [one for one in vars(module).values() if isinstance(one, Arguments)]
    for action in (action for parser in parsers for action in parser._actions):
        assert action.help, f"{action.dest} has no help"
        assert all(flag in told for flag in action.option_strings)


def test_wrong_words_of_each_verb_are_told_with_exit_code_2(capsys) -> None:
    for verb in VERBS:
        assert main([verb, "--no-such-flag"], {"HOME": "/nowhere"}) == 2, verb
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1, verb


# What is made fit for a terminal


def test_what_would_command_a_terminal_is_shown_instead() -> None:
    assert safe("plain ü 🙂 日本") == "plain ü 🙂 日本"
    assert safe("a\nb\tc\rd") == "a b c d"
    assert safe("\x1b[0m\x9b\x7f\u202e\u2028\ud800\U000e0041") == (
        "\\x1b[0m\\x9b\\x7f\\u202e\\u2028\\ud800\\ue0041"
    )
    assert safe("abcdef", 4) == "abc…" and safe("abcd", 4) == "abcd"


@given(st.text())
def test_nothing_gets_past_it(text: str) -> None:
    assert all(char.isprintable() or unicodedata.category(char) == "Zs" for char in safe(text))


def test_lines_of_others_are_made_safe_as_they_come() -> None:
    stream = io.StringIO()
    lines = SafeLines(stream)
    assert lines.write("a\x1b") == 2
    lines.write("b\nc\n")
    lines.write("d")
    lines.flush()
    assert stream.getvalue() == "a\\x1bb\nc\n"
    lines.close()
    assert stream.getvalue() == "a\\x1bb\nc\nd\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d"), (1e6, "12 d")],
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert brief_age(seconds) == text
