"""The real daemon under a private HOME: start it, stop it, kill it, look at what it left.

`Home` is the directory layout of contract section 1, `Hermes` installs and drives the fake
`hermes` command, `Daemon` is one process.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from . import journal, judge, wire
from .process import CHECKOUT as CHECKOUT
from .process import INHERITED as INHERITED
from .process import Process
from .process import alive as alive
from .process import stays as stays
from .process import wait as wait

COMMAND = (sys.executable, "-m", "hermes_bridges.coms")
READY = re.compile(r"^coms-hermes-bridge: (\S+)@(\S+) listening \((.*)\)$", re.MULTILINE)
HEADER = re.compile(r"\[HUB-Q:([^\]]*)\]")
# The first sign of a text tells what it is: the question itself, or one of the notes about it.
KINDS = {"❓": "question", "✖": "cancel_note", "⌛": "timeout_note", "ℹ": "late_note"}

Fields = dict[str, Any]


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


class Home:
    """A private HOME and the paths of contract section 1 below it. `root` must be short."""

    def __init__(self, root: str, coms_dir: str | None = None) -> None:
        self.root = root
        self.path = os.path.join(root, "h")
        self.bin = os.path.join(root, "b")
        self.journals = os.path.join(root, "j")
        self.given_coms_dir = coms_dir
        self.coms = coms_dir or os.path.join(self.path, ".pi", "coms")
        self.bridge = os.path.join(self.path, ".pi", "coms", "hermes-bridge")
        self.questions = os.path.join(self.bridge, "questions")
        self.pending = os.path.join(self.bridge, "pending")
        self.log = os.path.join(self.bridge, "log.ndjson")
        self.status = os.path.join(self.bridge, "status")
        self.sockets = os.path.join(self.coms, "sockets")
        for path in (self.path, self.bin, self.journals):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def agents(self, project: str = "default") -> str:
        return os.path.join(self.coms, "projects", project, "agents")

    def entries(self, project: str = "default") -> dict[str, Fields]:
        """The registry by file name without `.json`; what cannot be parsed is left out."""
        return self._documents(self.agents(project))

    def records(self) -> dict[str, Fields]:
        """The question records by qid (file name without `.json`), as they stand now."""
        return self._documents(self.pending)

    def record_names(self) -> list[str]:
        """File names of the records, also of those that cannot be read."""
        names = os.listdir(self.pending)
        return [name for name in names if name.endswith(".json") and not name.startswith(".")]

    def open_records(self) -> dict[str, Fields]:
        return {q: r for q, r in self.records().items() if r.get("state") != "closed"}

    def events(self, qid: str | None = None, event: str | None = None) -> list[Fields]:
        """The event log, the rotated one first; every line must be one JSON object."""
        events = []
        for path in (self.log + ".1", self.log):
            events += journal.read(path)
        return [
            e
            for e in events
            if (qid is None or e["qid"] == qid) and (event is None or e["event"] == event)
        ]

    def status_file(self, project: str = "default", name: str = "user-remote") -> Fields | None:
        return self._documents(self.status).get(f"{project}.{name}")

    def answer_files(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.questions))
        return []

    @staticmethod
    def _documents(directory: str) -> dict[str, Fields]:
        """By file name without `.json`. A file may hold one document after the other, a line
        each: the last whole one counts."""
        documents = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(directory):
                if not name.endswith(".json") or name.startswith("."):
                    continue
                with contextlib.suppress(FileNotFoundError, ValueError):
                    with open(os.path.join(directory, name), encoding="utf-8") as file:
                        document = judge.last_document(file.read())
                    documents[name[: -len(".json")]] = document
        return documents


class Call:
    """One call of the fake `hermes`, as its journal tells it."""

    def __init__(self, begin: Fields) -> None:
        self.begin = begin
        self.end: Fields | None = None
        self.number: int = begin["call"]
        self.pid: int = begin["pid"]
        self.argv: list[str] = begin["argv"]
        self.text = self.argv[-1] if self.argv else ""
        header = HEADER.search(self.text)
        self.qid = header.group(1) if header else None

    @property
    def kind(self) -> str:
        """`question`, a note's name, `reject_note` (⚠), or `other`."""
        if "send" not in self.argv or self.qid is None:
            return "other"
        if self.text.startswith("⚠"):
            return "reject_note"
        return KINDS.get(self.text[0], "other")

    @property
    def ok(self) -> bool:
        return self.end is not None and self.end["code"] == 0 and not self.end["signal"]

    def __repr__(self) -> str:
        return (
            f"<hermes call {self.number} {self.kind} {self.qid} end={self.end and self.end['t']}>"
        )


class Hermes:
    """Installs the fake command in `home.bin` and tells it how to behave."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = os.path.join(home.bin, "hermes")
        self.journal = os.path.join(home.bin, "hermes.ndjson")
        self._rules: list[Fields] = []
        self._count = 0
        self.install()
        with contextlib.suppress(FileExistsError):
            os.symlink(self.journal, os.path.join(home.journals, "hermes.ndjson"))

    def install(self) -> None:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_hermes.py")
        with open(source, encoding="utf-8") as file:
            text = f"#!{sys.executable} -IS\n" + file.read()
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path + ".new", 0o700)
        os.rename(self.path + ".new", self.path)

    def uninstall(self) -> None:
        os.unlink(self.path)

    def rule(
        self,
        *,
        calls: Iterable[int] | None = None,
        match: str | None = None,
        times: int | None = None,
        **behaviour: Any,
    ) -> None:
        """Adds a rule; of all that fit a call the first given is used.

        calls: numbers of the calls (from 0) it is for; match: regular expression searched in the
        arguments (joined by NUL, DOTALL); times: use it that often at most.
        behaviour: delay=s or (low, high); exit=code; out=, err= texts; repeat=n (of err);
        hang=True; ignore_term=True; signal=number (dies by it); stdin=True (reads to the end and
        notes it); grandchild=s (a helper that keeps the pipes open so long; own_session=True puts
        it out of the group's reach); no_send=True (a version without `send`).
        """
        self._count += 1
        numbers = None if calls is None else list(calls)
        known = {"delay", "exit", "out", "err", "repeat", "hang", "ignore_term", "signal", "stdin"}
        assert set(behaviour) <= known | {"grandchild", "own_session", "no_send"}, behaviour
        self._rules.append(
            {"calls": numbers, "match": match, "times": times, "id": str(self._count), **behaviour}
        )
        self._publish()

    def forget_rules(self) -> None:
        self._rules = []
        self._publish()

    def _publish(self) -> None:
        target = os.path.join(self.home.bin, "hermes.rules")
        with open(target + ".new", "wb") as file:
            marshal.dump(self._rules, file)
        os.rename(target + ".new", target)

    def calls(self, qid: str | None = None, kind: str | None = None) -> list[Call]:
        """All calls in the order of their begin; `qid` and `kind` narrow them down."""
        calls: dict[int, Call] = {}
        for line in journal.read(self.journal):
            if line["what"] == "begin":
                calls[line["call"]] = Call(line)
            elif line["what"] == "end":
                calls[line["call"]].end = line
        return [
            c
            for c in calls.values()
            if (qid is None or c.qid == qid) and (kind is None or c.kind == kind)
        ]

    def wait_call(self, qid: str, kind: str = "question", deadline: float = 10.0) -> Call:
        """Waits until a call for `qid` has begun."""
        return wait(lambda: self.calls(qid, kind), deadline, f"hermes called: {kind} {qid}")[0]

    def wait_sent(self, qid: str, kind: str = "question", deadline: float = 10.0) -> Call:
        """Waits until a call for `qid` has ended well."""
        return wait(
            lambda: [c for c in self.calls(qid, kind) if c.ok], deadline, f"sent: {kind} {qid}"
        )[0]

    def running(self) -> list[Call]:
        """Calls whose process still lives."""
        return [c for c in self.calls() if c.end is None and alive(c.pid)]

    def most_at_once(self) -> int:
        """The highest number of calls between begin and end at one time (killed ones: no end)."""
        steps = []
        for call in self.calls():
            if call.end is not None:
                steps += [(call.begin["t"], 1), (call.end["t"], -1)]
        most = now = 0
        for _, step in sorted(steps):
            now += step
            most = max(most, now)
        return most


class Daemon(Process):
    """One daemon process and everything to be seen of it from outside."""

    def __init__(
        self,
        home: Home,
        *flags: str,
        project: str = "default",
        name: str = "user-remote",
        environ: Mapping[str, str | None] | None = None,
        command: Iterable[str] = COMMAND,
        umask: int = -1,
        pump: bool = False,
    ) -> None:
        """environ: additions to the environment below; a value of None takes a name out.
        umask, pump: as for `Process`.
        """
        self.home = home
        self.project = project
        self.name = name
        words = [*command, *flags]
        if project != "default":
            words += ["--project", project]
        if name != "user-remote":
            words += ["--name", name]
        variables: dict[str, str | None] = {
            "HOME": home.path,
            "PATH": home.bin + ":/usr/bin:/bin",
            "PYTHONPATH": CHECKOUT,
            "LANG": "C.UTF-8",
            **{k: v for k, v in os.environ.items() if k.startswith(INHERITED)},
            "PI_COMS_DIR": home.given_coms_dir,
            **(environ or {}),
        }
        super().__init__(
            words,
            {name: value for name, value in variables.items() if value is not None},
            home.path,
            home.journals,
            "daemons.ndjson",
            umask=umask,
            pump=pump,
            project=project,
            name=name,
        )

    def start(self, ready: bool = True, deadline: float = 20.0) -> Daemon:
        """Starts it; with `ready` waits for the ready line and for the registry entry."""
        self.launch()
        if ready:
            self.wait_ready(deadline)
        return self

    def wait_ready(self, deadline: float = 20.0) -> None:
        self.wait_true(
            lambda: self.ready_line() is not None and self.entry() is not None,
            deadline,
            "ready line and registry entry",
        )

    def ready_line(self) -> tuple[str, str, str] | None:
        """(name, project, to) of this run's ready line."""
        found = READY.search(self.stderr())
        return (found[1], found[2], found[3]) if found else None

    def restart(self) -> Daemon:
        assert self.stop() == 0
        return self.start()

    def entry(self) -> Fields | None:
        """The registry entry of this process, whatever name it got."""
        for entry in self.home.entries(self.project).values():
            if isinstance(entry, dict) and entry.get("pid") == self.pid:
                return entry
        return None

    @property
    def endpoint(self) -> str:
        entry = self.entry()
        assert entry is not None, "the daemon has no registry entry"
        endpoint = entry["endpoint"]
        assert isinstance(endpoint, str)
        return endpoint

    def ask(self, data: bytes | Fields, limit: float = 5.0) -> Fields:
        """One line on a connection of its own; the reply."""
        return wire.exchange(self.endpoint, data, limit)

    def ping(self, limit: float = 5.0) -> float:
        """Seconds until the pong."""
        begin = time.monotonic()
        reply = self.ask(wire.ping("p"), limit)
        assert reply["type"] == "pong" and reply["msg_id"] == "p", reply
        return time.monotonic() - begin
