"""Measures the Donut bridge, alone or side by side with any other that takes the same settings.

    python bench/donut.py [--vs "COMMAND"] [--rounds N] [--seconds S] [--only GROUP,...]
                          [--chats N,...] [--delays MS,...] [--ours "COMMAND"] [--json FILE]

The limit that it is held against is a raw loop which makes the same HTTP calls on kept-alive
connections and does nothing else: once with ``requests`` (as the bridge does), once with the
``http.client`` of the standard library alone. Each run has a hub, a Hermes and a candidate of its
own, a process each. In each round every measure is taken of every candidate, in turns; ``--rounds``
begins with another one each time. The tables tell the median of the rounds with the lowest and the
highest. Processor time is that of the candidate alone. Exit 1 when a measure of ours failed.

Without a typing URL, as is the default, but in the group ``typing``.
"""

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from donut_rig import CHECKOUT, KEPT, Rig
from report import machine, spread, table
from rig import Fault, pause

OURS = f"{shlex.quote(sys.executable)} -m hermes_bridges.donut"
RAW = {"requests": ["raw:requests"], "http.client": ["raw:http.client"]}
SLOW = 50  # milliseconds of the Hermes that the targets are about
SPOKEN = 100  # messages a second at most where latency is measured
ACTIVE, SEEN = 1_000, 10_000
WARM = 1.0
TRIES = 5

Values = dict[str, float]
Candidates = dict[str, list[str]]
Take = Callable[[str, list[str], argparse.Namespace], Iterator[tuple[str, float]]]


def settings(chats: int) -> dict[str, str]:
    """So many calls at once, and nothing dropped."""
    return {"BRIDGE_MAX_CONCURRENT": str(chats), "BRIDGE_QUEUE_LIMIT": "1000"}


def rates(who: str, command: list[str], options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """As many answers as it can: in each chat another message waits already."""
    for delay in options.delays:
        for chats in options.chats:
            with Rig(command, delay=delay / 1e3, chats=chats, **settings(chats)) as rig:
                window = rig.load(options.seconds, WARM)
            yield f"rate.{delay}.{chats}", window.rate
            yield f"cpu.{delay}.{chats}", window.cpu


def latencies(
    who: str, command: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """From the question to its answer, less what Hermes takes; people think before they write."""
    for chats in options.chats:
        with Rig(command, delay=SLOW / 1e3, chats=chats, **settings(chats)) as rig:
            window = rig.load(options.seconds, WARM, ahead=1, think=2 * chats / SPOKEN)
        took = sorted((seconds * 1e3 - SLOW) for seconds in window.latencies)
        yield f"latency.p50.{chats}", statistics.median(took)
        yield f"latency.p95.{chats}", took[int(len(took) * 0.95)]


def typing(
    who: str, command: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    chats = 16
    with Rig(command, delay=SLOW / 1e3, chats=chats, typing=True, **settings(chats)) as rig:
        window = rig.load(options.seconds, WARM)
    yield "typing.rate", window.rate
    yield "typing.cpu", window.cpu


def memory(
    who: str, command: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    more = {**settings(16), "BRIDGE_IDLE_TIMEOUT": "5s"}
    with Rig(command, delay=SLOW / 1e3, chats=SEEN, **more) as rig:
        rig.start()
        pause(0.5)
        yield "memory.start", rig.memory()
        rig.hub.say(1, ACTIVE)
        rig.answers(ACTIVE, 120)
        yield "memory.active", rig.memory()
        yield "memory.most", rig.memory("VmHWM")
        for first in range(ACTIVE + 1, SEEN, ACTIVE):
            rig.hub.say(first, first + ACTIVE - 1)
            rig.answers(ACTIVE, 120)
        yield "memory.seen", rig.memory()
        pause(8)
        yield "memory.after", rig.memory()
        rig.check()


def idle(who: str, command: list[str], options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    with Rig(command, delay=0, chats=1) as rig:
        rig.start()
        rig.hub.say(1, 1)
        rig.answers(1, 20)
        pause(3)
        began, used = time.monotonic(), rig.cpu()
        pause(options.idle)
        yield "idle.cpu", (rig.cpu() - used) / (time.monotonic() - began) * 100


def starts(
    who: str, command: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """The first start with a person who writes at once, later ones with a message that waits."""
    fresh, again, online, used = [], [], [], []
    for _ in range(TRIES):
        with Rig(command, delay=0, chats=1) as rig:
            rig.hub.greet(1)
            began = rig.start(online=False)
            fresh.append(rig.answers(1, 20)[0] - began)
            rig.stop()
            rig.hub.say(1, 1)
            began = rig.start(online=False)
            again.append(rig.answers(1, 20)[0] - began)
            used.append(rig.cpu())
            rig.stop()
            began = rig.start()
            online.append(time.monotonic() - began)
    yield "start.fresh", statistics.median(fresh) * 1e3
    yield "start.again", statistics.median(again) * 1e3
    yield "start.online", statistics.median(online) * 1e3
    yield "start.cpu", statistics.median(used) * 1e3


def restarts(
    who: str, command: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """The hub is away for a second, and somebody writes meanwhile.

    Each time with a new bridge, as a second failure within 30 s is waited for longer.
    """
    took = []
    for _ in range(TRIES):
        with Rig(command, delay=0, chats=1) as rig:
            rig.start()
            rig.hub.say(1, 1)
            rig.answers(1, 20)
            rig.hub.stop()
            pause(0.5)
            rig.hub.say(1, 1)
            pause(0.5)
            back = rig.hub.start()
            took.append(rig.answers(1, 60)[0] - back)
            rig.check()
    yield "restart.p50", statistics.median(took) * 1e3
    yield "restart.most", max(took) * 1e3


# name -> how its values are taken, and of whom besides the bridges
GROUPS: dict[str, tuple[Take, Sequence[str]]] = {
    "rate": (rates, ("requests", "http.client")),
    "latency": (latencies, ("requests", "http.client")),
    "typing": (typing, ("requests", "http.client")),
    "memory": (memory, ()),
    "idle": (idle, ()),
    "start": (starts, ()),
    "restart": (restarts, ()),
}
PLAIN = {  # name -> (what it is, unit)
    "memory.start": ("resident memory after the start", "MiB"),
    "memory.active": (f"{ACTIVE:,} chats active at once: resident memory at the end", "MiB"),
    "memory.most": (f"{ACTIVE:,} chats active at once: the most that it was", "MiB"),
    "memory.seen": (f"{SEEN:,} chats seen", "MiB"),
    "memory.after": (f"{SEEN:,} chats seen, and idle for 8 s (idle timeout 5 s)", "MiB"),
    "idle.cpu": ("idle: a processor", "%"),
    "start.fresh": ("first start to first answer, somebody writes at once", "ms"),
    "start.again": ("start to first answer, a message waits", "ms"),
    "start.cpu": ("the same: processor time", "ms"),
    "start.online": ("start to open stream", "ms"),
    "start.imports": ("Python importing requests, websocket-client and sqlite3", "ms"),
    "restart.p50": ("hub back after 1 s to first answer, p50", "ms"),
    "restart.most": ("hub back after 1 s to first answer, the longest", "ms"),
}


def imports() -> float:
    """What no start of a program with these libraries can do without, in milliseconds."""
    took = []
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    command = [sys.executable, "-c", "import requests, websocket, sqlite3"]
    for _ in range(TRIES):
        began = time.monotonic()
        subprocess.run(command, env=environ, check=True)
        took.append(time.monotonic() - began)
    return statistics.median(took) * 1e3


def run(options: argparse.Namespace) -> list[dict[str, Values]]:
    """The rounds: the values of each candidate, those that could not be taken left out."""
    bridges = {"ours": shlex.split(options.ours)}
    if options.vs:
        bridges["vs"] = shlex.split(options.vs)
    rounds: list[dict[str, Values]] = []
    for number in range(options.rounds):
        taken: dict[str, Values] = {who: {} for who in [*bridges, *RAW]}
        for group in options.only:
            take, others = GROUPS[group]
            candidates = {**bridges, **{who: RAW[who] for who in others}}
            order = list(candidates)
            for who in order[number % len(order) :] + order[: number % len(order)]:
                print(f"round {number + 1}/{options.rounds}: {group}, {who}", file=sys.stderr)
                try:
                    for name, value in take(who, candidates[who], options):
                        taken[who][name] = value
                except Fault as fault:
                    print(f"  {fault}", file=sys.stderr)
        if "start" in options.only:
            taken["ours"]["start.imports"] = imports()
        rounds.append(taken)
    return rounds


class Figures:
    """The values of all rounds, as cells of a table."""

    def __init__(self, rounds: list[dict[str, Values]]) -> None:
        self._rounds = rounds
        self.bridges = [who for who in rounds[0] if who not in RAW]

    def of(self, who: str, name: str, digits: int | None = None) -> str:
        values = [taken[who][name] for taken in self._rounds if name in taken[who]]
        if digits is None:
            digits = 2 if values and statistics.median(values) < 10 else 1
        return spread(values, digits)

    def ratio(self, who: str, other: str, name: str) -> str:
        """By rounds, so that what slowed a whole round down does not count."""
        return self._paired(who, other, name, lambda ours, theirs: ours / theirs)

    def beyond(self, who: str, other: str, name: str) -> str:
        return self._paired(who, other, name, lambda ours, theirs: ours - theirs)

    def _paired(
        self, who: str, other: str, name: str, combine: Callable[[float, float], float]
    ) -> str:
        found = [
            combine(taken[who][name], taken[other][name])
            for taken in self._rounds
            if name in taken[who] and taken[other].get(name)
        ]
        return spread(found, 2) if found else "-"


def rate_table(figures: Figures, options: argparse.Namespace) -> str:
    head = ["Hermes", "chats"]
    head += [f"{who}: answers/s" for who in [*figures.bridges, *RAW]]
    head += [f"{who} / {raw}" for who in figures.bridges for raw in RAW]
    head += [f"{who}: CPU ms each" for who in [*figures.bridges, *RAW]]
    rows = [head]
    for delay in options.delays:
        for chats in options.chats:
            rate, cpu = f"rate.{delay}.{chats}", f"cpu.{delay}.{chats}"
            row = [f"{delay} ms", str(chats)]
            row += [figures.of(who, rate) for who in [*figures.bridges, *RAW]]
            row += [figures.ratio(who, raw, rate) for who in figures.bridges for raw in RAW]
            row += [figures.of(who, cpu, 2) for who in [*figures.bridges, *RAW]]
            rows.append(row)
    return table(rows)


def latency_table(figures: Figures, options: argparse.Namespace) -> str:
    head = ["chats"]
    head += [f"{who}: {q}, ms" for who in [*figures.bridges, *RAW] for q in ("p50", "p95")]
    head += [f"added to {raw} by {who}: p50, ms" for who in figures.bridges for raw in RAW]
    rows = [head]
    for chats in options.chats:
        names = [f"latency.{q}.{chats}" for q in ("p50", "p95")]
        row = [str(chats)]
        row += [figures.of(who, name) for who in [*figures.bridges, *RAW] for name in names]
        row += [figures.beyond(who, raw, names[0]) for who in figures.bridges for raw in RAW]
        rows.append(row)
    return table(rows)


def typing_table(figures: Figures) -> str:
    rows = [["with typing, 16 chats, 50 ms", *figures.bridges, *RAW]]
    for name, told in (("typing.rate", "answers/s"), ("typing.cpu", "CPU ms each")):
        rows.append([told, *(figures.of(who, name) for who in [*figures.bridges, *RAW])])
    return table(rows)


def plain_table(figures: Figures, options: argparse.Namespace) -> str:
    rows = [["measure", "unit", *figures.bridges]]
    for name, (what, unit) in PLAIN.items():
        if name.partition(".")[0] in options.only:
            rows.append([what, unit, *(figures.of(who, name) for who in figures.bridges)])
    return table(rows)


def show(rounds: list[dict[str, Values]], options: argparse.Namespace) -> None:
    figures = Figures(rounds)
    print(" · ".join(str(value) for value in machine().values()))
    if "rate" in options.only:
        print(f"\nAnswers as fast as possible\n\n{rate_table(figures, options)}")
    if "latency" in options.only:
        told = f"Question to answer beyond the {SLOW} ms of Hermes, at most {SPOKEN} a second"
        print(f"\n{told}\n\n{latency_table(figures, options)}")
    if "typing" in options.only:
        print(f"\n{typing_table(figures)}")
    if any(name.partition(".")[0] in options.only for name in PLAIN):
        print(f"\n{plain_table(figures, options)}")


def wanted(options: argparse.Namespace) -> Iterator[str]:
    """The names of all values of ours that there should be."""
    for group in options.only:
        if group == "rate":
            yield from (f"rate.{d}.{n}" for d in options.delays for n in options.chats)
        elif group == "latency":
            yield from (f"latency.p50.{n}" for n in options.chats)
        elif group == "typing":
            yield "typing.rate"
        else:
            yield from (name for name in PLAIN if name.startswith(f"{group}."))


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the Donut bridge.")
    parser.add_argument("--vs", metavar="COMMAND", help="another bridge; gets the same settings")
    parser.add_argument("--ours", metavar="COMMAND", default=OURS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of load for each figure")
    parser.add_argument("--idle", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--chats", type=numbers, default=[1, 4, 16, 64], metavar="N,...")
    parser.add_argument("--delays", type=numbers, default=[0, SLOW], metavar="MS,...")
    parser.add_argument("--only", metavar="GROUP,...", default=",".join(GROUPS))
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = sorted(set(options.only) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group: {', '.join(unknown)}; known: {', '.join(GROUPS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rounds = run(options)
    if options.json:
        document = {"machine": machine(), "ours": options.ours, "vs": options.vs, "rounds": rounds}
        with open(options.json, "w") as file:
            file.write(json.dumps(document, indent=1) + "\n")
    show(rounds, options)
    return 0 if all(name in taken["ours"] for taken in rounds for name in wanted(options)) else 1


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    sys.exit(main())
