"""A pytest plugin: what each real Hermes did, in numbers, told at the end of the run.

A version that did nothing, or was not run while others were, fails the run: a gateway test that
never reached a real Hermes must not look as if it had passed.
"""

from collections import Counter
from typing import NamedTuple

import pytest

from tests import hermes_versions

PROPERTY = "delivered"
ANSWERED = "answered"
VERSIONS = tuple(version for version in hermes_versions.REQUIREMENTS if version != "0.14.0")


class Kind(NamedTuple):
    """What is counted: by which property of a test, by the tests of which file."""

    property: str
    file: str
    title: str
    versions: tuple[str, ...]


KINDS = (
    Kind(PROPERTY, "test_hermes_send.py", "messages delivered by a real hermes", VERSIONS),
    Kind(
        ANSWERED,
        "test_donut_bridge.py",
        "turns answered by a real hermes",
        tuple(hermes_versions.REQUIREMENTS),
    ),
)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # one of several workers, which sees only its own part
    for kind in KINDS:
        config.pluginmanager.register(_Tally(config, kind), f"hermes-bridges-{kind.property}")


class _Tally:
    def __init__(self, config: pytest.Config, kind: Kind) -> None:
        self.config = config
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self.ran = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown" or f"gateway/{self.kind.file}::" not in report.nodeid:
            return
        self.ran = True  # the count is taken when the fixture of the test ends
        for name, value in report.user_properties:
            if name == self.kind.property:
                version, count = str(value).split("=")
                self.counts[version] += int(count)

    def missing(self) -> list[str]:
        """Versions that should have done something; none when single tests were asked for."""
        narrowed = self.config.option.keyword or any("::" in arg for arg in self.config.args)
        if narrowed or not self.ran:
            return []
        return [version for version in self.kind.versions if not self.counts[version]]

    # Before the terminal summary, which is told the exit code.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.ran:
            return
        terminalreporter.section(self.kind.title)
        for version in self.kind.versions:
            terminalreporter.write_line(f"hermes {version}: {self.counts[version]}")
        for version in self.missing():
            terminalreporter.write_line(f"hermes {version}: nothing", red=True)
