"""What the output of ``hermes`` commands says, of every version (contract section 10).

Pure. A text that cannot be read raises Unreadable: nothing is guessed. Nobody but a person is meant
to read most of these outputs, so what is looked for is as little as will do.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from hermes_bridges.errors import BridgeError

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GATEWAY = re.compile(r"  ([✓✗]) ([A-Za-z0-9][A-Za-z0-9._-]*)(?: \(current\))?\s*(?:— (.*\S))?\s*")
_PID = re.compile(r"PID ([1-9][0-9]{0,9})")
_TOOLSET = re.compile(r"  (✓ enabled|✗ disabled)  ([A-Za-z0-9_.-]+)(?:  .*)?")
_BACKEND = re.compile(r"  Backend: +(\S+) *")
_NO_SUCH = r"invalid choice: ('?){}\1(?!\S)"
_LONGEST_QUOTE = 100


class Unreadable(BridgeError):
    """An output that does not look like any that is known; the text names the command."""


class Gateway(NamedTuple):
    """A profile's line in ``gateway list``: ``served`` by the gateway of another profile."""

    profile: str
    running: bool
    pid: int | None
    served: bool


class Terminal(NamedTuple):
    """Where the tools of a profile run. ``home_mode`` is None where Hermes knows no such thing."""

    backend: str
    home_mode: str | None


def safe_profile(name: str) -> bool:
    """Whether this may be a profile's name."""
    return _PROFILE.fullmatch(name) is not None and ".." not in name


def plain(text: str) -> str:
    """The text without what would command a terminal."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))


def gateways(output: str) -> tuple[Gateway, ...]:
    """The lines of ``hermes gateway list``."""
    lines = plain(output).strip("\n").split("\n")
    if lines == ["No profiles found."]:
        return ()
    command = "gateway list"
    rows = _block(command, lines, "Gateways:")
    found = []
    for line in rows:
        match = _GATEWAY.fullmatch(line)
        if match is None:
            raise _unreadable(command, line)
        mark, profile, state = match.groups()
        pid = _PID.fullmatch(state or "")
        number = int(pid[1]) if pid else None
        served = (state or "").startswith("served by ")
        found.append(Gateway(profile, mark == "✓", number, served))
    if len({one.profile for one in found}) != len(found):
        raise Unreadable(f"`hermes {command}` names a profile twice")
    return tuple(found)


def profile_path(output: str, profile: str) -> str:
    """The directory that ``hermes profile show`` tells for that profile, an absolute path."""
    command = f"profile show {profile}"
    lines = plain(output).split("\n")
    shown = _field(command, lines, "Profile:")
    if shown != profile:
        raise Unreadable(f"`hermes {command}` tells of another profile: {_quote(shown)}")
    path = _field(command, lines, "Path:")
    if not path.startswith("/"):
        raise Unreadable(f"`hermes {command}` tells no absolute path: {_quote(path)}")
    return path


def enabled_skills(output: str) -> frozenset[str]:
    """The names in the table of ``hermes skills list --enabled-only``."""
    command = "skills list"
    rows = [
        [cell.strip() for cell in line[1:-1].split(line[0])]
        for line in map(str.strip, plain(output).split("\n"))
        if line[:1] in ("│", "┃", "|") and line[-1] == line[0]
    ]
    if not rows or "Name" not in rows[0] or "Status" not in rows[0]:
        raise Unreadable(f"`hermes {command}` shows no table of names and states")
    name, status = rows[0].index("Name"), rows[0].index("Status")
    for row in rows[1:]:
        if len(row) != len(rows[0]) or not row[name] or row[name].endswith("…"):
            raise _unreadable(command, " | ".join(row))
    return frozenset(row[name] for row in rows[1:] if row[status] == "enabled")


def toolsets(output: str, platform: str) -> dict[str, bool]:
    """Which built-in toolsets ``hermes tools list`` shows, and whether they are enabled."""
    command = f"tools list --platform {platform}"
    lines = plain(output).strip("\n").split("\n")
    found: dict[str, bool] = {}
    for line in _block(command, lines, f"Built-in toolsets ({platform}):"):
        match = _TOOLSET.fullmatch(line)
        if match is None or match[2] in found:
            raise _unreadable(command, line)
        found[match[2]] = match[1] == "✓ enabled"
    return found


def terminal_settings(output: str) -> Terminal:
    """What ``hermes config get terminal --json`` says."""
    command = "config get terminal --json"
    try:
        found = json.loads(plain(output))
    except ValueError:
        raise Unreadable(f"`hermes {command}` prints no JSON") from None
    if not isinstance(found, dict):
        raise Unreadable(f"`hermes {command}` prints no settings")
    backend = str(found.get("backend") or "local").strip().lower()
    if "home_mode" not in found:
        return Terminal(backend, None)
    return Terminal(backend, str(found["home_mode"]).strip().lower())


def shown_backend(output: str) -> Terminal:
    """What ``hermes config show`` says, for versions that cannot ``config get``."""
    lines = plain(output).split("\n")
    found = [match[1] for line in lines if (match := _BACKEND.fullmatch(line))]
    if len(found) != 1:
        raise Unreadable("`hermes config show` tells no backend")
    return Terminal(found[0].lower(), None)


def lacks(command: str, code: int | None, error: str) -> bool:
    """Whether a call ended so because this Hermes has no such command."""
    return code == 2 and re.search(_NO_SUCH.format(re.escape(command)), plain(error)) is not None


def _block(command: str, lines: list[str], title: str) -> Iterable[str]:
    """The lines below a title, up to an empty one."""
    if title not in lines:
        raise Unreadable(f"`hermes {command}` shows no line {_quote(title)}")
    below = lines[lines.index(title) + 1 :]
    return below[: below.index("")] if "" in below else below


def _field(command: str, lines: list[str], title: str) -> str:
    found = [line[len(title) :].strip() for line in lines if line.startswith(title)]
    if len(found) != 1 or not found[0]:
        raise Unreadable(f"`hermes {command}` shows no line {_quote(title)}, or several")
    return found[0]


def _unreadable(command: str, line: str) -> Unreadable:
    return Unreadable(f"`hermes {command}` has a line that cannot be read: {_quote(line)}")


def _quote(text: str) -> str:
    cut = text.strip()
    return f'"{cut[:_LONGEST_QUOTE]}{"…" if len(cut) > _LONGEST_QUOTE else ""}"'
