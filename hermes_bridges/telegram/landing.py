"""Where the answers of a gateway's agent land: what ``~`` means to its tools (contract 10).

The rule of each Hermes version, as seen at work: 0.14 gives every tool ``<profile>/home`` where
that directory exists. From 0.19 on ``terminal.home_mode`` decides: ``profile`` does the same,
``real`` keeps the user's home, and ``auto`` is ``profile`` in a container, else ``real``. In a
gateway that serves several profiles the mode is that of the profile whose gateway it is.
"""

import os
import pwd
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused
from hermes_bridges.telegram.hermes_facts import Terminal

QUESTIONS = ".pi/coms/hermes-bridge/questions"
"""Where the skill writes, below the home that its tools have."""

PROFILE_HOME = "the home of the profile"
HOME = "the home of the gateway"

_MODES = {
    "isolated": "profile",
    "profile_home": "profile",
    "profile-home": "profile",
    "host": "real",
    "user": "real",
    "real_home": "real",
    "real-home": "real",
}
_ASSIGNMENT = re.compile(
    r"\s*(?:export\s+)?(HOME|HERMES_REAL_HOME|TERMINAL_ENV|TERMINAL_HOME_MODE)\s*=\s*(.*?)\s*"
)
_SETTINGS_LIMIT = 1 << 20
_ENVIRON_LIMIT = 1 << 22
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_GROUPS = "/proc/1/cgroup"
CONTAINER_MOUNTS = "/proc/self/mountinfo"
_CONTAINER_WORDS = ("docker", "podman", "/lxc/", "kubepods", "containerd", "crio")


class Unknown(BridgeError):
    """It cannot be told where answers land; the text says why."""


class Landing(NamedTuple):
    """Where they land, and why there: PROFILE_HOME, HOME, or the back end without a directory."""

    directory: str | None
    why: str


class Place(NamedTuple):
    """What the rule looks at.

    ``path`` is the profile's directory, ``environ`` the environment of the gateway's process, and
    ``mode_of`` the profile whose ``home_mode`` holds.
    """

    path: str
    environ: Mapping[str, str]
    mode_of: str


def work_out(
    place: Place, terminal: Terminal, in_container: Callable[[Mapping[str, str]], bool]
) -> Landing:
    """Where answers land. Raises Unknown."""
    if terminal.backend != "local":
        return Landing(None, terminal.backend)
    inner = os.path.join(place.path, "home")
    own = inner if os.path.isdir(inner) else None
    home = place.environ.get("HOME", "")
    mode = "profile" if terminal.home_mode is None else terminal.home_mode
    mode = _MODES.get(mode, mode)
    if mode == "profile":
        chosen = own or home
    elif mode == "real":
        chosen = _real_home(place.environ, own)
    elif own is not None and in_container(place.environ):
        chosen = own
    else:
        chosen = _real_home(place.environ, own) if _same(home, own) else home
    if not os.path.isabs(chosen):
        raise Unknown("the gateway runs without a HOME")
    return Landing(os.path.join(chosen, QUESTIONS), PROFILE_HOME if chosen == own else HOME)


def _real_home(environ: Mapping[str, str], own: str | None) -> str:
    candidates = (environ.get("HERMES_REAL_HOME", ""), environ.get("HOME", ""), account_home())
    for candidate in candidates:
        if os.path.isabs(candidate) and not _same(candidate, own):
            return candidate
    return ""


def account_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _same(path: str, other: str | None) -> bool:
    return bool(path) and other is not None and os.path.abspath(path) == os.path.abspath(other)


def same_directory(one: str, other: str) -> bool:
    """Whether two paths name the same place, links resolved, whether it exists or not."""
    return os.path.realpath(one) == os.path.realpath(other)


def gateway_environ(pid: int) -> dict[str, str]:
    """The environment that the gateway was started with; raises Unknown."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(_ENVIRON_LIMIT)
    except OSError as error:
        raise Unknown(
            f"the environment of the gateway (process {pid}) cannot be read: {error.strerror}"
        ) from None
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def must_not_be_overruled(place: Place, terminal: Terminal) -> None:
    """Raises Unknown when something besides the settings of Hermes may decide otherwise."""
    settled = {"TERMINAL_ENV": terminal.backend, "TERMINAL_HOME_MODE": terminal.home_mode}
    path = os.path.join(place.path, ".env")
    sources = (("the environment of the gateway", place.environ), (path, _assignments(path)))
    for source, values in sources:
        for name, value in settled.items():
            if value is not None and values.get(name, "").strip().lower() not in ("", value):
                raise Unknown(f"{source} sets {name} to something else than Hermes's settings do")
    for name in ("HOME", "HERMES_REAL_HOME"):
        if name in sources[1][1]:
            raise Unknown(f"{path} sets {name}")


def _assignments(path: str) -> dict[str, str]:
    """What a file of settings assigns to the names that count here; others are secrets."""
    try:
        text = files.read_capped(path, _SETTINGS_LIMIT, own=False).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    except (FileRefused, OSError):
        raise Unknown(f"{path} cannot be read") from None
    matches = filter(None, map(_ASSIGNMENT.fullmatch, text.splitlines()))
    return {match[1]: match[2].strip("\"'") for match in matches}


def in_container(environ: Mapping[str, str]) -> bool:
    """Whether Hermes takes this host for a container."""
    if environ.get("KUBERNETES_SERVICE_HOST") or any(map(os.path.exists, CONTAINER_FILES)):
        return True
    roots = [
        line
        for line in _lines(CONTAINER_MOUNTS)
        if len(fields := line.split()) > 4 and fields[4] == "/"
    ]
    marked = [*_lines(CONTAINER_GROUPS), *roots]
    return any(word in line for line in marked for word in _CONTAINER_WORDS)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
