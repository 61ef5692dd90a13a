"""The environment of the Wishee connector (contract, sections 1, 6 and 10)."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hermes_bridges.core.settings import Setting, read, unknown
from hermes_bridges.core.urls import in_clear, url
from hermes_bridges.core.values import boolean, one_of
from hermes_bridges.errors import ConfigError

BRIDGE_URL = "wss://ai-bridge.wishee.com.cn/ws"
"""The bridge of a device that names no other."""
DIRECTORY = "wishee-connector"
"""Where the connector's files are, below the home of Hermes."""
ALLOW_ALL = "WISHEE_ALLOW_ALL_USERS"
"""What Hermes itself asks of the environment; the connector sets it, and does not read it."""

_PREFIX = "WISHEE_"

VARIABLES: tuple[Setting, ...] = (
    Setting(
        "bridge_url",
        url("ws", "wss"),
        None,
        "the bridge to dial, instead of the one that binding.json names; ws:// only to this host",
        env="WISHEE_BRIDGE_URL",
        shown=BRIDGE_URL,
    ),
    Setting(
        "claim_url",
        url("http", "https"),
        None,
        "where a bind code is claimed; http:// only to this host",
        env="WISHEE_CLAIM_URL",
        shown="/api/bind/claim at the bridge",
    ),
    Setting(
        "read_scope",
        one_of("wishee", "all"),
        "all",
        "the sessions that the device may list and read: wishee for its own ones, which is what we"
        " recommend, or all, of every platform, as older connectors let it",
        env="WISHEE_READ_SCOPE",
    ),
    Setting(
        "allow_insecure",
        boolean,
        False,
        "allow ws:// and http:// to another host: the identity crosses the network in clear",
        env="WISHEE_ALLOW_INSECURE",
        shown="false",
    ),
)


class Settings(NamedTuple):
    """What the connector runs with; ``bridge_url`` and ``claim_url`` are None where unset."""

    bridge_url: str | None
    claim_url: str | None
    read_scope: str
    allow_insecure: bool
    hermes_home: str
    directory: str
    """Of the connector's files."""
    legacy_home: str | None
    """The home of the user, where older connectors kept their files below ``.hermes``."""
    warnings: tuple[str, ...]
    """Sentences about variables that look like settings, but are none."""


def parse(environ: Mapping[str, str]) -> Settings:
    """Read the settings; ConfigError with every fault, each naming its variable."""
    loaded = read(VARIABLES, environ, ())
    values: dict[str, Any] = dict(loaded.values)
    faults = list(loaded.faults)
    for setting in VARIABLES:
        if setting.name.endswith("_url") and values[setting.name] is not None:
            fault = insecure(values[setting.name], values["allow_insecure"])
            faults += [f"{setting.env}: {fault}"] if fault else ()
    home = environ.get("HOME", "")
    legacy_home = home if os.path.isabs(home) else None
    hermes_home = environ.get("HERMES_HOME", "").strip()
    if not hermes_home and legacy_home:
        hermes_home = os.path.join(legacy_home, ".hermes")
    if not os.path.isabs(hermes_home):
        faults.append("HERMES_HOME must be an absolute path, or HOME where it is unset")
    if faults:
        raise ConfigError(faults)
    names = [name for name in environ if name != ALLOW_ALL]
    return Settings(
        **values,
        hermes_home=hermes_home,
        directory=os.path.join(hermes_home, DIRECTORY),
        legacy_home=legacy_home,
        warnings=unknown(VARIABLES, names, (_PREFIX,)),
    )


def insecure(address: str, allowed: bool) -> str | None:
    """Why the identity must not be sent to this URL, None when it may."""
    if allowed or not in_clear(address):
        return None
    secure = "wss" if address.startswith("ws") else "https"
    return f"must begin with {secure}://, except to this host or with WISHEE_ALLOW_INSECURE=1"
