import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_bridges.wishee.binding import Binding, Identity, IdentityUnusable, read
from hermes_bridges.wishee.settings import BRIDGE_URL
from tests.conftest import ROOT

# As the published connector writes them: today's, and that of its first versions.
SECRET = "ab" * 32
PUBLISHED = {
    "agent_id": "6f1c1a9e-8f0b-4c3c-9a51-0d7f3f1f2b11",
    "secret": SECRET,
    "bridge_url": "wss://bridge.example/ws",
    "bound": True,
    "claw_id": "6f1c1a9e-8f0b-4c3c-9a51-0d7f3f1f2b11",
}
OLD = {"claw_id": "old-1", "secret": "cd" * 32, "bridge_url": "wss://b.example/ws", "bound": True}


@pytest.fixture
def directory(short_tmp) -> Path:
    return short_tmp / "home" / "wishee-connector"


def put(directory: Path, fields, name: str = "binding.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    return path


def load(directory: Path, home: Path | None = None) -> Identity:
    return Binding(str(directory), None if home is None else str(home)).load_or_create()


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_new_identity(directory):
    identity = load(directory)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", identity.agent_id)
    assert re.fullmatch(r"[0-9a-f]{64}", identity.secret)
    assert (identity.bridge_url, identity.bound) == (BRIDGE_URL, False)
    assert load(directory) == identity
    assert load(directory.with_name("other")).secret != identity.secret


def test_the_published_connector_can_read_what_we_write(directory):
    identity = load(directory)
    found = json.loads((directory / "binding.json").read_bytes())
    assert found == {
        "agent_id": identity.agent_id,
        "secret": identity.secret,
        "bridge_url": BRIDGE_URL,
        "bound": False,
        "claw_id": identity.agent_id,
    }


def test_we_can_read_what_the_published_connector_writes(directory):
    path = put(directory, PUBLISHED)
    before = path.read_bytes()
    identity = load(directory)
    assert identity.agent_id == PUBLISHED["agent_id"]
    assert identity.secret == PUBLISHED["secret"]
    assert identity.bridge_url == "wss://bridge.example/ws"
    assert identity.bound
    assert path.read_bytes() == before, "nothing has changed"


def test_there_and_back_keeps_identity_and_whatever_else_there_is(directory):
    put(directory, {**PUBLISHED, "bound": False, "of_later": {"x": 1}})
    binding = Binding(str(directory), None)
    binding.load_or_create()
    assert binding.set_bound(True).bound
    found = json.loads((directory / "binding.json").read_bytes())
    assert found == {**PUBLISHED, "of_later": {"x": 1}}
    binding.set_bound(False)
    assert not load(directory).bound


def test_an_old_file_has_claw_id_alone(directory):
    put(directory, OLD)
    binding = Binding(str(directory), None)
    assert binding.load_or_create().agent_id == "old-1"
    binding.set_bound(False)
    found = json.loads((directory / "binding.json").read_bytes())
    assert found == {**OLD, "agent_id": "old-1", "bound": False}


def test_a_bridge_url_that_is_none_is_the_usual_one(directory):
    for url in (None, 1, "", "http://x", "wss://"):
        put(directory, {**PUBLISHED, "bridge_url": url})
        assert load(directory).bridge_url == BRIDGE_URL
    for odd in (None, 1, "true"):
        put(directory, {**PUBLISHED, "bound": odd})
        assert not load(directory).bound


def test_bound_is_written_only_when_it_changes(directory):
    put(directory, PUBLISHED)
    binding = Binding(str(directory), None)
    binding.load_or_create()
    before = os.stat(directory / "binding.json")
    binding.set_bound(True)
    assert os.stat(directory / "binding.json").st_ino == before.st_ino


# --- damage

BAD = {
    "empty": b"",
    "NUL": b"\0" * 4096,
    "cut": json.dumps(PUBLISHED).encode()[:-20],
    "list": b"[]",
    "no secret": json.dumps({"agent_id": "a"}).encode(),
    "no id": json.dumps({"secret": "s"}).encode(),
    "odd id": json.dumps({**PUBLISHED, "agent_id": 5, "claw_id": ""}).encode(),
    "a control character": json.dumps({**PUBLISHED, "secret": "a\nb"}).encode(),
    "deep": b"[" * 60_000,
    "huge": b" " * 70_000 + json.dumps(PUBLISHED).encode(),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_W6_a_damaged_identity_falls_back_to_the_one_kept_beside_it(content, directory, caplog):
    put(directory, PUBLISHED)
    identity = load(directory)
    put(directory, content)
    assert load(directory) == identity
    assert (directory / "binding.json.bad-1").read_bytes() == content
    assert "binding.json is damaged" in caplog.text
    assert "comes from" in caplog.text and ".bak" in caplog.text
    assert SECRET not in caplog.text
    assert json.loads((directory / "binding.json").read_bytes()) == PUBLISHED


def test_KH14_damaged_and_nothing_kept_is_a_new_identity_and_an_error_wishee(directory, caplog):
    put(directory, b"\0" * 4096)
    identity = load(directory)
    assert identity.agent_id != PUBLISHED["agent_id"]
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert (directory / "binding.json.bad-1").exists()


def test_W6_a_lost_file_comes_back(directory):
    put(directory, PUBLISHED)
    identity = load(directory)
    os.unlink(directory / "binding.json")
    assert load(directory) == identity


def test_the_copy_follows_another_identity(directory):
    load(directory)
    put(directory, PUBLISHED)
    load(directory)
    assert read(str(directory / "binding.json.bak")).agent_id == PUBLISHED["agent_id"]


def test_an_identity_of_an_older_place_is_copied(directory, short_tmp):
    legacy = put(short_tmp / "ana" / ".hermes" / "wishee-connector", PUBLISHED)
    identity = load(directory, short_tmp / "ana")
    assert identity.agent_id == PUBLISHED["agent_id"]
    assert legacy.exists()
    assert (directory / "binding.json").exists()
    # From then on the two have nothing to do with each other.
    os.unlink(legacy)
    assert load(directory, short_tmp / "ana") == identity


def test_our_own_place_comes_first(directory, short_tmp):
    put(short_tmp / "ana" / ".hermes" / "wishee-connector", OLD)
    put(directory, PUBLISHED)
    assert load(directory, short_tmp / "ana").agent_id == PUBLISHED["agent_id"]
    # The older place may be our own one.
    ours = short_tmp / "eva" / ".hermes" / "wishee-connector"
    put(ours, b"damaged")
    assert load(ours, short_tmp / "eva").agent_id not in (OLD["claw_id"], PUBLISHED["agent_id"])


def test_KH14_what_cannot_be_read_is_not_replaced_wishee(directory, short_tmp):
    path = put(directory, PUBLISHED)
    os.rename(path, short_tmp / "elsewhere")
    os.symlink(short_tmp / "elsewhere", path)
    with pytest.raises(IdentityUnusable, match=r"binding.json cannot be used: symlink"):
        load(directory)
    assert path.is_symlink()
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(IdentityUnusable, match="not regular"):
        load(directory)
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(IdentityUnusable):
        load(directory)


def test_a_full_disk_leaves_the_file_as_it_was(directory, monkeypatch):
    put(directory, PUBLISHED)
    binding = Binding(str(directory), None)
    binding.load_or_create()
    before = (directory / "binding.json").read_bytes()

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            binding.set_bound(False)
    assert (directory / "binding.json").read_bytes() == before
    assert sorted(os.listdir(directory)) == ["binding.json", "binding.json.bak"]
    assert not binding.set_bound(False).bound


# --- secrets


def test_W24_everything_is_private_from_its_creation(directory, monkeypatch):
    seen = []
    really_open = os.open

    def watching(path, flags, mode=0o777, **more):
        fd = really_open(path, flags, mode, **more)
        if flags & os.O_CREAT:
            seen.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(os, "open", watching)
    before = os.umask(0)
    try:
        binding = Binding(str(directory), None)
        binding.load_or_create()
        binding.set_bound(True)
    finally:
        os.umask(before)
    assert len(seen) == 3
    assert set(seen) == {0o600}
    assert mode(directory) == 0o700
    assert {mode(path) for path in directory.iterdir()} == {0o600}


def test_W24_what_an_older_connector_left_open_is_closed(directory):
    path = put(directory, PUBLISHED)
    os.chmod(path, 0o644)
    os.chmod(directory, 0o755)
    load(directory)
    assert (mode(path), mode(directory)) == (0o600, 0o700)


def test_KH22_the_secret_is_in_no_text_wishee(directory, caplog):
    caplog.set_level("DEBUG")
    put(directory, PUBLISHED)
    identity = load(directory)
    assert SECRET not in repr(identity) + str(identity) + caplog.text
    put(directory, {**PUBLISHED, "agent_id": "", "claw_id": ""})
    with pytest.raises(ValueError) as caught:
        read(str(directory / "binding.json"))
    assert SECRET not in str(caught.value)


# --- kills

FLIPPING = """
import sys
from hermes_bridges.wishee.binding import Binding
binding = Binding(sys.argv[1], None)
binding.load_or_create()
print("ready", flush=True)
while True:
    binding.set_bound(True)
    binding.set_bound(False)
"""


def test_W6_a_kill_at_any_moment_keeps_the_identity(directory, counts):
    put(directory, {**PUBLISHED, "bound": False})
    for number in range(counts(15, 100)):
        child = subprocess.Popen(
            [sys.executable, "-c", FLIPPING, str(directory)], stdout=subprocess.PIPE, cwd=ROOT
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(0.001 * (number % 10))
            child.send_signal(signal.SIGKILL)
        for name in ("binding.json", "binding.json.bak"):
            found = read(str(directory / name))
            assert (found.agent_id, found.secret) == (PUBLISHED["agent_id"], PUBLISHED["secret"])
    assert not [name for name in os.listdir(directory) if ".bad" in name]
    # What the killed ones left of their temporary files is gone with the next start.
    load(directory)
    assert sorted(os.listdir(directory)) == ["binding.json", "binding.json.bak"]
