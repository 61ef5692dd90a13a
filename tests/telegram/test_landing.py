"""Where answers land, by the rules of the versions; those are tried with real ones elsewhere."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hermes_bridges.telegram import landing
from hermes_bridges.telegram.hermes_facts import Terminal
from hermes_bridges.telegram.landing import HOME, PROFILE_HOME, QUESTIONS, Landing, Place, Unknown
from tests.conftest import wait


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def outcome(
    profile: Path,
    mode: str | None,
    environ: Mapping[str, str] = {"HOME": "/home/pat"},
    container: bool = False,
    backend: str = "local",
) -> Landing:
    place = Place(str(profile), environ, "work")
    return landing.work_out(place, Terminal(backend, mode), lambda environ: container)


def inner(profile: Path) -> Landing:
    return Landing(f"{profile}/home/{QUESTIONS}", PROFILE_HOME)


PAT = Landing(f"/home/pat/{QUESTIONS}", HOME)


def test_a_version_without_modes_uses_the_home_of_the_profile(profile: Path) -> None:
    assert outcome(profile, None) == inner(profile)
    (profile / "home").rmdir()
    assert outcome(profile, None) == PAT
    (profile / "home").touch()
    assert outcome(profile, None) == PAT


@pytest.mark.parametrize("mode", ["profile", "isolated", "profile-home", "profile_home"])
def test_the_mode_profile(profile: Path, mode: str) -> None:
    assert outcome(profile, mode) == inner(profile)
    (profile / "home").rmdir()
    assert outcome(profile, mode) == PAT


@pytest.mark.parametrize("mode", ["real", "host", "user", "real-home", "real_home"])
def test_the_mode_real(profile: Path, mode: str) -> None:
    assert outcome(profile, mode, container=True) == PAT
    given = {"HOME": "/home/pat", "HERMES_REAL_HOME": "/srv/real"}
    assert outcome(profile, mode, given).directory == f"/srv/real/{QUESTIONS}"


@pytest.mark.parametrize("mode", ["auto", "", "none", "whatever"])
def test_every_other_mode_depends_on_the_host(profile: Path, mode: str) -> None:
    assert outcome(profile, mode) == PAT
    assert outcome(profile, mode, container=True) == inner(profile)
    (profile / "home").rmdir()
    assert outcome(profile, mode, container=True) == PAT
    given = {"HOME": "/home/pat", "HERMES_REAL_HOME": "/srv/real"}
    assert outcome(profile, mode, given) == PAT


@pytest.mark.parametrize("mode", ["auto", "real"])
def test_a_gateway_whose_home_is_that_of_the_profile_goes_back(
    profile: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": f"{profile}/home/"}
    monkeypatch.setattr(landing, "account_home", lambda: "/home/account")
    assert outcome(profile, mode, environ) == Landing(f"/home/account/{QUESTIONS}", HOME)
    monkeypatch.setattr(landing, "account_home", lambda: "")
    with pytest.raises(Unknown, match="without a HOME"):
        outcome(profile, mode, environ)


def test_the_home_of_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(Path("/nowhere"), "real", {}).directory is not None

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(Unknown, match="without a HOME"):
        outcome(Path("/nowhere"), "real", {})


@pytest.mark.parametrize("home", ["", "here", "~"])
def test_a_gateway_without_a_home_is_told(home: str) -> None:
    with pytest.raises(Unknown, match="without a HOME"):
        outcome(Path("/nowhere"), "auto", {"HOME": home})


def test_another_back_end_has_no_place_here(profile: Path) -> None:
    assert outcome(profile, "real", backend="docker") == Landing(None, "docker")


def test_directories_are_the_same_through_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert landing.same_directory(f"{tmp_path}/a/x/y", f"{tmp_path}/b/x/./y/")
    assert not landing.same_directory(f"{tmp_path}/a", f"{tmp_path}/c")


def test_the_environment_of_a_process() -> None:
    process = subprocess.Popen(["sleep", "60"], env={"HOME": "/x=y", "EMPTY": ""})
    try:
        # For a moment after its start the kernel shows none.
        found = wait(lambda: landing.gateway_environ(process.pid), 5)
        assert found == {"HOME": "/x=y", "EMPTY": ""}
    finally:
        process.kill()
        process.wait()
    with pytest.raises(Unknown, match=f"process {process.pid}\\) cannot be read: No such file"):
        landing.gateway_environ(process.pid)


def overruled(
    path: Path, text: str, environ: Mapping[str, str] = {}, terminal: Terminal | None = None
) -> str:
    """Why it cannot be told, or nothing."""
    (path / ".env").write_text(text)
    place = Place(str(path), environ, "work")
    try:
        landing.must_not_be_overruled(place, terminal or Terminal("local", "auto"))
    except Unknown as unknown:
        return str(unknown)
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# TERMINAL_ENV=docker\n",
        "TERMINAL_ENV=local\n",
        "export TERMINAL_ENV = 'Local'\n",
        "TERMINAL_ENV=\n",
        "TERMINAL_HOME_MODE=auto\n",
        "MY_TERMINAL_ENV=docker\nXHOME=/x\nTELEGRAM_HOME_CHANNEL=5\n",
    ],
)
def test_settings_that_agree_are_no_trouble(tmp_path: Path, text: str) -> None:
    assert overruled(tmp_path, text) == ""


@pytest.mark.parametrize(
    "text, name",
    [
        ("TERMINAL_ENV=docker\n", "TERMINAL_ENV"),
        ('A=1\n  export TERMINAL_HOME_MODE="profile"\n', "TERMINAL_HOME_MODE"),
        ("HOME=/x\n", "HOME"),
        ("HERMES_REAL_HOME=/x", "HERMES_REAL_HOME"),
    ],
)
def test_settings_that_may_decide_otherwise_are_told(tmp_path: Path, text: str, name: str) -> None:
    told = overruled(tmp_path, text)
    assert told.startswith(f"{tmp_path}/.env sets {name}")


def test_the_environment_may_decide_otherwise_too(tmp_path: Path) -> None:
    told = overruled(tmp_path, "", {"TERMINAL_ENV": "ssh"})
    assert told.startswith("the environment of the gateway sets TERMINAL_ENV")
    assert overruled(tmp_path, "", {"TERMINAL_ENV": "local", "HOME": "/x"}) == ""


def test_a_mode_that_a_version_does_not_know_does_not_matter(tmp_path: Path) -> None:
    old = Terminal("local", None)
    assert overruled(tmp_path, "TERMINAL_HOME_MODE=real\n", terminal=old) == ""


def test_settings_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env")
    place = Place(str(tmp_path), {}, "work")
    with pytest.raises(Unknown, match="cannot be read"):
        landing.must_not_be_overruled(place, Terminal("local", "auto"))
    (tmp_path / ".env").unlink()
    landing.must_not_be_overruled(place, Terminal("local", "auto"))


@pytest.mark.parametrize(
    "files, environ, expected",
    [
        ({}, {}, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"dockerenv": ""}, {}, True),
        ({"containerenv": ""}, {}, True),
        ({"cgroup": "1:name=systemd:/docker/abc\n"}, {}, True),
        ({"cgroup": "0::/\n"}, {}, False),
        ({"mountinfo": "1 2 0:1 / / rw - overlay /run/containerd/x rw\n"}, {}, True),
        ({"mountinfo": "1 2 0:1 / /var rw - overlay /run/containerd/x rw\n"}, {}, False),
        ({"mountinfo": "short\n"}, {}, False),
    ],
)
def test_what_hermes_takes_for_a_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    environ: dict[str, str],
    expected: bool,
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    marks = tuple(str(tmp_path / name) for name in ("dockerenv", "containerenv"))
    monkeypatch.setattr(landing, "CONTAINER_FILES", marks)
    monkeypatch.setattr(landing, "CONTAINER_GROUPS", str(tmp_path / "cgroup"))
    monkeypatch.setattr(landing, "CONTAINER_MOUNTS", str(tmp_path / "mountinfo"))
    assert landing.in_container(environ) is expected
