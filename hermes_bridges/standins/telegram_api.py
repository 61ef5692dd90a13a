"""A loopback stand-in for the Telegram Bot API: bots on one side, people on the other.

A gateway that can be told a base URL gets ``base_url``, plain HTTP. ``hermes send`` cannot be told
one: it gets ``proxy``, an HTTP CONNECT proxy that answers TLS for api.telegram.org itself, and
refuses every other host. Several bots are several tokens. Only what Hermes calls is served; text is
refused where the real service would refuse it.
"""

import json
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HOST = "api.telegram.org"
TEXT_LIMIT = 4096  # UTF-16 units of one message
LONGEST_POLL = 20.0  # seconds
_HEAD_LIMIT = 8192
_CONNECTION_SECONDS = 60.0
_ESCAPED = re.compile(r"\\([_*\[\]()~`>#+\-=|{}.!\\])")


class Message(NamedTuple):
    """What a chat shows; ``text`` as a person reads it, without Markdown's escapes."""

    token: str
    chat: int
    message_id: int
    text: str


class TelegramApi:
    """Serves until ``close``; everything may be called from any thread.

    ``tokens`` are the bots that exist. ``certificate`` names the files of a certificate chain and
    its key for api.telegram.org; without it there is no proxy.
    """

    def __init__(self, tokens: Sequence[str], certificate: tuple[str, str] | None = None) -> None:
        self._tokens = frozenset(tokens)
        # Guards the messages, the updates and the numbers; told of every change of them.
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._updates: dict[str, list[dict[str, Any]]] = {token: [] for token in tokens}
        self._polled: set[str] = set()
        self._number = 1000
        self._closed = False
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self._port = self._http.server_address[1]
        self._threads = [self._start("telegram-http", self._http.serve_forever, 0.05)]
        self.base_url = f"http://127.0.0.1:{self._port}/bot"
        self.file_url = f"http://127.0.0.1:{self._port}/file/bot"
        self.proxy: str | None = None
        self._listener: socket.socket | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.proxy = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
            self._threads.append(self._start("telegram-proxy", self._accept))

    @staticmethod
    def _start(name: str, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def messages(self, token: str | None = None) -> list[Message]:
        """What the bots sent, in order; of one bot when given."""
        with self._changed:
            return [one for one in self._messages if token in (None, one.token)]

    def polled(self, token: str) -> bool:
        """Whether a gateway has asked for the messages of this bot: it is connected."""
        with self._changed:
            return token in self._polled

    def wait(
        self, wanted: Callable[[Message], bool], seconds: float, after: int = 0
    ) -> Message | None:
        """The first message like that with a higher number than ``after``; None if none came."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for message in self._messages:
                    if message.message_id > after and wanted(message):
                        return message
                rest = end - time.monotonic()
                if rest <= 0 or self._closed:
                    return None
                self._changed.wait(rest)

    def say(self, token: str, text: str, reply_to: Message | None = None, user: int = 123) -> int:
        """A person writes to a bot, in a private chat; the number of the message."""
        chat = {"id": user, "type": "private", "first_name": "Pat", "username": "pat"}
        person = {"id": user, "is_bot": False, "first_name": "Pat", "username": "pat"}
        with self._changed:
            self._number += 1
            message: dict[str, Any] = {
                "message_id": self._number,
                "date": int(time.time()),
                "text": text,
                "from": person,
                "chat": chat,
            }
            if reply_to is not None:
                message["reply_to_message"] = {
                    "message_id": reply_to.message_id,
                    "date": int(time.time()),
                    "from": _bot(token),
                    "chat": chat,
                    "text": reply_to.text,
                }
            self._updates[token].append({"update_id": self._number, "message": message})
            self._changed.notify_all()
            return self._number

    def answer(self, token: str, method: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one call of the API."""
        if token not in self._tokens:
            return _refusal(401, "Unauthorized")
        if method == "getUpdates":
            return 200, {"ok": True, "result": self._poll(token, params)}
        if method == "sendMessage":
            return self._send(token, params)
        if method == "getMe":
            return 200, {"ok": True, "result": _bot(token)}
        if method == "getWebhookInfo":
            info = {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
            return 200, {"ok": True, "result": info}
        if method == "getMyCommands":
            return 200, {"ok": True, "result": []}
        if method == "editMessageText":
            return self._edit(token, params)
        return 200, {"ok": True, "result": True}

    def _send(self, token: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = _read(params)
        if not text:
            return _refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le", "surrogatepass")) > 2 * TEXT_LIMIT:
            return _refusal(400, "Bad Request: message is too long")
        with self._changed:
            self._number += 1
            message = Message(token, _chat(params), self._number, text)
            self._messages.append(message)
            self._changed.notify_all()
        return 200, {"ok": True, "result": _shown(message)}

    def _edit(self, token: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        number = str(params.get("message_id"))
        with self._changed:
            for place, old in enumerate(self._messages):
                if old.token == token and str(old.message_id) == number:
                    new = old._replace(text=_read(params))
                    self._messages[place] = new
                    self._changed.notify_all()
                    return 200, {"ok": True, "result": _shown(new)}
        return _refusal(400, "Bad Request: message to edit not found")

    def _poll(self, token: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        offset = int(params.get("offset") or 0)
        end = time.monotonic() + min(float(params.get("timeout") or 0), LONGEST_POLL)
        with self._changed:
            self._polled.add(token)
            while True:
                if offset > 0:
                    rest = [one for one in self._updates[token] if one["update_id"] >= offset]
                    self._updates[token] = rest
                left = end - time.monotonic()
                if self._updates[token] or left <= 0 or self._closed:
                    return list(self._updates[token])
                self._changed.wait(left)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            self._start("telegram-tls", self._serve_tls, connection, address)

    def _serve_tls(self, connection: socket.socket, address: tuple[str, int]) -> None:
        connection.settimeout(_CONNECTION_SECONDS)
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _HEAD_LIMIT:
                    piece = connection.recv(4096)
                    if not piece:
                        return
                    head += piece
                if not head.startswith(f"CONNECT {HOST}:443 ".encode()):
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                    return
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with self._tls.wrap_socket(connection, server_side=True) as tls:
                    _handler(self)(tls, address, self._http)
            except OSError:
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nothing to tell."""


def _handler(api: TelegramApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            where = urllib.parse.urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = re.fullmatch(r"/bot([^/]+)/([A-Za-z]+)", where.path)
            if found is None:
                status, body = _refusal(404, "Not Found")
            else:
                params: dict[str, Any] = dict(urllib.parse.parse_qsl(where.query))
                if (self.headers.get("Content-Type") or "").startswith("application/json"):
                    params.update(json.loads(raw or b"{}"))
                else:
                    params.update(urllib.parse.parse_qsl(raw.decode(), keep_blank_values=True))
                token = urllib.parse.unquote(found[1])
                status, body = api.answer(token, found[2], params)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

    return Handler


def _bot(token: str) -> dict[str, Any]:
    number = token.partition(":")[0]
    return {
        "id": int(number) if number.isdecimal() else 1,
        "is_bot": True,
        "first_name": "Stand-in",
        "username": f"standin{number}_bot",
        "can_join_groups": True,
        "can_read_all_group_messages": False,
        "supports_inline_queries": False,
    }


def _shown(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "from": _bot(message.token),
        "chat": {"id": message.chat, "type": "private", "first_name": "Pat"},
        "date": int(time.time()),
        "text": message.text,
    }


def _chat(params: dict[str, Any]) -> int:
    text = str(params.get("chat_id"))
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else 0


def _read(params: dict[str, Any]) -> str:
    text = str(params.get("text") or "")
    return _ESCAPED.sub(r"\1", text) if params.get("parse_mode") == "MarkdownV2" else text


def _refusal(code: int, description: str) -> tuple[int, dict[str, Any]]:
    return code, {"ok": False, "error_code": code, "description": description}
