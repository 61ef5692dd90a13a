"""The controller with each real version: what it tells of a profile, and what it installs there."""

import json
from pathlib import Path

import pytest

from tests import hermes_versions
from tests.gateway.telegram_site import Site

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

each_version = pytest.mark.parametrize("version", tuple(hermes_versions.REQUIREMENTS))
OLDEST = "0.14.0"


@each_version
def test_a_profile_from_missing_to_ready_but_for_its_gateway(version: str, short_tmp: Path) -> None:
    with Site(version, short_tmp) as site:
        site.hermes("profile", "create", "work", "--no-alias")
        work = site.profile("work", terminal={"home_mode": "real"})
        skill, text = work / "skills" / "hub-liaison", "a text of my own"

        # No gateway runs: which profile is meant cannot be inferred.
        done = site.controller("status")
        assert (done.code, done.out) == (1, "")
        assert "expected exactly one running gateway, found 0; pass --profile NAME" in done.err
        done = site.controller("status", "--profile", "nobody")
        assert (done.code, done.err) == (1, "bridge-telegram: Hermes has no profile nobody\n")

        report = site.controller("status", "--profile", "work", "--json").result
        assert report["path"] == str(work)
        assert report["skills"]["hub-liaison"] == {"state": "missing", "enabled": False}
        assert report["toolsets"] == {"terminal": True, "file": True}
        assert report["gateway"]["running"] is False
        assert report["canSend"] is (version != OLDEST)
        # The oldest version knows no home_mode, and always takes the home of the profile.
        there = work / "home" if version == OLDEST else Path(site.host.home)
        assert report["answers"]["land"] == str(there / ".pi/coms/hermes-bridge/questions")

        done = site.controller("install", "--profile", "work", "--json")
        assert done.result["outcome"] == "installed" and done.result["problems"] == []
        installed = (skill / "SKILL.md").read_text()
        # Another text there, and it is not disturbed without being told to.
        (skill / "SKILL.md").write_text(installed.replace("version: 1.0.0", f"version: {text}"))
        done = site.controller("install", "--profile", "work")
        assert done.code == 1 and "re-run with --force to back it up and replace it" in done.err
        assert text in (skill / "SKILL.md").read_text()
        done = site.controller("install", "--profile", "work", "--force", "--json")
        assert done.result["outcome"] == "replaced"
        assert text in (Path(done.result["backup"]) / "SKILL.md").read_text()
        assert (skill / "SKILL.md").read_text() == installed
        (skill / "more.md").symlink_to("/etc/hostname")
        done = site.controller("install", "--profile", "work", "--force")
        assert done.code == 1 and "more.md is a symbolic link" in done.err
        (skill / "more.md").unlink()

        words = ("install", "--profile", "work", "--skill", "hub-conductor", "--json")
        done = site.controller(*words)
        assert done.result["outcome"] == "installed" and done.result["problems"] == []
        assert (work / "skills" / "hub-conductor" / "SKILL.md").exists()

        # Disabled for Telegram alone; and a toolset, with the remedy that is printed.
        config = json.loads((work / "config.yaml").read_text())
        config["skills"] = {"platform_disabled": {"telegram": ["hub-liaison"]}}
        (work / "config.yaml").write_text(json.dumps(config))
        site.hermes("--profile", "work", "tools", "disable", "--platform", "telegram", "terminal")
        done = site.controller("status", "--profile", "work", "--json")
        assert "hub-liaison is disabled in profile work" in done.problems
        assert "the telegram toolset terminal is disabled in profile work" in done.problems
        remedy = "hermes --profile work tools enable --platform telegram terminal"
        assert remedy in done.remedies
        site.hermes(*remedy.split()[1:])
        listed = site.hermes("--profile", "work", "tools", "list", "--platform", "telegram")
        assert "✓ enabled  terminal" in listed
        assert ("no `send` command" in done.problems) is (version == OLDEST)
        assert not [call for call in site.calls() if "gateway" in call and "list" not in call]


@pytest.mark.parametrize("version", ["0.14.0", "0.19.0"])
def test_one_gateway_is_the_one_that_is_meant_and_two_are_listed(
    version: str, short_tmp: Path
) -> None:
    with Site(version, short_tmp) as site:
        site.profile("default")
        site.profile("work", terminal={"home_mode": "real"})
        site.gateway("work", bots=["work"])
        done = site.controller("status", "--json")
        assert done.result["hermesProfile"] == "work"
        assert done.result["gateway"]["serves"] == ["work"]
        site.gateway()
        done = site.controller("status")
        assert done.code == 1 and "found 2 (default, work); pass --profile NAME" in done.err
        if version == OLDEST:
            assert site.controller("install", "--profile", "default").code == 0
            # All else is in order, and yet no question could go out.
            done = site.controller("status", "--profile", "default", "--json")
            assert done.problems == "this hermes has no `send` command, so no question can go out"
            assert done.remedies == ["install hermes-agent 0.19 or newer"]
            done = site.controller("on", "123", "--profile", "default", HERDR_PANE_ID="w1:p1")
            assert done.code == 1 and "has no `send` command" in done.err
