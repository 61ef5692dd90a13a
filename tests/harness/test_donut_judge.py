"""The judge of the Donut bridge must find what it looks for: each mistreatment, by hand."""

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import donut_judge
from tests.harness.donut_judge import Run

Note = dict[str, Any]
FALLBACK = "away"


class Story:
    """Journals made by hand. Messages are numbered from 1 and said a second apart."""

    def __init__(self, **rules: Any) -> None:
        self.rules = {"fallback": FALLBACK, **rules}
        self.hub: list[Note] = []
        self.hermes: list[Note] = []
        self.brain: list[Note] = []
        self.bridge: list[Note] = [{"t": 0.0, "what": "start"}, {"t": 0.1, "what": "ready"}]
        self.posts = 500

    def heard(self, n: int, chat: int = 1, text: str | None = None, sender: str = "ana") -> None:
        text = f"m{n}" if text is None else text
        facts = {"event_id": str(1000 + n), "chat_id": chat, "message_id": n}
        self.hub.append({"t": n, "what": "said", **facts, "sender": sender, "content": text})
        self.event(n, n + 0.01, chat)

    def event(self, n: int, t: float, chat: int = 1) -> None:
        facts = {"event_id": str(1000 + n), "chat_id": chat, "message_id": n, "replay": False}
        self.hub.append({"t": t, "what": "event", "conn": 1, **facts})

    def call(
        self,
        n: int,
        begin: float,
        end: float,
        chat: int = 1,
        *,
        text: str | None = None,
        joined: bool = False,
        run: bool = True,
        status: int | None = 200,
        good: bool = True,
        session: str | None = None,
    ) -> None:
        key, session = f"donut:77:{chat}:{n}", session or f"s{chat}"
        number = len(self.hermes) + 1
        self.hermes.append(
            {"t": begin, "what": "call", "n": number, "key": key, "joined": joined}
            | {"session": session, "session_key": session, "text": f"m{n}"}
        )
        if run and not joined:
            at = {"n": number, "key": key}
            self.hermes.append({"t": begin, "what": "run", **at, "session": session})
            self.hermes.append({"t": end, "what": "ran", **at})
            said = {"text": text or f"re m{n}", "good": good, "silent": text == "[SILENT]"}
            self.brain.append({"t": begin, "what": "answer", **at, **said})
        done = {"t": end + 0.001, "what": "done", "n": number, "status": status, "hung_up": False}
        self.hermes.append(done)

    def post(
        self,
        n: int,
        t: float,
        text: str | None = None,
        chat: int = 1,
        *,
        part: int | str = 1,
        thread: int | None = None,
        repeat: bool = False,
        status: int | None = 200,
        stored: bool = True,
        began: float | None = None,
    ) -> None:
        self.posts += 1
        stored = stored and not repeat and status is not None and status < 400
        self.hub.append(
            {"t": t, "what": "send", "chat_id": chat, "reply_to": n, "thread_id": thread}
            | {"content": f"re m{n}" if text is None else text, "status": status}
            | {"message_id": self.posts if stored else None, "repeat": repeat}
            | {"began": t - 0.002 if began is None else began, "key": f"k:{chat}:{n}:{part}"}
        )

    def typing(self, state: str, t: float, chat: int = 1) -> None:
        self.hub.append({"t": t, "what": "typing", "chat_id": chat, "state": state, "began": t})

    def turn(self, n: int, chat: int = 1, text: str | None = None) -> None:
        """A message that is treated well."""
        self.heard(n, chat)
        self.typing("start", n + 0.02, chat)
        self.call(n, n + 0.1, n + 0.2, chat, text=text)
        self.post(n, n + 0.3, text, chat)
        self.typing("stop", n + 0.31, chat)

    def kill(self, t: float) -> None:
        self.bridge.append({"t": t, "what": "kill"})
        self.bridge.append({"t": t + 0.01, "what": "dead"})
        self.bridge.append({"t": t + 0.02, "what": "start"})

    def verdict(self) -> Note:
        bridge = [{"t": -1.0, "what": "rules", **self.rules}, *self.bridge]
        notes = [copy.deepcopy(part) for part in (self.hub, self.hermes, self.brain, bridge)]
        return donut_judge.judge(Run(*(sorted(part, key=lambda n: n["t"]) for part in notes)))


def good() -> Story:
    story = Story()
    for n in (1, 2, 3):
        story.turn(n)
    return story


def test_what_is_treated_well_passes() -> None:
    report = good().verdict()
    assert report["failures"] == []
    assert report["counts"]["answered"] == 3
    assert report["counts"]["most_at_once"] == 1


def in_two_parts(story: Story, second: float = 1.4, thread: int | None = 501) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2, text="one two")
    story.post(1, 1.3, "one ")
    story.post(1, second, "two", part=2, thread=thread)


def unanswered(story: Story) -> None:
    story.heard(1)


def never_sent_on(story: Story) -> None:
    story.heard(1)
    story.hub.pop()


def answer_lost(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)


def answer_lost_for_a_fallback(story: Story) -> None:
    story.rules["failing"] = True
    answer_lost(story)
    story.post(1, 1.3, FALLBACK)


def answered_twice(story: Story) -> None:
    story.turn(1)
    story.post(1, 1.5, part=7)


def posted_again(story: Story) -> None:
    story.turn(1)
    story.post(1, 1.5, repeat=True)


def posted_again_long_after_a_kill(story: Story) -> None:
    story.turn(1)
    story.kill(2.0)
    story.post(1, 3.0, repeat=True)


def stored_again(story: Story) -> None:
    story.turn(1)
    story.post(1, 1.5)


def again_after_a_time_out(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)
    story.post(1, 16.3, status=None, began=1.3)
    story.post(1, 16.4)


def other_words(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)
    story.post(1, 1.3, "something else")


def words_of_a_failed_run(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2, text="API key wrong", good=False)
    story.post(1, 1.3, "API key wrong")


def a_silent_answer_posted(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2, text="[SILENT]")
    story.post(1, 1.3, "")


def before_its_run(story: Story) -> None:
    story.heard(1)
    story.post(1, 1.15)
    story.call(1, 1.1, 1.2)


def notice_though_well(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)
    story.post(1, 1.3, FALLBACK)


def two_notices(story: Story) -> None:
    story.rules["failing"] = True
    story.heard(1)
    story.call(1, 1.1, 1.2, good=False)
    story.post(1, 1.3, FALLBACK)
    story.post(1, 1.4, FALLBACK, part="again")


def no_notice(story: Story) -> None:
    story.rules["failing"] = True
    story.heard(1)
    story.call(1, 1.1, 1.2, good=False)


def run_twice(story: Story) -> None:
    story.turn(1)
    story.call(1, 1.5, 1.6)


def key_of_nobody(story: Story) -> None:
    story.call(9, 1.1, 1.2)


def reply_to_nothing(story: Story) -> None:
    story.post(9, 1.1)


def reply_to_a_bot(story: Story) -> None:
    story.heard(1, sender="bot-x")
    story.call(1, 1.1, 1.2)
    story.post(1, 1.3)


def overtaken(story: Story) -> None:
    story.heard(1)
    story.heard(2)
    for n, at in ((2, 2.1), (1, 2.5)):
        story.call(n, at, at + 0.1)
        story.post(n, at + 0.2)


def posts_overtaken(story: Story) -> None:
    story.heard(1)
    story.heard(2)
    story.call(1, 2.1, 2.2)
    story.call(2, 2.3, 2.4)
    story.post(2, 2.5)
    story.post(1, 2.6)


def parts_in_the_wrong_order(story: Story) -> None:
    in_two_parts(story, second=1.25)


def part_missing(story: Story) -> None:
    in_two_parts(story)
    story.hub.pop()


def parts_torn_apart(story: Story) -> None:
    in_two_parts(story, second=2.5)
    story.heard(2)
    story.call(2, 2.1, 2.2)
    story.post(2, 2.3)


def parts_in_two_threads(story: Story) -> None:
    in_two_parts(story, thread=77)


def part_too_long(story: Story) -> None:
    story.turn(1, text="x" * 4001)


def posts_at_once(story: Story) -> None:
    in_two_parts(story)
    story.hub[-1]["began"] = 1.295


def five_at_once(story: Story) -> None:
    for chat in range(1, 6):
        story.heard(chat, chat)
        story.call(chat, 6.0 + chat / 100, 7.0, chat)
        story.post(chat, 7.1, chat=chat)


def turns_overlap(story: Story) -> None:
    story.heard(1)
    story.heard(2)
    story.call(1, 2.1, 2.9)
    story.call(2, 2.5, 3.0)
    story.post(1, 3.1)
    story.post(2, 3.2)


def session_of_two_chats(story: Story) -> None:
    for chat in (1, 2):
        story.heard(chat, chat)
        story.call(chat, chat + 0.1, chat + 0.2, chat, session="one")
        story.post(chat, chat + 0.3, chat=chat)


def served_first_though_last(story: Story) -> None:
    story.rules |= {"first_come": 0.1, "concurrent": 1}
    for chat in (1, 2):
        story.heard(chat, chat)
    for chat, at in ((2, 5.0), (1, 6.0)):
        story.call(chat, at, at + 0.5, chat)
        story.post(chat, at + 0.6, chat=chat)


def typing_after_the_reply(story: Story) -> None:
    story.turn(1)
    story.typing("start", 1.7)
    story.typing("stop", 1.8)


def typing_never_ended(story: Story) -> None:
    story.turn(1)
    story.hub.pop()


def signals_at_once(story: Story) -> None:
    story.turn(1)
    story.hub[-1]["began"] = 1.02
    story.hub[2]["t"] = 1.1


def session_not_confirmed(story: Story) -> None:
    story.heard(1, text="/New")


def session_by_a_call(story: Story) -> None:
    story.heard(1, text="/reset")
    story.call(1, 1.1, 1.2)
    story.post(1, 1.3, "new")


def lost_within_the_replay(story: Story) -> None:
    story.rules["overflow"] = True
    story.heard(1)
    for n in range(2, 50):
        story.turn(n)


def stop(story: Story, asked: float, ended: float) -> None:
    story.bridge.append({"t": asked, "what": "signal", "number": 15})
    story.bridge.append({"t": ended, "what": "stopped", "code": 0})


def begun_during_a_stop(story: Story) -> None:
    stop(story, 0.5, 2.0)
    story.turn(1)


def not_posted_at_a_stop(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)
    stop(story, 1.15, 1.9)
    story.bridge.append({"t": 2.0, "what": "start"})
    story.post(1, 2.5)


MISTREATED: dict[Callable[[Story], None], str] = {
    begun_during_a_stop: "after the stop began",
    not_posted_at_a_stop: "came during a stop",
    unanswered: "never answered",
    never_sent_on: "never answered",
    answer_lost: "its answer was lost",
    answer_lost_for_a_fallback: "its answer was lost",
    answered_twice: "did not say",
    posted_again: "after it was posted",
    posted_again_long_after_a_kill: "after it was posted",
    stored_again: "after it was posted",
    again_after_a_time_out: "may have been stored",
    other_words: "did not say",
    words_of_a_failed_run: "did not say",
    a_silent_answer_posted: "did not say",
    before_its_run: "before its run had ended",
    notice_though_well: "though Hermes was well",
    two_notices: "2 notices",
    no_notice: "never answered",
    run_twice: "run again",
    key_of_nobody: "under the key donut:77:1:9",
    reply_to_nothing: "in reply to nothing",
    reply_to_a_bot: "to be ignored",
    overtaken: "its call came before",
    posts_overtaken: "its post came before",
    parts_in_the_wrong_order: "did not say",
    part_missing: "did not say",
    parts_torn_apart: "torn apart",
    parts_in_two_threads: "one thread",
    part_too_long: "too long",
    posts_at_once: "two posts at once",
    five_at_once: "5 calls at once",
    turns_overlap: "before donut:77:1:1 had ended",
    session_of_two_chats: "is shared",
    served_first_though_last: "had waited for longer",
    typing_after_the_reply: "with no call",
    typing_never_ended: "never ended",
    signals_at_once: "two signals",
    session_not_confirmed: "confirmed 0 times",
    session_by_a_call: "costs no call",
    lost_within_the_replay: "never answered",
}


@pytest.mark.parametrize("mistreat", MISTREATED, ids=lambda m: m.__name__)
def test_each_mistreatment_is_found(mistreat: Callable[[Story], None]) -> None:
    story = Story()
    mistreat(story)
    report = story.verdict()
    assert any(MISTREATED[mistreat] in failure for failure in report["failures"]), report


def repeat_around_a_kill(story: Story) -> None:
    story.turn(1)
    story.kill(1.35)
    story.post(1, 2.0, repeat=True)


def copy_around_a_kill(story: Story) -> None:
    story.turn(1)
    story.kill(1.35)
    story.post(1, 2.0)


def sent_again_without_an_answer(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2)
    story.post(1, 1.3, status=None)
    story.post(1, 1.4)


def sent_again_after_the_hub_went(story: Story) -> None:
    story.turn(1)
    story.bridge.append({"t": 1.35, "what": "hub_stopped"})
    story.post(1, 1.6, repeat=True)


def joined_by_the_next_process(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.9, status=None)
    story.kill(1.2)
    story.call(1, 1.5, 1.9, joined=True)
    story.post(1, 2.0)


def run_again_by_another_hermes(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2, status=None)
    story.bridge.append({"t": 1.2, "what": "hermes_restarted"})
    story.call(1, 1.5, 1.6)
    story.post(1, 2.0)


def told_of_a_failure(story: Story) -> None:
    story.rules["failing"] = True
    story.heard(1)
    story.call(1, 1.1, 1.2, good=False)
    story.post(1, 1.3, FALLBACK)


def fallback_held_back(story: Story) -> None:
    told_of_a_failure(story)
    story.heard(2)
    story.call(2, 2.1, 2.2, good=False)


def lost_beyond_the_replay(story: Story) -> None:
    story.rules["overflow"] = True
    story.heard(1)
    for n in range(2, 103):
        story.turn(n)


def late_after_a_drop(story: Story) -> None:
    story.rules["overflow"] = True
    story.heard(1)
    story.turn(2)
    story.event(1, 4.0)
    story.call(1, 4.1, 4.2)
    story.post(1, 4.3)


def outlived_by_its_run(story: Story) -> None:
    story.rules |= {"failing": True, "timeout": 2.0}
    story.heard(1)
    story.call(1, 1.1, 9.0, status=None)
    story.post(1, 3.2, FALLBACK)
    story.heard(2)
    story.call(2, 5.2, 5.3)
    story.post(2, 5.4)


def silent(story: Story) -> None:
    story.heard(1)
    story.call(1, 1.1, 1.2, text="[SILENT]")


def part_of_unknown_fate(story: Story) -> None:
    in_two_parts(story)
    story.hub[-1] |= {"status": None, "message_id": None}


def finished_at_a_stop(story: Story) -> None:
    story.turn(1)
    stop(story, 1.15, 1.9)


ALLOWED: dict[Callable[[Story], None], str] = {
    repeat_around_a_kill: "repeats",
    copy_around_a_kill: "copies",
    sent_again_without_an_answer: "answered",
    sent_again_after_the_hub_went: "sent_again",
    finished_at_a_stop: "finished_at_a_stop",
    joined_by_the_next_process: "joined",
    run_again_by_another_hermes: "run_again",
    told_of_a_failure: "told",
    fallback_held_back: "held_back",
    lost_beyond_the_replay: "lost",
    late_after_a_drop: "answered",
    outlived_by_its_run: "outlived",
    silent: "silent",
    in_two_parts: "answered",
    part_of_unknown_fate: "incomplete",
}


@pytest.mark.parametrize("happen", ALLOWED, ids=lambda m: m.__name__)
def test_what_the_contract_allows_is_counted(happen: Callable[[Story], None]) -> None:
    story = Story()
    happen(story)
    report = story.verdict()
    assert report["failures"] == []
    assert report["counts"][ALLOWED[happen]] >= 1, report


def test_the_width_of_the_window_is_told() -> None:
    story = Story()
    repeat_around_a_kill(story)
    assert story.verdict()["repeat_widths"] == [0.05]


@pytest.mark.parametrize("text", ["@helper", " @Helper, ", ""])
def test_nothing_is_to_be_said_to_a_bare_mention(text: str) -> None:
    story = Story()
    story.heard(1, text=text)
    report = story.verdict()
    assert report["failures"] == [] and report["counts"]["ignored"] == 1


def test_open_is_no_failure_before_the_end() -> None:
    story = Story(final=False)
    unanswered(story)
    assert story.verdict()["ok"]


def test_it_runs_alone_on_a_directory(tmp_path: Path) -> None:
    story = Story()
    answered_twice(story)
    for name, notes in (("hub", story.hub), ("hermes", story.hermes), ("brain", story.brain)):
        lines = "".join(json.dumps(note) + "\n" for note in notes)
        (tmp_path / f"{name}.ndjson").write_text(lines)
    run = subprocess.run(
        [sys.executable, "-I", donut_judge.__file__, str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 1, run.stderr
    assert len(json.loads(run.stdout)["failures"]) == 1


def test_the_judges_need_nothing_of_ours() -> None:
    for name in ("judge.py", "donut_judge.py"):
        text = (Path(__file__).parent / name).read_text()
        assert not re.search(r"^\s*(import|from) +(\.|tests|hermes_bridges)", text, re.MULTILINE)
