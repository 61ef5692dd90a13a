"""``hermes-bridges reset-state``: moves the state of a bridge aside, when none holds it."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from hermes_bridges.core import files
from hermes_bridges.ctl import bridges, processes
from hermes_bridges.ctl.arguments import Arguments, directory
from hermes_bridges.ctl.bridges import BRIDGES, COMS, DONUT
from hermes_bridges.ctl.terminal import safe
from hermes_bridges.errors import BridgeError

_ARGUMENTS = Arguments(
    "reset-state",
    "Moves the state of a bridge aside, beside itself, under a name that ends in .bad-1\n"
    "(or the next number): nothing is deleted. It refuses while a bridge uses the state.\n"
    "\n"
    "coms: the records of all questions, their answer files that were not taken yet and\n"
    "the status files of this HOME. Open questions are forgotten by it; the event log\n"
    "stays.\n"
    "donut: the database of one state directory: what was answered, the sessions of the\n"
    "chats, and answers that were not posted yet.",
    "Exit code: 0, also where there is no state; 1 when it was refused or not possible;\n"
    "2 for a command line that cannot be understood.",
)
_ARGUMENTS.add_argument("bridge", choices=BRIDGES, help="whose state")
_ARGUMENTS.add_argument(
    "--instance", metavar="NAME", help="which Donut bridge, as `status` names it"
)
_ARGUMENTS.add_argument(
    "--state-dir", type=directory, metavar="DIR", help="state directory of the Donut bridge"
)
USAGE = _ARGUMENTS.usage_text()

_COMS_PARTS = ("pending", "questions", "status")


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Move the state and say where to; BridgeError when it is in use or cannot be moved."""
    given = _ARGUMENTS.read(words)
    if given.bridge == COMS:
        if given.instance or given.state_dir:
            raise BridgeError("the coms bridges of a HOME share their state: no one is chosen")
        moved = _reset_coms(environ)
    else:
        moved = _reset_donut(_donut_directory(environ, given.instance, given.state_dir))
    for path in moved:
        print(f"the state was moved to {safe(path)}")
    if not moved:
        print("there is no state")
    return 0


# coms


def _reset_coms(environ: Mapping[str, str]) -> list[str]:
    base = bridges.coms_base(environ)
    if base is None:
        raise BridgeError("HOME is not set to a directory: it holds the state")
    _refuse_foreign(base)
    pending = os.path.join(base, "pending")
    _refuse_held(pending)
    moved = []
    for part in _COMS_PARTS:
        path = os.path.join(base, part)
        if os.path.lexists(path):
            moved.append(files.set_aside(path))
            if part == "pending":
                _take_back_if_held(moved[0], pending)
    return moved


def _refuse_foreign(base: str) -> None:
    try:
        found = os.stat(base)
    except FileNotFoundError:
        return
    if found.st_uid != os.geteuid():
        raise BridgeError(f"{base} belongs to another user (uid {found.st_uid}): ask as that user")


def _refuse_held(pending: str) -> None:
    holders = [holder for holder in _holders(pending) if holder.held is not False]
    if holders:
        pids = ", ".join(str(holder.pid or "?") for holder in holders)
        raise BridgeError(f"a coms bridge uses the state (process {pids}): stop it first")


def _take_back_if_held(aside: str, pending: str) -> None:
    """One that started in this very moment has taken its lock in what was moved."""
    try:
        _refuse_held(aside)
    except BridgeError:
        if not os.path.lexists(pending):
            os.rename(aside, pending)
        raise


def _holders(pending: str) -> Iterator[processes.Holder]:
    try:
        names = os.listdir(pending)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(".owner-") and name.endswith(".lock"):
            yield processes.lock_holder(os.path.join(pending, name), probe=True)


# donut


def _donut_directory(environ: Mapping[str, str], instance: str | None, given: str | None) -> str:
    if given is not None:
        return given
    found = bridges.chosen(bridges.find(environ, ask_systemd=False), DONUT, instance)
    directories = [one.state_dir for one in found if one.state_dir]
    if len(directories) == 1:
        return directories[0]
    if not directories:
        raise BridgeError("no state of a Donut bridge was found: name it with --state-dir")
    raise BridgeError(
        "there are several state directories, choose one with --state-dir: "
        + ", ".join(directories)
    )


def _reset_donut(directory: str) -> list[str]:
    from hermes_bridges.donut.store import reset_state

    place = _as_its_owner(directory)
    moved = reset_state(place)
    return [] if moved is None else [os.path.normpath(os.path.join(directory, moved))]


def _as_its_owner(directory: str) -> str:
    """For root, become the owner of the directory, whose own files are no trap then.

    Returns the path to use: the way to the directory may be closed to its owner.
    """
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return directory
    if os.geteuid() != 0 or found.st_uid == 0 or not stat.S_ISDIR(found.st_mode):
        return directory
    os.chdir(directory)
    os.setgroups([])
    os.setresgid(found.st_gid, found.st_gid, found.st_gid)
    os.setresuid(found.st_uid, found.st_uid, found.st_uid)
    return os.curdir
