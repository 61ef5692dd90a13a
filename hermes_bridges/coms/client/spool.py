"""The files that `send`, its waiter, `await` and `reply` share, in the form that coms-cli has."""

import os
from typing import NamedTuple

from hermes_bridges.coms.client.scope import Scope, stamp
from hermes_bridges.coms.envelope import Prompt, is_ulid
from hermes_bridges.coms.jsrules import parse_json, stringify
from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError

# More than any line of the wire can become as JSON.
FILE_MAX = 1024 * 1024
INBOUND_MAX = 1_000


class Unreadable(BridgeError):
    """A file that holds no JSON object, perhaps because it is being written."""


class Stored(NamedTuple):
    """A response that has arrived."""

    value: object
    error: object


class Inbound(NamedTuple):
    """A prompt that waits for a reply."""

    sender: str
    endpoint: object


class Spool:
    """``$PI_COMS_DIR/cli/projects/<project>/<name>/``; any process may read and write it.

    Ids are checked before they become file names (ValueError). Every method may raise OSError.
    """

    def __init__(self, scope: Scope) -> None:
        cli = os.path.join(scope.coms_dir, "cli")
        self._legacy = os.path.join(cli, scope.name)
        self.directory = os.path.join(cli, "projects", scope.project, scope.name)
        self._pending = os.path.join(self.directory, "pending")
        self._responses = os.path.join(self.directory, "responses")
        self._inbound = os.path.join(self.directory, "inbound")

    def check(self) -> None:
        """Raise BridgeError where there is a spool that belongs to no project."""
        if os.path.lexists(self._legacy):
            raise BridgeError(
                f"{self._legacy} is a spool of an old release, which belongs to no project: move or"
                " remove it once you know whose messages it holds"
            )

    def prepare(self) -> None:
        """Make the directories, private. Raises as ``check()``."""
        self.check()
        for directory in (self._pending, self._responses, self._inbound):
            files.private_dir(directory)

    def mark(self, msg_id: str, target: str) -> None:
        """Note that a response is waited for."""
        fields: dict[str, object] = {"msg_id": msg_id, "target": target, "sent_at": stamp()}
        self._write(self._pending, msg_id, fields)

    def unmark(self, msg_id: str) -> bool:
        """Wait for a response no longer; whether one was waited for."""
        return files.remove(_path(self._pending, msg_id))

    def is_marked(self, msg_id: str) -> bool:
        """Whether a response is waited for."""
        return os.path.lexists(_path(self._pending, msg_id))

    def store(self, msg_id: str, value: object, error: str | None) -> None:
        """Keep a response, and then wait for it no longer."""
        fields = {"response": value, "error": error, "received_at": stamp()}
        self._write(self._responses, msg_id, fields)
        self.unmark(msg_id)

    def stored(self, msg_id: str) -> Stored | None:
        """The response that was kept. Raises Unreadable or FileRefused."""
        fields = self._read(self._responses, msg_id)
        return None if fields is None else Stored(fields.get("response"), fields.get("error"))

    def hold(self, prompt: Prompt, hops: object) -> str | None:
        """Keep a prompt for `reply`; None, or the reason why it is not taken."""
        if not is_ulid(prompt.msg_id):
            return "msg_id must be a 26-character Crockford ULID"
        held = self.held(prompt.msg_id)
        if held is not None:
            same = held.endpoint == prompt.sender_endpoint
            return None if same else "msg_id is open for another endpoint"
        if len(os.listdir(self._inbound)) >= INBOUND_MAX:
            return "queue full"
        fields = {
            "msg_id": prompt.msg_id,
            "prompt": prompt.prompt,
            "sender_name": prompt.sender_name,
            "sender_endpoint": prompt.sender_endpoint,
            "sender_session": prompt.sender_session,
            "hops": hops,
            "received_at": stamp(),
        }
        self._write(self._inbound, prompt.msg_id, fields)
        return None

    def held(self, msg_id: str) -> Inbound | None:
        """The prompt that was kept. Raises Unreadable or FileRefused."""
        fields = self._read(self._inbound, msg_id)
        if fields is None:
            return None
        sender = fields.get("sender_name") or fields.get("sender_session")
        return Inbound(
            sender if isinstance(sender, str) else "(unknown)", fields.get("sender_endpoint")
        )

    def release(self, msg_id: str) -> None:
        """Forget a prompt that was answered."""
        files.remove(_path(self._inbound, msg_id))

    def _write(self, directory: str, msg_id: str, fields: dict[str, object]) -> None:
        files.write_atomic(_path(directory, msg_id), stringify(fields).encode())

    def _read(self, directory: str, msg_id: str) -> dict[str, object] | None:
        path = _path(directory, msg_id)
        try:
            raw = files.read_capped(path, FILE_MAX)
        except FileNotFoundError:
            return None
        try:
            fields = parse_json(raw.decode())
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise Unreadable(f"{path} holds no JSON object")
        return fields


def _path(directory: str, msg_id: str) -> str:
    if not is_ulid(msg_id):
        raise ValueError(f"not a ULID: {msg_id!r}")
    return os.path.join(directory, f"{msg_id}.json")
