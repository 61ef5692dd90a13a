"""What a status file tells, with everything left out that no bridge would write (pure)."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

Number = int | float
COUNTERS_MOST = 500
"""Counters of one file; a bridge has some dozens."""
_NAME_MOST = 100
_DEPTH_MOST = 4
_NUMBER_MOST = 2**63


class Told(NamedTuple):
    """``counters`` are finite numbers from 0 on; of ``values`` nothing is known but the names."""

    at: str
    pid: int
    version: str
    counters: Mapping[str, Number]
    values: Mapping[str, Any]

    @property
    def start(self) -> int | None:
        """When its process was started, in clock ticks since boot; None: it is not told."""
        value = self.values.get("process_start")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> Number | None:
        return as_number(self.values.get(name))

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name)
        return value if isinstance(value, dict) else {}


def as_number(value: object) -> Number | None:
    """A number that can be counted with; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Not so for infinity and for what is no number.
    return value if abs(value) < _NUMBER_MOST else None


def numbers(values: Mapping[str, Any]) -> dict[str, Number]:
    """The counters among these values; those of a name that is no name are left out."""
    found: dict[str, Number] = {}
    for name in list(values)[:COUNTERS_MOST]:
        number = as_number(values[name])
        if number is not None and number >= 0 and 0 < len(name) <= _NAME_MOST:
            found[name] = number
    return found


def read(raw: bytes) -> Told | None:
    """The content of a status file; None when it is none."""
    try:
        # What is no number in JSON is none here either.
        whole = json.loads(raw, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict):
        return None
    pid, values = whole.get("pid"), whole.get("values")
    counters = whole.get("counters")
    if isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid < 2**31:
        return None
    if not isinstance(values, dict) or not isinstance(counters, dict):
        return None
    at, version = whole.get("at"), whole.get("version")
    return Told(
        at if isinstance(at, str) else "",
        pid,
        version if isinstance(version, str) else "",
        numbers(counters),
        {name: _shallow(value, _DEPTH_MOST) for name, value in values.items()},
    )


def _shallow(value: Any, depth: int) -> Any:
    """The value without what is nested deeper than that: whoever writes it out again may."""
    if isinstance(value, list | dict) and depth == 0:
        return None
    if isinstance(value, list):
        return [_shallow(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return {name: _shallow(one, depth - 1) for name, one in value.items()}
    return value
