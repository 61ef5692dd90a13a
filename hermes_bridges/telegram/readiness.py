"""Whether a Hermes profile is ready to bring answers back, and what is to be done if not."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.errors import BridgeError, ConfigError
from hermes_bridges.telegram import landing, skilltree
from hermes_bridges.telegram.hermes import PLATFORM, Hermes
from hermes_bridges.telegram.hermes_facts import Gateway, Terminal
from hermes_bridges.telegram.landing import Landing, Place

NEEDED = {
    skilltree.LIAISON: ("terminal", "file"),
    skilltree.CONDUCTOR: ("terminal",),
}
"""The toolsets that a skill is of no use without."""
LOADER = "skills"
"""The toolset that lets the agent load a skill at all."""
OLDEST_SENDER = "0.19"


class Problem(NamedTuple):
    """Something that is in the way, and the ways out of it, each a sentence or a command."""

    text: str
    remedies: tuple[str, ...] = ()


class Report(NamedTuple):
    """What ``status`` tells. ``answers`` is None when it cannot be told where they land."""

    profile: str
    path: str
    skills: Mapping[str, str]
    enabled: frozenset[str]
    toolsets: Mapping[str, bool]
    gateway: Gateway
    served: tuple[str, ...]
    can_send: bool
    answers: Landing | None
    bridge: str
    problems: tuple[Problem, ...]

    @property
    def ready(self) -> bool:
        """Whether a question can go out and its answer can come back."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The report as ``status --json`` prints it."""
        return {
            "action": "status",
            "hermesProfile": self.profile,
            "path": self.path,
            "skills": {
                name: {"state": state, "enabled": name in self.enabled}
                for name, state in self.skills.items()
            },
            "toolsets": {name: self.toolsets.get(name) for name in NEEDED[skilltree.LIAISON]},
            "gateway": {
                "running": self.gateway.running,
                "pid": self.gateway.pid,
                "serves": list(self.served),
            },
            "canSend": self.can_send,
            "answers": {
                "land": self.answers.directory if self.answers else None,
                "bridge": self.bridge,
            },
            "ready": self.ready,
            "problems": [
                {"text": problem.text, "remedies": list(problem.remedies)}
                for problem in self.problems
            ],
        }


def the_profile(asked: str | None, gateways: Sequence[Gateway]) -> str:
    """The profile that is meant: the one asked for, or the only one that is served.

    Raises BridgeError when there is no such profile or no single one.
    """
    running = [one.profile for one in gateways if one.running]
    if asked is not None:
        if asked not in (one.profile for one in gateways):
            raise BridgeError(f"Hermes has no profile {asked}")
        return asked
    if len(running) == 1:
        return running[0]
    found = f"found {len(running)}{' (' + ', '.join(running) + ')' if running else ''}"
    raise BridgeError(
        f"cannot infer Hermes profile: expected exactly one running gateway, {found};"
        " pass --profile NAME"
    )


def host_of(gateway: Gateway, gateways: Sequence[Gateway]) -> Gateway | None:
    """The gateway whose process serves this profile; None when that cannot be told."""
    if not gateway.served:
        return gateway if gateway.pid is not None else None
    processes = [one for one in gateways if one.pid is not None]
    return processes[0] if len(processes) == 1 else None


def served_together(gateway: Gateway, gateways: Sequence[Gateway]) -> tuple[str, ...]:
    """The profiles that the process of this gateway serves."""
    if not gateway.running:
        return ()
    if gateway.served or any(one.served for one in gateways):
        return tuple(one.profile for one in gateways if one.running)
    return (gateway.profile,)


def bridge_directory(questions_dir: str | None, environ: Mapping[str, str]) -> str:
    """Where the bridge looks for answers; ConfigError without a HOME."""
    if questions_dir is not None:
        return questions_dir
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        raise ConfigError("HOME is not set to a directory")
    return os.path.join(home, landing.QUESTIONS)


class Inspector:
    """Makes the report of one profile. ``container`` tells whether Hermes thinks it is in one."""

    def __init__(
        self,
        hermes: Hermes,
        environ: Mapping[str, str],
        *,
        container: Callable[[Mapping[str, str]], bool] = landing.in_container,
    ) -> None:
        self._hermes = hermes
        self._environ = environ
        self._container = container

    def report(self, asked: str | None, questions_dir: str | None) -> Report:
        """Ask everything; BridgeError or OSError when something cannot be learnt."""
        bridge = bridge_directory(questions_dir, self._environ)
        gateways = self._hermes.gateways()
        profile = the_profile(asked, gateways)
        path = self._hermes.profile_path(profile)
        gateway = next(one for one in gateways if one.profile == profile)
        served = served_together(gateway, gateways)
        skills = {name: skilltree.state(name, skill_path(path, name)) for name in skilltree.SKILLS}
        enabled = self._hermes.enabled_skills(profile)
        toolsets = self._hermes.toolsets(profile)
        problems = [
            *skill_problems(skilltree.LIAISON, profile, skills[skilltree.LIAISON], enabled),
            *toolset_problems(skilltree.LIAISON, profile, toolsets),
        ]
        if not gateway.running:
            problems.append(Problem(f"the gateway of profile {profile} is not running"))
        can_send = self._hermes.can_send(profile)
        if not can_send:
            problems.append(
                Problem(
                    "this hermes has no `send` command, so no question can go out",
                    (f"install hermes-agent {OLDEST_SENDER} or newer",),
                )
            )
        answers = None
        try:
            answers, terminal, place = self._landing(gateway, gateways, path)
            problems += landing_problems(answers, bridge, profile, terminal, place)
        except landing.Unknown as unknown:
            problems.append(Problem(f"it cannot be told where answers land: {unknown}"))
        return Report(
            profile,
            path,
            skills,
            enabled,
            toolsets,
            gateway,
            served,
            can_send,
            answers,
            bridge,
            tuple(problems),
        )

    def _landing(
        self, gateway: Gateway, gateways: Sequence[Gateway], path: str
    ) -> tuple[Landing, Terminal, Place]:
        host = host_of(gateway, gateways)
        if not gateway.running:
            # What would hold if it were started from here.
            place = Place(path, self._environ, gateway.profile)
        elif host is None or host.pid is None:
            raise landing.Unknown(f"the process of the gateway of {gateway.profile} is not named")
        else:
            place = Place(path, landing.gateway_environ(host.pid), host.profile)
        terminal = self._hermes.terminal(gateway.profile)
        if place.mode_of != gateway.profile:
            mode = self._hermes.terminal(place.mode_of).home_mode
            terminal = terminal._replace(home_mode=mode)
        landing.must_not_be_overruled(place, terminal)
        return landing.work_out(place, terminal, self._container), terminal, place


def skill_path(profile_path: str, skill: str) -> str:
    """Where a skill is installed in the profile at that path."""
    return os.path.join(profile_path, "skills", skill)


def skill_problems(skill: str, profile: str, state: str, enabled: frozenset[str]) -> list[Problem]:
    """What is wrong with an installed skill."""
    install = f"bridge-telegram install --profile {profile}"
    if skill != skilltree.LIAISON:
        install += f" --skill {skill}"
    if state == skilltree.MISSING:
        return [Problem(f"{skill} is missing in profile {profile}", (install,))]
    problems = []
    if state == skilltree.DRIFTED:
        text = f"{skill} differs from the packaged version in profile {profile}"
        problems.append(Problem(text, (f"{install} --force",)))
    if skill not in enabled:
        remedy = f"hermes --profile {profile} skills config"
        problems.append(Problem(f"{skill} is disabled in profile {profile}", (remedy,)))
    return problems


def toolset_problems(skill: str, profile: str, toolsets: Mapping[str, bool]) -> list[Problem]:
    """Which toolsets the skill lacks in Telegram chats."""
    missing = [name for name in NEEDED[skill] if not toolsets.get(name, False)]
    if toolsets.get(LOADER) is False:
        missing.append(LOADER)
    if not missing:
        return []
    text = (
        f"the {PLATFORM} toolset{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        f" {'are' if len(missing) > 1 else 'is'} disabled in profile {profile}"
    )
    command = f"hermes --profile {profile} tools enable --platform {PLATFORM} {' '.join(missing)}"
    return [Problem(text, (command,))]


def landing_problems(
    answers: Landing, bridge: str, profile: str, terminal: Terminal, place: Place
) -> list[Problem]:
    """Whether answers land where the bridge looks, and what to do when they do not."""
    if answers.directory is None:
        text = f"the tools of profile {profile} run in {answers.why}, where the bridge cannot look"
        return [Problem(text, (f"hermes --profile {profile} config set terminal.backend local",))]
    if landing.same_directory(answers.directory, bridge):
        return []
    quoted = shlex.quote(answers.directory)
    remedies = [f"give the bridge --questions-dir {quoted} (status and on take it too)"]
    if answers.why == landing.HOME:
        home = os.path.dirname(answers.directory[: -len(landing.QUESTIONS)])
        remedies.append(f"or start the bridge with HOME={shlex.quote(home)}, that of the gateway")
    elif terminal.home_mode is not None:
        remedies.append(
            f"or hermes --profile {place.mode_of} config set terminal.home_mode real,"
            " then restart the gateway"
        )
    text = (
        f"answers of profile {profile} land in {answers.directory} ({answers.why}), but the bridge"
        f" looks in {bridge}"
    )
    return [Problem(text, tuple(remedies))]
