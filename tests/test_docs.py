"""The documents tell the truth: links lead somewhere, and the commands of the README run."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_bridges.standins import hermes_command
from tests.conftest import ROOT, wait

PAGES = [ROOT / "README.md", ROOT / "CHANGES.md", *sorted((ROOT / "docs").glob("*.md"))]
# Each command of the README, and the test that runs it.
_PAGE = "tests/ops/test_operations_page.py"
_CLIENT = "test_the_bridge_and_its_client_run"
COMMANDS = {
    "bin/demo": "test_the_demo_runs",
    "bin/demo donut": "tests/standins/test_demo_donut.py",
    "bin/test": "test_the_launcher_of_the_tests_runs",
    "python3 -m venv ~/hermes-bridges": "tests/test_packaging.py",
    "~/hermes-bridges/bin/pip install .": "tests/test_packaging.py",
    "bridge-coms --check": _CLIENT,
    "bridge-coms --to telegram:<chat>": _CLIENT,
    'bridge-coms ask user-remote "Deploy now?" --option yes --option no': _CLIENT,
    "bridge-coms questions --show": _CLIENT,
    "bridge-coms answer <qid> yes": _CLIENT,
    # From here on those of the page on operations, which is played there.
    "hermes-bridges install-units --user": _PAGE,
    "install -m 600 /dev/stdin ~/.config/hermes-bridges/donut-helper.token": _PAGE,
    "install -m 600 /dev/stdin ~/.config/hermes-bridges/donut-helper.key": _PAGE,
    "install -m 600 ~/.config/hermes-bridges/donut.env.example"
    " ~/.config/hermes-bridges/donut-helper.env": _PAGE,
    "bridge-donut --env-file ~/.config/hermes-bridges/donut-helper.env --check": _PAGE,
    "bridge-donut --env-file ~/.config/hermes-bridges/donut-helper.env": _PAGE,
    "systemctl --user daemon-reload": _PAGE,
    "systemctl --user enable --now hermes-donut-bridge@helper": _PAGE,
    "loginctl enable-linger": _PAGE,
    "hermes-bridges status": _PAGE,
    "hermes-bridges doctor": _PAGE,
}


def run(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", timeout=110
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f"({page.relative_to(ROOT)})" in readme, page


def test_each_command_of_the_readme_is_run_by_a_test():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    assert [line for line in lines if line] == list(COMMANDS)
    played = (ROOT / "docs/operations.md").read_text(encoding="utf-8").replace('"$HOME"', "~")
    assert all(line in played for line, test in COMMANDS.items() if test == _PAGE)


def test_the_demo_runs():
    assert "All went as it should" in run(str(ROOT / "bin/demo"), "--auto")


def test_the_launcher_of_the_tests_runs():
    assert "--long" in run(str(ROOT / "bin/test"), "--help")
    assert "1 passed" in run(str(ROOT / "bin/test"), "tests/test_layout.py", "-k", "something")


@contextmanager
def running(*command: str, **more) -> Iterator[subprocess.Popen[str]]:
    """A child process with its output on pipes, which ends with the block at the latest."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **more)
    try:
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=30)


@pytest.fixture
def host(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host where Hermes can send: the command on PATH, and a phone that shows what it gets."""
    monkeypatch.setenv("HOME", str(short_tmp))
    monkeypatch.setenv("PATH", f"{short_tmp}:{os.environ['PATH']}")
    hermes = hermes_command.install(str(short_tmp))
    with running(hermes, "phone", stdout=subprocess.PIPE) as phone:
        assert phone.stdout is not None and "the phone is on" in phone.stdout.readline()
        yield


def open_question(command: str) -> str | None:
    found = re.search(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", said := run(command, "questions", "--show"))
    return found[0] if found and "Deploy now?" in said else None


def test_the_bridge_and_its_client_run(host):
    command = str(ROOT / "bin/bridge-coms")
    run(command, "--check")
    with running(command, "--to", "telegram:42", stderr=subprocess.PIPE) as bridge:
        assert bridge.stderr is not None
        assert "user-remote@default listening (telegram:42)" in bridge.stderr.readline()
        question = ["user-remote", "Deploy now?", "--option", "yes", "--option", "no"]
        with running(command, "ask", *question, stdout=subprocess.PIPE) as asker:
            qid = wait(lambda: open_question(command), 20)
            run(command, "answer", qid, "yes")
            out, _ = asker.communicate(timeout=30)
            assert (asker.returncode, "yes" in out) == (0, True)
        bridge.terminate()
        bridge.communicate(timeout=30)
        assert bridge.returncode == 0
