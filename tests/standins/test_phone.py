"""The person with the phone: what the skill would do with a reply, and what is written down."""

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hermes_bridges.standins.phone import Phone, Reply, deliver, understand

QID = "01JABCDEFGHJKMNPQRSTVWXYZ0"
OTHER = "01JABCDEFGHJKMNPQRSTVWXYZ1"
QUESTION = f"❓ [HUB-Q:{QID}] Now?\n\n📁 Project: demo"


@pytest.mark.parametrize(
    ("text", "replied_to", "reply"),
    [
        ("yes", QUESTION, Reply(QID, "yes")),
        ("  two words \n", QUESTION, Reply(QID, "two words")),
        (f"HUB-Q:{OTHER}: yes", None, Reply(OTHER, "yes")),
        (f" HUB-Q:{OTHER}:a: b", None, Reply(OTHER, "a: b")),
        (f"HUB-Q:{OTHER}: yes", QUESTION, Reply(QID, f"HUB-Q:{OTHER}: yes")),
        ("yes", f"❓ [HUB-Q:{QID}] not [HUB-Q:{OTHER}]", Reply(QID, "yes")),
        ("late", f"⌛ [HUB-Q:{QID}] The question timed out", Reply(QID, "late")),
    ],
)
def test_which_question_a_message_answers(text, replied_to, reply):
    assert understand(text, replied_to) == reply


@pytest.mark.parametrize(
    ("text", "replied_to", "asked"),
    [
        ("", QUESTION, "empty"),
        (" \n", QUESTION, "empty"),
        (f"HUB-Q:{QID}:  ", None, "empty"),
        ("yes", None, "no question"),
        ("yes", "good morning", "no question"),
        ("yes", "❓ [HUB-Q:short] Now?", "'short' is not the id"),
        (f"HUB-Q:{QID.lower()}: yes", None, "is not the id"),
        (f"HUB-Q:{QID}\n: yes", None, "is not the id"),
        ("yes", f"about [HUB-Q:{QID}] and [HUB-Q:{OTHER}]", "Which question"),
    ],
)
def test_what_the_person_is_asked_instead(text, replied_to, asked):
    answer = understand(text, replied_to)
    assert isinstance(answer, str) and asked in answer


class Screen:
    def __init__(self, directory: Path) -> None:
        self.lines: list[str] = []
        self.path = str(directory / "phone.sock")
        self.questions = directory / "questions"

    def phone(self, **more) -> Phone:
        return Phone(self.path, str(self.questions), self.lines.append, **more)

    def send(self, phone: Phone, text: str) -> str:
        """As ``hermes send`` does it; the phone takes the message meanwhile."""
        ids: list[str] = []
        sender = threading.Thread(
            target=lambda: ids.append(deliver(self.path, "telegram:1", text)), name="sender"
        )
        sender.start()
        assert phone.receive() == text
        sender.join()
        return ids[0]

    def written(self) -> dict[str, dict[str, str]]:
        return {path.name: json.loads(path.read_text()) for path in self.questions.iterdir()}


@pytest.fixture
def screen(short_tmp: Path) -> Screen:
    return Screen(short_tmp)


@pytest.fixture
def phone(screen: Screen) -> Iterator[Phone]:
    phone = screen.phone(user="eva")
    yield phone
    phone.close()


def test_a_message_is_shown_and_confirmed(screen, phone):
    assert screen.send(phone, QUESTION) == "1001"
    assert screen.send(phone, "⌛ a note") == "1002"
    assert screen.lines == [QUESTION, "⌛ a note"]


def test_a_typed_line_becomes_the_answer_file_of_the_newest_question(screen, phone):
    screen.send(phone, QUESTION.replace(QID, OTHER))
    screen.send(phone, QUESTION)
    screen.send(phone, f"✖ [HUB-Q:{OTHER}] The question was cancelled")
    assert phone.say(" 2 ")
    assert list(screen.written()) == [f"{QID}.answer.json"]
    record = screen.written()[f"{QID}.answer.json"]
    at = record.pop("at")
    assert record == {"qid": QID, "answer": "2", "answered_by": "telegram:eva"}
    assert at.endswith("Z") and datetime.fromisoformat(at).tzinfo is not None
    assert stat.S_IMODE(os.stat(screen.questions / f"{QID}.answer.json").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(screen.questions).st_mode) == 0o700


def test_an_older_question_is_answered_by_its_id(screen, phone):
    screen.send(phone, QUESTION)
    assert phone.say(f"HUB-Q:{OTHER}: that one")
    assert list(screen.written()) == [f"{OTHER}.answer.json"]


def test_an_empty_answer_writes_nothing_and_asks_again(screen, phone):
    screen.send(phone, QUESTION)
    assert not phone.say("   ")
    assert not screen.questions.exists()
    assert "empty" in screen.lines[-1]


def test_the_phone_answers_by_itself_while_it_has_answers(screen):
    phone = screen.phone(answers=["1"])
    screen.send(phone, "⌛ a note asks for nothing")
    screen.send(phone, QUESTION)
    screen.send(phone, QUESTION.replace(QID, OTHER))
    assert [record["answer"] for record in screen.written().values()] == ["1"]
    phone.close()


def test_a_sender_that_goes_away_is_no_message(screen, phone):
    for line in (b"", b"{", b"[]\n", b'{"to": "telegram"}\n'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
            sender.connect(screen.path)
            sender.sendall(line)
            sender.shutdown(socket.SHUT_WR)
            assert phone.receive() is None
    assert screen.lines == []


def test_a_phone_that_is_off_is_an_error_of_the_sender(screen):
    with pytest.raises(FileNotFoundError):
        deliver(screen.path, "telegram:1", QUESTION)
    phone = screen.phone()
    phone.close()
    assert not os.path.exists(screen.path)


def test_a_phone_that_confirms_nothing_is_an_error_of_the_sender(screen):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(screen.path)
        mute.listen()

        def hang_up() -> None:
            connection, _ = mute.accept()
            with connection:
                connection.recv(65536)

        listener = threading.Thread(target=hang_up, name="mute")
        listener.start()
        with pytest.raises(OSError, match="did not confirm"):
            deliver(screen.path, "telegram:1", QUESTION)
        listener.join()


def test_a_socket_left_by_a_killed_phone_is_no_obstacle(screen):
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(screen.path)
    left.close()
    phone = screen.phone()
    screen.send(phone, QUESTION)
    phone.close()
