"""Takes what is in the outbox to the link, in order, until the bridge has confirmed it."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from hermes_bridges.wishee import protocol
from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.outbox import Outbox


class Offer(Protocol):
    """``Link.offer``."""

    def __call__(
        self,
        frame: bytes,
        *,
        signal: bool = False,
        written: Callable[[bool], None] | None = None,
        confirmed: Callable[[bool], None] | None = None,
    ) -> bool: ...


Post = Callable[..., object]
"""Has a function called on the loop, from any thread; drops it when the loop is over."""


class Courier:
    """Belongs to the loop. An event goes out when it is on the disk, or cannot be put there.

    ``kept`` hears of the key then, before the event goes out.
    """

    def __init__(
        self,
        outbox: Outbox,
        disk: Disk,
        offer: Offer,
        post: Post,
        kept: Callable[[str], object],
    ) -> None:
        self._outbox = outbox
        self._disk = disk
        self._offer = offer
        self._post = post
        self._kept = kept
        self._unsaved: dict[str, int] = {}
        self._on_the_way: set[str] = set()
        self._is_saved = asyncio.Event()
        self._is_saved.set()

    def send(self, key: str, name: str, payload: Mapping[str, Any], user: str) -> None:
        """Keep an event and send it, again after each welcome until it is confirmed."""
        saved = self._outbox.add(key, name, payload, user)
        self._unsaved[key] = self._unsaved.get(key, 0) + 1
        self._is_saved.clear()
        saved.add_done_callback(lambda _: self._post(self._saved, key))

    def pump(self) -> None:
        """Offer what can go out now."""
        for entry in self._outbox.pending():
            if entry.key in self._on_the_way:
                continue
            if entry.key in self._unsaved:
                # What comes behind it would overtake it.
                return
            frame = protocol.event(entry.name, entry.payload)
            if not self._offer(frame, confirmed=partial(self._told, entry.key)):
                return
            self._on_the_way.add(entry.key)

    async def saved(self, seconds: float) -> None:
        """Wait until all that was given is on the disk and on its way, or that time is over."""
        try:
            await asyncio.wait_for(self._is_saved.wait(), seconds)
        except TimeoutError:
            return

    def _saved(self, key: str) -> None:
        self._unsaved[key] -= 1
        if not self._unsaved[key]:
            del self._unsaved[key]
        self._kept(key)
        self.pump()
        if not self._unsaved:
            self._is_saved.set()

    def _told(self, key: str, good: bool) -> None:
        # On the link's thread: the loop may be over by now, and the bridge has it all the same.
        if good:
            # Behind what ``kept`` has had written: the outbox is the last to forget.
            self._disk.submit(partial(self._outbox.remove, key)).add_done_callback(
                lambda done: None if done.exception() is None else self._outbox.remove(key)
            )
        self._post(self._arrived, key, good)

    def _arrived(self, key: str, good: bool) -> None:
        if good:
            # Behind the removal: what may still be in the outbox must not go out again.
            self._disk.submit(partial(self._post, self._on_the_way.discard, key))
            # There may have been no room for all.
            self.pump()
        else:
            self._on_the_way.discard(key)
