"""``hermes-bridges metrics``: the numbers of the bridges in the text format of Prometheus."""

import argparse
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence

from hermes_bridges.core import files
from hermes_bridges.ctl import bridges, counters, health
from hermes_bridges.ctl.arguments import Arguments, directory
from hermes_bridges.ctl.bridges import COMS, DONUT, Found
from hermes_bridges.ctl.exposition import Exposition
from hermes_bridges.ctl.health import LEVELS, Health
from hermes_bridges.ctl.terminal import safe
from hermes_bridges.ctl.told import Told
from hermes_bridges.errors import BridgeError

_PREFIX = "hermes_bridges"
_MODE = 0o644


def _file(text: str) -> str:
    if not text or "\0" in text or text.endswith("/"):
        raise argparse.ArgumentTypeError("must be the path of a file")
    return os.path.abspath(text)


_ARGUMENTS = Arguments(
    "metrics",
    "Prints the state and the counters of each bridge in the text format of Prometheus\n"
    "(0.0.4). With --output they become a file for the textfile collector of the node\n"
    "exporter: replaced at once, so that nobody reads a part, with mode 0644.",
    "A cron job once a minute is enough:\n"
    "\n"
    "  hermes-bridges metrics --output /var/lib/node_exporter/hermes_bridges.prom\n"
    "\n"
    "Exit code: 0, whatever the state of the bridges; 1 when the file cannot be written;\n"
    "2 for a command line that cannot be understood.",
)
_ARGUMENTS.add_argument(
    "--output", type=_file, metavar="FILE", help="write to FILE (its name should end in .prom)"
)
_ARGUMENTS.add_argument(
    "--state-dir",
    action="append",
    default=[],
    type=directory,
    metavar="DIR",
    help="a further state directory of a Donut bridge; may be repeated",
)
USAGE = _ARGUMENTS.usage_text()

_GAUGES: Mapping[str, Mapping[str, str]] = {
    COMS: {
        "open": "questions that wait for their answer",
        "replying": "responses on their way to their asker",
        "sends_running": "calls of hermes send that run",
        "sends_waiting": "messages that wait to be sent",
    },
    DONUT: {
        "queued": "messages that wait in the queues of their chats",
        "in_flight": "calls of Hermes that are under way",
        "workers": "chats that have a worker",
        "outbox": "parts of answers that wait to be posted",
    },
}
_BREAKER_STATES = ("closed", "half_open", "open")


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print or write the exposition; OSError or BridgeError when it cannot be written."""
    given = _ARGUMENTS.read(words)
    landscape = bridges.find(environ, given.state_dir)
    for note in landscape.notes:
        print(f"hermes-bridges metrics: {safe(note)}", file=sys.stderr)
    text = exposition([(one, health.judge(one)) for one in landscape.bridges])
    if given.output is None:
        sys.stdout.write(text)
    else:
        _refuse_special(given.output)
        files.write_atomic(given.output, text.encode(), mode=_MODE, durable=False)
    return 0


def _refuse_special(path: str) -> None:
    """BridgeError for a device, a FIFO and the like, also behind a link: root could replace it."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise BridgeError(f"{path} is no regular file, and is left alone")


def exposition(judged: Sequence[tuple[Found, Health]]) -> str:
    """All families, each with the samples of all bridges."""
    page = Exposition()
    page.add(f"{_PREFIX}_bridges", "gauge", "bridges that were found", {}, len(judged))
    for one, state in judged:
        labels = {"bridge": one.bridge, "instance": one.instance}
        _common(page, one, state, labels)
        if one.told is not None:
            _numbers(page, one, one.told, {"instance": one.instance})
    return page.text()


def _common(page: Exposition, one: Found, state: Health, labels: Mapping[str, str]) -> None:
    # Whether a bridge is `up` is not for what it has told of itself: a killed one has said so too.
    up = state.level < health.DOWN
    page.add(f"{_PREFIX}_up", "gauge", "whether the bridge works, perhaps not fully", labels, up)
    for name in LEVELS:
        page.add(
            f"{_PREFIX}_state",
            "gauge",
            "1 for the state in which the bridge is",
            {**labels, "state": name},
            name == state.state,
        )
    if one.age is not None:
        page.add(
            f"{_PREFIX}_status_age_seconds",
            "gauge",
            "seconds since the bridge last told of itself",
            labels,
            round(one.age, 3),
        )
    if one.told is not None:
        info = {**labels, "version": one.told.version}
        page.add(f"{_PREFIX}_info", "gauge", "1 for the version of the bridge", info, 1)
    if one.unit is not None:
        page.add(
            f"{_PREFIX}_restarts_total",
            "counter",
            "times that systemd has started the bridge again",
            labels,
            one.unit.restarts,
        )


def _numbers(page: Exposition, one: Found, told: Told, labels: Mapping[str, str]) -> None:
    begin = f"{_PREFIX}_{one.bridge}"
    for name, value in _times(told):
        page.add(f"{begin}_{name}_time_seconds", "gauge", _TIMES[name], labels, value)
    for name, help_text in _GAUGES[one.bridge].items():
        number = told.number(name)
        if number is not None:
            page.add(f"{begin}_{name}", "gauge", help_text, labels, number)
    if one.bridge == DONUT:
        _donut(page, begin, told, labels)
    kinds = counters.COUNTERS[one.bridge]
    for counter in counters.of(one.bridge, told):
        kind = kinds.get(counter.family)
        label = (kind.label if kind else "") or "reason"
        # A family has parts or none; what a later release counts otherwise does no harm.
        part = {label: counter.part} if counter.part or (kind and kind.label) else {}
        page.add(
            f"{begin}_{counter.family}_total",
            "counter",
            kind.help if kind else f"counter {counter.family} of the {one.bridge} bridge",
            {**labels, **part},
            counter.value,
        )


_TIMES = {
    "start": "when the bridge was started, in seconds since 1970",
    "connection": "when its connection to the hub got into its state, in seconds since 1970",
    "breaker": "when its breaker got into its state, in seconds since 1970",
    "last_error": "when it last told of an error, in seconds since 1970",
}


def _times(told: Told) -> Iterator[tuple[str, float]]:
    stamps = {
        "start": told.values.get("started_at"),
        "connection": told.values.get("connection_since"),
        "breaker": told.mapping("breaker").get("since"),
        "last_error": told.mapping("last_error").get("at"),
    }
    for name, stamp in stamps.items():
        moment = health.seconds_of(stamp)
        if moment is not None:
            yield name, moment


def _donut(page: Exposition, begin: str, told: Told, labels: Mapping[str, str]) -> None:
    connected = told.text("connection") == "connected"
    page.add(f"{begin}_connected", "gauge", "whether the hub is connected", labels, connected)
    breaker = told.mapping("breaker").get("state")
    for name in _BREAKER_STATES:
        page.add(
            f"{begin}_breaker_state",
            "gauge",
            "1 for the state in which the breaker is",
            {**labels, "state": name},
            name == breaker,
        )
