"""A full disk: the daemon goes on answering, and all is as before once there is room again."""

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.harness.daemon import Daemon, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

YES = {"kind": "freeform", "text": "yes"}


class Disk(Protocol):
    """Something that can be full for the daemon."""

    def fill(self, daemon: Daemon) -> None: ...
    def clear(self, daemon: Daemon) -> None: ...
    def answer(self, scene: Scene, question: Question) -> None:
        """The human's answer file is written although the disk is full."""


class Limit:
    """No file can grow: what an unprivileged user can do. It binds the daemon alone."""

    def fill(self, daemon: Daemon) -> None:
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))

    def clear(self, daemon: Daemon) -> None:
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))

    def answer(self, scene: Scene, question: Question) -> None:
        scene.answers.write(question.qid, "yes")


class Tmpfs:
    """A real file system of one mebibyte below HOME; only root can make it."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.filler = os.path.join(home, "filler")
        command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", home]
        self.mounted = subprocess.run(command, capture_output=True).returncode == 0

    def fill(self, daemon: Daemon) -> None:
        with open(self.filler, "ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                while True:
                    try:
                        if file.write(b"x" * size) < size:
                            break
                    except OSError:
                        break

    def clear(self, daemon: Daemon) -> None:
        os.unlink(self.filler)

    def answer(self, scene: Scene, question: Question) -> None:
        """Room for one small file, until the writer and not the daemon was the one to get it."""

        def write() -> bool:
            os.truncate(self.filler, max(0, os.path.getsize(self.filler) - 8192))
            try:
                scene.answers.write(question.qid, "yes")
            except OSError:
                return False
            return True

        wait(write, 10, "the answer could be written")
        self.fill(scene.daemons[0])

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.home], check=True)


@pytest.fixture
def tmpfs(short_tmp: Path) -> Iterator[Tmpfs]:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    disk = Tmpfs(str(home))
    yield disk
    disk.close()


def test_no_file_can_grow(short_tmp: Path) -> None:
    with Scene(str(short_tmp)) as scene:
        full_disk(scene, Limit())


def test_a_full_file_system(short_tmp: Path, tmpfs: Tmpfs) -> None:
    """Without the right to mount one, the limit is tried once more."""
    with Scene(str(short_tmp)) as scene:
        full_disk(scene, tmpfs if tmpfs.mounted else Limit())


def full_disk(scene: Scene, disk: Disk) -> None:
    daemon = scene.daemon("--poll-ms", "200", pump=True)
    pi = scene.peers.pi()
    before = [pi.ask(f"Before {i}?") for i in range(2)]
    for question in before:
        scene.hermes.wait_sent(question.qid)
    wait(lambda: len(scene.home.open_records()) == 2, what="both are recorded")

    disk.fill(daemon)
    begin = time.monotonic()
    during = [pi.ask(f"During {i}?") for i in range(4)]
    assert time.monotonic() - begin < 2.0, "the ack waits for no disk"
    for question in during:
        scene.hermes.wait_sent(question.qid)
    cancelled = during.pop()
    assert cancelled.cancel()
    for question in [before[0], *during[:2]]:
        disk.answer(scene, question)
        assert question.wait()["response"] == YES
    assert daemon.ping() < 1.0

    disk.clear(daemon)
    for question in [before[1], during[2]]:
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == YES
    after = pi.ask("After?")
    scene.hermes.wait_sent(after.qid)
    wait(lambda: after.qid in scene.home.open_records(), what="records are written again")
    wait(lambda: scene.home.events(after.qid, "delivered"), what="the log is written again")
    daemon.assert_no_traceback()
    # A file system may have had room left in the log's last block; a limit has none.
    told = [line for line in daemon.stderr().splitlines() if "cannot be" in line]
    assert 1 <= len(told) <= 2, f"told once for records and log: {daemon.stderr()}"

    daemon.kill()
    daemon.start()
    scene.answers.write(after.qid, "yes")
    assert after.wait()["response"] == YES
    roles = {q.qid: q.envelope["prompt"] for q in [*before, *during, cancelled, after]}
    wait(
        lambda: not scene.home.open_records(),
        what=f"nothing is open; {roles}, {scene.home.open_records()}",
    )
    wait(lambda: not scene.home.answer_files(), what="every answer file is taken")
    assert daemon.stop() == 0
    report = scene.verdict(final=True)
    assert report["ok"], report
    for question in [*before, *during, after]:
        assert len(question.responses) == 1


def test_a_start_on_a_full_disk_says_so(scene: Scene) -> None:
    """The registry entry cannot be written: exit 1, one clear line, and nothing left behind."""
    limited = ["bash", "-c", 'ulimit -S -f 0; exec "$@"', "bash"]
    daemon = scene.daemon(start=False, pump=True)
    daemon.command = limited + daemon.command
    # Under measurement the data file cannot be written either, and that is said at length.
    daemon.environ = {k: v for k, v in daemon.environ.items() if not k.startswith("COVERAGE")}
    daemon.start(ready=False)
    assert daemon.wait_exit(10) == 1
    wait(lambda: daemon.stderr().strip(), what="a reason")
    assert len(daemon.stderr().strip().splitlines()) <= 3, daemon.stderr()
    assert "large" in daemon.stderr() or "space" in daemon.stderr(), daemon.stderr()
    assert scene.home.entries() == {}
    assert os.listdir(scene.home.sockets) == []
    daemon.command = daemon.command[len(limited) :]
    daemon.start()
    assert daemon.stop() == 0
