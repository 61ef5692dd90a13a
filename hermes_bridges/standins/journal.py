"""What a stand-in saw, as ndjson: a line is one ``write``, so that threads and processes may share
a file, and nothing that was noted is lost with the process."""

import json
import os
import time


class Journal:
    """Appends to the file of that path; without a path nothing is kept."""

    def __init__(self, path: str | None) -> None:
        self._fd = -1
        if path is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o600)

    def note(self, what: str, **fields: object) -> None:
        """One line, with ``t``: seconds of the monotonic clock, which a whole host shares."""
        if self._fd >= 0:
            record = {"t": time.monotonic(), "what": what, **fields}
            os.write(self._fd, json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
