"""Skill trees: the packaged ones, the installed ones, and the step from one to the other.

A tree is the files of one skill by their relative path. Only plain files in plain directories are
ever looked at or moved: a symlink or anything special is refused (contract section 10).
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable

from hermes_bridges.core import files
from hermes_bridges.errors import BridgeError, FileRefused

LIAISON = "hub-liaison"
CONDUCTOR = "hub-conductor"
SKILLS = (LIAISON, CONDUCTOR)

MISSING = "missing"
CURRENT = "current"
DRIFTED = "drifted"

FILE_LIMIT = 1 << 20
"""Bytes of the largest file of a skill."""
FILES_LIMIT = 1000
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)

Tree = Mapping[str, bytes]


def packaged(skill: str) -> Tree:
    """The tree that this package ships."""
    tree: dict[str, bytes] = {}
    _gather(resources.files("hermes_bridges.telegram") / "skills" / skill, "", tree)
    return tree


def _gather(place: Traversable, prefix: str, tree: dict[str, bytes]) -> None:
    for entry in place.iterdir():
        if entry.is_dir():
            _gather(entry, f"{prefix}{entry.name}/", tree)
        else:
            tree[prefix + entry.name] = entry.read_bytes()


def installed(path: str) -> Tree | None:
    """The tree at that path, or None when nothing is there.

    Raises BridgeError for what may not stand in a skill, or OSError.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    _must_be_directory(path, found.st_mode)
    tree: dict[str, bytes] = {}
    _read(path, "", tree)
    return tree


def _read(place: str, prefix: str, tree: dict[str, bytes]) -> None:
    with os.scandir(place) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                _read(entry.path, f"{prefix}{entry.name}/", tree)
                continue
            if len(tree) >= FILES_LIMIT:
                raise BridgeError(f"{place}: more than {FILES_LIMIT} files are no skill")
            try:
                tree[prefix + entry.name] = files.read_capped(entry.path, FILE_LIMIT, own=False)
            except FileRefused as refusal:
                raise BridgeError(_refusal(entry.path, refusal.reason)) from None


def _refusal(path: str, reason: str) -> str:
    told = {
        "symlink": "is a symbolic link, which is refused in a skill",
        "not_regular": "is neither a file nor a directory, which is refused in a skill",
        "not_directory": "is not a directory",
        "too_large": f"is larger than {FILE_LIMIT} bytes, which is refused in a skill",
    }
    return f"{path} {told[reason]}"


def _must_be_directory(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise BridgeError(_refusal(path, "symlink"))
    if not stat.S_ISDIR(mode):
        raise BridgeError(_refusal(path, "not_directory"))


def fingerprint(tree: Tree) -> str:
    """Sorted by path: each path, a NUL, the content, a NUL; as hexadecimal SHA-256."""
    digest = hashlib.sha256()
    for path in sorted(tree):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + tree[path] + b"\0")
    return digest.hexdigest()


def state(skill: str, path: str) -> str:
    """MISSING, CURRENT or DRIFTED; raises as ``installed`` does."""
    tree = installed(path)
    if tree is None:
        return MISSING
    return CURRENT if fingerprint(tree) == fingerprint(packaged(skill)) else DRIFTED


@contextlib.contextmanager
def locked(profile: str) -> Iterator[None]:
    """Only one installation at a time may change the skills of the profile at this path."""
    fd = os.open(profile, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BridgeError(f"another installation works on {profile}") from None
        yield
    finally:
        os.close(fd)


def install(skill: str, profile: str, target: str, backup: str | None) -> None:
    """Put the packaged tree at ``target``; what stands there moves to ``backup``. Under ``locked``.

    Killed at any moment, ``target`` is the old tree or the new one, whole. The new tree is made in
    the profile's directory and not beside ``target``, where Hermes would take the half of it that
    a kill leaves behind for a skill. Raises BridgeError or OSError, and then has changed nothing.
    """
    staged = os.path.join(profile, f".{skill}.new")
    if os.path.lexists(staged):
        shutil.rmtree(staged)
    _make_plain_directory(os.path.dirname(target), 0o755)
    try:
        _write(packaged(skill), staged)
        if backup is None:
            os.rename(staged, target)
        else:
            _replace(staged, target, backup)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    files.sync_dir(os.path.dirname(target))


def _write(tree: Tree, place: str) -> None:
    os.mkdir(place, 0o755)
    directories = {place}
    for path, content in tree.items():
        whole = os.path.join(place, path)
        directory = os.path.dirname(whole)
        os.makedirs(directory, 0o755, exist_ok=True)
        files.write_atomic(whole, content, mode=0o644)
        directories.add(directory)
    for directory in directories:
        os.chmod(directory, 0o755)
        files.sync_dir(directory)


def _replace(staged: str, target: str, backup: str) -> None:
    _make_plain_directory(os.path.dirname(backup), 0o700)
    # The new tree takes the name of the backup, and then both change places in one step, so that
    # no moment is without a skill and none without the old tree.
    os.rename(staged, backup)
    try:
        exchange(backup, target)
    except OSError as error:
        os.rename(backup, staged)
        if error.errno in _CANNOT_EXCHANGE:
            raise BridgeError(
                f"this file system cannot exchange two directories in one step: move {target} away"
                " by hand, then install again"
            ) from None
        raise
    files.sync_dir(os.path.dirname(backup))


def exchange(one: str, other: str) -> None:
    """Let two paths change places in one step; OSError where the file system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, "renameat2 is missing", one)
    names = os.fsencode(one), os.fsencode(other)
    if function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)


def _make_plain_directory(path: str, mode: int) -> None:
    """Make a directory and its parents; a symbolic link in its place is refused."""
    os.makedirs(path, mode, exist_ok=True)
    if os.path.islink(path):
        raise BridgeError(f"{path} is a symbolic link, which is refused here")
