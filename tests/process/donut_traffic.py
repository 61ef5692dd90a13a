"""People who write into some chats at random, while a test does something to the bridge."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from tests.harness.donut_scene import DonutScene


class Traffic(threading.Thread):
    """Says something about `rate` times a second, until it is closed; use as a context manager.

    The hub holds a hundred events: while `most` were said since one that has no answer yet,
    nothing is said.
    """

    def __init__(
        self,
        scene: DonutScene,
        seed: int,
        rate: float = 25.0,
        chats: int = 8,
        most: int = 60,
    ) -> None:
        super().__init__(name="traffic", daemon=True)
        self.scene, self.rate, self.chats, self.most = scene, rate, chats, most
        self.random = random.Random(seed)
        self.said: list[Any] = []
        self.error: BaseException | None = None
        self._done = 0
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                if self.held() < self.most:
                    self.said.append(self.scene.say(self.random.randint(1, self.chats)))
                due = max(due, time.monotonic() - 1) + self.random.expovariate(self.rate)
        except BaseException as error:
            self.error = error
            raise

    def held(self) -> int:
        """How many were said since the oldest message that has no answer."""
        answered = {post["reply_to"] for post in self.scene.hub.posted()}
        while self._done < len(self.said) and self.said[self._done] in answered:
            self._done += 1
        return len(self.said) - self._done

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
