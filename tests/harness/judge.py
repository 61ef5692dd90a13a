#!/usr/bin/env python3
"""Judges a run by what the fake `hermes`, the answer writer and the peers wrote down themselves.

    python judge.py DIRECTORY [--final] [--window S] [--home HOME]

Needs nothing but the journals (`*.ndjson`) in DIRECTORY. For every question it checks:

- at most one response; a second one only to a peer that stays, identical, and only when the
  daemon was killed right after the peer acked the first (counted as `repeats`, inherent);
- nothing contradictory, nothing out of nothing: a value stems from an answer written before,
  an error from a `hermes` call that failed, or from the time limit;
- no response after a cancel was acked, but for one under way at that moment (`crossed`) or a
  kill right after the ack (`cancel_window`);
- no valid answer lost;
- sent to the human at most twice, and a second time only after the daemon that sent it first
  has ended; never sent after the cancel, no note before its question;
- acked means known: with `--final` every acked question has had its response or was cancelled.
  The accepted window is a kill within `--window` seconds after an ack (`ack_window`).

With `--home` it also lists what must not be left over after a clean stop. Prints a report as
JSON; exit 1 when anything failed.
"""

from __future__ import annotations

import argparse
import glob
import itertools
import json
import os
import re
import stat
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Note = dict[str, Any]
WINDOW = 0.1  # s between an ack and the record (contract, section 4)
CROSSING = 0.2  # s that a line may be under way: it may meet a cancel's ack, or a kill
STARTING = 1.0  # s that a child on a busy machine may need from its start to its first note
HEADER = re.compile(r"\[HUB-Q:([^\]]*)\]")
QUESTION, NOTES = "❓", ("✖", "⌛", "ℹ")
CUT = "[cut: "
LOCKS = ("registry.lock", ".adopt.lock")  # stay for good: a lock file that goes is no lock


@dataclass
class Question:
    """All notes about one qid."""

    qid: str
    kind: str = ""
    peer: str = ""
    prompt: str = ""
    asked: list[float] = field(default_factory=list)
    acked: list[float] = field(default_factory=list)
    nacked: list[float] = field(default_factory=list)
    cancels: list[float] = field(default_factory=list)
    cancelled: list[float] = field(default_factory=list)
    responses: list[Note] = field(default_factory=list)
    answers: list[Note] = field(default_factory=list)
    begins: list[Note] = field(default_factory=list)
    ends: list[Note] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def accepted(self) -> list[Note]:
        return [r for r in self.responses if r["accepted"]]


@dataclass
class Run:
    """The journals of one run."""

    questions: dict[str, Question]
    daemons: list[Note]
    strays: list[Note]  # responses to questions that the peer never asked

    def __post_init__(self) -> None:
        self.kills = [n["t"] for n in self.daemons if n["what"] == "kill"]
        ends = [n for n in self.daemons if n["what"] in ("kill", "signal", "stopped")]
        self.ended: dict[int, float] = {}
        for note in ends:
            self.ended.setdefault(note["pid"], note["t"])

    def kill_within(self, begin: float, end: float) -> float | None:
        return next((t for t in self.kills if begin <= t <= end), None)


def load(directory: str) -> Run:
    notes: dict[str, list[Note]] = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.ndjson"))):
        name = os.path.basename(path).partition(".")[0].partition("-")[0]
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        notes.setdefault(name, []).extend(json.loads(line) for line in lines if line)
    for group in notes.values():
        group.sort(key=lambda note: note["t"])
    questions: dict[str, Question] = {}
    strays = _read_peers(notes.get("peer", []), questions)
    _read_answers(notes.get("answers", []), questions)
    _read_hermes(notes.get("hermes", []), questions)
    return Run(questions, notes.get("daemons", []), strays)


def _read_peers(notes: list[Note], questions: dict[str, Question]) -> list[Note]:
    strays = []
    lists = {
        "prompt": "asked",
        "prompt_ack": "acked",
        "prompt_nack": "nacked",
        "cancel": "cancels",
        "cancel_ack": "cancelled",
    }
    for note in notes:
        what, qid = note["what"], str(note.get("qid"))
        if what == "prompt":
            question = questions.setdefault(qid, Question(qid))
            question.kind, question.peer = note["kind"], note["peer"]
            question.prompt = note["prompt"]
        if what == "response" and qid not in questions:
            strays.append(note)
        elif what == "response":
            (strays if note["mood"] == "unknown" else questions[qid].responses).append(note)
        elif what in lists and qid in questions:
            getattr(questions[qid], lists[what]).append(note["t"])
    return strays


def _read_answers(notes: list[Note], questions: dict[str, Question]) -> None:
    for note in notes:
        if note["what"] == "answer" and note["valid"] and note["qid"] in questions:
            questions[note["qid"]].answers.append(note)


def _read_hermes(notes: list[Note], questions: dict[str, Question]) -> None:
    calls: dict[int, Question] = {}
    for note in notes:
        if note["what"] == "begin":
            text = note["argv"][-1] if note["argv"] else ""
            header = HEADER.search(text)
            if "send" not in note["argv"] or header is None:
                continue
            question = questions.setdefault(header[1], Question(header[1]))
            if text.startswith(QUESTION):
                question.begins.append(note)
                calls[note["call"]] = question
            elif text.startswith(NOTES):
                question.notes.append(note)
        elif note["what"] == "end" and note["call"] in calls:
            calls[note["call"]].ends.append(note)


def titles(prompt: str) -> list[str]:
    try:
        document = json.loads(prompt)
    except ValueError:
        return []
    if not isinstance(document, dict) or not isinstance(document.get("question"), str):
        return []
    found = []
    for option in document.get("options") or []:
        title = option.get("title") if isinstance(option, dict) else option
        if isinstance(title, str):
            found.append(title)
    return found


def value_of(answer: str, options: list[str]) -> Note:
    """What the asker must get for an answer (contract, section 5, mapping)."""
    text = answer.strip()
    if re.fullmatch("[0-9]+", text) and 1 <= int(text) <= len(options):
        return {"kind": "selection", "selections": [options[int(text) - 1]]}
    for title in options:
        if title.lower() == text.lower():
            return {"kind": "selection", "selections": [title]}
    return {"kind": "freeform", "text": text}


def same(value: object, expected: Note) -> bool:
    if value == expected:
        return True
    if not isinstance(value, dict) or expected["kind"] != "freeform":
        return False
    text = value.get("text")  # an answer too long for one line is cut with a visible mark
    return isinstance(text, str) and CUT in text and text[:1000] == expected["text"][:1000]


class Judge:
    def __init__(self, run: Run, final: bool, window: float) -> None:
        self.run, self.final, self.window = run, final, window
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.gaps: list[float] = []

    def judge(self) -> Note:
        for question in self.run.questions.values():
            self.counts["questions"] += 1
            self.responses(question)
            self.contents(question)
            self.cancel(question)
            self.sends(question)
            self.outcome(question)
        for note in self.run.strays:
            self.failures.append(f"{note['qid']}: a response to a peer that never asked it")
        self.counts["kills"] = len(self.run.kills)
        return {
            "ok": not self.failures,
            "counts": dict(sorted(self.counts.items())),
            "window": self.window,
            "ack_window_gaps": [round(gap, 4) for gap in self.gaps],
            "failures": self.failures,
        }

    def fail(self, question: Question, text: str) -> None:
        self.failures.append(f"{question.qid} ({question.kind} {question.peer}): {text}")

    def responses(self, question: Question) -> None:
        accepted = question.accepted
        self.counts["responses"] += len(accepted)
        contents = {json.dumps([r["response"], r["error"]]) for r in question.responses}
        if len(contents) > 1:
            self.fail(question, f"contradictory responses: {sorted(contents)}")
        for previous, note in itertools.pairwise(accepted):
            # The line may have lain in the peer's socket already when the daemon was killed.
            killed = self.run.kill_within(previous["t"] - CROSSING, previous["t"] + self.window)
            if question.kind == "pi" and killed is not None and killed <= note["t"]:
                self.counts["repeats"] += 1
            else:
                gap = note["t"] - previous["t"]
                self.fail(question, f"a further response {gap:.3f} s after the one it acked")
        if question.nacked and not question.acked and question.responses:
            self.fail(question, "a response to a question that was refused")
        if question.asked and question.responses:
            if question.responses[0]["t"] < question.asked[0]:
                self.fail(question, "a response before the question")

    def contents(self, question: Question) -> None:
        options = titles(question.prompt)
        for note in question.responses:
            error = note["error"]
            if error is None:
                written = [a["text"] for a in question.answers if a["t"] <= note["t"]]
                if not any(same(note["response"], value_of(text, options)) for text in written):
                    self.fail(question, f"a value that nobody wrote: {note['response']!r}")
                continue
            self.counts["errors"] += 1
            if note["response"] is not None:
                self.fail(question, "a response with both a value and an error")
            if limit := re.fullmatch(r"no remote answer within ([0-9.]+)ms", error):
                waited = note["t"] - question.asked[0] if question.asked else 0.0
                if waited < float(limit[1]) / 1000 - 0.05:
                    self.fail(question, f"timed out after {waited:.3f} s: {error}")
            elif error.startswith("hermes send failed"):
                if not any(
                    e["t"] <= note["t"] and (e["code"] or e["signal"]) for e in question.ends
                ):
                    self.fail(question, f"no call of hermes failed: {error[:200]}")
            else:
                self.counts["other_errors"] += 1

    def cancel(self, question: Question) -> None:
        if not question.cancelled:
            return
        self.counts["cancelled"] += 1
        begin, acked = question.cancels[0], question.cancelled[0]
        killed = self.run.kill_within(begin, acked + self.window)
        for note in question.responses:
            late = note["t"] - acked
            if late <= 0:
                continue
            ready = note["error"] is not None or any(a["t"] <= acked for a in question.answers)
            if late <= CROSSING and ready:
                self.counts["crossed"] += 1
            elif killed is not None and killed <= note["t"]:
                self.counts["cancel_window"] += 1
            else:
                self.fail(question, f"a response {late:.3f} s after its cancel was acked")
        for call in question.begins:
            if call["t"] > acked + STARTING and killed is None:
                self.fail(question, "sent to the human after its cancel was acked")

    def sends(self, question: Question) -> None:
        begins = question.begins
        self.counts["sends"] += len(begins)
        if begins and not question.asked:
            self.fail(question, "sent to the human though no peer asked it")
        if len(begins) > 2:
            self.fail(question, f"sent to the human {len(begins)} times")
        if len(begins) == 2:
            self.counts["sent_twice"] += 1
        for first, second in itertools.pairwise(begins):
            known = any(note["pid"] == first["ppid"] for note in self.run.daemons)
            ended = self.run.ended.get(first["ppid"])
            if known and (ended is None or ended > second["t"]):
                self.fail(question, "sent again though the daemon that sent it still ran")
        for note in question.notes:
            if begins and note["t"] < begins[0]["t"]:
                self.fail(question, "a note overtook its question")
        self.counts["notes"] += len(question.notes)

    def outcome(self, question: Question) -> None:
        if not question.asked:
            return
        if question.acked:
            self.counts["acked"] += 1
        elif question.nacked:
            self.counts["nacked"] += 1
        else:
            self.counts["unacked"] += 1
        if question.accepted or question.cancels:
            return
        if not question.acked:
            # The asker knows that it failed. If it reached hermes all the same it is a question.
            if not (question.begins and question.answers and self.final):
                return
        first, last = question.asked[0], question.acked[-1] if question.acked else 0.0
        killed = self.run.kill_within(first, last + self.window)
        if killed is not None and not question.begins:
            self.counts["ack_window"] += 1
            self.gaps.append(killed - last)
        elif question.answers and self.final:
            self.fail(question, "its answer was lost" + self._history(question))
        elif self.final:
            self.fail(question, "acked, and never heard of again" + self._history(question))
        else:
            self.counts["open"] += 1

    def _history(self, question: Question) -> str:
        """Times relative to the first prompt, with what happened to the daemon meanwhile."""
        zero = question.asked[0]
        events = [(t, "ack") for t in question.acked]
        events += [(n["t"], "hermes") for n in question.begins]
        events += [(n["t"], "answer") for n in question.answers]
        events += [(n["t"], n["what"]) for n in question.responses]
        events += [(n["t"], n["what"]) for n in self.run.daemons if n["t"] > zero - 1]
        shown = [f"{what} {t - zero:+.3f}" for t, what in sorted(events)]
        return ": " + ", ".join(shown[:20])


def judge(run: Run, final: bool = False, window: float = WINDOW) -> Note:
    """The report; `failures` is empty when nothing was mistreated."""
    return Judge(run, final, window).judge()


def leftovers(home: str, coms_dir: str | None = None) -> list[str]:
    """What lies below the coms directories and must not, after a clean stop with all questions
    closed. Allowed: directories, the event log and its rotated one, closed records, lock files."""
    coms = coms_dir or os.path.join(home, ".pi", "coms")
    bridge = os.path.join(home, ".pi", "coms", "hermes-bridge")
    found = []
    for top in sorted({coms, bridge}):
        for directory, _, names in os.walk(top):
            if top != bridge and directory.startswith(bridge):
                continue
            for name in names:
                path = os.path.join(directory, name)
                if not _may_stay(path, bridge):
                    found.append(path)
    return found


def last_document(text: str) -> Note:
    """The document of a file, or the last whole line of one that is appended to."""
    try:
        document = json.loads(text)
    except ValueError:
        for line in reversed(text.split("\n")):
            try:
                document = json.loads(line)
                break
            except ValueError:
                continue
        else:
            raise
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _may_stay(path: str, bridge: str) -> bool:
    status = os.lstat(path)
    directory, name = os.path.split(path)
    if not stat.S_ISREG(status.st_mode):
        return False
    if path in (os.path.join(bridge, "log.ndjson"), os.path.join(bridge, "log.ndjson.1")):
        return True
    if name in LOCKS:
        return status.st_size == 0
    if directory == os.path.join(bridge, "pending") and re.fullmatch(r"[0-9A-Z]{26}\.json", name):
        with open(path, encoding="utf-8") as file:
            return bool(last_document(file.read()).get("state") == "closed")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge the journals of a run.")
    parser.add_argument("directory")
    parser.add_argument("--final", action="store_true", help="everything must be settled")
    parser.add_argument("--window", type=float, default=WINDOW, help="seconds after an ack")
    parser.add_argument("--home", help="HOME of the stopped daemon, to look for left-over files")
    args = parser.parse_args()
    report = judge(load(args.directory), args.final, args.window)
    if args.home is not None:
        report["leftovers"] = leftovers(args.home)
        report["ok"] = report["ok"] and not report["leftovers"]
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
