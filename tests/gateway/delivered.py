"""A pytest plugin: how many messages each real Hermes delivered, told at the end of the run.

A version that delivered nothing, or was not run while others were, fails the run: a gateway test
that never reached a real Hermes must not look as if it had passed.
"""

from collections import Counter

import pytest

from tests import hermes_versions

PROPERTY = "delivered"
VERSIONS = tuple(version for version in hermes_versions.REQUIREMENTS if version != "0.14.0")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Tally(config), "hermes-bridges-delivered")


class _Tally:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.ran = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown" or "tests/gateway/" not in report.nodeid:
            return
        self.ran = True  # the count is taken when the fixture of the test ends
        for name, value in report.user_properties:
            if name == PROPERTY:
                version, count = str(value).split("=")
                self.counts[version] += int(count)

    def missing(self) -> list[str]:
        """Versions that should have delivered something; none when single tests were asked for."""
        narrowed = self.config.option.keyword or any("::" in arg for arg in self.config.args)
        if narrowed or not self.ran:
            return []
        return [version for version in VERSIONS if not self.counts[version]]

    # Before the terminal summary, which is told the exit code.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.ran:
            return
        terminalreporter.section("messages delivered by a real hermes")
        for version in VERSIONS:
            terminalreporter.write_line(f"hermes {version}: {self.counts[version]}")
        for version in self.missing():
            terminalreporter.write_line(f"hermes {version} delivered nothing", red=True)
