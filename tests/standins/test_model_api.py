import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from hermes_bridges.standins.model_api import MODEL, ModelApi, Reply, Request, Said

TOOLS = [{"type": "function", "function": {"name": "terminal"}}]


def brain(request: Request) -> Reply:
    if request.messages[-1].role == "tool":
        return Reply(f"done: {request.messages[-1].text}")
    return Reply("", "terminal", {"command": "true"})


@pytest.fixture
def api() -> Iterator[ModelApi]:
    served = ModelApi(brain)
    yield served
    served.close()


def ask(api: ModelApi, method: str, path: str, body: object = None) -> tuple[int, str]:
    where = urllib.parse.urlsplit(api.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    try:
        connection.request(method, where.path + path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def chat(api: ModelApi, **body: Any) -> Any:
    status, text = ask(api, "POST", "/chat/completions", body)
    assert status == 200
    return json.loads(text)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_the_models(api: ModelApi) -> None:
    models = json.loads(ask(api, "GET", "/models")[1])["data"]
    assert [model["id"] for model in models] == [MODEL]
    assert json.loads(ask(api, "GET", f"/models/{MODEL}")[1])["context_length"] > 100_000
    assert ask(api, "POST", "/elsewhere", {})[0] == 404


def test_the_brain_decides(api: ModelApi) -> None:
    called = chat(api, messages=[user("go")], tools=TOOLS)["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    call = called["message"]["tool_calls"][0]["function"]
    assert call == {"name": "terminal", "arguments": '{"command": "true"}'}
    messages = [user("go"), {"role": "tool", "content": [{"type": "text", "text": "out"}]}]
    said = chat(api, messages=messages, tools=TOOLS)["choices"][0]
    assert (said["message"]["content"], said["finish_reason"]) == ("done: out", "stop")
    assert api.requests[0] == Request((Said("user", "go"),), frozenset({"terminal"}))


def test_a_request_without_tools_is_no_concern_of_the_brain(api: ModelApi) -> None:
    said = chat(api, messages=[user(None)])["choices"][0]["message"]
    assert said["content"] and "tool_calls" not in said
    assert api.requests == []


def test_a_stream(api: ModelApi) -> None:
    body = {"messages": [user(None)], "tools": TOOLS, "stream": True}
    status, text = ask(api, "POST", "/chat/completions", body)
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert status == 200 and lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    deltas = [event["choices"][0] for event in events if event["choices"]]
    assert deltas[0]["delta"]["tool_calls"][0]["index"] == 0
    assert deltas[-1]["finish_reason"] == "tool_calls"
    assert events[-1]["usage"]["total_tokens"] > 0


def test_a_client_that_goes_away_is_nothing_to_tell(
    api: ModelApi, capfd: pytest.CaptureFixture[str]
) -> None:
    where = urllib.parse.urlsplit(api.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    connection.connect()
    connection.sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}")
    connection.close()
    assert chat(api, messages=[user("x")])["model"] == MODEL
    assert capfd.readouterr().err == ""


def test_a_failure_and_another_finish() -> None:
    replies = [Reply("out of order", status=503), Reply("half", finish="length")]
    api = ModelApi(lambda request: replies.pop(0))
    try:
        body = {"messages": [user("go")], "tools": TOOLS}
        status, text = ask(api, "POST", "/chat/completions", body)
        assert (status, json.loads(text)["error"]["message"]) == (503, "out of order")
        assert chat(api, **body)["choices"][0]["finish_reason"] == "length"
    finally:
        api.close()


def test_how_long_the_conversation_is() -> None:
    api = ModelApi(lambda request: Reply("long", tokens=190_000))
    try:
        assert chat(api, messages=[user("go")], tools=TOOLS)["usage"]["prompt_tokens"] == 190_000
    finally:
        api.close()
