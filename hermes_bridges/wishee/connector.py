"""The connector put together: what the gateway's loop holds, the link, the disk and the reads."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from hermes_bridges.errors import BridgeError
from hermes_bridges.wishee import protocol, report
from hermes_bridges.wishee.binding import Binding, Identity
from hermes_bridges.wishee.courier import Courier
from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.link import Event, Link, Lost, Received, TooLarge, Welcomed
from hermes_bridges.wishee.outbox import Outbox
from hermes_bridges.wishee.reads import Reads
from hermes_bridges.wishee.report import Report
from hermes_bridges.wishee.requests import OWN_LANE, Reply, Requests
from hermes_bridges.wishee.runjournal import RunJournal
from hermes_bridges.wishee.runs import Run
from hermes_bridges.wishee.sessionkeys import is_ours, stored_key
from hermes_bridges.wishee.settings import Settings
from hermes_bridges.wishee.turns import Host, Refused, Turns

RES_WAITS = 0.004
"""Seconds that the res of a chat.send waits for the disk; a slow one is not waited for."""

_READERS = 4
_STOP = 2.0

_log = logging.getLogger("hermes_bridges.wishee")

T = TypeVar("T")


class HermesHost(Host, Protocol):
    """What the connector needs of Hermes, on its loop."""

    version: str

    async def reset(self, stored: str, run: Run | None, read: Callable[..., Any]) -> bool:
        """Begin a session anew; False when there is none. ``run`` goes on in it.

        ``read`` has blocking work done on a thread.
        """
        ...


class Connector:
    """One connection of one gateway. ``connect`` and ``disconnect`` come once, on the loop."""

    def __init__(
        self,
        settings: Settings,
        host: HermesHost,
        reads: Reads,
        *,
        link: Callable[..., Link] = Link,
        wall: Callable[[], float] = time.time,
        report_every: float = report.EVERY,
    ) -> None:
        self._report_every = report_every
        self._settings = settings
        self._host = host
        self._reads = reads
        self._make_link = link
        self._wall = wall
        self._user = ""
        self._identity: Identity | None = None
        self._last_welcome: float | None = None
        self._last_error = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Start; the bridge need not be there. Raises OSError or BridgeError."""
        self._loop = asyncio.get_running_loop()
        # Never the loop's own pool, which the turns of Hermes share.
        self._pool = ThreadPoolExecutor(_READERS, "wishee.read")
        self._disk = Disk()
        directory = self._settings.directory
        self._binding = Binding(directory, self._settings.legacy_home)
        self._outbox = Outbox(f"{directory}/outbox.jsonl", self._disk, wall=self._wall)
        self._journal = RunJournal(f"{directory}/runs.json", self._disk)
        try:
            # Another thread than the loop's, and the first to touch the directory.
            self._identity = await self._on_disk(self._load)
        except BaseException:
            await self._end()
            raise
        self._user = self._journal.user
        url = self._settings.bridge_url or self._identity.bridge_url
        # Without what an address may hold of secrets.
        self._place = urlsplit(url).netloc.rpartition("@")[2]
        self._link = self._make_link(url, self._hello, self._on_event)
        self._courier = Courier(
            self._outbox, self._disk, self._link.offer, self._post, self._journal.ended
        )
        self.turns = Turns(self._host, self._journal, self._ended, self._mark, wall=self._wall)
        self._requests = Requests(
            {
                "chat.send": self._chat_send,
                "chat.history": self._chat_history,
                "chat.turns": self._chat_turns,
                "sessions.list": self._sessions_list,
                "sessions.reset": self._sessions_reset,
                OWN_LANE: self._approval_respond,
            },
            self._link.offer,
            self._post,
        )
        path = f"{directory}/{report.NAME}"
        self._report = Report(path, self._disk, self._standing, every=self._report_every)
        self._spawn(self._report.run())
        self._link.start()

    async def disconnect(self) -> None:
        """Stop; what is not confirmed stays on the disk. Takes some seconds at most."""
        await self._requests.stop(_STOP / 4)
        await self.turns.stop(_STOP)
        for task in list(self._tasks):
            task.cancel()
        await self._courier.saved(_STOP)
        await self._read(self._link.stop, _STOP)
        self._report.remove()
        await self._end()

    async def _end(self) -> None:
        await self._read(self._disk.stop, _STOP)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> Identity:
        identity = self._binding.load_or_create()
        self._outbox.load()
        self._journal.load()
        return identity

    def _hello(self) -> bytes:
        identity = self._identity
        assert identity is not None
        return protocol.hello(identity.agent_id, identity.secret, self._host.version)

    def _on_event(self, event: Event) -> None:
        """Runs on the link's thread."""
        if isinstance(event, Welcomed):
            self._post(self._welcomed, event.user_id)
        elif isinstance(event, Lost):
            self._post(self._lost, event)
        elif isinstance(event, Received):
            frame = protocol.parse(event.raw)
            if isinstance(frame, protocol.Request):
                self._requests.take(frame, len(event.raw))
        elif isinstance(event, TooLarge):
            id = protocol.id_of_head(event.head)
            _log.warning("the bridge sent a frame of %d bytes, which was dropped", event.size)
            if id is not None:
                text = "params: too large; a message may have 256 KiB"
                self._link.offer(protocol.error(id, text))

    def _lost(self, event: Lost) -> None:
        self._last_error = event.reason
        if event.unbound:
            self._bound(False)

    def _welcomed(self, user: str) -> None:
        self._last_welcome = self._wall()
        if self._user and user != self._user:
            # None of them may get what was said to the other.
            runs = self.turns.forget_others(user)
            results = self._outbox.keep_only(user)
            _log.warning(
                "the bridge has bound this agent to another user: %d runs and %d unsent results of"
                " the former one are dropped",
                runs,
                results,
            )
        self._user = user
        self._journal.belong_to(user)
        self._bound(True)
        self._courier.pump()
        self.turns.adopt(user, {entry.key for entry in self._outbox.pending()})
        self._spawn(self._tell_usage())

    def _standing(self) -> dict[str, object]:
        """For the operator: names and numbers, no secret and nothing that was said."""
        identity = self._identity
        assert identity is not None
        return {
            "hermes": self._host.version,
            "bridge": self._place,
            "agent_id": identity.agent_id,
            "user": self._user,
            "welcomed": self._link.welcomed,
            "last_welcome": self._last_welcome,
            "last_error": self._last_error,
            "runs": len(self.turns),
            "unsent": len(self._outbox),
            "absorbed": self.turns.absorbed,
            "foreign": self.turns.foreign,
            "dropped_results": dict(self._outbox.dropped),
            "dropped_runs": self._journal.dropped,
            "refused_frames": list(self._link.refused),
        }

    def _bound(self, bound: bool) -> None:
        self._disk.submit(partial(self._binding.set_bound, bound))

    def _ended(self, run: Run) -> None:
        """A run has its result."""
        payload = {"runId": run.run_id, "sessionKey": run.key, "text": run.text}
        # The journal forgets the run when the outbox has its result: one of them always knows.
        self._courier.send(run.run_id, "task-result", payload, run.user)
        self._spawn(self._tell_after(run))

    async def _tell_after(self, run: Run) -> None:
        run.session_id = await self._read(self._reads.session_id, run.stored, run.key)
        await self._courier.saved(_STOP)
        await self._tell_usage()
        found = await self._read(self._reads.context, run.stored)
        if found is not None:
            self._signal("agent-context", {"sessionKey": run.key, **found})

    async def _tell_usage(self) -> None:
        self._signal("agent-usage", await self._read(self._reads.usage))

    def _signal(self, name: str, payload: dict[str, Any]) -> None:
        stamped = {**payload, "ts": int(self._wall() * 1000)}
        self._link.offer(protocol.event(name, stamped), signal=True)

    async def _chat_send(self, params: object) -> Reply:
        asked = protocol.chat_send(params)
        run, saved = self.turns.admit(asked.session_key, asked.message, self._user)
        # Shielded, as it is the disk's, not ours.
        with contextlib.suppress(OSError, BridgeError, TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(saved)), RES_WAITS)
        return Reply({"runId": run.run_id}, partial(self.turns.begin, run))

    async def _chat_history(self, params: object) -> Reply:
        key, limit = protocol.history(params)
        self._check_scope(key)
        messages = await self._read(self._reads.history, self._keys(key), limit)
        return Reply({"messages": messages})

    async def _chat_turns(self, params: object) -> Reply:
        key, limit = protocol.history(params)
        self._check_scope(key)
        runs = self.turns.of_session(stored_key(key, self._host.build))
        recalls = [run.recall() for run in runs]
        found = await self._read(self._reads.turns, self._keys(key), limit, recalls)
        return Reply({"turns": found})

    async def _sessions_list(self, params: object) -> Reply:
        only_ours = self._settings.read_scope == "wishee"
        found = await self._read(self._reads.sessions, self.turns.working(), only_ours)
        return Reply({"sessions": found})

    async def _sessions_reset(self, params: object) -> Reply:
        key = protocol.reset(params)
        stored = stored_key(key, self._host.build)
        if not is_ours(stored):
            raise Refused("key: the session of another platform can only be read")
        going = [run for run in self.turns.of_session(stored) if run.ended is None]
        self.turns.forget_session(stored)
        known = await self._host.reset(stored, going[-1] if going else None, self._read)
        return Reply({"ok": True} if known else {"ok": False, "error": "there is no such session"})

    async def _approval_respond(self, params: object) -> Reply:
        raise Refused("this connector shows no cards yet")

    def _keys(self, key: str) -> list[str]:
        """As it was given, then as Hermes stores it."""
        return list(dict.fromkeys((key, stored_key(key, self._host.build))))

    def _check_scope(self, key: str) -> None:
        if self._settings.read_scope == "wishee" and not is_ours(stored_key(key, self._host.build)):
            raise Refused("sessionKey: only Wishee sessions may be read (WISHEE_READ_SCOPE)")

    async def _mark(self) -> int:
        try:
            return await self._read(self._reads.max_message_id)
        except Exception:
            # The turn is worth more than how it is shown.
            _log.exception("the rows of a turn cannot be told from those before it")
            return 0

    async def _read(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._pool, partial(work, *arguments))

    async def _on_disk(self, job: Callable[[], T]) -> T:
        done: Future[T] = self._disk.submit(job)
        return await asyncio.wrap_future(done)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        # The loop itself keeps no reference that lasts.
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (fault := task.exception()) is None:
            return
        if isinstance(fault, BridgeError):
            _log.warning("usage and context are not told: %s", fault)
        else:
            _log.error("a fault of the connector", exc_info=fault)

    def _post(self, act: Callable[..., object], *arguments: object) -> None:
        # A loop that is over needs nothing any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)
