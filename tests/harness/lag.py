"""How long a process of this machine waits for a processor.

A limit such as "within 100 ms" holds for a daemon that gets to run. What the harness's own thread
had to wait beyond its due is added to such limits, so that a busy machine is not taken for a fault.
"""

from __future__ import annotations

import threading
import time

STEP = 0.005  # s between two looks


class Lag(threading.Thread):
    """Use as a context manager; `worst` is the longest delay in seconds seen so far."""

    def __init__(self) -> None:
        super().__init__(name="lag", daemon=True)
        self.worst = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        due = time.monotonic() + STEP
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            self.worst = max(self.worst, now - due)
            due = now + STEP

    def close(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join(10)

    def __enter__(self) -> Lag:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
