"""The limit: a loop that makes the HTTP calls of the Donut bridge, and nothing else.

    python bench/donut_raw.py '{"library": "requests" | "http.client", "base": ..., "key": ...,
        "send": ..., "token": ..., "typing": URL or "", "chats": N, "think": SECONDS}'

A thread a chat, each with a kept-alive connection to Hermes and one to the hub. It makes the same
requests with the same headers, one after the other, and thinks for up to ``think`` seconds before
each turn. There is no stream, no state and no check of anything. Runs until it is killed.
"""

import http.client
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests

Post = Callable[[str, bytes, dict[str, str]], bytes]
TEXT = "What about the plan for next week, is there anything that we have to do before?"


def by_requests() -> Post:
    session = requests.Session()
    session.trust_env = False

    def post(url: str, body: bytes, headers: dict[str, str]) -> bytes:
        reply = session.post(url, data=body, headers=headers, allow_redirects=False, timeout=60)
        reply.raise_for_status()
        return reply.content

    return post


def by_http_client() -> Post:
    connections: dict[str, http.client.HTTPConnection] = {}

    def post(url: str, body: bytes, headers: dict[str, str]) -> bytes:
        parts = urlsplit(url)
        if parts.netloc not in connections:
            connections[parts.netloc] = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection = connections[parts.netloc]
        connection.request("POST", parts.path, body, headers)
        reply = connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise OSError(f"HTTP {reply.status}")
        return data

    return post


def loop(chat: int, options: dict[str, Any]) -> None:
    make = by_requests if options["library"] == "requests" else by_http_client
    # Of its own for typing: the bridge sends it on another connection too.
    to_hermes, to_hub, to_typing = make(), make(), make()
    hermes = {
        "Authorization": f"Bearer {options['key']}",
        "Content-Type": "application/json",
        "X-Hermes-Session-Id": f"donut.77.{chat}.0",
        "X-Hermes-Session-Key": f"donut.77.{chat}",
    }
    hub = {"Authorization": f"Bearer {options['token']}", "Content-Type": "application/json"}

    def typing(state: str) -> None:
        if options["typing"]:
            body = json.dumps({"chat_id": chat, "state": state}).encode()
            to_typing(options["typing"], body, hub)

    for number in itertools.count(1):
        if options["think"]:
            time.sleep(random.uniform(0, options["think"]))
        began = time.monotonic()
        typing("start")
        asked = {
            "model": "hermes-agent",
            "messages": [{"role": "user", "content": TEXT}],
            "stream": False,
        }
        key = {"Idempotency-Key": f"donut:77:{chat}:{number}"}
        found = to_hermes(options["base"], json.dumps(asked).encode(), {**hermes, **key})
        typing("stop")
        text = json.loads(found)["choices"][0]["message"]["content"]
        said = {"chat_id": chat, "content": text, "content_type": "MD"}
        key = {"Idempotency-Key": f"donut:77:{chat}:{number}:1@{began!r}"}
        to_hub(options["send"], json.dumps(said).encode(), {**hub, **key})


def main() -> None:
    options = json.loads(sys.argv[1])
    options["base"] += "/v1/chat/completions"
    threads = [
        threading.Thread(target=loop, args=(chat, options), daemon=True)
        for chat in range(1, options["chats"] + 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
