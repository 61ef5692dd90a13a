"""How other threads end one thread's wait, without a descriptor: a thousand of them cost little."""

import threading


class Bell:
    """Wakes the one thread that waits on it; rings are remembered, not counted.

    ``ring()`` may be called by any thread, but not by a signal handler (see ``core.waker``). Work
    is to be queued before the ring and looked for after the wait: then no ring is lost.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        # Guards nothing: it is taken by the wait, and given back by a ring.
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """End the present or the next wait. Never blocks, never raises."""
        try:
            self._silence.release()
        except RuntimeError:
            # It rings already.
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds (None: for ever); True when it was rung."""
        if timeout is None:
            return self._silence.acquire()
        return self._silence.acquire(timeout=max(0.0, min(timeout, threading.TIMEOUT_MAX)))
