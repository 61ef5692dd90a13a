"""Flags, variables, the registry entry and `--check` to the letter (contract sections 2 and 3)."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from hermes_bridges import __version__
from hermes_bridges.coms.settings import Settings, parse
from hermes_bridges.errors import ConfigError
from tests.coms.looks import delivered, event, said, wait_state
from tests.harness import wire
from tests.harness.daemon import CHECKOUT, Daemon, Fields, alive, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def parsed(*argv: str, **environ: str) -> Settings:
    return parse(argv, {"HOME": "/home/ann", **environ})


def faults(*argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parsed(*argv)
    return caught.value.faults


# Section 2: flags and environment


def test_the_defaults() -> None:
    given = parsed()
    assert (given.name, given.project, given.to) == ("user-remote", "default", "telegram")
    assert (given.hermes_profile, given.timeout_ms, given.poll_ms) == (None, 1_800_000, 1000)
    assert (given.send_timeout_ms, given.max_sends, given.allow_from) == (60_000, 2, frozenset())
    assert given.questions_dir == "/home/ann/.pi/coms/hermes-bridge/questions"
    assert given.log_path == "/home/ann/.pi/coms/hermes-bridge/log.ndjson"
    assert given.coms_dir == "/home/ann/.pi/coms"


def test_the_log_lies_beside_the_questions() -> None:
    given = parsed("--questions-dir", "/srv/q/questions")
    assert (given.questions_dir, given.log_path) == ("/srv/q/questions", "/srv/q/log.ndjson")
    assert given.pending_dir == "/home/ann/.pi/coms/hermes-bridge/pending"


ONCE = {
    "--name": "a",
    "--project": "a",
    "--to": "a",
    "--hermes-profile": "a",
    "--timeout": "1",
    "--poll-ms": "1",
    "--questions-dir": "/a",
    "--send-timeout": "1",
    "--max-sends": "1",
    "--log-format": "text",
}


@pytest.mark.parametrize("flag", ONCE)
def test_each_flag_is_given_once_at_most(flag: str) -> None:
    value = ONCE[flag]
    assert faults(flag, value, flag, value) == (f"{flag} may only be specified once",)
    assert faults(f"{flag}={value}", flag, value) == (f"{flag} may only be specified once",)


def test_allow_from_may_be_given_more_often() -> None:
    given = parsed("--allow-from", "telegram:1", "--allow-from=telegram:ann")
    assert given.allow_from == {"telegram:1", "telegram:ann"}


NUMBERS = {
    "1e2": 100,
    "150.5": 150.5,
    "90.0": 90,
    "0x64": 100,
    "0b11": 3,
    "0o7": 7,
    ".5": 0.5,
    "5.": 5,
    "+5": 5,
    " 5 ": 5,
    "\u00a05\ufeff": 5,
    "007": 7,
}


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("flag", ["--timeout", "--poll-ms"])
def test_numbers_are_read_as_javascript_does(flag: str, text: str) -> None:
    given = parsed(flag, text)
    assert (given.timeout_ms if flag == "--timeout" else given.poll_ms) == NUMBERS[text]


NO_NUMBERS = ["", " ", "5s", "1_000", "Infinity", "NaN", "0", "-1", "-0", "0x", "１", "1e", "1,5"]


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("flag", ["--timeout", "--poll-ms"])
def test_what_is_no_positive_number_is_refused(flag: str, text: str) -> None:
    assert faults(flag, text) == (f"{flag} must be a positive number",)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_such_a_variable_is_ignored(text: str) -> None:
    assert parsed(PI_COMS_TIMEOUT_MS=text).timeout_ms == 1_800_000


def test_the_variable_counts_without_the_flag() -> None:
    assert parsed(PI_COMS_TIMEOUT_MS="0x64").timeout_ms == 100
    assert parsed("--timeout", "5", PI_COMS_TIMEOUT_MS="7").timeout_ms == 5


@pytest.mark.parametrize("text", ["a", "Z9", "a.b-c_d", "0", "x" * 300])
def test_profiles_and_projects_that_will_do(text: str) -> None:
    given = parsed("--hermes-profile", text, "--project", text)
    assert (given.hermes_profile, given.project) == (text, text)


BAD_NAMES = ["", ".a", "-a", "_a", "a..b", "a/b", "a b", "a\n", "é", "٣", "a\\b", "a:b", "a\0"]


@pytest.mark.parametrize("text", BAD_NAMES)
def test_profiles_and_projects_that_will_not(text: str) -> None:
    assert set(faults("--hermes-profile", text, f"--project={text}")) == {
        "--hermes-profile must be a safe profile name",
        f'Invalid project name: "{text}"',
    }


@pytest.mark.parametrize("text", ["a", "Z9", "a-b_c", "0" * 64, "project"])
def test_names_that_will_do(text: str) -> None:
    assert parsed("--name", text).name == text


@pytest.mark.parametrize("text", [*BAD_NAMES, "a.b", "0" * 65, "projects"])
def test_names_that_will_not(text: str) -> None:
    assert faults(f"--name={text}") == (f'Invalid coms name: "{text}"',)


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["--send-timeout", "0"], "--send-timeout"),
        (["--max-sends", "0"], "--max-sends"),
        (["--max-sends", "1.5"], "--max-sends"),
        (["--max-sends", "many"], "--max-sends"),
        (["--allow-from", "ann"], "--allow-from"),
        (["--allow-from", ""], "--allow-from"),
        (["--log-format", "xml"], "--log-format"),
        (["--questions-dir", ""], "--questions-dir"),
        (["--check=1"], "--check"),
    ],
)
def test_our_own_flags_are_checked_too(argv: Sequence[str], flag: str) -> None:
    (fault,) = faults(*argv)
    assert fault.startswith(flag)


def run(scene: Scene, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    daemon = Daemon(scene.home, *argv, environ=environ)
    return subprocess.run(
        daemon.command, env=daemon.environ, capture_output=True, text=True, timeout=20
    )


def test_every_fault_is_told_on_a_line_of_its_own(scene: Scene) -> None:
    done = run(scene, "--timeout", "soon", "--what", "--name", "a b", "--to", "x", "--to", "y")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and set(lines) == {
        'coms-hermes-bridge: Invalid coms name: "a b"',
        "coms-hermes-bridge: --timeout must be a positive number",
        "coms-hermes-bridge: --to may only be specified once",
        "coms-hermes-bridge: unknown flag: --what",
    }


def test_version_and_help(scene: Scene) -> None:
    done = run(scene, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hermes-bridges {__version__}\n", "")
    done = run(scene, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for flag in (*ONCE, "--allow-from", "--check", "--version", "--help"):
        assert f"\n  {flag}" in done.stdout
    assert "PI_COMS_DIR" in done.stdout and "PI_COMS_TIMEOUT_MS" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not os.path.exists(scene.home.bridge)


def test_a_verb_is_the_client(scene: Scene) -> None:
    scene.daemon()
    done = run(scene, "list")
    assert done.returncode == 0
    assert done.stdout.split("\t")[:2] == ["user-remote", "hermes-bridge"]


def test_without_a_home_nothing_starts(scene: Scene) -> None:
    done = run(scene, HOME="")
    assert done.returncode == 1 and done.stderr.startswith("coms-hermes-bridge: HOME ")
    assert len(done.stderr.splitlines()) == 1


def test_it_needs_nothing_but_the_standard_library(scene: Scene) -> None:
    """Isolated, so neither site-packages nor the environment can help."""
    code = (
        f"import sys; sys.path.insert(0, {CHECKOUT!r}); "
        "from hermes_bridges.coms.service import main; sys.exit(main())"
    )
    daemon = scene.daemon(command=[sys.executable, "-I", "-S", "-c", code])
    question = scene.peers.pi().ask("Ship?")
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    assert daemon.stop() == 0


@pytest.mark.parametrize(("given", "shown"), [("1e2", "100"), ("150.5", "150.5")])
def test_texts_print_numbers_as_javascript_does(scene: Scene, given: str, shown: str) -> None:
    scene.daemon(*QUICK, "--timeout", given)
    question = scene.peers.pi().ask("Ship?")
    assert question.wait()["error"] == f"no remote answer within {shown}ms"
    timeout = event(scene, "timeout", question.qid)
    assert json.dumps(timeout["detail"]) == f'{{"timeout_ms": {shown}}}'


def test_a_long_project_is_shown_cut(scene: Scene) -> None:
    for size in (128, 129):
        project = "p" * size
        daemon = scene.daemon(*QUICK, project=project)
        assert daemon.ready_line() == ("user-remote", project, "telegram")
        call = scene.hermes.wait_sent(scene.peers.pi(project=project).ask("Ship?").qid)
        shown = project if size == 128 else "p" * 127 + "…"
        assert f"\n📁 Project: {shown}\n" in call.text


def test_the_ready_line(scene: Scene) -> None:
    daemon = scene.daemon("--to", "telegram:-100:7", name="ann", project="red")
    assert daemon.stderr() == "coms-hermes-bridge: ann@red listening (telegram:-100:7)\n"


def test_log_lines_as_json(scene: Scene) -> None:
    daemon = scene.daemon("--log-format", "json", start=False)
    daemon.start(ready=False)
    wait(daemon.entry, 20, "its entry")
    assert daemon.stop() == 0
    for line in daemon.stderr().splitlines():
        assert {"at", "level", "message"} <= set(json.loads(line))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_takes_entry_socket_and_status_away(scene: Scene, number: int) -> None:
    daemon = scene.daemon()
    endpoint = daemon.endpoint
    wait(scene.home.status_file, 5, "the status file")
    assert daemon.stop(number) == 0
    assert scene.home.entries() == {} and not os.path.exists(endpoint)
    assert scene.home.status_file() is None


def test_an_interrupt_during_the_start_is_no_traceback(scene: Scene) -> None:
    project = os.path.join(scene.home.coms, "projects", "default")
    os.makedirs(project, mode=0o700)
    lock = os.path.join(project, "registry.lock")
    daemon = scene.daemon(start=False)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = subprocess.Popen(daemon.command, env=daemon.environ, stderr=subprocess.PIPE)
        wait(lambda: lock in opened(child.pid), 5, "it waits for the lock")
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=10)[1] == b""
    assert child.returncode == 130


def opened(pid: int) -> set[str]:
    """The paths of the files that a process has open."""
    paths = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            paths.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return paths


# Ours: the status file, the watch


def test_the_status_file_tells_what_is_going_on(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK, name="ann", project="red")
    status = wait(lambda: scene.home.status_file("red", "ann"), 5, "the status file")
    assert status["pid"] == daemon.pid and status["version"] == __version__
    assert re.fullmatch(STAMP, status["at"])
    assert isinstance(status["counters"], dict) and isinstance(status["values"], dict)


def test_a_status_file_of_a_long_project_has_a_shorter_name(scene: Scene) -> None:
    project, name = "p" * 250, "n" * 64
    stem, other = (parsed("--project", text).status_path(name) for text in (project, project[1:]))
    assert re.fullmatch(r".+/p{100}-[0-9a-f]{8}\.json", stem) and stem != other
    longest = parsed("--project", "p" * 190)
    assert longest.status_path("nnnn").endswith("/" + "p" * 190 + ".nnnn.json")
    assert "-" in os.path.basename(longest.status_path("nnnnn"))
    daemon = scene.daemon(project=project, name=name)
    path = parsed("--project", project, HOME=scene.home.path).status_path(name)
    wait(lambda: os.path.exists(path), 5, "the status file")
    assert daemon.stop() == 0 and os.listdir(scene.home.status) == []


def test_an_answer_is_seen_at_once_however_long_the_poll_is(scene: Scene) -> None:
    scene.daemon("--poll-ms", "60000")
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    begin = time.monotonic()
    scene.answers.write(question.qid, "yes")
    question.wait(5)
    assert time.monotonic() - begin < 1


def test_idle_it_costs_nothing(scene: Scene) -> None:
    daemon = scene.daemon("--poll-ms", "60000")
    time.sleep(0.3)
    before = daemon.cpu()
    time.sleep(1.0)
    assert daemon.cpu() - before <= 0.03


# Section 3: the registry


def test_the_entry_has_exactly_these_fields(scene: Scene) -> None:
    before = wire.iso()
    daemon = scene.daemon()
    entry = daemon.entry()
    assert entry is not None
    assert list(entry) == [
        *("session_id", "name", "purpose", "model", "color", "pid", "endpoint", "cwd"),
        *("started_at", "explicit", "version", "context_used_pct", "queue_depth", "heartbeat_at"),
    ]
    session = entry.pop("session_id")
    started, heartbeat = entry.pop("started_at"), entry.pop("heartbeat_at")
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{26}", session)
    for stamp in (started, heartbeat):
        assert re.fullmatch(STAMP, stamp) and before <= stamp <= wire.iso()
    assert json.dumps(entry) == json.dumps(
        {
            "name": "user-remote",
            "purpose": "Remote human via Hermes/Telegram",
            "model": "hermes-bridge",
            "color": "#38BDF8",
            "pid": daemon.pid,
            "endpoint": os.path.join(scene.home.sockets, session + ".sock"),
            "cwd": scene.home.path,
            "explicit": False,
            "version": 1,
            "context_used_pct": 0,
            "queue_depth": 0,
        }
    )
    assert os.listdir(scene.home.agents()) == ["user-remote.json"], "no temporary file is left"


def test_once_the_entry_is_there_it_serves_and_stops_cleanly(scene: Scene) -> None:
    """No line on stderr is waited for: a peer sees nothing but the entry."""
    for _ in range(4):
        daemon = scene.daemon(start=False)
        daemon.start(ready=False)
        entry = wait(daemon.entry, 20, "its entry")
        assert wire.exchange(entry["endpoint"], wire.ping("p"))["type"] == "pong"
        assert daemon.stop() == 0
        assert scene.home.entries() == {}


def put_entry(scene: Scene, name: str, **more: object) -> Fields:
    """An entry by hand: of a live peer that listens, unless told otherwise."""
    entry: Fields = {
        "session_id": wire.ulid(),
        "name": name,
        "purpose": "x",
        "model": "x",
        "color": "#000000",
        "pid": os.getpid(),
        "endpoint": scene.peers.pi().path,
        "cwd": "/",
        "started_at": wire.iso(),
        "explicit": False,
        "version": 1,
        "context_used_pct": 0,
        "queue_depth": 0,
        "heartbeat_at": wire.iso(),
        **more,
    }
    os.makedirs(scene.home.agents(), exist_ok=True)
    with open(os.path.join(scene.home.agents(), name + ".json"), "w") as file:
        json.dump(entry, file)
    return entry


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not alive(process.pid)
    return process.pid


def test_the_next_free_name_is_taken(scene: Scene) -> None:
    entries = {name: put_entry(scene, name) for name in ("user-remote", "user-remote2")}
    entries["user-remote4"] = put_entry(scene, "user-remote4")
    daemon = scene.daemon()
    assert daemon.ready_line() == ("user-remote3", "default", "telegram")
    new = daemon.entry()
    assert new and new["name"] == "user-remote3"
    assert scene.home.entries() == {**entries, "user-remote3": new}
    assert daemon.ask(wire.ping())["agent_card"]["name"] == "user-remote3"


def test_a_name_is_in_use_while_its_heartbeat_is_fresh(scene: Scene) -> None:
    """Its process may live in another pid namespace; its socket listens."""
    put_entry(scene, "user-remote", pid=dead_pid(), heartbeat_at=wire.iso(time.time() - 80))
    assert scene.daemon().ready_line() == ("user-remote2", "default", "telegram")


def test_a_name_is_in_use_while_its_process_lives(scene: Scene) -> None:
    put_entry(scene, "user-remote", heartbeat_at=wire.iso(time.time() - 4000))
    assert scene.daemon().ready_line() == ("user-remote2", "default", "telegram")


DEAD: dict[str, Fields] = {
    "stale": {"heartbeat_at": wire.iso(time.time() - 91)},
    "from the future": {"heartbeat_at": wire.iso(time.time() + 3600)},
    "no heartbeat": {"heartbeat_at": None},
    "no stamp": {"heartbeat_at": "yesterday"},
}


@pytest.mark.parametrize("more", DEAD.values(), ids=DEAD)
def test_a_name_whose_peer_is_dead_is_free(scene: Scene, more: Fields) -> None:
    put_entry(scene, "user-remote", pid=dead_pid(), **more)
    daemon = scene.daemon()
    assert daemon.ready_line() == ("user-remote", "default", "telegram")
    assert scene.home.entries() == {"user-remote": daemon.entry()}


def test_a_fresh_heartbeat_of_a_dead_process_that_does_not_listen_is_taken_over(
    scene: Scene,
) -> None:
    nowhere = os.path.join(scene.home.sockets, "nowhere.sock")
    put_entry(scene, "user-remote", pid=dead_pid(), endpoint=nowhere)
    assert scene.daemon().ready_line() == ("user-remote", "default", "telegram")


def test_a_living_process_with_a_fresh_heartbeat_keeps_its_name(scene: Scene) -> None:
    """Even if it does not listen just now."""
    nowhere = os.path.join(scene.home.sockets, "nowhere.sock")
    put_entry(scene, "user-remote", endpoint=nowhere)
    assert scene.daemon().ready_line() == ("user-remote2", "default", "telegram")


def test_entries_that_cannot_be_read_do_not_count(scene: Scene) -> None:
    agents = scene.home.agents()
    os.makedirs(agents)
    broken = {"user-remote.json": b"{", "list.json": b"[]", "x.json": b"\xff", "y.json": b"null"}
    broken["numbers.json"] = b'{"name": 1, "endpoint": 2, "pid": "x"}'
    for name, data in broken.items():
        with open(os.path.join(agents, name), "wb") as file:
            file.write(data)
    fifo, directory = (os.path.join(agents, name) for name in ("fifo.json", "directory.json"))
    os.mkfifo(fifo)
    os.mkdir(directory)
    daemon = scene.daemon(start=False)
    daemon.start(ready=False)
    wait(daemon.ready_line, 20, "the ready line")
    os.unlink(fifo)  # the test itself reads this directory from here on
    os.rmdir(directory)
    assert daemon.ready_line() == ("user-remote", "default", "telegram")
    question = scene.peers.pi().ask("Ship?")
    scene.answers.write(question.qid, "yes")
    question.wait()
    assert daemon.stop() == 0


def test_projects_do_not_share_names(scene: Scene) -> None:
    daemons = [scene.daemon(project=project) for project in ("red", "blue")]
    assert [daemon.ready_line() for daemon in daemons] == [
        ("user-remote", "red", "telegram"),
        ("user-remote", "blue", "telegram"),
    ]


# Ours: --check


def findings(scene: Scene, *argv: str) -> tuple[int, list[str], list[str]]:
    """Exit code, what is fine, and what is missing."""
    done = run(scene, "--check", *argv)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    good = [line.removeprefix("ok: ") for line in lines if line.startswith("ok: ")]
    bad = [line.removeprefix("missing: ") for line in lines if line.startswith("missing: ")]
    assert len(good) + len(bad) == len(lines)
    return done.returncode, good, bad


def test_a_check_finds_nothing_missing_and_changes_nothing(scene: Scene) -> None:
    scene.peers.close()
    os.rmdir(scene.home.sockets)
    os.rmdir(scene.home.coms)
    code, good, bad = findings(scene)
    assert (code, bad) == (0, [])
    assert any("hermes" in line and scene.hermes.path in line for line in good)
    assert not os.path.exists(scene.home.coms)
    assert not any("HUB-Q" in call.text for call in scene.hermes.calls())


def test_a_check_misses_hermes(scene: Scene) -> None:
    scene.hermes.uninstall()
    code, _, bad = findings(scene)
    assert code == 1 and bad == ["hermes was not found on PATH"]


def test_a_check_misses_send(scene: Scene) -> None:
    scene.hermes.rule(no_send=True)
    code, _, bad = findings(scene)
    assert code == 1 and len(bad) == 1
    assert "send" in bad[0] and "0.19" in bad[0]


def test_a_check_misses_the_profile(scene: Scene) -> None:
    scene.hermes.rule(match="profile\0show", exit=1, out="no such profile: work")
    code, _, bad = findings(scene, "--hermes-profile", "work")
    assert code == 1 and len(bad) == 1
    assert "work" in bad[0] and "no such profile" in bad[0]


def test_a_check_looks_at_the_directories(scene: Scene) -> None:
    os.makedirs(scene.home.questions)
    os.chmod(scene.home.questions, 0o755)
    with open(scene.home.pending, "w"):
        pass
    code, good, bad = findings(scene)
    assert code == 1 and bad == [f"{scene.home.pending} is not a directory"]
    assert any(scene.home.questions in line and "open to others" in line for line in good)
    assert os.stat(scene.home.questions).st_mode & 0o777 == 0o755


def test_a_check_finds_another_daemon_of_that_name(scene: Scene) -> None:
    scene.daemon()
    code, _, bad = findings(scene)
    assert code == 1 and len(bad) == 1 and "user-remote" in bad[0] and "taken" in bad[0]
    assert findings(scene, "--name", "ann")[0] == 0
    assert findings(scene, "--project", "red")[0] == 0, "one of ours elsewhere does no harm"


def existing_daemon(scene: Scene, project: str) -> None:
    """The entry of the daemon that deletes answers that are not its own."""
    os.makedirs(scene.home.agents(project), exist_ok=True)
    entry = put_entry(scene, "user-remote", model="hermes-bridge")
    default = os.path.join(scene.home.agents(), "user-remote.json")
    os.rename(default, os.path.join(scene.home.agents(project), "user-remote.json"))
    assert entry["pid"] == os.getpid()


def test_a_check_finds_the_existing_daemon_in_any_project(scene: Scene) -> None:
    existing_daemon(scene, "green")
    code, _, bad = findings(scene)
    assert code == 1 and len(bad) == 1
    assert "user-remote@green" in bad[0] and "deletes" in bad[0]


def test_the_existing_daemon_is_told_at_the_start_and_in_the_status(scene: Scene) -> None:
    existing_daemon(scene, "green")
    daemon = scene.daemon()
    (line,) = (line for line in daemon.stderr().splitlines() if "green" in line)
    assert "warning: " in line and "user-remote@green" in line and "deletes" in line
    status = wait(scene.home.status_file, 5, "the status file")
    assert status["values"]["foreign_bridges"] == ["user-remote@green"]


def test_our_own_daemons_are_not_taken_for_it(scene: Scene) -> None:
    first = scene.daemon(project="green")
    second = scene.daemon()
    assert "green" not in second.stderr()
    first.kill()
    third = scene.daemon(project="blue")
    assert "green" not in third.stderr(), "nor one that was killed a moment ago"


def test_the_start_waits_for_no_hermes(scene: Scene) -> None:
    scene.hermes.uninstall()
    scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    assert question.wait()["error"] == "hermes send failed: hermes was not found on PATH"
    wait_state(scene, question.qid, "closed")
