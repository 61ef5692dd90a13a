"""``bin/demo [coms | donut | telegram] [--auto]``: a bridge at work, on stand-ins."""

import argparse
import sys
from collections.abc import Sequence

from hermes_bridges.standins import demo_coms, demo_donut, demo_telegram

_SHOWS = {"coms": demo_coms.show, "donut": demo_donut.show, "telegram": demo_telegram.show}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bin/demo", description="A bridge at work, on stand-ins.")
    parser.add_argument("bridge", nargs="?", choices=list(_SHOWS), default="coms")
    parser.add_argument("--auto", action="store_true", help="no person is needed")
    options = parser.parse_args(argv)
    return _SHOWS[options.bridge](options.auto)


if __name__ == "__main__":
    sys.exit(main())
