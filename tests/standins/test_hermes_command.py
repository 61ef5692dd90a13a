"""The stand-in ``hermes`` as a command: its usage, its exit codes, and both of its halves."""

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.standins import hermes_command

QID = "01JABCDEFGHJKMNPQRSTVWXYZ0"
QUESTION = f"❓ [HUB-Q:{QID}] Now?"


@pytest.fixture
def home(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(short_tmp))
    return short_tmp


@pytest.fixture
def hermes(home: Path) -> str:
    directory = home / "with a blank"
    directory.mkdir()
    return hermes_command.install(str(directory))


def start_phone(hermes: str, *arguments: str, **more) -> subprocess.Popen[bytes]:
    phone = subprocess.Popen([hermes, "phone", *arguments], stdout=subprocess.PIPE, **more)
    assert b"the phone is on" in read_until(phone, b"\n\n")
    return phone


def read_until(process: subprocess.Popen[bytes], end: bytes) -> bytes:
    assert process.stdout is not None
    fd, said = process.stdout.fileno(), b""
    while end not in said:
        ready, _, _ = select.select([fd], [], [], 20)
        piece = os.read(fd, 65536) if ready else b""
        assert piece, f"the phone said only {said!r}"
        said += piece
    return said


def send(hermes: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [hermes, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@pytest.fixture
def phone(hermes: str) -> Iterator[subprocess.Popen[bytes]]:
    phone = start_phone(hermes, "--user", "eva", stdin=subprocess.PIPE)
    yield phone
    phone.send_signal(signal.SIGINT)
    phone.communicate(timeout=10)
    assert phone.returncode == 130


def test_a_question_goes_to_the_phone_and_the_typed_answer_into_its_file(home, hermes, phone):
    sent = send(hermes, "send", "--to", "telegram:42", QUESTION)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "sent\n", "")
    assert QUESTION.encode() in read_until(phone, b"Now?\n\n")
    phone.stdin.write(b"\nyes, n")
    phone.stdin.flush()
    assert b"empty" in read_until(phone, b"\n\n")
    phone.stdin.write(b"ow\n")
    phone.stdin.flush()
    assert b"You answered: yes, now" in read_until(phone, b"\n\n")
    path = home / f".pi/coms/hermes-bridge/questions/{QID}.answer.json"
    record = json.loads(path.read_text())
    assert (record["qid"], record["answer"]) == (QID, "yes, now")
    assert record["answered_by"] == "telegram:eva"


def test_the_phone_goes_on_when_its_terminal_closes(hermes, phone):
    phone.stdin.close()
    phone.stdin = None
    assert send(hermes, "send", "--to", "telegram", "one").returncode == 0
    assert send(hermes, "send", "--to", "telegram", "two").returncode == 0
    assert read_until(phone, b"two") == b"one\n\ntwo\n\n"


def test_a_phone_in_a_real_terminal(home, hermes):
    master, slave = pty.openpty()
    phone = start_phone(hermes, "--questions-dir", str(home / "q"), stdin=slave)
    os.close(slave)
    assert send(hermes, "send", "--to", "telegram:42:7", QUESTION).returncode == 0
    os.write(master, b"3\n")
    assert b"You answered: 3" in read_until(phone, b"You answered: 3")
    assert os.listdir(home / "q") == [f"{QID}.answer.json"]
    phone.send_signal(signal.SIGINT)
    phone.communicate(timeout=10)
    os.close(master)


@pytest.mark.parametrize(("given", "answer"), [(["--auto"], "1"), (["--auto", "no"], "no")])
def test_a_phone_that_answers_by_itself(home, hermes, given, answer):
    phone = start_phone(hermes, *given, stdin=subprocess.DEVNULL)
    send(hermes, "send", "--to", "telegram:42", QUESTION)
    assert f"You answered: {answer}".encode() in read_until(phone, b"You answered")
    phone.terminate()
    phone.communicate()


def test_the_result_as_json_or_not_at_all(hermes, phone):
    sent = send(hermes, "send", "--to", "telegram:42", "--json", "hi")
    assert json.loads(sent.stdout) == {
        "success": True,
        "platform": "telegram",
        "chat_id": "42",
        "message_id": "1001",
    }
    assert send(hermes, "send", "--to", "telegram:42", "-q", "hi").stdout == ""


def test_every_profile_reaches_the_same_phone(home, hermes, phone, monkeypatch):
    monkeypatch.setenv("HERMES_HOME", str(home / ".hermes/profiles/work"))
    assert send(hermes, "--profile", "work", "send", "--to", "telegram", "hi").returncode == 0
    monkeypatch.setenv("HERMES_HOME", str(home / ".hermes"))
    assert send(hermes, "send", "--to", "telegram", "hi").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["send", "no target"], "--to PLATFORM[:channel[:thread]] is required"),
        (["send", "--to", "telegram:1"], "no message"),
        (["send", "--to", "telegram:1", "--loud", "hi"], "unrecognized arguments: --loud"),
        (["send", "--to", "telegram:1", "two", "texts"], "unrecognized arguments: texts"),
        (["sing"], "invalid choice: 'sing'"),
        ([], "required"),
    ],
)
def test_a_usage_error_ends_with_2(capsys, arguments, complaint):
    try:
        code = hermes_command.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nosuch:1", "Unknown platform: nosuch"),
        ("telegram:abc", "Could not resolve 'abc' on telegram."),
        ("telegram:1", "Telegram send failed: the phone is off"),
    ],
)
def test_a_message_that_cannot_be_sent_ends_with_1(home, capsys, target, complaint):
    assert hermes_command.main(["send", "--to", target, "hi"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"hermes send: {complaint}") and told.out == ""
    assert hermes_command.main(["send", "--to", target, "--json", "hi"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["error"].startswith(complaint) and told.err == ""


def test_a_lone_surrogate_does_not_stop_the_phone(hermes, phone):
    command = [os.fsencode(hermes), b"send", b"--to", b"telegram", b"odd \xed\xa0\xbd end"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    assert b"odd ??? end" in read_until(phone, b"\n\n")


def test_the_installed_command_needs_no_working_directory(home, hermes, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    done = subprocess.run([hermes, "send", "--help"], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0 and "--to" in done.stdout
