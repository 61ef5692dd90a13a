"""The chats of the stand-in Donut hub: who may say what in them, and what a bot hears of it."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

CONTENT_LIMIT = 4000  # UTF-8 bytes of one message of a bot
TRIGGERS = ("mention", "all", "manual")
Id = int | str
_SEND_FIELDS = frozenset({"chat_id", "content", "content_type", "reply_to", "thread_id"})
_TYPING_FIELDS = frozenset({"chat_id", "state", "thread_id"})
_KEY = re.compile("[!-~]{1,255}")


class Refused(Exception):
    """What the hub does not accept: the status and the code of the answer, and why."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class Chat:
    """One chat; guarded by the lock of the hub."""

    def __init__(self, chat_id: Id, trigger: str, member: bool) -> None:
        if trigger not in TRIGGERS:
            raise ValueError(f"trigger must be one of {', '.join(TRIGGERS)}")
        self.chat_id = chat_id
        self.trigger = trigger
        self.member = member
        """Whether the bot is in it."""
        self.messages: set[Id] = set()
        self.threads: set[Id] = set()
        self.typing_until = 0.0
        self.typing_thread: Id | None = None

    def wants(self, text: object, username: str) -> bool:
        """Whether the bot hears of a message with this text (contract, section 1)."""
        if not self.member or self.trigger == "manual":
            return False
        mention = rf"(?<!\w)@{re.escape(username)}(?!\w)"
        return self.trigger == "all" or bool(
            isinstance(text, str) and re.search(mention, text, re.IGNORECASE)
        )


class Draft(NamedTuple):
    """A message of the bot that may be stored."""

    chat: Chat
    content: str
    content_type: str
    reply_to: Id | None
    thread_id: Id | None


class Post(NamedTuple):
    """A stored message of the bot."""

    message_id: Id
    chat_id: Id
    content: str
    content_type: str
    reply_to: Id | None
    thread_id: Id | None
    key: str | None


class Rooms:
    """All chats and what the bot said in them; guarded by the lock of the hub.

    With ``idempotent`` a message whose Idempotency-Key came before is not stored again.
    """

    def __init__(self, new_id: Callable[[], Id], idempotent: bool) -> None:
        self.posts: list[Post] = []
        self._new_id = new_id
        self._idempotent = idempotent
        self._chats: dict[Id, Chat] = {}
        # What each Idempotency-Key was first used for; as many as there are posts.
        self._keys: dict[str, Post] = {}

    def add(self, chat_id: Id, trigger: str, member: bool) -> None:
        self._chats[chat_id] = Chat(chat_id, trigger, member)

    def chat(self, chat_id: Id) -> Chat:
        """Raises KeyError."""
        return self._chats[chat_id]

    def heard(self, chat_id: Id, message_id: Id, thread_id: Id | None) -> None:
        """Note a message that others wrote, so that the bot may refer to it."""
        chat = self._chats.get(chat_id)
        if chat is not None:
            chat.messages.add(message_id)
            if thread_id is not None:
                chat.threads.add(thread_id)

    def draft(self, given: Mapping[str, Any]) -> Draft:
        """What a send request says. Raises Refused (contract, section 1)."""
        _only(given, _SEND_FIELDS)
        chat = self._joined(given)
        content = given.get("content")
        if not isinstance(content, str):
            raise Refused(400, "bad_content", "content must be a string")
        if not content.strip():
            raise Refused(400, "empty_content", "content must not be empty")
        try:
            size = len(content.encode())
        except UnicodeEncodeError:
            raise Refused(400, "bad_content", "content holds a lone surrogate") from None
        if size > CONTENT_LIMIT:
            raise Refused(400, "content_too_long", f"content is over {CONTENT_LIMIT} bytes")
        content_type = given.get("content_type", "TX")
        if content_type not in ("MD", "TX"):
            raise Refused(400, "bad_content_type", "content_type must be MD or TX")
        reply_to = _optional_id(given, "reply_to")
        if reply_to is not None and reply_to not in chat.messages:
            raise _stranger("reply_to", reply_to, chat.messages)
        return Draft(chat, content, content_type, reply_to, _thread(given, chat))

    def store(self, draft: Draft, key: str | None) -> tuple[Post, bool]:
        """The message as stored, and whether it had been stored before. Raises Refused."""
        if key is not None and not _KEY.fullmatch(key):
            raise Refused(400, "bad_key", "Idempotency-Key must be 1 to 255 visible ASCII signs")
        chat, content, content_type, reply_to, thread_id = draft
        post = Post(0, chat.chat_id, content, content_type, reply_to, thread_id, key)
        before = self._keys.get(key) if key is not None and self._idempotent else None
        if before is not None:
            if post != before._replace(message_id=0):
                raise Refused(422, "key_reused", "this Idempotency-Key was used for another one")
            return before, True
        post = post._replace(message_id=self._new_id())
        chat.messages.add(post.message_id)
        self.posts.append(post)
        if key is not None:
            self._keys.setdefault(key, post)
        return post, False

    def type(self, given: Mapping[str, Any], until: float) -> None:
        """Take a typing signal, which lasts until then. Raises Refused (contract, section 1)."""
        _only(given, _TYPING_FIELDS)
        chat = self._joined(given)
        state = given.get("state")
        if state not in ("start", "stop"):
            raise Refused(400, "bad_state", "state must be start or stop")
        chat.typing_thread = _thread(given, chat)
        chat.typing_until = until if state == "start" else 0.0

    def _joined(self, given: Mapping[str, Any]) -> Chat:
        chat_id = given.get("chat_id")
        if type(chat_id) not in (int, str):
            raise Refused(400, "bad_id", "chat_id must be an integer or a string")
        chat = self._chats.get(chat_id)  # type: ignore[arg-type]
        if chat is None and str(chat_id) in map(str, self._chats):
            raise Refused(400, "bad_id", "chat_id has the wrong JSON type")
        if chat is None or not chat.member:
            raise Refused(403, "not_a_member", "the bot is not in this chat")
        return chat


def _only(given: Mapping[str, Any], fields: frozenset[str]) -> None:
    if not given.keys() <= fields:
        raise Refused(400, "unknown_field", f"only {', '.join(sorted(fields))} are known")


def _optional_id(given: Mapping[str, Any], name: str) -> Id | None:
    value: Id | None = given.get(name)
    if value is not None and type(value) not in (int, str):
        raise Refused(400, "bad_id", f"{name} must be an integer or a string")
    return value


def _thread(given: Mapping[str, Any], chat: Chat) -> Id | None:
    """A thread is one that somebody wrote in, or is named by the message that it starts with."""
    thread_id = _optional_id(given, "thread_id")
    if thread_id is None or thread_id in chat.threads or thread_id in chat.messages:
        return thread_id
    raise _stranger("thread_id", thread_id, chat.threads | chat.messages)


def _stranger(name: str, value: Id, known: set[Id]) -> Refused:
    if str(value) in map(str, known):
        return Refused(400, "bad_id", f"{name} has the wrong JSON type")
    return Refused(400, "unknown_id", f"{name} is not of this chat")
