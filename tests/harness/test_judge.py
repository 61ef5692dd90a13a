"""The judge must find what it looks for: each kind of mistreatment, written down by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import judge
from tests.harness.judge import Question, Run

YES = {"kind": "freeform", "text": "yes"}
NO = {"kind": "freeform", "text": "no"}
PID, SECOND_PID = 10, 20


def response(t: float, value: Any = YES, error: str | None = None, **more: Any) -> dict[str, Any]:
    return {"t": t, "response": value, "error": error, "accepted": True, "mood": "ack", **more}


def begin(t: float, ppid: int = PID) -> dict[str, Any]:
    return {"t": t, "what": "begin", "ppid": ppid}


def answer(t: float, text: str = "yes") -> dict[str, Any]:
    return {"t": t, "text": text, "valid": True}


def question(**more: Any) -> Question:
    """Asked at 1.0, acked at 1.01, sent at 1.1, answered at 2.0; the response came at 2.1."""
    made = Question("Q", "pi", "pi-0", "hello", asked=[1.0], acked=[1.01])
    made.begins, made.answers, made.responses = [begin(1.1)], [answer(2.0)], [response(2.1)]
    for name, value in more.items():
        setattr(made, name, value)
    return made


def kill(t: float, pid: int = PID) -> dict[str, Any]:
    return {"t": t, "what": "kill", "pid": pid}


def verdict(made: Question, *daemons: dict[str, Any], final: bool = True) -> dict[str, Any]:
    known = [{"t": 0.5, "what": "ready", "pid": PID}, {"t": 0.6, "what": "ready", "pid": 20}]
    return judge.judge(Run({made.qid: made}, [*known, *daemons], []), final)


def test_a_good_question_passes() -> None:
    report = verdict(question())
    assert report["ok"] and report["counts"]["responses"] == 1


BAD: dict[str, tuple[Question, list[dict[str, Any]], str]] = {
    "a repeat without a kill": (
        question(responses=[response(2.1), response(2.2)]),
        [],
        "a further response",
    ),
    "a repeat long after the kill": (
        question(responses=[response(2.1), response(9.0)]),
        [kill(5.0)],
        "a further response",
    ),
    "a repeat to a one-shot peer": (
        question(kind="one_shot", responses=[response(2.1), response(2.2)]),
        [kill(2.11)],
        "a further response",
    ),
    "a contradiction": (
        question(
            responses=[response(2.1), response(2.2, NO)], answers=[answer(2.0), answer(2.0, "no")]
        ),
        [kill(2.11)],
        "contradictory",
    ),
    "a contradiction that was refused": (
        question(responses=[response(2.1), response(2.2, None, "x", accepted=False)]),
        [],
        "contradictory",
    ),
    "a value out of nothing": (question(responses=[response(2.1, NO)]), [], "nobody wrote"),
    "a value before it was written": (question(answers=[answer(2.2)]), [], "nobody wrote"),
    "an error without a failure": (
        question(responses=[response(2.1, None, "hermes send failed (1)")]),
        [],
        "no call of hermes failed",
    ),
    "a value with an error": (
        question(responses=[response(2.1, YES, "no remote answer within 10ms")]),
        [],
        "both a value and an error",
    ),
    "a time limit that had not passed": (
        question(responses=[response(2.1, None, "no remote answer within 1800000ms")]),
        [],
        "timed out after",
    ),
    "a lost answer": (question(responses=[]), [], "answer was lost"),
    "a lost question": (question(responses=[], answers=[], begins=[]), [], "never heard of"),
    "a lost question, though a kill long after": (
        question(responses=[], answers=[], begins=[]),
        [kill(1.5)],
        "never heard of",
    ),
    "a lost question that hermes knew": (
        question(responses=[], answers=[]),
        [kill(1.02)],
        "never heard of",
    ),
    "an answer after the cancel": (
        question(cancels=[1.5], cancelled=[1.51]),
        [],
        "after its cancel was acked",
    ),
    "an answer under way for too long": (
        question(cancels=[2.0], cancelled=[2.05], responses=[response(3.0)]),
        [],
        "after its cancel was acked",
    ),
    "sent after the cancel": (
        question(cancels=[1.02], cancelled=[1.03], begins=[begin(4.0)], responses=[]),
        [],
        "sent to the human after its cancel",
    ),
    "sent twice by one daemon": (
        question(begins=[begin(1.1), begin(1.5)]),
        [],
        "sent again though",
    ),
    "sent by two daemons that both run": (
        question(begins=[begin(1.1), begin(1.5, SECOND_PID)]),
        [],
        "sent again though",
    ),
    "sent three times": (
        question(begins=[begin(1.1), begin(1.5, SECOND_PID), begin(1.9, 30)]),
        [kill(1.2), kill(1.6, SECOND_PID)],
        "3 times",
    ),
    "sent though nobody asked": (question(asked=[], acked=[], responses=[]), [], "no peer asked"),
    "a note before its question": (question(notes=[{"t": 1.05}]), [], "overtook"),
    "an answered refusal": (question(acked=[], nacked=[1.01]), [], "was refused"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_mistreatment_is_found(name: str) -> None:
    made, daemons, sign = BAD[name]
    report = verdict(made, *daemons)
    assert any(sign in failure for failure in report["failures"]), report


INHERENT: dict[str, tuple[Question, list[dict[str, Any]], str]] = {
    "the accepted window": (
        question(responses=[], answers=[], begins=[]),
        [kill(1.05)],
        "ack_window",
    ),
    "a repeat around a kill": (
        question(responses=[response(2.1), response(2.6)]),
        [kill(2.15)],
        "repeats",
    ),
    "a repeat of what lay in the socket when the daemon was killed": (
        question(responses=[response(2.1), response(2.6)]),
        [kill(2.09)],
        "repeats",
    ),
    "a cancel that met a response": (
        question(cancels=[2.05], cancelled=[2.08]),
        [],
        "crossed",
    ),
    "a kill right after the cancel's ack": (
        question(cancels=[1.5], cancelled=[1.51]),
        [kill(1.55)],
        "cancel_window",
    ),
    "sent again by the next daemon": (
        question(begins=[begin(1.1), begin(1.5, SECOND_PID)]),
        [kill(1.2)],
        "sent_twice",
    ),
    "sent by a daemon that was killed before the child looked": (
        question(begins=[begin(1.1, 1), begin(1.5, SECOND_PID)]),
        [kill(1.09)],
        "sent_twice",
    ),
}


@pytest.mark.parametrize("name", INHERENT)
def test_what_a_kill_makes_inevitable_is_counted(name: str) -> None:
    made, daemons, count = INHERENT[name]
    report = verdict(made, *daemons)
    assert report["failures"] == []
    assert report["counts"][count] == 1


def test_open_is_no_failure_before_the_end() -> None:
    report = verdict(question(responses=[]), final=False)
    assert report["ok"] and report["counts"]["open"] == 1


def test_it_runs_alone_on_a_directory(tmp_path: Path) -> None:
    fields = {"peer": "pi-0", "kind": "pi", "qid": "Q"}
    notes = [
        {"t": 1.0, "what": "prompt", "prompt": "hello", **fields},
        {"t": 1.1, "what": "prompt_ack", **fields},
        {"t": 2.0, "what": "response", "qid": "R", "mood": "unknown", "accepted": False},
    ]
    (tmp_path / "peer-pi.ndjson").write_text("".join(json.dumps(n) + "\n" for n in notes))
    home = tmp_path / "home"
    pending = home / ".pi/coms/hermes-bridge/pending"
    pending.mkdir(parents=True)
    (pending / f"{'0' * 26}.json").write_text('{"state": "closed"}')
    (pending / f"{'1' * 26}.json").write_text('{"state": "delivered"}')
    (pending / ".x.tmp").touch()
    script = Path(judge.__file__)
    run = subprocess.run(
        [sys.executable, "-I", str(script), str(tmp_path), "--final", "--home", str(home)],
        capture_output=True,
        text=True,
    )
    report = json.loads(run.stdout)
    assert run.returncode == 1
    assert len(report["failures"]) == 2, report
    assert sorted(Path(path).name for path in report["leftovers"]) == [".x.tmp", f"{'1' * 26}.json"]


def test_the_harness_imports_nothing_of_the_product() -> None:
    for path in Path(judge.__file__).parent.glob("[!t]*.py"):
        text = path.read_text()
        # Stand-ins are peers of the product, not parts of it.
        assert not re.search(r"(import|from) hermes_bridges(?!\.standins)", text), path
