"""What the controller tells a person about a profile."""

from collections.abc import Iterator, Sequence

from hermes_bridges.telegram import landing, skilltree
from hermes_bridges.telegram.arguments import PROGRAM
from hermes_bridges.telegram.hermes import PLATFORM
from hermes_bridges.telegram.readiness import NEEDED, Problem, Report


def refusal(report: Report) -> str:
    """Why ``on`` does nothing, and what to run."""
    found = "; ".join(problem.text for problem in report.problems)
    force = " --force" if report.skills[skilltree.LIAISON] == skilltree.DRIFTED else ""
    install = f"Run: {PROGRAM} install --profile {report.profile}{force}"
    remedies = [
        remedy
        for problem in report.problems
        for remedy in problem.remedies
        if not remedy.startswith(PROGRAM)
    ]
    return "\n".join([f"{found}. {install}", *(f"  remedy: {remedy}" for remedy in remedies)])


def problems(found: Sequence[Problem]) -> Iterator[str]:
    """A line for each problem and each remedy."""
    for problem in found:
        yield f"problem: {problem.text}"
        for remedy in problem.remedies:
            yield f"  remedy: {remedy}"


def told(report: Report) -> Iterator[str]:
    """The lines of ``status``."""
    yield _row("profile", f"{report.profile} ({report.path})")
    for name, state in report.skills.items():
        enabled = ", enabled" if name in report.enabled else ", disabled"
        yield _row(name, state + ("" if state == skilltree.MISSING else enabled))
    tools = (
        f"{name} {'enabled' if report.toolsets.get(name) else 'disabled'}"
        for name in NEEDED[skilltree.LIAISON]
    )
    yield _row("toolsets", f"{', '.join(tools)} ({PLATFORM})")
    gateway = report.gateway
    process = f", process {gateway.pid}" if gateway.pid else ""
    shared = f", one for {', '.join(report.served)}" if len(report.served) > 1 else ""
    yield _row("gateway", ("running" if gateway.running else "not running") + process + shared)
    yield _row("hermes send", "there" if report.can_send else "missing")
    yield from _answers(report)
    yield _row("ready", "yes" if report.ready else "no")
    yield from problems(report.problems)


def _answers(report: Report) -> Iterator[str]:
    if report.answers is None:
        yield _row("answers", "it cannot be told where they land")
        return
    directory = report.answers.directory
    yield _row("answers", f"land in {directory or report.answers.why}")
    same = directory is not None and landing.same_directory(directory, report.bridge)
    yield _row("", "where the bridge looks" if same else f"but the bridge looks in {report.bridge}")


def _row(name: str, text: str) -> str:
    return f"{name:<14} {text}".rstrip()
