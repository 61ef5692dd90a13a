"""Flags, environment and ``--env-file`` of the Donut bridge (contract sections 2 and 9)."""

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.core import envfile
from hermes_bridges.core.settings import Setting, merge, read, unknown
from hermes_bridges.core.settings import usage as core_usage
from hermes_bridges.core.urls import base_url, in_clear, proxy_url, url
from hermes_bridges.core.values import (
    boolean,
    count,
    duration,
    duration_or_zero,
    one_of,
    word,
)
from hermes_bridges.errors import ConfigError

PROGRAM = "bridge-donut"
INTRO = (
    "Connects a bot of a Donut hub to a Hermes API server: messages of its chats become turns of"
    " the agent, whose answers are posted back. Variables may also stand in the file that"
    " --env-file names; the environment wins."
)
FALLBACK = "Sorry, I can't answer right now. Please try again in a moment."
GRACE = 10.0
"""Seconds beyond the request timeout that a stop leaves to what is in flight."""
_PREFIXES = ("BRIDGE_", "DONUT_")
_MESSAGE_MAX = 4000  # bytes, of the hub


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("--env-file must be a path")
    return text


def _directory(text: str) -> str:
    if not os.path.isabs(text) or "\0" in text:
        raise ValueError("must be an absolute path")
    return os.path.normpath(text)


def _model(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("must be the name of a model")
    return text


def _message(text: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" for char in text):
        raise ValueError("must be text without control characters")
    if len(text.encode()) > _MESSAGE_MAX:
        raise ValueError(f"must be at most {_MESSAGE_MAX} bytes")
    return text.strip()


def _log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError("--log-format must be text or json")
    return text


FLAGS: tuple[Setting, ...] = (
    Setting("env_file", _path, None, "read variables from FILE", "--env-file", metavar="FILE"),
    Setting(
        "check",
        boolean,
        False,
        "say whether Hermes and the hub can be reached, and exit: 0 both can, 1 not both",
        "--check",
        switch=True,
    ),
    Setting(
        "reset_state",
        boolean,
        False,
        "move the state aside, say where to, and exit",
        "--reset-state",
        switch=True,
    ),
    Setting(
        "exit_on_auth_failure",
        boolean,
        False,
        "exit with 78 when the hub refuses the token, instead of trying again",
        "--exit-on-auth-failure",
        switch=True,
    ),
    Setting(
        "log_format",
        _log_format,
        "text",
        "lines on stderr: text or json",
        "--log-format",
        metavar="FORMAT",
    ),
    Setting("version", boolean, False, "print the version and exit", "--version", switch=True),
    Setting("help", boolean, False, "print this help and exit", "--help", switch=True),
)

VARIABLES: tuple[Setting, ...] = (
    Setting(
        "bot_token",
        word,
        "",
        "token of the bot, as the hub issued it",
        env="DONUT_BOT_TOKEN",
        secret=True,
        required=True,
    ),
    Setting(
        "stream_url",
        url("ws", "wss"),
        "wss://api.donutchat.com/bots/v1/stream",
        "where the hub sends events; ws:// only to this host",
        env="DONUT_STREAM_URL",
    ),
    Setting(
        "send_url",
        url("http", "https"),
        "https://api.donutchat.com/bots/v1/messages",
        "where messages are posted; http:// only to this host",
        env="DONUT_SEND_URL",
    ),
    Setting(
        "typing_url",
        url("http", "https"),
        None,
        "where the typing signal is posted, by the rule of DONUT_SEND_URL; unset: none is sent",
        env="DONUT_TYPING_URL",
    ),
    Setting(
        "hermes_url",
        base_url,
        "",
        "the API server of Hermes, such as http://127.0.0.1:8642; a path such as /p/work names a"
        " profile, a / or /v1 at the end is dropped",
        env="HERMES_BASE_URL",
        required=True,
    ),
    Setting(
        "hermes_key",
        word,
        "",
        "its key, API_SERVER_KEY there",
        env="HERMES_API_KEY",
        secret=True,
        required=True,
    ),
    Setting("model", _model, "hermes-agent", "the model that requests name", env="HERMES_MODEL"),
    Setting(
        "max_concurrent",
        count,
        4,
        "how many calls of Hermes may be under way at once",
        env="BRIDGE_MAX_CONCURRENT",
    ),
    Setting(
        "queue_limit",
        count,
        20,
        "how many messages of a chat may wait; past it the oldest one is dropped",
        env="BRIDGE_QUEUE_LIMIT",
    ),
    Setting(
        "idle_timeout",
        duration,
        60.0,
        "after this time without a message a chat's worker retires",
        env="BRIDGE_IDLE_TIMEOUT",
        shown="60s",
    ),
    Setting(
        "request_timeout",
        duration,
        120.0,
        "longest time for one answer of Hermes, repeated tries included",
        env="BRIDGE_REQUEST_TIMEOUT",
        shown="120s",
    ),
    Setting(
        "breaker_threshold",
        count,
        5,
        "after so many failed calls in a row Hermes is left alone",
        env="BRIDGE_BREAKER_THRESHOLD",
    ),
    Setting(
        "breaker_cooldown",
        duration,
        30.0,
        "for this time; then one call tries whether it works again",
        env="BRIDGE_BREAKER_COOLDOWN",
        shown="30s",
    ),
    Setting(
        "fallback_message",
        _message,
        FALLBACK,
        "what a chat is told instead of an answer; empty: nothing",
        env="BRIDGE_FALLBACK_MESSAGE",
        empty=True,
    ),
    Setting(
        "fallback_interval",
        duration_or_zero,
        60.0,
        "a chat is told so once in this time at most; may be 0",
        env="BRIDGE_FALLBACK_INTERVAL",
        shown="60s",
    ),
    Setting(
        "content_type",
        one_of("MD", "TX"),
        "MD",
        "how answers are shown: MD as Markdown, TX as plain text",
        env="BRIDGE_REPLY_CONTENT_TYPE",
    ),
    Setting(
        "respond_to_bots",
        boolean,
        False,
        "answer other bots too, five times in a row at most; never the bot itself",
        env="BRIDGE_RESPOND_TO_BOTS",
        shown="false",
    ),
    Setting(
        "shutdown_grace",
        duration_or_zero,
        None,
        "at a stop, how long calls under way may take to end; may be 0",
        env="BRIDGE_SHUTDOWN_GRACE",
        shown="BRIDGE_REQUEST_TIMEOUT + 10s",
    ),
    Setting(
        "proxy",
        proxy_url,
        None,
        "http://host:port that leads to the hub; no other variable names one, and Hermes and this"
        " host are always reached directly",
        env="BRIDGE_PROXY",
    ),
    Setting(
        "allow_insecure",
        boolean,
        False,
        "allow ws:// and http:// to a hub on another host: the token crosses the network in clear",
        env="BRIDGE_ALLOW_INSECURE",
        shown="false",
    ),
    Setting(
        "state_dir",
        _directory,
        None,
        "directory of the state, made with mode 0700",
        env="BRIDGE_STATE_DIR",
        shown="$STATE_DIRECTORY, else ~/.local/state/hermes-bridges",
    ),
    Setting(
        "log_level",
        one_of("debug", "info", "warning", "error"),
        "info",
        "the least that is logged: debug, info, warning or error",
        env="LOG_LEVEL",
    ),
)


class Settings(NamedTuple):
    """What the bridge runs with; times in seconds.

    After ``--help`` and ``--version`` only the flags are read; after ``--reset-state`` also where
    the state is.
    """

    bot_token: str
    stream_url: str
    send_url: str
    typing_url: str | None
    hermes_url: str
    """Without ``/v1`` and without a slash at its end."""
    hermes_key: str
    model: str
    max_concurrent: int
    queue_limit: int
    idle_timeout: float
    request_timeout: float
    breaker_threshold: int
    breaker_cooldown: float
    fallback_message: str
    """Empty: none is sent."""
    fallback_interval: float
    content_type: str
    respond_to_bots: bool
    shutdown_grace: float
    proxy: str | None
    allow_insecure: bool
    state_dir: str
    log_level: str
    env_file: str | None
    check: bool
    reset_state: bool
    exit_on_auth_failure: bool
    log_format: str
    version: bool
    help: bool
    warnings: tuple[str, ...]
    """Sentences about variables of the process that look like settings, but are none."""

    def __repr__(self) -> str:
        """Without the values: two of them are secrets."""
        return "Settings(...)"


def usage() -> str:
    """The text of ``--help``."""
    return core_usage(PROGRAM, FLAGS + VARIABLES, INTRO)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings; ConfigError with every fault, each naming its variable or flag."""
    flags = read(FLAGS, {}, argv)
    if flags.values["help"] or flags.values["version"]:
        wanted: tuple[Setting, ...] = ()
    elif flags.values["reset_state"]:
        # What stands in the way of a start need not stand in the way of this.
        wanted = tuple(one for one in VARIABLES if one.name == "state_dir")
    else:
        wanted = VARIABLES
    faults = [*flags.faults]
    if flags.values["check"] and flags.values["reset_state"]:
        faults.append("--check and --reset-state cannot be given together")
    file: Mapping[str, str] = {}
    if wanted and flags.values["env_file"] is not None:
        file, told = envfile.read(str(flags.values["env_file"]))
        faults += [f"--env-file: {fault}" for fault in told]
        faults += unknown(VARIABLES, file, _PREFIXES) if wanted is VARIABLES else ()
    loaded = read(wanted, merge(VARIABLES, environ, file), ())
    faults += loaded.faults
    values: dict[str, Any] = {
        **{setting.name: setting.default for setting in VARIABLES},
        **flags.values,
        **loaded.values,
    }
    faults += _in_clear(values)
    if values["shutdown_grace"] is None:
        values["shutdown_grace"] = values["request_timeout"] + GRACE
    if values["state_dir"] is None:
        values["state_dir"] = _state_dir(environ)
        if wanted and not values["state_dir"]:
            faults.append("BRIDGE_STATE_DIR must be set, since HOME does not name a directory")
    if faults:
        raise ConfigError(faults)
    warnings = unknown(VARIABLES, environ, _PREFIXES) if wanted is VARIABLES else ()
    return Settings(**values, warnings=warnings)


def _in_clear(values: Mapping[str, Any]) -> Iterator[str]:
    for setting in VARIABLES:
        if setting.name in ("stream_url", "send_url", "typing_url"):
            text = values[setting.name]
            if text is not None and in_clear(text) and not values["allow_insecure"]:
                secure = "wss" if text.startswith("ws") else "https"
                yield (
                    f"{setting.env}: must begin with {secure}://, except to this host or with"
                    " BRIDGE_ALLOW_INSECURE=true"
                )


def _state_dir(environ: Mapping[str, str]) -> str:
    # systemd may name several, the unit's first one first.
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    home = environ.get("HOME", "")
    if os.path.isabs(given):
        return given
    return os.path.join(home, ".local", "state", "hermes-bridges") if os.path.isabs(home) else ""
