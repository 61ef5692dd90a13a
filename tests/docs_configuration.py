"""Writes the tables of ``docs/configuration.md`` out of the tables of the code.

    python -m tests.docs_configuration

The text around them is written by hand. A table stands between ``<!-- table: NAME -->`` and
``<!-- end -->``.
"""

import re
import sys

from hermes_bridges.coms import settings as coms
from hermes_bridges.core.settings import Setting, markdown
from hermes_bridges.donut import settings as donut
from hermes_bridges.wishee import settings as wishee
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "configuration.md"
TABLES: dict[str, tuple[Setting, ...]] = {
    "coms": coms.TABLE,
    "donut variables": donut.VARIABLES,
    "donut flags": donut.FLAGS,
    "wishee": wishee.VARIABLES,
}
_PLACE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with its tables as the code has them; KeyError for one that the code has not."""
    return _PLACE.sub(lambda place: place[1] + markdown(TABLES[place[2]]) + place[3], text)


def names(text: str) -> list[str]:
    """The tables that the page shows, in order."""
    return [place[2] for place in _PLACE.finditer(text)]


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old)
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {'is as it was' if new == old else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
