"""A ``hermes`` command for the demo and for tests: ``send`` shows the message to a person.

    hermes [--profile NAME] send --to telegram:CHAT[:TOPIC] [--json] [--quiet] TEXT
    hermes phone [--user NAME] [--questions-dir DIR] [--auto [TEXT]]

``phone`` is the person's side and keeps a terminal; ``send``, which has none, hands its message
over on a socket in the Hermes home. Exit codes are those of the real command: 0 sent, 1 not sent,
2 a usage error.
"""

import argparse
import io
import itertools
import json
import os
import re
import select
import shlex
import sys
from collections.abc import Mapping, Sequence

from hermes_bridges.standins.phone import Phone, deliver

PLATFORMS = ("telegram",)
_CHAT = re.compile(r"-?[0-9]+(:[0-9]+)?", re.ASCII)


def phone_path(environ: Mapping[str, str]) -> str:
    """Where the phone listens, for every profile of one Hermes home."""
    home = environ.get("HERMES_HOME") or os.path.join(environ["HOME"], ".hermes")
    parent = os.path.dirname(home.rstrip("/"))
    root = os.path.dirname(parent) if os.path.basename(parent) == "profiles" else home
    return os.path.join(root, "phone.sock")


def questions_path(environ: Mapping[str, str]) -> str:
    """Where the skill writes answers, whatever the bridge was told."""
    return os.path.join(environ["HOME"], ".pi/coms/hermes-bridge/questions")


def install(directory: str) -> str:
    """Put this command into a directory as ``hermes``; returns its path."""
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.path.join(directory, "hermes")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(package_root)} exec {shlex.quote(sys.executable)} -P"
            ' -m hermes_bridges.standins.hermes_command "$@"\n'
        )
    return path


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(argv)
    if options.command == "phone":
        return _phone(options)
    return _send(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hermes", description="A stand-in for Hermes.")
    parser.add_argument("-p", "--profile", metavar="NAME")
    commands = parser.add_subparsers(dest="command", required=True)
    send = commands.add_parser("send", help="send a message to the phone")
    send.add_argument("-t", "--to", metavar="TARGET")
    send.add_argument("-q", "--quiet", action="store_true", help="no output when it was sent")
    send.add_argument("--json", action="store_true", help="the result as JSON")
    send.add_argument("message", nargs="?")
    phone = commands.add_parser("phone", help="be the person with the phone")
    phone.add_argument("--user", metavar="NAME", default="you", help="who answers")
    phone.add_argument("--questions-dir", metavar="DIR", help="where answers are written")
    phone.add_argument(
        "--auto", metavar="TEXT", nargs="?", const="1", help="answer each question with TEXT (1)"
    )
    return parser


def _send(options: argparse.Namespace) -> int:
    if not options.to:
        print("hermes send: --to PLATFORM[:channel[:thread]] is required", file=sys.stderr)
        return 2
    if not options.message:
        print("hermes send: there is no message to send", file=sys.stderr)
        return 2
    problem = _target_problem(options.to)
    message_id = ""
    if problem is None:
        try:
            message_id = deliver(phone_path(os.environ), options.to, options.message)
        except OSError as error:
            problem = f"Telegram send failed: the phone is off: {error}"
    if problem is not None:
        if options.json:
            print(json.dumps({"error": problem}, indent=2))
        else:
            print(f"hermes send: {problem}", file=sys.stderr)
        return 1
    if options.json:
        platform, _, chat = options.to.partition(":")
        result = {"success": True, "platform": platform, "chat_id": chat, "message_id": message_id}
        print(json.dumps(result, indent=2))
    elif not options.quiet:
        print("sent")
    return 0


def _target_problem(target: str) -> str | None:
    platform, _, chat = target.partition(":")
    if platform not in PLATFORMS:
        return f"Unknown platform: {platform}"
    if chat and not _CHAT.fullmatch(chat):
        return f"Could not resolve '{chat}' on {platform}."
    return None


def _phone(options: argparse.Namespace) -> int:
    questions = options.questions_dir or questions_path(os.environ)
    answers = () if options.auto is None else itertools.repeat(options.auto)
    phone = Phone(phone_path(os.environ), questions, _show, user=options.user, answers=answers)
    _show("the phone is on; type an answer and press Enter")
    try:
        _follow(phone)
    except KeyboardInterrupt:
        return 130
    finally:
        phone.close()
    return 0


def _follow(phone: Phone) -> None:
    """Messages and typed lines, until Ctrl-C; a closed terminal only ends the typing."""
    typed = b""
    sources: list[Phone | int] = [phone, 0]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if phone in ready:
            phone.receive()
        if 0 in ready:
            piece = os.read(0, 65536)
            if not piece:
                sources.remove(0)
            *lines, typed = (typed + piece).split(b"\n")
            for line in lines:
                phone.say(line.decode(errors="replace"))


def _show(text: str) -> None:
    print(f"{text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
