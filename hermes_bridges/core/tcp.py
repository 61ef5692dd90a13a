"""A TCP connection to a peer: within a time, directly or through a proxy; the rules for TLS."""

import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from hermes_bridges.core.urls import is_loopback

_LONGEST_HEAD = 64 * 1024  # bytes of a proxy's answer
_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?: [^\n]*)?\r?\n")


class ProxyRefused(OSError):
    """The proxy did not open the tunnel; the text names its status and nothing else of it."""


def dial(
    host: str,
    port: int,
    due: float,
    *,
    proxy: str | None = None,
    hold: Callable[[socket.socket], object],
    clock: Callable[[], float] = time.monotonic,
) -> socket.socket:
    """A TCP connection to ``host`` by ``due`` (of ``clock``), with Nagle's algorithm off.

    ``host`` is ASCII, an IPv6 address without brackets. All addresses of it are tried, each for
    its share of the time that is left. With ``proxy`` (``http://host:port``) it goes through that
    one by CONNECT, unless the host is loopback. ``hold`` gets each socket before it connects;
    shutting it down from another thread ends the dial at once. Name resolution alone cannot be
    ended.

    Raises ``OSError``: ``socket.gaierror``, ``TimeoutError``, ``ProxyRefused`` and the rest.
    """
    if proxy is None or is_loopback(host):
        return _connect(host, port, due, hold, clock)
    parts = urlsplit(proxy)
    sock = _connect(parts.hostname or "", parts.port or 80, due, hold, clock)
    try:
        _open_tunnel(sock, host, port, due, clock)
    except OSError:
        sock.close()
        raise
    return sock


def tls_context() -> ssl.SSLContext:
    """The one context for all TLS: the system's authorities, verified, host names checked.

    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name other authorities, as everywhere with OpenSSL.
    """
    return _make_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=2)
def _make_context(file: str | None, directory: str | None) -> ssl.SSLContext:
    # Reading the authorities takes many milliseconds and a megabyte. OpenSSL looks at the two
    # variables by itself.
    return ssl.create_default_context()


def _connect(
    host: str,
    port: int,
    due: float,
    hold: Callable[[socket.socket], object],
    clock: Callable[[], float],
) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no such host name") from None
    failure: OSError = TimeoutError("no time left to connect")
    for place, (family, kind, protocol, _, address) in enumerate(found):
        left = due - clock()
        if left <= 0:
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine does not have
            failure = error
            continue
        try:
            hold(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(left / (len(found) - place))
            sock.connect(address)
            sock.settimeout(max(0.001, due - clock()))
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _open_tunnel(
    sock: socket.socket, host: str, port: int, due: float, clock: Callable[[], float]
) -> None:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("ascii"))
    head = b""
    while b"\r\n\r\n" not in head:
        left = due - clock()
        if left <= 0:
            raise TimeoutError("the proxy did not answer in time")
        sock.settimeout(left)
        # In a tunnel the far end does not speak first, so nothing is read that is not ours.
        data = sock.recv(4096)
        head += data
        if not data or len(head) > _LONGEST_HEAD:
            raise ProxyRefused("the proxy did not answer in HTTP")
    status = _STATUS_LINE.match(head)
    if status and not status[1].startswith(b"2"):
        raise ProxyRefused(f"the proxy answered {status[1].decode()}")
    if not status or not head.endswith(b"\r\n\r\n"):
        raise ProxyRefused("the proxy did not answer in HTTP")
    sock.settimeout(max(0.001, due - clock()))
