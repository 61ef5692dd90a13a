"""The command line, to the letter of contract section 10."""

import pytest

from hermes_bridges.errors import ConfigError
from hermes_bridges.telegram import arguments
from hermes_bridges.telegram.arguments import BAD_ID, SHAPE, USAGE, Arguments, UsageError, parse


def read(*words: str) -> Arguments:
    found = parse(words)
    assert isinstance(found, Arguments)
    return found


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(words)
    return str(caught.value)


def test_each_action() -> None:
    assert read("status") == Arguments(
        "status", "", None, "hub-liaison", False, False, None, None, None, False
    )
    assert read("install", "--profile", "work", "--force", "--restart").restart
    on = read("on", "123:7", "--profile=work")
    assert (on.chat, on.target, on.profile) == ("123:7", "telegram:123:7", "work")
    assert read("off", "123").target == "telegram:123"


def test_flags_may_stand_anywhere() -> None:
    assert read("--profile", "work", "--json", "on", "1").json
    assert read("--skill=hub-conductor", "install").skill == "hub-conductor"


def test_our_own_flags() -> None:
    on = read("on", "1", "--via", "systemd", "--project", "af", "--questions-dir", "x/../y")
    assert (on.via, on.project) == ("systemd", "af")
    assert on.questions_dir is not None and on.questions_dir.endswith("/y")
    assert on.questions_dir.startswith("/")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["start"],
        ["status", "1"],
        ["install", "x"],
        ["on"],
        ["off"],
        ["on", "1", "2"],
        ["1", "on"],
        ["--json"],
        ["on", "1", "--", "2"],
    ],
)
def test_the_wrong_shape_is_told(words: list[str]) -> None:
    assert refusal(*words) == SHAPE
    assert SHAPE == "Expected install, status, or an on/off action with one Telegram ID."


@pytest.mark.parametrize(
    "chat",
    [
        "",
        "telegram:123",
        "123:",
        ":7",
        "123:456:789",
        "1 2",
        "+1",
        "-100123:7",
        "-1",
        "abc",
        "12a",
        "٣",
        "123\n",
        "1:-7",
    ],
)
def test_the_wrong_id_is_told(chat: str) -> None:
    assert refusal("on", chat) == BAD_ID
    assert BAD_ID == (
        "Telegram ID must be digits, optionally followed by a colon and a numeric topic ID."
    )


@pytest.mark.parametrize("chat", ["-100123", "-100123:7", "5:6", "5"])
def test_a_negative_id_is_taken_after_two_dashes(chat: str) -> None:
    assert read("on", "--profile", "work", "--", chat).chat == chat


@pytest.mark.parametrize("chat", ["--5", "-", "-:7", "-5:-7", "-x", "--profile"])
def test_after_two_dashes_it_must_still_be_an_id(chat: str) -> None:
    assert refusal("off", "--", chat) == BAD_ID


@pytest.mark.parametrize("flag", ["--force", "--restart", "--skill=hub-liaison"])
@pytest.mark.parametrize("action", [["status"], ["on", "1"], ["off", "1"]])
def test_flags_of_install_are_refused_elsewhere(flag: str, action: list[str]) -> None:
    assert refusal(*action, flag) == f"{flag.partition('=')[0]} is valid only with install."


def test_flags_of_the_switch_are_refused_elsewhere() -> None:
    assert refusal("status", "--via=herdr") == "--via is valid only with on and off."
    assert refusal("install", "--project=a") == "--project is valid only with on and off."
    assert refusal("off", "1", "--questions-dir=/a") == (
        "--questions-dir is valid only with status and on."
    )


@pytest.mark.parametrize(
    "words, text",
    [
        (["status", "--x"], "unknown flag: --x"),
        (["status", "-p", "work"], "unknown flag: -p"),
        (["status", "--profile"], "--profile needs a value"),
        (["status", "--profile="], "--profile needs a value"),
        (["status", "--profile", "--json"], "--profile needs a value"),
        (["status", "--json=1"], "--json takes no value"),
        (["status", "--json", "--json"], "--json may only be specified once"),
        (["status", "--profile=a", "--profile=a"], "--profile may only be specified once"),
        (["status", "--profile", "../x"], "--profile must be a safe profile name"),
        (["status", "--profile", "-x"], "--profile must be a safe profile name"),
        (["install", "--skill", "x"], "--skill must be hub-liaison or hub-conductor"),
        (["on", "1", "--via", "x"], "--via must be herdr or systemd"),
        (["status", "--questions-dir", "a\nb"], "--questions-dir must be a directory"),
    ],
)
def test_other_faults_are_named(words: list[str], text: str) -> None:
    assert refusal(*words) == text


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", "-a", "a b", "ä"])
def test_a_project_must_have_a_good_name(name: str) -> None:
    with pytest.raises(ConfigError, match="Invalid project name: "):
        arguments.checked_project(name)
    assert not arguments.valid_project(name)
    if name:
        with pytest.raises(ConfigError, match="Invalid project name: "):
            parse(["on", "1", f"--project={name}"])


def test_help_and_version_win_over_faults_of_shape() -> None:
    assert parse(["--help"]) == "--help"
    assert parse(["on", "--version"]) == "--version"


def test_the_help_tells_every_flag() -> None:
    for flag in ("--profile", "--skill", "--force", "--restart", "--via", "--project", "--json"):
        assert flag in USAGE and flag in arguments.HELP
    assert all(len(line) <= 80 for line in arguments.HELP.splitlines())
