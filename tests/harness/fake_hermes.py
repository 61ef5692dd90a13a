"""The `hermes` command of the tests: notes how it was called, then behaves as it was told.

Installed by `daemon.Hermes` as an executable `hermes` with a `-IS` shebang: it must start fast,
so it imports built-in modules only. Everything it reads and writes lies beside it:

    hermes.rules     marshal: list of rules, see `daemon.Hermes.rule`; the first that fits is used
    hermes.ndjson    journal: `begin` and `end` of each call, and `grandchild`
    hermes.calls     one byte a call: the file's length is the number of the next call
"""

import _signal  # type: ignore[import-not-found]
import marshal
import os
import sys
import time
from _json import encode_basestring_ascii

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 120.0  # no test runs so long; a forgotten child ends by itself
ENVIRONMENT = ("HOME", "PATH", "NOTIFY_", "WATCHDOG_", "LISTEN_", "HERMES_", "TELEGRAM_", "MARK_")
USAGE = "usage: hermes send [-h] [-t TARGET] [--to TARGET] [message]\n"
NO_SEND = (
    "usage: hermes [-h] [--version] [--profile NAME] {chat,gateway,profile,skills,tools} ...\n"
    "hermes: error: argument command: invalid choice: 'send' "
    "(choose from 'chat', 'gateway', 'profile', 'skills', 'tools')\n"
)


def dumps(value):
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dumps(k)}: {dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(dumps, value)) + "]"
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def append(name, data):
    """Appends in one write; returns where it begins, a number no other process gets."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(os.path.join(HERE, name), flags, 0o600)
    os.write(fd, data)
    end = os.lseek(fd, 0, os.SEEK_CUR)
    os.close(fd)
    return end - len(data)


def note(what, **fields):
    record = {"t": time.monotonic(), "at": time.time(), "what": what, "pid": os.getpid(), **fields}
    append("hermes.ndjson", dumps(record).encode("ascii") + b"\n")


def lift_limit():
    """The full-disk test limits the daemon's file size; this journal is not on that disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def state():
    """What the child got from its parent."""
    mask = os.umask(0)
    os.umask(mask)
    status = {}
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Sig"):
                name, _, bits = line.partition(":")
                status[name] = bits.strip()
    fds = []
    for name in os.listdir("/proc/self/fd"):
        try:
            fds.append([int(name), os.readlink("/proc/self/fd/" + name)])
        except OSError:
            pass  # the listing's own descriptor
    return {
        "ppid": os.getppid(),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "cwd": os.getcwd(),
        "umask": mask,
        "signals": status,
        "fds": fds,
        "env": {k: v for k, v in os.environ.items() if k.startswith(ENVIRONMENT)},
    }


def choose(argv, call):
    try:
        with open(os.path.join(HERE, "hermes.rules"), "rb") as file:
            rules = marshal.load(file)
    except FileNotFoundError:
        return {}
    line = "\0".join(argv)
    for rule in rules:
        if rule["calls"] is not None and call not in rule["calls"]:
            continue
        if rule["match"] is not None:
            import re

            if not re.search(rule["match"], line, re.DOTALL):
                continue
        if rule["times"] is not None:
            if append("hermes.rule-" + rule["id"], b".") >= rule["times"]:
                continue
        return rule
    return {}


def idle(seconds):
    """Waits, but not longer than the test lives: the directory of this command goes with it."""
    end = time.monotonic() + min(seconds, LONGEST)
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.25))
        if left > 0.25 and not os.path.exists(HERE):
            os._exit(99)


def grandchild(seconds, own_session):
    """A helper that keeps our pipes open after we are gone."""
    pid = os.fork()
    if pid:
        note("grandchild", child=pid)
        return
    if own_session:
        os.setsid()
    idle(seconds)
    os._exit(0)


def duration(delay, call):
    """A number, or a range within which the call number decides (so a seed decides)."""
    if isinstance(delay, (int, float)):
        return delay
    low, high = delay
    return low + (high - low) * (((call + 1) * 2654435761) % 2**32) / 2**32


def write(fd, text):
    data = text.encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(fd, data) :]


def main():
    argv = [os.fsencode(arg).decode("utf-8", "surrogateescape") for arg in sys.argv[1:]]
    lift_limit()
    call = append("hermes.calls", b".")
    rule = choose(argv, call)
    if rule.get("ignore_term"):
        _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    note("begin", call=call, argv=argv, **state())
    if rule.get("stdin"):
        count = 0
        while chunk := os.read(0, 65536):
            count += len(chunk)
        note("stdin", call=call, bytes=count)
    if rule.get("grandchild"):
        grandchild(rule["grandchild"], rule.get("own_session", False))
    idle(LONGEST if rule.get("hang") else duration(rule.get("delay", 0), call))
    code = rule.get("exit", 0)
    out, err = rule.get("out"), rule.get("err", "")
    if rule.get("no_send"):
        code, err = (2, NO_SEND) if "send" in argv else (0, "")
    if out is None:
        out = "Hermes Agent v0.22.2 (2026.9.24)\n" if "--version" in argv else ""
        if "send" in argv and code == 0:
            out = USAGE if "--help" in argv or "-h" in argv else "sent\n"
    # The end is noted before the streams are written: a reader that stops early must not hide it.
    note("end", call=call, code=code, signal=rule.get("signal"))
    write(2, err * rule.get("repeat", 1))
    write(1, out)
    if rule.get("signal"):
        os.kill(os.getpid(), rule["signal"])
        _signal.pause()
    os._exit(code)


if __name__ == "__main__":
    main()
