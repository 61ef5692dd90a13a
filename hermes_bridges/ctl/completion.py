"""``hermes-bridges completion``: the completion script for a shell, made from the same tables."""

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hermes_bridges.ctl import VERBS
from hermes_bridges.ctl.arguments import Arguments

_ARGUMENTS = Arguments(
    "completion",
    "Prints the completion script for a shell: of hermes-bridges, bridge-coms and\n"
    "bridge-donut. For one user, as one command:\n"
    "\n"
    "  hermes-bridges completion bash\n"
    "      > ~/.local/share/bash-completion/completions/hermes-bridges\n"
    "\n"
    "and links of that file named bridge-coms and bridge-donut beside it; or this line in\n"
    "~/.bashrc, which works without the bash-completion package too:\n"
    "\n"
    "  source <(hermes-bridges completion bash)",
    "Exit code: 0; 2 for a command line that cannot be understood.",
)
_ARGUMENTS.add_argument("shell", choices=("bash",), help="which shell")
USAGE = _ARGUMENTS.usage_text()

_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?:[ =]([A-Z]\w*|\{[^}]*\}))?")
_BRIDGE_FIRST = ("status", "check", "tail", "reset-state")
_FILES = ("--env-file", "--file", "--output")
_DIRECTORIES = ("--questions-dir", "--root", "--state-dir")


class Command(NamedTuple):
    """What may follow: plain words, and flags; True: a value follows the flag."""

    words: tuple[str, ...]
    flags: Mapping[str, bool]


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the script."""
    _ARGUMENTS.read(words)
    print(script(), end="")
    return 0


def script() -> str:
    """The completion script for bash."""
    commands = {**_operator(), **_coms(), "bridge-donut": _donut()}
    cases = "".join(
        f'        "{key}") words="{" ".join((*command.words, *command.flags))}" ;;\n'
        for key, command in commands.items()
    )
    valued = sorted({flag for one in commands.values() for flag in one.flags if one.flags[flag]})
    return _SCRIPT.format(
        cases=cases.rstrip("\n"),
        verbs=" ".join(VERBS),
        client=" ".join(_client()),
        files=_either(_FILES),
        directories=_either(_DIRECTORIES),
        valued=_either(flag for flag in valued if flag not in (*_FILES, *_DIRECTORIES, _FORMAT)),
    )


_FORMAT = "--log-format"


def _either(words: Iterable[str]) -> str:
    return "|".join(words)


def _operator() -> dict[str, Command]:
    found = {"hermes-bridges": Command(tuple(VERBS), {"--help": False, "--version": False})}
    for verb in VERBS:
        module = importlib.import_module(f"hermes_bridges.ctl.{verb.replace('-', '_')}")
        words: tuple[str, ...] = ("coms", "donut") if verb in _BRIDGE_FIRST else ()
        words = ("bash",) if verb == "completion" else words
        found[f"hermes-bridges {verb}"] = Command(words, _flags(module.USAGE))
    return found


def _flags(usage: str) -> dict[str, bool]:
    """The flags that a help text lists, each with whether a value follows it."""
    listed = (line for line in usage.splitlines() if re.match(r" +(-\w, |-\w [A-Z]+, )?--", line))
    found = {m[1]: bool(m[2]) for line in listed if (m := _FLAG.search(line))}
    return {"--help": False, **found}


def _coms() -> dict[str, Command]:
    from hermes_bridges.coms.client.args import GRAMMARS
    from hermes_bridges.coms.settings import TABLE

    flags = {one.flag: not one.switch for one in TABLE if one.flag}
    found = {"bridge-coms": Command(_client(), flags)}
    for verb in _client():
        own = {flag.name: bool(flag.metavar) for flag in GRAMMARS[verb].flags}
        found[f"bridge-coms {verb}"] = Command((), {**own, "--help": False})
    return found


def _client() -> tuple[str, ...]:
    from hermes_bridges.coms.client.args import GRAMMARS

    return tuple(verb for verb in GRAMMARS if not verb.startswith("_"))


def _donut() -> Command:
    from hermes_bridges.donut.settings import FLAGS

    return Command((), {one.flag: not one.switch for one in FLAGS if one.flag})


_SCRIPT = r"""# Completion of hermes-bridges, bridge-coms and bridge-donut for bash.
# Made by `hermes-bridges completion bash`.

_hermes_bridges() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local key=${{COMP_WORDS[0]##*/}} verb=${{COMP_WORDS[1]}} words= i
    COMPREPLY=()
    case $prev in
        {files})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return ;;
        {directories})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            return ;;
        --log-format)
            mapfile -t COMPREPLY < <(compgen -W "text json" -- "$cur")
            return ;;
        {valued})
            return ;;
    esac
    if ((COMP_CWORD > 1)); then
        case "$key $verb" in
            "hermes-bridges check")
                # What follows -- is for the bridge.
                for ((i = 3; i < COMP_CWORD; i++)); do
                    [[ ${{COMP_WORDS[i]}} == -- ]] && key=bridge-${{COMP_WORDS[2]}}
                done
                [[ $key == hermes-bridges ]] && key+=" check" ;;
            "hermes-bridges rotate-logs")
                compopt -o default 2>/dev/null
                key+=" $verb" ;;
            "hermes-bridges "*) [[ " {verbs} " == *" $verb "* ]] && key+=" $verb" ;;
            "bridge-coms "*) [[ " {client} " == *" $verb "* ]] && key+=" $verb" ;;
        esac
    fi
    case $key in
{cases}
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}

complete -F _hermes_bridges hermes-bridges bridge-coms bridge-donut
"""
