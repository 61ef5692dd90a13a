"""A file with records of ours: what is done with one that cannot be used."""

import logging
from collections.abc import Callable
from typing import TypeVar

from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused

VERSION = 1
"""The ``"v"`` of the records that this package writes."""

_log = logging.getLogger("hermes_bridges.wishee")

T = TypeVar("T")


class Sealed(BridgeError):
    """The file must be left as it is; what it should hold is kept in memory only."""


class Newer(BridgeError):
    """A record of a version that we do not know."""


class RecordFile:
    """The file at ``path``, of at most ``limit`` bytes; the log calls what it holds ``kept``.

    A damaged file is moved aside. One of a newer version, or that we may not use, is left alone
    for good: it is sealed. All of it belongs to one thread at a time.
    """

    def __init__(self, path: str, limit: int, kept: str) -> None:
        self.path = path
        self._limit = limit
        self._kept = kept
        self._sealed = ""
        self._failing = False

    def read(self) -> bytes | None:
        """The content, None where there is none that could be used. Never raises."""
        try:
            return files.read_capped(self.path, self._limit)
        except FileNotFoundError:
            pass
        except FileRefused as fault:
            if fault.reason == "too_large":
                self.set_aside()
            else:
                self.seal(f"cannot be used: {fault.reason.replace('_', ' ')}")
        except OSError as fault:
            self.seal(f"cannot be read: {fault.strerror}")
        return None

    def set_aside(self) -> None:
        """Move a damaged file out of the way. Never raises."""
        try:
            aside = files.set_aside(self.path)
        except OSError as fault:
            self.seal(f"is damaged and cannot be moved aside: {fault.strerror}")
        else:
            _log.error("%s is damaged; it was moved to %s", self.path, aside)

    def seal(self, why: str) -> None:
        """Leave the file alone from now on."""
        self._sealed = why
        text = "%s %s; it is left alone, and %s are kept in memory only"
        _log.error(text, self.path, why, self._kept)

    def change(self, act: Callable[[], T]) -> T:
        """Let ``act`` write the file. Raises Sealed, or OSError, of which the first is logged."""
        if self._sealed:
            raise Sealed(f"{self.path} {self._sealed}")
        try:
            done = act()
        except OSError as fault:
            if not self._failing:
                _log.warning("%s cannot be written: %s", self.path, fault.strerror)
            self._failing = True
            raise
        if self._failing:
            _log.info("%s is written again", self.path)
        self._failing = False
        return done


def check_version(version: object) -> None:
    """Raise Newer, or ValueError for what is no version."""
    if isinstance(version, int) and version > VERSION:
        raise Newer
    if version != VERSION:
        raise ValueError("no version")
