"""Makes what runs with the system's Python alone: the package, and all that it requires.

    python bin/vendor.py folder TARGET             a folder with launchers and hashes
    python bin/vendor.py folder --verify TARGET    whether one is as it was made
    python bin/vendor.py file FILE                 the same in one file

What the package requires is taken from the environment of this Python, where it was installed, and
compared with the hashes that were recorded then. The same versions give the same bytes, on every
host. Only the standard library is at hand here.
"""

import argparse
import base64
import configparser
import contextlib
import ctypes
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"
MARK = "# hermes-bridges "
SHEBANG = b"#!/usr/bin/env -S python3 -IBS\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that an archive can tell
LICENCE = re.compile(r"(licen[cs]e|copying|notice|authors)\b.*", re.IGNORECASE)
COMPILED = (".so", ".pyd")
LAUNCHER = """\
#!/bin/sh
# Runs {program} with the system's Python; nothing else of it is used.
here=$(readlink -f "$0") || exit 1
for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$python" >/dev/null; then
        exec "$python" -IBS "${{here%/bin/*}}/lib" {program} "$@"
    fi
done
echo "{program}: Python 3.11 or later is needed, and none was found on PATH" >&2
exit 1
"""


class Refused(Exception):
    """It cannot be made, or not there; the text is for the person who wanted it."""


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def version() -> str:
    text = (ROOT / "hermes_bridges/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def programs() -> list[str]:
    scripts = setup()["options.entry_points"]["console_scripts"].splitlines()
    return [line.partition("=")[0].strip() for line in scripts if line]


def required() -> list[Distribution]:
    """What the package requires, and what that requires, by name."""
    pending = [
        line
        for line in setup()["options"]["install_requires"].splitlines()
        if line and not line.startswith("#")
    ]
    found: dict[str, Distribution] = {}
    while pending:
        requirement, _, marker = pending.pop().partition(";")
        word = re.match(r"[\w.-]+", requirement.strip())
        if word is None or "extra" in marker:
            continue
        name = re.sub(r"[-_.]+", "-", word[0]).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if marker:
                # For other hosts than this one.
                continue
            raise Refused(f"{name} is not installed for {sys.executable}") from None
        pending += found[name].requires or []
    return [found[name] for name in sorted(found)]


def title(one: Distribution) -> str:
    return f"{re.sub(r'[-_.]+', '-', one.metadata['Name']).lower()}-{one.version}"


def own_files() -> Iterator[tuple[str, bytes]]:
    for path in sorted((ROOT / "hermes_bridges").rglob("*")):
        name = path.relative_to(ROOT)
        if path.is_file() and not any(part.startswith((".", "__pyc")) for part in name.parts):
            yield f"lib/{name.as_posix()}", path.read_bytes()
    yield "lib/__main__.py", (ROOT / "bin/start.py").read_bytes()
    yield f"licenses/hermes-bridges-{version()}/LICENSE", (ROOT / "LICENSE").read_bytes()


def foreign_files(one: Distribution) -> Iterator[tuple[str, bytes]]:
    """The modules and data of a package that need no compiler, and its licences."""
    listed = {path.as_posix(): path for path in one.files or ()}
    licensed = False
    for name, path in sorted(listed.items()):
        top, *rest = path.parts
        if top in ("..", "/") or "__pycache__" in rest or "tests" in rest:
            continue
        if top.endswith(".dist-info"):
            if LICENCE.fullmatch(path.name):
                licensed = True
                inner = PurePosixPath(*rest[rest[0] == "licenses" :])
                yield f"licenses/{title(one)}/{inner}", whole(path)
            elif rest == ["METADATA"]:
                yield f"lib/{name}", whole(path)
        elif not name.endswith(COMPILED):
            yield f"lib/{name}", whole(path)
        elif "__mypyc" not in name and f"{name.partition('.')[0]}.py" not in listed:
            raise Refused(f"{title(one)}: {name} is compiled, and there is no other form of it")
    if not licensed:
        raise Refused(f"{title(one)} has no licence")


def whole(path: PackagePath) -> bytes:
    """A file as it was installed."""
    data = path.read_binary()
    if path.hash is not None:
        digest = base64.urlsafe_b64encode(hashlib.new(path.hash.mode, data).digest())
        if digest.decode().rstrip("=") != path.hash.value:
            raise Refused(f"{path.locate()} is not as it was installed")
    return data


def contents(packages: list[Distribution]) -> dict[str, bytes]:
    found = dict(own_files())
    for one in packages:
        found |= foreign_files(one)
    return found


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- the folder


def make_folder(target: Path) -> None:
    """Make it in a place of its own, then exchange the whole for what is there."""
    refuse_to_replace(target)
    packages = required()
    made = contents(packages)
    for program in programs():
        made[f"bin/{program}"] = LAUNCHER.format(program=program).encode()
    sums = f"{MARK}{' '.join([version(), *map(title, packages)])}\n"
    sums += "".join(f"{digest(data)}  {name}\n" for name, data in sorted(made.items()))
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(new, {**made, SUMS: sums.encode()})
        put(new, target)
    finally:
        discard(new)
    print(f"{target}: {len(made)} files, SHA-256 of {SUMS}: {digest(sums.encode())}")


def write(place: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name.startswith("bin/") else 0o644)
    for path in (place, *place.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (315532800, 315532800))


def put(new: Path, target: Path) -> None:
    """Put a folder into its place; what was there is then where the new one was."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(new, target)
        return
    try:
        exchange(new, target)
    except (AttributeError, OSError):
        # This file system cannot do it at once: there is a moment without a folder.
        former = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        os.rename(target, former)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(former, target)
            raise
        discard(former)


def exchange(one: Path, other: Path) -> None:
    """Let two names change places at once; AttributeError or OSError where that cannot be."""
    at_cwd, at_once = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), at_once) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def discard(place: Path) -> None:
    """Remove a folder, also one that was made read-only."""
    for directory, _, _ in os.walk(place):
        with contextlib.suppress(OSError):
            os.chmod(directory, 0o755)
    shutil.rmtree(place, ignore_errors=True)


def refuse_to_replace(target: Path) -> None:
    """Refused where there is something that this program has not made."""
    if target.is_dir():
        if not any(target.iterdir()):
            return
        if is_ours(target):
            foreign = sorted(there(target) - {*recorded(target), SUMS})
            foreign = [name for name in foreign if "/__pycache__/" not in name]
            if not foreign:
                return
            raise Refused(f"{target} also holds what is not of hermes-bridges: {foreign[0]}")
    elif not os.path.lexists(target):
        return
    raise Refused(f"{target} is there, and is not of bin/vendor: nothing was changed")


def is_ours(target: Path) -> bool:
    sums = target / SUMS
    return sums.is_file() and sums.read_bytes().startswith(MARK.encode())


def recorded(target: Path) -> dict[str, str]:
    """The hash of each file as it was made."""
    lines = (target / SUMS).read_text("utf-8", "replace").splitlines()[1:]
    return {name: sum for sum, _, name in (line.partition("  ") for line in lines)}


def there(target: Path) -> set[str]:
    """All that lies in a folder but directories; a link to one is no directory."""
    return {
        path.relative_to(target).as_posix()
        for path in target.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def verify(target: Path) -> int:
    """Tell each file that is not as it was made; 1 if there is one."""
    if not is_ours(target):
        raise Refused(f"{target} is not of bin/vendor")
    wanted = recorded(target)
    found = there(target) - {SUMS}
    faults = [f"missing: {name}" for name in wanted.keys() - found]
    faults += [f"added: {name}" for name in found - wanted.keys()]
    for name in wanted.keys() & found:
        path = target / name
        if path.is_symlink() or not path.is_file() or digest(path.read_bytes()) != wanted[name]:
            faults.append(f"changed: {name}")
        elif name.startswith("bin/") and path.stat().st_mode & 0o111 != 0o111:
            faults.append(f"cannot be executed: {name}")
    for fault in sorted(faults):
        print(fault)
    sums = digest((target / SUMS).read_bytes())
    if not faults:
        print(f"{target}: {len(wanted)} files as they were made, SHA-256 of {SUMS}: {sums}")
    return 1 if faults else 0


# --- the one file


def make_file(target: Path) -> None:
    if os.path.lexists(target) and not is_our_file(target):
        raise Refused(f"{target} is there, and is not of bin/build-zipapp: nothing was changed")
    packed = io.BytesIO(SHEBANG)
    packed.seek(0, os.SEEK_END)
    # Not compressed: what a compressor makes depends on its version.
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents(required()).items()):
            entry = zipfile.ZipInfo(name.removeprefix("lib/"), EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    data = packed.getvalue()
    fd, new = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o755)
        os.replace(new, target)
    except OSError:
        os.unlink(new)
        raise
    print(f"{target}: {len(data)} bytes, SHA-256: {digest(data)}")


def is_our_file(target: Path) -> bool:
    if not target.is_file():
        return False
    with target.open("rb") as file:
        if file.read(len(SHEBANG)) != SHEBANG or not zipfile.is_zipfile(target):
            return False
    with zipfile.ZipFile(target) as archive:
        return "hermes_bridges/__init__.py" in archive.namelist()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bin/vendor.py")
    forms = parser.add_subparsers(dest="form", required=True)
    folder = forms.add_parser("folder", prog="bin/vendor", help="make a folder")
    folder.add_argument("--verify", action="store_true", help="compare it with its hashes")
    folder.add_argument("target", metavar="TARGET", type=os.path.realpath)
    file = forms.add_parser("file", prog="bin/build-zipapp", help="make one file")
    file.add_argument("target", metavar="FILE", type=os.path.realpath)
    options = parser.parse_args()
    target = Path(options.target)
    try:
        if options.form == "file":
            make_file(target)
        elif options.verify:
            return verify(target)
        else:
            make_folder(target)
    except (Refused, OSError) as error:
        command = "bin/build-zipapp" if options.form == "file" else "bin/vendor"
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
