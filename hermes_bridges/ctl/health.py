"""How a bridge is, judged by what was found of it.

The states and their levels: ``healthy`` (0); ``degraded``, ``starting``, ``stopping`` (1);
``hung``, ``paused``, ``down`` (2).
"""

import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from hermes_bridges.ctl import processes
from hermes_bridges.ctl.bridges import COMS, DONUT, Found
from hermes_bridges.ctl.processes import Life
from hermes_bridges.ctl.systemd import Unit
from hermes_bridges.ctl.terminal import brief_age
from hermes_bridges.ctl.told import Told

HEALTHY, DEGRADED, DOWN = 0, 1, 2
LEVELS: Mapping[str, int] = {
    "healthy": HEALTHY,
    "degraded": DEGRADED,
    "starting": DEGRADED,
    "stopping": DEGRADED,
    "hung": DOWN,
    "paused": DOWN,
    "down": DOWN,
}
LATE = 15.0
"""Seconds without a status file, which is written every 5, until a bridge counts as hung."""
START_MOST = 60.0
"""Seconds that a start may take."""
STOP_MOST = 180.0
"""Seconds that a stop may take: what is under way may end."""
RECENT = 300.0
"""Seconds for which an error makes a bridge degraded."""


class Fault(NamedTuple):
    """What is wrong, and what to do about it."""

    text: str
    remedy: str


class Health(NamedTuple):
    state: str
    faults: tuple[Fault, ...] = ()

    @property
    def level(self) -> int:
        return LEVELS[self.state]


def judge(one: Found) -> Health:
    """The state of a bridge, with a fault for everything that keeps it from being healthy."""
    if one.told is None:
        return _without_status(one)
    if one.life is Life.GONE:
        return _of_a_new_process(one, "its last status file is of an earlier one")
    if one.told.start is None and one.holder.held is False:
        # What has that number now holds no lock: it is another program.
        return _down(one)
    if one.life is Life.PAUSED:
        fault = Fault(
            f"its process {one.pid} is stopped by a signal or a debugger",
            f"let it go on: kill -CONT {one.pid}",
        )
        return Health("paused", (fault,))
    return _by_status(one, one.told)


# Without a status file to go by


def _without_status(one: Found) -> Health:
    if not one.trouble:
        return _of_a_new_process(one, "it has written no status file")
    fault = Fault(
        f"its status file cannot be used: {one.trouble}",
        f"look at {one.status_path}; a bridge that runs writes it anew every 5 s, unless it may"
        " not: it must belong to the user of the bridge",
    )
    if _is_there(one):
        return Health("degraded", (fault,))
    down = _down(one)
    return down._replace(faults=(fault, *down.faults))


def _is_there(one: Found) -> bool:
    if one.holder.held is None:
        return one.life is not Life.GONE
    return one.holder.held


def _of_a_new_process(one: Found, why: str) -> Health:
    """One that has told nothing of itself yet: it starts, or hangs at it, or is not there."""
    unit = one.unit
    pid = one.holder.pid or (unit.pid if unit else 0)
    if not one.holder.held and not pid:
        return _down(one)
    up = processes.uptime(pid) if pid else None
    if up is not None and up > START_MOST:
        if one.holder.held is None and one.state_dir is None:
            fault = Fault(
                f"process {pid} runs, but its state cannot be looked at",
                "ask as the user of the bridge, or as root",
            )
            return Health("degraded", (fault,))
        return _hung(one, f"process {pid} runs for {brief_age(up)}, and {why}", pid)
    fault = Fault(f"it is starting; {why}", "look again in a moment")
    return Health("starting", (fault,))


def _down(one: Found) -> Health:
    unit, told = one.unit, one.told
    if unit is not None and unit.active in ("failed", "activating"):
        return Health("down", (_failed(unit),))
    if told is not None and told.text("state") == "stopped":
        code = told.number("exit_code")
        text = f"it was stopped at {told.at}, exit code {code}"
    elif told is not None and told.text("state") == "stopping":
        text = f"its process {told.pid} is gone; at {told.at} it was about to stop"
    elif told is not None:
        text = f"its process {told.pid} is gone without having said so (killed?), after {told.at}"
    else:
        text = "it does not run"
    return Health("down", (Fault(text, _start(one)),))


def _failed(unit: Unit) -> Fault:
    journal = f"journalctl {' '.join((*unit.flags, '-u', unit.name))} -n 50"
    text = f"systemd says: {unit.result}, exit status {unit.exit_status}"
    if unit.active == "activating":
        text += f"; it will be started again (so far {unit.restarts} times)"
    if unit.exit_status == 78:
        return Fault(text, f"its settings cannot be used; each fault is told by {journal}")
    return Fault(text, f"why it ended is told by {journal}")


def _start(one: Found) -> str:
    if one.unit is not None:
        start = f"systemctl {' '.join((*one.unit.flags, 'start', one.unit.name))}"
    else:
        start = f"bridge-{one.bridge}, as it was started before"
    if one.bridge == COMS and one.status_path and one.told is not None:
        return f"start it: {start}; or, if it is wanted no more, remove {one.status_path}"
    if one.bridge == DONUT and one.state_dir is not None:
        # Not the directory: below the usual one there are those of units.
        ours = f"status.json and donut.* in {one.state_dir}"
        return f"start it: {start}; or, if it is wanted no more, remove {ours}"
    return f"start it: {start}"


def _hung(one: Found, text: str, pid: int) -> Health:
    if one.unit is not None:
        remedy = f"systemctl {' '.join((*one.unit.flags, 'restart', one.unit.name))}"
    else:
        remedy = f"kill -KILL {pid}, and start it again; no question and no message is lost by it"
    return Health("hung", (Fault(text, remedy),))


# By what it tells of itself


def _by_status(one: Found, told: Told) -> Health:
    age, pid = one.age or 0.0, one.pid or 0
    silent = f"it has told nothing for {brief_age(age)}"
    if told.text("state") in ("stopping", "stopped"):
        if age > STOP_MOST:
            return _hung(one, f"{silent}, and does not end", pid)
        fault = Fault("it is stopping", "look again in a moment")
        return Health("stopping", (fault,))
    if age > LATE:
        if _is_full(one.status_path):
            fault = Fault(
                f"{silent}: there is no space left for its status file",
                f"make room on the file system of {one.status_path}",
            )
            return Health("degraded", (fault,))
        return _hung(one, f"{silent}, though its process {pid} runs", pid)
    faults = tuple(_faults(one, told))
    return Health("degraded" if faults else "healthy", faults)


def _is_full(path: str | None) -> bool:
    try:
        found = os.statvfs(os.path.dirname(path or ""))
    except OSError:
        return False
    return found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0)


def _faults(one: Found, told: Told) -> Iterator[Fault]:
    stuck = told.number("stuck_seconds")
    if stuck:
        yield Fault(
            f"a thread makes no progress for {brief_age(stuck)}",
            "the log names it; if it stays so, restart the bridge",
        )
    if one.holder.held is False:
        yield Fault(
            "it runs, but its lock file is gone or free: somebody removed or replaced its state",
            "restart the bridge",
        )
    if one.bridge == DONUT:
        yield from _donut(told)
    else:
        yield from _coms(told)
    error = told.mapping("last_error")
    ago = seconds_since(error.get("at"))
    if ago is not None and ago < RECENT:
        yield Fault(
            f"an error {brief_age(ago)} ago: {error.get('text')}",
            f"if no more of them come, this passes after {brief_age(RECENT)}",
        )


def _donut(told: Told) -> Iterator[Fault]:
    connection = told.text("connection")
    if connection != "connected":
        reason = told.text("connection_fault")
        since = told.text("connection_since")
        yield Fault(
            f"the hub: {connection or 'not connected'}"
            + (f" since {since}" if since else "")
            + (f" ({reason})" if reason else ""),
            "it tries again by itself; hermes-bridges check donut tells what is in the way",
        )
    breaker = told.mapping("breaker").get("state")
    if breaker != "closed":
        yield Fault(
            f"the breaker is {str(breaker).replace('_', '-')}: calls of Hermes fail",
            "see that Hermes runs, and HERMES_BASE_URL and HERMES_API_KEY; hermes-bridges check"
            " donut",
        )


def _coms(told: Told) -> Iterator[Fault]:
    hermes = told.values.get("hermes")
    if hermes:
        yield Fault(f"nothing can be sent: {hermes}", "install a Hermes that can, and restart")
    strangers = told.values.get("foreign_bridges")
    if strangers:
        names = ", ".join(map(str, strangers)) if isinstance(strangers, list) else strangers
        yield Fault(
            f"a bridge of another implementation deletes answers: {names}",
            "stop that one, and restart this one",
        )


def seconds_since(stamp: Any) -> float | None:
    """How long ago that was, by the wall clock; None for what is no time of day."""
    moment = seconds_of(stamp)
    return None if moment is None else time.time() - moment


def seconds_of(stamp: Any) -> float | None:
    """An ISO time in seconds since 1970; None for what is none."""
    if not isinstance(stamp, str) or len(stamp) > 40:
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return None
