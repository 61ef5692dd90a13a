"""The registry of a coms pool: one small file for each live peer (contract section 3)."""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from hermes_bridges.core import files
from hermes_bridges.errors import ConfigError, FileRefused

Entry = dict[str, object]

# Linux ends a Unix socket path at 108 bytes, the closing NUL included.
SOCKET_PATH_MAX = 107
ENTRY_MAX = 64 * 1024
HEARTBEAT_FRESH = (-5.0, 90.0)
LOCK_PATIENCE = 5.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def valid_name(name: str) -> bool:
    """Whether ``name`` may be a peer's name (contract section 2)."""
    return _NAME.fullmatch(name) is not None and name != "projects"


def valid_project(project: str) -> bool:
    """Whether ``project`` may be a project's name (contract section 2)."""
    return _PROJECT.fullmatch(project) is not None and ".." not in project


class Registry:
    """The peers of one project under one coms directory.

    Every method works on files alone, so any thread and any process may call it; what must not
    happen twice at once (a name is chosen, an entry removed) is done under ``lock()``.
    """

    def __init__(
        self, coms_dir: str, project: str, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.coms_dir = coms_dir
        self.project = project
        self.project_dir = os.path.join(coms_dir, "projects", project)
        self.agents_dir = os.path.join(self.project_dir, "agents")
        self.sockets_dir = os.path.join(coms_dir, "sockets")
        self._wall = wall

    def prepare(self) -> None:
        """Make the directories, private; raises OSError."""
        files.private_dir(self.coms_dir)
        files.private_dir(self.sockets_dir)
        files.private_dir(self.agents_dir)

    def endpoint(self, session_id: str) -> str:
        """The socket path of a session; ConfigError when the kernel would not take it."""
        path = os.path.join(self.sockets_dir, f"{session_id}.sock")
        size = len(os.fsencode(path))
        if size > SOCKET_PATH_MAX:
            raise ConfigError(
                f"socket path is {size} bytes long, at most {SOCKET_PATH_MAX} are possible: {path}"
                " (choose a shorter PI_COMS_DIR)"
            )
        return path

    @contextlib.contextmanager
    def lock(self, patience: float = LOCK_PATIENCE) -> Iterator[None]:
        """Hold the project's lock, which is not re-entrant; TimeoutError after ``patience`` s."""
        path = os.path.join(self.project_dir, "registry.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            lock_file(fd, path, patience)
            yield
        finally:
            os.close(fd)

    def entries(self) -> list[Entry]:
        """All entries that can be read, dead ones too; others do not count."""
        found = []
        try:
            names = sorted(os.listdir(self.agents_dir))
        except FileNotFoundError:
            return []
        for file_name in names:
            if file_name.endswith(".json"):
                entry = self._read(os.path.join(self.agents_dir, file_name))
                if entry is not None:
                    found.append(entry)
        return found

    def live(self) -> list[Entry]:
        """The live entries; dead ones are deleted on the way, as every reader of a pool does."""
        entries = self.entries()
        alive = [entry for entry in entries if self.is_alive(entry)]
        dead = [entry for entry in entries if entry not in alive]
        if dead:
            with contextlib.suppress(OSError), self.lock():
                for entry in dead:
                    self.drop(str(entry["name"]), entry.get("session_id"))
        return alive

    def find(self, name: str) -> Entry | None:
        """The live entry of that exact name."""
        return next((entry for entry in self.live() if entry["name"] == name), None)

    def has_endpoint(self, endpoint: str) -> bool:
        """Whether any entry, live or not, names this endpoint."""
        return any(entry["endpoint"] == endpoint for entry in self.entries())

    def free_name(self, wanted: str) -> str:
        """``wanted``, or the first of wanted2, wanted3 ... that no one uses; call under ``lock()``.

        An entry that looks alive is still free when nothing listens on its socket and its process
        is gone, so that the start after a kill gets the old name back.
        """
        living = [entry for entry in self.entries() if self.is_alive(entry)]
        taken = {str(entry["name"]) for entry in living if not self._abandoned(entry)}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}{number}"
        return name

    def write(self, entry: Entry) -> None:
        """Write an entry through a temporary file; raises OSError."""
        path = os.path.join(self.agents_dir, f"{entry['name']}.json")
        body = json.dumps(entry, ensure_ascii=False, indent=2)
        files.write_atomic(path, body.encode("utf-8", "replace"), durable=False)

    def owner(self, name: str) -> Entry | None:
        """The entry that stands under ``name``, whoever wrote it."""
        return self._read(os.path.join(self.agents_dir, f"{name}.json"))

    def remove(self, name: str, session_id: object) -> bool:
        """Remove an entry if it is still that session's; whether one was removed."""
        with self.lock():
            return self.drop(name, session_id)

    def drop(self, name: str, session_id: object) -> bool:
        """``remove`` for a caller that holds the lock."""
        entry = self.owner(name)
        if entry is None or entry.get("session_id") != session_id:
            return False
        return files.remove(os.path.join(self.agents_dir, f"{name}.json"))

    def is_alive(self, entry: Entry) -> bool:
        """The rule that all readers of a pool share: a fresh heartbeat, else a living process."""
        return self._fresh(entry) or _pid_exists(entry.get("pid"))

    def sweep(self) -> None:
        """Remove temporary files that killed writers left in the project's directory."""
        with contextlib.suppress(OSError):
            files.remove_stale_temps(self.agents_dir)

    def _fresh(self, entry: Entry) -> bool:
        stamp = entry.get("heartbeat_at")
        if not isinstance(stamp, str):
            return False
        try:
            age = self._wall() - datetime.fromisoformat(stamp).timestamp()
        except (ValueError, OverflowError):
            return False
        return HEARTBEAT_FRESH[0] <= age <= HEARTBEAT_FRESH[1]

    def _abandoned(self, entry: Entry) -> bool:
        if listens(str(entry["endpoint"])):
            return False
        # In a container the process before this one often had the same number.
        pid = entry.get("pid")
        return pid == os.getpid() or not _pid_exists(pid) or self._stale(entry)

    def _stale(self, entry: Entry) -> bool:
        return "heartbeat_at" in entry and not self._fresh(entry)

    def _read(self, path: str) -> Entry | None:
        try:
            value = json.loads(files.read_capped(path, ENTRY_MAX, own=False))
        except (OSError, FileRefused, ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        name, endpoint = value.get("name"), value.get("endpoint")
        if not isinstance(name, str) or not isinstance(endpoint, str) or not valid_name(name):
            return None
        return value


def lock_file(fd: int, path: str, patience: float) -> None:
    """Take the exclusive lock of an open file; TimeoutError after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is held by another process") from None
            # flock has no timeout of its own; its holders need a few milliseconds.
            select.select([], [], [], 0.01)


def listens(endpoint: str) -> bool:
    """Whether something accepts connections at this socket path (a full backlog counts)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(endpoint)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            return False
    return True


def _pid_exists(pid: object) -> bool:
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return False
    except OSError as error:
        return error.errno == errno.EPERM
    return True
