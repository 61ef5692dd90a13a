"""The questions that the controller asks of ``hermes``, each one command with a time limit."""

import os
from collections.abc import Mapping, Sequence

from hermes_bridges.core.hermes_cli import HermesCli, Result
from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import hermes_facts as facts

LIMIT = 60.0
"""Seconds for one command: on a small host its start alone takes some."""
PLATFORM = "telegram"
_TAIL = 1 << 20
# Wide, so that no name is cut, and without colours; the platform lets `skills list` count what is
# disabled for Telegram alone.
_SHAPE = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb", "HERMES_PLATFORM": PLATFORM}


class Hermes:
    """Asks; every method raises BridgeError when there is no answer, or none that can be read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = environ
        self._environ = {n: v for n, v in environ.items() if n != "FORCE_COLOR"} | _SHAPE

    def gateways(self) -> tuple[facts.Gateway, ...]:
        """Every profile, and whether a gateway serves it."""
        return facts.gateways(self._ask(["gateway", "list"]))

    def profile_path(self, profile: str) -> str:
        """The directory of a profile: an existing one, and no symbolic link."""
        path = facts.profile_path(self._ask(["profile", "show", profile]), profile)
        if os.path.islink(path) or not os.path.isdir(path):
            raise BridgeError(f"the path of profile {profile} is not a directory: {path}")
        return path

    def enabled_skills(self, profile: str) -> frozenset[str]:
        """The skills that the profile's agent may load in a Telegram chat."""
        output = self._ask(["skills", "list", "--enabled-only"], profile)
        return facts.enabled_skills(output)

    def toolsets(self, profile: str) -> dict[str, bool]:
        """The toolsets of the profile's agent in a Telegram chat, and whether each is enabled."""
        return facts.toolsets(
            self._ask(["tools", "list", "--platform", PLATFORM], profile), PLATFORM
        )

    def terminal(self, profile: str) -> facts.Terminal:
        """Where the tools of the profile run."""
        result = self._run(["config", "get", "terminal", "--json"], profile)
        if facts.lacks("get", result.code, result.err):
            return facts.shown_backend(self._ask(["config", "show"], profile))
        return facts.terminal_settings(_output(["config", "get", "terminal"], result))

    def can_send(self, profile: str) -> bool:
        """Whether this Hermes has the command ``send``."""
        words = ["send", "--help"]
        result = self._run(words, profile)
        if facts.lacks("send", result.code, result.err):
            return False
        _output(words, result)
        return True

    def launch_restart(self, profile: str, output: int) -> int:
        """Begin ``gateway restart``; the process id. See HermesCli.launch."""
        # In the environment as it was: it may be the gateway's for a long time.
        cli = HermesCli(self._given, profile)
        try:
            return cli.launch(["gateway", "restart"], output)
        except OSError as error:
            raise BridgeError(f"`hermes gateway restart` could not be started: {error}") from None

    def _ask(self, words: Sequence[str], profile: str | None = None) -> str:
        return _output(words, self._run(words, profile))

    def _run(self, words: Sequence[str], profile: str | None) -> Result:
        return HermesCli(self._environ, profile, tail=_TAIL).run(words, LIMIT)


def _output(words: Sequence[str], result: Result) -> str:
    if result.code == 0:
        return result.out
    if result.error is not None:
        raise BridgeError(result.error)
    if result.timed_out:
        reason = "it took too long"
    else:
        said = facts.plain(result.err).strip() or facts.plain(result.out).strip()
        reason = said.splitlines()[-1].strip() if said else f"exit code {result.code}"
    raise BridgeError(f"`hermes {' '.join(words)}` failed: {reason}")
