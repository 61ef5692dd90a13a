from collections.abc import Callable

import pytest

from hermes_bridges.core.urls import base_url, in_clear, is_loopback, proxy_url, url

stream, send = url("ws", "wss"), url("http", "https")
NO_URLS = [
    "",
    "host",
    "//host/x",
    "https:/host",
    "https:host",
    "https://",
    "https:///x",
    "https://:443/x",
    "https://host:/x",
    "https://host:0/x",
    "https://host:65536/x",
    "https://host:x/",
    "https://[::1/x",
    "https://ann:hush@host/x",
    "https://hush@host/x",
    "https://host/x#hush",
    "https://host/a b",
    "https://host/a\nb",
    " https://host/",
    "https://host/\t",
    "https://hóst/",
    "https://host\\x",
    "ftp://host/x",
    "file:///etc/passwd",
]


def refused(parse: Callable[[str], object], text: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert "hush" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["https://host", "http://host:8642/x/y?a=b&c", "HTTPS://h.example./", "http://[::1]:80/x"],
)
def test_urls_are_left_as_they_are(text: str) -> None:
    assert send(text) == text


@pytest.mark.parametrize("text", NO_URLS)
def test_what_is_no_url_is_refused(text: str) -> None:
    assert refused(send, text) == "must be a URL such as https://host/path"
    assert refused(stream, text.replace("http", "ws")).startswith("must be a URL such as wss://")
    assert "http://127.0.0.1:8642" in refused(base_url, text)
    assert refused(proxy_url, text) == "must be http://host:port"


def test_each_url_has_its_schemes() -> None:
    assert stream("wss://host/x") == "wss://host/x"
    for parse, text in ((send, "wss://host"), (stream, "https://host"), (base_url, "ws://host")):
        refused(parse, text)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("http://h:8642", "http://h:8642"),
        ("http://h:8642/", "http://h:8642"),
        ("http://h:8642/v1", "http://h:8642"),
        ("http://h:8642/v1/", "http://h:8642"),
        ("https://h/p/work", "https://h/p/work"),
        ("https://h/p/work/v1", "https://h/p/work"),
        ("https://h/av1", "https://h/av1"),
    ],
)
def test_a_base_url_has_no_end(text: str, base: str) -> None:
    assert base_url(text) == base


@pytest.mark.parametrize("text", ["http://h?", "http://h/v1?x=1"])
def test_a_base_url_has_no_query(text: str) -> None:
    assert refused(base_url, text).endswith("without a query")


def test_a_proxy_is_host_and_port() -> None:
    assert proxy_url("http://proxy:3128") == proxy_url("http://proxy:3128/") == "http://proxy:3128"
    for text in ("http://proxy", "https://proxy:1", "http://proxy:1/x", "http://proxy:1/?a"):
        assert refused(proxy_url, text) == "must be http://host:port"


def test_this_host() -> None:
    for host in ("localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.9.9.9", "::1"):
        assert is_loopback(host), host
    for other in (None, "", "localhost.example", "127.0.0.1.example", "0.0.0.0", "10.0.0.1", "::"):
        assert not is_loopback(other), other


def test_what_crosses_a_network_in_clear() -> None:
    for text in ("http://h/", "ws://10.0.0.1/", "HTTP://h", "http://localhost.example/"):
        assert in_clear(text), text
    for text in ("https://h/", "wss://h/", "http://localhost:1/", "ws://[::1]/", "ws://127.0.0.1"):
        assert not in_clear(text), text
