"""The command lines of the verbs: one look of help, and faults that are told in one line."""

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from hermes_bridges.errors import ConfigError

_WIDTH = 80


class Arguments(argparse.ArgumentParser):
    """The command line of one verb.

    ``read`` gives the values, or raises ConfigError, which ends the command with exit code 2.
    ``usage_text`` is for the module's ``USAGE``. ``--help`` is answered before a verb is run.
    """

    def __init__(self, verb: str, intro: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"hermes-bridges {verb}",
            description=intro,
            epilog=epilog,
            formatter_class=_Layout,
            add_help=False,
            allow_abbrev=False,
        )
        self.add_argument("-h", "--help", action="store_true", help="print this help and exit")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        return self.parse_args(words)

    def usage_text(self) -> str:
        return self.format_help()

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Eighty columns, whatever the terminal is, and paragraphs as they were written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=_WIDTH)


def directory(text: str) -> str:
    """An argument that names a directory; made absolute."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("must be a directory")
    return os.path.abspath(text)
