"""What the other threads have for the desk."""

from collections import deque
from queue import Empty, SimpleQueue

from hermes_bridges.coms.courier import Sent
from hermes_bridges.coms.peer import Asked, Cancelled
from hermes_bridges.coms.replier import Replied
from hermes_bridges.core.waker import Waker

Item = Asked | Cancelled | Sent | Replied

# Items that may wait before prompts are nacked.
INBOX_MAX = 10_000


class Inbox:
    """``put`` and ``full`` are for any thread, the rest is for coms.desk.

    Prompts are refused when it is full; everything else is bounded by the open questions.
    """

    def __init__(self) -> None:
        self.waker = Waker()
        # Limited by INBOX_MAX for prompts, and by the open questions for the rest.
        self._items: SimpleQueue[Item] = SimpleQueue()
        # What the desk has seen and not yet handled; its alone but for the length. Limited alike.
        self._seen: deque[Item] = deque()

    def put(self, item: Item) -> None:
        """Take an item; never blocks."""
        self._items.put(item)
        self.waker.wake()

    def full(self) -> bool:
        """Whether too much waits for a prompt to be taken."""
        return self._items.qsize() + len(self._seen) >= INBOX_MAX

    def look(self) -> list[Item]:
        """The items that are new since the last look; ``take`` still gives them out."""
        fresh: list[Item] = []
        try:
            while True:
                fresh.append(self._items.get_nowait())
        except Empty:
            self._seen.extend(fresh)
            return fresh

    def take(self) -> Item | None:
        """The next item, if any was seen."""
        return self._seen.popleft() if self._seen else None
