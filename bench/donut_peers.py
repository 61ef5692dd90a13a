"""A peer of the Donut bench in a process of its own: the hub with its people, or Hermes.

    python bench/donut_peers.py hub | hermes SECONDS

Tells on stdout how it is reached, then answers commands: each line on stdin is a JSON list of a
name and arguments, each line on stdout a JSON value. Ends with stdin.
"""

import fcntl
import heapq
import json
import os
import random
import select
import sys
import threading
import time
from typing import Any

from hermes_bridges.standins.donut_hub import DonutHub
from hermes_bridges.standins.hermes_api import HermesApi

# A pipe holds 64 KiB otherwise, and whoever says something would wait for its reader: itself.
PIPE_BYTES = 1024 * 1024
TEXT = "What about the plan for next week, is there anything that we have to do before?"

Answer = tuple[float, float, int]
"""When the hub read it, when the question was said (or its call begun), and the chat."""


class Hub:
    """The stand-in hub, and people who write in its chats and again when they are answered.

    They read the hub's journal out of a pipe, so that nobody has to ask the hub again and again.
    """

    def __init__(self) -> None:
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._journal, self._bell = read, write
        self._hub = DonutHub(journal=f"/proc/self/fd/{write}")
        # Guards all below.
        self._lock = threading.Lock()
        self._think: float | None = None
        self._due: list[tuple[float, int]] = []
        self._said: dict[int, float] = {}
        self._early: dict[int, dict[str, Any]] = {}  # answers noted before their questions
        self._answers: list[Answer] = []
        self._refused: list[str] = []
        threading.Thread(target=self._live, name="people", daemon=True).start()

    def where(self) -> dict[str, str]:
        hub = self._hub
        return {
            "token": hub.token,
            "stream": hub.stream_url,
            "send": hub.send_url,
            "typing": hub.typing_url,
        }

    def open_chats(self, count: int) -> None:
        for chat in range(1, count + 1):
            self._hub.add_chat(chat, trigger="all")

    def online(self) -> bool:
        return self._hub.online

    def talk(self, chats: int, ahead: int, think: float) -> None:
        """Somebody writes ``ahead`` messages in each chat, and one more after each answer.

        They think before each for up to ``think`` seconds.
        """
        now = time.monotonic()
        with self._lock:
            self._think = think
            self._due = [
                (now + random.uniform(0, think), chat)
                for chat in range(1, chats + 1)
                for _ in range(ahead)
            ]
            heapq.heapify(self._due)
        os.write(self._bell, b"\n")

    def say(self, first: int, last: int) -> None:
        """One message in each of these chats, at once."""
        for chat in range(first, last + 1):
            self._hub.say(chat, TEXT)

    def greet(self, chat: int) -> None:
        """One message as soon as the bot has a stream; does not wait for that."""
        threading.Thread(target=self._greet, args=(chat,), name="greeter", daemon=True).start()

    def take(self) -> list[Answer]:
        """The answers since the last time."""
        with self._lock:
            taken, self._answers = self._answers, []
        return taken

    def count(self) -> int:
        """How many answers came since they were taken."""
        return len(self._answers)

    def refused(self) -> list[str]:
        return self._refused

    def stop(self) -> None:
        self._hub.stop_listening()

    def start(self) -> float:
        """Be there again; the time."""
        now = time.monotonic()
        self._hub.start_listening()
        return now

    def _greet(self, chat: int) -> None:
        if self._hub.wait(lambda: self._hub.online, 30):
            self._hub.say(chat, TEXT)

    def _live(self) -> None:
        poll = select.poll()
        poll.register(self._journal, select.POLLIN)
        rest = b""
        while True:
            with self._lock:
                due = self._due[0][0] if self._due else None
            wait = None if due is None else max(0.0, due - time.monotonic()) * 1000
            if poll.poll(wait):
                *lines, rest = (rest + os.read(self._journal, PIPE_BYTES)).split(b"\n")
                for line in lines:
                    if line and b'"what": "event"' not in line[:60]:
                        self._see(json.loads(line))
            for chat in self._ready(time.monotonic()):
                self._hub.say(chat, TEXT)

    def _ready(self, now: float) -> list[int]:
        with self._lock:
            ready = []
            while self._due and self._due[0][0] <= now:
                ready.append(heapq.heappop(self._due)[1])
            return ready

    def _see(self, note: dict[str, Any]) -> None:
        with self._lock:
            if note["what"] == "said":
                self._said[note["message_id"]] = note["t"]
                note = self._early.pop(note["message_id"], note)
            if note["what"] == "send":
                self._answered(note)

    def _answered(self, note: dict[str, Any]) -> None:
        if note["status"] != 200:
            self._refused.append(f"HTTP {note['status']}")
            return
        if note["reply_to"] is None:
            # The raw loop's, which tells in the key when it began.
            said = float(note["key"].rpartition("@")[2])
        elif note["reply_to"] not in self._said:
            self._early[note["reply_to"]] = note
            return
        else:
            said = self._said.pop(note["reply_to"])
            if self._think is not None:
                due = time.monotonic() + random.uniform(0, self._think)
                heapq.heappush(self._due, (due, note["chat_id"]))
        self._answers.append((note["began"], said, note["chat_id"]))


class Hermes:
    """The scripted Hermes, each of whose turns takes the same time, in seconds."""

    def __init__(self, delay: float) -> None:
        self._api = HermesApi(delay=delay, cap=0)

    def where(self) -> dict[str, str]:
        return {"base": self._api.base_url}


def main() -> None:
    peer: Hub | Hermes = Hub() if sys.argv[1] == "hub" else Hermes(float(sys.argv[2]))
    print(json.dumps(peer.where()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(peer, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
