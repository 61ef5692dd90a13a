"""Trees of skills, and that an installation is all or nothing."""

import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram import skilltree
from hermes_bridges.telegram.skilltree import CONDUCTOR, CURRENT, DRIFTED, LIAISON, MISSING, SKILLS

SOURCE = Path(skilltree.__file__).parent / "skills"
ROOT = Path(__file__).resolve().parents[2]


class Profile:
    """A profile's directory with room for the liaison skill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path / "skills" / LIAISON
        self.backup = path / "backups" / "agent-fleet" / f"{LIAISON}-then"

    def state(self) -> str:
        return skilltree.state(LIAISON, str(self.target))

    def drift(self) -> bytes:
        """An older tree with more files than the packaged one; its fingerprint."""
        (self.target / "references").mkdir(parents=True)
        (self.target / "SKILL.md").write_text("old")
        (self.target / "references" / "more.md").write_text("older")
        return self.print_of(self.target)

    def install(self, backup: bool = False) -> None:
        with skilltree.locked(str(self.path)):
            skilltree.install(
                LIAISON, str(self.path), str(self.target), str(self.backup) if backup else None
            )

    @staticmethod
    def print_of(place: Path) -> bytes:
        tree = skilltree.installed(str(place))
        return skilltree.fingerprint(tree).encode() if tree is not None else b"missing"

    def names(self) -> list[str]:
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(tmp_path)


def test_the_fingerprint_is_that_of_the_contract() -> None:
    tree = {"b": b"2", "a/x": b"1", "SKILL.md": b"\0"}
    text = b"SKILL.md\0\0\0" + b"a/x\0" + b"1\0" + b"b\0" + b"2\0"
    assert skilltree.fingerprint(tree) == hashlib.sha256(text).hexdigest()
    assert skilltree.fingerprint({}) == hashlib.sha256(b"").hexdigest()
    assert skilltree.fingerprint({"a": b"bc"}) != skilltree.fingerprint({"ab": b"c"})


@pytest.mark.parametrize("skill", SKILLS)
def test_each_packaged_skill_is_a_copy_of_its_source(skill: str) -> None:
    assert skilltree.packaged(skill) == {"SKILL.md": (SOURCE / skill / "SKILL.md").read_bytes()}


def test_a_packaged_tree_may_have_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skills" / "x" / "deep").mkdir(parents=True)
    (tmp_path / "skills" / "x" / "deep" / "y").write_bytes(b"z")
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    assert skilltree.packaged("x") == {"deep/y": b"z"}


def test_the_three_states(profile: Profile) -> None:
    assert profile.state() == MISSING
    profile.install()
    assert profile.state() == CURRENT
    text = (profile.target / "SKILL.md").read_bytes()
    (profile.target / "SKILL.md").write_bytes(text + b"\n")
    assert profile.state() == DRIFTED
    (profile.target / "SKILL.md").write_bytes(text)
    (profile.target / "more.md").write_bytes(b"")
    assert profile.state() == DRIFTED
    (profile.target / "more.md").rename(profile.target / "SKILL.txt")
    assert profile.state() == DRIFTED


def test_an_empty_directory_is_no_current_skill(profile: Profile) -> None:
    profile.target.mkdir(parents=True)
    assert profile.state() == DRIFTED


def test_what_is_installed_is_readable_and_leaves_nothing_else(profile: Profile) -> None:
    umask = os.umask(0o077)
    try:
        profile.install()
    finally:
        os.umask(umask)
    assert profile.names() == [f"skills/{LIAISON}/SKILL.md"]
    assert (profile.target / "SKILL.md").stat().st_mode & 0o777 == 0o644
    assert profile.target.stat().st_mode & 0o777 == 0o755


def test_a_replacement_keeps_the_old_tree_in_the_backup(profile: Profile) -> None:
    old = profile.drift()
    profile.install(backup=True)
    assert profile.state() == CURRENT
    assert profile.print_of(profile.backup) == old
    assert (profile.path / "backups" / "agent-fleet").stat().st_mode & 0o077 == 0
    assert [name for name in profile.names() if "new" in name] == []


def test_a_nested_tree_arrives_whole(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"SKILL.md": b"1", "a/b/c.md": b"2", "a/d.md": b"3"}
    monkeypatch.setattr(skilltree, "packaged", lambda skill: tree)
    profile.install()
    assert skilltree.installed(str(profile.target)) == tree


def link(place: Path) -> None:
    place.symlink_to("/etc/hostname")


@pytest.mark.parametrize("make", [link, os.mkfifo], ids=["symlink", "fifo"])
def test_links_and_special_files_are_refused(
    profile: Profile, make: Callable[[Path], None]
) -> None:
    (profile.target / "deep").mkdir(parents=True)
    make(profile.target / "deep" / "odd")
    with pytest.raises(BridgeError, match=f"deep/odd is .*{'link' if make is link else 'neither'}"):
        profile.state()


def test_a_link_or_a_file_in_place_of_the_skill_is_refused(profile: Profile) -> None:
    profile.target.parent.mkdir()
    profile.target.symlink_to(SOURCE / LIAISON)
    with pytest.raises(BridgeError, match="is a symbolic link"):
        profile.state()
    profile.target.unlink()
    profile.target.write_text("x")
    with pytest.raises(BridgeError, match="is not a directory"):
        profile.state()


def test_a_link_to_a_directory_inside_is_refused_and_not_followed(profile: Profile) -> None:
    profile.drift()
    (profile.target / "linked").symlink_to("/etc")
    with pytest.raises(BridgeError, match="linked is a symbolic link"):
        profile.state()


def test_a_link_in_place_of_the_skills_or_of_the_backups_is_refused(
    profile: Profile, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (profile.path / "skills").symlink_to(elsewhere)
    with pytest.raises(BridgeError, match="skills is a symbolic link"):
        profile.install()
    (profile.path / "skills").unlink()
    old = profile.drift()
    (profile.path / "backups").mkdir()
    (profile.path / "backups" / "agent-fleet").symlink_to(elsewhere)
    with pytest.raises(BridgeError, match="agent-fleet is a symbolic link"):
        profile.install(backup=True)
    assert profile.print_of(profile.target) == old
    assert list(elsewhere.iterdir()) == []


def test_a_tree_that_is_no_skill_by_its_size_is_refused(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile.target.mkdir(parents=True)
    with (profile.target / "big").open("wb") as file:
        file.truncate(skilltree.FILE_LIMIT + 1)
    with pytest.raises(BridgeError, match="big is larger than"):
        profile.state()
    (profile.target / "big").unlink()
    monkeypatch.setattr(skilltree, "FILES_LIMIT", 2)
    for name in "abc":
        (profile.target / name).touch()
    with pytest.raises(BridgeError, match="more than 2 files"):
        profile.state()


def test_only_one_installation_at_a_time(profile: Profile) -> None:
    with skilltree.locked(str(profile.path)):
        with pytest.raises(BridgeError, match="another installation"):
            profile.install()
    profile.install()


def test_what_a_killed_installation_left_is_cleared_away(profile: Profile) -> None:
    left = profile.path / f".{LIAISON}.new"
    left.mkdir()
    (left / "half").touch()
    profile.install()
    assert profile.state() == CURRENT and not left.exists()


def test_a_failure_changes_nothing(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    old = profile.drift()

    def full(path: str, data: bytes, *, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with monkeypatch.context() as patch:
        patch.setattr("hermes_bridges.core.files.write_atomic", full)
        with pytest.raises(OSError, match="No space"):
            profile.install(backup=True)
    assert profile.print_of(profile.target) == old
    assert not profile.backup.exists() and not (profile.path / f".{LIAISON}.new").exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EACCES])
def test_a_file_system_that_cannot_exchange_is_told(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old = profile.drift()

    class Library:
        def __init__(self, name: object, use_errno: bool) -> None:
            if number != errno.ENOSYS:
                self.renameat2 = lambda *words: -1

    monkeypatch.setattr("ctypes.CDLL", Library)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    with pytest.raises(OSError if number == errno.EACCES else BridgeError) as caught:
        profile.install(backup=True)
    assert ("move" in str(caught.value)) is (number != errno.EACCES)
    assert profile.print_of(profile.target) == old
    assert not profile.backup.exists() and not (profile.path / f".{LIAISON}.new").exists()


# Ends the process at the nth step that changes the file system, as a kill there would.
KILLED_AT_STEP = """
import os, sys
from hermes_bridges.core import files
from hermes_bridges.telegram import skilltree
profile, target, backup, last = sys.argv[1], sys.argv[2], sys.argv[3] or None, int(sys.argv[4])
steps = 0
def counted(module, name):
    real = getattr(module, name)
    def step(*args, **kwargs):
        global steps
        steps += 1
        if steps > last:
            os._exit(9)
        return real(*args, **kwargs)
    setattr(module, name, step)
for name in ("mkdir", "rename", "replace", "chmod", "fchmod", "write", "fsync", "unlink", "rmdir"):
    counted(os, name)
counted(skilltree, "exchange")
with skilltree.locked(profile):
    skilltree.install(skilltree.LIAISON, profile, target, backup)
"""


@pytest.mark.parametrize("drifted", [False, True], ids=["missing", "drifted"])
def test_killed_at_any_step_it_leaves_the_old_tree_or_the_new_one(
    short_tmp: Path, drifted: bool
) -> None:
    new = skilltree.fingerprint(skilltree.packaged(LIAISON)).encode()
    seen = set()
    for last in range(60):
        profile = Profile(short_tmp / str(last))
        profile.path.mkdir()
        old = profile.drift() if drifted else b"missing"
        arguments = [str(profile.path), str(profile.target)]
        arguments += [str(profile.backup) if drifted else "", str(last)]
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT_STEP, *arguments], cwd=ROOT, check=False
        )
        found = profile.print_of(profile.target)
        seen.add(found)
        assert found in (old, new), f"after {last} steps"
        if drifted and found == new:
            assert profile.print_of(profile.backup) == old
        if done.returncode == 0:
            break
        assert done.returncode == 9
        # The next one is not troubled by what was left.
        if found != new:
            profile.backup = profile.backup.with_name("later")
            profile.install(backup=drifted)
            assert profile.state() == CURRENT
            if drifted:
                assert profile.print_of(profile.backup) == old
    else:
        pytest.fail("it never ended")
    assert seen == {old, new} and last > 8


# Replaces the tree and puts the old one back, for ever; every step of it is one installation.
FOR_EVER = """
import os, shutil, sys
from hermes_bridges.telegram import skilltree
profile, target, backup = sys.argv[1:]
print("go", flush=True)
while True:
    with skilltree.locked(profile):
        skilltree.install(skilltree.LIAISON, profile, target, backup)
    skilltree.exchange(backup, target)
    os.rename(backup, profile + "/gone")
    shutil.rmtree(profile + "/gone")
"""


def test_killed_at_any_moment_it_leaves_the_old_tree_or_the_new_one(
    profile: Profile, counts: Callable[[int, int], int]
) -> None:
    old = profile.drift()
    new = skilltree.fingerprint(skilltree.packaged(LIAISON)).encode()
    dice = random.Random(7)
    for _ in range(counts(12, 200)):
        shutil.rmtree(profile.backup.parent, ignore_errors=True)
        arguments = [str(profile.path), str(profile.target), str(profile.backup)]
        process = subprocess.Popen(
            [sys.executable, "-c", FOR_EVER, *arguments], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(dice.uniform(0.0, 0.03))  # the moment of the kill is the test
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = profile.print_of(profile.target)
        assert found in (old, new)
        if found == new:
            assert profile.print_of(profile.backup) == old
            skilltree.exchange(str(profile.backup), str(profile.target))


def test_the_conductor_is_a_skill_like_the_other(profile: Profile) -> None:
    target = profile.path / "skills" / CONDUCTOR
    with skilltree.locked(str(profile.path)):
        skilltree.install(CONDUCTOR, str(profile.path), str(target), None)
    assert skilltree.state(CONDUCTOR, str(target)) == CURRENT
    assert profile.state() == MISSING
