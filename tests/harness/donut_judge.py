#!/usr/bin/env python3
"""Judges a run of the Donut bridge by what the hub and Hermes wrote down themselves.

    python donut_judge.py DIRECTORY [--open]

Needs nothing but the journals in DIRECTORY: `hub.ndjson` (what was said, sent to the bridge, posted
and typed), `hermes.ndjson` (calls and runs), `brain.ndjson` (what each run said) and
`bridge.ndjson` (the rules of the run, and when the bridge was started, killed and stopped). It
checks, for every message that a person said and the bridge was to hear:

- answered exactly once: with just what its run said, in parts that are in order and contiguous; a
  part that is posted again has its old key, and the bridge ended right after the post before
  (counted as `repeats`, with the width of the window);
- one run at Hermes, unless Hermes was restarted; its key is that of the contract;
- none is lost. With `overflow` a message may be, if the hub can't replay it any more;
- a notice only where Hermes failed, and no answer that Hermes gave in time is withheld;
- per chat, calls and posts are in the order in which things were said. With `overflow` a message
  may be late that was sent to the bridge once more;

and of the whole: never more than `concurrent` calls at once, never two runs of one session, nothing
posted or asked that nobody said, typing only while a call is on its way, and with `first_come`
(seconds of tolerance) the first to wait is the first to be served.

Prints a report as JSON; exit 1 when anything failed.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

Note = dict[str, Any]
Key = tuple[str, str]  # chat and message
INFINITE = float("inf")
PART_LIMIT, ANSWER_LIMIT = 4_000, 48_000  # bytes (contract, section 4)
CUT_NOTICE = 300  # characters, at most, of what says that an answer ends there
STOPS = (2, 15)  # SIGINT, SIGTERM
RESETS = ("/new", "/reset")
BREADTH = 0.3  # s by which what two threads do at once may be noted in another order
WAKING = 1.0  # s in which what was under way at a pause arrives
GIVEN_UP = 14.0  # s after which a post without an answer is of unknown fate
UNDER_WAY = 0.1  # s by which a signal of typing may reach the hub after a later post
TICK = 4.0  # s between two signals of typing


@dataclass
class Rules:
    """What is expected of this run; see the text above."""

    bot: str = "77"
    username: str = "helper"
    concurrent: int = 4
    timeout: float = 120.0
    fallback: str = ""
    fallback_interval: float = 60.0
    notices: list[str] = field(default_factory=list)  # other texts that no run said
    replay_seconds: float = 300.0
    replay_depth: int = 100
    window: float = 0.1  # s from a post to its commit
    lag: float = 0.0  # s for which a process had to wait for a processor, at most
    failing: bool = False  # Hermes fails, so that notices may be posted
    overflow: bool = False  # more is said than the queues hold
    first_come: float | None = None
    final: bool = True  # everything has come to its end


@dataclass
class Said:
    """A message, and all that was noted about it."""

    chat: str
    message: str
    text: str
    sender: str
    at: float
    order: int
    event_id: str | None = None
    events: list[Note] = field(default_factory=list)
    calls: list[Note] = field(default_factory=list)
    runs: list[Note] = field(default_factory=list)
    answers: list[Note] = field(default_factory=list)
    sends: list[Note] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"message {self.message} of chat {self.chat}"

    @property
    def reset(self) -> bool:
        return self.text.strip().lower() in RESETS

    @property
    def posts(self) -> list[Note]:
        """What the hub has stored for it, the first of each key."""
        stored: dict[object, Note] = {}
        for note in self.sends:
            if note["message_id"] is not None:
                stored.setdefault(note["key"], note)
        return list(stored.values())


def read(directory: str, name: str) -> list[Note]:
    """All complete lines, by time; no file is no line."""
    try:
        with open(os.path.join(directory, name), "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return sorted((json.loads(line) for line in lines), key=lambda note: note["t"])


class Run:
    """The journals of one run, put together."""

    def __init__(
        self, hub: list[Note], hermes: list[Note], brain: list[Note], bridge: list[Note]
    ) -> None:
        rules = [note for note in bridge if note["what"] == "rules"]
        known = {f.name for f in fields(Rules)}
        self.rules = Rules(**{k: v for n in rules for k, v in n.items() if k in known})
        self.hub = hub
        self.of: dict[str, list[Note]] = defaultdict(list)
        for note in itertools.chain(hub, hermes):
            self.of[note["what"]].append(note)
        self.starts = [n["t"] for n in bridge if n["what"] == "start"]
        self.stops = self._stops(bridge)
        self.ends = [n["t"] for n in bridge if n["what"] in ("kill", "stopped")]
        self.dead = [n["t"] for n in bridge if n["what"] in ("dead", "stopped")]
        paused, resumed = ([n["t"] for n in bridge if n["what"] == w] for w in ("pause", "resume"))
        self.pauses = list(zip(paused, resumed, strict=False))
        self.cuts = [n["t"] for n in bridge if n["what"] == "hub_stopped"]
        self.restarts = [n["t"] for n in bridge if n["what"] == "hermes_restarted"]
        self.end = max((n["t"] for n in itertools.chain(hub, hermes)), default=0.0)
        self.strays: list[str] = []
        self.said: dict[Key, Said] = {}
        self._read_said()
        self.by_key = {self.run_key(said): said for said in self.said.values()}
        self._read_hermes(brain)
        for note in sorted(self.of["send"], key=lambda n: n["began"]):
            said = self.said.get((str(note["chat_id"]), str(note["reply_to"])))
            if said is not None:
                said.sends.append(note)
            elif note["message_id"] is not None:
                self.strays.append(f"posted to chat {note['chat_id']}, in reply to nothing")

    @staticmethod
    def _stops(bridge: list[Note]) -> list[tuple[float, float]]:
        """When the bridge was asked to end, and had done so, each time that it ended well."""
        found = []
        asked: float | None = None
        for note in bridge:
            if note["what"] == "signal" and note["number"] in STOPS:
                asked = asked or note["t"]
            elif note["what"] in ("stopped", "kill"):
                if asked is not None and note.get("code") == 0:
                    found.append((asked, note["t"]))
                asked = None
        return found

    def _read_said(self) -> None:
        for note in sorted(self.of["said"], key=lambda n: (int(n["event_id"] or 0), n["t"])):
            key = (str(note["chat_id"]), str(note["message_id"]))
            text = note["content"] if isinstance(note["content"], str) else ""
            found = Said(
                *key, text, str(note["sender"]), note["t"], len(self.said), note["event_id"]
            )
            self.said.setdefault(key, found)
        for note in self.of["event"]:
            heard = self.said.get((str(note["chat_id"]), str(note["message_id"])))
            if heard is not None:
                heard.events.append(note)

    def _read_hermes(self, brain: list[Note]) -> None:
        for name, notes in (("calls", self.of["call"]), ("runs", self.of["run"])):
            for note in notes:
                said = self.by_key.get(str(note["key"]))
                if said is None:
                    self.strays.append(f"Hermes was asked under the key {note['key']}")
                else:
                    getattr(said, name).append(note)
        for note in brain:
            if note["key"] in self.by_key:
                self.by_key[note["key"]].answers.append(note)
        self.done = {n["n"]: n for n in self.of["done"]}
        self.ran = {n["n"]: n["t"] for n in self.of["ran"]}
        self.ran_by_key: dict[str, list[float]] = defaultdict(list)
        for note in self.of["ran"]:
            self.ran_by_key[str(note["key"])].append(note["t"])

    def run_key(self, said: Said) -> str:
        """As the contract gives it; the ids of these runs need no escapes."""
        return f"donut:{self.rules.bot}:{said.chat}:{said.message}"

    def is_asked(self, said: Said) -> bool:
        """Whether the bridge has to do something about it."""
        mention = f"@{self.rules.username}".lower()
        text = said.text.strip().lower().removeprefix(mention).strip(" ,:")
        heard = said.event_id is not None or bool(said.events)
        return heard and bool(text) and not said.sender.startswith("bot")

    def ended_within(self, begin: float, end: float) -> float | None:
        """When the bridge ended in that time."""
        return next((t for t in self.ends if begin <= t <= end), None)

    def death_after(self, t: float) -> float:
        """When the process that was at work at that time was gone."""
        place = bisect.bisect_right(self.starts, t) - 1
        begun = self.starts[place] if place >= 0 else -INFINITE
        return next((dead for dead in self.dead if dead >= begun), INFINITE)


class Judge:
    def __init__(self, run: Run) -> None:
        self.run, self.rules = run, run.rules
        self.failures: list[str] = list(run.strays)
        self.counts: Counter[str] = Counter()
        self.widths: list[float] = []
        self.breadth = BREADTH + self.rules.lag
        self.window = self.rules.window + self.rules.lag
        self.notices = {self.rules.fallback, *self.rules.notices} - {""}

    def judge(self) -> Note:
        asked: dict[str, list[Said]] = defaultdict(list)
        for said in self.run.said.values():
            self.counts["said"] += 1
            if self.run.is_asked(said):
                asked[said.chat].append(said)
                self.message(said)
            elif said.calls or said.sends:
                self.fail(said, "was to be ignored, and was not")
            else:
                self.counts["ignored"] += 1
        for chat, messages in asked.items():
            self.order(messages)
            self.contiguous(chat)
            self.typing(chat, messages)
        self.concurrency()
        self.sessions()
        self.stops()
        if self.rules.first_come is not None:
            self.first_come(asked, self.rules.first_come + self.rules.lag)
        self.counts["ends"] = len(self.run.ends)
        return {
            "ok": not self.failures,
            "counts": dict(sorted(self.counts.items())),
            "window": round(self.window, 4),
            "repeat_widths": [round(width, 4) for width in self.widths],
            "failures": self.failures,
        }

    def fail(self, said: Said, text: str) -> None:
        self.failures.append(f"{said.name}: {text}")

    # One message

    def message(self, said: Said) -> None:
        self.counts["asked"] += 1
        self.keys(said)
        if said.reset:
            if said.calls:
                self.fail(said, "a new session costs no call")
            if len(said.posts) > 1 or (self.rules.final and not said.posts):
                self.fail(said, f"confirmed {len(said.posts)} times")
            return
        self.runs(said)
        notices = [n for n in said.posts if n["content"] in self.notices]
        parts = [n for n in said.posts if n["content"] not in self.notices]
        if notices and not self.rules.failing:
            self.fail(said, f"got a notice though Hermes was well: {notices[0]['content']!r}")
        if len(notices) > 1:
            self.fail(said, f"got {len(notices)} notices")
        self.counts["notices"] += len(notices)
        if parts:
            self.parts(said, parts)
        elif self.rules.final:
            self.outcome(said, bool(notices))

    def keys(self, said: Said) -> None:
        """A part is stored once; it may be sent again when nobody could know of the first time."""
        before: dict[str, Note] = {}
        for note in said.sends:
            stored = note["message_id"] is not None or note["repeat"]
            if not stored and note["status"] is not None:
                continue
            first = before.get(note["key"])
            before[note["key"]] = note
            if first is None:
                if note["repeat"]:
                    self.fail(said, "the hub knows a key that was never stored")
                continue
            if first["status"] is None or first["status"] >= 429:
                self.counts["sent_again"] += 1
                if first["status"] is None and note["began"] - first["began"] > GIVEN_UP:
                    self.fail(said, "posted again after a post that may have been stored")
                continue
            if any(first["began"] <= t <= note["began"] for t in self.run.cuts):
                self.counts["sent_again"] += 1  # the hub's word of the first one may be lost
                continue
            ended = self.run.ended_within(first["began"] - self.breadth, first["t"] + self.window)
            if ended is None or ended > note["t"]:
                gap = note["t"] - first["t"]
                self.fail(said, f"posted again {gap:.3f} s after it was posted")
                continue
            self.counts["repeats"] += 1
            self.widths.append(ended - first["t"])
            if not note["repeat"]:
                self.counts["copies"] += 1

    def runs(self, said: Said) -> None:
        self.counts["calls"] += len(said.calls)
        self.counts["joined"] += sum(1 for note in said.calls if note["joined"])
        for first, second in itertools.pairwise(said.runs):
            if not any(first["t"] <= t <= second["t"] for t in self.run.restarts):
                self.fail(said, f"run again {second['t'] - first['t']:.3f} s after its first run")
            else:
                self.counts["run_again"] += 1
        for note in said.calls:
            if note["t"] < said.at:
                self.fail(said, "Hermes was asked before it was said")

    def parts(self, said: Said, parts: list[Note]) -> None:
        self.counts["answered"] += 1
        self.counts["parts"] += len(parts)
        whole = "".join(note["content"] for note in parts)
        texts = [note["text"] for note in said.answers if note["good"]]
        # Those that were refused, or whose fate is not known.
        doubtful = {n["key"] for n in said.sends} - {n["key"] for n in said.posts}
        fits = whole in texts
        if not fits and doubtful:
            self.counts["incomplete"] += 1
            fits = any(all(n["content"] in text for n in parts) for text in texts)
        for text in texts:
            if len(text.encode()) > ANSWER_LIMIT:
                size = len(whole.encode())
                fits = fits or (
                    ANSWER_LIMIT - PART_LIMIT < size <= ANSWER_LIMIT
                    and text.startswith(whole[:-CUT_NOTICE])
                )
        if not fits:
            shown = [note["content"][:60] for note in parts]
            self.fail(said, f"posted what its run did not say: {shown}{self._history(said)}")
        if any(len(note["content"].encode()) > PART_LIMIT for note in parts):
            self.fail(said, "a part is too long")
        ended = [t for n in said.runs if (t := self.run.ran.get(n["n"])) is not None]
        if not ended or parts[0]["began"] < min(ended):
            self.fail(said, "answered before its run had ended")
        thread = parts[0]["thread_id"]
        if thread is None and parts[0]["status"] is not None:
            thread = parts[0]["message_id"]
        for note in parts[1:]:
            if not doubtful and note["thread_id"] not in (thread, parts[0]["thread_id"]):
                self.fail(said, "its parts are not in one thread")

    def outcome(self, said: Said, told: bool) -> None:
        """It has no answer in the chat: that needs a reason."""
        for note in said.answers:
            if note["good"] and any(
                (done := self.run.done.get(call["n"])) is not None
                and done["status"] == 200
                and not done["hung_up"]
                and not self._cut_off(call, done)
                and not any(n["status"] != 200 for n in said.sends)
                for call in said.calls
            ):
                if note.get("silent"):
                    self.counts["silent"] += 1
                    return
                self.fail(said, "its answer was lost" + self._history(said))
                return
        if told:
            self.counts["told"] += 1
        elif self.rules.failing and self._held_back(said):
            self.counts["held_back"] += 1
        elif any(n["status"] not in (200, None) for n in said.sends):
            self.counts["refused"] += 1
        elif self.rules.overflow and self._beyond_replay(said):
            self.counts["lost"] += 1
        else:
            self.fail(said, "never answered" + self._history(said))

    def _cut_off(self, call: Note, done: Note) -> bool:
        """The bridge ended before it could have had that answer."""
        return self.run.death_after(call["t"]) <= done["t"] + self.breadth

    def _held_back(self, said: Said) -> bool:
        return any(
            other.chat == said.chat
            and note["content"] in self.notices
            and note["t"] > said.at - self.rules.fallback_interval
            for other in self.run.said.values()
            for note in other.posts
        )

    def _beyond_replay(self, said: Said) -> bool:
        later = sum(1 for other in self.run.said.values() if other.order > said.order)
        age = self.run.end - said.at
        return later >= self.rules.replay_depth or age >= self.rules.replay_seconds

    def _history(self, said: Said) -> str:
        """Times relative to when it was said, with what happened to the bridge meanwhile."""
        events = [(n["t"], f"event on {n['conn']}") for n in said.events]
        events += [(n["t"], f"call {n['n']}{' joined' * n['joined']}") for n in said.calls]
        events += [(n["t"], f"run {n['n']}") for n in said.runs]
        for call in said.calls:
            if (done := self.run.done.get(call["n"])) is not None:
                events.append((done["t"], f"done {done['n']}: {done['status']}"))
        events += [(n["t"], f"send {n['status']} {n['key']}") for n in said.sends]
        last = max((t for t, _ in events), default=said.at)
        for what, times in (("start", self.run.starts), ("end", self.run.ends)):
            events += [(t, what) for t in times if said.at - 1 < t < last + 3]
        shown = [f"{what} {t - said.at:+.3f}" for t, what in sorted(events)]
        return ": " + ", ".join(shown[:30])

    # One chat

    def order(self, messages: list[Said]) -> None:
        for what in ("call", "post"):  # when each was first made
            latest: Said | None = None
            reached = -INFINITE
            for said in messages:
                notes = said.calls if what == "call" else said.posts
                if not notes:
                    continue
                first = notes[0]["t" if what == "call" else "began"]
                if first >= reached:
                    latest, reached = said, first
                elif latest is not None and not self._came_again(latest, said, reached):
                    self.fail(said, f"its {what} came before that for {latest.name}")

    def _came_again(self, late: Said, early: Said, at: float) -> bool:
        """Whether what was said first was sent to the bridge once more, after the other."""
        heard = early.events[0]["t"] if early.events else INFINITE
        return self.rules.overflow and any(heard <= n["t"] <= at for n in late.events[1:])

    def contiguous(self, chat: str) -> None:
        seen: set[str] = set()
        last: Note | None = None
        posts = [n for n in self.run.of["send"] if str(n["chat_id"]) == chat]
        stored = [n for n in posts if n["message_id"] is not None]
        for note in stored:
            if last is None or note["reply_to"] != last["reply_to"]:
                if note["reply_to"] in seen:
                    self.failures.append(
                        f"chat {chat}: what answers message {note['reply_to']} is torn apart"
                    )
                seen.add(note["reply_to"])
            last = note
        if self._overlap(posts, GIVEN_UP):
            self.failures.append(f"chat {chat}: two posts at once")

    def _overlap(self, notes: list[Note], limit: float) -> bool:
        """Whether one request began before the one before had its answer, or was given up."""
        return any(
            second["began"] < min(first["t"], first["began"] + limit)
            and self.run.ended_within(first["began"] - self.breadth, second["began"]) is None
            for first, second in itertools.pairwise(sorted(notes, key=lambda n: n["began"]))
        )

    def typing(self, chat: str, messages: list[Said]) -> None:
        notes = [n for n in self.run.of["typing"] if str(n["chat_id"]) == chat]
        if self._overlap(notes, TICK):
            self.failures.append(f"chat {chat}: two signals of typing at once")
        spans = []
        for said in messages:
            for call in said.calls:
                posts = (n["began"] for n in said.posts if n["began"] > call["t"])
                replied = min(posts, default=INFINITE)
                spans.append(
                    (
                        call["t"] - self.breadth,
                        min(self._end(call) + self.breadth, replied + UNDER_WAY + self.rules.lag),
                    )
                )
        for note in notes:
            if note["state"] != "start":
                continue
            self.counts["typing"] += 1
            if any(a - self.breadth < note["began"] < b + WAKING for a, b in self.run.pauses):
                continue  # the call, or the signal itself, was held up by the pause
            if self.run.ended_within(note["began"] - self.breadth, note["began"] + self.breadth):
                continue  # the bridge was killed between the signal and its call
            # Before a Hermes that cannot be reached the signal stands without a call.
            if not self.rules.failing and not any(
                begin <= note["began"] <= end for begin, end in spans
            ):
                self.failures.append(
                    f"chat {chat}: typing began at {note['began']:.3f}, with no call on its way"
                )
        if notes and self.rules.final and notes[-1]["state"] != "stop":
            if self.run.death_after(notes[-1]["t"]) > notes[-1]["t"] + 3 * TICK:
                self.failures.append(f"chat {chat}: typing was never ended")

    # The whole

    def _end(self, call: Note) -> float:
        """When the bridge had, or gave up, the answer to a call, at the earliest."""
        ran = next((t for t in self.run.ran_by_key[call["key"]] if t >= call["t"]), INFINITE)
        done = self.run.done.get(call["n"])
        if ran == INFINITE and done is not None:
            ran = done["t"]
        if done is not None:
            ran = min(ran, done["t"])
        gave_up = call["t"] + self.rules.timeout + self.breadth
        return max(call["t"], min(ran, gave_up, self.run.death_after(call["t"])))

    def concurrency(self) -> None:
        steps: list[tuple[float, int, str]] = []
        for call in self.run.of["call"]:
            if (end := self._end(call)) > call["t"]:
                steps += [(call["t"], 1, call["key"]), (end, -1, call["key"])]
        under_way: Counter[str] = Counter()
        most = 0
        for _, step, key in sorted(steps):
            under_way[key] += step
            if not under_way[key]:
                del under_way[key]
            most = max(most, len(under_way))
        self.counts["most_at_once"] = most
        if most > self.rules.concurrent:
            self.failures.append(f"{most} calls at once")

    def sessions(self) -> None:
        by_session: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for note in self.run.of["run"]:
            ended = self.run.ran.get(note["n"])
            if ended is None:
                done = self.run.done.get(note["n"])
                ended = done["t"] if done is not None else INFINITE
            by_session[note["session"]].append((note["t"], ended, str(note["key"])))
        for session, spans in by_session.items():
            for (begin, end, key), (next_begin, _, next_key) in itertools.pairwise(sorted(spans)):
                if next_begin >= end:
                    continue
                if next_begin - begin >= 2 * self.rules.timeout - self.breadth:
                    self.counts["outlived"] += 1
                else:
                    self.failures.append(
                        f"session {session}: {next_key} began {end - next_begin:.3f} s"
                        f" before {key} had ended"
                    )
        chats = {
            session: {key.rpartition(":")[0] for _, _, key in spans}
            for session, spans in by_session.items()
        }
        for session, owners in chats.items():
            if len(owners) > 1:
                self.failures.append(f"session {session} is shared: {sorted(owners)}")

    def stops(self) -> None:
        """At a clean end what is on its way is finished, and nothing further is begun."""
        for asked, ended in self.run.stops:
            self.counts["stops"] += 1
            for said in self.run.said.values():
                calls = [c for c in said.calls if self.run.death_after(c["t"]) == ended]
                if not calls:
                    continue
                if asked + self.breadth < calls[0]["t"]:
                    self.fail(said, f"begun {calls[0]['t'] - asked:.3f} s after the stop began")
                done = self.run.done.get(calls[-1]["n"])
                if done is None or done["status"] != 200 or not asked < done["t"] < ended:
                    continue
                self.counts["finished_at_a_stop"] += 1
                posted = [n for n in said.sends if n["began"] < ended]
                if any(n["good"] and not n["silent"] for n in said.answers) and not posted:
                    self.fail(said, "its answer came during a stop, and was not posted")

    def first_come(self, asked: dict[str, list[Said]], tolerance: float) -> None:
        """Who has waited for longer by more than the tolerance is served no later than that."""
        waits = sorted(self._waits(asked))
        # The latest call of those that began to wait before, up to each place.
        begun = [since for since, _, _ in waits]
        latest: list[tuple[float, str]] = []
        for _, call, name in waits:
            latest.append(max((call, name), latest[-1] if latest else (call, name)))
        for since, call, name in waits:
            place = bisect.bisect_left(begun, since - tolerance) - 1
            if place >= 0 and latest[place][0] > call + tolerance:
                self.failures.append(
                    f"{name} was served {latest[place][0] - call:.3f} s before {latest[place][1]},"
                    " which had waited for longer"
                )
        self.counts["waits"] = len(waits)

    def _waits(self, asked: dict[str, list[Said]]) -> Iterator[tuple[float, float, str]]:
        for messages in asked.values():
            free = -INFINITE
            for said in sorted(messages, key=lambda s: s.calls[0]["t"] if s.calls else INFINITE):
                if not said.calls:
                    continue
                since = max(free, said.events[0]["t"])
                yield since, said.calls[0]["t"], said.name
                ends = [self._end(call) for call in said.calls]
                free = max(itertools.chain(ends, (n["t"] for n in said.posts)))


def judge(run: Run) -> Note:
    """The report; `failures` is empty when nothing was mistreated."""
    return Judge(run).judge()


def load(directory: str) -> Run:
    names = ("hub", "hermes", "brain", "bridge")
    return Run(*(read(directory, f"{name}.ndjson") for name in names))


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge the journals of a run.")
    parser.add_argument("directory")
    parser.add_argument("--open", action="store_true", help="not everything has its end yet")
    args = parser.parse_args(None if arguments is None else list(arguments))
    run = load(args.directory)
    run.rules.final = not args.open
    report = judge(run)
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
