"""The controller's command line (contract section 10)."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from hermes_bridges.errors import ConfigError
from hermes_bridges.telegram.hermes_facts import safe_profile
from hermes_bridges.telegram.skilltree import LIAISON, SKILLS

PROGRAM = "bridge-telegram"
USAGE = """\
usage: bridge-telegram status  [--profile P] [--questions-dir DIR] [--json]
       bridge-telegram install [--profile P] [--skill NAME] [--force]
                       [--restart] [--json]
       bridge-telegram on <chat>[:<topic>] [--profile P] [--via herdr|systemd]
                       [--project NAME] [--questions-dir DIR] [--json]
       bridge-telegram off <chat>[:<topic>] [--profile P] [--via herdr|systemd]
                       [--project NAME] [--json]

A group's negative ID goes last, after --, as in: on --profile work -- -100123:7
"""
HELP = (
    USAGE
    + """
actions:
  status   tells whether questions can go out and answers come back
  install  copies a skill into the profile of the Telegram gateway
  on       starts the bridge for a Telegram chat, once everything is ready
  off      stops it

flags:
  --profile P          Hermes profile; default: that of the only running gateway
  --skill NAME         hub-liaison (default) or hub-conductor
  --force              replace a skill that differs; the old one is kept
  --restart            restart a running gateway, so that it sees the skill
  --via herdr|systemd  a Herdr pane (the default where HERDR_PANE_ID is set), or
                       the user unit hermes-coms-bridge@<project>.service
  --project NAME       coms project; default: that of the current pane, else
                       PI_COMS_PROJECT, else "default"
  --questions-dir DIR  where the bridge looks for answers
  --json               print the result as JSON
  --version, --help

Nothing here sends a Telegram message. Exit code 1 on any error.
"""
)

SHAPE = "Expected install, status, or an on/off action with one Telegram ID."
BAD_ID = "Telegram ID must be digits, optionally followed by a colon and a numeric topic ID."

_ACTIONS = ("install", "status", "on", "off")
_VALUES = ("--profile", "--skill", "--via", "--project", "--questions-dir")
_SWITCHES = ("--force", "--restart", "--json", "--help", "--version")
_ONLY_WITH = {
    "--force": ("install",),
    "--restart": ("install",),
    "--skill": ("install",),
    "--via": ("on", "off"),
    "--project": ("on", "off"),
    "--questions-dir": ("status", "on"),
}
_ID = re.compile(r"[0-9]+(:[0-9]+)?")
_SIGNED_ID = re.compile(r"-?[0-9]+(:[0-9]+)?")
_NUMBER = re.compile(r"-[0-9].*")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class UsageError(ConfigError):
    """A command line that cannot be used; told together with USAGE."""


class Arguments(NamedTuple):
    """A command line that was read. ``chat`` is empty where the action takes none."""

    action: str
    chat: str
    profile: str | None
    skill: str
    force: bool
    restart: bool
    via: str | None
    project: str | None
    questions_dir: str | None
    json: bool

    @property
    def target(self) -> str:
        """The target of ``hermes send``."""
        return f"telegram:{self.chat}"


def valid_project(name: str) -> bool:
    """Whether this may be a coms project (contract section 2)."""
    return _PROJECT.fullmatch(name) is not None and ".." not in name


def checked_project(name: str) -> str:
    """The name, if it may be a project's; else ConfigError."""
    if not valid_project(name):
        raise ConfigError(f'Invalid project name: "{name}"')
    return name


def parse(argv: Sequence[str]) -> Arguments | str:
    """The arguments, or the name of a switch (--help, --version) that wins over all else.

    Raises ConfigError: a UsageError where the usage should be told too.
    """
    given, positional = _split(argv)
    for switch in ("--help", "--version"):
        if switch in given:
            return switch
    action = positional[0][0] if positional else ""
    needs_id = action in ("on", "off")
    if action not in _ACTIONS or len(positional) != (2 if needs_id else 1):
        raise UsageError(SHAPE)
    for flag, actions in _ONLY_WITH.items():
        if flag in given and action not in actions:
            raise UsageError(f"{flag} is valid only with {' and '.join(actions)}.")
    chat, signed = positional[1] if needs_id else ("", False)
    if needs_id and (_SIGNED_ID if signed else _ID).fullmatch(chat) is None:
        raise UsageError(BAD_ID)
    profile, project = given.get("--profile"), given.get("--project")
    if profile is not None and not safe_profile(profile):
        raise UsageError("--profile must be a safe profile name")
    skill, via = given.get("--skill", LIAISON), given.get("--via")
    if skill not in SKILLS:
        raise UsageError(f"--skill must be {' or '.join(SKILLS)}")
    if via not in (None, "herdr", "systemd"):
        raise UsageError("--via must be herdr or systemd")
    directory = given.get("--questions-dir")
    if directory is not None and (not directory or not directory.isprintable()):
        raise UsageError("--questions-dir must be a directory")
    return Arguments(
        action=action,
        chat=chat,
        profile=profile,
        skill=skill,
        force="--force" in given,
        restart="--restart" in given,
        via=via,
        project=None if project is None else checked_project(project),
        questions_dir=None if directory is None else os.path.abspath(directory),
        json="--json" in given,
    )


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, bool]]]:
    """The flags by name, and the other words, each with whether it stands after ``--``."""
    given: dict[str, str] = {}
    positional: list[tuple[str, bool]] = []
    words = list(reversed(argv))
    ended = False
    while words:
        word = words.pop()
        if ended or not word.startswith("-") or _NUMBER.fullmatch(word):
            positional.append((word, ended))
            continue
        if word == "--":
            ended = True
            continue
        flag, equals, text = word.partition("=")
        if flag in _SWITCHES:
            if equals:
                raise UsageError(f"{flag} takes no value")
        elif flag in _VALUES:
            if not equals:
                text = words.pop() if words else "--"
            if not text or text.startswith("--"):
                raise UsageError(f"{flag} needs a value")
        else:
            raise UsageError(f"unknown flag: {' '.join(flag.split())[:80]}")
        if flag in given:
            raise UsageError(f"{flag} may only be specified once")
        given[flag] = text
    return given, positional
