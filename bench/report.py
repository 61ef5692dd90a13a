"""How the benches tell what they measured, and on what."""

import os
import platform
import statistics
import time
from collections.abc import Sequence


def machine() -> dict[str, object]:
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, with the lowest and the highest."""
    if not values:
        return "failed"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])
