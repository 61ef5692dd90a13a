"""The actions, against executable stand-ins for ``hermes``, ``herdr`` and ``systemctl``."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges import __version__
from hermes_bridges.core import installation
from hermes_bridges.telegram import control, skilltree
from hermes_bridges.telegram.skilltree import CONDUCTOR, LIAISON

from .stage import NO_SKILLS, NO_SUCH, Stage

CURRENT = "w1:p1"


@pytest.fixture
def gateway(stage: Stage) -> Iterator[int]:
    """The id of a process that could be a gateway, with the HOME of the stage."""
    process = subprocess.Popen(["sleep", "600"], env=stage.environ)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def ready(stage: Stage, gateway: int) -> Stage:
    """A stage on which the default profile is ready."""
    stage.running(default=f"PID {gateway}")
    assert stage.call("install").code == 0
    stage.environ["HERDR_PANE_ID"] = CURRENT
    return stage


def look_around(project: str = "") -> list[tuple[list[str], object]]:
    """The first calls of Herdr, in the order of the contract."""
    argv = ["pi", "--project", project] if project else ["pi"]
    processes = [{"argv": ["bash"]}, {"argv": argv}]
    return [
        (["pane", "get", CURRENT], {"pane": {"workspace_id": "w1", "cwd": "/home/pat/it's"}}),
        (
            ["pane", "process-info", "--pane", CURRENT],
            {"process_info": {"foreground_processes": processes}},
        ),
    ]


def panes(*labels: tuple[str, str | None]) -> tuple[list[str], object]:
    found = [{"pane_id": pane, "label": label} for pane, label in labels]
    return (["pane", "list", "--workspace", "w1"], {"panes": found})


def split(pane: str = "w1:p9") -> tuple[list[str], object]:
    words = ["pane", "split", CURRENT, "--direction", "right", "--ratio", "0.3"]
    return ([*words, "--cwd", "/home/pat/it's", "--no-focus"], {"pane": {"pane_id": pane}})


def bridge(target: str, project: str = "default", profile: str = "default") -> str:
    command = " ".join(installation.command("bridge-coms"))
    return (
        f"{command} --project {project} --hermes-profile {profile} --timeout 1800000 --to {target}"
    )


def test_status_without_a_gateway_needs_a_profile(stage: Stage) -> None:
    done = stage.call("status")
    assert done.code == 1
    assert done.err == (
        "bridge-telegram: cannot infer Hermes profile: expected exactly one running gateway,"
        " found 0; pass --profile NAME\n"
    )
    assert done.out == "" and stage.calls() == ["gateway list"]


def test_status_with_several_profiles_served_lists_them(stage: Stage, gateway: int) -> None:
    stage.running(default=f"PID {gateway}", work="served by the default multiplexer")
    done = stage.call("status")
    assert done.code == 1
    assert "found 2 (default, work); pass --profile NAME" in done.err


def test_status_of_a_ready_profile(ready: Stage, gateway: int) -> None:
    done = ready.call("status")
    assert done.code == 0 and done.err == ""
    assert re.search(r"^hub-liaison +current, enabled$", done.out, re.MULTILINE)
    assert re.search(rf"^gateway +running, process {gateway}$", done.out, re.MULTILINE)
    assert re.search(r"^ready +yes$", done.out, re.MULTILINE)
    assert "problem" not in done.out and "where the bridge looks" in done.out
    result = ready.call("status", "--json").result
    assert result["ready"] is True and result["problems"] == []
    assert result["hermesProfile"] == "default" and result["path"] == str(ready.hermes_home)
    assert result["answers"] == {"land": str(ready.questions), "bridge": str(ready.questions)}
    assert result["skills"][LIAISON] == {"state": "current", "enabled": True}
    assert result["skills"][CONDUCTOR] == {"state": "missing", "enabled": False}
    assert result["gateway"] == {"running": True, "pid": gateway, "serves": ["default"]}


def test_status_changes_nothing(stage: Stage) -> None:
    before = sorted(stage.home.rglob("*"))
    assert stage.call("status", "--profile", "work").code == 0
    assert sorted(stage.home.rglob("*")) == before


def test_the_calls_of_status_and_their_environment(ready: Stage) -> None:
    ready.environ |= {"FORCE_COLOR": "1", "COLUMNS": "40"}
    (ready.bin / "hermes.calls").unlink()
    ready.call("status", "--profile", "default")
    assert ready.calls() == [
        "gateway list",
        "profile show default",
        "--profile default skills list --enabled-only",
        "--profile default tools list --platform telegram",
        "--profile default send --help",
        "--profile default config get terminal --json",
    ]
    for call in ready.raw_calls():
        assert int(call["environ"]["COLUMNS"]) > 200
        assert call["environ"]["HERMES_PLATFORM"] == "telegram"
        assert call["environ"]["HERMES_HOME"] == str(ready.hermes_home)


def test_everything_that_is_wrong_is_told_with_its_remedy(stage: Stage) -> None:
    stage.skills("work", NO_SKILLS)
    tools = "Built-in toolsets (telegram):\n  ✗ disabled  terminal  x\n  ✓ enabled  web  x\n"
    stage.tools("work", tools)
    stage.answers["--profile work send --help"] = (2, "", NO_SUCH.format("send"))
    stage.terminal("work", backend="docker")
    (stage.work / "skills" / LIAISON).mkdir(parents=True)
    done = stage.call("status", "--profile", "work")
    assert done.code == 0
    tail = done.out[done.out.index("ready") :]
    assert tail.splitlines() == [
        "ready          no",
        "problem: hub-liaison differs from the packaged version in profile work",
        "  remedy: bridge-telegram install --profile work --force",
        "problem: hub-liaison is disabled in profile work",
        "  remedy: hermes --profile work skills config",
        "problem: the telegram toolsets terminal, file are disabled in profile work",
        "  remedy: hermes --profile work tools enable --platform telegram terminal file",
        "problem: the gateway of profile work is not running",
        "problem: this hermes has no `send` command, so no question can go out",
        "  remedy: install hermes-agent 0.19 or newer",
        "problem: the tools of profile work run in docker, where the bridge cannot look",
        "  remedy: hermes --profile work config set terminal.backend local",
    ]


def test_one_toolset_that_is_disabled_and_the_one_that_loads_skills(stage: Stage) -> None:
    tools = (
        "Built-in toolsets (telegram):\n  ✓ enabled  terminal  x\n  ✓ enabled  file  x\n"
        "  ✗ disabled  skills  x\n"
    )
    stage.tools("work", tools)
    done = stage.call("status", "--profile", "work")
    assert "the telegram toolset skills is disabled in profile work" in done.out


def test_answers_that_land_elsewhere_are_told_with_the_remedies(ready: Stage) -> None:
    (ready.hermes_home / "home").mkdir()
    ready.terminal("default", home_mode="profile")
    there = f"{ready.hermes_home}/home/.pi/coms/hermes-bridge/questions"
    done = ready.call("status")
    assert (
        f"problem: answers of profile default land in {there} (the home of the profile), but the"
        f" bridge looks in {ready.questions}\n"
        f"  remedy: give the bridge --questions-dir {there} (status and on take it too)\n"
        "  remedy: or hermes --profile default config set terminal.home_mode real,"
        " then restart the gateway\n"
    ) in done.out
    done = ready.call("status", "--questions-dir", there)
    assert re.search(r"^ready +yes$", done.out, re.MULTILINE)


def test_a_gateway_with_another_home_is_told(ready: Stage, tmp_path: Path) -> None:
    ready.environ["HERMES_HOME"] = str(ready.hermes_home)
    ready.environ["HOME"] = str(tmp_path / "else where")
    done = ready.call("status", "--profile", "default")
    assert f"remedy: or start the bridge with HOME={ready.home}, that of the gateway" in done.out
    assert re.search(r"^ready +no$", done.out, re.MULTILINE)


def test_where_answers_land_may_not_be_told(ready: Stage) -> None:
    ready.running(default="somewhere")
    done = ready.call("status")
    assert re.search(r"^answers +it cannot be told where they land$", done.out, re.MULTILINE)
    assert "the process of the gateway of default is not named" in done.out
    assert ready.call("status", "--json").result["answers"]["land"] is None


def test_a_profile_that_is_served_takes_the_mode_of_its_host(ready: Stage, gateway: int) -> None:
    (ready.work / "home").mkdir()
    ready.running(default=f"PID {gateway}", work="served by the default multiplexer")
    ready.terminal("work", home_mode="profile")
    assert ready.call("install", "--profile", "work").code == 0
    result = ready.call("status", "--profile", "work", "--json").result
    assert result["ready"] is True
    assert result["gateway"] == {"running": True, "pid": None, "serves": ["default", "work"]}
    ready.terminal("work", home_mode="real")
    ready.terminal("default", home_mode="profile")
    result = ready.call("status", "--profile", "work", "--json").result
    assert result["answers"]["land"].startswith(f"{ready.work}/home/")
    assert "hermes --profile default config set terminal.home_mode real" in str(result["problems"])
    assert "one for default, work" in ready.call("status", "--profile", "work").out


def test_an_old_version_is_asked_in_its_own_way(stage: Stage) -> None:
    (stage.work / "home").mkdir()
    stage.answers["--profile work config get terminal --json"] = (2, "", NO_SUCH.format("get"))
    stage.answers["--profile work config show"] = "◆ Terminal\n  Backend:      local\n"
    done = stage.call("status", "--profile", "work")
    assert f"land in {stage.work}/home/" in done.out
    assert "home_mode" not in done.out


@pytest.mark.parametrize(
    "words, answer, text",
    [
        ("gateway list", "Gateways:\n  huh\n", "`hermes gateway list` has a line that cannot be"),
        ("gateway list", (1, "", "a\nbad thing\n"), "`hermes gateway list` failed: bad thing"),
        ("gateway list", (3, "said\n", ""), "`hermes gateway list` failed: said"),
        ("gateway list", (3, "", ""), "`hermes gateway list` failed: exit code 3"),
        ("profile show work", "Profile: other\nPath: /\n", "tells of another profile"),
        ("profile show work", "Profile: work\nPath: /nowhere/x\n", "is not a directory: /nowhere"),
        ("--profile work skills list --enabled-only", "nothing", "shows no table"),
        ("--profile work tools list --platform telegram", "?", "shows no line"),
        ("--profile work send --help", (1, "", "boom"), "`hermes send --help` failed: boom"),
        ("--profile work config get terminal --json", "?", "prints no JSON"),
    ],
)
def test_what_cannot_be_learnt_stops_it(
    stage: Stage, words: str, answer: str | tuple[int, str, str], text: str
) -> None:
    stage.answers[words] = answer
    done = stage.call("status", "--profile", "work")
    assert (done.code, done.out) == (1, "")
    assert text in done.err and "Traceback" not in done.err


def test_a_profile_that_is_a_link_is_refused(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(stage.work)
    stage.answers["profile show work"] = f"Profile: work\nPath: {tmp_path}/link\n"
    assert "is not a directory" in stage.call("status", "--profile", "work").err


def test_a_profile_that_does_not_exist_is_told(stage: Stage) -> None:
    done = stage.call("status", "--profile", "nope")
    assert (done.code, done.err) == (1, "bridge-telegram: Hermes has no profile nope\n")


def test_a_host_without_hermes_or_home_is_told(stage: Stage) -> None:
    shutil.rmtree(stage.bin)
    done = control.main(["status"], {"PATH": str(stage.bin), "HOME": str(stage.home)})
    assert done == 1
    assert control.main(["status"], {"PATH": str(stage.bin)}) == 1


def test_a_command_that_hangs_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_bridges.telegram.hermes.LIMIT", 0.2)
    (stage.bin / "hermes").write_text("#!/bin/sh\nsleep 60\n")
    done = stage.call("status")
    assert "`hermes gateway list` failed: it took too long" in done.err


def test_install_of_a_missing_skill(stage: Stage) -> None:
    done = stage.call("install", "--profile", "work")
    assert done.code == 0 and done.err == ""
    assert done.out == (
        f"hub-liaison installed in profile work ({stage.work})\n"
        "the gateway of profile work is not running; nothing starts it here\n"
    )
    assert skilltree.state(LIAISON, str(stage.work / "skills" / LIAISON)) == "current"
    assert not (stage.work / "backups").exists()
    again = stage.call("install", "--profile", "work", "--json").result
    assert again["outcome"] == "is current" and again["backup"] is None


def test_install_of_the_other_skill(stage: Stage) -> None:
    done = stage.call("install", "--profile", "work", "--skill", CONDUCTOR)
    assert done.code == 0
    assert (stage.work / "skills" / CONDUCTOR / "SKILL.md").exists()
    assert not (stage.work / "skills" / LIAISON).exists()
    # Hermes did not list it: what is to be done about it is told.
    assert "hub-conductor is disabled in profile work" in done.out


def test_a_skill_that_differs_is_refused_without_force(stage: Stage) -> None:
    target = stage.work / "skills" / LIAISON
    target.mkdir(parents=True)
    (target / "SKILL.md").write_text("mine")
    done = stage.call("install", "--profile", "work")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"bridge-telegram: hub-liaison differs from the packaged {__version__} version in profile"
        " work; re-run with --force to back it up and replace it\n"
    )
    assert (target / "SKILL.md").read_text() == "mine"


def test_force_keeps_the_old_tree(stage: Stage) -> None:
    target = stage.work / "skills" / LIAISON
    target.mkdir(parents=True)
    (target / "SKILL.md").write_text("mine")
    result = stage.call("install", "--profile", "work", "--force", "--json").result
    backup = Path(result["backup"])
    assert result["outcome"] == "replaced" and backup.parent == stage.work / "backups/agent-fleet"
    stamp = r"hub-liaison-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z"
    assert re.fullmatch(stamp, backup.name)
    assert (backup / "SKILL.md").read_text() == "mine"
    assert skilltree.state(LIAISON, str(target)) == "current"


def test_a_link_in_the_installed_tree_is_refused_with_force_too(stage: Stage) -> None:
    target = stage.work / "skills" / LIAISON
    target.mkdir(parents=True)
    (target / "SKILL.md").symlink_to("/etc/hostname")
    done = stage.call("install", "--profile", "work", "--force")
    assert done.code == 1 and "is a symbolic link" in done.err
    assert (target / "SKILL.md").is_symlink()


def test_what_was_written_is_looked_at_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def badly(skill: str, profile: str, target: str, backup: str | None) -> None:
        os.makedirs(target)

    monkeypatch.setattr(skilltree, "install", badly)
    done = stage.call("install", "--profile", "work")
    assert done.code == 1 and "is not what was written there" in done.err


def test_install_tells_the_disabled_toolset_and_enables_nothing(stage: Stage) -> None:
    tools = "Built-in toolsets (telegram):\n  ✗ disabled  terminal  x\n  ✓ enabled  file  x\n"
    stage.tools("work", tools)
    done = stage.call("install", "--profile", "work")
    assert done.code == 0
    assert "remedy: hermes --profile work tools enable --platform telegram terminal\n" in done.out
    assert not [call for call in stage.calls() if "enable " in call]


def test_a_running_gateway_is_restarted_only_when_asked(stage: Stage, gateway: int) -> None:
    stage.running(default=f"PID {gateway}")
    done = stage.call("install")
    assert done.code == 0
    assert "the gateway does not know it yet: hermes --profile default gateway restart" in done.out
    assert not [call for call in stage.calls() if "restart" in call]
    stage.answers["--profile default gateway restart"] = "✓ Service restarted\n"
    done = stage.call("install", "--restart")
    assert done.code == 0
    assert "--profile default gateway restart" in stage.calls()
    # It may become the gateway, so nothing of what shapes the other outputs is in its environment.
    (call,) = [call for call in stage.raw_calls() if "restart" in call["words"]]
    assert call["environ"]["HERMES_PLATFORM"] is None and call["environ"]["COLUMNS"] is None
    assert done.out.splitlines()[1:] == [
        "✓ Service restarted",
        "the gateway is the same process as before",
        "the gateway was restarted",
    ]
    assert "warning" not in done.err


def test_a_gateway_that_does_not_run_is_never_started(stage: Stage) -> None:
    done = stage.call("install", "--profile", "work", "--restart", "--json")
    assert done.code == 0
    assert done.result["restarted"] is False and done.result["gatewayRunning"] is False
    assert not [call for call in stage.calls() if "restart" in call or "start" in call]


def test_a_restart_of_a_shared_gateway_is_warned_of(stage: Stage, gateway: int) -> None:
    stage.running(default=f"PID {gateway}", work="served by the default multiplexer")
    stage.answers["--profile work gateway restart"] = ""
    done = stage.call("install", "--profile", "work", "--restart")
    assert done.code == 0
    assert "warning: one gateway serves default, work: a restart restarts all of them" in done.err


def test_on_calls_herdr_in_order(ready: Stage) -> None:
    ready.herdr(
        [
            *look_around("af"),
            panes(("w1:p2", None), ("w1:p3", "hermes-bridge"), ("w1:p4", "other")),
            (["pane", "close", "w1:p3"],),
            split(),
            (["pane", "rename", "w1:p9", "hermes-bridge"],),
            (["pane", "run", "w1:p9", bridge("telegram:123:7", "af")], {"type": "ok"}),
        ]
    )
    done = ready.call("on", "123:7", "--json")
    assert done.err == "" and done.code == 0
    assert done.result == {
        "action": "on",
        "hermesProfile": "default",
        "paneId": "w1:p9",
        "project": "af",
        "target": "telegram:123:7",
        "workspaceId": "w1",
    }
    assert ready.left("herdr") == []


def test_on_tells_a_person_what_it_did(ready: Stage) -> None:
    ready.herdr(
        [
            *look_around(),
            panes(),
            split(),
            (["pane", "rename", "w1:p9", "hermes-bridge"],),
            (["pane", "run", "w1:p9", bridge("telegram:-100123:7")],),
        ]
    )
    done = ready.call("on", "--", "-100123:7")
    assert done.out == (
        "on: telegram:-100123:7 for project default, profile default, in pane w1:p9\n"
    )


def test_the_command_of_the_pane_is_one_quoted_word(ready: Stage, tmp_path: Path) -> None:
    odd = tmp_path / "a b;$(touch x)"
    odd.mkdir()
    (ready.hermes_home / "home").symlink_to(odd)
    ready.terminal("default", home_mode="profile")
    there = f"{ready.hermes_home}/home/.pi/coms/hermes-bridge/questions"
    ready.environ |= {"PI_COMS_DIR": str(tmp_path / "it's"), "PI_COMS_PROJECT": "env"}
    coms = str(tmp_path / "it's").replace("'", "'\"'\"'")
    command = f"/usr/bin/env 'PI_COMS_DIR={coms}' {bridge('telegram:5', 'env')}"
    odd_there = f"{odd}/.pi/coms/hermes-bridge/questions"
    ready.herdr(
        [
            *look_around(),
            panes(),
            split(),
            (["pane", "rename", "w1:p9", "hermes-bridge"],),
            (["pane", "run", "w1:p9", f"{command} --questions-dir '{odd_there}'"],),
        ]
    )
    done = ready.call("on", "5", "--questions-dir", odd_there)
    assert (done.code, done.err) == (0, "")
    assert there != odd_there


def test_on_that_is_not_ready_calls_no_herdr(stage: Stage) -> None:
    stage.environ["HERDR_PANE_ID"] = CURRENT
    stage.herdr([])
    done = stage.call("on", "1", "--profile", "work")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "bridge-telegram: hub-liaison is missing in profile work; the gateway of profile work is"
        " not running. Run: bridge-telegram install --profile work\n"
    )
    assert stage.calls("herdr") == []
    (stage.work / "skills" / LIAISON).mkdir(parents=True)
    done = stage.call("on", "1", "--profile", "work")
    assert done.err.endswith("Run: bridge-telegram install --profile work --force\n")


def test_a_remedy_that_is_no_install_is_told_by_on(stage: Stage) -> None:
    stage.tools("work", "Built-in toolsets (telegram):\n  ✓ enabled  file  x\n")
    done = stage.call("on", "1", "--profile", "work")
    remedy = "  remedy: hermes --profile work tools enable --platform telegram terminal\n"
    assert done.err.endswith(remedy)


@pytest.mark.parametrize("step", ["rename", "run"])
def test_a_pane_that_cannot_be_used_is_closed_again(ready: Stage, step: str) -> None:
    steps: list[tuple[list[str], object]] = [
        (["pane", "rename", "w1:p9", "hermes-bridge"], ""),
        (["pane", "run", "w1:p9", bridge("telegram:1")], ""),
    ]
    steps = [(words, 3 if step == words[1] else answer) for words, answer in steps]
    kept = steps[: 1 if step == "rename" else 2]
    ready.herdr([*look_around(), panes(), split(), *kept, (["pane", "close", "w1:p9"],)])
    done = ready.call("on", "1")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"bridge-telegram: herdr pane {step} failed (3): why\n"
    assert ready.left("herdr") == []


def test_a_new_pane_that_cannot_be_closed_is_told_too(ready: Stage) -> None:
    ready.herdr(
        [
            *look_around(),
            panes(),
            split(),
            (["pane", "rename", "w1:p9", "hermes-bridge"], 3),
            (["pane", "close", "w1:p9"], 4),
        ]
    )
    done = ready.call("on", "1")
    assert "pane rename failed (3): why; and the new pane stays: herdr pane close" in done.err


def test_the_current_pane_is_never_closed(ready: Stage) -> None:
    ready.herdr(
        [
            *look_around(),
            panes((CURRENT, "hermes-bridge"), ("w1:p2", "hermes-bridge")),
            (["pane", "close", "w1:p2"],),
        ]
    )
    done = ready.call("off", "1", "--json")
    assert done.result == {
        "action": "off",
        "closedPaneIds": ["w1:p2"],
        "project": "default",
        "target": "telegram:1",
        "workspaceId": "w1",
    }


def test_off_asks_hermes_nothing_and_may_be_repeated(ready: Stage) -> None:
    (ready.bin / "hermes.calls").unlink()
    ready.herdr(
        [
            *look_around("af"),
            panes(("w1:p2", "hermes-bridge")),
            (["pane", "close", "w1:p2"],),
            *look_around("af"),
            panes(),
        ]
    )
    done = ready.call("off", "999", "--profile", "nobody")
    assert (done.code, done.out) == (0, "off: project af: closed w1:p2\n")
    done = ready.call("off", "999")
    assert (done.code, done.out) == (0, "off: project af: there was no bridge to close\n")
    assert ready.calls() == [] and ready.left("herdr") == []


def test_a_project_that_is_given_wins(ready: Stage) -> None:
    ready.environ["PI_COMS_PROJECT"] = "env"
    ready.herdr([*look_around("af"), panes(), *look_around(), panes()])
    assert ready.call("off", "1", "--project", "mine", "--json").result["project"] == "mine"
    assert ready.call("off", "1", "--json").result["project"] == "env"


def test_a_project_that_cannot_be_one_is_refused(ready: Stage) -> None:
    ready.herdr(look_around("../x"))
    done = ready.call("off", "1")
    assert (done.code, done.err) == (1, 'bridge-telegram: Invalid project name: "../x"\n')


def test_nothing_that_is_told_commands_the_terminal(ready: Stage) -> None:
    ready.herdr(
        [
            *look_around(),
            panes(("\x1b]0;x\x07w", "hermes-bridge")),
            (["pane", "close", "\x1b]0;x\x07w"],),
        ]
        * 2
    )
    assert ready.call("off", "1").out == "off: project default: closed w\n"
    assert "\x1b" not in ready.call("off", "1", "--json").out


def test_herdr_without_a_pane_is_told(stage: Stage) -> None:
    stage.herdr([])
    done = stage.call("off", "1", "--via", "herdr")
    assert "HERDR_PANE_ID is not set" in done.err and stage.calls("herdr") == []


def test_a_host_without_herdr_is_told(ready: Stage) -> None:
    assert ready.call("off", "1").err == "bridge-telegram: herdr was not found on PATH\n"


UNIT = "hermes-coms-bridge@default.service"
LOADED = {f"--user show --property=LoadState {UNIT}": "LoadState=loaded\n"}


def test_without_herdr_the_user_unit_is_started(ready: Stage) -> None:
    del ready.environ["HERDR_PANE_ID"]
    ready.systemctl(LOADED | {"--user daemon-reload": "", f"--user restart {UNIT}": ""})
    done = ready.call("on", "123:7", "--json")
    assert done.err == ""
    assert done.result == {
        "action": "on",
        "hermesProfile": "default",
        "project": "default",
        "target": "telegram:123:7",
        "unit": UNIT,
    }
    assert ready.calls("systemctl") == [
        f"--user show --property=LoadState {UNIT}",
        "--user daemon-reload",
        f"--user restart {UNIT}",
    ]
    drop_in = ready.home / f".config/systemd/user/{UNIT}.d/50-bridge-telegram.conf"
    command = " ".join(f'"{word}"' for word in bridge("telegram:123:7").split())
    assert drop_in.read_text().splitlines()[1:] == [
        "[Service]",
        "ExecStart=",
        f"ExecStart={command} $BRIDGE_COMS_FLAGS",
    ]
    ready.systemctl(LOADED | {"--user daemon-reload": "", f"--user stop {UNIT}": ""})
    for _ in range(2):
        done = ready.call("off", "1")
        assert (done.code, done.out) == (0, f"off: project default: unit {UNIT} is stopped\n")
    assert not drop_in.exists()
    assert ready.calls("systemctl")[-2:] == [LOADED_CALL, f"--user stop {UNIT}"]


LOADED_CALL = next(iter(LOADED))


def test_the_unit_is_used_in_a_pane_too_when_asked(ready: Stage) -> None:
    ready.systemctl(
        {"--user show --property=LoadState hermes-coms-bridge@af.service": "LoadState=not-found\n"}
    )
    ready.herdr([])
    done = ready.call("on", "1", "--via", "systemd", "--project", "af")
    assert done.code == 1
    assert done.err == (
        "bridge-telegram: there is no user unit hermes-coms-bridge@af.service: run hermes-bridges"
        " install-units --user\n"
    )
    assert ready.calls("herdr") == []


def test_a_unit_is_not_touched_before_everything_is_ready(stage: Stage) -> None:
    stage.systemctl({})
    done = stage.call("on", "1", "--profile", "work")
    assert done.code == 1 and "is missing" in done.err
    assert stage.calls("systemctl") == []


def test_a_new_bridge_waits_for_the_name_of_the_old_one(
    ready: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = subprocess.Popen(["sleep", "600"])
    agents = ready.home / ".pi/coms/projects/default/agents"
    agents.mkdir(parents=True)
    (agents / "user-remote.json").write_text(f'{{"pid": {old.pid}}}')
    steps = [
        *look_around(),
        panes(("w1:p2", "hermes-bridge")),
        (["pane", "close", "w1:p2"],),
        split(),
        (["pane", "rename", "w1:p9", "hermes-bridge"],),
        (["pane", "run", "w1:p9", bridge("telegram:1")],),
    ]
    ready.herdr(steps)
    monkeypatch.setattr(control, "LEAVE_SECONDS", 0.1)
    done = ready.call("on", "1")
    assert done.code == 0
    assert f"warning: the old bridge (process {old.pid}) does not end" in done.err
    ready.herdr(steps)
    monkeypatch.setattr(control, "LEAVE_SECONDS", 30)
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill {old.pid}"])
    started = time.monotonic()
    done = ready.call("on", "1")
    assert (done.code, done.err) == (0, "") and time.monotonic() - started < 20
    assert old.wait() == -signal.SIGTERM and killer.wait() == 0


def test_a_usage_error_shows_the_usage(stage: Stage) -> None:
    done = stage.call("on", "x")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("bridge-telegram: Telegram ID must be digits")
    assert "usage: bridge-telegram status" in done.err
    assert stage.calls() == []


def test_help_and_version(stage: Stage) -> None:
    done = stage.call("--help")
    assert (done.code, done.err) == (0, "") and "usage: bridge-telegram" in done.out
    assert stage.call("--version").out == f"hermes-bridges {__version__}\n"


def test_KH22_secrets_are_masked_in_what_is_told(stage: Stage) -> None:
    token = "123456789:" + "A" * 35
    stage.environ |= {"OTHER_SECRET": "swordfish"}
    stage.answers["gateway list"] = (1, "", f"cannot reach /bot{token}/getMe swordfish")
    done = stage.call("status")
    assert token not in done.err and "swordfish" not in done.err and "***" in done.err
    stage.running(work="PID 1")
    odd = stage.hermes_home / "swordfish"
    odd.mkdir()
    stage.answers["profile show work"] = f"Profile: work\nPath: {odd}\n"
    for words in (["status"], ["status", "--json"]):
        done = stage.call(*words)
        assert done.code == 0 and "swordfish" not in done.out + done.err


def test_ctrl_c_is_an_end_like_any_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control.Controller, "run", interrupted)
    done = stage.call("status")
    assert (done.code, done.err) == (1, "bridge-telegram: stopped\n")


def test_the_command_itself(stage: Stage) -> None:
    stage.call("--help")
    stage.answers["gateway list"] = "No profiles found.\n"
    stage.call("status")
    done = subprocess.run(
        [sys.executable, "-m", "hermes_bridges.telegram", "status"],
        env=stage.environ | {n: v for n, v in os.environ.items() if n.startswith("COVERAGE_")},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "found 0; pass --profile NAME" in done.stderr
