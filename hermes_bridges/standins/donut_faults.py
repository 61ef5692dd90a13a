"""What the stand-in Donut hub does wrong on demand, request by request."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_bridges.standins.donut_rooms import Id

Headers = Mapping[str, str]
Body = Mapping[str, object] | bytes | None


@dataclass
class Fault:
    """How a request goes wrong; ``where`` is dial, send or typing.

    ``times`` None: until ``heal``. ``stored``: only after the request has been carried out. Without
    a ``status`` the answer is the right one. First the ``delay`` (seconds) passes, then ``silent``
    is no answer until the client hangs up, and ``drop`` ends the connection without one. ``pause``:
    seconds between two bytes of the answer.
    """

    where: str
    chat_id: Id | None = None
    times: int | None = 1
    stored: bool = False
    status: int | None = None
    headers: Headers = field(default_factory=dict)
    body: Body = None
    delay: float = 0.0
    silent: bool = False
    drop: bool = False
    pause: float = 0.0

    def answer(self) -> bytes:
        """The body that goes with ``status``; by default an error as the hub words it."""
        if isinstance(self.body, bytes):
            return self.body
        if self.body is None and (self.status or 0) >= 400:
            return json.dumps({"error": {"code": "on_demand", "message": "a fault"}}).encode()
        return json.dumps(self.body or {}).encode()


class Faults:
    """Those that are still to come, first in, first used; for any thread.

    ``chat`` None means every chat; ``where`` may also be typing.
    """

    def __init__(self) -> None:
        # Guards the faults that wait, and their counts.
        self._faults_lock = threading.Lock()
        self._faults: list[Fault] = []

    def refuse(
        self,
        status: int,
        headers: Headers | None = None,
        times: int | None = 1,
        body: Body = None,
        delay: float = 0.0,
    ) -> None:
        """Answer the next dials like that; a redirect is 302 with its Location."""
        self.fault(Fault("dial", None, times, False, status, headers or {}, body, delay))

    def send_status(
        self,
        status: int,
        headers: Headers | None = None,
        body: Body = None,
        times: int | None = 1,
        chat: Id | None = None,
        stored: bool = False,
        where: str = "send",
    ) -> None:
        """Answer like that in place of storing the message, or after it."""
        self.fault(Fault(where, chat, times, stored, status, headers or {}, body))

    def send_busy(
        self,
        retry_after: object,
        times: int | None = 1,
        chat: Id | None = None,
        header: bool = True,
        body: bool = True,
        where: str = "send",
    ) -> None:
        """429, with the time to wait in the header, in the body's ``retry_after``, or in both."""
        said: dict[str, object] = {"error": {"code": "rate_limited", "message": "too many"}}
        if body:
            said["retry_after"] = retry_after
        headers = {"Retry-After": str(retry_after)} if header else {}
        self.fault(Fault(where, chat, times, False, 429, headers, said))

    def send_delay(
        self,
        seconds: float,
        times: int | None = None,
        chat: Id | None = None,
        stored: bool = False,
        where: str = "send",
    ) -> None:
        """Be slow, before the message is stored or after it."""
        self.fault(Fault(where, chat, times, stored, delay=seconds))

    def send_hang(
        self, stored: bool, times: int | None = 1, chat: Id | None = None, where: str = "send"
    ) -> None:
        """Never answer, with the message stored or not."""
        self.fault(Fault(where, chat, times, stored, silent=True))

    def send_drop(
        self, stored: bool, times: int | None = 1, chat: Id | None = None, where: str = "send"
    ) -> None:
        """End the connection without an answer, with the message stored or not."""
        self.fault(Fault(where, chat, times, stored, drop=True))

    def send_drip(
        self, pause: float, times: int | None = 1, chat: Id | None = None, where: str = "send"
    ) -> None:
        """Store, and answer byte by byte with so many seconds between."""
        self.fault(Fault(where, chat, times, True, pause=pause))

    def fault(self, fault: Fault) -> None:
        with self._faults_lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """No more faults of requests; those under way go on."""
        with self._faults_lock:
            self._faults.clear()

    def take(self, where: str, chat_id: object = None) -> Fault | None:
        """The fault of a request that has come; one use of it is gone."""
        if not self._faults:
            return None
        with self._faults_lock:
            for fault in self._faults:
                if fault.where == where and fault.chat_id in (None, chat_id):
                    if fault.times is not None:
                        fault.times -= 1
                        if fault.times <= 0:
                            self._faults.remove(fault)
                    return fault
        return None
