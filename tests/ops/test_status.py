"""`hermes-bridges status`: each state of a bridge is told from the others."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.core import files
from hermes_bridges.core.lifesigns import process_start
from hermes_bridges.ctl import health, processes
from hermes_bridges.standins.hermes_runs import Answer
from tests.conftest import ROOT, wait
from tests.harness.donut_scene import DonutScene
from tests.harness.scene import Scene
from tests.ops.asking import Ask, status_file
from tests.ops.conftest import Operator, give

CONTROLS = "\x1b]0;owned\x07\x9b31m\u202e\u2066\r"

# A daemon as far as its files go, which then does nothing more.
DOUBLE = """
import os, signal, sys, time
from hermes_bridges.core.lifesigns import Lifesigns
from hermes_bridges.core.status import Status
from hermes_bridges.donut import statedir
directory, tells = sys.argv[1:]
held = statedir.claim(directory)
if tells == "tells":
    status = Status(os.path.join(directory, "status.json"))
    signs = Lifesigns(os.environ, status, str)
    status.set("connection", "connected")
    status.set("breaker", {"state": "closed"})
    signs.ready("")
    signs.beat(time.monotonic())
    status.write()
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def scene(short_tmp: Path) -> Iterator[Scene]:
    with Scene(str(short_tmp)) as scene:
        yield scene


@pytest.fixture
def donut(short_tmp: Path, ask: Ask) -> Iterator[DonutScene]:
    (short_tmp / "d").mkdir()
    with DonutScene(
        str(short_tmp / "d"), BRIDGE_BREAKER_THRESHOLD="1", BRIDGE_BREAKER_COOLDOWN="60s"
    ) as scene:
        ask.environ["BRIDGE_STATE_DIR"] = scene.state
        yield scene


@pytest.fixture
def double(ask: Ask) -> Iterator[Any]:
    """Starts such a daemon on the default state directory of the Donut bridge."""
    started = []

    def start(tells: str = "tells") -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", DOUBLE, str(donut_dir(ask)), tells],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def coms_file(ask: Ask, stem: str = "default.user-remote") -> Path:
    return Path(ask.environ["HOME"]) / f".pi/coms/hermes-bridge/status/{stem}.json"


def donut_dir(ask: Ask) -> Path:
    return Path(ask.environ["HOME"]) / ".local/state/hermes-bridges"


def told(ask: Ask) -> str:
    """The texts of all faults of the only bridge."""
    return "\n".join(fault["text"] for fault in ask.status()["faults"])


def until(ask: Ask, state: str, seconds: float = 12.0) -> dict[str, Any]:
    """Waits until the only bridge is in that state."""
    last: dict[str, Any] = {}

    def look() -> bool:
        found = ask("status", "--json").json["bridges"]
        last.update(found[0] if found else {})
        return bool(found) and found[0]["state"] == state

    assert wait(look, seconds, 0.1), f"not {state}: {last}"
    return last


# Nothing


def test_without_a_bridge_it_is_down(ask: Ask) -> None:
    for words in (["status"], ["status", "coms"], ["status", "donut"]):
        told = ask(*words)
        assert (told.code, told.err) == (2, "") and "no" in told.out
    whole = ask("status", "--json")
    assert whole.code == 2 and whole.json["bridges"] == []


def test_without_a_home_that_is_told(ask: Ask) -> None:
    told = ask("status", HOME="")
    assert told.code == 2 and "HOME is not set" in told.out


# The coms bridge


def test_a_coms_bridge_from_start_to_stop(ask: Ask, scene: Scene) -> None:
    daemon = scene.daemon()
    one = until(ask, "healthy")
    assert (one["bridge"], one["instance"], one["pid"]) == (
        "coms",
        "user-remote@default",
        daemon.pid,
    )
    assert one["eventLog"] == scene.home.log and one["faults"] == []
    assert one["values"]["started_at"] <= one["at"]
    assert one["values"]["beat"] <= time.monotonic() and one["values"]["stuck_seconds"] == 0
    table = ask("status")
    assert table.code == 0 and "user-remote@default  healthy" in table.out
    assert daemon.stop() == 0
    assert ask("status").code == 2


def test_open_questions_and_losses_are_shown(ask: Ask, scene: Scene) -> None:
    scene.hermes.rule(exit=1, err="no token", times=1)
    scene.daemon()
    asker = scene.peers.pi()
    asker.ask("first")
    asker.ask("second")
    wait(lambda: "1 open" in (out := ask("status").out) and "delivery_error 1" in out, 10, 0.2)
    out = ask("status", "coms").out
    assert "1 open" in out and "drops and losses: delivery_error 1" in out


def test_a_killed_one_is_down_and_says_since_when(ask: Ask, scene: Scene) -> None:
    daemon = scene.daemon()
    until(ask, "healthy")
    daemon.kill()
    one = ask.status()
    assert one["state"] == "down" and ask("status").code == 2
    (fault,) = one["faults"]
    assert "without having said so" in fault["text"] and one["at"] in fault["text"]
    assert scene.home.status in fault["remedy"]


def test_a_paused_one_is_told(ask: Ask, scene: Scene) -> None:
    daemon = scene.daemon()
    until(ask, "healthy")
    daemon.pause()
    one = ask.status()
    assert (one["state"], one["level"]) == ("paused", 2)
    assert one["faults"][0]["remedy"].endswith(f"kill -CONT {daemon.pid}")
    daemon.resume()
    assert ask.status()["state"] == "healthy"


def test_several_are_told_apart_and_can_be_chosen(ask: Ask, scene: Scene) -> None:
    scene.daemon()
    second = scene.daemon(project="green")
    third = scene.daemon(name="other")
    wait(lambda: ask("status").code == 0, 12, 0.2)
    second.kill()
    whole = ask("status", "--json").json
    states = {one["instance"]: one["state"] for one in whole["bridges"]}
    assert states == {
        "user-remote@default": "healthy",
        "user-remote@green": "down",
        "other@default": "healthy",
    }
    assert whole["code"] == 2
    assert ask("status", "--instance", "other@default").code == 0
    assert ask("status", "--instance", "user-remote@green").code == 2
    wrong = ask("status", "--instance", "x")
    assert wrong.code == 2 and "other@default" in wrong.err
    assert third.stop() == 0


def test_one_whose_status_file_is_gone_is_found_by_its_entry(ask: Ask, scene: Scene) -> None:
    daemon = scene.daemon()
    until(ask, "healthy")
    coms_file(ask).unlink()
    one = ask.status()
    assert (one["state"], one["pid"]) == ("starting", daemon.pid)


def test_the_lock_of_a_coms_bridge_that_was_removed_is_noticed(ask: Ask, scene: Scene) -> None:
    scene.daemon()
    until(ask, "healthy")
    for lock in Path(scene.home.pending).glob(".owner-*.lock"):
        lock.unlink()
    assert "its lock file is gone" in told(ask) and ask("status").code == 1


def test_a_corrupt_file_of_one_that_runs_does_not_make_it_down(ask: Ask, scene: Scene) -> None:
    daemon = scene.daemon()
    until(ask, "healthy")
    daemon.pause()
    coms_file(ask).write_bytes(b'{"pid": ')
    one = ask.status()
    assert one["state"] == "degraded" and "cannot be used" in one["faults"][0]["text"]
    daemon.resume()


def test_a_bridge_that_cannot_send_is_degraded(ask: Ask, scene: Scene) -> None:
    scene.hermes.rule(no_send=True)
    scene.daemon()
    scene.peers.pi().ask("anybody there?")
    assert "nothing can be sent" in "".join(f["text"] for f in until(ask, "degraded")["faults"])


# The Donut bridge


def test_a_donut_bridge_from_start_to_stop(ask: Ask, donut: DonutScene) -> None:
    bridge = donut.start()
    one = until(ask, "healthy")
    assert one["pid"] == bridge.pid and one["stateDir"] == donut.state
    out = ask("status").out
    assert "connected" in out and "0 queued, 0 in flight, 0 to post" in out
    assert "connected since 20" in out and "breaker: closed for " in out
    assert bridge.stop(limit=5) == 0
    assert ask.status()["state"] == "down"
    assert "it was stopped at" in told(ask) and "exit code 0" in told(ask)


def test_an_open_breaker_and_the_call_that_failed_are_shown(ask: Ask, donut: DonutScene) -> None:
    donut.brain.think = lambda call: Answer("no", status=500)
    donut.start()
    donut.say(1, "hello")
    one = until(ask, "degraded")
    assert wait(lambda: "the breaker is open" in told(ask), 8, 0.2)
    assert wait(lambda: "call_failures" in ask("status").out, 8, 0.2)
    out = ask("status").out
    assert "drops and losses: " in out and "last warning: 20" in out
    assert one["level"] == 1 and ask("status").code == 1


def test_a_hub_that_is_away_is_shown_with_the_reason(ask: Ask, donut: DonutScene) -> None:
    donut.start()
    until(ask, "healthy")
    donut.hub.close()
    one = until(ask, "degraded")
    assert "the hub: disconnected since 20" in one["faults"][0]["text"]
    assert one["values"]["connection_fault"]


def test_a_killed_donut_bridge_is_down(ask: Ask, donut: DonutScene) -> None:
    bridge = donut.start()
    until(ask, "healthy")
    bridge.kill()
    assert ask.status()["state"] == "down" and "killed?" in told(ask)


def test_a_donut_bridge_that_is_wanted_no_more_can_be_removed_alone(ask: Ask) -> None:
    # As one leaves it that was tried by hand, above the state directory of a unit.
    status_file(donut_dir(ask) / "status.json", values={"process_start": 1})
    (donut_dir(ask) / "donut.lock").touch()
    status_file(donut_dir(ask) / "donut-helper" / "status.json")
    first = ask("status", "--json").json["bridges"][0]
    assert (first["instance"], first["state"]) == ("default", "down")
    remedy = first["faults"][0]["remedy"]
    assert remedy.endswith(f"remove status.json and donut.* in {donut_dir(ask)}")
    for path in (donut_dir(ask) / "status.json", *donut_dir(ask).glob("donut.*")):
        path.unlink()
    left = ask("status", "--json").json["bridges"]
    assert [one["instance"] for one in left] == ["helper"]


def test_one_that_is_stopping_is_told(ask: Ask, donut: DonutScene) -> None:
    donut.brain.think = lambda call: Answer("late", delay=4.0)
    bridge = donut.start()
    donut.say(1, "hello")
    assert wait(lambda: donut.hermes.calls, 10)
    bridge.send_signal(signal.SIGTERM)
    assert until(ask, "stopping", 3)["level"] == 1
    assert bridge.wait_exit(10) == 0


# Hung, starting, and what only looks alive


def test_one_that_tells_nothing_any_more_is_hung(
    ask: Ask, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = double()
    assert ask.status()["state"] == "healthy"
    monkeypatch.setattr(health, "LATE", 0.2)
    one = until(ask, "hung")
    assert one["level"] == 2 and f"its process {child.pid} runs" in one["faults"][0]["text"]
    assert f"kill -KILL {child.pid}" in one["faults"][0]["remedy"]


def test_the_age_is_that_of_the_last_beat_whatever_the_wall_clock_says(
    ask: Ask, double: Any
) -> None:
    double()
    path = donut_dir(ask) / "status.json"
    for wall in (0.0, time.time() + 1e6):
        os.utime(path, (wall, wall))
        assert ask.status()["state"] == "healthy"
    whole = json.loads(path.read_text())
    whole["values"]["beat"] -= 100
    path.write_text(json.dumps(whole))
    one = ask.status()
    assert one["state"] == "hung" and 100 <= one["age"] < 130


def test_one_that_holds_its_lock_and_has_told_nothing_yet_is_starting(
    ask: Ask, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = double("silent")
    one = ask.status()
    assert (one["state"], one["level"]) == ("starting", 1)
    monkeypatch.setattr(health, "START_MOST", 0.1)
    assert f"process {child.pid} runs for" in "".join(
        f["text"] for f in until(ask, "hung")["faults"]
    )


def test_a_restart_before_its_first_word_is_starting_not_down(ask: Ask, double: Any) -> None:
    first = double()
    first.kill()
    first.wait()
    assert ask.status()["state"] == "down"
    double("silent")
    assert ask.status()["state"] == "starting"


def test_a_process_that_has_the_number_now_is_not_the_bridge(ask: Ask, double: Any) -> None:
    status_file(donut_dir(ask) / "status.json", values={"process_start": 12345})
    assert ask.status()["state"] == "down"
    # Without the time of the start the lock, which nobody holds, tells it.
    status_file(donut_dir(ask) / "status.json", values={"process_start": None})
    (donut_dir(ask) / "donut.lock").touch()
    assert ask.status()["state"] == "down"


def test_a_stop_that_does_not_end_is_hung(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"state": "stopping", "beat": time.monotonic() - 100}
    status_file(coms_file(ask), values=values)
    assert ask.status()["state"] == "stopping"
    monkeypatch.setattr(health, "STOP_MOST", 50.0)
    assert ask.status()["state"] == "hung" and "does not end" in told(ask)


def test_a_thread_that_is_stuck_makes_it_degraded(ask: Ask) -> None:
    status_file(coms_file(ask), values={"stuck_seconds": 40})
    assert "a thread makes no progress for 40 s" in told(ask) and ask("status").code == 1


def test_an_error_makes_it_degraded_for_a_while(ask: Ask) -> None:
    def error(ago: float) -> dict[str, str]:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - ago))
        return {"at": at, "text": "it burns"}

    status_file(coms_file(ask), values={"last_error": error(100)})
    assert "it burns" in told(ask) and ask("status").code == 1
    status_file(coms_file(ask), values={"last_error": error(400)})
    assert ask("status").code == 0 and "last error: " in ask("status").out


def test_a_full_disk_is_told_from_a_hang(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status_file(coms_file(ask), values={"beat": time.monotonic() - 100})
    assert ask.status()["state"] == "hung"
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 5, 5, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert ask.status()["state"] == "degraded" and "no space left" in told(ask)


# Files that are not what they should be


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b"{}",
        b'{"pid": 1',
        b'{"pid": "1", "counters": {}, "values": {}}',
        b'{"pid": 1, "counters": [], "values": {}}',
        b'{"pid": -1, "counters": {}, "values": {}}',
        b"[" * 100_000,
        b'{"pid": ' + b"9" * 5000 + b"}",
        b'{"pid": 1, "counters": {}, "values": {}}' + b" " * 300_000,
        b'\xff\xfe{"pid": 1}',
    ],
)
def test_a_file_that_cannot_be_used_is_told(ask: Ask, content: bytes) -> None:
    coms_file(ask).parent.mkdir(parents=True)
    coms_file(ask).write_bytes(content)
    told = ask("status")
    assert told.code == 2 and told.err == ""
    assert "its status file cannot be used" in told.out and str(coms_file(ask)) in told.out


def test_a_file_of_another_kind_is_never_opened(ask: Ask) -> None:
    path = coms_file(ask)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    begun = time.monotonic()
    assert "not regular" in told(ask) and time.monotonic() - begun < 5
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))
    assert "symlink" in told(ask)


def test_values_of_other_kinds_do_not_break_it(ask: Ask) -> None:
    nonsense: Any = [{"a": [1, {}, "x"]}, None, [], "1", True, 1e308 * 10, 10**300, -5, CONTROLS]
    for value in nonsense:
        names = ["connection", "open", "breaker", "last_error", "hermes", "peers", "beat", "name"]
        names += ("process_start", "started_at", "stuck_seconds", "event_log", "state", "session")
        status_file(coms_file(ask), values=dict.fromkeys(names, value), counters={"x": value})
        status_file(donut_dir(ask) / "status.json", values=dict.fromkeys(names, value))
        for words in (["status"], ["status", "--json"], ["metrics"]):
            told = ask(*words)
            assert told.err == "" and "\x1b" not in told.out
        json.loads(ask("status", "--json").out, parse_constant=pytest.fail)


def test_deep_values_are_cut_off(ask: Ask) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    status_file(coms_file(ask), values={"open": deep})
    assert ask("status", "--json").json["bridges"][0]["values"]["open"] == [[[[None]]]]


def test_nothing_of_a_file_reaches_the_terminal_raw(ask: Ask) -> None:
    fault = {"at": CONTROLS, "text": f"oh{CONTROLS}no\nsecond line"}
    values: dict[str, Any] = dict.fromkeys(("connection", "started_at", "hermes"), CONTROLS)
    values |= {"last_error": fault, "last_warning": fault, "foreign_bridges": [CONTROLS]}
    status_file(coms_file(ask, f"default.{CONTROLS}"), values=values, version=CONTROLS, at=CONTROLS)
    for words in (["status"], ["status", "--json"], ["metrics"], ["doctor"], ["doctor", "--json"]):
        told = ask(*words)
        raw = [c for c in told.out + told.err if c != "\n" and not c.isprintable()]
        assert not raw, (words, raw)
    assert "\nsecond line" not in ask("status").out


def test_long_texts_are_cut(ask: Ask) -> None:
    values = {"last_warning": {"at": "then", "text": "x" * 5000}}
    status_file(coms_file(ask, f"default.{'x' * 200}"), values=values)
    assert max(map(len, ask("status").out.splitlines())) <= 602


def test_more_files_than_are_looked_at_are_told(ask: Ask) -> None:
    for number in range(210):
        status_file(coms_file(ask, f"default.b{number}"))
    whole = ask("status", "--json").json
    assert len(whole["bridges"]) == 200 and "holds 210 files" in whole["notes"][0]


# systemd

UNITS = """\
Id=hermes-coms-bridge@work.service
LoadState=loaded
ActiveState={active}
SubState=x
UnitFileState=enabled
Result=exit-code
MainPID={pid}
NRestarts=3
ExecMainStatus={status}
StatusText=fine
StateChangeTimestamp=Mon 2026-11-30 12:00:00 UTC
"""


def units(ask: Ask, scope: str = "user", **facts: Any) -> None:
    text = UNITS.format(**{"active": "active", "pid": 0, "status": 0, **facts})
    (ask.bin / "units.txt").write_text(text)
    test = '[ "$1" = --user ]' if scope == "user" else '[ "$1" != --user ]'
    ask.systemctl(f"{test} && cat {ask.bin}/units.txt")


def test_a_unit_that_failed_is_told_with_its_exit_status(ask: Ask) -> None:
    units(ask, active="failed", status=78)
    one = ask.status()
    assert (one["state"], one["unit"]) == ("down", "hermes-coms-bridge@work.service")
    (fault,) = one["faults"]
    assert "exit status 78" in fault["text"]
    assert "journalctl --user -u hermes-coms-bridge@work.service" in fault["remedy"]
    assert "settings cannot be used" in fault["remedy"]


def test_a_unit_that_is_started_again_and_again_is_down(ask: Ask) -> None:
    units(ask, "system", active="activating", status=70)
    (fault,) = ask.status()["faults"]
    assert "so far 3 times" in fault["text"] and "journalctl -u" in fault["remedy"]


def test_a_unit_and_the_files_of_its_process_are_one_bridge(ask: Ask) -> None:
    values = {"project": "work", "name": "user-remote"}
    status_file(coms_file(ask, "work.user-remote"), values=values)
    units(ask, pid=os.getpid())
    one = ask.status()
    assert (one["state"], one["unit"]) == ("healthy", "hermes-coms-bridge@work.service")
    assert "unit hermes-coms-bridge@work.service" in ask("status").out


def test_a_unit_that_is_off_is_no_bridge(ask: Ask) -> None:
    units(ask, active="inactive")
    path = ask.bin / "units.txt"
    path.write_text(path.read_text().replace("UnitFileState=enabled", "UnitFileState=disabled"))
    assert ask("status", "--json").json["bridges"] == []


def test_a_unit_that_is_enabled_and_not_started_is_down(ask: Ask) -> None:
    units(ask, active="inactive")
    (fault,) = ask.status()["faults"]
    assert fault["remedy"] == "start it: systemctl --user start hermes-coms-bridge@work.service"


def test_a_unit_whose_files_are_out_of_reach_is_degraded(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(ask, pid=os.getpid())
    monkeypatch.setattr(health, "START_MOST", 1e9)
    assert ask.status()["state"] == "starting"
    monkeypatch.setattr(health, "START_MOST", 0.0)
    assert ask.status()["state"] == "degraded" and "cannot be looked at" in told(ask)


def test_a_systemd_that_hangs_costs_a_few_seconds(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_bridges.ctl import systemd

    monkeypatch.setattr(systemd, "LIMIT", 0.3)
    monkeypatch.setattr(systemd, "BOOTED", "/")
    ask.systemctl("sleep 60 & sleep 60")
    status_file(coms_file(ask))
    begun = time.monotonic()
    told = ask("status")
    assert told.code == 0 and "took more than 0.3 s" in told.out
    assert time.monotonic() - begun < 5


def test_two_with_one_name_are_told_by_their_place(ask: Ask) -> None:
    for name in ("one", "two"):
        status_file(ask.root / name / "bot" / "status.json")
    words = [f"--state-dir={ask.root}/{name}/bot" for name in ("one", "two")]
    found = ask("status", "--json", *words).json["bridges"]
    assert [one["instance"] for one in found] == ["bot", f"bot ({ask.root}/two/bot)"]


def test_state_directories_are_found_where_units_keep_them(ask: Ask, short_tmp: Path) -> None:
    private = short_tmp / "var-lib" / "donut-bot1"
    status_file(private / "status.json")
    (short_tmp / "elsewhere").mkdir()
    config = Path(ask.environ["HOME"]) / ".config/hermes-bridges/donut-bot2"
    config.mkdir(parents=True)
    (config / "donut.lock").touch()
    (config.parent / "unrelated").mkdir()
    # A second way to the first one.
    (short_tmp / "var-lib" / "link").symlink_to(private)
    found = ask("status", "--json").json["bridges"]
    assert sorted(one["instance"] for one in found) == ["bot1", "bot2"]


def test_the_process_tells_which_of_two_units_it_is(ask: Ask) -> None:
    values = {"project": "work", "name": "user-remote"}
    status_file(coms_file(ask, "work.user-remote"), values=values)
    units(ask, pid=os.getppid())
    found = {one["state"]: one["unit"] for one in ask("status", "--json").json["bridges"]}
    assert found["healthy"] is None and len(found) == 2


def test_a_hung_one_with_a_unit_is_restarted_by_systemd(ask: Ask) -> None:
    values = {"project": "work", "name": "user-remote", "beat": time.monotonic() - 60}
    status_file(coms_file(ask, "work.user-remote"), values=values)
    units(ask, "system", pid=os.getpid())
    (fault,) = ask.status()["faults"]
    assert fault["remedy"] == "systemctl restart hermes-coms-bridge@work.service"


def test_a_donut_unit_and_its_state_directory_are_one_bridge(ask: Ask) -> None:
    for place in (ask.root / "var-lib", Path(ask.environ["HOME"]) / ".local/state/hermes-bridges"):
        status_file(place / "donut-bot" / "status.json", values={"process_start": 1})
    units(ask, "system", active="failed", status=1)
    path = ask.bin / "units.txt"
    path.write_text(path.read_text().replace("hermes-coms-bridge@work", "hermes-donut-bridge@bot"))
    found = ask("status", "--json").json["bridges"]
    assert len(found) == 2
    unit = {one["stateDir"]: one["unit"] for one in found}
    assert unit[f"{ask.root}/var-lib/donut-bot"] == "hermes-donut-bridge@bot.service"
    assert unit[f"{ask.environ['HOME']}/.local/state/hermes-bridges/donut-bot"] is None


def test_one_that_went_while_it_stopped(ask: Ask) -> None:
    status_file(coms_file(ask), values={"state": "stopping", "process_start": 1})
    assert "it was about to stop" in told(ask)


def test_what_cannot_be_looked_at_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status = coms_file(ask).parent
    status.parent.mkdir(parents=True)
    status.symlink_to(status)
    (ask.root / "var-lib").mkdir()
    (ask.root / "var-lib" / "loop").symlink_to("loop")
    (Path(ask.environ["HOME"]) / ".config").mkdir()
    (Path(ask.environ["HOME"]) / ".config/hermes-bridges").symlink_to("hermes-bridges")
    notes = ask("status", "--json").json["notes"]
    assert len(notes) == 3 and all("cannot be looked at: Too many levels" in n for n in notes)
    told = ask("metrics")
    assert told.code == 0 and told.err.count("cannot be looked at") == 3
    assert "note: " in ask("status").out


def test_a_status_file_that_may_not_be_read(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status_file(coms_file(ask))

    def refused(*args: Any, **more: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "read_capped", refused)
    assert "cannot be used: Permission denied" in told(ask)


def test_three_with_one_name_in_one_place(ask: Ask) -> None:
    values = {"project": "work", "name": "user-remote"}
    for stem in "abc":
        status_file(coms_file(ask, stem), values=values)
    found = [one["instance"] for one in ask("status", "--json").json["bridges"]]
    assert len(set(found)) == 3 and found[2].endswith(" #2")


# Looking at processes and locks


def test_what_life_says_of_a_process(short_tmp: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    start = process_start(child.pid)
    assert processes.life(child.pid, start) is processes.Life.RUNNING
    assert processes.life(child.pid, None) is processes.Life.UNSURE
    assert processes.life(child.pid, (start or 0) + 1) is processes.Life.GONE
    child.send_signal(signal.SIGSTOP)
    wait(lambda: processes.life(child.pid, start) is processes.Life.PAUSED, 5)
    assert processes.life(child.pid, start) is processes.Life.PAUSED
    child.kill()
    # A zombie is there, and is not.
    wait(lambda: processes.life(child.pid, start) is processes.Life.GONE, 5)
    assert processes.life(child.pid, start) is processes.Life.GONE
    child.wait()
    assert processes.life(child.pid, start) is processes.Life.GONE
    assert processes.life(0, None) is processes.life(-1, None) is processes.Life.GONE
    assert (processes.uptime(os.getpid()) or 0) > 0 and processes.uptime(2**22 + 1) is None


def test_who_holds_a_lock(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = short_tmp / "lock"
    assert processes.lock_holder(str(path), probe=True) == (False, None)
    assert processes.lock_holder(str(path / "x"), probe=False).held is not True
    with path.open("w") as file:
        assert processes.lock_holder(str(path), probe=False) == (False, None)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert processes.lock_holder(str(path), probe=False) == (True, os.getpid())
        monkeypatch.setattr(processes, "_LOCKS", str(short_tmp / "absent"))
        assert processes.lock_holder(str(path), probe=False) == (None, None)
        assert processes.lock_holder(str(path), probe=True) == (True, None)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert processes.lock_holder(str(path), probe=True) == (False, None)
    os.mkfifo(short_tmp / "fifo")
    assert processes.lock_holder(str(short_tmp / "fifo"), probe=True) == (False, None)


def test_another_device_in_the_list_of_locks_is_no_answer(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_tmp / "lock"
    path.touch()
    inode = path.stat().st_ino
    (short_tmp / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 7 00:2f:{inode} 0 EOF\n")
    monkeypatch.setattr(processes, "_LOCKS", str(short_tmp / "locks"))
    assert processes.lock_holder(str(path), probe=False) == (None, None)
    assert processes.lock_holder(str(path), probe=True) == (False, None)


def test_processes_that_are_hidden(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    monkeypatch.setattr(processes, "_PROC", str(short_tmp))
    assert processes.life(os.getpid(), 1) is processes.Life.UNSURE
    assert processes.life(child.pid, 1) is processes.Life.GONE
    assert processes.life(2**40, 1) is processes.Life.GONE
    assert processes.uptime(os.getpid()) is None

    def denied(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", denied)
    assert processes.life(child.pid, 1) is processes.Life.UNSURE


def test_a_lock_that_cannot_be_tried(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = short_tmp / "lock"
    path.touch()
    for fault, held in ((OSError(37, "No locks"), None), (FileNotFoundError(), False)):

        def fail(*args: Any, fault: OSError = fault, **more: Any) -> int:
            raise fault

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail)
            assert processes.lock_holder(str(path), probe=True).held is held
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", fail)
            assert processes.lock_holder(str(path), probe=True).held is None


# As it is installed


def test_the_installed_command_and_bridge(operator: Operator) -> None:
    operator.command("hermes", "#!/bin/sh\nexit 0\n")
    bridge = operator.start("bridge-coms", stderr=subprocess.PIPE)
    assert bridge.stderr is not None and b"listening" in bridge.stderr.readline()
    assert wait(lambda: operator.run("hermes-bridges", "status").returncode == 0, 12, 0.2)
    whole = json.loads(operator.run("hermes-bridges", "status", "--json").stdout)
    assert whole["bridges"][0]["pid"] == bridge.pid
    bridge.send_signal(signal.SIGSTOP)
    assert operator.run("hermes-bridges", "status").returncode == 2
    bridge.send_signal(signal.SIGCONT)
    path = operator.home / ".pi/coms/hermes-bridge/status/default.user-remote.json"
    path.write_text("{")
    give(path)
    assert "cannot be used" in operator.run("hermes-bridges", "status").stdout
    bridge.send_signal(signal.SIGTERM)
    assert bridge.wait(10) == 0
    assert operator.run("hermes-bridges", "status").returncode == 2
