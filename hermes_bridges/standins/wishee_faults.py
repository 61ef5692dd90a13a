"""What the stand-in Wishee bridge does wrong on demand, to dials and to connections that stand."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_bridges.standins.wishee_claims import Script
from hermes_bridges.standins.wishee_connection import Connection
from hermes_bridges.standins.ws_frames import BINARY, TEXT


class Message(NamedTuple):
    opcode: int
    payload: bytes


GARBAGE = (
    Message(TEXT, b""),
    Message(TEXT, b"no JSON"),
    Message(TEXT, b'{"type":"req","id":1,"method":"sessions.li'),
    Message(TEXT, b"[]"),
    Message(TEXT, b"null"),
    Message(TEXT, b"17"),
    Message(TEXT, b'"text"'),
    Message(TEXT, b'[{"type":"req","id":1,"method":"sessions.list"}]'),
    Message(TEXT, b"{}"),
    Message(TEXT, b'{"type":"nonsense","id":1}'),
    Message(TEXT, b'{"type":null}'),
    Message(TEXT, b'{"type":["req"]}'),
    Message(TEXT, b'{"type":"res","id":1,"ok":true,"payload":{}}'),
    Message(TEXT, b'{"type":"event","event":"task-result","payload":{}}'),
    Message(TEXT, b'{"type":"nonsense","number":' + b"9" * 5000 + b"}"),
    Message(TEXT, b'{"type":"nonsense","text":"\\ud800"}'),
    Message(TEXT, b"[" * 100_000),
    Message(BINARY, b"\xff\xfe\x00"),
)
"""What a connector must drop without any effect (contract, section 1)."""


@dataclass
class Refusal:
    """How a dial ends before the upgrade; ``status`` 0 is no answer until the client hangs up."""

    status: int
    times: int | None = 1
    headers: Mapping[str, str] = field(default_factory=dict)


class WisheeFaults:
    """For any thread. Those of connections work on all that are open, those to come are all right.

    Attributes that may be set at any time: ``welcomes`` (False: a hello gets no answer until
    ``release``); ``welcome_shape`` (sent in place of the right frame).
    """

    def __init__(self) -> None:
        self.welcomes = True
        self.welcome_shape: Mapping[str, object] | None = None
        # Guards what is still to come.
        self._faults_lock = threading.Lock()
        self._refusals: list[Refusal] = []
        self._closes: list[int] = []
        self._scripts: list[Script] = []

    def _reached(self) -> list[Connection]:
        """The connections that are open."""
        raise NotImplementedError

    def _hampered(self, connection: Connection, on: bool) -> None:
        """That one is, or is no longer, kept from hearing or being heard."""
        raise NotImplementedError

    def refuse(
        self, status: int, times: int | None = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer the next dials like that in place of 101; ``times`` None: until ``heal``."""
        with self._faults_lock:
            self._refusals.append(Refusal(status, times, headers or {}))

    def silence(self, times: int | None = 1) -> None:
        """Let the next dials wait for an answer for ever."""
        self.refuse(0, times)

    def close_hellos(self, code: int, times: int = 1) -> None:
        """Close with that code in place of a welcome."""
        with self._faults_lock:
            self._closes += [code] * times

    def script_claim(self, *scripts: Script) -> None:
        """How the next claims are answered."""
        with self._faults_lock:
            self._scripts += scripts

    def heal(self) -> None:
        """No more of those."""
        with self._faults_lock:
            self._refusals.clear()
            self._closes.clear()
            self._scripts.clear()

    def cut(self, reset: bool = False) -> None:
        """End the connections without a close frame, with ``reset`` by an RST."""
        for connection in self._reached():
            connection.note("fault", kind="cut")
            connection.stream.cut(reset)

    def close_connections(self, code: int) -> None:
        """Close them; 4001 is the end of a binding, though the bridge goes on knowing it."""
        for connection in self._reached():
            connection.note("fault", kind="close", code=code)
            connection.stream.close(code)

    def stall(self, on: bool = True) -> None:
        """Half-open: neither read nor written; or no longer."""
        for connection in self._reached():
            connection.note("fault", kind="stall", on=on)
            self._hampered(connection, on)
            connection.stream.stall(on)

    def stop_reading(self, on: bool = True) -> None:
        """Write and read nothing; or read again."""
        for connection in self._reached():
            connection.note("fault", kind="stop_reading", on=on)
            self._hampered(connection, on)
            connection.stream.hold_reading(on)

    def mute_pongs(self, on: bool = True) -> None:
        """Leave pings unanswered; or answer them again."""
        for connection in self._reached():
            connection.note("fault", kind="mute_pongs", on=on)
            connection.stream.mute_pongs(on)

    def slow(self, size: int, pause: float) -> None:
        """Read and write ``size`` bytes at a time, with so many seconds between; 0 ends that."""
        for connection in self._reached():
            connection.note("fault", kind="slow", bytes=size)
            self._hampered(connection, size > 0)
            connection.stream.sip(size, pause)
            connection.stream.split(size, pause)

    def garbage(self) -> None:
        """Send what a connector must drop, whole."""
        for connection in self._reached():
            connection.note("fault", kind="garbage", messages=len(GARBAGE))
            for message in GARBAGE:
                connection.stream.offer(message.payload, None, message.opcode)

    def take_refusal(self) -> Refusal | None:
        """The fault of a dial that has come; one use of it is gone."""
        with self._faults_lock:
            if not self._refusals:
                return None
            first = self._refusals[0]
            if first.times is not None:
                first.times -= 1
                if first.times <= 0:
                    del self._refusals[0]
            return first

    def take_close(self) -> int | None:
        """The code that a hello is answered with."""
        with self._faults_lock:
            return self._closes.pop(0) if self._closes else None

    def take_script(self) -> Script:
        """How a claim that has come is answered."""
        with self._faults_lock:
            return self._scripts.pop(0) if self._scripts else Script()
