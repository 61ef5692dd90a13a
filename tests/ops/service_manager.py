"""A small systemd for tests: the commands of a host that has one, in one script.

It is installed as ``systemctl``, ``journalctl``, ``loginctl`` and ``sudo``, runs the units that
``install-units`` wrote, each until it is stopped, and refuses what the real commands would refuse.
Of the system's own directories it sees those below ``ROOT_OF_TEST``. It keeps what it knows in
``.units`` beside itself. Standard library only: an unprivileged user runs it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = os.environ["ROOT_OF_TEST"]
HOME = os.environ["HOME"]
KNOWN = Path(sys.argv[0]).absolute().parent / ".units"
START_SECONDS = 20.0
VERBS = {
    *("start", "stop", "restart", "enable", "disable", "status", "show", "edit"),
    *("daemon-reload", "reset-failed"),
}


def fail(text: str, code: int = 1) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(code)


class Unit:
    """One instance of a template."""

    def __init__(self, name: str, scope: str) -> None:
        self.name = name.removesuffix(".service")
        self.scope = scope
        template, _, self.instance = self.name.partition("@")
        base = f"{HOME}/.config" if scope == "user" else f"{ROOT}/etc"
        self.path = Path(base, "systemd", scope, f"{template}@.service")
        if not self.instance or not self.path.exists():
            fail(f"Unit {self.name}.service could not be found ({self.path}).", 5)
        self.record = KNOWN / f"{scope}-{self.name}.json"
        self.journal = KNOWN / f"{scope}-{self.name}.log"

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.record.read_text()) if self.record.exists() else {}

    def tell(self, **facts: Any) -> None:
        self.record.write_text(json.dumps({**self.told, **facts}))

    @property
    def pid(self) -> int:
        pid = int(self.told.get("pid", 0))
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else pid

    def settings(self) -> list[tuple[str, str]]:
        lines = (line.partition("=") for line in self.path.read_text().splitlines())
        return [(name, value) for name, mark, value in lines if mark and name[0] != "#"]

    def start(self) -> None:
        if self.pid:
            return
        argv, environ = self._prepared()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            address = f"\0{self.name}-{os.getpid()}"
            notify.bind(address)
            notify.settimeout(0.1)
            environ["NOTIFY_SOCKET"] = "@" + address[1:]
            with open(self.journal, "ab") as journal:
                child = subprocess.Popen(
                    argv, env=environ, stdin=subprocess.DEVNULL, stderr=journal,
                    stdout=journal, start_new_session=True, cwd="/",
                )  # fmt: skip
            self.tell(pid=child.pid)
            end = time.monotonic() + START_SECONDS
            while time.monotonic() < end and child.poll() is None:
                try:
                    if b"READY=1" in notify.recv(4096):
                        return
                except TimeoutError:
                    pass
        fail(f"Job for {self.name}.service failed:\n{self.journal.read_text()[-2000:]}")

    def _prepared(self) -> tuple[list[str], dict[str, str]]:
        given = self.settings()
        kept = ("HOME", "LANG", "ROOT_OF_TEST", "HERMES_BRIDGES_TEST_SESSION")
        environ = {name: os.environ[name] for name in kept if name in os.environ}
        credentials = KNOWN / f"credentials-{self.name}"
        for name, value in given:
            if name == "LoadCredential":
                target, _, source = self._expand(value, "").partition(":")
                credentials.mkdir(mode=0o700, exist_ok=True)
                shutil.copy(f"{ROOT}{source}", credentials / target)
            elif name == "StateDirectory":
                base = f"{HOME}/.local/state" if self.scope == "user" else f"{ROOT}/var/lib"
                environ["STATE_DIRECTORY"] = f"{base}/{self._expand(value, '')}"
                os.makedirs(environ["STATE_DIRECTORY"], 0o700, exist_ok=True)
        for name, value in given:
            if name == "Environment":
                for word in shlex.split(self._expand(value, str(credentials))):
                    environ.__setitem__(*word.split("=", 1))
        for name, value in given:
            if name == "EnvironmentFile":
                self._read(self._expand(value, ""), environ)
        (line,) = (value for name, value in given if name == "ExecStart")
        argv = shlex.split(self._expand(line, str(credentials)))
        words: list[str] = []
        for word in argv:
            if word.startswith("$"):
                words += environ.get(word[1:], "").split()
            else:
                words.append(word)
        # The stand-in for hermes lies beside us.
        environ["PATH"] = f"{KNOWN.parent}:{environ['PATH']}"
        return words, environ

    def _expand(self, text: str, credentials: str) -> str:
        values = {"i": self.instance, "h": HOME, "d": credentials, "%": "%"}
        values["E"] = f"{HOME}/.config"
        return re.sub(r"%(.)", lambda found: values[found[1]], text)

    def _read(self, path: str, environ: dict[str, str]) -> None:
        optional, path = path[0] == "-", path.removeprefix("-")
        if self.scope == "system":
            path = ROOT + path
        if optional and not os.path.exists(path):
            return
        for line in Path(path).read_text().splitlines():
            name, mark, value = line.partition("=")
            if mark and name[0] != "#":
                environ[name] = value

    def stop(self) -> None:
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + START_SECONDS
        while self.pid:
            if time.monotonic() > end:
                fail(f"{self.name} did not stop")
            time.sleep(0.02)

    def show(self) -> str:
        facts = {
            "Id": f"{self.name}.service",
            "LoadState": "loaded",
            "ActiveState": "active" if self.pid else "inactive",
            "SubState": "running" if self.pid else "dead",
            "UnitFileState": "enabled" if self.told.get("enabled") else "disabled",
            "Result": "success",
            "MainPID": self.pid,
            "NRestarts": 0,
            "ExecMainStatus": 0,
        }
        return "".join(f"{name}={value}\n" for name, value in facts.items())


def systemctl(words: list[str]) -> int:
    flags = [word for word in words if word.startswith("-") and word != "--"]
    verb, *names = [word for word in words if not word.startswith("-")]
    scope = "user" if "--user" in flags else "system"
    allowed = {"--user", *(("--now",) if verb in ("enable", "disable") else ())}
    wrong = {flag for flag in flags if flag.partition("=")[0] not in allowed | {"--property"}}
    if verb == "show":
        for path in sorted(KNOWN.glob(f"{scope}-*.json")):
            print(Unit(path.stem.removeprefix(f"{scope}-"), scope).show())
        return 0
    if verb not in VERBS or wrong:
        fail(f"systemctl: {verb} {wrong}", 2)
    if verb in ("daemon-reload", "reset-failed"):
        return 0
    if not names:
        fail(f"systemctl {verb}: a unit is missing", 2)
    units = [Unit(name, scope) for name in names]
    for unit in units:
        if verb in ("stop", "restart") or (verb == "disable" and "--now" in flags):
            unit.stop()
        if verb in ("start", "restart") or (verb == "enable" and "--now" in flags):
            unit.start()
        if verb in ("enable", "disable"):
            unit.tell(enabled=verb == "enable")
        if verb == "status":
            print(unit.show())
    return 0 if verb != "status" or all(unit.pid for unit in units) else 3


def journalctl(words: list[str]) -> int:
    scope = "user" if "--user" in words else "system"
    named = [word.partition("=")[2] for word in words if word.startswith("--unit=")]
    name = named[0] if named else words[words.index("-u") + 1]
    print(Unit(name, scope).journal.read_text(), end="", flush=True)
    while "-f" in words or "--follow" in words:
        time.sleep(0.1)
    return 0


def sudo(words: list[str]) -> int:
    os.environ["SUDO_USER"] = "mail"  # somebody whom each system has
    os.execvp(words[0], words)


def loginctl(words: list[str]) -> int:
    return 0 if words in (["enable-linger"], ["show-user", "--property=Linger"]) else 1


def main() -> int:
    KNOWN.mkdir(exist_ok=True)
    commands = {"systemctl": systemctl, "journalctl": journalctl, "sudo": sudo}
    commands["loginctl"] = loginctl
    return commands[Path(sys.argv[0]).name](sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
