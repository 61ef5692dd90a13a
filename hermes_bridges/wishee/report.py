"""The file in which an operator finds how the connector stands, without asking the gateway."""

import asyncio
from collections.abc import Callable, Mapping

from hermes_bridges.core.status import Status
from hermes_bridges.wishee.disk import Disk

NAME = "status.json"
EVERY = 5.0


class Report:
    """Belongs to the loop. The file (``core/status.py`` has its form) is there while we run.

    ``values`` tells how things stand now; it is written when that has changed, every five seconds
    at most.
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        values: Callable[[], Mapping[str, object]],
        *,
        every: float = EVERY,
    ) -> None:
        self._status = Status(path)
        self._disk = disk
        self._values = values
        self._every = every

    async def run(self) -> None:
        """Write until the task is cancelled."""
        last: Mapping[str, object] = {}
        while True:
            values = dict(self._values())
            if values != last:
                last = values
                for name, value in values.items():
                    self._status.set(name, value)
                self._disk.submit(self._status.write)
            await asyncio.sleep(self._every)

    def remove(self) -> None:
        """Take the file away: this was a clean end."""
        self._disk.submit(self._status.remove)
