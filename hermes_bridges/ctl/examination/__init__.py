"""What `doctor` looks at: the host, Hermes, the places of the bridges."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line; one with a ``remedy`` is a problem."""

    text: str
    remedy: str = ""
