"""A loopback stand-in for the Telegram Bot API, for clients that cannot change the base URL.

An HTTP CONNECT proxy on 127.0.0.1 that answers TLS for api.telegram.org itself, with a
certificate that is made anew for each instance: the client is given ``TELEGRAM_PROXY`` and
``SSL_CERT_FILE``. Any other host is refused. Every call of the Bot API is kept in ``calls``, with
its parameters and the files that came with it, and what a chat would show in ``messages``.
"""

import email.parser
import email.policy
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import trustme

HOST = "api.telegram.org"
BOT = {"id": 123456, "is_bot": True, "first_name": "Stand-in", "username": "standin_bot"}


@dataclass
class Upload:
    """A file that came with a call: what must never happen because of a peer's words."""

    name: str
    data: bytes


@dataclass
class Call:
    method: str
    params: dict[str, Any]
    uploads: list[Upload] = field(default_factory=list)
    at: float = field(default_factory=time.monotonic)


@dataclass
class Failure:
    method: str
    code: int
    description: str
    times: int


class FakeTelegram:
    """Serves until ``close``; all of it may be read from any thread."""

    def __init__(self, directory: Path, token: str = "123456:STANDIN") -> None:
        self.token = token
        self._lock = threading.Lock()  # guards _calls, _failures and _message_id
        self._calls: list[Call] = []
        self._failures: list[Failure] = []
        self._message_id = 1000
        authority = trustme.CA()
        self.certificate = directory / "telegram-ca.pem"
        authority.cert_pem.write_to_path(self.certificate)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(HOST).configure_cert(self._tls)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.proxy = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="fake-telegram", daemon=True)
        self._thread.start()

    @property
    def environ(self) -> dict[str, str]:
        """What a client needs to find this instead of Telegram."""
        return {
            "TELEGRAM_BOT_TOKEN": self.token,
            "TELEGRAM_PROXY": self.proxy,
            "SSL_CERT_FILE": str(self.certificate),
        }

    @property
    def calls(self) -> list[Call]:
        with self._lock:
            return list(self._calls)

    def messages(self, chat: str | None = None) -> list[str]:
        """The texts that were sent, in order, Markdown escapes undone; of one chat when given."""
        return [
            _plain(call.params)
            for call in self.calls
            if call.method == "sendMessage"
            and (chat is None or str(call.params.get("chat_id")) == chat)
        ]

    def uploads(self) -> list[Upload]:
        return [upload for call in self.calls for upload in call.uploads]

    def fail(self, method: str, code: int, description: str, times: int = 1) -> None:
        """Lets the next ``times`` calls of that method fail."""
        with self._lock:
            self._failures.append(Failure(method, code, description, times))

    def forget(self) -> None:
        """Drops the calls so far."""
        with self._lock:
            self._calls.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def answer(self, call: Call) -> tuple[int, dict[str, Any]]:
        """The status and the body for one call, which is put into the journal."""
        with self._lock:
            self._calls.append(call)
            for failure in self._failures:
                if failure.method == call.method and failure.times > 0:
                    failure.times -= 1
                    return _error(failure.code, failure.description)
            if not call.method.startswith("send") or call.method == "sendChatAction":
                return 200, {"ok": True, "result": BOT if call.method == "getMe" else True}
            if call.method == "sendMessage":
                text = call.params.get("text") or ""
                if not text:
                    return _error(400, "Bad Request: message text is empty")
                if len(_plain(call.params).encode("utf-16-le")) > 2 * 4096:
                    return _error(400, "Bad Request: message is too long")
            self._message_id += 1
            chat = str(call.params.get("chat_id"))
            number = int(chat) if chat.lstrip("-").isdigit() else 0
            message = {
                "message_id": self._message_id,
                "from": BOT,
                "chat": {"id": number, "type": "private", "first_name": "Human"},
                "date": int(time.time()),
            }
            return 200, {"ok": True, "result": message}

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve,
                args=(connection, address),
                name="fake-telegram-connection",
                daemon=True,
            ).start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        connection.settimeout(30)
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    chunk = connection.recv(4096)
                    if not chunk:
                        return
                    head += chunk
                if not head.startswith(f"CONNECT {HOST}:443 ".encode()):
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                    return
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with self._tls.wrap_socket(connection, server_side=True) as tls:
                    _Handler(tls, address, self)
            except OSError:
                return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, connection: socket.socket, address: Any, telegram: FakeTelegram) -> None:
        self._telegram = telegram
        super().__init__(connection, address, None)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        found = re.fullmatch(r"/bot([^/]+)/([A-Za-z]+)", urllib.parse.urlsplit(self.path).path)
        params, uploads = self._body()
        if not found:
            status, body = _error(404, "Not Found")
        elif urllib.parse.unquote(found[1]) != self._telegram.token:
            status, body = _error(401, "Unauthorized")
        else:
            status, body = self._telegram.answer(Call(found[2], params, uploads))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def _body(self) -> tuple[dict[str, Any], list[Upload]]:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.headers.get("Content-Type") or ""
        query = urllib.parse.urlsplit(self.path).query
        params: dict[str, Any] = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        uploads: list[Upload] = []
        if kind.startswith("application/json"):
            params.update(json.loads(raw or b"{}"))
        elif kind.startswith("application/x-www-form-urlencoded"):
            params.update(urllib.parse.parse_qsl(raw.decode(), keep_blank_values=True))
        elif kind.startswith("multipart/form-data"):
            head = b"Content-Type: " + kind.encode() + b"\r\n\r\n"
            message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + raw)
            for part in message.iter_parts():
                data = part.get_payload(decode=True)
                assert isinstance(data, bytes)
                if filename := part.get_filename():
                    uploads.append(Upload(filename, data))
                else:
                    name = part.get_param("name", header="content-disposition")
                    params[str(name)] = data.decode("utf-8", "replace")
        return params, uploads


def _error(code: int, description: str) -> tuple[int, dict[str, Any]]:
    return code, {"ok": False, "error_code": code, "description": description}


def _plain(params: dict[str, Any]) -> str:
    """The text as a person sees it; only the escapes are undone, not the formatting."""
    text = str(params.get("text") or "")
    if params.get("parse_mode") == "MarkdownV2":
        return re.sub(r"\\([_*\[\]()~`>#+\-=|{}.!\\])", r"\1", text)
    return text
