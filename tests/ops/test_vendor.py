"""What ``bin/vendor`` and ``bin/build-zipapp`` make, run as somebody on a host without a network.

It lies in a read-only folder with blanks in its path, is called through links, and the bridges do
their main job with it: by the commands, and by those of the units that it has written. The user is
``nobody`` with an empty HOME; the environment holds an unusable index and proxy, and modules that
must not be taken; where the kernel allows it there is no network but loopback.
"""

import ast
import ctypes
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import types
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_bridges import __version__
from hermes_bridges.core import installation
from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import KEY, HermesApi
from tests.conftest import ROOT, wait
from tests.ops.conftest import Operator, give
from tests.telegram.stage import SKILLS, TOOLS

# On one worker, so that it is made once.
pytestmark = pytest.mark.xdist_group("vendor")

NOWHERE = "http://127.0.0.1:9/"
TOLD = f"hermes-bridges {__version__}\n"
PACKAGES = {
    *("certifi", "charset-normalizer", "hermes-bridges", "idna"),
    *("requests", "urllib3", "websocket-client"),
}
CLONE_NEWNET, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8913, 0x8914, 1
PAGE = ROOT / "docs/offline.md"


def load(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"bin_{name}", ROOT / f"bin/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


vendor = load("vendor")


class Made(NamedTuple):
    """The folder, the one file, and for each a directory of links to its commands."""

    folder: Path
    file: Path
    links: dict[str, Path]
    poison: Path


def read_only(place: Path, yes: bool) -> None:
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode & ~0o222 if yes else mode | 0o200)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    place = Path(tempfile.mkdtemp(prefix="hbv-", dir="/tmp"))
    place.chmod(0o755)
    try:
        yield _make(place)
    finally:
        read_only(place, False)
        shutil.rmtree(place)


def _make(place: Path) -> Made:
    inner = place / "a folder"
    folder, file = inner / "hermes bridges", inner / "hermes-bridges.pyz"
    links = {"folder": place / "of-folder", "file": place / "of-file"}
    poison = place / "poison"
    for directory in (inner, *links.values(), poison):
        directory.mkdir()
    for form, target in (("folder", folder), ("file", file)):
        subprocess.run([sys.executable, ROOT / "bin/vendor.py", form, target], check=True)
    for program in vendor.programs():
        (links["folder"] / program).symlink_to(folder / "bin" / program)
        (links["file"] / program).symlink_to(file)
    for name in ("requests", "hermes_bridges", "json"):
        (poison / f"{name}.py").write_text("raise SystemExit('a module of somebody else')\n")
    read_only(place, True)
    return Made(folder, file, links, poison)


@pytest.fixture(params=["folder", "file"])
def someone(request: pytest.FixtureRequest, made: Made, alone: None) -> Iterator[Operator]:
    place = Path(tempfile.mkdtemp(prefix="hbv-", dir="/tmp"))
    place.chmod(0o755)
    found = Operator(place, made.links[request.param])
    proxies = {f"{kind}_proxy": NOWHERE for kind in ("http", "https", "all")}
    found.environ |= {name.upper(): value for name, value in proxies.items()} | proxies
    found.environ |= {"PIP_INDEX_URL": NOWHERE, "PYTHONPATH": str(made.poison)}
    lib = made.folder / "lib" if request.param == "folder" else made.file
    main = "from hermes_bridges.standins.hermes_command import main; sys.exit(main())"
    code = f"import sys; sys.path.insert(0, {str(lib)!r}); {main}"
    found.command("hermes", f'#!/bin/sh\nexec python3 -IBS -c {shlex.quote(code)} "$@"\n')
    yield found
    found.close()
    shutil.rmtree(place)


@pytest.fixture
def alone() -> Iterator[None]:
    """This thread, and what it starts, in a network that is loopback alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    former = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    entered = libc.unshare(CLONE_NEWNET) == 0
    try:
        if entered:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                asked = struct.pack("16sh", b"lo", 0)
                (flags,) = struct.unpack_from("h", fcntl.ioctl(control, SIOCGIFFLAGS, asked), 16)
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))
        yield
    finally:
        if entered:
            assert libc.setns(former, CLONE_NEWNET) == 0
        os.close(former)


def of_unit(someone: Operator, bridge: str) -> list[str]:
    """The command line of the unit, as systemd would run it."""
    assert someone.run("hermes-bridges", "install-units", "--user").returncode == 0
    config = someone.home / ".config"
    text = (config / f"systemd/user/hermes-{bridge}-bridge@.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = shlex.split(line.replace("%i", "lab").replace("%E", str(config)))
    return [word for word in words if word != "$BRIDGE_COMS_FLAGS"]


def ended_well(child: subprocess.Popen[str]) -> None:
    child.terminate()
    _, said = child.communicate(timeout=20)
    assert child.returncode == 0 and "Traceback" not in said, said


def test_where_it_is_possible_there_is_no_network(alone: None):
    names = {name for _, name in socket.if_nameindex()}
    assert names == {"lo"} or os.geteuid() != 0


def test_each_program_runs_and_takes_nothing_of_its_user(someone: Operator, made: Made):
    code = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')"
    version = someone.run("/usr/bin/env", "python3", "-I", "-c", code).stdout.strip()
    site = f".local/lib/{version}/site-packages"
    for place in (someone.home, someone.home / site):
        shutil.copytree(made.poison, place, dirs_exist_ok=True)
        shutil.copy(made.poison / "json.py", place / "usercustomize.py")
    give(someone.home)
    for program in vendor.programs():
        done = someone.run(program, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, TOLD, "")


def test_a_question_is_asked_and_answered(someone: Operator):
    hermes = someone.path / "hermes"
    phone = someone.start(hermes, "phone", "--auto", "yes", stdout=subprocess.PIPE, text=True)
    assert phone.stdout is not None and "the phone is on" in phone.stdout.readline()
    words = of_unit(someone, "coms")
    bridge = someone.start(*words, "--to", "telegram:42", stderr=subprocess.PIPE, text=True)
    assert bridge.stderr is not None
    assert "user-remote@lab listening" in bridge.stderr.readline()
    asked = ("user-remote", "Deploy now?", "--option", "yes", "--option", "no", "--project", "lab")
    done = someone.run("bridge-coms", "ask", *asked)
    assert done.returncode == 0 and "yes" in done.stdout, done.stderr
    # A waiter of its own takes this answer, in a process that the client starts.
    sent = someone.run("bridge-coms", "send", *asked)
    assert sent.returncode == 0, sent.stderr
    done = someone.run("bridge-coms", "await", sent.stdout.strip(), "--project", "lab")
    assert done.returncode == 0 and "yes" in done.stdout, done.stderr
    ended_well(bridge)


def test_a_message_is_answered(someone: Operator):
    words = of_unit(someone, "donut")
    hub, api = DonutHub(), HermesApi()
    try:
        hub.add_chat(1, trigger="all")
        settings = someone.home / ".config/hermes-bridges/donut-lab.env"
        settings.write_text(
            f"DONUT_STREAM_URL={hub.stream_url}\nDONUT_SEND_URL={hub.send_url}\n"
            f"DONUT_BOT_TOKEN={hub.token}\nHERMES_API_KEY={KEY}\nHERMES_BASE_URL={api.base_url}\n"
        )
        settings.chmod(0o600)
        give(settings)
        check = someone.run("bridge-donut", "--env-file", settings, "--check")
        assert check.returncode == 0, check.stdout + check.stderr
        bridge = someone.start(*words, stderr=subprocess.PIPE, text=True)
        assert wait(lambda: hub.online, 20)
        hub.say(1, "hello")
        assert wait(lambda: hub.posted(1), 20)
        ended_well(bridge)
    finally:
        hub.close()
        api.close()


def test_the_skills_are_installed(someone: Operator):
    hermes = someone.home / ".hermes"
    hermes.mkdir()
    give(hermes)
    told = {
        "gateway list": "Gateways:\n  ✗ default (current)         — not running\n",
        "profile show": f"Profile: default\nPath:    {hermes}\n",
        "skills list": SKILLS,
        "tools list": TOOLS,
        "config get": '{"backend": "local", "home_mode": "real"}\n',
        "send --help": "usage: hermes send\n",
    }
    cases = "".join(f"*'{words}'*) cat <<'END'\n{out}END\n;;\n" for words, out in told.items())
    someone.command("hermes", f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1;;\nesac\n')
    for skill in ("hub-liaison", "hub-conductor"):
        done = someone.run("bridge-telegram", "install", "--skill", skill, "--profile", "default")
        assert done.returncode == 0, done.stderr
    skills = {path.parent.name: path.read_text() for path in hermes.rglob("SKILL.md")}
    assert set(skills) == {"hub-liaison", "hub-conductor"}
    assert all(f"name: {name}\n" in text for name, text in skills.items())


def test_the_certificates_can_be_read(someone: Operator, made: Made):
    place = made.file if "of-file" in str(someone.bin) else made.folder / "lib"
    code = (
        f"import sys; sys.path.insert(0, {str(place)!r}); import certifi, requests, ssl;"
        "ssl.create_default_context(cafile=certifi.where()); print(requests.__file__)"
    )
    done = someone.run("/usr/bin/env", "python3", "-IBS", "-c", code)
    assert done.returncode == 0 and done.stdout.startswith(str(place)), done.stderr


def test_the_host_is_examined(someone: Operator):
    done = someone.run("hermes-bridges", "doctor")
    for package in ("requests", "websocket-client"):
        assert re.search(rf"{package} [\d.]+\S* is installed", done.stdout), done.stdout


def test_the_one_file_called_by_its_own_name_or_by_any_python(made: Made, someone: Operator):
    commands: list[list[str | Path]] = [[made.file], ["/usr/bin/env", "python3", made.file]]
    for command in commands:
        assert someone.run(*command, "bridge-donut", "--version").stdout == TOLD
        done = someone.run(*command, "bridge-nobody")
        assert done.returncode == 2 and "programs: bridge-coms, bridge-donut" in done.stderr


def test_a_run_leaves_nothing_in_the_folder(someone: Operator, made: Made):
    one_file = "of-file" in str(someone.bin)
    own = someone.home / "own"
    (shutil.copy if one_file else shutil.copytree)(made.file if one_file else made.folder, own)
    read_only(own, False)
    give(own)
    before = own.read_bytes() if one_file else b""
    words = (own, "hermes-bridges") if one_file else (own / "bin/hermes-bridges",)
    assert someone.run(*words, "status").stdout
    if one_file:
        assert own.read_bytes() == before
    else:
        assert vendor.verify(own) == 0


def test_what_is_in_it(made: Made):
    folder = made.folder
    assert {path.name.rpartition("-")[0] for path in (folder / "licenses").iterdir()} == PACKAGES
    for licences in (folder / "licenses").iterdir():
        assert any("LICENSE" in path.name and path.stat().st_size for path in licences.iterdir())
    ours = {
        path.relative_to(ROOT): path.read_bytes()
        for path in (ROOT / "hermes_bridges").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert all((folder / "lib" / name).read_bytes() == data for name, data in ours.items())
    assert not [path for path in folder.rglob("*") if path.suffix in (".so", ".pyc")]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


def test_the_programs_are_those_that_are_installed():
    lines = vendor.setup()["options.entry_points"]["console_scripts"].split("\n")
    wanted = dict(re.findall(r"([\w-]+) = ([\w.]+):main", "\n".join(lines)))
    assert wanted == load("start").PROGRAMS


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "t"
    vendor.make_folder(target)
    return target


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"#")


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (lambda t: alter(t / "lib/requests/api.py"), "changed: lib/requests/api.py"),
        (lambda t: (t / "lib/idna/core.py").unlink(), "missing: lib/idna/core.py"),
        (lambda t: (t / "lib/ssl.py").touch(), "added: lib/ssl.py"),
        (lambda t: (t / "lib/ssl").symlink_to("/tmp"), "added: lib/ssl"),
        (lambda t: link(t / "lib/idna/core.py"), "added: lib/idna/moved\nchanged: lib/idna/core.p"),
        (lambda t: (t / "bin/bridge-coms").chmod(0o644), "cannot be executed: bin/bridge-coms"),
    ],
)
def test_what_was_tampered_with_is_found(
    target: Path, tamper: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
):
    assert vendor.verify(target) == 0
    tamper(target)
    capsys.readouterr()
    assert vendor.verify(target) == 1
    assert told in capsys.readouterr().out


def test_the_launcher_verifies_without_an_environment(made: Made, tmp_path: Path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "bin", checkout / "bin")
    command = f"{checkout}/bin/vendor", "--verify"
    done = subprocess.run([*command, str(made.folder)], capture_output=True, text=True)
    assert done.returncode == 0 and "files as they were made" in done.stdout, done.stderr
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"bin/vendor: {tmp_path} is not of bin/vendor\n"
    assert not (checkout / ".venv").exists()


def test_the_same_is_made_each_time(target: Path, tmp_path: Path):
    again = tmp_path / "another name"
    vendor.make_folder(again)
    assert (target / "SHA256SUMS").read_bytes() == (again / "SHA256SUMS").read_bytes()
    for path in target.rglob("*"):
        one, other = path.stat(), (again / path.relative_to(target)).stat()
        assert (one.st_mtime, one.st_mode) == (other.st_mtime, other.st_mode)
    files = tmp_path / "f", tmp_path / "g"
    for file in (*files, files[1]):
        vendor.make_file(file)
        assert file.stat().st_mode & 0o777 == 0o755
    assert files[0].read_bytes() == files[1].read_bytes()


def test_one_of_ours_is_replaced_at_once(target: Path, monkeypatch: pytest.MonkeyPatch):
    def never(*_: object) -> None:
        raise AssertionError("there was a moment without a folder")

    alter(target / "lib/idna/core.py")
    cache = target / "lib/idna/__pycache__"
    cache.mkdir()
    (cache / "core.cpython-311.pyc").touch()
    read_only(target, True)
    before = target.stat().st_ino
    monkeypatch.setattr(vendor.os, "rename", never)
    vendor.make_folder(target)
    assert vendor.verify(target) == 0 and target.stat().st_ino != before
    assert list(target.parent.iterdir()) == [target]


def test_one_of_ours_is_replaced_where_names_cannot_be_exchanged(
    target: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(vendor, "exchange", refuse)
    alter(target / "lib/idna/core.py")
    vendor.make_folder(target)
    assert vendor.verify(target) == 0
    assert list(target.parent.iterdir()) == [target]


def test_something_else_is_not_replaced(target: Path, tmp_path: Path):
    settings = target / "donut-helper.env"
    settings.write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "SHA256SUMS").write_text("0  x\n")
    file = tmp_path / "file"
    file.write_text("#!/bin/sh\n")
    for place in (target, other, file):
        with pytest.raises(vendor.Refused):
            vendor.make_folder(place)
        with pytest.raises(vendor.Refused):
            vendor.make_file(place)
    assert settings.read_text() == "mine" and file.read_text() == "#!/bin/sh\n"
    assert [one.name for one in other.iterdir()] == ["SHA256SUMS"]
    assert {one.name for one in tmp_path.iterdir()} == {"t", "other", "file"}
    empty = tmp_path / "empty"
    empty.mkdir()
    vendor.make_folder(empty)
    assert vendor.verify(empty) == 0


def test_a_failure_leaves_what_was_there(target: Path, monkeypatch: pytest.MonkeyPatch):
    def full(place: Path, files: dict[str, bytes]) -> None:
        (place / "half").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vendor, "write", full)
    with pytest.raises(OSError, match="No space"):
        vendor.make_folder(target)
    assert vendor.verify(target) == 0
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["p.py", "p-1.dist-info/LICENSE"], None),
        (["p.py", "p.cpython-311.so", "1__mypyc.cpython-311.so", "p-1.dist-info/COPYING"], None),
        (["p.cpython-311.so", "p-1.dist-info/LICENSE"], "there is no other form"),
        (["p.py"], "has no licence"),
        (["p.py", "p-1.dist-info/LICENSE", "changed"], "is not as it was installed"),
    ],
)
def test_what_cannot_be_taken(tmp_path: Path, names: list[str], told: str | None):
    info = tmp_path / "p-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: P\nVersion: 1\n")
    for name in names:
        (tmp_path / name).touch()
    empty = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"
    lines = [f"{name},{empty}" for name in names] + ["../../../bin/p,,", "p-1.dist-info/METADATA,,"]
    (info / "RECORD").write_text("\n".join(lines))
    if "changed" in names:
        (tmp_path / "changed").write_text("x")
    one = Distribution.at(info)
    if told is not None:
        with pytest.raises(vendor.Refused, match=told):
            dict(vendor.foreign_files(one))
        return
    found = dict(vendor.foreign_files(one))
    assert set(found) == {
        "lib/p.py",
        "lib/p-1.dist-info/METADATA",
        f"licenses/p-1/{names[-1][14:]}",
    }


def test_without_a_python_that_is_new_enough(made: Made, monkeypatch, capsys, tmp_path: Path):
    launcher = made.folder / "bin/bridge-donut"
    (tmp_path / "readlink").symlink_to(shutil.which("readlink") or "")
    done = subprocess.run([launcher], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    told = "bridge-donut: Python 3.11 or later is needed, and none was found on PATH\n"
    assert (done.returncode, done.stderr) == (1, told)
    # And with one that is too old, which looks for another.
    start = load("start")
    source = (ROOT / "bin/start.py").read_text()
    ast.parse(source, feature_version=(3, 5))
    argv = ["/x/lib", "bridge-donut", "--check"]
    flags = types.SimpleNamespace(isolated=1, no_site=1)
    old = {"executable": "/old", "flags": flags, "stderr": sys.stderr, "version_info": (3, 9)}
    monkeypatch.setattr(start, "sys", types.SimpleNamespace(argv=argv, path=[""], **old))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start.main() == 1 and capsys.readouterr().err == told
    (tmp_path / "python3.12").touch(mode=0o755)

    def replaced(*words: object) -> None:
        raise ChildProcessError(*words)

    monkeypatch.setattr(start.os, "execv", replaced)
    with pytest.raises(ChildProcessError) as end:
        start.main()
    python = str(tmp_path / "python3.12")
    assert end.value.args == (python, [python, "-IBS", *argv])


def test_how_this_installation_runs_its_programs(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(installation, "place", lambda: str(tmp_path / "lib"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bridge-coms").touch(mode=0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    module = [*installation.python(), "-m", "hermes_bridges.coms"]
    assert installation.command("bridge-coms") == module and "-P" in module
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__main__.py").touch()
    assert installation.command("bridge-coms") == [str(tmp_path / "bin/bridge-coms")]
    shutil.rmtree(tmp_path / "lib")
    (tmp_path / "lib").touch()
    whole = [*installation.python(), str(tmp_path / "lib"), "bridge-coms"]
    assert installation.command("bridge-coms") == whole


def test_the_page_can_be_followed(short_tmp: Path):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script = "set -eu\n" + "".join(blocks)
    assert blocks and "sudo" not in script
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={"HOME": str(short_tmp), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(TOLD) == script.count("--version") > 0
