"""Append-only ndjson journals: one `os.write` a line, safe across threads and processes."""

from __future__ import annotations

import json
import os
import time
from typing import Any


class Journal:
    """Notes with `t` (monotonic seconds, one clock for the whole machine) and `at` (wall)."""

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)

    def note(self, what: str, **fields: Any) -> float:
        now = time.monotonic()
        record = {"t": now, "at": time.time(), "what": what, **fields}
        os.write(self._fd, json.dumps(record).encode("ascii") + b"\n")
        return now

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: str) -> list[dict[str, Any]]:
    """All complete lines; an absent journal is empty. A torn line is an error of the harness."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.split(b"\n")[:-1]]
