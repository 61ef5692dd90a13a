"""Writes ``contrib/systemd``: the units as they look in a usual place.

    python -m tests.contrib_units

`hermes-bridges install-units` writes the same files with the paths of a host.
"""

import sys
from pathlib import Path

from hermes_bridges.ctl import unitfiles
from hermes_bridges.ctl.unitfiles import Host, UnitFile
from tests.conftest import ROOT

PLACE = ROOT / "contrib" / "systemd"
BIN = "/opt/hermes-bridges/bin"
HOST = Host(
    coms=f"{BIN}/bridge-coms",
    donut=f"{BIN}/bridge-donut",
    user="ana",
    home="/home/ana",
    hermes_home="/home/ana/.hermes",
    hermes_dir=None,
    settings=unitfiles.SYSTEM_SETTINGS,
)
SOMEBODY = HOST._replace(hermes_home="%h/.hermes", settings="~/.config/hermes-bridges")


def files() -> dict[Path, str]:
    """What has to stand there."""
    user = unitfiles.user_files(SOMEBODY, "", namespaces=True)
    narrow = unitfiles.user_files(SOMEBODY, "", namespaces=False)
    groups: dict[str, list[UnitFile]] = {
        "system": unitfiles.system_files(HOST, ""),
        "user": user + [one for one in narrow if one.path.endswith(".conf")],
    }
    return {
        PLACE / group / Path(one.path).name: one.text
        for group, found in groups.items()
        for one in found
    }


def main() -> int:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
