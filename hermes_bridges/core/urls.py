"""Addresses of peers, as settings name them."""

import ipaddress
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

_PLAIN = {"http", "ws"}


def is_loopback(host: str | None) -> bool:
    """Whether a host, as a URL names it, is this one. No name is looked up."""
    if host is None or host.lower().rstrip(".") == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def in_clear(url: str) -> bool:
    """Whether a token that goes to this URL would cross a network without encryption."""
    parts = urlsplit(url)
    return parts.scheme in _PLAIN and not is_loopback(parts.hostname)


def url(*schemes: str) -> Callable[[str], str]:
    """A parser for a URL with a host: no user info, no fragment."""

    def parse(text: str) -> str:
        parts = _split(text, schemes)
        if parts is None:
            raise ValueError(f"must be a URL such as {schemes[-1]}://host/path")
        return text

    return parse


def base_url(text: str) -> str:
    """An http or https URL to which paths are added: no query; a last ``/`` or ``/v1`` goes."""
    parts = _split(text, ("http", "https"))
    if parts is None or "?" in text:
        raise ValueError("must be a URL such as http://127.0.0.1:8642, without a query")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def proxy_url(text: str) -> str:
    """``http://host:port`` and nothing else."""
    parts = _split(text, ("http",))
    if parts is None or parts.port is None or parts.path.strip("/") or "?" in text:
        raise ValueError("must be http://host:port")
    return text.rstrip("/")


def _split(text: str, schemes: tuple[str, ...]) -> SplitResult | None:
    # urlsplit drops line breaks, and lets the rest through.
    if not text.isascii() or not text.isprintable() or set(' "<>\\^`{|}#') & set(text):
        return None
    try:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc:
            return None
        # An empty port is none; a bad one raises.
        return None if parts.port == 0 or parts.netloc.endswith(":") else parts
    except ValueError:
        return None
