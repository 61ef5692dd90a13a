"""Python, the packages, the clock and systemd."""

import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping

from hermes_bridges import __version__
from hermes_bridges.ctl import systemd
from hermes_bridges.ctl.bridges import Landscape
from hermes_bridges.ctl.examination import Finding
from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import command

OLDEST_PYTHON = (3, 11)
NEEDED = {"requests": "2.28.2", "websocket-client": "1.5.0"}
"""The packages that the Donut bridge needs, and their oldest releases; coms needs none."""
# When this was written: no clock that goes is behind it.
_NO_EARLIER_THAN = 1_764_000_000
_AHEAD_MOST = 5.0  # seconds that a file may seem to come from the future
_LIMIT = 3.0


def examine(environ: Mapping[str, str], landscape: Landscape) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield from _clock(environ, landscape)
    yield from _systemd(environ, landscape)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"hermes-bridges {__version__} runs with Python {version} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        return Finding(text, "install it with Python 3.11 or later")
    return Finding(text)


def _packages() -> Iterator[Finding]:
    for name, oldest in NEEDED.items():
        again = f"install it where hermes-bridges is: {sys.executable} -m pip install '{name}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(f"{name} is not installed; the Donut bridge needs it", again)
            continue
        if _numbers(version) < _numbers(oldest):
            yield Finding(
                f"{name} {version} is older than {oldest}; the Donut bridge needs that",
                f"{again.removesuffix(chr(39))}>={oldest}'",
            )
        else:
            yield Finding(f"{name} {version} is installed")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def _clock(environ: Mapping[str, str], landscape: Landscape) -> Iterator[Finding]:
    set_it = "set the clock, and let it be kept: timedatectl set-ntp true"
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _NO_EARLIER_THAN:
        yield Finding(f"the clock says {shown}, which is over", set_it)
        return
    ahead = [path for path in _written(landscape) if _mtime(path) > now + _AHEAD_MOST]
    if ahead:
        yield Finding(f"the clock says {shown}, but {ahead[0]} was written later than that", set_it)
        return
    try:
        told = command.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"], environ, _LIMIT
        ).strip()
    except (BridgeError, OSError):
        told = ""
    if told == "no":
        yield Finding(f"the clock says {shown}, and nothing keeps it in time", set_it)
    else:
        yield Finding(f"the clock says {shown}")


def _written(landscape: Landscape) -> Iterator[str]:
    for one in landscape.bridges:
        yield from (path for path in (one.status_path, one.log) if path)


def _mtime(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _systemd(environ: Mapping[str, str], landscape: Landscape) -> Iterator[Finding]:
    if not os.path.isdir(systemd.BOOTED):
        yield Finding("systemd does not run here: something else has to start the bridges")
        return
    users = [one.unit for one in landscape.bridges if one.unit and one.unit.scope == "user"]
    yield Finding("systemd runs")
    if not users or os.geteuid() == 0:
        return
    try:
        argv = ["loginctl", "show-user", str(os.geteuid()), "--property=Linger", "--value"]
        lingers = command.run(argv, environ, _LIMIT).strip()
    except (BridgeError, OSError):
        return
    if lingers == "no":
        yield Finding(
            f"{users[0].name} ends when you log out, and does not start with the host",
            "let your units run without you: loginctl enable-linger",
        )
