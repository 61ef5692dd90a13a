"""The runs that are going on, and whose they are: what a crash must not make us forget.

The file (contract, section 10): ``{"v":1,"user","runs":[{"runId","sessionKey","storedKey",
"startedAt","process"}]}``, ``startedAt`` in epoch seconds.
"""

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from hermes_bridges.core import files
from hermes_bridges.wishee.disk import Disk, Saver
from hermes_bridges.wishee.recordfile import VERSION, Newer, RecordFile, check_version

RUNS_MAX = 1000

_FILE_MAX = 4 * 1024 * 1024


class Run(NamedTuple):
    """A run that was started; ``key`` is the session as the bridge named it."""

    run_id: str
    key: str
    stored_key: str
    at: float
    process: str


class RunJournal:
    """The runs that were started and have not ended, for any thread; at most RUNS_MAX.

    ``user`` is the user of the last welcome, empty before the first; all runs are that user's.
    ``dropped`` counts the runs that were forgotten, because there were too many or because the
    user changed. Nothing here waits for the disk but ``load``, which comes first, and once.
    """

    def __init__(self, path: str, disk: Disk, *, process: str | None = None) -> None:
        self.dropped = 0
        self._file = RecordFile(path, _FILE_MAX, "runs")
        self._process = process or process_of(os.getpid())
        self._saver = Saver(disk, self._write)
        # Guards what follows.
        self._lock = threading.Lock()
        self._user = ""
        self._runs: dict[str, Run] = {}

    @property
    def user(self) -> str:
        """The user of the last welcome."""
        return self._user

    def load(self) -> int:
        """Read the file; how many runs it names. What cannot be used is said in the log."""
        raw = self._file.read()
        if raw is None:
            return 0
        try:
            user, runs = _decode(raw)
        except Newer:
            self._file.seal("was written by a newer version")
            return 0
        except ValueError:
            self._file.set_aside()
            return 0
        with self._lock:
            self._user = self._user or user
            self._runs = {**runs, **self._runs}
            return len(runs)

    def started(self, run_id: str, key: str, stored_key: str, at: float) -> "Future[None]":
        """Note a run; the future tells that it is on the disk, or fails as an Outbox's does."""
        with self._lock:
            self._runs[run_id] = Run(run_id, key, stored_key, at, self._process)
            while len(self._runs) > RUNS_MAX:
                del self._runs[next(iter(self._runs))]
                self.dropped += 1
        return self._saver.soon()

    def ended(self, run_id: str) -> bool:
        """Forget a run, whose result is kept elsewhere by now; False when it is not known."""
        with self._lock:
            known = self._runs.pop(run_id, None) is not None
        if known:
            self._saver.soon()
        return known

    def left_behind(self) -> list[Run]:
        """The runs of processes that are dead, the oldest first."""
        with self._lock:
            runs = list(self._runs.values())
        alive = {self._process}
        for process in {run.process for run in runs} - alive:
            pid = process.partition("-")[0]
            if pid.isdigit() and process_of(int(pid)) == process:
                alive.add(process)
        return [run for run in runs if run.process not in alive]

    def belong_to(self, user: str) -> int:
        """Note the user of a welcome; how many runs of another user that makes us forget."""
        with self._lock:
            if user == self._user:
                return 0
            # Those from before the first welcome are nobody else's.
            forgotten = len(self._runs) if self._user else 0
            if forgotten:
                self._runs.clear()
            self._user = user
            self.dropped += forgotten
        self._saver.soon()
        return forgotten

    def __len__(self) -> int:
        with self._lock:
            return len(self._runs)

    def _write(self) -> None:
        with self._lock:
            content = _encode(self._user, self._runs)
        self._file.change(partial(files.write_atomic, self._file.path, content))


def process_of(pid: int) -> str:
    """A name of a process that no other one has had or will have; empty for one that is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it, in brackets, may hold anything.
            fields = file.read(4096).rpartition(b")")[2].split()
        state, start = fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return ""
    return "" if state in (b"Z", b"X", b"x") else f"{pid}-{start}"


def _decode(raw: bytes) -> tuple[str, dict[str, Run]]:
    """Read the file's content. Raises ValueError or Newer."""
    try:
        record = json.loads(raw)
        check_version(record["v"])
        found = [_run(each) for each in record["runs"]]
        user = record["user"]
    except (KeyError, TypeError, RecursionError):
        raise ValueError from None
    if not isinstance(user, str):
        raise ValueError
    return user, {run.run_id: run for run in found}


def _run(record: Mapping[str, Any]) -> Run:
    texts = [record[name] for name in ("runId", "sessionKey", "storedKey", "process")]
    at = record["startedAt"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(at, int | float):
        raise ValueError
    run_id, key, stored_key, process = texts
    return Run(run_id, key, stored_key, at, process)


def _encode(user: str, runs: Mapping[str, Run]) -> bytes:
    record = {
        "v": VERSION,
        "user": user,
        "runs": [
            {
                "runId": run.run_id,
                "sessionKey": run.key,
                "storedKey": run.stored_key,
                "startedAt": run.at,
                "process": run.process,
            }
            for run in runs.values()
        ],
    }
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
