"""Settings from flags and environment by one table, with all faults told at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hermes_bridges.core.envfile import read_text
from hermes_bridges.core.values import boolean
from hermes_bridges.errors import ConfigError

_WIDTH = 80


class Setting(NamedTuple):
    """One setting.

    ``parse`` turns a text into the value; its ValueError is, word for word, what the user is
    told, so it names the flag and never quotes a secret. ``default`` is the value itself.
    ``flag`` is ``--like-this``; ``env`` a variable's name. A ``switch`` is a flag without a
    value (True when given; as a variable 1 or 0). A ``repeatable`` one gives a tuple; its
    variable is split at commas. For a ``secret`` one, ``<env>_FILE`` may name a file that holds
    it. A ``required`` one has no default. Where ``empty`` is set, an empty variable is a value.
    ``shown`` is the default as people are told it, where the value itself would not do.
    """

    name: str
    parse: Callable[[str], object]
    default: object
    help: str
    flag: str | None = None
    env: str | None = None
    switch: bool = False
    repeatable: bool = False
    secret: bool = False
    metavar: str = ""
    required: bool = False
    empty: bool = False
    shown: str = ""


class Loaded(NamedTuple):
    """``values`` holds every setting of the table; ``given`` the names of those set by a flag.

    A setting with a fault has its default.
    """

    values: dict[str, object]
    given: frozenset[str]
    faults: tuple[str, ...] = ()


def load(table: Sequence[Setting], environ: Mapping[str, str], argv: Sequence[str]) -> Loaded:
    """Read the settings as ``read`` does; ConfigError with every fault there is."""
    loaded = read(table, environ, argv)
    if loaded.faults:
        raise ConfigError(loaded.faults)
    return loaded


def read(table: Sequence[Setting], environ: Mapping[str, str], argv: Sequence[str]) -> Loaded:
    """Read the settings; flags win over the environment, an empty variable counts as unset."""
    faults: list[str] = []
    given = _read_flags(table, argv, faults)
    values: dict[str, object] = {}
    for setting in table:
        texts = given.get(setting.name)
        source = ""
        before = len(faults)
        if texts is None and setting.env:
            source, texts = _read_variable(setting, setting.env, environ, faults)
        values[setting.name] = setting.default
        if texts is None and setting.required and len(faults) == before:
            faults.append(f"{_variable(setting) or setting.flag} must be set: {setting.help}")
        if texts is not None:
            try:
                values[setting.name] = _value(setting, texts)
            except ValueError as error:
                text = str(error)
                faults.append(f"{source}: {text}" if source and source not in text else text)
    return Loaded(values, frozenset(given), tuple(faults))


def merge(
    table: Sequence[Setting], environ: Mapping[str, str], file: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a file below those of the environment, where an empty one is unset too."""
    empty = {setting.env for setting in table if setting.empty}
    return {**file, **{name: text for name, text in environ.items() if text or name in empty}}


def unknown(
    table: Sequence[Setting], names: Iterable[str], prefixes: tuple[str, ...]
) -> tuple[str, ...]:
    """A sentence for each name with such a prefix that is no variable of the table."""
    known = {setting.env for setting in table if setting.env}
    known |= {f"{setting.env}_FILE" for setting in table if setting.env and setting.secret}
    told = []
    for name in sorted(name for name in names if name.startswith(prefixes) and name not in known):
        import difflib  # rarely needed, and every start would pay

        (nearest,) = difflib.get_close_matches(name, sorted(known), 1, 0.0)
        told.append(f"{_one_line(name)} is no setting; the nearest one is {nearest}")
    return tuple(told)


def _value(setting: Setting, texts: list[str]) -> object:
    if setting.repeatable:
        return tuple(setting.parse(text) for text in texts)
    if setting.switch:
        return boolean(texts[0])
    return setting.parse(texts[0])


def _read_flags(
    table: Sequence[Setting], argv: Sequence[str], faults: list[str]
) -> dict[str, list[str]]:
    flags = {setting.flag: setting for setting in table if setting.flag}
    given: dict[str, list[str]] = {}
    words = list(reversed(argv))
    while words:
        word = words.pop()
        flag, equals, text = word.partition("=")
        if not word.startswith("-") or word in ("-", "--"):
            faults.append(f"unexpected argument: {_one_line(word)}")
            continue
        setting = flags.get(flag)
        if setting is None:
            faults.append(f"unknown flag: {_one_line(flag)}")
            # What follows is most likely its value: not a second fault.
            if not equals and words and not words[-1].startswith("-"):
                words.pop()
            continue
        if setting.switch:
            if equals:
                faults.append(f"{flag} takes no value")
                continue
            text = "true"
        else:
            if not equals and words and not words[-1].startswith("--"):
                equals, text = "=", words.pop()
            if not equals or text.startswith("--"):
                faults.append(f"{flag} needs a value")
                continue
        texts = given.setdefault(setting.name, [])
        texts.append(text)
        if len(texts) == 2 and not setting.repeatable:
            faults.append(f"{flag} may only be specified once")
    return given


def _one_line(word: str) -> str:
    return " ".join(word.split())[:_WIDTH]


def _read_variable(
    setting: Setting, env: str, environ: Mapping[str, str], faults: list[str]
) -> tuple[str, list[str] | None]:
    text = environ.get(env, "")
    if setting.empty and env in environ:
        return env, [text]
    path = environ.get(f"{env}_FILE", "") if setting.secret else ""
    if path:
        env_file = f"{env}_FILE"
        if text:
            faults.append(f"{env} and {env_file} are both set")
            return env, None
        try:
            return env_file, [_read_secret(path)]
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            faults.append(f"{env_file}: {path}: {reason}")
            return env_file, None
    if not text:
        return env, None
    if setting.repeatable:
        return env, [part.strip() for part in text.split(",") if part.strip()]
    return env, [text]


def _read_secret(path: str) -> str:
    text = read_text(path)
    if not text.strip():
        raise ValueError("is empty")
    return text.removesuffix("\n").removesuffix("\r")


def usage(program: str, table: Sequence[Setting], intro: str) -> str:
    """The text of ``--help``, wrapped at 80 columns; indented paragraphs of ``intro`` stay."""
    # Only --help needs it, and every start would pay.
    import textwrap

    lines = [f"usage: {program} [flags]", ""]
    for paragraph in intro.strip("\n").split("\n\n"):
        text = paragraph.rstrip()
        lines += [text] if text.startswith(" ") else textwrap.wrap(" ".join(text.split()), _WIDTH)
        lines.append("")
    margin = " " * 6
    wrapper = textwrap.TextWrapper(
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    groups = (
        ("flags:", [(_synopsis(setting), setting) for setting in table if setting.flag]),
        ("environment:", [(_variable(s), s) for s in table if s.env and not s.flag]),
    )
    for title, entries in groups:
        if entries:
            lines.append(title)
        for head, setting in entries:
            lines.append(f"  {head}")
            lines += wrapper.wrap(f"{setting.help}{_remarks(setting)}")
        if entries:
            lines.append("")
    return "\n".join(lines)


def markdown(table: Sequence[Setting]) -> str:
    """The settings as a table for the documentation, without a column that would be empty."""
    columns = [("Flag", "---"), ("Environment", "---"), ("Default", "---"), ("Meaning", "---")]
    for number, cells in enumerate(zip(*(_cells(setting) for setting in table), strict=True)):
        columns[number] += tuple(cell.replace("|", "\\|") for cell in cells)
    rows = zip(*(column for column in columns if any(column[2:])), strict=True)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(setting: Setting) -> tuple[str, str, str, str]:
    default = _default(setting)
    return (
        f"`{_synopsis(setting)}`" if setting.flag else "",
        f"`{_variable(setting)}`".replace(" or ", "` or `") if setting.env else "",
        "required" if setting.required else f"`{default}`" if default else "",
        setting.help,
    )


def _synopsis(setting: Setting) -> str:
    if setting.switch:
        return setting.flag or ""
    more = " ..." if setting.repeatable else ""
    return f"{setting.flag} {setting.metavar or setting.name.upper()}{more}"


def _variable(setting: Setting) -> str:
    return f"{setting.env} or {setting.env}_FILE" if setting.secret else setting.env or ""


def _remarks(setting: Setting) -> str:
    default = "" if setting.switch else _default(setting)
    remarks = ["required"] if setting.required else [f"default: {default}"] if default else []
    if setting.flag and setting.env:
        remarks.append(f"or {_variable(setting)}")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _default(setting: Setting) -> str:
    return setting.shown or _shown(setting.default)


def _shown(default: object) -> str:
    if default is None or default == "" or default == ():
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default)
