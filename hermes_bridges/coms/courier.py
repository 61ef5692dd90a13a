"""`hermes send`, one message at a time on each of a few threads (contract section 5)."""

import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from hermes_bridges.core.hermes_cli import Result
from hermes_bridges.core.waker import Waker


class Job(NamedTuple):
    """One message for the human."""

    qid: str
    phase: str
    """``question`` or a note: ``timeout_note``, ``cancel_note``, ``late_note``, ``reject_note``."""
    text: str


class Sent(NamedTuple):
    """What became of a job."""

    job: Job
    result: Result


class Sender(Protocol):
    """The part of HermesCli that a courier needs."""

    def run(self, args: list[str], limit: float, *, stop: Waker | None = None) -> Result:
        """Run ``hermes`` with these arguments, ``limit`` seconds at most."""


# Signals that end a whole group of processes, as a terminal or a service manager sends them.
_FOR_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Seconds in which the daemon's own signal follows one that its child got.
_TOGETHER = 0.25


class Courier:
    """A stage that runs one `hermes send` a step.

    The desk never hands out more jobs than there are couriers, so the queue that they share is
    never longer than their number. ``stopping`` is set and ``stop_waker`` woken once, at the end,
    for all of them: that ends a send that runs.
    """

    def __init__(
        self,
        sender: Sender,
        to: str,
        limit: float,
        jobs: "SimpleQueue[Job | None]",
        report: Callable[[Sent], None],
        stopping: threading.Event,
        stop_waker: Waker,
    ) -> None:
        self._sender = sender
        self._to = to
        self._limit = limit
        self._jobs = jobs
        self._report = report
        self._stopping = stopping
        self._stop_waker = stop_waker
        self._next: Job | None = None

    def step(self, now: float) -> float | None:
        """Run the job that was waited for, if any; ``limit`` seconds and a little at most."""
        job, self._next = self._next, None
        if job is not None:
            args = ["send", "--to", self._to, job.text]
            result = self._sender.run(args, self._limit, stop=self._stop_waker)
            # A signal to everybody at once reaches the child first; then it is no failure.
            if result.signal in _FOR_ALL and self._stopping.wait(_TOGETHER):
                result = result._replace(stopped=True)
            self._report(Sent(job, result))
        return None

    def wait(self, timeout: float | None) -> None:
        """Wait for a job."""
        try:
            self._next = self._jobs.get(timeout=timeout)
        except Empty:
            self._next = None

    def stop(self) -> None:
        """End a send that runs, and the wait."""
        self._stopping.set()
        self._stop_waker.wake()
        self._jobs.put(None)

    def close(self) -> None:
        """Nothing is left to do: a job that was not begun stays in its question's record."""
