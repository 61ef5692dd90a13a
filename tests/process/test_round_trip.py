"""A question and its answer through the installed command, for every kind of asker."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import judge
from tests.harness.daemon import CHECKOUT
from tests.harness.scene import Scene
from tests.process.traffic import assert_good

PACKAGE_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "hermes_bridges")


@pytest.fixture
def installed(short_tmp: Path) -> tuple[str, str]:
    """(command, PYTHONPATH) of a real installation of this checkout."""
    script = Path(sys.executable).with_name("bridge-coms")
    if script.exists():
        return str(script), CHECKOUT
    source, prefix = short_tmp / "src", short_tmp / "p"
    source.mkdir()
    for name in PACKAGE_FILES:
        origin = Path(CHECKOUT, name)
        if origin.is_dir():
            shutil.copytree(origin, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, source / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--prefix", str(prefix), str(source)], check=True, timeout=100)
    (packages,) = prefix.glob("lib/python*/site-packages")
    return str(prefix / "bin" / "bridge-coms"), str(packages)


def test_a_round_trip_through_the_installed_command(
    scene: Scene, installed: tuple[str, str]
) -> None:
    command, path = installed
    daemon = scene.daemon(command=[command], environ={"PYTHONPATH": path})
    assert daemon.ready_line() == ("user-remote", "default", "telegram")
    texts = iter(["2", "ship it", "because I say so"])
    scene.phone(lambda call: next(texts))
    asked = []
    for peer in (scene.peers.one_shot(), scene.peers.cli(), scene.peers.pi()):
        question = peer.ask(
            "Ship?", ["Ship it", {"title": "Wait", "description": "a day"}], "CI ok"
        )
        question.wait()
        asked.append(question)
    assert [question.responses[0]["response"] for question in asked] == [
        {"kind": "selection", "selections": ["Wait"]},
        {"kind": "selection", "selections": ["Ship it"]},
        {"kind": "freeform", "text": "because I say so"},
    ]
    call = scene.hermes.calls(asked[0].qid)[0]
    assert call.argv[:3] == ["send", "--to", "telegram"]
    assert call.text == (
        f"❓ [HUB-Q:{asked[0].qid}] Ship?\n\n📁 Project: default\n\nContext: CI ok\n\n"
        "Options:\n1. Ship it\n2. Wait — a day\n\n"
        f"↩ Reply to this message, or type: HUB-Q:{asked[0].qid}: <answer>"
    )
    assert daemon.stop() == 0
    scene.peers.close()
    assert_good(dict(scene.verdict(final=True)))
    assert judge.leftovers(scene.home.path) == []
    events = [e["event"] for e in scene.home.events(asked[0].qid)]
    assert sorted(events) == ["answered", "delivered", "question_received"]
    assert events[0] == "question_received"
    assert os.listdir(scene.home.agents()) == []
