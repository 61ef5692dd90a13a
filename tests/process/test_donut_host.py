"""The bridge and its host: disk, log, memory, secrets, and the service manager."""

import itertools
import os
import re
import resource
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hermes_bridges.standins.hermes_api import Answer, Call, Fault
from tests.harness.donut_scene import COMMAND, KEY, TOKEN, DonutScene, Echo
from tests.harness.process import Process, stays, wait

MARK = "Quetzalcoatl"  # in what people and Hermes say, so that it can be looked for


def limit_files(process: Process, size: int | None) -> None:
    """No file of that process can grow beyond it; None: as before."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def unmeasured(process: Process) -> None:
    """Without coverage, whose data file cannot be written either, and says so at length."""
    process.environ = {k: v for k, v in process.environ.items() if not k.startswith("COVERAGE")}


# The disk


def test_a_full_disk_ends_it_and_loses_nothing(short_tmp: Path) -> None:
    """Without its state there is no way on: exit 70, and the next start goes on from there."""
    with DonutScene(str(short_tmp), pump=True) as scene:
        unmeasured(scene.bridge)
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        stays(lambda: True, 1.2)  # the cursor is written once a second
        limit_files(bridge, 0)
        message = scene.say(1)
        assert bridge.wait_exit(10.0) == 70
        wait(lambda: "Traceback" in bridge.stderr(), what="it says why")
        assert "donut.sqlite3" in bridge.stderr()
        bridge.runs.clear()
        bridge.start()
        scene.wait_answered([message, scene.say(1)])
        assert bridge.stop() == 0
        scene.assert_good()


def test_a_start_on_a_full_disk_says_so(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), pump=True) as scene:
        bridge = scene.bridge
        unmeasured(bridge)
        bridge.command = ["bash", "-c", 'ulimit -S -f 0; exec "$@"', "bash", *bridge.command]
        bridge.start(ready=False)
        assert bridge.wait_exit(10.0) == 1
        wait(lambda: bridge.stderr().strip(), what="a reason")
        assert len(bridge.stderr().strip().splitlines()) == 1, bridge.stderr()
        assert scene.state in bridge.stderr()
        bridge.command = bridge.command[4:]
        bridge.start()
        scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0


def test_a_state_that_cannot_be_written_is_told(short_tmp: Path) -> None:
    """Nobody, and not even root, can make a directory there."""
    with DonutScene(str(short_tmp), BRIDGE_STATE_DIR="/proc/state") as scene:
        scene.bridge.start(ready=False)
        assert scene.bridge.wait_exit(10.0) in (1, 78)
        assert len(scene.bridge.stderr().strip().splitlines()) == 1, scene.bridge.stderr()
        assert "/proc/state" in scene.bridge.stderr()


@pytest.mark.slow
def test_a_state_that_another_program_holds_ends_it(short_tmp: Path) -> None:
    """Somebody has the database locked for good: exit 70 after some seconds, nothing is lost."""
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        stays(lambda: True, 1.2)
        path = os.path.join(scene.state, "donut.sqlite3")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            message = scene.say(1)
            assert bridge.wait_exit(12.0) == 70
        bridge.runs.clear()
        bridge.start()
        scene.wait_answered([message])
        assert bridge.stop() == 0
        scene.assert_good()


# The log


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2> >(exit 0)"])
def test_without_a_log_it_works_all_the_same(short_tmp: Path, where: str) -> None:
    """Closed, full, or nobody reads it any more."""
    with DonutScene(str(short_tmp), LOG_LEVEL="debug") as scene:
        bridge = scene.bridge
        bridge.command = ["bash", "-c", f'exec "$@" >/dev/null {where}', "bash", *COMMAND]
        bridge.start()
        scene.wait_answered([scene.say(1 + n % 3) for n in range(20)])
        scene.hub.cut()
        wait(lambda: scene.dialled() == 2, what="it dials anew")
        scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0
        scene.assert_good()


# Memory


@pytest.mark.timeout(900)
def test_many_chats_leave_little_behind(short_tmp: Path, counts: Callable[[int, int], int]) -> None:
    """Workers retire, and what is remembered of a chat is on the disk."""
    chats, batch = counts(1_500, 10_000), 250
    with DonutScene(str(short_tmp), BRIDGE_IDLE_TIMEOUT="1s", BRIDGE_MAX_CONCURRENT="8") as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        stays(lambda: True, 1.5)  # all threads have begun, and that of the chat has ended
        threads = bridge.threads()

        def visit(first: int, last: int) -> int:
            for begin in range(first, last, batch):
                scene.wait_answered(
                    [scene.say(chat) for chat in range(begin, min(begin + batch, last))], 60
                )
            wait(lambda: bridge.threads() <= threads + 1, 20, "the workers have retired")
            return bridge.memory()

        base = visit(1, batch + 1)
        after = visit(batch + 1, chats + 1)
        print(f"{base / 1e6:.1f} MB after {batch} chats, {after / 1e6:.1f} MB after {chats}")
        assert after - base < 6e6
        assert bridge.open_files() < 100, "connections belong to slots and posts, not to chats"
        assert bridge.stop() == 0
        scene.assert_good()


# Secrets and contents


@pytest.mark.parametrize("level", ["info", "debug"])
def test_KH22_no_secret_and_no_content_is_left_anywhere(short_tmp: Path, level: str) -> None:
    """Not in the log, the state, the process list or a chat, whatever goes wrong."""

    def think(call: Call) -> Answer:
        if "fail" in call.text:
            return Answer(f"{MARK} {KEY}", failed=True, error=f"{MARK} {KEY}")
        return Answer(f"{MARK} says {call.text}" * (100 if "long" in call.text else 1))

    echo = {"error": {"code": "x", "message": f"{TOKEN} {KEY} {MARK}"}}
    with DonutScene(
        str(short_tmp), think=think, LOG_LEVEL=level, BRIDGE_BREAKER_THRESHOLD="1000"
    ) as scene:
        bridge = scene.start()
        for status in (400, 401, 403, 404, 413, 500, 502):
            scene.hermes.fail(Fault(status, body=str(echo).encode()))
            scene.wait_answered([scene.say(status, f"{MARK} {status}")], 30)
        for drop in ("after", "midway"):
            scene.hermes.fail(Fault(drop=drop), times=2)
            scene.wait_answered([scene.say(f"chat {drop}", f"{MARK} {drop}")], 30)
        scene.wait_answered([scene.say(2, f"{MARK} fail"), scene.say(3, f"{MARK} long")])
        for status in (400, 403, 500):
            scene.hub.send_status(status, body=echo, chat=10)
            scene.say(10, f"{MARK} {status}")
        scene.hub.send_status(401, body=echo, chat=11)
        scene.say(11, f"{MARK} 401")
        wait(lambda: bridge.lines("DONUT_BOT_TOKEN"), what="it is told")
        scene.hub.frame(f'{{"type":"message.new","x":"{MARK} {TOKEN}"}}'.encode())
        scene.hub.refuse(503, body=echo)
        scene.hub.refuse(302, {"Location": f"http://127.0.0.1:9/{TOKEN}"})
        scene.hub.cut()
        wait(lambda: scene.dialled() == 2, 20, "it is back")
        assert bridge.children() == []
        for name in ("cmdline", "comm"):
            text = Path(f"/proc/{bridge.pid}/{name}").read_bytes()
            assert TOKEN.encode() not in text and KEY.encode() not in text
        scene.wait_answered([scene.say(10, f"{MARK} at last")])
        bridge.restart()
        wait(lambda: scene.hub.posted(11), what="what was kept is posted")
        assert bridge.stop() == 0
        log = bridge.all_stderr()
        assert TOKEN not in log and KEY not in log
        if level == "info":
            assert MARK not in log
        for path in Path(scene.state).rglob("*"):
            data = path.read_bytes()
            for word in (TOKEN, KEY, MARK):
                assert word.encode() not in data, f"{word} in {path.name}"
        for post in scene.hub.posted():
            assert TOKEN not in post["content"] and KEY not in post["content"]


def test_nobody_else_can_read_the_state(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        scene.bridge.umask = 0
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        modes = {p.name: p.stat().st_mode & 0o777 for p in Path(scene.state).iterdir()}
        assert bridge.stop() == 0
        modes |= {p.name: p.stat().st_mode & 0o777 for p in Path(scene.state).iterdir()}
        assert set(modes) >= {"donut.sqlite3", "donut.lock", "status.json"}
        assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o077}
        assert Path(scene.state).stat().st_mode & 0o777 == 0o700


# The service manager


class Manager:
    """What a service manager is told, each message with its time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._thread = threading.Thread(target=self._listen, name="manager", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self.heard += [(time.monotonic(), line) for line in message.decode().split("\n")]

    def times(self, line: str) -> list[float]:
        return [t for t, heard in list(self.heard) if heard == line]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.sendto(b"", self._socket.getsockname())
        self._thread.join(5)
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Manager]:
    address = str(short_tmp / "n") if request.param == "path" else f"@{short_tmp.name}-notify"
    made = Manager(address)
    yield made
    made.close()


def test_KH13_the_service_manager_is_told(short_tmp: Path, manager: Manager) -> None:
    """READY once it stands, what the stream does, pings well within the limit, STOPPING."""
    with DonutScene(
        str(short_tmp),
        think=Echo((1.0, 1.5)),
        NOTIFY_SOCKET=manager.address,
        WATCHDOG_USEC="500000",
    ) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(chat) for chat in range(1, 5)])
        before = manager.times("WATCHDOG=1")
        scene.hub.stop_listening()
        wait(lambda: manager.times("STATUS=disconnected"), what="the loss is told")
        scene.hub.start_listening()
        wait(lambda: len(manager.times("STATUS=connected")) == 2, 20, "it is connected again")
        assert bridge.stop() == 0
        assert manager.heard[0][1] == "READY=1"
        assert len(manager.times("READY=1")) == len(manager.times("STOPPING=1")) == 1
        gaps = [later - t for t, later in itertools.pairwise(before)]
        assert len(gaps) > 4 and max(gaps) <= 0.25 + scene.lag.worst, gaps


def test_KH40_the_watchdog_of_another_process_is_not_ours(
    short_tmp: Path, manager: Manager
) -> None:
    with DonutScene(
        str(short_tmp),
        NOTIFY_SOCKET=manager.address,
        WATCHDOG_USEC="300000",
        WATCHDOG_PID="1",
    ) as scene:
        bridge = scene.start()
        wait(lambda: manager.times("READY=1"), what="it is ready")
        stays(lambda: not manager.times("WATCHDOG=1"), 0.8)
        assert bridge.stop() == 0


def test_a_manager_that_is_not_there_prevents_nothing(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp), NOTIFY_SOCKET=str(short_tmp / "nowhere")) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0


HANGING = """
import sys, threading
from hermes_bridges.donut import hermes_api, protocol
from hermes_bridges.donut.service import main
def hang(*arguments):
    if {sign!r} in repr(arguments):
        threading.Event().wait()
    return real(*arguments)
real, {module}.{name} = {module}.{name}, hang
raise SystemExit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "sign", "within"),
    [("protocol", "decode", "hang here", 13.0), ("hermes_api", "classify", "hang here", 19.0)],
    ids=["the intake", "a worker"],
)
def test_KH13_what_hangs_is_not_hidden_from_the_watchdog(
    short_tmp: Path, module: str, name: str, sign: str, within: float
) -> None:
    """A thread that never comes back: the pings end, so that the manager starts it anew."""
    manager = Manager(str(short_tmp / "n"))
    code = HANGING.format(module=module, name=name, sign=sign)
    try:
        with DonutScene(
            str(short_tmp),
            NOTIFY_SOCKET=manager.address,
            WATCHDOG_USEC="500000",
            BRIDGE_REQUEST_TIMEOUT="1s",
        ) as scene:
            bridge = scene.another(command=[sys.executable, "-c", code])
            bridge.start()
            scene.wait_answered([scene.say(1)])
            stays(lambda: True, 1.2)  # the cursor is written once a second
            begin = time.monotonic()
            message = scene.say(1, "hang here")
            wait(lambda: bridge.lines("no progress in"), within, "it is noticed")
            last = manager.times("WATCHDOG=1")[-1]
            stays(lambda: manager.times("WATCHDOG=1")[-1] <= last + 0.3, 1.0)
            print(f"noticed after {time.monotonic() - begin:.1f} s: {bridge.lines('no progress')}")
            assert re.search(r"donut\.(intake|chats)", bridge.lines("no progress in")[0])
            bridge.kill()
            scene.bridge.start()
            scene.wait_answered([message])
            assert scene.bridge.stop() == 0
    finally:
        manager.close()
