"""A semaphore that is first come, first served."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from hermes_bridges.core.bell import Bell


class Slots:
    """``n`` slots for any number of threads, handed over in the order in which they asked.

    The semaphore of the standard library lets a thread that gives back and asks again pass all
    those that wait. Here a slot that is given back while somebody waits is never free: it belongs
    to the one who has waited longest.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError("there must be at least one slot")
        self._n = n
        # Guards _free, _queue and the flags of its waiters.
        self._lock = threading.Lock()
        self._free = n
        # Bounded by the threads: each waits once.
        self._queue: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for a slot."""
        return len(self._queue)

    @property
    def taken(self) -> int:
        """How many slots are in use."""
        return self._n - self._free

    def hold(self, stop: Callable[[], bool]) -> "_Hold":
        """``with slots.hold(stop) as held:`` waits for a slot and holds it for the block.

        ``held`` is False, and no slot is held, if ``stop()`` was true before a slot was there;
        whoever makes ``stop()`` true calls ``wake`` afterwards.
        """
        return _Hold(self, stop)

    def wake(self) -> None:
        """Make all that wait look at their ``stop``; from any thread."""
        with self._lock:
            queue = list(self._queue)
        for waiter in queue:
            waiter.bell.ring()

    def _take(self, stop: Callable[[], bool]) -> bool:
        waiter = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                waiter = _Waiter()
                self._queue.append(waiter)
        # In the queue first, then a look at stop: so no wake is missed.
        stopped = stop()
        while waiter is not None and not waiter.served and not stopped:
            waiter.bell.wait()
            stopped = stop()
        if not stopped:
            return True
        self._leave(waiter)
        return False

    def _leave(self, waiter: "_Waiter | None") -> None:
        with self._lock:
            if waiter is not None and not waiter.served:
                self._queue.remove(waiter)
                return
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            if not self._queue:
                self._free += 1
                return
            waiter = self._queue.popleft()
            waiter.served = True
        waiter.bell.ring()


class _Waiter:
    __slots__ = ("bell", "served")

    def __init__(self) -> None:
        self.bell = Bell()
        self.served = False


class _Hold:
    __slots__ = ("_held", "_slots", "_stop")

    def __init__(self, slots: Slots, stop: Callable[[], bool]) -> None:
        self._slots = slots
        self._stop = stop
        self._held = False

    def __enter__(self) -> bool:
        self._held = self._slots._take(self._stop)
        return self._held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held:
            self._held = False
            self._slots._give_back()
