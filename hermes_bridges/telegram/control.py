"""``bridge-telegram``: the actions, put together (contract section 10)."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges import __version__
from hermes_bridges.core import installation
from hermes_bridges.core.eventlog import iso_now
from hermes_bridges.core.logs import Redactor
from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import arguments, pool, readiness, skilltree, telling
from hermes_bridges.telegram.arguments import PROGRAM, USAGE, Arguments, UsageError
from hermes_bridges.telegram.herdr import Herdr
from hermes_bridges.telegram.hermes import Hermes
from hermes_bridges.telegram.hermes_facts import plain
from hermes_bridges.telegram.readiness import Inspector, Report
from hermes_bridges.telegram.restart import restart
from hermes_bridges.telegram.systemd import UserUnit

TIMEOUT_MS = 1_800_000
"""Time limit of a question that the bridge of ``on`` puts to the human."""
LEAVE_SECONDS = 5.0
"""How long a new bridge waits for the name of the one whose pane was closed."""
BACKUPS = os.path.join("backups", "agent-fleet")
UNCHANGED = "is current"
_PASSED_ON = ("HERMES_HOME", "PI_COMS_DIR")


class Outcome(NamedTuple):
    """The result object of an action, and the lines that tell it to a person."""

    result: Mapping[str, Any]
    lines: Sequence[str]


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one action; 0, or 1 on any error."""
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    mask = Redactor(environ)
    for stream in (sys.stdout, sys.stderr):
        # A path or a label may hold what this terminal cannot show.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def tell(line: str) -> None:
        print(f"{PROGRAM}: {mask(plain(line))}", file=sys.stderr, flush=True)

    try:
        asked = arguments.parse(argv)
        if asked == "--help":
            print(arguments.HELP, end="")
            return 0
        if asked == "--version":
            print(f"hermes-bridges {__version__}")
            return 0
        assert isinstance(asked, Arguments)
        outcome = Controller(asked, environ, tell).run()
        if asked.json:
            print(json.dumps(_masked(outcome.result, mask), indent=2), flush=True)
        else:
            print("\n".join(mask(plain(line)) for line in outcome.lines), flush=True)
        return 0
    except UsageError as error:
        tell(str(error))
        print(USAGE, end="", file=sys.stderr)
    except (BridgeError, OSError) as error:
        tell(str(error))
    except KeyboardInterrupt:
        tell("stopped")
    return 1


def _masked(value: object, mask: Redactor) -> object:
    """The same value with every text masked; masking the JSON itself might break it."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _masked(one, mask) for name, one in value.items()}
    return [_masked(one, mask) for one in value] if isinstance(value, list) else value


class Controller:
    """One action. ``tell`` gets what a person should know before the result."""

    def __init__(
        self, asked: Arguments, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self._asked = asked
        self._environ = environ
        self._tell = tell
        self._hermes = Hermes(environ)

    def run(self) -> Outcome:
        """Do it. Raises BridgeError or OSError."""
        if self._asked.action == "status":
            report = self._report()
            return Outcome(report.as_json(), list(telling.told(report)))
        if self._asked.action == "install":
            return self._install()
        return self._on() if self._asked.action == "on" else self._off()

    def _report(self) -> Report:
        inspector = Inspector(self._hermes, self._environ)
        return inspector.report(self._asked.profile, self._asked.questions_dir)

    def _install(self) -> Outcome:
        hermes, skill = self._hermes, self._asked.skill
        gateways = hermes.gateways()
        profile = readiness.the_profile(self._asked.profile, gateways)
        path = hermes.profile_path(profile)
        gateway = next(one for one in gateways if one.profile == profile)
        did, backup = self._put(skill, profile, path)
        problems = [
            *readiness.skill_problems(
                skill, profile, skilltree.CURRENT, hermes.enabled_skills(profile)
            ),
            *readiness.toolset_problems(skill, profile, hermes.toolsets(profile)),
        ]
        lines = [f"{skill} {did} in profile {profile} ({path})"]
        if backup is not None:
            lines.append(f"the tree that was there is kept in {backup}")
        restarted = False
        command = f"hermes --profile {profile} gateway restart"
        served = readiness.served_together(gateway, gateways)
        if not gateway.running:
            lines.append(f"the gateway of profile {profile} is not running; nothing starts it here")
        elif self._asked.restart:
            if len(served) > 1:
                self._tell(
                    f"warning: one gateway serves {', '.join(served)}: a restart restarts all of"
                    " them"
                )
            self._tell("restarting the gateway, which first finishes what it is doing")
            outcome = restart(hermes, gateway, path)
            restarted = True
            lines += [*outcome.said.splitlines(), *outcome.notes, "the gateway was restarted"]
        elif did != UNCHANGED:
            lines.append(f"the gateway does not know it yet: {command}")
        result = {
            "action": "install",
            "skill": skill,
            "hermesProfile": profile,
            "path": readiness.skill_path(path, skill),
            "outcome": did,
            "backup": backup,
            "gatewayRunning": gateway.running,
            "restarted": restarted,
            "problems": [{"text": one.text, "remedies": list(one.remedies)} for one in problems],
        }
        return Outcome(result, [*lines, *telling.problems(problems)])

    def _put(self, skill: str, profile: str, path: str) -> tuple[str, str | None]:
        """Install a skill; what was done, and where the old tree is now."""
        target = readiness.skill_path(path, skill)
        with skilltree.locked(path):
            state = skilltree.state(skill, target)
            if state == skilltree.CURRENT:
                return UNCHANGED, None
            backup = None
            if state == skilltree.DRIFTED:
                if not self._asked.force:
                    raise BridgeError(
                        f"{skill} differs from the packaged {__version__} version in profile"
                        f" {profile}; re-run with --force to back it up and replace it"
                    )
                stamp = iso_now().replace(":", "-").replace(".", "-")
                backup = os.path.join(path, BACKUPS, f"{skill}-{stamp}")
            skilltree.install(skill, path, target, backup)
            if skilltree.state(skill, target) != skilltree.CURRENT:
                raise BridgeError(f"{target} is not what was written there")
        return ("replaced" if backup else "installed"), backup

    def _on(self) -> Outcome:
        asked = self._asked
        report = self._report()
        if not report.ready:
            raise BridgeError(telling.refusal(report))
        if self._through_systemd():
            unit = UserUnit(self._environ, self._project_here())
            unit.must_exist()
            project = self._project_here()
            unit.start(self._bridge(project, report.profile))
            place: dict[str, Any] = {"unit": unit.name}
            told = f"unit {unit.name}"
        else:
            herdr = Herdr(self._environ)
            scene = herdr.scene(asked.project)
            project = scene.project
            old = pool.bridge_process(self._environ, project)
            closed = herdr.close_bridges(scene)
            if closed and old is not None and not pool.wait_for_end(old, LEAVE_SECONDS):
                self._tell(f"warning: the old bridge (process {old}) does not end")
            pane = herdr.open_bridge(scene, self._bridge(project, report.profile))
            place = {"paneId": pane, "workspaceId": scene.workspace}
            told = f"pane {pane}"
        result = {
            "action": "on",
            "hermesProfile": report.profile,
            "project": project,
            "target": asked.target,
            **place,
        }
        line = f"on: {asked.target} for project {project}, profile {report.profile}, in {told}"
        return Outcome(result, [line])

    def _off(self) -> Outcome:
        asked = self._asked
        if self._through_systemd():
            project = self._project_here()
            unit = UserUnit(self._environ, project)
            unit.must_exist()
            unit.stop()
            place: dict[str, Any] = {"unit": unit.name}
            told = f"unit {unit.name} is stopped"
        else:
            herdr = Herdr(self._environ)
            scene = herdr.scene(asked.project)
            project = scene.project
            closed = herdr.close_bridges(scene)
            place = {"closedPaneIds": closed, "workspaceId": scene.workspace}
            told = f"closed {', '.join(closed)}" if closed else "there was no bridge to close"
        result = {"action": "off", "project": project, "target": asked.target, **place}
        return Outcome(result, [f"off: project {project}: {told}"])

    def _through_systemd(self) -> bool:
        if self._asked.via is not None:
            return self._asked.via == "systemd"
        return not self._environ.get("HERDR_PANE_ID")

    def _project_here(self) -> str:
        given = self._asked.project or self._environ.get("PI_COMS_PROJECT") or "default"
        return arguments.checked_project(given)

    def _bridge(self, project: str, profile: str) -> list[str]:
        """The command of the bridge, as words."""
        # What starts it need not have this process's environment.
        passed_on = [
            f"{name}={self._environ[name]}" for name in _PASSED_ON if self._environ.get(name)
        ]
        words = installation.command("bridge-coms")
        words += ["--project", project, "--hermes-profile", profile]
        words += ["--timeout", str(TIMEOUT_MS), "--to", self._asked.target]
        if self._asked.questions_dir is not None:
            words += ["--questions-dir", self._asked.questions_dir]
        return ["/usr/bin/env", *passed_on, *words] if passed_on else words
