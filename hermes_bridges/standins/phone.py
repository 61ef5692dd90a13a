"""The person with the phone: sees what ``hermes send`` delivers, and answers as the skill would.

Follows contract section 8: what the gateway's agent does with a reply is done here by a program,
so that a question goes all the way round without Telegram, a gateway or a model.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from hermes_bridges.core import files

_SECONDS = 5.0  # for one exchange between `send` and the phone, both on this machine
_LINE_LIMIT = 1 << 20
_QID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_QUESTION = re.compile(r"❓ \[HUB-Q:([^\]]*)\]")
_MARKER = re.compile(r"\[HUB-Q:([^\]]*)\]")
_PREFIX = re.compile(r"HUB-Q:([^:]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is to be written: to which question, and its trimmed text."""

    qid: str
    answer: str


def understand(text: str, replied_to: str | None) -> Reply | str:
    """What the skill makes of a message: the reply to write, or what it has to ask the person.

    The marker of the message replied to comes first, then a ``HUB-Q:<qid>:`` that begins the
    text. A qid is never made up.
    """
    marked = _markers(replied_to or "")
    typed = _PREFIX.match(text.strip())
    if len(marked) > 1:
        return "Which question is that for? Please type HUB-Q:<qid>: <answer>."
    if marked:
        qid, answer = marked[0], text
    elif typed:
        qid, answer = typed[1], typed[2]
    else:
        return "That answers no question; reply to one, or type HUB-Q:<qid>: <answer>."
    if not _QID.fullmatch(qid):
        return f"{qid!r} is not the id of a question."
    if not answer.strip():
        return "The answer is empty; what shall it be?"
    return Reply(qid, answer.strip())


def _markers(message: str) -> list[str]:
    """The qids that a message may be about: the one in its head, or else all it holds."""
    head = _QUESTION.match(message)
    return [head[1]] if head else list(dict.fromkeys(_MARKER.findall(message)))


class Phone:
    """One phone, listening on a Unix socket for ``hermes send``. Owned by one thread.

    ``show`` is told each message and each word of the agent. ``answers`` holds what the phone
    answers by itself, one text a question; when there is no more, a person has to ``say`` it.
    """

    def __init__(
        self,
        path: str,
        questions: str,
        show: Callable[[str], None],
        *,
        user: str = "you",
        answers: Iterable[str] = (),
    ) -> None:
        self.questions = questions
        self.newest: str | None = None
        """The newest question: what a plain line is a reply to."""
        self._show = show
        self._user = user
        self._answers = iter(answers)
        self._received = 0
        self._path = path
        files.private_dir(os.path.dirname(path))
        files.remove(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen(64)

    def fileno(self) -> int:
        """Readable when a message waits for ``receive``."""
        return self._socket.fileno()

    def receive(self) -> str | None:
        """Take one message, show it, and confirm it; answer it when an answer is ready.

        None when the sender went away before the message was whole.
        """
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(_SECONDS)
            try:
                text = str(json.loads(_read_line(connection))["text"])
                connection.sendall(self._confirmation())
            except (OSError, ValueError, TypeError, LookupError):
                return None
        self._show(text)
        if _QUESTION.match(text):
            self.newest = text
            if answer := next(self._answers, None):
                self.say(answer)
        return text

    def _confirmation(self) -> bytes:
        self._received += 1
        return json.dumps({"message_id": str(1000 + self._received)}).encode() + b"\n"

    def say(self, line: str) -> bool:
        """The person types a line: True when it was written down as an answer."""
        fresh = line.lstrip().startswith("HUB-Q:")
        reply = understand(line, None if fresh else self.newest)
        if isinstance(reply, str):
            self._show(reply)
            return False
        record = {
            "qid": reply.qid,
            "answer": reply.answer,
            "answered_by": f"telegram:{self._user}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        files.private_dir(self.questions)
        path = os.path.join(self.questions, f"{reply.qid}.answer.json")
        files.write_atomic(path, json.dumps(record).encode())
        self._show(f"You answered: {reply.answer}")
        return True

    def close(self) -> None:
        self._socket.close()
        files.remove(self._path)


def deliver(path: str, to: str, text: str) -> str:
    """What ``hermes send`` does: hand a message to the phone. Returns the message's id.

    Raises OSError when the phone is off or does not confirm.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps({"to": to, "text": text}).encode() + b"\n")
        try:
            return str(json.loads(_read_line(connection))["message_id"])
        except ValueError as error:
            raise OSError("the phone did not confirm the message") from error


def _read_line(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) <= _LINE_LIMIT:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return bytes(data)
