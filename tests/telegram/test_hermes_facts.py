"""The real outputs of every version, and what must not be taken for one."""

from pathlib import Path

import pytest

from hermes_bridges.telegram import hermes_facts as facts
from hermes_bridges.telegram.hermes_facts import Gateway, Terminal, Unreadable

OUTPUTS = Path(__file__).parent / "outputs"
VERSIONS = tuple(sorted(path.name for path in OUTPUTS.iterdir()))
MULTIPLEXED = ("0.21.5.post2", "0.22.2.post1")

each_version = pytest.mark.parametrize("version", VERSIONS)


def output(version: str, name: str) -> str:
    return (OUTPUTS / version / f"{name}.txt").read_text(encoding="utf-8")


def test_there_are_outputs_of_four_versions() -> None:
    assert VERSIONS == ("0.14.0", "0.19.0", "0.21.5.post2", "0.22.2.post1")


@each_version
def test_gateways_that_do_not_run(version: str) -> None:
    assert facts.gateways(output(version, "gateway-list-stopped")) == (
        Gateway("default", False, None, False),
        Gateway("work", False, None, False),
    )


def test_a_gateway_that_runs() -> None:
    assert facts.gateways(
        "Gateways:\n"
        "  ✓ default (current)        — PID 27958\n"
        "  ✗ work                     — not running\n\n"
    ) == (Gateway("default", True, 27958, False), Gateway("work", False, None, False))


def test_a_gateway_that_serves_another_profile() -> None:
    assert facts.gateways(
        "Gateways:\n"
        "  ✓ default (current)        — PID 23442\n"
        "  ✓ work                     — served by the default multiplexer\n"
    ) == (Gateway("default", True, 23442, False), Gateway("work", True, None, True))


def test_a_gateway_whose_process_is_not_told() -> None:
    # So the line looks when its pid file cannot be read at that moment.
    told = facts.gateways("Gateways:\n  ✓ default (current)       \n")
    assert told == (Gateway("default", True, None, False),)


def test_colours_and_odd_line_ends_do_not_matter() -> None:
    told = facts.gateways("\x1b[1mGateways:\x1b[0m\r\n  \x1b[32m✓\x1b[0m work  — PID 5\r\n")
    assert told == (Gateway("work", True, 5, False),)


def test_no_profiles_are_no_gateways() -> None:
    assert facts.gateways("No profiles found.\n") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Unable to list profiles.\n",
        "Gateways:\n  ✓ ../x                   — PID 5\n",
        "Gateways:\n  ? default                — PID 5\n",
        "Gateways:\n  ✓ default                — PID 5\n  something else\n",
        "Gateways:\n✓ default — PID 5\n",
        "Gateways:\n  ✓ default — PID 5\n  ✗ default — not running\n",
        "Gateways:\n  ✓ default and more\n",
    ],
)
def test_a_list_of_gateways_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="`hermes gateway list`"):
        facts.gateways(text)


def test_what_cannot_be_read_is_quoted_in_part() -> None:
    with pytest.raises(Unreadable) as caught:
        facts.gateways(f"Gateways:\n\x1b]0;title\x07{'x' * 500}\n")
    assert "x" * 100 in str(caught.value) and "x" * 101 not in str(caught.value)
    assert "title" not in str(caught.value)


@each_version
def test_the_path_of_a_profile(version: str) -> None:
    text = output(version, "profile-show")
    assert facts.profile_path(text, "work") == "/home/pat/.hermes/profiles/work"
    with pytest.raises(Unreadable, match="another profile"):
        facts.profile_path(text, "default")
    with pytest.raises(Unreadable, match="Profile:"):
        facts.profile_path(output(version, "profile-missing"), "nope")


@pytest.mark.parametrize(
    "text",
    [
        "Profile: work\n",
        "Profile: work\nPath:\n",
        "Profile: work\nPath:    profiles/work\n",
        "Profile: work\nPath:    ~/.hermes\n",
        "Profile: work\nPath:    /a\nPath:    /b\n",
        "Path:    /a\n",
    ],
)
def test_a_path_that_is_not_clear_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="`hermes profile show work`"):
        facts.profile_path(text, "work")


@each_version
@pytest.mark.parametrize("shape", ["skills-list", "skills-colour"])
def test_the_skills_that_are_enabled(version: str, shape: str) -> None:
    assert facts.enabled_skills(output(version, shape)) == {"hub-liaison"}
    assert facts.enabled_skills(output(version, "skills-none")) == set()


@each_version
def test_a_table_with_cut_names_is_refused(version: str) -> None:
    with pytest.raises(Unreadable, match="skills list"):
        facts.enabled_skills(output(version, "skills-narrow"))


def test_only_what_is_called_enabled_counts() -> None:
    table = (
        "┃ Name ┃ Category ┃ Status ┃\n"
        "│ hub-liaison │ enabled │ disabled │\n"
        "│ hub-liaison-2 │ x │ enabled │\n"
        "2 local, hub-liaison enabled\n"
    )
    assert facts.enabled_skills(table) == {"hub-liaison-2"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hub-liaison enabled\n",
        "┃ Name ┃ Trust ┃\n│ hub-liaison │ local │\n",
        "┃ Name ┃ Status ┃\n│ hub-liaison │ enabled │ more │\n",
        "┃ Name ┃ Status ┃\n│ hub- │ enabled │\n│      │ │\n",
    ],
)
def test_a_table_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="skills list"):
        facts.enabled_skills(text)


@each_version
def test_the_toolsets(version: str) -> None:
    found = facts.toolsets(output(version, "tools-list"), "telegram")
    assert found["terminal"] and found["file"] and found["skills"]
    assert found["video"] is False
    assert "a2a" not in found, "plugins stand in a list of their own"


@pytest.mark.parametrize(
    "text",
    [
        "✗ Unknown platform 'nosuch'. Valid: cli, telegram\n",
        "Built-in toolsets (cli):\n  ✓ enabled  terminal  x\n",
        "Built-in toolsets (telegram):\n  ✓ enabled  terminal  x\n  ✗ disabled  terminal  x\n",
        "Built-in toolsets (telegram):\n  ✓ on  terminal  x\n",
        "Built-in toolsets (telegram):\n  ✓ disabled  terminal  x\n",
    ],
)
def test_toolsets_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="tools list"):
        facts.toolsets(text, "telegram")


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_where_the_tools_run(version: str) -> None:
    told = facts.terminal_settings(output(version, "config-terminal"))
    assert told == Terminal("local", "auto")


def test_where_the_tools_of_the_oldest_version_run() -> None:
    assert facts.shown_backend(output("0.14.0", "config-show")) == Terminal("local", None)


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"backend": "Docker", "home_mode": " Real "}', Terminal("docker", "real")),
        ('{"home_mode": null}', Terminal("local", "none")),
        ('{"backend": "", "timeout": 5}', Terminal("local", None)),
    ],
)
def test_terminal_settings_of_all_kinds(text: str, told: Terminal) -> None:
    assert facts.terminal_settings(text) == told


@pytest.mark.parametrize("text", ["", "local", "null", "[]", '"local"'])
def test_terminal_settings_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="config get terminal"):
        facts.terminal_settings(text)


@pytest.mark.parametrize("text", ["", "  Backend: a\n  Backend: b\n", "Backend: local\n"])
def test_a_backend_that_is_not_clear_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="config show"):
        facts.shown_backend(text)


@pytest.mark.parametrize(
    "code, error, lacks",
    [
        (2, "hermes: error: argument command: invalid choice: 'send' (choose from 'chat')", True),
        (2, "hermes: error: argument command: invalid choice: send (choose from chat)", True),
        (2, "hermes: error: argument command: invalid choice: 'sendx' (choose from 'chat')", False),
        (1, "invalid choice: 'send'", False),
        (0, "", False),
        (None, "", False),
    ],
)
def test_a_command_that_a_version_lacks(code: int | None, error: str, lacks: bool) -> None:
    assert facts.lacks("send", code, error) is lacks


@pytest.mark.parametrize("name", ["default", "work", "a.b_c-1", "9"])
def test_names_that_profiles_may_have(name: str) -> None:
    assert facts.safe_profile(name)


@pytest.mark.parametrize("name", ["", ".x", "a..b", "-p", "a/b", "a b", "ä", "a\n", "٣"])
def test_names_that_no_profile_may_have(name: str) -> None:
    assert not facts.safe_profile(name)
