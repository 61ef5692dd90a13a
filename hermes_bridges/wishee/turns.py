"""The runs of the bridge: from a chat.send to its one task-result (contract, sections 4 and 10).

All of it belongs to the gateway's loop.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from hermes_bridges.errors import BridgeError
from hermes_bridges.wishee import runjournal
from hermes_bridges.wishee.runjournal import RunJournal
from hermes_bridges.wishee.runs import Remembered, Run
from hermes_bridges.wishee.sessionkeys import Chat, parse_stored

RUNS_MAX = 64
"""How many runs may go on at once."""
RESUMED_MAX = 3600.0
"""Seconds that a turn may take which Hermes itself has taken up again after a restart."""

_LAST_WORDS = 3.0
_LOOK = 0.05
_FAILED = "The turn failed."
_INTERRUPTED = "The gateway was stopped while the turn was going on."

_log = logging.getLogger("hermes_bridges.wishee")


class Refused(BridgeError):
    """A request that is well formed but cannot be done; the text may go to the bridge."""


class Host(Protocol):
    """What the runs need of Hermes, on its loop."""

    resumes_within: float
    """Seconds in which Hermes may take up an interrupted turn after its restart."""

    def build(self, chat: Chat) -> str:
        """The key under which Hermes stores the session of a chat."""
        ...

    async def handle(self, chat: Chat, text: str, message_id: str) -> str:
        """Have a message answered; what the turn returns, or raises."""
        ...

    def is_ready(self) -> bool:
        """Whether a message would be answered, and not put off until the gateway has started."""
        ...

    def is_stopping(self) -> bool:
        """Whether the gateway is about to end."""
        ...

    def resumes(self) -> bool:
        """Whether Hermes goes on with interrupted turns after a restart."""
        ...


@dataclass(slots=True, eq=False)
class _Orphan:
    """A run of a process that is dead; at ``due`` it ends with what was said by then."""

    run: Run
    due: float
    resumed: bool = False


class Turns:
    """The runs of one connector.

    ``on_end`` gets each run that has a result, once; when the result is kept, it ends the run in
    the journal. ``mark`` tells the highest id of any stored message.
    """

    def __init__(
        self,
        host: Host,
        journal: RunJournal,
        on_end: Callable[[Run], None],
        mark: Callable[[], Awaitable[int]],
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.absorbed = 0
        self.foreign = 0
        self._host = host
        self._journal = journal
        self._on_end = on_end
        self._mark = mark
        self._wall = wall
        self._clock = clock
        self._running: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._orphans: dict[str, _Orphan] = {}
        self._adopted: set[str] = set()
        self._ended = Remembered()

    def admit(self, key: str, message: str, user: str) -> tuple[Run, "Future[None]"]:
        """A new run, and when it is on the disk; ``begin`` starts its turn. Raises Refused."""
        chat = parse_stored(key, self._host.build)
        if chat is None:
            raise Refused("sessionKey: the session of another platform can only be read")
        if len(self._running) >= RUNS_MAX:
            raise Refused(f"too many runs: {RUNS_MAX} are going on")
        stored = self._host.build(chat)
        run = Run(f"run-{uuid.uuid4().hex}", key, stored, chat, message, user, self._wall())
        self._running[run.run_id] = run
        return run, self._journal.started(run.run_id, key, stored, run.at)

    def begin(self, run: Run) -> None:
        """Start the turn of a run."""
        task = asyncio.get_running_loop().create_task(self._turn(run))
        # The loop itself keeps no reference that lasts.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hear(self, chat_id: str, text: str, final: bool) -> bool:
        """Take a text that Hermes sends to a chat; False when no run there waits for one."""
        for run in self._running.values():
            if run.chat.chat_id == chat_id:
                run.said.hear(text, final)
                return True
        for orphan in self._orphans.values():
            if orphan.run.chat.chat_id == chat_id:
                orphan.run.said.hear(text, final)
                if final:
                    self._settle(orphan)
                return True
        self.foreign += 1
        return False

    def resumed(self, chat_id: str) -> None:
        """Hermes itself has begun a turn in a chat."""
        for orphan in self._of_chat(chat_id):
            orphan.resumed, orphan.due = True, self._clock() + RESUMED_MAX

    def resumed_over(self, chat_id: str) -> None:
        """That turn is over."""
        for orphan in self._of_chat(chat_id):
            if orphan.resumed:
                # It may have been put off, and begins once more; or all that it has said was a
                # notice, and the answer is still to come.
                rest = _LAST_WORDS if orphan.run.said else self._host.resumes_within
                orphan.resumed, orphan.due = False, self._clock() + rest

    def adopt(self, user: str, answered: Collection[str]) -> None:
        """Look for the runs of dead processes, of which these are answered, and the others not."""
        for left in self._journal.left_behind():
            if left.run_id in answered:
                self._journal.ended(left.run_id)
            elif left.run_id not in self._adopted:
                self._adopted.add(left.run_id)
                run = _run_of(left, self._host, user)
                self._orphans[run.run_id] = _Orphan(run, self._clock() + self._host.resumes_within)
        if self._orphans and not any(task.get_name() == "orphans" for task in self._tasks):
            task = asyncio.get_running_loop().create_task(self._watch_orphans(), name="orphans")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget_others(self, user: str) -> int:
        """Give up the runs of other users: they get no result; how many that were."""
        others = [run for run in self._running.values() if run.user not in ("", user)]
        for run in others:
            del self._running[run.run_id]
        orphans = [o.run for o in self._orphans.values() if o.run.user not in ("", user)]
        for run in orphans:
            del self._orphans[run.run_id]
        self._ended.clear()
        return len(others) + len(orphans)

    def forget_session(self, stored: str) -> None:
        """A session begins anew: what was in it is no longer shown, and what goes on in it ends.

        Hermes may take its time to interrupt a turn; what it says then is for nobody.
        """
        self._ended.forget(stored)
        for run in [run for run in self._running.values() if run.stored == stored]:
            del self._running[run.run_id]
            self._on_end(run)

    def of_session(self, stored: str) -> list[Run]:
        """The runs of a session that are remembered, the oldest first; those going on are last."""
        going = [run for run in self._running.values() if run.stored == stored]
        orphans = [o.run for o in self._orphans.values() if o.run.stored == stored]
        return [*self._ended.of_session(stored), *orphans, *going]

    def working(self) -> set[str]:
        """The stored keys of the sessions in which a run goes on."""
        return {run.stored for run in self._running.values()}

    def __len__(self) -> int:
        return len(self._running)

    async def stop(self, seconds: float) -> None:
        """End all that goes on; the results of what is cut off are for the next welcome."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _turn(self, run: Run) -> None:
        returned = ""
        try:
            run.mark = await self._mark()
            while not (self._host.is_ready() and self._is_next(run)):
                await asyncio.sleep(_LOOK)
            if run.run_id not in self._running:
                return
            run.handed = True
            returned = await self._host.handle(run.chat, run.message, run.run_id)
        except asyncio.CancelledError:
            run.error = _INTERRUPTED
            self._end(run, "")
            raise
        except Exception:
            # Whatever Hermes raises, the device waits for a result.
            _log.exception("the turn of %s failed", run.run_id)
            run.error = _FAILED
        first = self._before(run)
        if first is not None and not returned.strip() and not run.error:
            self._absorb(run, first)
        else:
            self._end(run, returned)

    def _is_next(self, run: Run) -> bool:
        """Whether what came before it in its session has been handed over."""
        waiting = (r for r in self._running.values() if r.stored == run.stored and not r.handed)
        return next(waiting, run) is run or run.run_id not in self._running

    def _before(self, run: Run) -> Run | None:
        """The run that was going on in the session when this one came, and still is."""
        same = (one for one in self._running.values() if one.stored == run.stored)
        first = next(same, run)
        return None if first is run else first

    def _absorb(self, run: Run, first: Run) -> None:
        if self._running.pop(run.run_id, None) is None:
            return
        self.absorbed += 1
        first.absorb(run.message)
        self._journal.ended(run.run_id)

    def _end(self, run: Run, returned: str) -> None:
        if self._running.pop(run.run_id, None) is None:
            # Its user is another one by now, or its session has begun anew.
            return
        answered = not run.error and bool(returned.strip() or run.said.final)
        if not answered and self._host.is_stopping() and self._host.resumes():
            # What it has sent are notices of the stop. Hermes goes on with the turn after its
            # restart, and so shall we: the journal keeps the run.
            return
        self._conclude(run, "" if run.error else run.said.result(returned))

    def _conclude(self, run: Run, text: str) -> None:
        run.text, run.ended = text, self._wall()
        self._ended.add(run)
        self._on_end(run)

    def _of_chat(self, chat_id: str) -> list[_Orphan]:
        return [o for o in self._orphans.values() if o.run.chat.chat_id == chat_id]

    def _settle(self, orphan: _Orphan) -> None:
        if self._orphans.pop(orphan.run.run_id, None) is None:
            return
        text = orphan.run.said.result("")
        if not text:
            orphan.run.error = _INTERRUPTED
        self._conclude(orphan.run, text)

    async def _watch_orphans(self) -> None:
        while self._orphans:
            now = self._clock()
            for orphan in list(self._orphans.values()):
                if now >= orphan.due and self._host.is_ready():
                    self._settle(orphan)
            await asyncio.sleep(_LOOK)


def _run_of(left: runjournal.Run, host: Host, user: str) -> Run:
    chat = parse_stored(left.stored_key, host.build) or Chat("dm", left.key, left.key, None)
    return Run(left.run_id, left.key, left.stored_key, chat, "", user, left.at)
