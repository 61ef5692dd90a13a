"""Flags, variables and env files to the letter (contract sections 2 and 9)."""

from pathlib import Path

import pytest

from hermes_bridges.donut.settings import FLAGS, VARIABLES, Settings, parse, usage
from hermes_bridges.errors import ConfigError

GIVEN = {
    "HOME": "/home/ann",
    "DONUT_BOT_TOKEN": "donutbot_hush",
    "HERMES_BASE_URL": "http://127.0.0.1:8642",
    "HERMES_API_KEY": "key-hush",
}
SECRETS = ("donutbot_hush", "key-hush", "hush")


def parsed(*argv: str, **environ: str) -> Settings:
    return parse(argv, GIVEN | environ)


def faults(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parsed(*argv, **environ)
    told = caught.value.faults
    assert not [line for line in told if "\n" in line or any(one in line for one in SECRETS)]
    return told


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in GIVEN.items() if name not in names}


def test_the_defaults() -> None:
    given = parsed()
    assert given.bot_token == "donutbot_hush"
    assert given.stream_url == "wss://api.donutchat.com/bots/v1/stream"
    assert given.send_url == "https://api.donutchat.com/bots/v1/messages"
    assert given.typing_url is None
    assert (given.hermes_url, given.hermes_key) == ("http://127.0.0.1:8642", "key-hush")
    assert given.model == "hermes-agent"
    assert (given.max_concurrent, given.queue_limit) == (4, 20)
    assert (given.idle_timeout, given.request_timeout) == (60, 120)
    assert (given.breaker_threshold, given.breaker_cooldown) == (5, 30)
    assert given.fallback_message.isascii() and 0 < len(given.fallback_message) < 100
    assert given.fallback_interval == 60
    assert (given.content_type, given.respond_to_bots) == ("MD", False)
    assert given.shutdown_grace == 130
    assert (given.proxy, given.allow_insecure) == (None, False)
    assert given.state_dir == "/home/ann/.local/state/hermes-bridges"
    assert given.log_level == "info"
    assert given.log_format == "text"
    assert not (given.env_file or given.check or given.reset_state or given.exit_on_auth_failure)
    assert not (given.version or given.help or given.warnings)


SET = {
    "DONUT_STREAM_URL": ("ws://127.0.0.1:1/s?x=y", "stream_url", "ws://127.0.0.1:1/s?x=y"),
    "DONUT_SEND_URL": ("http://[::1]:1/m", "send_url", "http://[::1]:1/m"),
    "DONUT_TYPING_URL": ("https://hub.example/t", "typing_url", "https://hub.example/t"),
    "HERMES_BASE_URL": ("https://hermes.example/p/work/v1/", "hermes_url", None),
    "HERMES_MODEL": ("my model/7b", "model", "my model/7b"),
    "BRIDGE_MAX_CONCURRENT": ("1", "max_concurrent", 1),
    "BRIDGE_QUEUE_LIMIT": ("100", "queue_limit", 100),
    "BRIDGE_IDLE_TIMEOUT": ("500ms", "idle_timeout", 0.5),
    "BRIDGE_REQUEST_TIMEOUT": ("2m", "request_timeout", 120),
    "BRIDGE_BREAKER_THRESHOLD": ("2", "breaker_threshold", 2),
    "BRIDGE_BREAKER_COOLDOWN": ("1.5h", "breaker_cooldown", 5400),
    "BRIDGE_FALLBACK_MESSAGE": (" Später,\n👩‍🚀 ", "fallback_message", "Später,\n👩‍🚀"),
    "BRIDGE_FALLBACK_INTERVAL": ("0", "fallback_interval", 0),
    "BRIDGE_REPLY_CONTENT_TYPE": ("TX", "content_type", "TX"),
    "BRIDGE_RESPOND_TO_BOTS": ("yes", "respond_to_bots", True),
    "BRIDGE_SHUTDOWN_GRACE": ("0", "shutdown_grace", 0),
    "BRIDGE_PROXY": ("http://proxy.example:3128", "proxy", "http://proxy.example:3128"),
    "BRIDGE_ALLOW_INSECURE": ("on", "allow_insecure", True),
    "BRIDGE_STATE_DIR": ("/srv/state/", "state_dir", "/srv/state"),
    "LOG_LEVEL": ("debug", "log_level", "debug"),
}


@pytest.mark.parametrize("variable", SET)
def test_each_variable_sets_its_field(variable: str) -> None:
    text, field, value = SET[variable]
    given = parsed(**{variable: text})
    assert getattr(given, field) == ("https://hermes.example/p/work" if value is None else value)
    default = parsed()
    # And nothing else, but for the default that follows from it.
    others = set(Settings._fields) - {field, "shutdown_grace"}
    assert all(getattr(given, other) == getattr(default, other) for other in others)


def test_no_variable_is_left_out() -> None:
    names = {one.env for one in VARIABLES}
    assert names == {*SET, "DONUT_BOT_TOKEN", "HERMES_API_KEY"}
    assert {one.name for one in FLAGS + VARIABLES} | {"warnings"} == set(Settings._fields)


def test_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.touch()
    given = parsed("--check", "--exit-on-auth-failure", "--log-format", "json")
    assert given.check and given.exit_on_auth_failure and not given.reset_state
    assert given.log_format == "json"
    assert parsed("--reset-state").reset_state
    assert parsed("--env-file", str(path)).env_file == str(path)
    assert faults("--log-format=xml") == ("--log-format must be text or json",)
    assert faults("--chek", "x") == ("unknown flag: --chek",)
    assert faults("--env-file=") == ("--env-file must be a path",)


def test_a_check_and_a_reset_exclude_each_other() -> None:
    """A reset does not read where the peers are, so a check would ask others with no key."""
    assert faults("--reset-state", "--check") == (
        "--check and --reset-state cannot be given together",
    )


def test_what_is_required() -> None:
    with pytest.raises(ConfigError) as caught:
        parse([], {"HOME": "/home/ann"})
    told = caught.value.faults
    assert [line.partition(" must be set: ")[0] for line in told] == [
        "DONUT_BOT_TOKEN or DONUT_BOT_TOKEN_FILE",
        "HERMES_BASE_URL",
        "HERMES_API_KEY or HERMES_API_KEY_FILE",
    ]


@pytest.mark.parametrize("variable", [one.env for one in VARIABLES if not one.required])
def test_an_empty_variable_is_unset(variable: str) -> None:
    given = parsed(**{variable: ""})
    if variable == "BRIDGE_FALLBACK_MESSAGE":
        assert given.fallback_message == ""
    else:
        assert given == parsed()


def test_a_blank_fallback_is_none() -> None:
    assert parsed(BRIDGE_FALLBACK_MESSAGE=" \n").fallback_message == ""


REFUSED = {
    "DONUT_BOT_TOKEN": ["a hush", "hush\n", "hush\x01", "hush\u200b"],
    "HERMES_API_KEY": ["a hush", "hüsh"],
    "DONUT_STREAM_URL": ["https://hub.example/", "hub.example", "wss://u:hush@hub.example/"],
    "DONUT_SEND_URL": ["wss://hub.example/", "https://hub.example/#x", "https://"],
    "DONUT_TYPING_URL": ["ftp://hub.example/", "off"],
    "HERMES_BASE_URL": ["127.0.0.1:8642", "http://h/?x", "http://hush@h", "ws://h"],
    "HERMES_MODEL": [" ", "a\nb", "\udc80"],
    "BRIDGE_MAX_CONCURRENT": ["0", "-1", "1.5", "four"],
    "BRIDGE_QUEUE_LIMIT": ["0", "twenty"],
    "BRIDGE_IDLE_TIMEOUT": ["0", "60 s", "1d", "inf"],
    "BRIDGE_REQUEST_TIMEOUT": ["0s", "-1", "nan"],
    "BRIDGE_BREAKER_THRESHOLD": ["0", "5s"],
    "BRIDGE_BREAKER_COOLDOWN": ["0ms", "soon"],
    "BRIDGE_FALLBACK_MESSAGE": ["hush\x00", "\udc80", "x" * 4001, "é" * 2001],
    "BRIDGE_FALLBACK_INTERVAL": ["-1s", "never"],
    "BRIDGE_REPLY_CONTENT_TYPE": ["md", "HTML"],
    "BRIDGE_RESPOND_TO_BOTS": ["2", "maybe"],
    "BRIDGE_SHUTDOWN_GRACE": ["-1", "x"],
    "BRIDGE_PROXY": ["proxy:3128", "https://p:1", "socks5://p:1", "http://u:hush@p:1"],
    "BRIDGE_ALLOW_INSECURE": ["sure"],
    "BRIDGE_STATE_DIR": ["state", "~/state", "./x"],
    "LOG_LEVEL": ["INFO", "trace", "10"],
}


@pytest.mark.parametrize(
    ("variable", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts]
)
def test_a_fault_is_one_line_that_names_the_variable(variable: str, text: str) -> None:
    (told,) = faults(**{variable: text})
    assert told.startswith(f"{variable}: must ")


def test_every_variable_can_be_wrong() -> None:
    assert set(REFUSED) == {one.env for one in VARIABLES}


def test_all_faults_are_told_at_once() -> None:
    told = faults("--nope", **{name: texts[0] for name, texts in REFUSED.items()})
    named = [line.partition(": ")[0] for line in told]
    assert named == ["unknown flag", *(one.env for one in VARIABLES)]
    told = faults(DONUT_SEND_URL="http://hub.example/", BRIDGE_QUEUE_LIMIT="0")
    assert len(told) == 2


@pytest.mark.parametrize("name", ["DONUT_STREAM_URL", "DONUT_SEND_URL", "DONUT_TYPING_URL"])
def test_a_hub_abroad_is_reached_in_clear_only_when_that_is_allowed(name: str) -> None:
    plain = ("ws" if name == "DONUT_STREAM_URL" else "http") + "://hub.example/x"
    secure = plain.replace("://", "s://")
    (told,) = faults(**{name: plain})
    assert told.startswith(f"{name}: must begin with {secure[: secure.index(':')]}://")
    assert "BRIDGE_ALLOW_INSECURE" in told
    parsed(**{name: plain, "BRIDGE_ALLOW_INSECURE": "true"})
    parsed(**{name: secure})
    parsed(**{name: plain.replace("hub.example", "localhost:80")})


def test_hermes_may_be_reached_in_clear() -> None:
    assert parsed(HERMES_BASE_URL="http://hermes.internal:8642").hermes_url.startswith("http:")


def test_the_grace_follows_the_request_timeout() -> None:
    assert parsed(BRIDGE_REQUEST_TIMEOUT="20s").shutdown_grace == 30
    assert parsed(BRIDGE_REQUEST_TIMEOUT="20s", BRIDGE_SHUTDOWN_GRACE="5s").shutdown_grace == 5


def test_where_the_state_is() -> None:
    assert parsed(STATE_DIRECTORY="/var/lib/a:/var/lib/b").state_dir == "/var/lib/a"
    both = parsed(STATE_DIRECTORY="/var/lib/a", BRIDGE_STATE_DIR="/srv/b")
    assert both.state_dir == "/srv/b"
    for home in ("", "home"):
        (told,) = faults(HOME=home)
        assert told.startswith("BRIDGE_STATE_DIR must be set")
        assert parsed(HOME=home, STATE_DIRECTORY="/var/lib/a").state_dir == "/var/lib/a"


@pytest.mark.parametrize("name", ["DONUT_BOT_TOKEN", "HERMES_API_KEY"])
def test_a_secret_may_stand_in_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "secret"
    path.write_text("hush-hush\n")
    environ = {**without(name), f"{name}_FILE": str(path)}
    given = parse([], environ)
    assert "hush-hush" in (given.bot_token, given.hermes_key)
    assert faults(**{f"{name}_FILE": str(path)}) == (f"{name} and {name}_FILE are both set",)
    path.write_text("hush-hush\n\n")
    with pytest.raises(ConfigError, match=rf"^{name}_FILE: must be ASCII without white space"):
        parse([], environ)
    path.unlink()
    with pytest.raises(ConfigError, match=rf"^{name}_FILE: {path}: No such file"):
        parse([], environ)


def env_file(directory: Path, text: str) -> tuple[str, str]:
    path = directory / "donut.env"
    path.write_text(text)
    return "--env-file", str(path)


def test_the_environment_wins_over_the_env_file(tmp_path: Path) -> None:
    flags = env_file(
        tmp_path,
        "# the bot\nDONUT_BOT_TOKEN='from-file'\nHERMES_API_KEY = \"from file\"\n"
        "BRIDGE_QUEUE_LIMIT=7\nBRIDGE_MAX_CONCURRENT=7\nBRIDGE_FALLBACK_MESSAGE=file\n",
    )
    given = parse(
        flags,
        {
            **without("DONUT_BOT_TOKEN"),
            "BRIDGE_QUEUE_LIMIT": "9",
            "BRIDGE_MAX_CONCURRENT": "",
            "BRIDGE_FALLBACK_MESSAGE": "",
        },
    )
    assert (given.bot_token, given.hermes_key) == ("from-file", "key-hush")
    assert (given.queue_limit, given.max_concurrent) == (9, 7)
    assert given.fallback_message == ""


def test_an_unknown_name_in_the_env_file_is_a_fault(tmp_path: Path) -> None:
    flags = env_file(
        tmp_path,
        "BRIDGE_MAX_CONCURENT=hush\nDONUT_TOKEN=hush\nHERMES_BRAND=x\nOTHER=x\n"
        "BRIDGE_STATE_DIR_FILE=/x\nBRIDGE_QUEUE_LIMIT=0\nnonsense hush\n",
    )
    assert faults(*flags) == (
        f"--env-file: {flags[1]}, line 7: must be KEY=VALUE or a comment",
        "BRIDGE_MAX_CONCURENT is no setting; the nearest one is BRIDGE_MAX_CONCURRENT",
        "BRIDGE_STATE_DIR_FILE is no setting; the nearest one is BRIDGE_STATE_DIR",
        "DONUT_TOKEN is no setting; the nearest one is DONUT_BOT_TOKEN",
        "BRIDGE_QUEUE_LIMIT: must be a whole number from 1 to 999999999",
    )


def test_an_unknown_name_in_the_environment_is_a_warning() -> None:
    given = parsed(BRIDGE_MAX_CONCURENT="hush", DONUT_SHOP="x", OTHER="x")
    first, second = given.warnings
    assert first == "BRIDGE_MAX_CONCURENT is no setting; the nearest one is BRIDGE_MAX_CONCURRENT"
    assert second.startswith("DONUT_SHOP is no setting; the nearest one is DONUT_")
    assert given.max_concurrent == 4


def test_an_env_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none"
    assert faults("--env-file", str(path)) == (f"--env-file: {path}: No such file or directory",)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_need_no_settings(flag: str) -> None:
    given = parse([flag, "--env-file", "/nowhere"], {"BRIDGE_X": "", "BRIDGE_QUEUE_LIMIT": "0"})
    assert given.help or given.version
    with pytest.raises(ConfigError, match="unknown flag: --nope"):
        parse([flag, "--nope"], {})


def test_to_reset_the_state_only_its_place_must_be_known(tmp_path: Path) -> None:
    flags = env_file(tmp_path, "BRIDGE_STATE_DIR=/srv/state\nBRIDGE_X=1\nBRIDGE_QUEUE_LIMIT=0\n")
    assert parse(["--reset-state", *flags], {}).state_dir == "/srv/state"
    with pytest.raises(ConfigError, match=r"^BRIDGE_STATE_DIR must be set"):
        parse(["--reset-state"], {})
    with pytest.raises(ConfigError, match=r"^BRIDGE_STATE_DIR: must be an absolute path"):
        parse(["--reset-state"], {**GIVEN, "BRIDGE_STATE_DIR": "x"})


def test_secrets_are_not_shown_by_accident() -> None:
    assert not [one for one in SECRETS if one in f"{parsed()!r} {parsed()}"]


def test_the_help_names_every_flag_and_variable() -> None:
    text = usage()
    for setting in FLAGS + VARIABLES:
        assert f"  {setting.flag or setting.env}" in text
    assert max(map(len, text.splitlines())) <= 80
