"""What the tests of rotation share: writers of logs, and reading back all parts of one."""

import gzip
import json
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.conftest import wait
from tests.ops.conftest import Operator

# Appends numbered events, 100 a second, until its input is closed; tells how many those were.
EVENTS = """
import select, sys
from hermes_bridges.core.eventlog import EventLog
log = EventLog(sys.argv[1])
n = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    assert log.append("delivered", f"{sys.argv[2]}-{n}", {"to": "x" * (n % 300)})
    n += 1
print(n)
"""
# The same on stderr, as a daemon whose log a shell has redirected.
LINES = """
import os, select, sys
n = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    os.write(2, f"line {n} {'x' * (n % 300)}.\\n".encode())
    n += 1
print(n)
"""
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


class Writer:
    """A process that writes a log; ``stop`` tells how many lines it has written."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child

    def stop(self) -> int:
        said, _ = self.child.communicate("", 30)
        assert self.child.returncode == 0
        return int(said)


def events(operator: Operator, log: Path, mark: str = "a") -> Writer:
    return Writer(operator.start("python", "-c", EVENTS, log, mark, **PIPES))


def lines(operator: Operator, log: Path, redirect: str = ">>") -> Writer:
    script = f'exec "$1" -c "$2" 2{redirect} "$3"'
    words = ("/bin/sh", "-c", script, "sh", operator.bin / "python", LINES, log)
    return Writer(operator.start(*words, **PIPES))


def grown(log: Path, size: int = 1) -> None:
    """Wait until somebody has written that much to a log."""
    assert wait(lambda: log.exists() and log.stat().st_size >= size, 20)


def parts(log: Path) -> list[Path]:
    """What was rotated of a log, the oldest first; what a bridge itself rotated is none of it."""
    found = sorted(one for one in log.parent.iterdir() if one.name.startswith(f"{log.name}-"))
    assert not [one.name for one in log.parent.iterdir() if one.name.endswith(".tmp")]
    return found


def is_packed(path: Path) -> bool:
    return path.name.endswith(".gz")


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if is_packed(path) else path.read_bytes()


def whole(log: Path) -> list[bytes]:
    """Every line of a log and of what was rotated of it, in the order of the files."""
    return [line for path in _files(log) for line in _lines(path)]


def _files(log: Path) -> list[Path]:
    return [*parts(log), *([log] if log.exists() else [])]


def _lines(path: Path) -> list[bytes]:
    data = content(path)
    assert b"\0" not in data, f"zeros in {path.name}"
    assert data.endswith(b"\n") or not data, data[-200:]
    return data.split(b"\n")[:-1]


def qids(log: Path) -> list[str]:
    return [json.loads(line)["qid"] for line in whole(log)]


def numbers(log: Path) -> list[list[int]]:
    """The numbers of the lines, file by file, as `LINES` writes them."""
    found: list[list[int]] = []
    for path in _files(log):
        found.append([])
        for line in _lines(path):
            first, number, rest = line.split(b" ")
            assert first == b"line" and rest == b"x" * (int(number) % 300) + b".", line
            found[-1].append(int(number))
    return found


def lost_between_the_files_only(log: Path, written: int) -> int:
    """How many lines are missing; each of the others is there once, and none lacks in a file."""
    files = [one for one in numbers(log) if one]
    for one in files:
        assert one == list(range(one[0], one[-1] + 1))
    assert all(before[-1] < after[0] for before, after in pairwise(files))
    assert files[0][0] == 0 and files[-1][-1] < written
    return written - sum(map(len, files))


def during(seconds: float) -> Iterator[int]:
    """Turns of a loop for that long; at least two of them."""
    end = time.monotonic() + seconds
    number = 0
    while number < 2 or time.monotonic() < end:
        yield number
        number += 1
