"""``hermes-bridges doctor``: what may be wrong with this host, each finding with its remedy."""

import json
from collections.abc import Iterator, Mapping, Sequence

from hermes_bridges.ctl import bridges, health
from hermes_bridges.ctl.arguments import Arguments, directory
from hermes_bridges.ctl.bridges import Landscape
from hermes_bridges.ctl.examination import Finding, hermes, host, places
from hermes_bridges.ctl.terminal import safe

_ARGUMENTS = Arguments(
    "doctor",
    "Looks at what the bridges stand on: Python and the packages, Hermes, its version and\n"
    "its profiles, the directories and their modes, the clock, the room on the disks,\n"
    "systemd, and each bridge itself. Each problem comes with its remedy. Nothing is\n"
    "changed.",
    "Exit code: 0 no problem; 1 there is one; 2 for a command line that cannot be\nunderstood.",
)
_ARGUMENTS.add_argument("--json", action="store_true", help="print the findings as JSON")
_ARGUMENTS.add_argument(
    "--state-dir",
    action="append",
    default=[],
    type=directory,
    metavar="DIR",
    help="a further state directory of a Donut bridge; may be repeated",
)
USAGE = _ARGUMENTS.usage_text()


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the findings; 0 without a problem, else 1."""
    given = _ARGUMENTS.read(words)
    found = []
    for finding in examine(environ, given.state_dir):
        found.append(finding)
        if not given.json:
            print(f"{'problem' if finding.remedy else 'ok'}: {safe(finding.text)}", flush=True)
            if finding.remedy:
                print(f"  remedy: {safe(finding.remedy)}", flush=True)
    if given.json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    return 1 if any(finding.remedy for finding in found) else 0


def examine(environ: Mapping[str, str], state_dirs: Sequence[str] = ()) -> Iterator[Finding]:
    """All findings, in an order in which they can be read."""
    landscape = bridges.find(environ, state_dirs)
    yield from host.examine(environ, landscape)
    yield from hermes.examine(environ)
    yield from places.examine(environ, landscape)
    yield from _bridges(landscape)


def _bridges(landscape: Landscape) -> Iterator[Finding]:
    for note in landscape.notes:
        yield Finding(note, "ask as the user that it belongs to, or as root")
    for one in landscape.bridges:
        state = health.judge(one)
        name = f"{one.bridge} {one.instance}"
        if not state.faults:
            yield Finding(f"{name} is {state.state}")
        for fault in state.faults:
            yield Finding(f"{name} is {state.state}: {fault.text}", fault.remedy)
    if not landscape.bridges:
        yield Finding("no bridge was started here so far")
