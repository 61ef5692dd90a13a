"""Takes one product line away, and demands that the test named for it turns red.

    python -m tests.mutate [--only PATTERN] [--sample] [--jobs N]   tries the mutations
    python -m tests.mutate --check                                  only reads them, in a moment

`tests/mutations.txt` holds one block a mutation, blocks are parted by blank lines, `#` begins a
comment line:

    test: tests/coms/test_laws.py::test_L1_an_answer_survives   (several: each must turn red)
    file: hermes_bridges/coms/desk.py
    after: def adopt(self, now: float) -> None:                 (optional)
    line: if record.state == "closed":
    with: if record.state != "closed":

`line` is a product line without its indentation; several are consecutive lines. It must occur
exactly once in the file; or `after` must, and the first `line` below it is meant. `with` takes its
place, at its indentation (further indentation of a second `with` counts from there); without
`with` the lines are replaced by `pass`. The mutated file must still compile and be importable:
what turns red must be the test's own claim.

Every test named after a line of the contract or a known failure (`test_L3_...`, `test_KH08_...`)
needs a mutation.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = "tests/mutations.txt"
NAMED = re.compile(r"test_(KH|[LHDS])\d+(_|$)")
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "*.pyc", "venv", "node_modules"
)
SHORTEST_LIMIT, LIMIT_FACTOR = 30.0, 5.0
SAMPLE = 12


@dataclass
class Mutation:
    where: int  # line number in the list
    tests: list[str] = field(default_factory=list)
    file: str = ""
    after: str | None = None
    lines: list[str] = field(default_factory=list)
    replacement: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{LIST}:{self.where} ({self.tests[0] if self.tests else 'no test'})"

    def place(self, text: list[str]) -> int:
        """Index of the first product line that is meant; ValueError says what is wrong."""
        stripped = [line.strip() for line in text]
        begin = 0
        if self.after is not None:
            found = [i for i, line in enumerate(stripped) if line == self.after]
            if len(found) != 1:
                raise ValueError(f"`after` occurs {len(found)} times in {self.file}: {self.after}")
            begin = found[0] + 1
        size = len(self.lines)
        found = [
            i
            for i in range(begin, len(stripped) - size + 1)
            if stripped[i : i + size] == self.lines
        ]
        if not found or (self.after is None and len(found) != 1):
            raise ValueError(f"`line` occurs {len(found)} times in {self.file}: {self.lines[0]}")
        return found[0]

    def apply(self, source: str) -> str:
        """The mutated source; ValueError when it does not fit or does not compile."""
        text = source.splitlines(keepends=True)
        at = self.place([line.rstrip("\n") for line in text])
        indent = text[at][: len(text[at]) - len(text[at].lstrip())]
        new = [f"{indent}{line}\n" for line in self.replacement or ["pass"]]
        mutated = "".join(text[:at] + new + text[at + len(self.lines) :])
        if mutated == source:
            raise ValueError("the replacement is what stands there already")
        try:
            compile(mutated, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"does not compile: {error}") from None
        return mutated


def parse(text: str) -> list[Mutation]:
    mutations: list[Mutation] = []
    current: Mutation | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            current = None
            continue
        if raw.startswith("#"):
            continue
        key, colon, value = raw.partition(":")
        if not colon or key not in ("test", "file", "after", "line", "with"):
            raise ValueError(f"{LIST}:{number}: not understood: {raw}")
        if current is None:
            current = Mutation(number)
            mutations.append(current)
        if key == "test":
            current.tests.append(value.strip())
        elif key == "file":
            current.file = value.strip()
        elif key == "after":
            current.after = value.strip()
        elif key == "line":
            current.lines.append(value.strip())
        else:
            current.replacement.append(value.removeprefix(" ").rstrip())
    return mutations


def read(root: Path) -> list[Mutation]:
    return parse((root / LIST).read_text(encoding="utf-8"))


def functions_of(path: Path) -> set[str]:
    """Names of the tests in a file, methods as `Class::name`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef) and child.name.startswith("test")
            }
    return names


def misfits(mutations: Iterable[Mutation], root: Path) -> list[str]:
    """What is wrong with the list itself: one text for each fault."""
    faults = []
    known: dict[str, set[str]] = {}
    for mutation in mutations:
        if not (mutation.tests and mutation.file and mutation.lines):
            faults.append(f"{mutation}: needs test, file and line")
            continue
        for test in mutation.tests:
            path, _, name = test.partition("::")
            if path not in known:
                file = root / path
                known[path] = functions_of(file) if file.is_file() else set()
            if name.partition("[")[0] not in known[path]:
                faults.append(f"{mutation}: no such test: {test}")
        try:
            mutation.apply((root / mutation.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            faults.append(f"{mutation}: {error}")
    return faults


def unproven(mutations: Iterable[Mutation], root: Path) -> list[str]:
    """Tests named after a law or a known failure that no mutation turns red."""
    listed = {test.partition("[")[0] for mutation in mutations for test in mutation.tests}
    missing = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        relative = path.relative_to(root).as_posix()
        for name in sorted(functions_of(path)):
            if NAMED.match(name.rpartition("::")[2]) and f"{relative}::{name}" not in listed:
                missing.append(f"{relative}::{name}")
    return missing


@dataclass
class Result:
    mutation: Mutation
    test: str
    verdict: str  # "red", "hangs" or what is wrong
    seconds: float

    @property
    def good(self) -> bool:
        return self.verdict in ("red", "hangs")


class Checkout:
    """A copy of the project in which one thing is wrong at a time."""

    def __init__(self, parent: Path, number: int) -> None:
        self.root = parent / f"c{number}"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT)
        self._stamp = int(time.time())

    def write(self, file: str, text: str) -> None:
        """Each version gets a stamp of its own: cached bytecode is found by second and size."""
        path = self.root / file
        path.write_text(text, encoding="utf-8")
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))

    def importable(self, file: str) -> str | None:
        """Why the module cannot be imported, if so."""
        module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if module.endswith("__main__"):
            return None
        run = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return None if run.returncode == 0 else run.stderr.strip().splitlines()[-1]

    def pytest(self, arguments: list[str], limit: float) -> int | None:
        """Exit code; None when it had to be ended. Nothing of the run lives on."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
        with open(self.root / "output.txt", "ab") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_session(process.pid)
                process.wait()

    def try_one(self, mutation: Mutation, test: str, limit: float) -> Result:
        begin = time.monotonic()
        source = (ROOT / mutation.file).read_text(encoding="utf-8")
        self.write(mutation.file, mutation.apply(source))
        try:
            reason = self.importable(mutation.file)
            if reason is not None:
                verdict = f"cannot be imported: {reason}"
            else:
                code = self.pytest(["-x", f"--timeout={limit:.0f}", test], limit + 30)
                words = {None: "hangs", 0: "STAYS GREEN", 1: "red"}
                verdict = words.get(code, f"pytest ended with {code}, see a run by hand")
        finally:
            self.write(mutation.file, source)
        return Result(mutation, test, verdict, time.monotonic() - begin)


def end_session(leader: int) -> None:
    """Ends every process of the session that `leader` began."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                session = int(file.read().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


def baseline(checkout: Checkout, tests: list[str], jobs: int) -> tuple[bool, dict[str, float]]:
    """Runs all tests unmutated: whether all are green, and how long each took."""
    report = checkout.root / "baseline.xml"
    arguments = [f"--junitxml={report}", *(["-n", str(jobs)] if jobs > 1 else []), *tests]
    good = checkout.pytest(arguments, 3600) == 0
    seconds: dict[str, float] = {}
    if report.exists():
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '')}.{case.get('name', '').partition('[')[0]}"
            seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
            for kind in ("failure", "error"):
                if (bad := case.find(kind)) is not None:
                    print(f"red without any mutation: {name}: {bad.get('message', '')[:500]}")
    return good, seconds


def case_name(test: str) -> str:
    path, _, name = test.partition("::")
    return f"{path.removesuffix('.py').replace('/', '.')}.{name.partition('[')[0]}".replace(
        "::", "."
    )


def run(mutations: list[Mutation], jobs: int) -> list[Result]:
    work: queue.SimpleQueue[tuple[Mutation, str]] = queue.SimpleQueue()
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="hbm-") as temporary:
        checkouts = [Checkout(Path(temporary), number) for number in range(jobs)]
        good, seconds = baseline(checkouts[0], tests, jobs)
        if not good:
            print((checkouts[0].root / "output.txt").read_text(errors="replace")[-6000:])
            raise SystemExit("the tests are not green without any mutation")
        for mutation in mutations:
            for test in mutation.tests:
                work.put((mutation, test))

        def turn(checkout: Checkout) -> None:
            while True:
                try:
                    mutation, test = work.get_nowait()
                except queue.Empty:
                    return
                limit = max(SHORTEST_LIMIT, LIMIT_FACTOR * seconds.get(case_name(test), 0.0))
                result = checkout.try_one(mutation, test, limit)
                results.append(result)
                print(row(result), flush=True)

        threads = [threading.Thread(target=turn, args=(checkout,)) for checkout in checkouts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def row(result: Result) -> str:
    where = f"{result.mutation.file}: {result.mutation.lines[0]}"
    return f"{result.verdict:12} {result.seconds:6.1f} s  {result.test}\n{'':23}{where}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only read the list, run nothing")
    parser.add_argument("--only", metavar="PATTERN", help="part of a test id or file, or a glob")
    parser.add_argument("--sample", action="store_true", help=f"about {SAMPLE} of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    args = parser.parse_args(argv)
    try:
        mutations = read(ROOT)
    except ValueError as error:
        print(error)
        return 1
    faults = misfits(mutations, ROOT)
    faults += [f"no mutation for {test}" for test in unproven(mutations, ROOT)]
    for fault in faults:
        print(fault)
    if args.check:
        print(f"{len(mutations)} mutations, {len(faults)} faults")
        return 1 if faults else 0
    broken = {fault.partition(" (")[0] for fault in faults}
    chosen = [m for m in mutations if str(m).partition(" (")[0] not in broken]
    if args.only:
        pattern = args.only if set("*?[") & set(args.only) else f"*{args.only}*"
        chosen = [m for m in chosen if any(fnmatch.fnmatch(n, pattern) for n in [m.file, *m.tests])]
        faults = []
    if args.sample and len(chosen) > SAMPLE:
        chosen = chosen[:: -(-len(chosen) // SAMPLE)]
    if not chosen:
        print("no mutation to try")
        return 1
    results = run(chosen, max(1, min(args.jobs, len(chosen))))
    bad = [result for result in results if not result.good]
    print(f"\n{len(results) - len(bad)} of {len(results)} turned their test red")
    for result in bad:
        print(f"{result.mutation}\n{row(result)}")
    return 1 if bad or faults or len(results) == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
