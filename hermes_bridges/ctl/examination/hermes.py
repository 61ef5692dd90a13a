"""Hermes: whether it is found, its version, its profiles."""

import os
from collections.abc import Iterator, Mapping

from hermes_bridges.core import files
from hermes_bridges.core.hermes_cli import HermesCli
from hermes_bridges.ctl.examination import Finding
from hermes_bridges.errors import BridgeError, FileRefused
from hermes_bridges.telegram.hermes_facts import plain, safe_profile

_LIMIT = 30.0  # seconds for one command: its start alone takes some on a small host
_SHOWN = 120
_PROFILES_MOST = 50


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        cli = HermesCli(environ)
    except BridgeError as error:
        if "active_profile" in str(error):
            remedy = "write the name of a profile that is there into that file, or remove it"
        else:
            remedy = "set HOME, or HERMES_HOME to the directory of Hermes"
        yield Finding(str(error), remedy)
        return
    path = cli.find()
    if path is None:
        yield Finding(
            f"hermes was not found on PATH ({environ.get('PATH', '')})",
            "install Hermes, or put its directory into the PATH of the bridges; the Donut bridge"
            " alone needs no hermes command here",
        )
    else:
        yield _version(cli, path)
    yield from _profiles(cli)


def _version(cli: HermesCli, path: str) -> Finding:
    result = cli.run(["--version"], _LIMIT)
    told = plain(result.out or result.err).strip().splitlines()
    first = told[0][:_SHOWN] if told else ""
    if result.code == 0 and first:
        return Finding(f"hermes is {path}: {first}")
    if result.timed_out:
        why = f"did not end within {_LIMIT:g} s"
    elif result.error:
        why = result.error
    else:
        last = told[-1][:_SHOWN] if told else "it said nothing"
        why = f"failed ({result.code if result.code is not None else result.signal}): {last}"
    return Finding(
        f"hermes is {path}, but `hermes --version` {why}",
        "see that this command works for the user of the bridges",
    )


def _profiles(cli: HermesCli) -> Iterator[Finding]:
    if not os.path.isdir(cli.home):
        yield Finding(
            f"Hermes has no directory {cli.home}",
            "run hermes once as the user of the bridges, or set HERMES_HOME to where it lives",
        )
        return
    root = cli.home
    if os.path.basename(os.path.dirname(root)) == "profiles":
        root = os.path.dirname(os.path.dirname(root))
    try:
        names = sorted(filter(safe_profile, os.listdir(os.path.join(root, "profiles"))))
    except OSError:
        names = []
    active = _active(root) or "default"
    listed = ", ".join(["default", *names[:_PROFILES_MOST]])
    yield Finding(f"profiles of Hermes in {root}: {listed}; active: {active}")


def _active(root: str) -> str:
    try:
        raw = files.read_capped(os.path.join(root, "active_profile"), 4096, own=False)
    except (OSError, FileRefused):
        return ""
    return raw.decode("utf-8", "replace").strip()[:_SHOWN]
