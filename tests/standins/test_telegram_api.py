"""The stand-in for Telegram, by its two doors."""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from hermes_bridges.standins.telegram_api import HOST, Message, TelegramApi
from tests.conftest import wait

ONE, OTHER = "123456:STANDIN", "234567:STANDIN"


@pytest.fixture
def api() -> Iterator[TelegramApi]:
    served = TelegramApi([ONE, OTHER])
    yield served
    served.close()


def call(api: TelegramApi, method: str, token: str = ONE, **params: Any) -> tuple[int, Any]:
    where = urllib.parse.urlsplit(api.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    try:
        connection.request(
            "POST",
            f"{where.path}{token}/{method}",
            json.dumps(params),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def result(api: TelegramApi, method: str, token: str = ONE, **params: Any) -> Any:
    status, body = call(api, method, token, **params)
    assert status == 200 and body["ok"] is True, body
    return body["result"]


def test_a_message_is_shown_and_numbered(api: TelegramApi) -> None:
    sent = result(api, "sendMessage", chat_id=-100123, text="hello")
    assert sent["chat"]["id"] == -100123 and sent["text"] == "hello"
    assert result(api, "sendMessage", OTHER, chat_id="@name", text="x")["chat"]["id"] == 0
    numbers = [message.message_id for message in api.messages()]
    assert numbers == [1001, 1002]
    assert api.messages(OTHER) == [Message(OTHER, 0, 1002, "x")]


def test_markdown_is_shown_as_a_person_reads_it(api: TelegramApi) -> None:
    result(api, "sendMessage", chat_id=1, text=r"a\.b \[c\]", parse_mode="MarkdownV2")
    result(api, "sendMessage", chat_id=1, text=r"a\.b")
    assert [message.text for message in api.messages()] == ["a.b [c]", r"a\.b"]


def test_an_edit_changes_what_is_shown(api: TelegramApi) -> None:
    number = result(api, "sendMessage", chat_id=1, text="old")["message_id"]
    assert result(api, "editMessageText", message_id=number, text="new")["text"] == "new"
    assert [message.text for message in api.messages()] == ["new"]
    status, body = call(api, "editMessageText", OTHER, message_id=number, text="x")
    assert (status, body["error_code"]) == (400, 400)


@pytest.mark.parametrize("text, description", [("", "empty"), ("a" + "😀" * 2048, "too long")])
def test_text_that_telegram_refuses(api: TelegramApi, text: str, description: str) -> None:
    status, body = call(api, "sendMessage", chat_id=1, text=text)
    assert status == 400 and description in body["description"]
    result(api, "sendMessage", chat_id=1, text="😀" * 2048)
    assert len(api.messages()) == 1


def test_unknown_bots_and_paths_are_refused(api: TelegramApi) -> None:
    assert call(api, "getMe", "9:X")[0] == 401
    assert call(api, "get/Me")[0] == 404
    assert result(api, "getMe")["id"] == 123456
    assert result(api, "getWebhookInfo")["url"] == "" and result(api, "getMyCommands") == []
    assert result(api, "sendChatAction", chat_id=1) is True


def test_a_reply_carries_the_message(api: TelegramApi) -> None:
    result(api, "sendMessage", chat_id=5, text="asked")
    (message,) = api.messages()
    assert not api.polled(ONE)
    number = api.say(ONE, "answered", message, user=5)
    (update,) = result(api, "getUpdates", timeout=5)
    assert api.polled(ONE) and not api.polled(OTHER)
    assert update["message"]["text"] == "answered" and update["message"]["message_id"] == number
    assert update["message"]["reply_to_message"]["text"] == "asked"
    assert update["message"]["reply_to_message"]["from"]["is_bot"] is True
    assert update["message"]["chat"]["id"] == update["message"]["from"]["id"] == 5
    assert result(api, "getUpdates", OTHER) == []
    assert result(api, "getUpdates", offset=update["update_id"] + 1) == []


def test_a_poll_waits_for_a_message(api: TelegramApi) -> None:
    got: list[Any] = []
    poll = threading.Thread(
        target=lambda: got.extend(result(api, "getUpdates", offset=1, timeout=20)), daemon=True
    )
    poll.start()
    assert wait(lambda: api.polled(ONE), 10)
    api.say(ONE, "now")
    poll.join(10)
    assert [update["message"]["text"] for update in got] == ["now"]


def test_waiting_for_a_message(api: TelegramApi) -> None:
    result(api, "sendMessage", chat_id=1, text="first")
    assert api.wait(lambda one: one.text == "second", 0.05) is None
    later = threading.Timer(0.1, lambda: result(api, "sendMessage", chat_id=1, text="second"))
    later.start()
    found = api.wait(lambda one: one.text == "second", 20)
    assert found is not None and found.message_id == 1002
    assert api.wait(lambda one: True, 0.05, after=1002) is None
    later.join()


def test_a_form_and_a_query_will_do(api: TelegramApi) -> None:
    where = urllib.parse.urlsplit(api.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    form = urllib.parse.urlencode({"text": "in a form"})
    connection.request("POST", f"{where.path}{ONE}/sendMessage?chat_id=7", form)
    assert json.loads(connection.getresponse().read())["result"]["chat"]["id"] == 7
    connection.close()


def test_an_end_ends_the_polls() -> None:
    api = TelegramApi([ONE])
    poll = threading.Thread(target=lambda: result(api, "getUpdates", timeout=20), daemon=True)
    poll.start()
    assert wait(lambda: api.polled(ONE), 10)
    started = time.monotonic()
    api.close()
    poll.join(10)
    assert not poll.is_alive() and time.monotonic() - started < 8


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[TelegramApi, trustme.CA]]:
    authority = trustme.CA()
    path = tmp_path / "key.pem"
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(path)
    api = TelegramApi([ONE], (str(path), str(path)))
    yield api, authority
    api.close()


def test_the_proxy_is_telegram_for_those_who_trust_it(
    proxied: tuple[TelegramApi, trustme.CA],
) -> None:
    api, authority = proxied
    assert api.proxy is not None
    proxy = urllib.parse.urlsplit(api.proxy)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    connection = http.client.HTTPSConnection(proxy.netloc, context=context, timeout=30)
    connection.set_tunnel(HOST, 443)
    connection.request("POST", f"/bot{ONE}/sendMessage", "chat_id=1&text=hi")
    assert json.loads(connection.getresponse().read())["ok"] is True
    connection.close()
    assert [message.text for message in api.messages()] == ["hi"]


def test_the_proxy_refuses_every_other_host(proxied: tuple[TelegramApi, trustme.CA]) -> None:
    api, _ = proxied
    assert api.proxy is not None
    port = urllib.parse.urlsplit(api.proxy).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=30) as connection:
        connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")
    # Neither one that says nothing nor one that speaks no TLS disturbs it.
    socket.create_connection(("127.0.0.1", port or 0), timeout=30).close()
    with socket.create_connection(("127.0.0.1", port or 0), timeout=30) as connection:
        connection.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"this is no TLS\r\n\r\n")
        connection.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):
                pass
