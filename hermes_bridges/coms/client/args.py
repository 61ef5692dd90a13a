"""The client's command line: the flags and operands of each verb (contract section 9)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hermes_bridges.errors import BridgeError


class UsageError(BridgeError):
    """A command line that cannot be used."""


class Flag(NamedTuple):
    """One flag; without ``metavar`` it is a switch."""

    name: str
    help: str
    metavar: str = ""
    repeatable: bool = False


class Grammar(NamedTuple):
    """What a verb takes: at least ``fewest`` operands, at most ``most`` (None: any number)."""

    summary: str
    operands: str
    fewest: int
    most: int | None
    flags: tuple[Flag, ...]


class Arguments(NamedTuple):
    """A command line that was read; a flag that was not given has no values."""

    operands: tuple[str, ...]
    given: Mapping[str, tuple[str, ...]]

    def has(self, flag: str) -> bool:
        """Whether the flag was given."""
        return flag in self.given

    def value(self, flag: str) -> str | None:
        """The value of a flag that is given once at most."""
        return self.given[flag][0] if flag in self.given else None

    def values(self, flag: str) -> tuple[str, ...]:
        """All values of a repeatable flag."""
        return self.given.get(flag, ())


HELP = Flag("--help", "print this help and exit")
_PROJECT = Flag(
    "--project", 'project of the pool (default: COMS_CLI_PROJECT, else "default")', "NAME"
)
_NAME = Flag("--name", 'own name in the pool (default: COMS_CLI_NAME, else "coms-client")', "NAME")
_ALL = Flag("--all", "include explicit peers, such as other clients")
_TIMEOUT = Flag(
    "--timeout", "longest wait (default: PI_COMS_TIMEOUT_MS, else 300000; at most 2147483647)", "MS"
)
_OPTION = Flag("--option", "an answer to choose from, may be repeated", "TITLE", repeatable=True)
_CONTEXT = Flag("--context", "what one should know to answer", "TEXT")
_JSON = Flag("--json", "print JSON")
_DIRECTORY = Flag(
    "--questions-dir",
    "where answer files arrive (default: $HOME/.pi/coms/hermes-bridge/questions)",
    "DIR",
)
_PEER_FLAGS = (_PROJECT, _NAME, _ALL)
_ASK_FLAGS = (*_PEER_FLAGS, _TIMEOUT, _OPTION, _CONTEXT)

GRAMMARS: Mapping[str, Grammar] = {
    "list": Grammar("the live peers: name, model, purpose", "", 0, 0, (*_PEER_FLAGS, _JSON)),
    "ask": Grammar("send a prompt and print the response", "PEER TEXT...", 2, None, _ASK_FLAGS),
    "send": Grammar(
        "send a prompt and print its msg_id, for `await`",
        "PEER TEXT...",
        2,
        None,
        (*_ASK_FLAGS, Flag("--await", "wait for the response, as `ask` does")),
    ),
    "await": Grammar(
        "print the response to a prompt that `send` has sent",
        "MSG_ID",
        1,
        1,
        (_PROJECT, _NAME, _TIMEOUT),
    ),
    "reply": Grammar(
        "answer a prompt that arrived while `send` was waiting",
        "MSG_ID [TEXT...]",
        1,
        None,
        (_PROJECT, _NAME),
    ),
    "ping": Grammar("ask a peer whether it is there", "PEER", 1, 1, (*_PEER_FLAGS, _TIMEOUT)),
    "cancel": Grammar("withdraw a prompt", "PEER MSG_ID", 2, 2, _PEER_FLAGS),
    "questions": Grammar(
        "the open questions of the bridges under this HOME",
        "",
        0,
        0,
        (
            Flag("--project", "only those of this project", "NAME"),
            _DIRECTORY,
            Flag("--show", "print their texts too"),
            _JSON,
        ),
    ),
    "answer": Grammar(
        "answer an open question in place of the person in the chat",
        "QID TEXT...",
        2,
        None,
        (
            Flag(
                "--as",
                "who answers (default: console:<login name>); a daemon with --allow-from\n"
                "rejects the answer as unauthorized unless it names one whom that flag allows",
                "telegram:USER",
            ),
            _DIRECTORY,
            Flag("--force", "write even if no such question is open or an answer is there"),
        ),
    ),
    "_listen": Grammar(
        "wait for one response and keep it",
        "",
        0,
        0,
        (
            _PROJECT,
            _NAME,
            Flag("--session", "session of the waiter", "ULID"),
            Flag("--message", "msg_id that is waited for", "ULID"),
            Flag("--ttl", "longest life", "MS"),
        ),
    ),
}


def parse(verb: str, argv: Sequence[str]) -> Arguments:
    """Read what follows the verb; ``--`` ends the flags. Raises UsageError."""
    grammar = GRAMMARS[verb]
    flags = {flag.name: flag for flag in (*grammar.flags, HELP)}
    operands: list[str] = []
    given: dict[str, tuple[str, ...]] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if not word.startswith("--"):
            operands.append(word)
            continue
        name, assigned, value = word.partition("=")
        if name not in flags:
            raise UsageError(f"unknown flag: {name}")
        flag = flags[name]
        if name in given and not flag.repeatable:
            raise UsageError(f"{name} may only be specified once")
        if not flag.metavar:
            if assigned:
                raise UsageError(f"{name} takes no value")
            value = ""
        elif not assigned:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else ""
        if flag.metavar and not value:
            raise UsageError(f"{name} needs a value")
        given[name] = (*given.get(name, ()), value)
    if HELP.name not in given:
        _check_number(grammar, operands)
    return Arguments(tuple(operands), given)


def _check_number(grammar: Grammar, operands: Sequence[str]) -> None:
    if len(operands) < grammar.fewest:
        raise UsageError(f"expected {grammar.operands}, got {len(operands) or 'no'} argument(s)")
    if grammar.most is not None and len(operands) > grammar.most:
        raise UsageError(f"unexpected argument: {operands[grammar.most]}")


def usage(verb: str) -> str:
    """The usage line of a verb."""
    return " ".join(f"usage: bridge-coms {verb} {GRAMMARS[verb].operands} [flags]".split())


def help_text(verb: str) -> str:
    """The help of a verb: usage line, purpose, flags."""
    grammar = GRAMMARS[verb]
    lines = [usage(verb), "", f"  {grammar.summary}"]
    if "TEXT" in grammar.operands:
        lines.append("  TEXT may be several words; a lone - reads it from standard input")
    lines.append("")
    for flag in (*grammar.flags, HELP):
        lines.append(f"  {flag.name} {flag.metavar}".rstrip())
        lines += [f"      {line}" for line in flag.help.split("\n")]
    return "\n".join(lines)
