"""The systemd units as they are written for one host."""

import hashlib
import importlib.resources
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hermes_bridges import __version__
from hermes_bridges.core import installation
from hermes_bridges.core.settings import Setting
from hermes_bridges.donut import settings as donut_settings
from hermes_bridges.errors import ConfigError

SYSTEM_UNITS = "/etc/systemd/system"
SYSTEM_SETTINGS = "/etc/hermes-bridges"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_USER_PATH = f"%h/.local/bin:{_SYSTEM_PATH}"
_MARK = re.compile(r"# hermes-bridges \S+, ([0-9a-f]{64}) of what follows\n")
_NARROW = "without-namespaces.conf"
_PLACE = re.compile(r"@([A-Z_]+)@")


class Host(NamedTuple):
    """What the units have to know of a host. Paths are absolute."""

    coms: str
    """The command line that runs the coms bridge, as in a unit."""
    donut: str
    user: str
    """Whose coms bridge a system unit runs."""
    home: str
    hermes_home: str
    hermes_dir: str | None
    """The directory of the ``hermes`` command."""
    settings: str
    """The directory of the settings."""


class UnitFile(NamedTuple):
    """A file to be written."""

    path: str
    text: str
    mode: int


def commands() -> tuple[str, str]:
    """How this installation runs the two bridges, as words of a unit."""
    return _words("bridge-coms"), _words("bridge-donut")


def system_files(host: Host, units: str = SYSTEM_UNITS) -> list[UnitFile]:
    """The units of the system manager, and examples of their settings."""
    return [
        *_units("system", host, units, _path(host, _SYSTEM_PATH)),
        *examples(host.settings, secrets_by_systemd=True),
    ]


def user_files(host: Host, units: str, namespaces: bool) -> list[UnitFile]:
    """The units of a person's own manager, and examples of their settings.

    Without ``namespaces`` each unit gets a drop-in that takes back what needs them.
    """
    files = _units("user", host, units, _path(host, _USER_PATH))
    if not namespaces:
        text = _signed(_template(_NARROW))
        files += [UnitFile(f"{unit.path}.d/{_NARROW}", text, 0o644) for unit in list(files)]
    return files + examples(host.settings, secrets_by_systemd=False)


def examples(directory: str, secrets_by_systemd: bool) -> list[UnitFile]:
    """Example files with every variable, all of them commented out."""
    coms = "".join(f"{line}\n" for line in _coms_lines())
    donut = "".join(f"{line}\n" for line in _donut_lines(directory, secrets_by_systemd))
    return [
        UnitFile(os.path.join(directory, "coms.env.example"), _signed(coms), 0o644),
        UnitFile(os.path.join(directory, "donut.env.example"), _signed(donut), 0o644),
    ]


def is_edited(text: str) -> bool:
    """Whether somebody has changed a file since it was written; one that is not ours was."""
    mark = _MARK.match(text)
    return mark is None or mark[1] != _digest(text[mark.end() :])


def quoted(word: str) -> str:
    """One word of a command line in a unit; ConfigError if it cannot stand there."""
    if not word.isprintable():
        raise ConfigError(f"{word!r} cannot stand in a unit")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$")}"'


def assigned(text: str) -> str:
    """What stands within the quotes of an ``Environment=``; ConfigError if it cannot."""
    if not text.isprintable():
        raise ConfigError(f"{text!r} cannot stand in a unit")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _words(program: str) -> str:
    words = installation.command(program)
    return " ".join(quoted(word) if os.path.isabs(word) else word for word in words)


def _units(manager: str, host: Host, directory: str, path: str) -> list[UnitFile]:
    values = {
        "COMS": host.coms,
        "DONUT": host.donut,
        "USER": host.user,
        "HOME": _escaped(host.home),
        "HERMES_HOME": _escaped(host.hermes_home) if manager == "system" else host.hermes_home,
        "PATH": path,
        "ETC": _escaped(host.settings),
    }
    return [
        UnitFile(
            os.path.join(directory, name),
            _signed(_PLACE.sub(lambda place: values[place[1]], _template(f"{manager}-{name}"))),
            0o644,
        )
        for name in ("hermes-coms-bridge@.service", "hermes-donut-bridge@.service")
    ]


def _path(host: Host, usual: str) -> str:
    if host.hermes_dir is None or host.hermes_dir in usual.split(":"):
        return usual
    return f"{_escaped(host.hermes_dir)}:{usual}"


def _escaped(path: str) -> str:
    """A path in a unit, where it is no word of a command line; ConfigError if it cannot be."""
    if not path.isprintable() or set(path) & set(" \"'\\:"):
        raise ConfigError(f"the path {path!r} cannot stand in a unit: blanks, quotes, colons")
    return path.replace("%", "%%")


def _template(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("units", name).read_text("utf-8")


def _signed(text: str) -> str:
    return f"# hermes-bridges {__version__}, {_digest(text)} of what follows\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


_COMS: Sequence[tuple[str, str, str]] = (
    (
        "BRIDGE_COMS_FLAGS",
        "--to telegram:123456789",
        "further flags of bridge-coms, see bridge-coms --help",
    ),
    ("PI_COMS_DIR", "", "registry and sockets of the pool (default: ~/.pi/coms)"),
    ("PI_COMS_TIMEOUT_MS", "1800000", "how long a question waits for its answer"),
    ("HERMES_HOME", "", "the home of Hermes, where it is not the one in the unit"),
)


def _coms_lines() -> Iterator[str]:
    yield "# Settings of the coms bridge of one project: copy this to coms-PROJECT.env."
    for name, value, meaning in _COMS:
        yield ""
        yield f"# {meaning}"
        yield f"#{name}={value}"


def _donut_lines(directory: str, secrets_by_systemd: bool) -> Iterator[str]:
    yield "# Settings of one Donut bridge: copy this to donut-NAME.env, mode 0600."
    for setting in donut_settings.VARIABLES:
        yield ""
        yield f"# {setting.help}"
        if setting.secret and secrets_by_systemd:
            file = "token" if setting.name == "bot_token" else "key"
            yield f"# The unit reads it from {directory}/donut-NAME.{file}: not set here."
            continue
        if setting.secret:
            yield f"#{setting.env}_FILE="
        yield f"#{setting.env}={_shown(setting)}"


def _shown(setting: Setting) -> str:
    if setting.name in ("shutdown_grace", "state_dir"):
        return ""
    shown = setting.shown or setting.default
    text = "" if shown is None else str(shown)
    return f'"{text}"' if " " in text else text


def values_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """HOME and HERMES_HOME of the caller; ConfigError where a unit could not use them."""
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        raise ConfigError("HOME is not set to a directory")
    hermes_home = environ.get("HERMES_HOME") or os.path.join(home, ".hermes")
    if not os.path.isabs(hermes_home):
        raise ConfigError(f"HERMES_HOME is no absolute path: {hermes_home}")
    return home, hermes_home
