"""``hermes-bridges install-units``: writes the systemd units, and never over an edited one."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hermes_bridges.core import files, installation
from hermes_bridges.ctl import unitfiles
from hermes_bridges.ctl.arguments import Arguments, directory
from hermes_bridges.ctl.unitfiles import Host, UnitFile
from hermes_bridges.errors import ConfigError, FileRefused

_SIZE_MAX = 1024 * 1024
_HIDDEN = ("/home/", "/root/", "/run/user/")  # from a unit with ProtectHome=
_UNSHARE_LIMIT = 5.0  # seconds


def _arguments() -> Arguments:
    arguments = Arguments(
        "install-units",
        "Writes the systemd units of the coms bridge (one instance a project) and the Donut\n"
        "bridge (one instance a bot), with the paths of this installation, and examples of\n"
        "their settings. Nothing is started. A file that was edited is left as it is.",
        "Exit code: 0 all is written, or was there; 1 a file was left as it is, one cannot be\n"
        "written, or the Donut unit could not reach this installation (--system);\n"
        "2 for a command line or paths that cannot be used.",
    )
    manager = arguments.add_mutually_exclusive_group(required=True)
    manager.add_argument(
        "--user", action="store_true", help="units of your own manager, in ~/.config/systemd/user"
    )
    manager.add_argument(
        "--system", action="store_true", help="units of the system, in /etc/systemd/system"
    )
    arguments.add_argument(
        "--dry-run", action="store_true", help="print the files instead of writing them"
    )
    arguments.add_argument(
        "--force", action="store_true", help="write over edited files too; a copy is kept"
    )
    arguments.add_argument(
        "--run-as",
        metavar="NAME",
        help="with --system: the person whose coms bridge it is (default: who called sudo)",
    )
    arguments.add_argument(
        "--root",
        metavar="DIR",
        type=directory,
        help="write below this directory, for packages and images",
    )
    return arguments


USAGE = _arguments().usage_text()


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write the units; 1 if a file was in the way, or the units could not run."""
    options = _arguments().read(words)
    if options.system:
        host = _system_host(environ, options.run_as)
        wanted = unitfiles.system_files(host)
    elif options.run_as:
        raise ConfigError("--run-as goes with --system")
    else:
        host, units = _user_host(environ)
        wanted = unitfiles.user_files(host, units, _namespaces_allowed())
    root = options.root or ""
    placed = [one._replace(path=root + one.path) for one in wanted]
    if options.dry_run:
        for one in placed:
            print(f"# {one.path}\n{one.text}")
        return 0
    left = [why for one in placed if (why := _write(one, options.force))]
    for why in left:
        print(f"left as it is, {why}")
    faults = list(_unreadable()) if options.system else []
    for fault in faults:
        print(f"warning: {fault}", file=sys.stderr)
    _tell_next(host, "" if options.system else " --user", bool(options.system))
    return 1 if left or faults else 0


def _system_host(environ: Mapping[str, str], name: str | None) -> Host:
    name = name or environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    try:
        person = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"--run-as: there is no user {name}") from None
    coms, donut = unitfiles.commands()
    return Host(
        coms=coms,
        donut=donut,
        user=person.pw_name,
        home=person.pw_dir,
        hermes_home=os.path.join(person.pw_dir, ".hermes"),
        # The PATH of sudo has none of the person's own directories.
        hermes_dir=_hermes_dir(environ, os.path.join(person.pw_dir, ".local", "bin")),
        settings=unitfiles.SYSTEM_SETTINGS,
    )


def _user_host(environ: Mapping[str, str]) -> tuple[Host, str]:
    home, hermes_home = unitfiles.values_of(environ)
    config = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        config = os.path.join(home, ".config")
    coms, donut = unitfiles.commands()
    usual = hermes_home == os.path.join(home, ".hermes")
    host = Host(
        coms=coms,
        donut=donut,
        user="",
        home=home,
        hermes_home="%h/.hermes" if usual else unitfiles.assigned(hermes_home),
        hermes_dir=_hermes_dir(environ),
        settings=os.path.join(config, "hermes-bridges"),
    )
    return host, os.path.join(config, "systemd", "user")


def _hermes_dir(environ: Mapping[str, str], *first: str) -> str | None:
    """Where the ``hermes`` command is: in these directories, or else on PATH."""
    path = os.pathsep.join(filter(None, (*first, environ.get("PATH", ""))))
    found = shutil.which("hermes", path=path)
    return None if found is None else os.path.dirname(os.path.abspath(found))


def _namespaces_allowed() -> bool:
    """Whether the kernel lets a person's own manager use what the units ask for."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_UNSHARE_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _write(file: UnitFile, force: bool) -> str:
    """Put a file into its place; else why what is there was left, and which it is."""
    try:
        there = files.read_capped(file.path, _SIZE_MAX, own=False).decode(
            "utf-8", "surrogateescape"
        )
    except FileNotFoundError:
        there = None
    except FileRefused as refused:
        # One that is masked, say: the others are written all the same.
        return f"since it is no file that could be replaced: {refused}"
    if there == file.text:
        print(f"unchanged: {file.path}")
        return ""
    if there is not None and unitfiles.is_edited(there):
        if not force:
            return f"since it was edited: {file.path} (--force writes over it)"
        print(f"the edited one is kept as {files.set_aside(file.path)}")
    os.makedirs(os.path.dirname(file.path), exist_ok=True)
    files.write_atomic(file.path, file.text.encode("utf-8", "surrogateescape"), mode=file.mode)
    print(f"written: {file.path}")
    return ""


def _unreadable() -> list[str]:
    """What keeps the account of the Donut unit from running this installation."""
    needed = {os.path.realpath(sys.executable), sys.executable, installation.place()}
    closed = sorted(path for path in needed if path.startswith(_HIDDEN) or not _open_to_all(path))
    if not closed:
        return []
    return [
        f"the Donut unit has an account of its own, which cannot reach {', '.join(closed)}:"
        " install into a place that is open to all, such as /opt/hermes-bridges"
    ]


def _open_to_all(path: str) -> bool:
    while path != "/":
        mode = os.stat(path).st_mode
        if not mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def _tell_next(host: Host, user: str, system: bool) -> None:
    print("\nNext:")
    print(f"  systemctl{user} daemon-reload")
    print(f"  cp {host.settings}/coms.env.example {host.settings}/coms-PROJECT.env   # and edit it")
    print(f"  systemctl{user} enable --now hermes-coms-bridge@PROJECT")
    print(f"  install -m 600 {host.settings}/donut.env.example {host.settings}/donut-NAME.env")
    if system:
        print(f"  install -m 600 /dev/stdin {host.settings}/donut-NAME.token   # the bot's token")
        print(f"  install -m 600 /dev/stdin {host.settings}/donut-NAME.key     # HERMES_API_KEY")
    print(f"  systemctl{user} enable --now hermes-donut-bridge@NAME")
    if not system:
        print("  loginctl enable-linger   # so that they run while you are not logged in")
