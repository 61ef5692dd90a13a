"""The client's command line: flags, variables, exit codes of what cannot be used."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms import client
from hermes_bridges.coms.client.args import GRAMMARS, Arguments, UsageError, help_text, parse
from hermes_bridges.coms.client.scope import coms_dir, fresh_id, scope_of, stamp, timeout_ms
from hermes_bridges.coms.verbs import VERBS
from hermes_bridges.errors import ConfigError
from tests.coms.client_stage import COMMAND, ROOT, Pool

HOME = {"HOME": "/home/someone"}


@pytest.fixture
def pool(short_tmp: Path) -> Iterator[Pool]:
    pool = Pool(short_tmp)
    yield pool
    pool.close()


def test_flags_stand_anywhere_and_take_their_value_both_ways() -> None:
    given = parse("ask", ["--name=a", "peer", "one", "--timeout", "5", "-2", "two"])
    assert given.operands == ("peer", "one", "-2", "two")
    assert given.value("--name") == "a" and given.value("--timeout") == "5"
    assert given.value("--project") is None and not given.has("--all")


def test_a_double_dash_ends_the_flags() -> None:
    given = parse("ask", ["--all", "--", "peer", "--name", "x"])
    assert given.operands == ("peer", "--name", "x") and given.has("--all")


def test_an_assigned_value_may_begin_with_dashes() -> None:
    assert parse("ask", ["p", "t", "--context=--x=y"]).value("--context") == "--x=y"


def test_only_option_may_be_repeated() -> None:
    given = parse("ask", ["p", "t", "--option", "a", "--option=b"])
    assert given.values("--option") == ("a", "b") and given.values("--nothing") == ()


@pytest.mark.parametrize(
    ("verb", "words", "told"),
    [
        ("ask", ["p", "t", "--nam", "x"], "unknown flag: --nam"),
        ("ask", ["p", "t", "--nam=x"], "unknown flag: --nam"),
        ("ask", ["p", "t", "--name", "a", "--name", "a"], "--name may only be specified once"),
        ("ask", ["p", "t", "--all", "--all"], "--all may only be specified once"),
        ("ask", ["p", "t", "--all=yes"], "--all takes no value"),
        ("ask", ["p", "t", "--name"], "--name needs a value"),
        ("ask", ["p", "t", "--name="], "--name needs a value"),
        ("ask", ["p", "t", "--name", ""], "--name needs a value"),
        ("ask", ["p", "t", "--name", "--project", "x"], "--name needs a value"),
        ("ask", ["p", "t", "--await"], "unknown flag: --await"),
        ("ask", ["p"], "expected PEER TEXT..., got 1 argument(s)"),
        ("await", [], "expected MSG_ID, got no argument(s)"),
        ("await", ["a", "b"], "unexpected argument: b"),
        ("list", ["x"], "unexpected argument: x"),
        ("await", ["x", "--all"], "unknown flag: --all"),
    ],
)
def test_D6_a_wrong_flag_is_refused_and_named(pool: Pool, capsys, verb, words, told) -> None:
    peer = pool.peer("p")
    assert client.main([verb, *words], pool.environ) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"{told}\nusage: bridge-coms {verb} ")
    assert peer.nothing_more()


@pytest.mark.parametrize("argv", [[], ["frobnicate"], [""], ["--name", "x"]])
def test_no_verb_or_an_unknown_one_names_those_there_are(capsys, argv) -> None:
    assert client.main(argv, HOME) == 2
    err = capsys.readouterr().err
    assert "answer, ask, await, cancel, list, ping, questions, reply, send" in err
    assert "_listen" not in err


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_names_every_flag_and_needs_nothing(capsys, verb) -> None:
    assert client.main([verb, "--help"], {}) == 0
    out = capsys.readouterr().out
    assert out == help_text(verb) + "\n"
    for flag in GRAMMARS[verb].flags:
        assert f"  {flag.name}" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_help_of_answer_says_what_a_filter_of_the_daemon_does() -> None:
    said = " ".join(help_text("answer").split())
    assert "a daemon with --allow-from rejects the answer as unauthorized" in said


def test_the_verbs_are_those_that_have_a_grammar() -> None:
    assert client.VERBS is VERBS and set(GRAMMARS) == VERBS


# Where a call belongs.


def of(*words: str) -> Arguments:
    return parse("list", words)


def test_project_and_name_come_from_flags_then_variables_then_defaults() -> None:
    assert scope_of(of(), HOME)[:2] == ("default", "coms-client")
    environ = {**HOME, "COMS_CLI_PROJECT": "p.1", "COMS_CLI_NAME": "n_1"}
    assert scope_of(of(), environ)[:2] == ("p.1", "n_1")
    assert scope_of(of("--project", "q", "--name", "m"), environ)[:2] == ("q", "m")
    empty = {**HOME, "COMS_CLI_PROJECT": "", "COMS_CLI_NAME": ""}
    assert scope_of(of(), empty)[:2] == ("default", "coms-client")


@pytest.mark.parametrize("project", ["a/b", "..", "a..b", ".a", "a\n", "ä", "a b"])
def test_D7_a_wrong_project_is_one_line(pool: Pool, capsys, project) -> None:
    assert client.main(["list", "--project", project], pool.environ) == 2
    assert "--project: invalid project name" in capsys.readouterr().err
    environ = {**pool.environ, "COMS_CLI_PROJECT": project}
    assert client.main(["list"], environ) == 2
    assert "COMS_CLI_PROJECT: invalid project name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["projects", "a.b", "../x", "x" * 65, "a\n", "-a", "é"])
def test_D7_a_wrong_name_is_one_line(pool: Pool, capsys, name) -> None:
    assert client.main(["list", "--name", name], pool.environ) == 2
    assert "--name: invalid coms name" in capsys.readouterr().err
    environ = {**pool.environ, "COMS_CLI_NAME": name}
    assert client.main(["list"], environ) == 2
    assert "COMS_CLI_NAME: invalid coms name" in capsys.readouterr().err
    for words in (["ask", name, "q"], ["ping", name], ["cancel", name, "0" * 26]):
        assert client.main(words, pool.environ) == 2
        assert "invalid peer name" in capsys.readouterr().err


def test_the_coms_directory_is_the_variable_or_below_home() -> None:
    assert coms_dir(HOME) == "/home/someone/.pi/coms"
    assert coms_dir({**HOME, "PI_COMS_DIR": ""}) == "/home/someone/.pi/coms"
    assert coms_dir({"PI_COMS_DIR": "/x/../y"}) == "/y"
    assert coms_dir({"PI_COMS_DIR": "rel"}) == os.path.join(os.getcwd(), "rel")


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_the_error_says_what_to_set(capsys, environ) -> None:
    assert client.main(["list"], environ) == 1
    assert "HOME is not set to a directory (set it, or PI_COMS_DIR)" in capsys.readouterr().err
    assert client.main(["questions"], {**environ, "PI_COMS_DIR": "/x"}) == 1
    assert "HOME is not set to a directory (set it)" in capsys.readouterr().err


def test_a_directory_that_no_peer_could_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be told"):
        coms_dir({"PI_COMS_DIR": os.fsdecode(b"/x\xff")})


# Time limits.


def limit(*words: str, **environ: str) -> int:
    return timeout_ms(parse("ping", ["p", *words]), environ)


def test_the_timeout_is_the_flag_then_the_variable_then_five_minutes() -> None:
    assert limit() == 300_000
    assert limit(PI_COMS_TIMEOUT_MS="") == 300_000
    assert limit(PI_COMS_TIMEOUT_MS="1500") == 1500
    assert limit("--timeout", "7", PI_COMS_TIMEOUT_MS="x") == 7
    assert limit("--timeout", "2147483647") == 2**31 - 1
    assert limit("--timeout", "0000000000000017") == 17


@pytest.mark.parametrize(
    "text",
    ["0", "00", "-1", "+5", "1e3", "1.5", "5s", "0x10", "2147483648", "9" * 5000, "٣", "1\n", " 1"],
)
def test_L10_another_timeout_is_refused_and_none_overflows(pool: Pool, capsys, text) -> None:
    assert client.main(["ping", "p", f"--timeout={text}"], pool.environ) in (1, 2)
    with pytest.raises(UsageError, match=r"(?s)--timeout: .* from 1 to 2147483647"):
        limit(f"--timeout={text}")
    with pytest.raises(UsageError, match="PI_COMS_TIMEOUT_MS: "):
        limit(PI_COMS_TIMEOUT_MS=text)


def test_L10_the_longest_timeout_is_a_wait_and_not_none(pool: Pool, capsys) -> None:
    """The response comes after the first turn of the wait."""
    peer = pool.peer()
    child = pool.start("ask", "user-remote", "q", "--timeout", "2147483647")
    sent = peer.next("prompt")
    assert child.stderr is not None and b"2147483647 ms" in child.stderr.readline()
    assert peer.respond(sent, "late")["type"] == "ack"
    assert child.wait(20) == 0


# Small parts.


def test_ids_and_stamps_have_their_form() -> None:
    first = fresh_id(lambda: 1_700_000_000_000_000_000, lambda size: b"\xff" * size)
    assert first == "01HF7YAT00ZZZZZZZZZZZZZZZZ"
    assert fresh_id() != fresh_id()
    assert len(stamp()) == 24 and stamp()[10] == "T" and stamp().endswith("Z")


def test_the_client_starts_without_what_it_does_not_need(pool: Pool) -> None:
    """No daemon, no logging, no subprocess: a shell calls it often."""
    code = (
        "import os, sys; from hermes_bridges.coms import client;"
        "assert client.main(['list'], os.environ) == 0;"
        "print(sorted({'logging', 'subprocess', 'threading', 'argparse', 'asyncio',"
        " 'hermes_bridges.coms.desk'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], env=pool.environ, capture_output=True)
    assert done.stdout.splitlines()[1:] == [b"[]"], done.stderr


def test_the_command_dispatches_every_verb_to_the_client(pool: Pool) -> None:
    """`python -m hermes_bridges.coms <verb>`, from a directory without the package."""
    for verb in sorted(VERBS):
        done = subprocess.run(
            [*COMMAND, verb, "--help"], env=pool.environ, cwd=pool.root, capture_output=True
        )
        assert done.returncode == 0 and f"bridge-coms {verb}".encode() in done.stdout
    assert (ROOT / "hermes_bridges").is_dir()


def test_an_interrupt_outside_of_a_wait_is_130_too(monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hermes_bridges.coms.client.parse", interrupted)
    assert client.main(["list"], HOME) == 130
