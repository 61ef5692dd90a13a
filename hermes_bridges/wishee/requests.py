"""The requests of the bridge: several at a time, each answered once and in time (contract, 10)."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from hermes_bridges.errors import BridgeError
from hermes_bridges.wishee import protocol
from hermes_bridges.wishee.courier import Offer, Post
from hermes_bridges.wishee.protocol import BadParams, Request
from hermes_bridges.wishee.turns import Refused

AT_ONCE = 16
WAITING_MAX = 256
BYTES_MAX = 16 * 1024 * 1024
"""Of the requests that are in hand or wait."""
SECONDS = 55.0
"""Within which each one is answered, from its beginning."""
OWN_LANE = "approval.respond"
"""Never waits behind others: a turn may wait for it."""

_log = logging.getLogger("hermes_bridges.wishee")


class Reply(NamedTuple):
    """The payload of the res, and what is to be done when that has been offered."""

    payload: object
    after: Callable[[], None] | None = None


Handler = Callable[[object], Awaitable[Reply]]
"""Gets the params as they came. The bridge gets the text of a BadParams or BridgeError."""


class Requests:
    """``take`` is for the link's thread, all else belongs to the loop."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        offer: Offer,
        post: Post,
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._handlers = handlers
        self._offer = offer
        self._post = post
        self._seconds = seconds
        # Guards the two numbers below.
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0
        # At most WAITING_MAX: see take.
        self._waiting: deque[tuple[Request, int]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0

    def take(self, request: Request, size: int) -> None:
        """Have a request of that many bytes answered; past the bounds it is, with an error."""
        with self._lock:
            free = self._count < AT_ONCE + WAITING_MAX and self._bytes + size <= BYTES_MAX
            if free:
                self._count += 1
                self._bytes += size
        if free:
            self._post(self._queue, request, size)
        else:
            self._offer(protocol.error(request.id, "too many requests at once"))

    async def stop(self, seconds: float) -> None:
        """Give up all that is in hand."""
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _queue(self, request: Request, size: int) -> None:
        if request.method == OWN_LANE:
            self._start(request, size)
        else:
            self._waiting.append((request, size))
            self._next()

    def _next(self) -> None:
        while self._waiting and self._busy < AT_ONCE:
            self._busy += 1
            self._start(*self._waiting.popleft())

    def _start(self, request: Request, size: int) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(request, size))
        # The loop itself keeps no reference that lasts.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, size: int) -> None:
        try:
            await self._answer(request)
        finally:
            with self._lock:
                self._count -= 1
                self._bytes -= size
            if request.method != OWN_LANE:
                self._busy -= 1
                self._next()

    async def _answer(self, request: Request) -> None:
        after: Callable[[], None] | None = None
        handler = self._handlers.get(request.method)
        try:
            if handler is None:
                raise Refused(f"unknown method: {request.method}")
            async with asyncio.timeout(self._seconds):
                payload, after = await handler(request.params)
            frame = protocol.res(request.id, payload)
        except (BadParams, BridgeError) as fault:
            frame = protocol.error(request.id, str(fault))
        except TimeoutError:
            _log.warning("%s was not answered within %.0f s", request.method, self._seconds)
            frame = protocol.error(request.id, "this took too long")
        except Exception as fault:
            # The bridge waits for a res, whatever went wrong here.
            _log.exception("a fault of the request %s", request.method)
            frame = protocol.error(request.id, f"internal fault: {type(fault).__name__}")
        self._offer(frame)
        if after is not None:
            after()
