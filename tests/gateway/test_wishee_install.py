"""The environments in which the gateway tests of the Wishee connector run."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hermes_bridges import __version__
from tests import hermes_versions
from tests.gateway.wishee_install import Installed

pytestmark = [
    pytest.mark.gateway,
    pytest.mark.parametrize(
        "version",
        [
            pytest.param(version, marks=pytest.mark.xdist_group(f"hermes-{version}"))
            for version in hermes_versions.REQUIREMENTS
        ],
    ),
]
_FIND = """
import importlib.util, json
specs = {name: importlib.util.find_spec(name) for name in %r}
print(json.dumps({name: spec and spec.origin for name, spec in specs.items()}))
"""
NAMES = ("gateway", "hermes_bridges", "requests", "websocket")


def found(command: Path, home: Path) -> dict[str, str | None]:
    """Where that environment has each package."""
    python = command.parent / "python"
    environ = {"HOME": str(home), "PATH": os.defpath}
    done = subprocess.run(
        [python, "-c", _FIND % (NAMES,)], capture_output=True, text=True, env=environ, cwd=home
    )
    assert done.returncode == 0, done.stderr
    packages: dict[str, str | None] = json.loads(done.stdout)
    return packages


def test_the_wheel_is_found_beside_Hermes(
    wishee_installed: Installed, version: str, short_tmp: Path
):
    places = found(wishee_installed.hermes(version), short_tmp)
    cached = str(hermes_versions.hermes(version).parent.parent)
    for name, ours in zip(NAMES, (False, True, False, True), strict=True):
        place = places[name]
        assert place is not None and place.startswith(str(wishee_installed.lib) if ours else cached)


def test_the_wheel_is_in_no_other_environment(
    wishee_installed: Installed, version: str, short_tmp: Path
):
    without = wishee_installed.hermes(version, with_wheel=False)
    for command in (without, hermes_versions.hermes(version)):
        places = found(command, short_tmp)
        assert places["gateway"] and not places["hermes_bridges"] and not places["websocket"]


def test_the_command_is_that_of_the_version(
    wishee_installed: Installed, version: str, short_tmp: Path
):
    done = subprocess.run(
        [wishee_installed.hermes(version), "--version"],
        capture_output=True,
        text=True,
        env={"HOME": str(short_tmp), "PATH": os.defpath},
        cwd=short_tmp,
    )
    assert f"v{version}" in done.stdout.partition("\n")[0].split()


def test_a_plugin_folder_gets_the_package(
    wishee_installed: Installed, version: str, short_tmp: Path
):
    wishee_installed.vendor(short_tmp)
    text = (short_tmp / "lib/hermes_bridges/__init__.py").read_text()
    assert f'"{__version__}"' in text and (short_tmp / "lib/websocket/__init__.py").exists()
