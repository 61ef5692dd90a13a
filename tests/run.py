"""Runs the tests, and with ``--all`` or ``--long`` everything else that has to hold; see bin/test.

The parts of a full run are told one by one; its last line counts the tests and the other checks.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ["bench", "bin", "hermes_bridges", "tests"]
USAGE = """\
usage: bin/test [--all | --long] [pytest arguments]

  (nothing)  the fast tests, two at a time
  --all      format, lint, types, every test (real Hermes versions too), coverage,
             and a sample of the mutations
  --long     as --all, with the full counts and every mutation
"""


class FullRun:
    """The checks of ``--all``, in order; each one is made whatever became of those before it."""

    def __init__(self, state: Path, long: bool) -> None:
        self.state = state
        self.long = long
        self.passed = 0
        self.failed: list[str] = []

    def check(self, title: str, *arguments: str | Path) -> None:
        self.note(title, self.python(title, *arguments) == 0)

    def note(self, title: str, good: bool) -> None:
        if good:
            self.passed += 1
        else:
            self.failed.append(title)

    def python(self, title: str, *arguments: str | Path) -> int:
        print(f"\n=== {title}", flush=True)
        return subprocess.call([sys.executable, "-m", *arguments], cwd=ROOT)

    def tests(self, arguments: list[str]) -> None:
        report = self.state / "tests.xml"
        report.unlink(missing_ok=True)
        more = ["--long"] if self.long else []
        more += ["-m", "", "--durations=10", f"--junitxml={report}", *arguments]
        code = self.python(
            "tests", "coverage", "run", "-m", "pytest", *pytest_options(self.state), *more
        )
        failures = 0
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                failures += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
                self.passed += int(suite.get("tests", 0))
        self.passed -= failures
        self.failed += ["a test"] * failures
        if code != 0 and failures == 0:
            self.failed.append(f"pytest, exit {code}")

    def coverage(self) -> None:
        combined = self.python("coverage", "coverage", "combine", "--quiet") == 0
        self.note("coverage", combined and self.python("report", "coverage", "report") == 0)

    def end(self) -> int:
        others = [title for title in self.failed if title != "a test"]
        if others:
            print(f"\nfailed beside the tests: {', '.join(others)}")
        print(f"\n{self.passed} passed, {len(self.failed)} failed", flush=True)
        return 1 if self.failed else 0


def pytest_options(state: Path) -> list[str]:
    return ["-n", "2", "--dist", "loadgroup", "-o", f"cache_dir={state / 'pytest'}"]


def full_run(state: Path, long: bool, arguments: list[str]) -> int:
    data = state / "coverage"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    os.environ["COVERAGE_FILE"] = str(data / "data")
    run = FullRun(state, long)
    ruff_cache, mypy_cache = f"--cache-dir={state / 'ruff'}", f"--cache-dir={state / 'mypy'}"
    run.check("format", "ruff", "format", "--check", ruff_cache, *CODE)
    run.check("lint", "ruff", "check", ruff_cache, *CODE)
    run.check("types", "mypy", "--strict", mypy_cache)
    run.check("Hermes versions", "tests.hermes_versions")
    run.tests(arguments)
    run.coverage()
    if (ROOT / "tests/mutate.py").exists():
        run.check("mutations", "tests.mutate", *([] if long else ["--sample"]))
    return run.end()


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    state = Path(arguments.pop(arguments.index("--state") + 1))
    arguments.remove("--state")
    chosen = [word for word in ("--all", "--long") if word in arguments]
    rest = [word for word in arguments if word not in chosen]
    if chosen:
        return full_run(state, "--long" in chosen, rest)
    os.chdir(ROOT)
    return subprocess.call([sys.executable, "-m", "pytest", *pytest_options(state), *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
