"""A host for the controller: a home, and a PATH with executable stand-ins that note calls."""

import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_bridges.telegram import control

from .test_hermes_facts import OUTPUTS

TOOLS = (OUTPUTS / "0.22.2.post1" / "tools-list.txt").read_text(encoding="utf-8")
SKILLS = (OUTPUTS / "0.22.2.post1" / "skills-list.txt").read_text(encoding="utf-8")
NO_SKILLS = (OUTPUTS / "0.22.2.post1" / "skills-none.txt").read_text(encoding="utf-8")
NO_SUCH = "hermes: error: argument command: invalid choice: '{}' (choose from 'chat', 'logs')"

# Answers from a table by its arguments; what is not in the table fails. Notes every call.
TABLE = """#!{python} -IS
import json, os, sys
place = {place!r}
words = sys.argv[1:]
with open(place + ".calls", "a") as calls:
    seen = {{name: os.environ.get(name) for name in ("COLUMNS", "HERMES_PLATFORM", "HERMES_HOME")}}
    calls.write(json.dumps({{"words": words, "environ": seen}}) + "\\n")
with open(place + ".json") as table:
    answers = json.load(table)
code, out, err = answers.get(" ".join(words), [96, "", "unexpected: " + " ".join(words)])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""

# Plays a list of steps; a call that is not the next one fails, and so does all that comes after it.
SCRIPT = """#!{python} -IS
import json, sys
place = {place!r}
words = sys.argv[1:]
with open(place + ".calls", "a") as calls:
    calls.write(json.dumps({{"words": words}}) + "\\n")
with open(place + ".json") as file:
    steps = json.load(file)
step = steps[0] if steps else None
if step is None or step["words"] != words:
    with open(place + ".json", "w") as file:
        json.dump([{{"words": ["never"], "wanted": step, "got": words}}], file)
    sys.exit("not the next call: %r instead of %r" % (words, step))
with open(place + ".json", "w") as file:
    json.dump(steps[1:], file)
sys.stdout.write(step["out"])
sys.stderr.write("why" if step["code"] else "")
sys.exit(step["code"])
"""


@dataclass
class Done:
    """How a call of the controller ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass
class Stage:
    """``answers`` is what ``hermes`` says: an output, or (exit code, output, error output)."""

    root: Path
    answers: dict[str, str | tuple[int, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin = self.root / "bin"
        self.home = self.root / "home"
        self.hermes_home = self.home / ".hermes"
        self.work = self.hermes_home / "profiles" / "work"
        self.questions = self.home / ".pi" / "coms" / "hermes-bridge" / "questions"
        for directory in (self.bin, self.work):
            directory.mkdir(parents=True)
        self.environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home)}
        self._program("hermes", TABLE)
        self.running()
        self.answers |= {
            "profile show default": f"\nProfile: default\nPath:    {self.hermes_home}\n",
            "profile show work": f"\nProfile: work\nPath:    {self.work}\n",
        }
        for profile in ("default", "work"):
            self.skills(profile, SKILLS)
            self.tools(profile, TOOLS)
            self.terminal(profile)
            self.answers[f"--profile {profile} send --help"] = "usage: hermes send\n"

    def _program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text.format(python=sys.executable, place=str(self.bin / name)))
        path.chmod(0o755)

    def running(self, default: str = "not running", work: str = "not running") -> None:
        lines = [
            f"  {'✗' if state == 'not running' else '✓'} {name:<24s} — {state}\n"
            for name, state in (("default (current)", default), ("work", work))
        ]
        self.answers["gateway list"] = "Gateways:\n" + "".join(lines)

    def skills(self, profile: str, table: str) -> None:
        self.answers[f"--profile {profile} skills list --enabled-only"] = table

    def tools(self, profile: str, table: str) -> None:
        self.answers[f"--profile {profile} tools list --platform telegram"] = table

    def terminal(self, profile: str, backend: str = "local", home_mode: str = "real") -> None:
        settings = {"backend": backend, "home_mode": home_mode}
        self.answers[f"--profile {profile} config get terminal --json"] = json.dumps(settings)

    def herdr(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """The calls that Herdr expects, in order; an answer is a result, a text or a code."""
        self._program("herdr", SCRIPT)
        script = []
        for step in steps:
            answer = step[1] if len(step) > 1 else ""
            out = json.dumps({"result": answer}) if isinstance(answer, dict) else ""
            code = answer if isinstance(answer, int) else 0
            script.append(
                {
                    "words": list(step[0]),
                    "out": answer if isinstance(answer, str) else out,
                    "code": code,
                }
            )
        (self.bin / "herdr.json").write_text(json.dumps(script))

    def systemctl(self, answers: Mapping[str, str | tuple[int, str, str]]) -> None:
        self._program("systemctl", TABLE)
        self._write("systemctl", answers)

    def left(self, name: str) -> list[Any]:
        """The steps of a script that were not taken."""
        found: list[Any] = json.loads((self.bin / f"{name}.json").read_text())
        return found

    def _write(self, name: str, answers: Mapping[str, str | tuple[int, str, str]]) -> None:
        table = {
            words: [0, answer, ""] if isinstance(answer, str) else answer
            for words, answer in answers.items()
        }
        (self.bin / f"{name}.json").write_text(json.dumps(table))

    def calls(self, name: str = "hermes") -> list[str]:
        """The command lines that a stand-in was called with."""
        return [" ".join(call["words"]) for call in self.raw_calls(name)]

    def raw_calls(self, name: str = "hermes") -> list[dict[str, Any]]:
        path = self.bin / f"{name}.calls"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def call(self, *words: str) -> Done:
        """Call the controller in this process."""
        self._write("hermes", self.answers)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = control.main(list(words), self.environ)
        return Done(code, out.getvalue(), err.getvalue())
