"""A pipe to oneself: how other threads and signal handlers end a thread's wait."""

import os
import select

# poll() counts milliseconds in a C int; a longer wait simply ends early.
_LONGEST_WAIT = 86_400.0


class Waker:
    """Wakes the one thread that waits on it; wakes are remembered, not counted.

    ``wake()`` may be called by any thread and by a signal handler; ``wait()`` and ``drain()``
    belong to the waiting thread. Work is to be queued before the wake and looked for after the
    wait: then no wake is lost.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def wake(self) -> None:
        """End the present or the next wait. Takes no lock, never blocks, never raises."""
        try:
            os.write(self._write, b"\0")
        except OSError:
            # Full: a wake is pending already. Bad descriptor: closed, nobody waits any more.
            pass

    def wait(self, timeout: float | None) -> bool:
        """Wait at most ``timeout`` seconds (None: for ever); True when woken.

        A wait of more than a day may end early, and then returns False.
        """
        milliseconds: float | None = None
        if timeout is not None:
            # Rounded up: a wait that ends just before its due time would turn into a spin.
            milliseconds = -(-max(0.0, min(timeout, _LONGEST_WAIT)) * 1000 // 1)
        if not self._poll.poll(milliseconds):
            return False
        return self.drain()

    def drain(self) -> bool:
        """Forget pending wakes; True when there were any."""
        woken = False
        try:
            while os.read(self._read, 4096):
                woken = True
        except BlockingIOError:
            pass
        return woken

    def pending(self) -> bool:
        """Whether a wake is pending; any thread may ask, and nothing is drained."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """The descriptor that is readable while a wake is pending, for a select of one's own."""
        return self._read

    def signal_fd(self) -> int:
        """The descriptor for ``signal.set_wakeup_fd``: non-blocking, each byte a wake."""
        return self._write

    def close(self) -> None:
        """Close both ends, twice is fine; only for when no thread waits any more."""
        read, self._read = self._read, -1
        write, self._write = self._write, -1
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)
