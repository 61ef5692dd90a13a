"""People who write into some chats at random, while a test does something to the bridge."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from tests.harness.donut_scene import DonutScene


class Traffic(threading.Thread):
    """Says something about `rate` times a second, until it is closed; use as a context manager.

    The hub holds a hundred events: the rate must be such that fewer are open at any time.
    """

    def __init__(self, scene: DonutScene, seed: int, rate: float = 25.0, chats: int = 8) -> None:
        super().__init__(name="traffic", daemon=True)
        self.scene, self.rate, self.chats = scene, rate, chats
        self.random = random.Random(seed)
        self.said: list[Any] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                self.said.append(self.scene.say(self.random.randint(1, self.chats)))
                due = max(due, time.monotonic() - 1) + self.random.expovariate(self.rate)
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join(10)
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
