"""``docs/operations.md`` tells the truth: what it shows is run, what it names exists.

A host is played from the page itself: its blocks of commands are run in order by somebody with an
empty HOME, with a small systemd (``service_manager.py``), stand-ins for Hermes and the hub, and the
bridges as the page's own commands have set them up.
"""

import ast
import functools
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_bridges.coms import settings as coms_settings
from hermes_bridges.coms.replier import Outcome
from hermes_bridges.donut import service as donut_service
from hermes_bridges.donut import settings as donut_settings
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import KEY, HermesApi
from tests.conftest import ROOT, wait
from tests.ops.conftest import SYSTEM_PATH, Operator, give

PAGE = ROOT / "docs" / "operations.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = ("hermes-bridges", "bridge-coms", "bridge-donut", "bridge-telegram")
# Installing is tested where it can be done without a network.
ELSEWHERE = {
    "python3 -m venv ~/hermes-bridges": "tests/test_packaging.py",
    "~/hermes-bridges/bin/pip install .": "tests/test_packaging.py",
    "sudo python3 -m venv /opt/hermes-bridges": "tests/test_packaging.py",
    "sudo /opt/hermes-bridges/bin/pip install .": "tests/test_packaging.py",
}
# Those that go on until somebody ends them.
ENDLESS = ("hermes-bridges tail",)
# Variables that are no settings of a bridge.
OTHER_VARIABLES = {
    *("BRIDGE_COMS_FLAGS", "API_SERVER_KEY", "API_SERVER_ENABLED", "HTTPS_PROXY", "SSL_CERT_FILE"),
}
# What the page says that a bridge says, and in which module.
PHRASES = {
    "is in use by another bridge": "donut/statedir.py",
    "the state belongs to bot": "donut/intake.py",
    "the hub refuses DONUT_BOT_TOKEN": "donut/link.py",
    "the hub cannot be reached": "donut/check.py",
    "The agent could not take this message.": "donut/turns.py",
    "This message could not be answered and was given up.": "donut/turns.py",
    "is corrupt": "donut/schema.py",
    "from a newer version": "donut/schema.py",
    "no progress in": "core/service.py",
    "no remote answer within": "coms/questions.py",
    "unknown whether it was delivered": "coms/dispatch.py",
    "queue full": "coms/peer.py",
    "hermes was not found": "coms/check.py",
    "this hermes has no `send` command": "coms/dispatch.py",
    "delivery_unknown": "coms/dispatch.py",
}
SECTION = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
FLAG = re.compile(r"--?[a-z][a-z-]*")
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block; ``section`` and ``part`` are the headings above it."""

    section: str
    part: str
    kind: str
    lines: tuple[str, ...]


def blocks() -> Iterator[Block]:
    headings = [(found.start(), found[1], found[2]) for found in SECTION.finditer(TEXT)]
    for found in BLOCK.finditer(TEXT):
        above = [one for one in headings if one[0] < found.start()]
        section = [title for _, level, title in above if level == "##"][-1]
        part = above[-1][2]
        indent = len(found[1])
        lines = [line[indent:] for line in found[3].splitlines()]
        yield Block(section, part, found[2], tuple(line for line in lines if line.strip()))


def commands() -> list[str]:
    return [_command(line) for block in blocks() if block.kind == "sh" for line in block.lines]


def _command(line: str) -> str:
    return re.sub(r"\s+# .*$", "", line).strip()


class Host:
    """Somebody's machine, with all that the page takes for granted."""

    def __init__(self, operator: Operator, hub: DonutHub, api: HermesApi) -> None:
        self.operator = operator
        self.hub = hub
        self.api = api
        self.root = operator.home.parent / "r"
        (self.root / "var/lib/node_exporter").mkdir(parents=True)
        (self.root / "opt").mkdir()
        (self.root / "opt/hermes-bridges").symlink_to(operator.bin.parent)
        give(self.root)
        (operator.home / "hermes-bridges").symlink_to(operator.bin.parent)
        script = (ROOT / "tests/ops/service_manager.py").read_text()
        for name in ("systemctl", "journalctl", "loginctl", "sudo"):
            operator.command(name, f"#!{operator.bin}/python -I\n{script}")
        hermes = f"exec {operator.bin}/python -P -m hermes_bridges.standins.hermes_command"
        version = 'case "$1" in --version) echo "Hermes Agent v0.22.2"; exit;; esac'
        operator.command("hermes", f'#!/bin/sh\n{version}\n{hermes} "$@"\n')
        self.more = {
            "PATH": f"{operator.path}:{operator.bin}:{SYSTEM_PATH}",
            "ROOT_OF_TEST": str(self.root),
            "USER": "nobody",
        }
        self.written: Path | None = None
        self.done: list[str] = []

    def play(self, wanted: Callable[[Block], bool]) -> None:
        """Do what these blocks of the page say, in its order."""
        for block in filter(wanted, blocks()):
            if block.kind == "ini":
                self.edit(block.lines)
            elif block.kind == "sh":
                for line in block.lines:
                    self.do(_command(line))

    def edit(self, lines: tuple[str, ...]) -> None:
        """What a person does with an editor to the settings that were copied last."""
        if self.written is None:
            return
        text = "".join(f"{line}\n" for line in lines).replace("/home/ana", str(self.operator.home))
        if self.written.name.startswith("donut"):
            text = text.replace("http://127.0.0.1:8642", self.api.base_url)
            # The page's hub is the real one.
            text += f"DONUT_STREAM_URL={self.hub.stream_url}\nDONUT_SEND_URL={self.hub.send_url}\n"
        with open(self.written, "a") as file:
            file.write(text)
        self.written = None

    def do(self, command: str) -> None:
        """Run a line of the page; it must end well."""
        self.done.append(command)
        if command in ELSEWHERE:
            return
        here = self.here(command)
        if command.startswith(ENDLESS):
            self.watch(here)
            return
        if command.startswith("bridge-coms ask"):
            self.ask(command)
            return
        if command.startswith("bridge-coms answer"):
            here = re.sub(r"[0-9A-HJKMNP-TV-Z]{26}", self.question(), here)
        code, out, err = self.run(here, _typed(command, self.hub))
        if "hermes-bridges status" in command:
            # Somebody who looks a moment later; how it stands is told every 5 s.
            wait(lambda: self.run(here)[0] == 0, 15)
        else:
            assert code == 0, f"{command}: {code}\n{out}\n{err}"
        env = re.search(r"(\S+/\w+-\w+\.env)$", here)
        if env and command.split()[0] in ("cp", "install", "sudo"):
            self.written = Path(env[1].replace("~", str(self.operator.home)))

    def here(self, command: str) -> str:
        """The same command, with the system's directories below our own."""
        command = re.sub(r"(?<![\w~\"])/(etc|opt|var)/", rf"{self.root}/\1/", command)
        if "install-units --system" in command:
            command += f" --root {self.root}"
        if command.startswith("sudo") and "hermes-bridges status" in command:
            command += f" --state-dir {self.root}/var/lib/hermes-bridges/donut-helper"
        return command

    def run(self, line: str, typed: str = "") -> tuple[int, str, str]:
        """A line in the shell of a person, who types something into it."""
        piped = f'printf "%s\\n" "$TYPED" | {line}' if typed else line
        done = self.operator.run("/bin/bash", "-c", piped, more={**self.more, "TYPED": typed})
        return done.returncode, done.stdout, done.stderr

    def watch(self, line: str) -> None:
        """A line that goes on until Ctrl-C, and shows something meanwhile."""
        child = self.operator.start(
            *("/bin/bash", "-c", f"exec {line}"), more=self.more, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 20)[0], f"{line}: nothing is shown"
        assert child.poll() is None, f"{line}: does not go on"
        child.send_signal(signal.SIGINT)
        assert child.wait(10) in (0, 130), f"{line}: {child.returncode}"

    def ask(self, command: str) -> None:
        """A question; the person answers it from this host."""
        done: list[tuple[int, str, str]] = []
        asker = threading.Thread(target=lambda: done.append(self.run(self.here(command))))
        asker.start()
        qid = wait(self.open_question, 20)
        assert self.run(f"bridge-coms answer {qid} yes")[0] == 0
        asker.join(30)
        assert done and done[0][0] == 0 and "yes" in done[0][1], f"{command}: {done}"

    def question(self) -> str:
        assert self.run('bridge-coms send user-remote "Now?" --project work')[0] == 0
        return wait(self.open_question, 20)

    def open_question(self) -> str | None:
        found = re.search(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", self.run("bridge-coms questions")[1])
        return found[0] if found else None

    def close(self) -> None:
        for record in (self.operator.path / ".units").glob("*.json"):
            scope, _, name = record.stem.partition("-")
            flag = "--user " if scope == "user" else ""
            assert self.run(f"systemctl {flag}stop {name}")[0] == 0


def _typed(command: str, hub: DonutHub) -> str:
    """What somebody pastes at such a command."""
    if "/dev/stdin" not in command:
        return ""
    return hub.token if command.endswith(".token") else KEY


@pytest.fixture
def host(operator: Operator) -> Iterator[Host]:
    hub, api = DonutHub(), HermesApi()
    found = Host(operator, hub, api)
    phone = operator.start(
        "/bin/sh", "-c", "exec hermes phone", more=found.more, stdout=subprocess.DEVNULL
    )
    yield found
    found.close()
    phone.terminate()
    phone.wait(10)
    hub.close()
    api.close()


SET_UP = ("Install", "The coms bridge, user unit", "The Donut bridge, user unit")
# In the order of the page, but for what another test does.
STORY = (
    "Day to day",
    "Logs and their rotation",
    "Troubleshooting",
    "Several instances on one host",
    "Backup and restore",
    "Upgrade and rollback",
)
BOTH = "hermes-coms-bridge@work hermes-donut-bridge@helper"


@pytest.mark.timeout(170)
def test_what_the_page_shows_can_be_done(host):
    host.play(lambda block: block.part in SET_UP)
    host.hub.add_chat(7, trigger="all")
    host.hub.say(7, "hello")
    assert wait(lambda: host.hub.posted(7), 20)
    host.ask('bridge-coms ask user-remote "Is this on?" --project work --option yes')
    for section in STORY:
        host.play(functools.partial(_is_in, section))
        if section == "Day to day":
            files_are_where_the_page_says(host)
            metrics_have_the_names_of_the_page(host)
            cron_tells_only_of_trouble(host)
    host.hub.say(7, "are you still there?")
    assert wait(lambda: len(host.hub.posted(7)) == 2, 20)
    assert host.run(f"systemctl --user stop {BOTH}")[0] == 0
    host.play(lambda block: block.section.startswith("Changing over"))
    # Nobody misses one that is off for good, unless by its name.
    assert host.run("hermes-bridges status coms --instance user-remote@work")[0] == 2
    elsewhere = [
        _command(line)
        for block in blocks()
        if block.part == "System units" or block.section == "Set-up without systemd"
        for line in block.lines
    ]
    assert set(commands()) - set(elsewhere) == set(host.done)


def _is_in(section: str, block: Block) -> bool:
    return block.section == section


def files_are_where_the_page_says(host: Host) -> None:
    state = host.operator.home / ".local/state/hermes-bridges/donut-helper"
    there = {one.name for one in state.iterdir()}
    assert {"donut.sqlite3", "status.json", "donut.lock"} <= there
    named = re.findall(r"`(~/\.pi/coms/hermes-bridge/[\w./-]+)`", TEXT)
    assert len(named) >= 4
    for path in named:
        if not path.endswith(".gz"):
            assert Path(path.replace("~", str(host.operator.home))).exists(), path


def metrics_have_the_names_of_the_page(host: Host) -> None:
    code, out, _ = host.run("hermes-bridges metrics")
    assert code == 0
    # A counter with nothing to count yet has no sample.
    family = {f"hermes_bridges_{kind}_{one}_total" for kind in COUNTED for one in families(kind)}
    known = family | set(re.findall(r"^(hermes_bridges\w+)", out, re.MULTILINE))
    named = set(re.findall(r"\b(hermes_bridges_\w+)\b", TEXT))
    assert len(named) >= 10
    assert named <= known


def cron_tells_only_of_trouble(host: Host) -> None:
    (status,) = [line for line in cron_lines() if " status)" in line]
    (metrics,) = [line for line in cron_lines() if " metrics " in line]
    wait(lambda: host.run("hermes-bridges status")[0] == 0, 15)
    assert in_cron(host, status) == (0, "")
    assert host.run("systemctl --user stop hermes-coms-bridge@work")[0] == 0
    code, out = in_cron(host, status)
    assert code == 0 and "down" in out
    assert host.run("systemctl --user start hermes-coms-bridge@work")[0] == 0
    assert in_cron(host, metrics) == (0, "")
    assert (
        "hermes_bridges_up" in (host.root / "var/lib/node_exporter/hermes_bridges.prom").read_text()
    )


def cron_lines() -> list[str]:
    """The jobs of the page: what stands behind the times."""
    jobs = [line for block in blocks() if block.kind == "crontab" for line in block.lines]
    found = [re.fullmatch(r"(?:@reboot|(?:[*/\d]+ ){5}) ?(.*)", line) for line in jobs]
    left = [line for line, job in zip(jobs, found, strict=True) if job is None]
    assert all(re.fullmatch(r"[A-Z]+=.*", line) for line in left), left
    return [job[1] for job in found if job is not None]


def cron_words(host: Host, line: str) -> tuple[list[str], dict[str, str]]:
    # cron makes a line end of it.
    assert "%" not in line
    (path,) = re.findall(r"^PATH=(.*)$", TEXT, re.MULTILINE)
    more = {"PATH": f"{host.operator.path}:{path}", "ROOT_OF_TEST": str(host.root)}
    return ["/bin/sh", "-c", host.here(line)], more


def in_cron(host: Host, line: str) -> tuple[int, str]:
    words, more = cron_words(host, line)
    done = host.operator.run(*words, more=more)
    return done.returncode, done.stdout + done.stderr


def test_the_system_units_can_be_set_up(host):
    host.play(lambda block: block.part == "System units")
    host.hub.add_chat(7, trigger="all")
    host.hub.say(7, "hello")
    assert wait(lambda: host.hub.posted(7), 20)


def test_it_works_without_systemd(host):
    host.play(lambda block: block.part == "The Donut bridge, user unit" and _is_settings(block))
    mkdir, tail = [block for block in blocks() if block.section == "Set-up without systemd"][::3]
    host.do(_command(mkdir.lines[0]))
    logs = host.operator.home / ".local/state/hermes-bridges"
    starts = [line for line in cron_lines() if ">>" in line]
    assert len(starts) == 3
    for line, log, sign in zip(
        starts,
        ("coms-work.log", "donut-helper.log", "donut-helper.log"),
        ("listening", " is open", " is open"),
        strict=True,
    ):
        (logs / log).unlink(missing_ok=True)
        words, more = cron_words(host, line)
        child = host.operator.start(*words, more=more, start_new_session=True)
        wait(functools.partial(_says, logs / log, sign), 20)
        if log.startswith("donut"):
            host.do(_command(tail.lines[0]))
        if "flock" in line:
            # The next minute's does nothing.
            assert host.operator.run(*words, more=more, limit=10).returncode == 1
        assert child.poll() is None
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(10)
        # The shell does not wait for the bridge.
        wait(functools.partial(_is_over, child.pid), 10)


def _is_settings(block: Block) -> bool:
    text = " ".join(block.lines)
    return block.kind == "ini" or "install" in text


def _is_over(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            return False
    return True


def _says(path: Path, sign: str) -> bool:
    return path.exists() and sign in path.read_text()


# What it names


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]*#[^)]+)\)", TEXT))
def test_links_lead_to_a_heading(target):
    page, _, anchor = target.partition("#")
    text = TEXT if not page else (PAGE.parent / page).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def mentions() -> list[list[str]]:
    """Command lines of our programs anywhere on the page, also within a sentence."""
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", TEXT))
    lines = [*spans, *commands(), *cron_lines()]
    found = []
    for line in lines:
        for piece in re.split(r"[|;&]|\|\||>>|\$\(|<\(|\)", line):
            words = [word.strip("\"'") for word in piece.split()]
            start = next((n for n, w in enumerate(words) if os.path.basename(w) in PROGRAMS), None)
            if start is not None and len(words) > start + 1:
                found.append([os.path.basename(words[start]), *words[start + 1 :]])
    return found


def test_every_flag_and_verb_exists(operator):
    @functools.cache
    def helped(*command: str) -> str:
        done = operator.run(*command, "--help")
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    checked = 0
    for program, *words in mentions():
        shown = " ".join([program, *words])
        # What follows the dashes is for the bridge that is named before them.
        own, theirs = words, []
        if "--" in words and program == "hermes-bridges":
            at = words.index("--")
            own, theirs = words[:at], words[at + 1 :]
        told = helped(program, *([] if words[0].startswith("-") else words[:1]))
        for flag in filter(FLAG.fullmatch, own):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", told), f"{shown}: {flag}"
            checked += 1
        for flag in filter(FLAG.fullmatch, theirs):
            assert flag in helped(f"bridge-{own[1]}"), shown
    assert checked > 20


def test_every_variable_exists():
    tables = (*coms_settings.TABLE, *donut_settings.VARIABLES)
    known = {one.env for one in tables if one.env}
    known |= {f"{one.env}_FILE" for one in donut_settings.VARIABLES if one.secret}
    named = set(re.findall(r"\b((?:DONUT|BRIDGE|HERMES|PI_COMS|LOG|API)_[A-Z_]*[A-Z])\b", TEXT))
    assert {"DONUT_BOT_TOKEN_FILE", "BRIDGE_STATE_DIR"} <= named
    assert named - OTHER_VARIABLES <= known
    flags = {one.flag for one in (*coms_settings.TABLE, *donut_settings.FLAGS) if one.flag}
    alone = set(re.findall(r"`(--[a-z-]+)(?: [^`]*)?`", TEXT)) - {"--force", "--run-as"}
    assert alone - {"--instance"} <= flags


@pytest.mark.parametrize("phrase, module", PHRASES.items())
def test_what_a_bridge_says_is_told_as_it_is(phrase, module):
    assert phrase in TEXT
    source = (ROOT / "hermes_bridges" / module).read_text(encoding="utf-8")
    assert phrase in source


# The numbers

COUNTED: dict[str, tuple[str, ...]] = {
    # What counts for each bridge: its own package, and of the core what counts for both.
    "donut": ("donut",),
    "coms": ("coms",),
}
# Counters whose names are put together when they happen: what may stand in the place.
VARIANTS: dict[str, tuple[str, ...]] = {
    "ignored.{reason}": ("no_text", "bot", "self", "duplicate"),
    "call_failures.{kind}": tuple(
        name.partition(".")[2] for name in donut_service.COUNTERS if name.startswith("call_fail")
    ),
    "{kind}": ("fallback", "notice"),
    "{kind}_held_back": ("fallback", "notice"),
    "reply_lost_{value}": tuple(
        one.value for one in Outcome if one not in (Outcome.ACKED, Outcome.CANCELLED)
    ),
    "answer_rejected_{reason}": (
        *("invalid_path", "invalid_qid", "foreign_qid", "invalid_json", "invalid_schema"),
        *("qid_mismatch", "unauthorized"),
    ),
}


def counted(bridge: str, method: str = "count") -> set[str]:
    """Every name that the code of a bridge gives to a counter, read off its syntax trees."""
    found: set[str] = set()
    for path in sorted((ROOT / "hermes_bridges" / bridge).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == method and node.args:
                found |= _names(node.args[0], ast.unparse(node.func.value))
    return found


def _names(argument: ast.expr, owner: str) -> set[str]:
    if isinstance(argument, ast.Constant):
        name = argument.value
        # A count of what is in a text is no counter.
        is_name = isinstance(name, str) and re.fullmatch(r"[\w.]+", name) and "text" not in owner
        return {str(name)} if is_name else set()
    if isinstance(argument, ast.IfExp):
        return _names(argument.body, owner) | _names(argument.orelse, owner)
    if isinstance(argument, ast.Name):
        pattern = f"{{{argument.id}}}"
        return set(VARIANTS.get(pattern, ()))
    if isinstance(argument, ast.JoinedStr):
        pattern = "".join(
            str(piece.value)
            if isinstance(piece, ast.Constant)
            else f"{{{ast.unparse(piece.value).rpartition('.')[2]}}}"  # type: ignore[attr-defined]
            for piece in argument.values
        )
        place = re.sub(r"\{\w+\}", "{}", pattern)
        return {place.format(variant) for variant in VARIANTS[pattern]}
    return set()


def tabled(title: str) -> set[str]:
    """The first column of the table below a heading, or of the one with this head."""
    head = title if title.startswith("|") else f"### {title}"
    after = TEXT.partition(f"\n{head}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert rows is not None
    return set(re.findall(r"^\| `([\w.]+)`", rows[0], re.MULTILINE))


def families(bridge: str) -> set[str]:
    names = tabled(f"Counters of the {'Donut' if bridge == 'donut' else 'coms'} bridge")
    joined = {re.sub(r"^(answer_rejected|reply_lost)_.*", r"\1", name) for name in names}
    return {name.partition(".")[0] for name in joined} | {"log_lost"}


BY_BOTH = {"status_not_written"}


def test_the_page_has_every_counter_of_the_donut_bridge():
    assert tabled("Counters of the Donut bridge") == counted("donut") | BY_BOTH
    assert set(donut_service.COUNTERS) <= tabled("Counters of the Donut bridge")


def test_the_page_has_every_counter_of_the_coms_bridge():
    peers = counted("coms", "_count")
    assert tabled("Counters of the coms bridge") == counted("coms") | BY_BOTH
    assert tabled("| In `peers` | Counts |") == peers


def test_the_page_has_every_value_of_the_status_files():
    for bridge in COUNTED:
        for name in counted(bridge, "set"):
            assert f"`{name}`" in TEXT or name in UNTOLD, f"{bridge}: {name}"


# Where to look further, for the operator command.
UNTOLD = {"name", "project", "session", "coms_dir", "questions_dir", "event_log"}
