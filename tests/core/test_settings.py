import os
from pathlib import Path

import pytest

from hermes_bridges.core.settings import Setting, load, markdown, merge, read, unknown, usage
from hermes_bridges.errors import ConfigError


def positive(text: str) -> float:
    if not text.isdigit() or int(text) == 0:
        raise ValueError("--poll-ms must be a positive number")
    return float(text)


def not_empty(text: str) -> str:
    if not text:
        raise ValueError("--to must not be empty")
    return text


def token(text: str) -> str:
    if len(text) < 6:
        raise ValueError("the token is too short")
    return text


TABLE = (
    Setting("poll_ms", positive, 1000.0, "time between two scans", "--poll-ms", "HB_POLL"),
    Setting("to", not_empty, "telegram", "where questions go", "--to", metavar="TARGET"),
    Setting("allow", not_empty, (), "who may answer", "--allow", "HB_ALLOW", repeatable=True),
    Setting("check", str, False, "look and leave", "--check", "HB_CHECK", switch=True),
    Setting("token", token, None, "what opens a|door", env="HB_TOKEN", secret=True),
)


def values(environ: dict[str, str], *argv: str) -> dict[str, object]:
    return load(TABLE, environ, argv).values


def faults(environ: dict[str, str], *argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(TABLE, environ, argv)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return caught.value.faults


def test_defaults_hold_where_nothing_is_given() -> None:
    loaded = load(TABLE, {"HB_POLL": "", "HB_TOKEN": "", "HB_TOKEN_FILE": ""}, [])
    assert loaded.values == {
        "poll_ms": 1000.0,
        "to": "telegram",
        "allow": (),
        "check": False,
        "token": None,
    }
    assert loaded.given == frozenset()


def test_flags_win_over_the_environment() -> None:
    environ = {"HB_POLL": "5", "HB_ALLOW": "a", "HB_CHECK": "1"}
    loaded = load(TABLE, environ, ["--poll-ms", "7", "--allow=b"])
    assert loaded.values["poll_ms"] == 7
    assert loaded.values["allow"] == ("b",)
    assert loaded.values["check"] is True
    assert loaded.given == {"poll_ms", "allow"}


def test_a_variable_behind_a_flag_is_not_even_parsed() -> None:
    assert values({"HB_POLL": "nonsense"}, "--poll-ms", "7")["poll_ms"] == 7


@pytest.mark.parametrize("argv", [("--to", "x"), ("--to=x",)])
def test_both_ways_to_give_a_value(argv: tuple[str, ...]) -> None:
    assert values({}, *argv)["to"] == "x"


@pytest.mark.parametrize("text", ["-1001234:7", "a=b", "-", "x y", " ", "ü"])
def test_odd_values_arrive_whole(text: str) -> None:
    assert values({}, "--to", text)["to"] == text
    assert values({}, f"--to={text}")["to"] == text


def test_a_repeatable_flag_gathers_in_order() -> None:
    assert values({}, "--allow", "b", "--allow=a", "--allow", "b")["allow"] == ("b", "a", "b")
    assert values({"HB_ALLOW": " a, b,,c "})["allow"] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("YES", True), ("on", True), ("0", False), ("false", False)]
)
def test_a_switch_in_the_environment(text: str, value: bool) -> None:
    assert values({"HB_CHECK": text})["check"] is value


def test_a_switch_as_a_flag() -> None:
    loaded = load(TABLE, {"HB_CHECK": "0"}, ["--check"])
    assert loaded.values["check"] is True
    assert loaded.given == {"check"}
    assert faults({}, "--check=1") == ("--check takes no value",)
    assert faults({}, "--check", "1") == ("unexpected argument: 1",)
    assert faults({"HB_CHECK": "maybe"}) == (
        "HB_CHECK: must be true or false (or 1, 0, yes, no, on, off)",
    )


@pytest.mark.parametrize("argv", [("--to", "a", "--to", "a"), ("--to=a", "--to", "b", "--to=c")])
def test_a_flag_that_is_given_twice(argv: tuple[str, ...]) -> None:
    assert faults({}, *argv) == ("--to may only be specified once",)
    assert faults({}, "--check", "--check") == ("--check may only be specified once",)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--to",), ("--to needs a value",)),
        (("--to", "--poll-ms", "5"), ("--to needs a value",)),
        (("--to=--x",), ("--to needs a value",)),
        (("--to", "--"), ("--to needs a value", "unexpected argument: --")),
        (("--to", ""), ("--to must not be empty",)),
        (("--to=",), ("--to must not be empty",)),
        (("--hermes-profil", "x"), ("unknown flag: --hermes-profil",)),
        (("--tokn=hush-hush",), ("unknown flag: --tokn",)),
        (("-p", "x"), ("unknown flag: -p",)),
        (("--TO", "x"), ("unknown flag: --TO",)),
        (("--t", "--check"), ("unknown flag: --t",)),
        (("--poll", "--poll-ms=4"), ("unknown flag: --poll",)),
        (("list",), ("unexpected argument: list",)),
        (("",), ("unexpected argument: ",)),
        (("a\nb",), ("unexpected argument: a b",)),
        (("--poll-ms", "0"), ("--poll-ms must be a positive number",)),
        (("--poll-ms=",), ("--poll-ms must be a positive number",)),
    ],
)
def test_D6_each_fault_is_one_line_that_names_the_flag(
    argv: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert faults({}, *argv) == expected


def test_all_faults_are_told_at_once() -> None:
    told = faults(
        {"HB_TOKEN": "short", "HB_CHECK": "?"}, "x", "--nope", "--to", "--poll-ms", "0", "--to=a"
    )
    assert told == (
        "unexpected argument: x",
        "unknown flag: --nope",
        "--to needs a value",
        "--poll-ms must be a positive number",
        "HB_CHECK: must be true or false (or 1, 0, yes, no, on, off)",
        "HB_TOKEN: the token is too short",
    )


def test_a_variable_that_cannot_be_parsed_is_named() -> None:
    assert faults({"HB_POLL": "x"}) == ("HB_POLL: --poll-ms must be a positive number",)


def test_a_text_that_names_the_variable_is_left_as_it_is() -> None:
    def refuse(text: str) -> str:
        raise ValueError("HB_X is never right")

    with pytest.raises(ConfigError, match=r"^HB_X is never right$"):
        load([Setting("x", refuse, None, "", env="HB_X")], {"HB_X": "1"}, [])


def test_a_secret_comes_from_a_variable_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"hush-hush\r\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert values({"HB_TOKEN": "hush" * 2})["token"] == "hushhush"
    assert values({"HB_TOKEN_FILE": str(path)})["token"] == "hush-hush"
    assert values({"HB_TOKEN_FILE": str(link)})["token"] == "hush-hush"
    assert faults({"HB_TOKEN": "hush-hush", "HB_TOKEN_FILE": str(path)}) == (
        "HB_TOKEN and HB_TOKEN_FILE are both set",
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"hush-\xff-hush", "is not UTF-8"),
        (b"h" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_secret_file_that_holds_no_secret(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert faults({"HB_TOKEN_FILE": str(path)}) == (f"HB_TOKEN_FILE: {path}: {reason}",)


def test_a_secret_file_that_cannot_be_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, reason in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (fifo, "is empty"),
    ):
        assert faults({"HB_TOKEN_FILE": str(path)}) == (f"HB_TOKEN_FILE: {path}: {reason}",)


def test_a_refused_secret_stays_out_of_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abcde")
    assert faults({"HB_TOKEN_FILE": str(path)}) == ("HB_TOKEN_FILE: the token is too short",)


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "poll"
    path.write_text("5")
    assert values({"HB_POLL_FILE": str(path)})["poll_ms"] == 1000


def test_the_help_text() -> None:
    assert usage("bridge-x", TABLE, "Does this\nand that.\n\n  verb   kept as it is") == (
        "usage: bridge-x [flags]\n"
        "\n"
        "Does this and that.\n"
        "\n"
        "  verb   kept as it is\n"
        "\n"
        "flags:\n"
        "  --poll-ms POLL_MS\n"
        "      time between two scans (default: 1000; or HB_POLL)\n"
        "  --to TARGET\n"
        "      where questions go (default: telegram)\n"
        "  --allow ALLOW ...\n"
        "      who may answer (or HB_ALLOW)\n"
        "  --check\n"
        "      look and leave (or HB_CHECK)\n"
        "\n"
        "environment:\n"
        "  HB_TOKEN or HB_TOKEN_FILE\n"
        "      what opens a|door\n"
    )


def test_the_help_text_is_wrapped_at_80_columns_and_breaks_no_path() -> None:
    path = "/" + "long-" * 20
    table = [Setting("x", str, ("a", "b"), f"word {path} {'word ' * 40}", "--x")]
    text = usage("p", table, "intro " * 60)
    assert path in text
    assert all(len(line) <= 80 for line in text.splitlines() if path not in line)
    assert "environment:" not in text
    assert "(default: a, b)" in text
    assert "flags:" not in usage("p", [TABLE[-1]], "x")


def test_the_table_for_the_documentation() -> None:
    assert markdown(TABLE) == (
        "| Flag | Environment | Default | Meaning |\n"
        "| --- | --- | --- | --- |\n"
        "| `--poll-ms POLL_MS` | `HB_POLL` | `1000` | time between two scans |\n"
        "| `--to TARGET` |  | `telegram` | where questions go |\n"
        "| `--allow ALLOW ...` | `HB_ALLOW` |  | who may answer |\n"
        "| `--check` | `HB_CHECK` | `off` | look and leave |\n"
        "|  | `HB_TOKEN` or `HB_TOKEN_FILE` |  | what opens a\\|door |\n"
    )


def test_defaults_as_people_write_them() -> None:
    shown = [2.5, 3, True, ""]
    text = markdown([Setting(f"x{i}", str, value, "h", "--x") for i, value in enumerate(shown)])
    cells = [line.split(" | ")[1] for line in text.splitlines()[2:]]
    assert cells == ["`2.5`", "`3`", "`on`", ""]


def test_one_newline_at_the_end_of_a_secret_file_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content, token in (
        (b"hush-hush", "hush-hush"),
        (b"hush-hush\n", "hush-hush"),
        (b"hush-hush\n\n", "hush-hush\n"),
        (b" hush-hush \n", " hush-hush "),
    ):
        path.write_bytes(content)
        assert values({"HB_TOKEN_FILE": str(path)})["token"] == token


NEEDED = (
    Setting("key", token, "", "what opens it", env="HB_KEY", secret=True, required=True),
    Setting("say", str, "hello", "what is said", env="HB_SAY", empty=True),
    Setting("wait", positive, None, "how long", env="HB_WAIT", shown="twice as long"),
)


def test_what_is_required_must_be_set(tmp_path: Path) -> None:
    told = "HB_KEY or HB_KEY_FILE must be set: what opens it"
    assert read(NEEDED, {}, ()).faults == read(NEEDED, {"HB_KEY": ""}, ()).faults == (told,)
    assert read(NEEDED, {"HB_KEY": "hush-hush"}, ()).faults == ()
    # A fault of its own is enough.
    (fault,) = read(NEEDED, {"HB_KEY_FILE": str(tmp_path / "none")}, ()).faults
    assert fault.endswith("No such file or directory")
    (fault,) = read(NEEDED, {"HB_KEY_FILE": "/x", "HB_KEY": "hush-hush"}, ()).faults
    assert fault == "HB_KEY and HB_KEY_FILE are both set"


def test_an_empty_variable_can_be_a_value() -> None:
    assert read(NEEDED, {"HB_SAY": ""}, ()).values["say"] == ""
    assert read(NEEDED, {}, ()).values["say"] == "hello"
    assert read(NEEDED, {"HB_WAIT": ""}, ()).values["wait"] is None


def test_a_setting_with_a_fault_has_its_default() -> None:
    loaded = read(TABLE, {"HB_POLL": "x", "HB_TOKEN": "short"}, ())
    assert len(loaded.faults) == 2
    assert (loaded.values["poll_ms"], loaded.values["token"]) == (1000, None)


def test_the_environment_wins_over_a_file_unless_it_is_empty() -> None:
    file = {"HB_KEY": "f", "HB_SAY": "f", "HB_WAIT": "f", "HB_X": "f"}
    merged = merge(NEEDED, {"HB_KEY": "e", "HB_SAY": "", "HB_WAIT": "", "HB_Y": "e"}, file)
    assert merged == {"HB_KEY": "e", "HB_SAY": "", "HB_WAIT": "f", "HB_X": "f", "HB_Y": "e"}


def test_unknown_names_are_told_with_the_nearest_known_one() -> None:
    names = ["HB_SAI", "HB_KEY_FILES", "HB_KEY_FILE", "HB_WAIT_FILE", "HB_SAY", "HC_SAY", "x"]
    assert unknown(NEEDED, names, ("HB_", "HD_")) == (
        "HB_KEY_FILES is no setting; the nearest one is HB_KEY_FILE",
        "HB_SAI is no setting; the nearest one is HB_SAY",
        "HB_WAIT_FILE is no setting; the nearest one is HB_WAIT",
    )
    assert "the nearest one is HB_" in unknown(NEEDED, ["HB_0"], ("HB_",))[0]


def test_required_settings_and_described_defaults_in_help_and_documentation() -> None:
    text = usage("p", NEEDED, "x")
    assert "what opens it (required)" in text
    assert "what is said (default: hello)" in text
    assert "how long (default: twice as long)" in text
    assert markdown(NEEDED).splitlines()[2:] == [
        "| `HB_KEY` or `HB_KEY_FILE` | required | what opens it |",
        "| `HB_SAY` | `hello` | what is said |",
        "| `HB_WAIT` | `twice as long` | how long |",
    ]
