"""Measures the coms bridge, alone or side by side with any other command that keeps the contract.

    python bench/coms.py [--vs "COMMAND"] [--rounds N] [--idle SECONDS] [--only GROUP,...]
                         [--ours "COMMAND"] [--json FILE]

Each round runs every measure on each bridge, the one that begins taking turns, each time under a
fresh HOME with the same fast `hermes`. The table tells the median of the rounds with the lowest
and the highest, and the ratio ours / vs of each round in the same way: below 1 is better. Exit 1
when a measure of ours could not be taken.
"""

import argparse
import json
import os
import random
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from report import machine, spread, table
from rig import Fault, Rig, pause, wait

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = f"{shlex.quote(sys.executable)} -m hermes_bridges.coms"
SPACED = 100
BACK_TO_BACK = 300
BURST = 500
OPEN = 2000
CHILDREN = 40

Values = dict[str, float]
Start = Callable[[], Rig]

# name -> (what it is, unit); the name up to the first dot is its group.
MEASURES = {
    "start": ("start: spawn to registry entry", "ms"),
    "ack.spaced": ("prompt to ack, one every 20 ms, p50", "ms"),
    "ack.spawn": ("prompt to start of `hermes`, p50", "ms"),
    "ack.back_to_back": (f"prompt to ack, {BACK_TO_BACK} back to back, p50", "ms"),
    "answer.p50": ("answer file to response, p50", "ms"),
    "answer.p95": ("answer file to response, p95", "ms"),
    "burst.all": (f"{BURST} answers at once: first file to last response", "ms"),
    "burst.drain": (f"{BURST} answers at once: first to last response", "ms"),
    "idle.memory": ("idle: resident memory", "MiB"),
    "idle.cpu": ("idle: processor time per 20 s", "ms"),
    "open.memory": (f"{OPEN} open questions: memory added", "MiB"),
    "open.ping": (f"{OPEN} open questions: ping, p50", "ms"),
    "children.most": (f"`hermes` at once, {CHILDREN} prompts at once", ""),
}


def starts(start: Start, options: argparse.Namespace) -> Values:
    took = []
    for _ in range(3):
        with start() as rig:
            took.append(rig.started)
    return {"start": statistics.median(took) * 1e3}


def acks(start: Start, options: argparse.Namespace) -> Values:
    """The acks, the spawns, and what becomes of answers to these questions."""
    with start() as rig:
        pause(0.5)
        asked = []
        for _ in range(SPACED):
            asked.append(rig.ask())
            pause(0.02)
        rig.settle(SPACED)
        spaced = [ack for _, _, ack in asked]
        spawn = [rig.ears.begins[qid] - at for qid, at, _ in asked]
        rapid = [rig.ask() for _ in range(BACK_TO_BACK)]
        rig.settle(SPACED + BACK_TO_BACK)
        return {
            "ack.spaced": statistics.median(spaced) * 1e3,
            "ack.spawn": statistics.median(spawn) * 1e3,
            "ack.back_to_back": statistics.median(ack for _, _, ack in rapid) * 1e3,
        }


def answers(start: Start, options: argparse.Namespace) -> Values:
    chance = random.Random(1)
    with start() as rig:
        asked = [rig.ask()[0] for _ in range(SPACED)]
        rig.settle(SPACED)
        written = {}
        for qid in asked:
            prepared = rig.prepare_answer(qid)
            pause(chance.uniform(0.01, 0.09))
            written[qid] = rig.answer(qid, prepared)
        wait(lambda: len(rig.ears.responses) == SPACED, 30, "all responses")
        took = sorted(rig.ears.responses[qid] - at for qid, at in written.items())
        return {
            "answer.p50": statistics.median(took) * 1e3,
            "answer.p95": took[int(len(took) * 0.95)] * 1e3,
        }


def burst(start: Start, options: argparse.Namespace) -> Values:
    with start() as rig:
        asked = [rig.ask()[0] for _ in range(BURST)]
        rig.settle(BURST)
        pause(1)
        prepared = [(qid, rig.prepare_answer(qid)) for qid in asked]
        begin = min([rig.answer(qid, path) for qid, path in prepared])
        wait(lambda: len(rig.ears.responses) == BURST, 60, f"{BURST} responses", 0.01)
        times = rig.ears.responses.values()
        return {
            "burst.all": (max(times) - begin) * 1e3,
            "burst.drain": (max(times) - min(times)) * 1e3,
        }


def idle(start: Start, options: argparse.Namespace) -> Values:
    with start() as rig:
        pause(3)
        before, begin = rig.cpu(), time.monotonic()
        pause(options.idle)
        used = (rig.cpu() - before) / (time.monotonic() - begin)
        return {"idle.memory": rig.memory(), "idle.cpu": used * 20}


def many(start: Start, options: argparse.Namespace) -> Values:
    with start() as rig:
        pause(1)
        before = rig.memory()
        endpoint = rig.listener()
        for number in range(OPEN):
            rig.ask(endpoint)
            if number % 50 == 49:  # a bridge without a bound would start them all at once
                rig.settle(number - 150)
        rig.settle(OPEN)
        pause(2)
        pings = []
        for _ in range(50):
            pings.append(rig.ping())
            pause(0.01)
        return {
            "open.memory": rig.memory() - before,
            "open.ping": statistics.median(pings) * 1e3,
        }


def children(start: Start, options: argparse.Namespace) -> Values:
    with start() as rig:
        rig.hold(0.2)
        for _ in range(CHILDREN):
            rig.ask()
        rig.settle(CHILDREN)
        return {"children.most": rig.ears.most}


GROUPS = {
    "start": starts,
    "ack": acks,
    "answer": answers,
    "burst": burst,
    "idle": idle,
    "open": many,
    "children": children,
}


def run(options: argparse.Namespace) -> list[dict[str, Values]]:
    """The rounds: the values of each bridge, those that could not be taken left out."""
    bridges = {"ours": options.ours}
    if options.vs:
        bridges["vs"] = options.vs
    rounds: list[dict[str, Values]] = []
    for number in range(options.rounds):
        order = list(bridges) if number % 2 == 0 else list(bridges)[::-1]
        taken: dict[str, Values] = {who: {} for who in bridges}
        for group in options.only:
            for who in order:
                print(f"round {number + 1}/{options.rounds}: {group}, {who}", file=sys.stderr)
                command = shlex.split(bridges[who])
                try:
                    values = GROUPS[group](partial(Rig, command, CHECKOUT), options)
                except Fault as fault:
                    print(f"  {fault}", file=sys.stderr)
                    continue
                taken[who].update(values)
        rounds.append(taken)
    return rounds


def figures(rounds: list[dict[str, Values]], names: list[str]) -> str:
    versus = "vs" in rounds[0]
    head = ["measure", "unit", "ours", *(["vs", "ours / vs"] if versus else [])]
    rows = [head]
    for name in names:
        what, unit = MEASURES[name]
        ours = [taken["ours"][name] for taken in rounds if name in taken["ours"]]
        digits = 2 if ours and statistics.median(ours) < 10 else 1
        row = [what, unit, spread(ours, digits)]
        if versus:
            theirs = [taken["vs"][name] for taken in rounds if name in taken["vs"]]
            ratios = [
                taken["ours"][name] / taken["vs"][name]
                for taken in rounds
                if name in taken["ours"] and taken["vs"].get(name)
            ]
            row += [spread(theirs, digits), spread(ratios, 2) if ratios else "-"]
        rows.append(row)
    return table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the coms bridge.")
    parser.add_argument("--vs", metavar="COMMAND", help="the other bridge; gets the same flags")
    parser.add_argument("--ours", metavar="COMMAND", default=OURS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--only", metavar="GROUP,...", default=",".join(GROUPS))
    parser.add_argument("--json", metavar="FILE", help="also write everything there; - is stdout")
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
    names = [name for name in MEASURES if name.partition(".")[0] in options.only]
    if options.json:
        document = {
            "machine": machine(),
            "ours": options.ours,
            "vs": options.vs,
            "rounds": rounds,
            "measures": {name: " ".join(MEASURES[name]).strip() for name in names},
        }
        text = json.dumps(document, indent=1) + "\n"
        if options.json == "-":
            print(text, end="")
        else:
            with open(options.json, "w") as file:
                file.write(text)
    if options.json != "-":
        print(" · ".join(str(value) for value in machine().values()))
        print(figures(rounds, names))
    return 0 if all(name in taken["ours"] for taken in rounds for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
