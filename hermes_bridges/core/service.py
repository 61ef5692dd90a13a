"""Runs the threads of a daemon: signals, watchdog, stop order, exit code."""

import logging
import math
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from hermes_bridges.core.sdnotify import Notifier
from hermes_bridges.core.waker import Waker

log = logging.getLogger("hermes_bridges.service")

EXIT_CLEAN = 0
EXIT_DIED = 70
"""A thread, or the main loop, ended by an unexpected exception."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LONGEST_TURN = 5.0  # seconds between two looks at the threads and the status line
_HURRY = 0.3  # seconds left after a second signal
_FAREWELL = 0.1  # seconds beyond the deadline for stages that were stopped only then


class Stage(Protocol):
    """One thread's work. ``step``, ``wait`` and ``close`` run on that thread only."""

    def step(self, now: float) -> float | None:
        """Do one turn; return when the next is due (monotonic), None for only when woken."""

    def wait(self, timeout: float | None) -> None:
        """Block for at most ``timeout`` seconds; return early when woken."""

    def stop(self) -> None:
        """From any thread: make ``wait`` return, now or when next called. One whole step
        follows, so that what was handed over before the stop is still seen; then ``close``."""

    def close(self) -> None:
        """Let go of everything; also called after a step that raised."""


class Service:
    """The thread table of one daemon, its signals and its end.

    Owned by the main thread, which does nothing but signals, ``tick`` and the watchdog. ``tick``
    is called with the time and returns when it is next due (None: never again); ``describe``
    gives the manager's status line. ``grace`` is the time in seconds that all stages together
    have to end. With ``exits`` the process is to end after ``run``: further signals are then
    ignored, not handed back to the former handlers, so that they cannot spoil the exit code.

    ``on_stop`` is called once, before the first stage is stopped, to end waits that several stages
    share. ``hung`` is True when a thread outlived the stop; the caller then leaves by
    ``os._exit``. ``hurried`` is True when a further signal cut the stop short.
    """

    def __init__(
        self,
        name: str,
        notifier: Notifier,
        *,
        clock: Callable[[], float] = time.monotonic,
        grace: float = 1.5,
        tick: Callable[[float], float | None] | None = None,
        describe: Callable[[], str] | None = None,
        on_stop: Callable[[], None] | None = None,
        exits: bool = False,
    ) -> None:
        self.name = name
        self.hung = False
        self.hurried = False
        self._notifier = notifier
        self._clock = clock
        self._grace = grace
        self._tick = tick
        self._describe = describe
        self._on_stop = on_stop
        self._exits = exits
        self._runners: list[_Runner] = []
        self._started = False
        self._ending = False
        self._died = False
        self._code = EXIT_CLEAN
        self._deadline = math.inf
        self._tick_due = math.inf if tick is None else -math.inf
        self._ping_due = -math.inf
        self._told = ""
        self._stuck: list[str] = []
        # A SimpleQueue's put may be re-entered: besides a wake, all that a handler may do.
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._waker = Waker()
        self._former_handlers: dict[int, Any] = {}
        self._former_fd = -1

    def add(
        self,
        thread_name: str,
        stage: Stage,
        stop_rank: int,
        limit: float | None = None,
        overdue: Callable[[float], bool] | None = None,
    ) -> None:
        """Add a stage, before the start. Those of a lower ``stop_rank`` are stopped earlier.

        ``limit`` is the longest time in seconds that one step may take before the watchdog is no
        longer pinged; None stands for half the watchdog's interval. ``overdue`` tells, at a
        monotonic time, whether a thread that the stage looks after takes too long.
        """
        if limit is None:
            interval = self._notifier.watchdog
            limit = math.inf if interval is None else interval / 2
        runner = _Runner(
            thread_name, stage, stop_rank, limit, overdue, self._clock, self._waker.wake
        )
        self._runners.append(runner)

    def start(self) -> None:
        """Install the signal handlers, then start the threads."""
        self._started = True
        self._install_handlers()
        try:
            for runner in self._runners:
                runner.start()
        except RuntimeError:
            self._stop_stages()
            raise

    def stop(self) -> None:
        """Ask for the end as a SIGTERM does; from any thread."""
        self._asked.put(signal.SIGTERM)
        self._waker.wake()

    def fail(self, code: int) -> None:
        """Ask for the end with this exit code; from any thread, which says why in the log."""
        self._code = code
        self._asked.put(0)
        self._waker.wake()

    def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Run until a signal, a death or ``fail``; returns the exit code, 0 or 70 or that one.

        ``on_ready`` is called once handlers and threads stand and before the service manager
        hears READY, unless the end was asked for by then. What it raises ends the stages and is
        raised again.
        """
        if not self._started:
            self.start()
        try:
            if on_ready is not None and not self._is_ending():
                on_ready()
            self._serve()
        finally:
            self._notifier.stopping()
            self._stop_stages()
        return EXIT_DIED if self._died else self._code

    def _serve(self) -> None:
        try:
            if not self._is_ending():
                self._told = self._describe() if self._describe else ""
                self._notifier.ready(self._told)
            while not self._is_ending():
                due = self._turn(self._clock())
                self._waker.wait(due - self._clock())
        except Exception:
            log.exception("the main loop died")
            self._died = True

    def _turn(self, now: float) -> float:
        if self._tick is not None and now >= self._tick_due:
            due = self._tick(now)
            self._tick_due = math.inf if due is None else due
        if self._describe is not None and (text := self._describe()) != self._told:
            self._told = text
            self._notifier.status(text)
        return min(self._tick_due, self._watch(now), now + _LONGEST_TURN)

    def _watch(self, now: float) -> float:
        """Ping the watchdog while all threads make progress; returns when to look again."""
        stuck = [runner.name for runner in self._runners if runner.is_stuck(now)]
        if stuck != self._stuck:
            self._stuck = stuck
            if stuck:
                log.error("no progress in %s", ", ".join(stuck))
            else:
                log.warning("all threads make progress again")
        interval = self._notifier.watchdog
        if interval is None:
            return math.inf
        if now >= self._ping_due:
            self._ping_due = now + interval / 3
            if not stuck:
                self._notifier.watchdog_ping()
        return self._ping_due

    def _is_ending(self) -> bool:
        if not self._ending and not self._asked.empty():
            self._ending = True
            number = self._asked.get()
            if number:
                log.info("stopping on %s", signal.Signals(number).name)
        if not self._ending and any(runner.died for runner in self._runners):
            self._ending = True
            log.error("stopping because a thread died")
        return self._ending

    def _stop_stages(self) -> None:
        """Stop rank by rank, all within one deadline; then give the signals back."""
        self._deadline = self._clock() + self._grace
        if self._on_stop is not None:
            self._on_stop()
        for rank in sorted({runner.rank for runner in self._runners}):
            ranked = [runner for runner in self._runners if runner.rank == rank]
            for runner in ranked:
                runner.ask_stop()
            self._await_end(ranked)
        # The last ones may have been told only now.
        self._deadline = max(self._deadline, self._clock() + _FAREWELL)
        self._await_end(self._runners)
        left = [runner.name for runner in self._runners if runner.running]
        if left:
            self.hung = True
            log.error("still running after the stop: %s", ", ".join(left))
        if any(runner.died for runner in self._runners):
            self._died = True
        self._restore_handlers()
        self._waker.close()

    def _await_end(self, runners: "list[_Runner]") -> None:
        while any(runner.running for runner in runners):
            now = self._clock()
            while not self._asked.empty():
                if self._asked.get():
                    self.hurried = True
                    self._deadline = min(self._deadline, now + _HURRY)
            if now >= self._deadline:
                return
            self._waker.wait(min(self._deadline, self._watch(now)) - now)
        for runner in runners:
            runner.join()

    def _install_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._former_fd = signal.set_wakeup_fd(self._waker.signal_fd(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._former_handlers[number] = signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # An ignored SIGCHLD would make the kernel throw away how children ended.
            self._former_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: no lock, no log. The wake comes
        # from set_wakeup_fd.
        self._asked.put(number)

    def _restore_handlers(self) -> None:
        if not self._former_handlers:
            return
        for number, handler in self._former_handlers.items():
            if self._exits and number in _SIGNALS:
                handler = signal.SIG_IGN
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._former_fd)
        self._former_handlers.clear()


class _Runner:
    """A stage and its thread. The flags are plain attributes: one thread writes each."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        rank: int,
        limit: float,
        overdue: Callable[[float], bool] | None,
        clock: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self.name = name
        self.rank = rank
        self.running = False
        self.died = False
        self._stage = stage
        self._limit = limit
        self._overdue = overdue
        self._clock = clock
        self._on_end = on_end
        self._stopping = False
        self._overdue_at = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.running = True
        try:
            self._thread.start()
        except RuntimeError:
            self.running = False
            raise

    def is_stuck(self, now: float) -> bool:
        if not self.running:
            return False
        return now > self._overdue_at or (self._overdue is not None and self._overdue(now))

    def ask_stop(self) -> None:
        self._stopping = True
        try:
            self._stage.stop()
        except Exception:
            log.exception("thread %s cannot be stopped", self.name)

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(_FAREWELL)

    def _run(self) -> None:
        clean = False
        try:
            self._turn_until_stopped()
            clean = True
        except Exception:
            log.exception("thread %s died", self.name)
        finally:
            # Also for a SystemExit, which the threading module would not mention.
            self.died = not (self._close() and clean)
            self.running = False
            self._on_end()

    def _turn_until_stopped(self) -> None:
        while True:
            last = self._stopping
            now = self._clock()
            self._overdue_at = now + self._limit
            due = self._stage.step(now)
            if last:
                return
            if self._stopping:
                continue
            now = self._clock()
            timeout = None if due is None or due == math.inf else max(0.0, due - now)
            self._overdue_at = math.inf if timeout is None else now + timeout + self._limit
            self._stage.wait(timeout)

    def _close(self) -> bool:
        self._overdue_at = self._clock() + self._limit
        try:
            self._stage.close()
        except Exception:
            log.exception("thread %s did not close", self.name)
            return False
        return True
