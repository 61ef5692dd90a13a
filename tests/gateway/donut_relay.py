"""A relay before an API server: notes what passes, and can exchange the session of answers."""

import http.client
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

SESSION = "x-hermes-session-id"
_HOP_BY_HOP = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}


class Passed(NamedTuple):
    """One turn: the session that was asked for, its key, and what came back."""

    session: str
    key: str
    status: int
    answered_session: str | None


class Relay:
    """Serves until ``close``. ``renamed``: sessions whose answers name another one.

    ``began`` are the keys of all turns that have come, ``passed`` those that were answered.
    """

    def __init__(self, port: int) -> None:
        self.began: list[str] = []
        self.passed: list[Passed] = []
        self.renamed: dict[str, str] = {}
        self._http = _Server(("127.0.0.1", 0), _handler(self, port))
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="relay", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A side that went away is nothing to tell."""


def _handler(relay: Relay, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._pass(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            session = self.headers.get(SESSION, "")
            key = self.headers.get("Idempotency-Key", "")
            relay.began.append(key)
            status, answered = self._pass(body, relay.renamed.get(session))
            relay.passed.append(Passed(session, key, status, answered))

        def _pass(self, body: bytes, renamed: str | None = None) -> tuple[int, str | None]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            headers = {n.lower(): v for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP}
            if renamed is not None and SESSION in headers:
                headers[SESSION] = renamed
            self._answer(answer.status, headers, data)
            return answer.status, headers.get(SESSION)

        def _answer(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
