"""Examples for logrotate and cron, with the paths and the user of a host."""

import glob
import grp
import os
import pwd
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hermes_bridges.core import installation
from hermes_bridges.errors import BridgeError, ConfigError


class Place(NamedTuple):
    """Whose logs they are, and the words that run the operator command."""

    user: str
    group: str
    home: str
    command: tuple[str, ...]


USUAL = Place("bridge", "bridge", "/home/bridge", ("/opt/hermes-bridges/bin/hermes-bridges",))
"""The host of the files in ``contrib/``."""
_LOGROTATE = """\
# Logs of the bridges, for logrotate: a file of /etc/logrotate.d, owned by root, mode 0644.
# Or without root, from a crontab: logrotate --state ~/.local/state/logrotate.state FILE

# The event log of the coms bridge: renamed. No line is lost, and the bridge needs no signal: it
# looks before each line whether the file still bears its name, and makes a new one, mode 0600.
# Never copytruncate here: it can lose lines.
{event_log} {{
    # The directory is the user's own; logrotate must not work in it as root.
    su {user} {group}
    daily
    maxsize 5M
    rotate 14
    missingok
    notifempty
    # The bridge makes it, and an empty file of root's would be in its way.
    nocreate
    # A full event log (10 MiB) is renamed to log.ndjson.1 by the bridge itself, over what is there.
    # With a time in their names, the rotated ones cannot be hit.
    dateext
    dateformat -%Y%m%d-%s
    compress
    # A bridge that has nothing to tell may still hold the newest one open.
    delaycompress
}}

# What goes to a file on stderr, by a shell's >> or StandardError=append: of a unit: copied and
# emptied, since whoever opened it holds it open for ever. What is written in the moment between
# the two is lost. The writer must append (>> and append:, not > and file:), or zeros fill the gap.
/var/log/hermes-bridges/*.log {{
    copytruncate
    daily
    maxsize 5M
    rotate 14
    missingok
    notifempty
    dateext
    dateformat -%Y%m%d-%s
    compress
}}
"""

_CRONTAB = """\
# Logs of the bridges, without logrotate: lines for a user's own crontab (crontab -e).
# Nothing is said when all is well; what cannot be rotated is mailed, as cron does.
SHELL=/bin/sh

# The event log of the coms bridge, every hour: rotated at 5 MiB or after 7 days, 8 are kept.
17 * * * * {command} rotate-logs

# What a shell's >> or StandardError=append: of a unit writes: copied and emptied, at night.
23 4 * * * {command} rotate-logs --only --copytruncate "$HOME"/.local/state/hermes-bridges/*.log
"""

_CRON_D = """\
# Logs of the bridges, without logrotate: a file of /etc/cron.d, owned by root, mode 0644, with no
# dot in its name. Nothing is said when all is well; what cannot be rotated is mailed, as cron does.
SHELL=/bin/sh

# The event log of the coms bridge, every hour: rotated at 5 MiB or after 7 days, 8 are kept. As its
# user: root would do as that user's files tell.
17 * * * * {user} {command} rotate-logs

# What StandardError=append: of a unit writes: copied and emptied, at night.
23 4 * * * root {command} rotate-logs --only --copytruncate /var/log/hermes-bridges/*.log
"""


def _logrotate(place: Place) -> str:
    event_log = os.path.join(place.home, ".pi", "coms", "hermes-bridge", "log.ndjson")
    quoted = glob.escape(event_log)
    if any(char in quoted for char in '"\\{}'):
        raise BridgeError(f"{place.home}: logrotate cannot have such a path")
    if not quoted.isascii() or any(char in quoted for char in " #'"):
        quoted = f'"{quoted}"'
    return _LOGROTATE.format(event_log=quoted, user=place.user, group=place.group)


def _crontab(place: Place) -> str:
    return _CRONTAB.format(command=_in_cron(place.command))


def _cron_d(place: Place) -> str:
    return _CRON_D.format(user=place.user, command=_in_cron(place.command))


def _in_cron(words: tuple[str, ...]) -> str:
    # A bare % ends a command of cron.
    return shlex.join(words).replace("%", "\\%")


EXAMPLES: dict[str, Callable[[Place], str]] = {
    "logrotate": _logrotate,
    "crontab": _crontab,
    "cron.d": _cron_d,
}


def render(name: str, environ: Mapping[str, str]) -> str:
    """One of the examples, for who runs this and from where. Raises BridgeError."""
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        raise ConfigError("HOME is not set to a directory")
    place = Place(*_who(), home, tuple(installation.command("hermes-bridges")))
    if not "".join((home, *place.command)).isprintable():
        raise BridgeError("a path with a line end or the like in it cannot stand in such a file")
    return EXAMPLES[name](place)


def _who() -> tuple[str, str]:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise BridgeError(f"the user {os.geteuid()} has no name") from None
    try:
        return user, grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        # logrotate takes the number too.
        return user, str(os.getegid())
