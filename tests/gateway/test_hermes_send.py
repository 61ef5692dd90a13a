"""The daemon with the real ``hermes send``, which talks to a loopback stand-in for Telegram.

What counts is the stand-in's own journal: which calls of the Bot API arrived, for which chat, with
which text and with which files.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import hermes_versions
from tests.gateway import delivered
from tests.gateway.fake_telegram import FakeTelegram
from tests.harness.daemon import COMMAND, Daemon, wait
from tests.harness.peers import Question
from tests.harness.scene import Scene

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

CHAT = "123"
SENT_WITHIN = 60.0  # one real call takes 2 to 3 s, more on a busy machine
SECRET = "the content of a private file"

each_version = pytest.mark.parametrize("version", delivered.VERSIONS)

# How a hostile prompt may name a file so that Hermes attaches it. The value tells the versions
# that attach nothing for it, which the control case finds to be just these.
EVERY: tuple[str, ...] = ()
MARKERS: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "plain": (lambda path: f"MEDIA:{path}", EVERY),
    "blank": (lambda path: f"MEDIA: {path}", EVERY),
    "lower case": (lambda path: f"media:{path}", EVERY),
    "mixed case": (lambda path: f"mEdIa:{path}", EVERY),
    "dotless i": (lambda path: f"MED\u0131A:{path}", EVERY),
    "dotted I": (lambda path: f"MED\u0130A:{path}", EVERY),
    "newline": (lambda path: f"MEDIA:\n{path}", EVERY),
    "no-break space": (lambda path: f"MEDIA:\u00a0{path}", EVERY),
    "line separator": (lambda path: f"MEDIA:\u2028{path}", EVERY),
    "backticks": (lambda path: f"MEDIA:`{path}`", EVERY),
    "in backticks": (lambda path: f"`MEDIA:{path}`", ("0.19.0",)),
    "quotes": (lambda path: f'MEDIA:"{path}"', EVERY),
    "single quotes": (lambda path: f"MEDIA:'{path}'", EVERY),
    "in quotes": (lambda path: f'"MEDIA:{path}"', EVERY),
    "bold": (lambda path: f"**MEDIA:{path}**", ("0.19.0",)),
    "after itself": (lambda path: f"MEDIAMEDIA:{path}", EVERY),
    "twice": (lambda path: f"MEDIA:MEDIA:{path}", EVERY),
    "glued": (lambda path: f"MEDIA:{path}MEDIA:{path}", ("0.19.0",)),
    "as document": (lambda path: f"[[as_document]]MEDIA:{path}", EVERY),
    "as voice": (lambda path: f"[[audio_as_voice]]MEDIA:{path}", EVERY),
    "NUL": (lambda path: f"MED\0IA:{path}", EVERY),  # which no argument holds: see Gateway.send
}
EXTENSIONS = {"as document": ".png", "as voice": ".ogg", "plain": ""}
# Attached by no version: a marker that the removal of something else would complete, and others.
NEVER: tuple[Callable[[str], str], ...] = (
    lambda path: f"MED[[as_document]]IA:{path}",
    lambda path: f"MEDIA\u007f:{path}",
    lambda path: f"![see]({path})",
    lambda path: f"file://{path}",
    lambda path: f"see {path} there",
)


class Private:
    """Real files that nobody may be sent, and the text that tries to have them sent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        self.marked = {
            name: self._file(f"m{number:02}{EXTENSIONS.get(name, '.txt')}")
            for number, name in enumerate(MARKERS)
        }
        self.others = [self._file(f"n{number:02}.txt") for number in range(len(NEVER))]

    def _file(self, name: str) -> str:
        path = self.directory / name
        path.write_text(SECRET)
        return str(path)

    @property
    def names(self) -> list[str]:
        return [Path(path).name for path in (*self.marked.values(), *self.others)]

    def table(self) -> list[str]:
        """The whole table, one marker an item."""
        return [
            *(form(self.marked[name]) for name, (form, _) in MARKERS.items()),
            *(form(path) for form, path in zip(NEVER, self.others, strict=True)),
        ]


class Gateway:
    """A scene in which the daemon finds a real ``hermes``, and the stand-in that it talks to."""

    def __init__(self, scene: Scene, telegram: FakeTelegram, version: str) -> None:
        self.scene = scene
        self.telegram = telegram
        self.version = version
        self.home = Path(scene.home.path)
        self.private = Private(self.home / "p")
        self.command = hermes_versions.hermes(version)
        self.environ = {
            "PATH": f"{self.command.parent}:/usr/bin:/bin",
            "HERMES_HOME": str(self.home / ".hermes"),
            "HERMES_DISABLE_LAZY_INSTALLS": "1",
            "NO_COLOR": "1",
            **telegram.environ,
        }
        (self.home / ".hermes").mkdir(mode=0o700)

    def daemon(self, *flags: str) -> Daemon:
        return self.scene.daemon("--to", f"telegram:{CHAT}", *flags, environ=self.environ)

    def send(self, text: str) -> None:
        """Sends as the daemon would, but without what it does to the text."""
        subprocess.run(
            [str(self.command), "send", "--to", f"telegram:{CHAT}", text.replace("\0", "")],
            env={"HOME": str(self.home), "LANG": "C.UTF-8", **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=SENT_WITHIN,
        )

    def count_calls(self) -> Callable[[], list[str]]:
        """Puts a command before the real one that notes each call; returns what reads the notes."""
        directory, notes = self.home / "w", self.home / "calls.txt"
        directory.mkdir()
        wrapper = directory / "hermes"
        wrapper.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nexec {self.command} "$@"\n')
        wrapper.chmod(0o700)
        self.environ["PATH"] = f"{directory}:{self.environ['PATH']}"
        return lambda: notes.read_text().splitlines()

    def check(self, *flags: str) -> tuple[int, str]:
        """The exit code of ``--check`` and what it said."""
        environ = self.scene.daemon(*flags, start=False, environ=self.environ).environ
        done = subprocess.run(
            [*COMMAND, "--check", *flags],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SENT_WITHIN,
        )
        return done.returncode, done.stdout + done.stderr

    def arrived(self, question: Question, sign: str = "❓") -> str:
        """The message about that question that begins with ``sign``, once the chat shows it."""

        def shown() -> str:
            assert question.response is None, question.response
            head = f"{sign} [HUB-Q:{question.qid}] "
            return next((t for t in self.telegram.messages() if t.startswith(head)), "")

        return wait(shown, SENT_WITHIN, f"{question.qid} at the stand-in")

    def assert_nothing_leaked(self) -> None:
        for call in self.telegram.calls:
            assert call.method in ("getMe", "sendMessage"), call
            assert not call.uploads, call
            assert SECRET not in str(call.params), call
            if call.method == "sendMessage":
                assert str(call.params["chat_id"]) == CHAT, call


@pytest.fixture
def telegram(short_tmp: Path) -> Iterator[FakeTelegram]:
    standin = FakeTelegram(short_tmp)
    yield standin
    standin.close()


@pytest.fixture
def gateway(
    short_tmp: Path, telegram: FakeTelegram, version: str, record_property: Callable[..., None]
) -> Iterator[Gateway]:
    with Scene(str(short_tmp)) as scene:
        yield Gateway(scene, telegram, version)
        for daemon in scene.daemons:  # and with it every hermes that still runs
            if daemon.running:
                assert daemon.stop() == 0
    # The daemon's own messages, not those of the control cases, which are forgotten.
    count = sum("HUB-Q:" in text for text in telegram.messages())
    record_property(delivered.PROPERTY, f"{version}={count}")


@each_version
def test_nothing_that_a_prompt_contains_is_attached(gateway: Gateway, version: str) -> None:
    private = gateway.private
    # The control: said undisarmed, the table does have the files sent by this very version.
    gateway.send("look:\n" + "\n".join(private.table()))
    attached = {upload.name for upload in gateway.telegram.uploads()}
    assert attached == {
        Path(private.marked[name]).name
        for name, (_, safe_in) in MARKERS.items()
        if version not in safe_in
    }
    assert all(upload.data == SECRET.encode() for upload in gateway.telegram.uploads())
    gateway.telegram.forget()

    gateway.daemon()
    table = private.table()
    peer = gateway.scene.peers.pi()
    half = len(table) // 2
    options: list[Any] = [{"title": m, "description": "x"} for m in table[:half]]
    options += [{"title": "x", "description": m} for m in table[half:]]
    lines = "\n".join(table)
    asked = [
        (2, peer.ask(lines, [], lines)),
        (1, peer.ask("which?", options)),
        (2, peer.ask(lines, plain=True, sender_name=lines, sender_cwd=None)),
        (1, peer.ask("plain?", plain=True, sender_name="x", sender_cwd=" ".join(table))),
    ]
    for copies, question in asked:
        text = gateway.arrived(question)
        assert text.endswith(f"↩ Reply to this message, or type: HUB-Q:{question.qid}: <answer>")
        gateway.assert_nothing_leaked()
        cut = [name for name in private.names if text.count(name) < copies]
        assert not cut, f"not all of the table arrived: {text}"
    gateway.assert_nothing_leaked()


@each_version
def test_nothing_that_a_prompt_contains_is_a_flag_a_path_or_a_shell_word(
    gateway: Gateway,
) -> None:
    secret = gateway.private.others[0]
    mark = gateway.home / "touched"
    words = [
        "-",
        "--",
        "--to telegram:666",
        "--to=telegram:666",
        "-t telegram:666",
        f"-f {secret}",
        f"--file={secret}",
        f"--file {secret}",
        "-",
        "--list",
        "--json",
        "--profile other",
        "-p other",
        f"@{secret}",
        f"<{secret}",
        f"| cat {secret}",
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"; touch {mark} #",
        f"' ; touch {mark} ; '",
        "${HOME} $HOME ~ * %s %(x)s {0}",
        "\\n \\x41",
    ]
    gateway.daemon()
    peer = gateway.scene.peers.pi()
    asked = [
        peer.ask("\n".join(words), [*words[:11]], "\n".join(words)),
        peer.ask(words[2], plain=True, sender_name="--to telegram:666", sender_cwd=f"-f {secret}"),
        peer.ask(f"-f {secret}", [{"title": "--to", "description": "telegram:666"}]),
    ]
    for question in asked:
        assert question.qid in gateway.arrived(question)
    shown = gateway.arrived(asked[0])
    for word in ("--to telegram:666", f"$(touch {mark})", f"--file={secret}", "${HOME} $HOME"):
        assert word in shown
    gateway.assert_nothing_leaked()
    assert not mark.exists()


@each_version
def test_a_question_is_delivered_and_its_answer_comes_back(gateway: Gateway) -> None:
    gateway.daemon()
    answers, secret = gateway.scene.answers, gateway.private.marked["quotes"]
    question = gateway.scene.peers.one_shot().ask(
        "Deploy now, or later?",
        [{"title": "Yes", "description": "at once"}, "No"],
        "Tests are green (12/12).",
    )
    assert gateway.arrived(question) == (
        f"❓ [HUB-Q:{question.qid}] Deploy now, or later?\n\n📁 Project: default\n\n"
        "Context: Tests are green (12/12).\n\nOptions:\n1. Yes — at once\n2. No\n\n"
        f"↩ Reply to this message, or type: HUB-Q:{question.qid}: <answer>"
    )
    # What cannot be read is told to the human, and none of it gets into what is told.
    answers.put(question.qid, f'{{"qid": "MEDIA:{secret}", "answer": --to'.encode(), how="broken")
    note = gateway.arrived(question, "⚠")
    assert note == (
        f"⚠ [HUB-Q:{question.qid}] The answer could not be read (invalid_json); please reply again."
    )
    answers.write(question.qid, " yes ", answered_by=f"--to telegram:666 MEDIA:{secret}")
    response = question.wait()
    assert response["error"] is None
    assert response["response"] == {"kind": "selection", "selections": ["Yes"]}
    gateway.assert_nothing_leaked()


@each_version
def test_what_telegram_refuses_is_told_to_the_asker(gateway: Gateway) -> None:
    gateway.daemon()
    asked = gateway.scene.peers.pi().ask("first?")
    gateway.arrived(asked)
    gateway.telegram.fail("sendMessage", 403, "Forbidden: bot was blocked by the user", 9)
    refused = gateway.scene.peers.pi().ask("second?")
    response = refused.wait(SENT_WITHIN)
    assert response["response"] is None
    assert re.fullmatch(
        r"hermes send failed \(1\): hermes send: Telegram send failed: "
        r"Forbidden: bot was blocked by the user.*",
        response["error"],
        re.DOTALL,
    )
    assert gateway.telegram.token not in str(response)


@pytest.mark.parametrize("version", ["0.14.0"])
def test_a_hermes_without_send_is_remembered_and_named(gateway: Gateway) -> None:
    calls = gateway.count_calls()
    daemon = gateway.daemon()
    peer = gateway.scene.peers.pi()
    first = peer.ask("first?").wait(SENT_WITHIN)
    assert first["response"] is None
    assert first["error"].startswith("hermes send failed (2): ")
    second = peer.ask("second?").wait(SENT_WITHIN)
    assert second["response"] is None
    assert "0.19" in second["error"]
    events = gateway.scene.home.events
    wait(lambda: len(events(event="delivery_error")) == 2, 5.0, "both are in the log")
    assert "0.19" in daemon.stderr()
    assert sum("send" in line for line in calls()) == 1
    assert gateway.telegram.calls == []
    code, said = gateway.check()
    assert code == 1
    assert re.search("^missing: .*send.*0\\.19", said, re.MULTILINE)


@each_version
def test_a_check_tells_whether_the_profile_can_send(gateway: Gateway) -> None:
    code, said = gateway.check()
    assert (code, "ok: hermes can send" in said) == (0, True), said
    code, said = gateway.check("--hermes-profile", "nobody")
    assert code == 1
    assert re.search("^missing: profile nobody .*does not exist", said, re.MULTILINE), said
