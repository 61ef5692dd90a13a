"""Which text is the result of a run (contract, sections 4 and 10). Pure."""

import re

from hermes_bridges.core.clusters import clean_text

RESULT_MAX = 1024 * 1024  # characters; JSON may make six bytes of one, and a frame has 8 MiB

# What a model thought, as Hermes shows it before an answer.
_THOUGHTS = (
    re.compile(r"💭[^\n]*\n(`{3,})[^\n]*\n.*?\n\1[^\S\n]*\n[^\S\n]*\n", re.DOTALL),
    re.compile(r"> 💭[^\n]*\n(?:>[^\n]*\n)*[^\S\n]*\n"),
    re.compile(r"-# 💭[^\n]*\n(?:-#[^\n]*\n)*[^\S\n]*\n"),
)


class Said:
    """What Hermes has sent to the chat of one run while it went on."""

    def __init__(self) -> None:
        self._final = ""
        self._last = ""

    def hear(self, text: str, final: bool) -> None:
        """Note a text; ``final`` is one that Hermes has marked as the answer."""
        if not text.strip():
            return
        if final:
            self._final = text[:RESULT_MAX]
        else:
            self._last = text[:RESULT_MAX]

    @property
    def final(self) -> str:
        """The last text that was marked, or empty."""
        return self._final

    def __bool__(self) -> bool:
        return bool(self._final or self._last)

    def result(self, returned: str) -> str:
        """The text of the task-result of a turn that has returned this text."""
        found = next((t for t in (returned, self._final, self._last) if t.strip()), "")
        return clean_text(_without_thoughts(found.strip())[:RESULT_MAX])


def _without_thoughts(text: str) -> str:
    for pattern in _THOUGHTS:
        found = pattern.match(text)
        if found is not None:
            return text[found.end() :].strip()
    return text
