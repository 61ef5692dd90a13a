"""The panes of Herdr: closing the bridge's old ones, opening a new one (contract section 10)."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import command
from hermes_bridges.telegram.arguments import checked_project

PROGRAM = "herdr"
LABEL = "hermes-bridge"
LIMIT = 20.0
"""Seconds for one command."""
_RATIO = "0.3"


class Scene(NamedTuple):
    """Where the controller was called: a pane of a workspace, and its project."""

    pane: str
    workspace: str
    cwd: str
    project: str


class Herdr:
    """Calls ``herdr``; every method raises BridgeError."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def scene(self, project: str | None) -> Scene:
        """Look around in the current pane; ``project`` wins over what is found there."""
        current = self._environ.get("HERDR_PANE_ID", "")
        if not current:
            raise BridgeError("HERDR_PANE_ID is not set: this is no pane of Herdr")
        pane = _object(self._call("pane", "get", current), "pane get", "pane")
        workspace = _id(pane.get("workspace_id"), "pane get", "workspace_id")
        cwd = _text(pane.get("cwd"), "pane get", "cwd")
        words = "pane process-info"
        told = self._call("pane", "process-info", "--pane", current)
        info = _object(told, words, "process_info")
        processes = _list(info.get("foreground_processes"), words, "foreground_processes")
        found = next(filter(None, map(_project_of, processes)), None)
        chosen = project or found or self._environ.get("PI_COMS_PROJECT") or "default"
        return Scene(current, workspace, cwd, checked_project(chosen))

    def close_bridges(self, scene: Scene) -> list[str]:
        """Close the panes with the bridge's label, but for the current one; their ids."""
        told = self._call("pane", "list", "--workspace", scene.workspace)
        panes = _list(told.get("panes"), "pane list", "panes")
        closed = []
        for pane in panes:
            if not isinstance(pane, dict):
                raise _unreadable("pane list", "panes")
            if pane.get("label") == LABEL and pane.get("pane_id") != scene.pane:
                pane_id = _id(pane.get("pane_id"), "pane list", "pane_id")
                self._call("pane", "close", pane_id)
                closed.append(pane_id)
        return closed

    def open_bridge(self, scene: Scene, argv: Sequence[str]) -> str:
        """Run the bridge in a new pane beside the current one; the id of the pane."""
        told = self._call(
            *("pane", "split", scene.pane, "--direction", "right", "--ratio", _RATIO),
            *("--cwd", scene.cwd, "--no-focus"),
        )
        pane_id = _id(_object(told, "pane split", "pane").get("pane_id"), "pane split", "pane_id")
        try:
            self._call("pane", "rename", pane_id, LABEL)
            self._call("pane", "run", pane_id, shlex.join(argv))
        except BridgeError as fault:
            try:
                self._call("pane", "close", pane_id)
            except BridgeError as second:
                raise BridgeError(f"{fault}; and the new pane stays: {second}") from None
            raise
        return pane_id

    def _call(self, *words: str) -> dict[str, Any]:
        output = command.run([PROGRAM, *words], self._environ, LIMIT)
        told = " ".join(words[:2])
        if not output.strip():
            return {}
        try:
            answer = json.loads(output)
        except ValueError:
            raise BridgeError(f"herdr {told} prints no JSON") from None
        if not isinstance(answer, dict):
            raise _unreadable(told, "result")
        return _object(answer, told, "result")


def _project_of(process: object) -> str | None:
    argv = process.get("argv") if isinstance(process, dict) else None
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise _unreadable("pane process-info", "argv")
    for place, word in enumerate(argv):
        if word == "--project" and place + 1 < len(argv):
            return str(argv[place + 1])
        if word.startswith("--project="):
            return str(word.partition("=")[2])
    return None


def _unreadable(words: str, field: str) -> BridgeError:
    return BridgeError(f"herdr {words} tells no {field} that can be read")


def _object(parent: Mapping[str, Any], words: str, field: str) -> dict[str, Any]:
    value = parent.get(field)
    if not isinstance(value, dict):
        raise _unreadable(words, field)
    return value


def _list(value: object, words: str, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise _unreadable(words, field)
    return value


def _text(value: object, words: str, field: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _unreadable(words, field)
    return value


def _id(value: object, words: str, field: str) -> str:
    """A text that cannot be taken for a flag."""
    text = _text(value, words, field)
    if text.startswith("-"):
        raise _unreadable(words, field)
    return text
