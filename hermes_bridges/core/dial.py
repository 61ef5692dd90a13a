"""Opens a WebSocket: name, connection, proxy, TLS and handshake, all within one deadline."""

import errno
import http.cookies
import math
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import websocket

from hermes_bridges.core.tcp import tls_context
from hermes_bridges.core.urls import is_loopback
from hermes_bridges.core.waker import Waker
from hermes_bridges.errors import BridgeError

_HEAD_MAX = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})\b")
_RETRY_AFTER = re.compile(rb"(?im)^retry-after:[ \t]*([^\r\n]*)")
# What websocket-client raises for an upgrade that it does not like.
_BAD_ANSWER = (
    websocket.WebSocketException,
    http.cookies.CookieError,
    LookupError,
    ValueError,
)

T = TypeVar("T")


class Target(NamedTuple):
    """Where to dial: a ``ws`` or ``wss`` URL, and headers that are fit to be sent as they are."""

    url: str
    headers: Sequence[tuple[str, str]] = ()


class DialFailed(BridgeError):
    """A dial that came to nothing; the text names the phase and is safe to log.

    ``status`` is what the peer (never the proxy) answered instead of the upgrade, with its
    ``Retry-After`` header as it came.
    """

    def __init__(
        self, reason: str, status: int | None = None, retry_after: str | None = None
    ) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(reason)


class DialAbandoned(BridgeError):
    """The dial was no longer wanted."""


class _TimeIsUp(BridgeError):
    """Not an OSError: websocket-client would turn that into something else."""


class Dialler:
    """Makes WebSocket connections. Owned by one thread, which ``waker`` wakes.

    Each wait ends at the deadline, and at a wake once ``abandoned()`` is true; only the name
    service cannot be ended early. ``proxy`` is ``http://host:port``, asked by CONNECT for all but
    loopback; the proxies of the environment are never used. Redirects are not followed.
    """

    def __init__(
        self,
        waker: Waker,
        abandoned: Callable[[], bool],
        *,
        proxy: str | None = None,
        resolve: Callable[..., Sequence[Any]] = socket.getaddrinfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waker = waker
        self._abandoned = abandoned
        self._proxy = proxy
        self._resolve = resolve
        self._clock = clock
        self._deadline = math.inf
        self._phase = ""

    def dial(self, target: Target, limit: float) -> socket.socket:
        """An open connection, not blocking, with nothing read beyond the handshake.

        ``limit`` is in seconds for all of it. Raises DialFailed or DialAbandoned.
        """
        self._deadline = self._clock() + limit
        try:
            return self._dial(target)
        except _TimeIsUp:
            raise self.failure(f"not done within {limit:g} s") from None
        except (OSError, UnicodeError) as fault:
            raise self.failure(told(fault)) from None

    def _dial(self, target: Target) -> socket.socket:
        url = urlsplit(target.url)
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "wss" else 80)
        proxy = None if self._proxy is None or is_loopback(host) else urlsplit(self._proxy)
        with ExitStack() as on_failure:
            if proxy is None:
                sock = self._connect(host, port)
            else:
                sock = self._connect(proxy.hostname or "", proxy.port or 80)
            on_failure.callback(lambda: sock.close())
            if proxy is not None:
                self._tunnel(sock, host, port)
            if url.scheme == "wss":
                self._phase = "TLS"
                sock = secured = tls_context().wrap_socket(
                    sock, server_hostname=host, do_handshake_on_connect=False
                )
                self.persist(secured, secured.do_handshake)
            self._upgrade(sock, target._replace(url=urlunsplit(url)))
            on_failure.pop_all()
        return sock

    def _connect(self, host: str, port: int) -> socket.socket:
        self._phase = "name"
        addresses = self._resolve(host, port, type=socket.SOCK_STREAM)
        self._phase = "connection"
        fault: Exception = OSError(0, "there is no address")
        for index, (family, kind, protocol, _, address) in enumerate(addresses):
            # An address that does not answer must leave time for the next one.
            now = self._clock()
            due = now + (self._deadline - now) / (len(addresses) - index)
            try:
                return self._open(socket.socket(family, kind, protocol), address, due)
            except (OSError, _TimeIsUp) as found:
                fault = found
        raise fault

    def _open(self, sock: socket.socket, address: Any, due: float) -> socket.socket:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                self._await(sock, select.POLLOUT, due)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
        except (OSError, BridgeError):
            sock.close()
            raise
        return sock

    def _tunnel(self, sock: socket.socket, host: str, port: int) -> None:
        self._phase = "proxy"
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        talk = _Talk(self, sock)
        talk.send(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode("ascii"))
        status = talk.read_status()
        if not 200 <= status < 300:
            raise DialFailed(f"proxy: answered with HTTP {status}")

    def _upgrade(self, sock: socket.socket, target: Target) -> None:
        self._phase = "upgrade"
        client: Any = websocket.WebSocket()
        try:
            client.connect(
                target.url,
                socket=_Talk(self, sock),
                header=[f"{name}: {value}" for name, value in target.headers],
                redirect_limit=0,
                suppress_origin=True,
            )
        except _BAD_ANSWER:
            # Not its text, which may quote what the peer has sent.
            raise DialFailed("upgrade: no valid handshake") from None

    def persist(self, sock: socket.socket, act: Callable[[], T], event: int = 0) -> T:
        """Do it on a socket that does not block, as soon as that can be done.

        ``event`` is what a plain socket is polled for; TLS says by itself what it needs.
        """
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                needed = select.POLLIN
            except ssl.SSLWantWriteError:
                needed = select.POLLOUT
            except BlockingIOError:
                needed = event
            self._await(sock, needed, self._deadline)

    def failure(self, detail: str) -> DialFailed:
        """What to raise for a fault in the present phase."""
        return DialFailed(f"{self._phase}: {detail}")

    def _await(self, sock: socket.socket, event: int, due: float) -> None:
        poll = select.poll()
        poll.register(self._waker.fileno(), select.POLLIN)
        poll.register(sock.fileno(), event)
        while True:
            if self._abandoned():
                raise DialAbandoned
            left = due - self._clock()
            if left <= 0:
                raise _TimeIsUp
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            if self._waker.fileno() in ready:
                self._waker.drain()
            elif ready:
                return


class _Talk:
    """The socket during an HTTP exchange: one head is written, one is read, no byte beyond it.

    To websocket-client it is a socket, from which it hears of an upgrade only: everything else
    raises DialFailed, with no look at the body.
    """

    def __init__(self, dialler: Dialler, sock: socket.socket) -> None:
        self._dialler = dialler
        self._sock = sock
        self._head = bytearray()
        self._replayed = 0

    def send(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            sent = self._dialler.persist(self._sock, partial(self._sock.send, rest), select.POLLOUT)
            rest = rest[sent:]
        return len(data)

    def read_status(self) -> int:
        """The status of the answer, once its head is all there. Raises DialFailed."""
        head = self._head
        while not head.endswith((b"\n\r\n", b"\n\n")):
            byte = self._dialler.persist(self._sock, partial(self._sock.recv, 1), select.POLLIN)
            head += byte
            if not byte or len(head) > _HEAD_MAX:
                break
        match = _STATUS.match(head)
        if match is None:
            raise self._dialler.failure("no HTTP answer" if head else "the peer hung up")
        return int(match[1])

    def recv(self, size: int) -> bytes:
        if not self._head:
            status = self.read_status()
            if status != 101:
                match = _RETRY_AFTER.search(self._head)
                after = match[1].strip().decode("latin-1") if match else None
                raise DialFailed(f"upgrade: answered with HTTP {status}", status, after)
        data = self._head[self._replayed : self._replayed + size]
        self._replayed += len(data)
        return bytes(data)

    def gettimeout(self) -> None:
        return None

    def close(self) -> None:
        self._sock.close()


def told(fault: Exception) -> str:
    """What the system says about a fault; safe to log."""
    for name in ("verify_message", "reason", "strerror"):
        text = getattr(fault, name, None)
        if text:
            return str(text)
    return type(fault).__name__
