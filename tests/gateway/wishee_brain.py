"""A model that does what the last message says in brackets."""

import re
import threading

from hermes_bridges.standins.model_api import Reply, Request
from tests.gateway.donut_site import ANSWERED_WITHIN, prose

_DIRECTIVE = re.compile(r"\[\[(\w+) ?(.*?)\]\]")
_NOTE = re.compile(r"\n\n\[System note: .*\Z", re.DOTALL)


class Brain:
    """It says ``heard:`` and the message, unless that holds one or more of these.

    ``[[say TEXT]]``, ``[[long BYTES]]``, ``[[empty]]``, ``[[fail STATUS]]``; ``[[tools COUNT]]``:
    as many commands first, each with a text before it; ``[[hold NAME]]``: no word until
    ``release(NAME)``. ``heard`` are the texts that have come, one for each request.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        # Guards the names below; told of every change.
        self._changed = threading.Condition()
        self._held: list[str] = []
        self._released: set[str] = set()
        self._over = False

    def holds(self, name: str) -> bool:
        """Whether a turn with ``[[hold NAME]]`` waits now."""
        with self._changed:
            return name in self._held

    def release(self, name: str | None = None) -> None:
        """Let them go on that wait for this name, and those to come; None: all, for good."""
        with self._changed:
            self._released |= {name} if name is not None else set()
            self._over = self._over or name is None
            self._changed.notify_all()

    def __call__(self, request: Request) -> Reply:
        place = max((i for i, one in enumerate(request.messages) if one.role == "user"), default=0)
        # A note of Hermes stands behind the first message of all; some versions put a text that
        # was not answered before the next one.
        text = _NOTE.sub("", request.messages[place].text)
        self.heard.append(text)
        found = dict(_DIRECTIVE.findall(text.rpartition("\n\n")[2]))
        done = sum(one.role == "tool" for one in request.messages[place:])
        if done < int(found.get("tools", 0)):
            arguments = {"command": f"echo step {done + 1}"}
            return Reply(f"Now comes step {done + 1}.", "terminal", arguments)
        if "hold" in found:
            self._hold(found["hold"])
        if "fail" in found:
            return Reply("this is a made failure", status=int(found["fail"]))
        if "long" in found:
            return Reply(prose(int(found["long"])))
        if "empty" in found:
            return Reply("")
        return Reply(found.get("say", f"heard: {text}"))

    def _hold(self, name: str) -> None:
        with self._changed:
            self._held.append(name)
            self._changed.wait_for(lambda: self._over or name in self._released, ANSWERED_WITHIN)
            self._held.remove(name)
