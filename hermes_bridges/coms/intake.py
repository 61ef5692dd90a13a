"""Acked prompts on their way into records, so that a burst is safe before the disk keeps up.

To make a file for each of several hundred prompts can take a second; to append them to one takes a
millisecond. ``pending/.intake-<session>.ndjson`` holds those whose record is still to be made. It
is emptied when all have one; the next daemon of this name reads what a killed one left in it.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_bridges.coms.envelope import Prompt, is_ulid
from hermes_bridges.coms.records import VERSION, Records
from hermes_bridges.core import files
from hermes_bridges.errors import FileRefused

# 5,000 prompts of the longest kind, and some.
INTAKE_MAX = 1024 * 1024 * 1024


_FIELDS = frozenset(Prompt._fields)


class Noted(NamedTuple):
    """A prompt that was acked at ``at``, seconds since 1970."""

    prompt: Prompt
    at: float


class Intake:
    """Owned by the coms.desk thread (by the main thread until that runs)."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._path = _path(records, records.owner.session)
        self._fd = -1
        self._filled = False

    def note(self, prompts: Sequence[Prompt], wall: float) -> None:
        """Write prompts down, before anything else is done for them.

        What cannot be written now is lost if the daemon is killed before its record is made.
        """
        owner = self._records.owner
        lines = [
            json.dumps(
                {
                    "v": VERSION,
                    "project": owner.project,
                    "name": owner.name,
                    "at": wall,
                    "prompt": prompt._asdict(),
                },
                ensure_ascii=False,
                separators=(",", ":"),
            )
            for prompt in prompts
        ]
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
            self._filled = True
            os.write(self._fd, data)
        except OSError:
            self._records.count("intake_failed")

    def clear(self) -> None:
        """All that was noted has its record."""
        if self._filled:
            self._filled = False
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Remove the file, unless something in it has no record yet."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if not self._filled:
                with contextlib.suppress(OSError):
                    files.remove(self._path)

    @contextlib.contextmanager
    def left_behind(self) -> Iterator[list[Noted]]:
        """What dead daemons of this name had noted; on leaving, their files are removed."""
        with self._records.adopting():
            found = [path for path in self._dead_files() if self._read(path) is not None]
            yield [noted for path in found for noted in self._read(path) or ()]
            for path in found:
                with contextlib.suppress(OSError):
                    files.remove(path)

    def _dead_files(self) -> Iterator[str]:
        for file_name in os.listdir(self._records.directory):
            session = file_name.removeprefix(".intake-").removesuffix(".ndjson")
            if file_name != f".intake-{session}.ndjson" or not is_ulid(session):
                continue
            if session != self._records.owner.session and not self._records.is_alive(session):
                yield _path(self._records, session)

    def _read(self, path: str) -> list[Noted] | None:
        """What a file holds; None when it is not for a daemon of this name to read."""
        try:
            lines = files.read_capped(path, INTAKE_MAX).split(b"\n")
        except (OSError, FileRefused):
            return None
        noted = []
        for fields in filter(None, map(_fields, lines)):
            if (fields.get("project"), fields.get("name")) != self._records.owner[:2]:
                return None
            prompt, at = fields.get("prompt"), fields.get("at")
            # A line that is not what this release writes is passed over.
            if isinstance(prompt, dict) and prompt.keys() == _FIELDS and isinstance(at, float):
                noted.append(Noted(Prompt(**prompt), at))
        return noted


def _path(records: Records, session: str) -> str:
    return os.path.join(records.directory, f".intake-{session}.ndjson")


def _fields(line: bytes) -> dict[str, object] | None:
    """A line of this release; None for one that was cut off, or that a later release wrote."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and fields.get("v") == VERSION else None
