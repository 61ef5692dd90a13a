"""What was rotated of a log: ``<log>-<UTC time of the rotation>``, and ``.gz`` once compressed.

Names that carry a time never move on, so that one rename is a whole rotation; and ``<log>.1`` stays
free for a bridge, which puts its full event log there.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_STAMP = r"[0-8][0-9]{7}T[0-9]{6}\.[0-9]{3}Z"
_ROTATED = re.compile(rf".+-{_STAMP}(?:\.gz)?", re.DOTALL)
_TICK = timedelta(milliseconds=1)


class Part(NamedTuple):
    """One rotated log: its stamp, and the names that it has, the plain one first."""

    stamp: str
    names: tuple[str, ...]

    @property
    def plain(self) -> str | None:
        return next((name for name in self.names if not name.endswith(".gz")), None)


def is_rotated(name: str) -> bool:
    """Whether a file name is one of a log that was rotated."""
    return _ROTATED.fullmatch(name) is not None


def parts(log: str, names: Iterable[str]) -> list[Part]:
    """The rotated ones of ``log`` among the names in its directory, the newest first."""
    pattern = re.compile(rf"{re.escape(log)}-({_STAMP})(?:\.gz)?")
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        match = pattern.fullmatch(name)
        if match and _moment(match[1]) is not None:
            found.setdefault(match[1], []).append(name)
    return [Part(stamp, tuple(found[stamp])) for stamp in sorted(found, reverse=True)]


def next_stamp(now: datetime, newest: str | None) -> str:
    """A stamp for now that is later than the newest one, even where the clock was set back."""
    stamp = _stamp(now)
    if newest is None or newest < stamp:
        return stamp
    moment = _moment(newest)
    assert moment is not None
    return _stamp(moment + _TICK)


def age(stamp: str, now: datetime) -> float | None:
    """Seconds since a stamp, or a time as logs tell it; None for no time, or one to come."""
    moment = _moment(stamp)
    if moment is None or moment > now:
        return None
    return (now - moment).total_seconds()


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}Z"


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
