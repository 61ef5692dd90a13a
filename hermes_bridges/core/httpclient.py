"""HTTP calls by the rules of this project, on kept-alive connections.

A call is bounded as a whole, however slowly the peer drips. Redirects are not followed, nothing is
taken from the environment or a netrc file, nothing is tried again, and TLS is always verified.
"""

import http.client
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from hermes_bridges import __version__
from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.tcp import ProxyRefused
from hermes_bridges.core.wire import Line, SecureLine, Wire
from hermes_bridges.errors import BridgeError

_AGENT = f"hermes-bridges/{__version__}"

Kind = Literal["connect", "timeout", "broken", "too_large"]


class Reply(NamedTuple):
    """A whole answer, whatever its status; ``headers`` ignores case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    reused: bool


class CallFailed(BridgeError):
    """No whole answer. The text is safe to log: no path, no query, nothing that was sent.

    ``kind``: ``connect`` (no address, no connection, no TLS: nothing was sent), ``timeout`` (sent,
    but no whole answer in time), ``broken`` (sent, then the connection broke) or ``too_large``.
    ``reused``: the connection had served an earlier call. ``answered``: a byte of an answer came.
    A reused one that broke unanswered was most likely closed before the request arrived.
    """

    def __init__(self, kind: Kind, told: str, *, reused: bool, answered: bool) -> None:
        super().__init__(told)
        self.kind = kind
        self.reused = reused
        self.answered = answered


class HttpClient:
    """One session with at most one connection, which is kept alive. Used by one thread at a time.

    ``connect_limit`` bounds connect and TLS together, in seconds (a name resolution cannot be
    ended). With ``proxy`` (``http://host:port``) everything but loopback is reached through it.
    Answers of more than ``body_limit`` bytes are refused; no encoding is asked for or undone.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        *,
        connect_limit: float = 5.0,
        proxy: str | None = None,
        body_limit: int = 4 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._body_limit = body_limit
        self._wire = Wire(deadlines, connect_limit, proxy, clock)
        self._adapter = _Adapter(self._wire)
        self._session = _Session(self._adapter)

    def post(self, url: str, body: bytes, headers: Mapping[str, str], limit: float) -> Reply:
        """Send ``body``; ``limit`` bounds the whole call in seconds. Raises ``CallFailed``."""
        sized = {"User-Agent": _AGENT, "Content-Length": str(len(body)), **headers}
        return self._call("POST", url, body, sized, limit)

    def get(self, url: str, headers: Mapping[str, str], limit: float) -> Reply:
        """As ``post``, with nothing to send."""
        return self._call("GET", url, None, {"User-Agent": _AGENT, **headers}, limit)

    @property
    def connected(self) -> bool:
        """Whether the connection of an earlier call still stands, as far as can be seen here."""
        return self._adapter.connected()

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        self._session.close()
        self._wire.end()

    def _call(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str], limit: float
    ) -> Reply:
        if limit <= 0:
            raise CallFailed("connect", "no time left for the call", reused=False, answered=False)
        # Put together by hand: what requests would prepare takes as long as the rest of the call.
        request = requests.PreparedRequest()
        request.method, request.url, request.body = method, url, body
        request.headers = headers  # type: ignore[assignment]
        outer = sys.exception()
        wire = self._wire
        wire.begin(limit)
        whole = False
        try:
            response = self._session.send(request, stream=True, allow_redirects=False, proxies={})
            answer: Any = response.raw
            data = self._read(answer)
            whole = True
            return Reply(response.status_code, response.headers, data, wire.reused)
        except (OSError, http.client.HTTPException) as error:
            # Those of requests are OSErrors.
            failure = self._failure(url, limit, _cause(error, outer))
        finally:
            if not whole:
                self._session.close()
            wire.end()
        # Outside of the handler: the exceptions of the libraries quote the URL.
        raise failure

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """The whole body."""
        with answer:
            declared = answer.length
            if declared is not None and declared > self._body_limit:
                raise _TooLargeError
            data = answer.read(self._body_limit + 1)
        if len(data) > self._body_limit:
            raise _TooLargeError
        if declared is not None and len(data) < declared:
            raise http.client.IncompleteRead(b"")
        if declared is None and not answer.chunked and self._wire.cut_short():
            # It ends where the connection does, and that may have been our own doing.
            raise http.client.IncompleteRead(b"")
        return data

    def _failure(self, url: str, limit: float, cause: BaseException) -> CallFailed:
        wire = self._wire
        parts = urlsplit(url)
        peer = f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"
        kind: Kind
        if isinstance(cause, _TooLargeError):
            kind, told = "too_large", f"{peer}: the answer has over {self._body_limit} bytes"
        elif not wire.sent:
            kind, told = "connect", f"{peer}: no connection ({_told(cause)})"
        elif wire.late():
            kind, told = "timeout", f"{peer}: no whole answer within {limit:g} s"
        else:
            kind, told = "broken", f"{peer}: the connection broke ({_told(cause)})"
        return CallFailed(kind, told, reused=wire.reused, answered=wire.answered)


class Clients:
    """Clients that are lent to one thread each, the most recently used first.

    At most ``most_idle`` are kept while nobody uses them; one whose call failed is not.
    """

    def __init__(self, make: Callable[[], HttpClient], most_idle: int) -> None:
        self._make = make
        self._most_idle = most_idle
        # Guards _idle and _closed.
        self._lock = threading.Lock()
        self._idle: list[HttpClient] = []
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[HttpClient]:
        """A client for the length of the block; it is closed if the block raises."""
        with self._lock:
            client = self._idle.pop() if self._idle else None
        if client is None:
            client = self._make()
        unharmed = False
        try:
            yield client
            unharmed = True
        finally:
            self._take_back(client, unharmed)

    def close(self) -> None:
        """Close the idle ones now, and each borrowed one when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def _take_back(self, client: HttpClient, unharmed: bool) -> None:
        surplus: HttpClient | None = client
        with self._lock:
            if unharmed and not self._closed:
                self._idle.append(client)
                surplus = self._idle.pop(0) if len(self._idle) > self._most_idle else None
        if surplus is not None:
            surplus.close()


class _TooLargeError(http.client.HTTPException):
    pass


class _Adapter(BaseAdapter):
    """The one connection to the one peer that is called.

    In place of the pools of requests, which can do much more: they would take most of the time of
    a call.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self._origin = ("", "")
        self._line: Line | None = None

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> Any:
        scheme, place, path, query, _ = urlsplit(str(request.url))
        line = self._line_to(scheme, place)
        target = f"{path}?{query}" if query else path or "/"
        line.request(str(request.method), target, request.body, request.headers)
        answer = line.getresponse()
        response = requests.Response()
        response.status_code, response.raw = answer.status, answer
        response.headers = CaseInsensitiveDict(answer.getheaders())
        return response

    def _line_to(self, scheme: str, place: str) -> Line:
        if self._line is None or self._origin != (scheme, place):
            self.close()
            parts = urlsplit(f"//{place}")
            kind = Line if scheme == "http" else SecureLine
            self._origin = (scheme, place)
            self._line = kind(parts.hostname or "", parts.port or kind.default_port, self._wire)
        self._line.refresh()
        return self._line

    def connected(self) -> bool:
        if self._line is None:
            return False
        self._line.refresh()
        return self._line.sock is not None

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Session(requests.Session):
    def __init__(self, adapter: BaseAdapter) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        for scheme in ("http://", "https://"):
            self.mount(scheme, adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: otherwise requests reads the whole body of each redirect, however long."""


def _cause(error: BaseException, outer: BaseException | None) -> BaseException:
    """The innermost exception of this call; ``outer`` is what the caller was just handling."""
    while True:
        inner = error.__cause__
        if inner is None and not error.__suppress_context__:
            inner = error.__context__
        if inner is None or inner is outer:
            return error
        error = inner


def _told(cause: BaseException) -> str:
    """What can be said of it without quoting anything that was sent or received."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"certificate refused: {cause.verify_message}"
    if isinstance(cause, ProxyRefused):
        return str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__
