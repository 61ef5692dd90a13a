"""The agent runs of the scripted Hermes: what is running, and what is kept by Idempotency-Key.

As in the real server, a request with the key and the body of another one gets its result: at once
when the run is over, and when it ends while it goes on. Results are kept in memory only, failed
ones too; the same key with another body is a run of its own.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hermes_bridges.standins.http_loop import Gone

KEPT_SECONDS = 300.0  # from the end of a run
KEPT_KEYS = 1_000
BY_RESULT = "by result"


class Answer(NamedTuple):
    """How a run goes, and what it ends with.

    ``delay`` is in seconds, None: it never ends. ``finish_reason`` follows from the result unless
    it is given; None leaves it out. ``session`` is the id that the session has from now on.
    ``status`` and ``body`` replace what the server would say, ``headers`` come on top.
    """

    text: str = ""
    delay: float | None = 0.0
    failed: bool = False
    partial: bool = False
    error: str | None = None
    finish_reason: str | None = BY_RESULT
    session: str | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Run:
    """One run; ``over`` is set at its end, and ``answer`` is None when it came to none."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.answer: Answer | None = None


class Runs:
    """All runs of one process of the server; any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Guards everything below.
        self._lock = threading.Lock()
        self._gone = False
        self._running: dict[tuple[object, str], Run] = {}
        self._kept: OrderedDict[str, tuple[float, str, Run]] = OrderedDict()

    def join(self, key: str | None, mark: str) -> tuple[Run, bool]:
        """The run for that key and that mark of the body, and whether it existed already.

        Who gets a new one must ``end`` it. Gone when the process is to have ended.
        """
        with self._lock:
            if self._gone:
                raise Gone("the server has ended")
            self._forget_old()
            if key is not None:
                kept = self._kept.get(key)
                if kept is not None and kept[1] == mark:
                    return kept[2], True
                running = self._running.get((key, mark))
                if running is not None:
                    return running, True
            run = Run()
            self._running[key if key is not None else run, mark] = run
            return run, False

    def end(self, key: str | None, mark: str, run: Run, answer: Answer | None) -> None:
        """Tell all who wait for it; None: it failed in a way that leaves nothing."""
        with self._lock:
            if not self._gone:
                del self._running[key if key is not None else run, mark]
                if key is not None and answer is not None:
                    self._kept.pop(key, None)
                    self._kept[key] = (self._clock(), mark, run)
                    self._forget_old()
                run.answer = answer
        run.over.set()

    def kill(self) -> None:
        """End every run at once, without a result, and start none any more."""
        with self._lock:
            self._gone = True
            runs = list(self._running.values())
        for run in runs:
            run.over.set()

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept:
            ended, _, _ = next(iter(self._kept.values()))
            if now - ended <= KEPT_SECONDS and len(self._kept) <= KEPT_KEYS:
                return
            self._kept.popitem(last=False)
