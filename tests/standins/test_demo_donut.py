"""The demo of the Donut bridge: what it shows, what a person can do in it, and how it ends."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.standins.demo_donut import FALLBACK
from tests.conftest import wait
from tests.standins.demo_run import Run, gone

Start = Callable[..., Run]
PLAIN = {"PATH": "/usr/bin:/bin"}  # without a hermes


class Terminal:
    """The demo, and a person who types into it."""

    def __init__(self, start: Start) -> None:
        reader, self._writer = os.pipe()
        self.run = start("donut", stdin=reader, **PLAIN)
        os.close(reader)
        self.run.until("You are in the chat kitchen")

    def type(self, text: str, until: str) -> None:
        """Type a line, and read until something new is said."""
        seen = self.run.said
        self.run.said = ""
        os.write(self._writer, text.encode() + b"\n")
        self.run.until(until)
        self.run.said = seen + self.run.said

    def close(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = -1


@pytest.fixture
def terminal(start: Start) -> Iterator[Terminal]:
    made = Terminal(start)
    yield made
    made.close()


def bridge_of(run: Run) -> int:
    """The process id of the demo's bridge: it is the one whose home is the demo's."""
    (home,) = run.place.glob("hb-demo-*")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != run.process.pid:
            try:
                if f"HOME={home}\0".encode() in (entry / "environ").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("there is no bridge")


def test_by_itself(start: Start) -> None:
    began = time.monotonic()
    run = start("donut", "--auto", **PLAIN)
    assert run.end() == 0, run.said
    assert time.monotonic() - began < 40
    for text in (
        "There is no hermes on PATH: a scripted one takes its place.",
        "hub │ (the bot is online)",
        "bot │ (kitchen) is typing …",
        "bot │ (kitchen) You wrote: Hello!",
        "That was message 2 of our conversation.",
        "bot │ (garden) You wrote: And hello from here.",
        "breaker is open",
        "bot │ (garden) You wrote: Are you back?",
        "breaker is closed",
        "hub │ (the bot is offline)",
        "All went as it should",
    ):
        assert text in run.said, run.said
    assert run.said.count(FALLBACK) == 3
    assert len(re.findall(r"\([0-9]+ bytes\)", run.said)) == 2
    assert "Traceback" not in run.said


def test_a_person_writes_changes_the_chat_and_breaks_things(terminal: Terminal) -> None:
    terminal.type("Hello", "(kitchen) You wrote: Hello")
    terminal.type("/chat cellar", "You are in the chat cellar")
    terminal.type("Anybody?", "(cellar) You wrote: Anybody?")
    terminal.type("a long one", " bytes)")
    terminal.type("/outage", "The model behind Hermes fails")
    terminal.type("Hm?", FALLBACK)
    terminal.type("/recover", "works again")
    terminal.type("Better?", "(cellar) You wrote: Better?")
    for odd in ("/help", "/chat", "/nonsense"):
        terminal.type(odd, "/quit ends it")
    terminal.type("/quit", "The bridge is stopped")
    assert terminal.run.end() == 0, terminal.run.said
    assert "All went as it should" in terminal.run.said


def test_the_end_of_the_input_is_the_end(terminal: Terminal) -> None:
    terminal.close()
    assert terminal.run.end() == 0, terminal.run.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped_and_clears_up(terminal: Terminal, number: int) -> None:
    bridge = bridge_of(terminal.run)
    terminal.run.process.send_signal(number)
    assert terminal.run.end() == 130, terminal.run.said
    assert "demo: stopped" in terminal.run.said and "Traceback" not in terminal.run.said
    assert wait(lambda: gone(bridge), 5)


def test_a_bridge_that_dies_is_told(terminal: Terminal) -> None:
    os.kill(bridge_of(terminal.run), signal.SIGKILL)
    assert terminal.run.end() == 1
    assert "demo: failed: the bridge ended, exit code -9" in terminal.run.said


def test_a_gateway_that_does_not_start_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "hermes").write_text("#!/bin/sh\necho 'no room'\nexit 3\n")
    (tmp_path / "hermes").chmod(0o755)
    run = start("donut", "--auto", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert run.end() == 1 and "hermes │ no room" in run.said
    assert "demo: failed: the gateway of Hermes ended, exit code 3" in run.said
