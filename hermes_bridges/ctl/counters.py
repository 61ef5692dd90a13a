"""What the counters of the bridges count (pure)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hermes_bridges.ctl.told import Number, Told, numbers


class Kind(NamedTuple):
    """``loss``: something was lost, refused or failed. ``label`` is what its parts are told by."""

    help: str
    loss: bool = False
    label: str = ""


COUNTERS: Mapping[str, Mapping[str, Kind]] = {
    "coms": {
        "questions": Kind("questions that were taken"),
        "answered": Kind("questions whose answer came"),
        "cancelled": Kind("questions that their asker took back"),
        "timeout": Kind("questions that nobody answered in time"),
        "late_answer": Kind("answers to questions that were closed already"),
        "answer_rejected": Kind("answer files that were refused", True, "reason"),
        "answer_unreadable": Kind("answer files that could not be read", True),
        "reply_lost": Kind("responses that could not be brought to their asker", True, "reason"),
        "refusal_dropped": Kind("error responses that were not sent: too many waited", True),
        "sends": Kind("calls of hermes send"),
        "delivery_error": Kind("questions that hermes send did not deliver", True),
        "note_failed": Kind("notes that hermes send did not deliver", True),
        "note_dropped": Kind("notes that were not sent: too many waited", True),
        "prompt_bad_qid": Kind("prompts whose id is no ULID", True),
        "prompt_taken": Kind("prompts for a question that somebody else had asked", True),
        "intake_failed": Kind("prompts that could not be kept until they had a record", True),
        "record_failed": Kind("states of questions that could not be written", True),
        "record_damaged": Kind("records of questions that were damaged", True),
        "record_unreadable": Kind("records of questions that could not be read", True),
        "log_lost": Kind("events that could not be written to the event log", True),
        "peer": Kind("what became of connections of peers", False, "event"),
        "status_not_written": Kind("times that the status file could not be written", True),
    },
    "donut": {
        "received": Kind("events of the hub"),
        "ignored": Kind("events that need no answer", False, "reason"),
        "answered": Kind("messages that were answered"),
        "silent": Kind("messages to which the agent chose to say nothing"),
        "fallback": Kind("fallback messages that were posted"),
        "notice": Kind("notices that were posted"),
        "fallback_held_back": Kind("fallback messages that the interval held back"),
        "notice_held_back": Kind("notices that the interval held back"),
        "notices_not_posted": Kind("fallback messages and notices that could not be posted", True),
        "dropped": Kind("messages that a full queue pushed out; they may come again", True),
        "lost": Kind("messages that cannot come again", True),
        "gaps": Kind("times that the hub no longer held all events", True),
        "given_up": Kind("messages that were tried too often", True),
        "refused": Kind("answers of which the hub refused a part", True),
        "unknown": Kind("parts of answers that may or may not have been posted", True),
        "expired": Kind("answers that could not be posted for a day", True),
        "call_failures": Kind("calls of Hermes that failed", True, "kind"),
        "refused_by_breaker": Kind("messages that met an open breaker", True),
        "reconnects": Kind("connections to the hub that were lost"),
        "status_not_written": Kind("times that the status file could not be written", True),
    },
}
_PREFIXES = {"coms": ("answer_rejected", "reply_lost")}
"""Families whose parts are told by what follows an underscore, not a dot."""


class Counter(NamedTuple):
    """One counter: ``part`` is empty where its family has no parts."""

    family: str
    part: str
    value: Number


def of(bridge: str, told: Told) -> list[Counter]:
    """The counters of a status file, in the order of the table; unknown ones at the end."""
    named = dict(told.counters)
    if bridge == "coms":
        # These stand among its values.
        named |= {f"peer.{name}": number for name, number in numbers(told.mapping("peers")).items()}
        named |= numbers({"log_lost": told.values.get("log_lost")})
    return _split(bridge, named)


def _split(bridge: str, named: Mapping[str, Number]) -> list[Counter]:
    found = []
    for name, value in named.items():
        family, _, part = name.partition(".")
        for prefix in _PREFIXES.get(bridge, ()):
            if name.startswith(f"{prefix}_"):
                family, part = prefix, name[len(prefix) + 1 :]
        found.append(Counter(family, part, value))
    order = list(COUNTERS[bridge])
    place = {family: number for number, family in enumerate(order)}
    return sorted(found, key=lambda one: (place.get(one.family, len(order)), one[:2]))


def losses(bridge: str, counters: Iterable[Counter]) -> list[Counter]:
    """Those that tell of something that went wrong, and did so at least once."""
    kinds = COUNTERS[bridge]
    return [one for one in counters if one.value and one.family in kinds and kinds[one.family].loss]
