"""What becomes of a message: sections 3.5 to 3.9, 7 and 9 of the contract."""

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hermes_bridges.core.bell import Bell
from hermes_bridges.donut import keys, turns
from hermes_bridges.donut.turns import GIVEN_UP, NEW_SESSION, NOT_TAKEN
from hermes_bridges.donut.typing_signal import Signal
from hermes_bridges.standins.hermes_api import Answer, Call, Fault
from tests.donut.rig import FALLBACK, LONG, Rig, errors, running


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    with running(tmp_path) as rig:
        yield rig


# --- one turn


def test_a_message_is_answered_and_settled(rig) -> None:
    message = rig.ask("@helper hi", thread_id="t1")
    call = rig.api.calls[0]
    assert call.text == "hi"
    assert call.key == keys.run_key("77", "1", message.message)
    assert (call.session, call.session_key) == ("donut.77.1.0", "donut.77.1")
    (post,) = rig.hub.posted(1)
    assert (post["content"], post["reply_to"]) == ("re: hi", message.message_id)
    assert (post["thread_id"], post["content_type"]) == ("t1", "MD")
    assert rig.settled(message) and rig.ledger.cursor == message.event_id
    assert rig.store.outbox_size() == 0
    assert (rig.count("answered"), rig.failures()) == (1, {})


def test_an_answer_is_in_the_outbox_when_its_message_is_settled(rig) -> None:
    rig.hub.stop_listening()
    message = rig.ask("hi")
    assert rig.settled(message) and rig.said() == []
    assert [part.text for part in rig.store.outbox("1")] == ["re: hi"]


def test_a_long_answer_comes_in_parts_and_one_that_was_cut_says_so(rig) -> None:
    long = "word " * 2_000
    rig.api.script(Answer(long), Answer("as far as it", finish_reason="length"))
    rig.ask("one")
    assert len(rig.said()) == 3 and "".join(rig.said()) == long.strip()
    rig.ask("two")
    assert rig.said()[3].startswith("as far as it") and rig.said()[3] != "as far as it"


def test_silence_posts_nothing_and_is_handled(rig) -> None:
    rig.api.script(Answer(" .NO_REPLY "))
    message = rig.ask("hi")
    assert rig.said() == [] and rig.settled(message)
    assert (rig.count("silent"), rig.count("answered"), rig.failures()) == (1, 0, {})


def test_a_text_that_hermes_would_cut_off_is_not_sent(rig) -> None:
    message = rig.ask("x" * (turns.LONGEST_TEXT + 1))
    assert rig.said() == [NOT_TAKEN] and rig.settled(message) and not rig.api.calls


def test_typing_begins_with_the_call_and_ends_with_it(rig) -> None:
    seen: list[Any] = []

    def think(call: Call) -> Answer:
        seen.append(rig.board.take(rig.time.clock(), Bell()))
        return Answer("ok")

    rig.think = think
    rig.ask("hi", thread_id="t1")
    (signal,) = seen
    assert isinstance(signal, Signal) and signal.start
    assert signal.place == (1, "t1")
    rig.board.done(signal, None, arrived=True)
    after = rig.board.take(rig.time.clock(), Bell())
    assert isinstance(after, Signal) and not after.start


# --- sessions


def test_KH05_a_session_that_an_answer_names_is_the_chats_from_then_on(rig) -> None:
    rig.api.script(Answer("ok", session="s2"))
    rig.ask("one")
    rig.ask("other chat", chat=2)
    rig.ask("two")
    # The header is absent or empty: nothing changes.
    rig.api.script(Answer("ok", headers={"X-Hermes-Session-Id": ""}))
    rig.ask("three")
    rig.reopen()
    rig.ask("four")
    rig.ask("other chat", chat=2)
    sessions = [(call.text, call.session) for call in rig.api.calls]
    assert sessions == [
        ("one", "donut.77.1.0"),
        ("other chat", "donut.77.2.0"),
        ("two", "s2"),
        ("three", "s2"),
        ("four", "s2"),
        ("other chat", "donut.77.2.0"),
    ]
    assert len({call.session_key for call in rig.api.calls}) == 2


@pytest.mark.parametrize("command", ["/new", "/Reset", "@helper /NEW "])
def test_a_new_session_on_demand(rig, command) -> None:
    rig.api.script(Answer("ok", session="taken-over"))
    rig.ask("one")
    reset = rig.ask(command)
    assert len(rig.api.calls) == 1 and rig.said()[1:] == [NEW_SESSION] and rig.settled(reset)
    assert rig.count("answered") == 2
    rig.ask("two")
    rig.reopen()
    rig.ask("three")
    assert [call.session for call in rig.api.calls][1:] == ["donut.77.1.1"] * 2
    assert {call.session_key for call in rig.api.calls} == {"donut.77.1"}


def test_a_reset_is_committed_before_it_is_confirmed(rig) -> None:
    rig.ask("one")
    rig.hub.send_status(503, times=None)
    reset = rig.ask("/new")
    # It could not be confirmed, and holds all the same.
    assert rig.settled(reset) and rig.store.outbox_size() == 0
    rig.hub.heal()
    rig.ask("two")
    assert rig.said() == ["re: one", "re: two"]
    assert rig.api.calls[1].session == "donut.77.1.1"


def test_a_reset_works_while_the_breaker_is_open(rig) -> None:
    rig.reopen(threshold=1)
    rig.api.fail(Fault(status=500))
    rig.ask("one")
    assert rig.breaker.state == "open"
    rig.ask("/new")
    assert rig.said() == [FALLBACK, NEW_SESSION]


# --- who speaks


def test_names_are_told_from_the_second_person_on(rig) -> None:
    known: list[bool] = []

    def think(call: Call) -> Answer:
        # Committed before the request that uses it is sent.
        known.append(rig.store.chat("1").several)
        return Answer("ok")

    rig.think = think
    rig.ask("one")
    rig.ask("two")
    rig.ask("three", sender="b\nob" + "b" * 99, sender_id=6)
    rig.ask("four")
    rig.reopen()
    rig.ask("five")
    rig.ask("other", chat=2)
    texts = [call.text for call in rig.api.calls]
    assert texts[:2] == ["one", "two"]
    name, _, text = texts[2].partition(": ")
    assert text == "three" and len(name) <= 64 and name.startswith("b ob")
    assert texts[3:] == ["ana: four", "ana: five", "other"]
    assert known == [False, False, True, True, True, True]


def test_somebody_without_a_name_is_called_by_the_id(rig) -> None:
    rig.ask("one")
    rig.ask("two", sender=None, sender_id=6)
    assert rig.api.calls[1].text == "6: two"


def test_a_bot_is_no_second_person(rig) -> None:
    rig.ask("one")
    rig.ask_as_bot("two")
    rig.ask("three")
    assert [call.text for call in rig.api.calls] == ["one", "two", "three"]


def test_who_was_not_answered_has_been_seen_too(rig) -> None:
    rig.ask("one")
    rig.ask("/new", sender="bob", sender_id=6)
    rig.ask("two")
    assert rig.api.calls[1].text == "ana: two"


def test_five_answers_to_bots_in_a_row(rig) -> None:
    for number in range(4):
        rig.ask_as_bot(f"bot {number}")
    rig.reopen()
    rig.ask_as_bot("bot 4")
    unheard = rig.ask_as_bot("bot 5")
    assert len(rig.said()) == 5 and rig.settled(unheard)
    assert rig.count("ignored.bot") == 1
    # Each chat has its own five, and a person's message gives a chat five more.
    rig.ask_as_bot("bot 0", chat=2)
    rig.ask("a person")
    for number in range(6):
        rig.ask_as_bot(f"bot {number}")
    assert len(rig.said()) == 5 + 1 + 5 and len(rig.said(2)) == 1


def test_resets_of_bots_are_answers_to_bots(rig) -> None:
    for _ in range(7):
        rig.ask_as_bot("/new")
    assert rig.said() == [NEW_SESSION] * 5
    rig.ask("/new")
    rig.ask_as_bot("hi")
    assert rig.said()[5:] == [NEW_SESSION, "re: hi"]


# --- failures


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (401, "auth", "HERMES_API_KEY"),
        (403, "auth", "HERMES_API_KEY"),
        (404, "address", "HERMES_BASE_URL"),
        (405, "address", "HERMES_BASE_URL"),
        (302, "address", "HERMES_BASE_URL"),
        (408, "busy", ""),
        (425, "busy", ""),
        (429, "busy", ""),
        (503, "busy", ""),
        (500, "status", ""),
        (502, "status", ""),
        (418, "status", ""),
    ],
)
def test_a_failure_is_told_and_counted(rig, status, kind, error, caplog) -> None:
    rig.reopen(threshold=1)
    rig.api.fail(Fault(status=status), math.inf)
    message = rig.ask("hi")
    assert rig.said() == [FALLBACK] and rig.settled(message)
    assert rig.failures() == {kind: 1} and rig.count("fallback") == 1
    # One call is one failure, however many tries.
    assert rig.states == ["open"]
    assert bool(errors(caplog)) == bool(error) and error in "".join(errors(caplog))
    assert (len(rig.calls()) > 1) == (kind == "busy")


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_a_message_that_hermes_does_not_take(rig, status) -> None:
    rig.reopen(threshold=1)
    rig.api.fail(Fault(status=status), math.inf)
    message = rig.ask("hi")
    assert rig.said() == [NOT_TAKEN] and rig.settled(message)
    assert (rig.failures(), rig.states) == ({"rejected": 1}, [])
    assert (rig.count("notice"), rig.count("fallback"), len(rig.calls())) == (1, 0, 1)


def test_a_hermes_that_is_not_there(rig) -> None:
    rig.reopen(threshold=2)
    rig.api.refuse()
    rig.ask("hi")
    # Ten seconds of tries are one failure.
    assert 5 < sum(rig.time.waits) < 11
    assert rig.said() == [FALLBACK] and rig.failures() == {"connect": 1} and rig.states == []
    rig.api.accept()
    rig.ask("hi")
    assert rig.said() == [FALLBACK, "re: hi"]


def test_the_text_of_a_failed_turn_is_never_posted(rig) -> None:
    rig.api.script(Answer("The provider said no.", failed=True))
    rig.ask("hi")
    assert rig.said() == [FALLBACK] and rig.failures() == {"answer": 1}


def test_a_chat_is_told_once_within_the_interval(rig) -> None:
    rig.api.fail(Fault(status=500), math.inf)
    first = rig.ask("one")
    rig.time.ahead += 59.0
    held_back = rig.ask("two")
    rig.ask("other", chat=2)
    assert rig.said() == [FALLBACK] and rig.said(2) == [FALLBACK]
    # Without a word, and settled all the same.
    assert rig.settled(first) and rig.settled(held_back)
    assert rig.count("fallback_held_back") == 1
    rig.reopen(later=0.5)
    rig.ask("three")
    assert rig.said() == [FALLBACK]
    rig.time.ahead += 1.0
    rig.ask("four")
    assert rig.said() == [FALLBACK, FALLBACK]


def test_notices_share_the_interval(rig) -> None:
    rig.api.fail(Fault(status=400))
    rig.ask("one")
    rig.api.fail(Fault(status=500))
    rig.ask("two")
    rig.time.ahead += 61.0
    rig.api.fail(Fault(status=500))
    rig.ask("three")
    rig.api.fail(Fault(status=400))
    rejected = rig.ask("four")
    assert rig.said() == [NOT_TAKEN, FALLBACK] and rig.settled(rejected)


def test_a_reset_is_always_confirmed(rig) -> None:
    rig.api.fail(Fault(status=500))
    rig.ask("one")
    rig.ask("/new")
    assert rig.said() == [FALLBACK, NEW_SESSION]


def test_without_an_interval_every_failure_is_told(rig) -> None:
    rig.reopen(interval=0.0)
    rig.api.fail(Fault(status=500), math.inf)
    rig.ask("one")
    rig.ask("two")
    assert rig.said() == [FALLBACK] * 2


def test_an_empty_fallback_is_not_sent(rig) -> None:
    rig.reopen(fallback="")
    rig.api.fail(Fault(status=500))
    failed = rig.ask("one")
    assert rig.said() == [] and rig.settled(failed)
    # Nothing was said, so that a notice may be.
    rig.api.fail(Fault(status=400))
    rig.ask("two")
    assert rig.said() == [NOT_TAKEN]


def test_a_fallback_that_cannot_be_posted_is_given_up_after_a_minute(rig) -> None:
    rig.api.fail(Fault(status=500), math.inf)
    rig.hub.send_status(503, times=None)
    message = rig.ask("one")
    assert 40 < sum(rig.time.waits) <= 60
    assert rig.settled(message) and rig.store.outbox_size() == 0
    assert (rig.count("fallback"), rig.count("notices_not_posted")) == (0, 1)
    # Nobody has read it: it does not count for the interval.
    rig.hub.heal()
    rig.ask("two")
    assert rig.said() == [FALLBACK]


def test_a_fallback_that_may_have_been_posted_counts_as_told(rig) -> None:
    rig.api.fail(Fault(status=500), math.inf)
    rig.hub.send_drop(stored=True)
    rig.ask("one")
    rig.ask("two")
    assert rig.said() == [FALLBACK] and len(rig.sends()) == 1
    assert rig.count("unknown") == 1


# --- no answer in time


def slow(rig: Rig) -> None:
    """The runs of Hermes take until the gate opens."""

    def think(call: Call) -> Answer:
        assert rig.gate.wait(LONG)
        return Answer(f"late: {call.text}")

    rig.think = think


def test_an_answer_that_is_late_is_posted_after_the_fallback(rig) -> None:
    rig.reopen(timeout=0.7, threshold=1)
    slow(rig)
    seen: dict[str, Any] = {}
    ask = rig.hear("hi")

    def look() -> None:
        assert rig.until(lambda: len(rig.calls()) == 2)
        seen.update(
            said=rig.said(),
            settled=rig.store.is_settled("1", ask.message.message),
            taken=rig.slots.taken,
            states=list(rig.states),
        )
        rig.gate.set()

    watcher = threading.Thread(target=look, name="watcher")
    watcher.start()
    rig.handle(ask)
    watcher.join(LONG)
    # While it waits on: the chat has been told, its message is open, and the slot is held.
    assert seen == {"said": [FALLBACK], "settled": False, "taken": 1, "states": ["open"]}
    assert rig.said() == [FALLBACK, "late: hi"] and rig.settled(ask.message)
    assert rig.runs() == 1 and [call["joined"] for call in rig.calls()] == [False, True]
    # The breaker was told once, when it happened, and of the end nothing.
    assert (rig.failures(), rig.states, rig.count("answered")) == ({"timeout": 1}, ["open"], 1)


def test_a_run_that_does_not_end_is_left_after_one_more_timeout(rig) -> None:
    rig.reopen(timeout=0.2)
    slow(rig)
    message = rig.ask("hi")
    assert rig.said() == [FALLBACK] and rig.settled(message)
    assert (rig.runs(), len(rig.calls())) == (1, 2)
    assert rig.hub.posted(1)[0]["reply_to"] == message.message_id


def test_KH19_the_next_message_waits_for_the_run_of_the_one_before(rig) -> None:
    rig.reopen(timeout=0.7)
    slow(rig)
    chats = rig.chats()
    for text in ("one", "two"):
        ask = rig.hear(text)
        rig.arrive(ask)
        chats.put("1", ask)
    other = rig.hear("elsewhere", chat=2)
    rig.arrive(other)
    chats.put("2", other)
    assert rig.until(lambda: sum(call["text"] == "one" for call in rig.calls()) == 2)
    assert not [call for call in rig.calls() if call["text"] == "two"]
    rig.gate.set()
    assert rig.until(lambda: len(rig.said()) == 3 and rig.said(2))
    assert rig.said() == [FALLBACK, "late: one", "late: two"]
    chats.stop()
    chats.close()
    # By Hermes's own account: the second run began after the first had ended.
    ends = {note["key"]: note["t"] for note in rig.noted("hermes", "ran")}
    begins = {note["key"]: note["t"] for note in rig.noted("hermes", "run")}
    first, second = (f"donut:77:1:{post['reply_to']}" for post in rig.hub.posted(1)[1:])
    assert ends[first] <= begins[second]


def test_a_run_is_not_joined_in_another_process(rig) -> None:
    rig.reopen(timeout=0.3)
    slow(rig)
    rig.hub.send_delay(0.3, times=1, stored=True)
    restarter = threading.Thread(
        target=lambda: rig.until(rig.said) and rig.api.restart(), name="restarter"
    )
    restarter.start()
    message = rig.ask("hi")
    restarter.join(LONG)
    assert rig.said() == [FALLBACK] and rig.settled(message)
    assert (rig.runs(), len(rig.calls())) == (1, 1)
    assert rig.failures() == {"timeout": 1, "restarted": 1}


def test_a_run_that_ends_with_its_process_is_not_made_again(rig) -> None:
    slow(rig)
    restarter = threading.Thread(
        target=lambda: rig.until(rig.runs) and rig.api.restart(), name="restarter"
    )
    restarter.start()
    message = rig.ask("hi")
    restarter.join(LONG)
    assert rig.said() == [FALLBACK] and rig.settled(message) and rig.runs() == 1
    # The next process may already be there when it is looked for, or not yet.
    assert rig.failures() in ({"restarted": 1}, {"connect": 1})


def test_a_process_that_is_not_known_counts_as_another(rig) -> None:
    rig.reopen(timeout=0.3)
    slow(rig)
    rig.api.fail(Fault(status=404), math.inf, "/health/detailed")
    message = rig.ask("hi")
    assert rig.said() == [FALLBACK] and rig.settled(message)
    assert (rig.runs(), len(rig.calls())) == (1, 1)
    assert rig.failures() == {"timeout": 1, "restarted": 1}


def test_a_fallback_that_failed_in_haste_is_told_in_the_end(rig) -> None:
    rig.reopen(timeout=0.2)
    slow(rig)
    rig.hub.send_status(503)
    rig.ask("hi")
    assert rig.said() == [FALLBACK]


def test_after_a_restart_the_run_is_joined_and_the_fallback_not_repeated(rig) -> None:
    rig.reopen(timeout=0.7)
    slow(rig)
    ask = rig.hear("hi")
    stopper = threading.Thread(
        target=lambda: rig.until(lambda: len(rig.calls()) == 2) and over(rig), name="stopper"
    )
    stopper.start()
    rig.handle(ask)
    stopper.join(LONG)
    assert rig.said() == [FALLBACK] and not rig.settled(ask.message)
    rig.reopen(timeout=0.7)
    opener = threading.Thread(
        target=lambda: rig.until(lambda: len(rig.calls()) == 4) and rig.gate.set(), name="opener"
    )
    opener.start()
    rig.handle(ask)
    opener.join(LONG)
    assert rig.said() == [FALLBACK, "late: hi"] and rig.runs() == 1
    assert rig.count("fallback_held_back") == 1


def test_a_stop_while_the_chat_is_told_leaves_the_message_open(rig) -> None:
    rig.reopen(timeout=0.3)
    slow(rig)
    rig.hub.send_delay(0.3, times=1, stored=True)
    stopper = threading.Thread(target=lambda: rig.until(rig.said) and rig.stop(), name="stopper")
    stopper.start()
    message = rig.ask("hi")
    stopper.join(LONG)
    assert rig.said() == [FALLBACK] and not rig.settled(message) and len(rig.calls()) == 1


def over(rig: Rig) -> bool:
    """The stop, and the end of its grace."""
    rig.stop()
    rig.deadlines.shut_all()
    return True


# --- begun before


def test_a_repeat_sends_the_same_bytes_and_joins(rig) -> None:
    ask = rig.hear("hi")
    rig.begin_and_stop(ask)
    # Somebody else has spoken since, and the chat has another session.
    rig.api.script(Answer("ok", session="s2"))
    rig.ask("between", sender="bob", sender_id=6)
    rig.gate.set()
    rig.handle(ask)
    assert rig.said() == ["ok", "re: hi"] and rig.settled(ask.message)
    first, between, repeat = rig.calls()
    assert (first["text"], between["text"], repeat["text"]) == ("hi", "bob: between", "hi")
    assert first["key"] == repeat["key"] and first["session"] == repeat["session"]
    assert repeat["joined"] and rig.runs() == 2


def test_a_repeat_is_named_as_it_was_begun(rig) -> None:
    rig.ask("one")
    ask = rig.hear("two", sender="bob", sender_id=6)
    rig.begin_and_stop(ask)
    rig.gate.set()
    rig.handle(ask)
    assert [call["text"] for call in rig.calls()[1:]] == ["bob: two"] * 2
    assert rig.calls()[2]["joined"]


def test_a_bots_message_that_is_begun_again_counts_once(rig) -> None:
    ask = rig.hear("bot", sender="robo", sender_id=900, sender_type="bot")
    rig.begin_and_stop(ask)
    rig.gate.set()
    rig.handle(ask)
    assert rig.store.chat("1").bot_run == 1


@pytest.mark.parametrize(("seconds", "again"), [(290, True), (310, False)])
def test_what_was_begun_too_long_ago_is_not_repeated(rig, seconds, again, caplog) -> None:
    ask = rig.hear("hi")
    rig.begin_and_stop(ask, later=seconds)
    rig.gate.set()
    rig.handle(ask)
    assert rig.said() == (["re: hi"] if again else [GIVEN_UP]) and rig.settled(ask.message)
    assert len(rig.calls()) == 1 + again
    assert (rig.count("given_up"), len(errors(caplog))) == (not again, not again)


def test_the_fourth_start_of_a_message_gives_it_up(rig, caplog) -> None:
    ask = rig.hear("hi")
    for _ in range(3):
        rig.begin_and_stop(ask)
    assert not rig.settled(ask.message) and errors(caplog) == []
    rig.gate.set()
    rig.handle(ask)
    assert rig.said() == [GIVEN_UP] and rig.settled(ask.message) and len(rig.calls()) == 3
    (line,) = errors(caplog)
    assert "3 times" in line and ask.message.message in line and "hi" not in line.split()
    # Its own notice shares the interval.
    rig.api.fail(Fault(status=500))
    rig.ask("next")
    assert rig.said() == [GIVEN_UP]


def test_what_waited_is_no_start(rig) -> None:
    rig.stop()
    ask = rig.hear("hi")
    for _ in range(5):
        rig.handle(ask)
    assert not rig.settled(ask.message) and rig.store.turn("1", ask.message.message) is None
    rig.reopen()
    rig.handle(ask)
    assert rig.said() == ["re: hi"]


# --- the breaker, as the chats see it


def test_the_breaker_opens_and_closes(rig) -> None:
    rig.reopen(threshold=3, cooldown=30.0, interval=0.0)
    rig.api.fail(Fault(status=500), 3)
    for _ in range(2):
        rig.ask("fails")
    rig.api.mend()
    rig.ask("one success, and the count begins anew")
    rig.api.fail(Fault(status=500), 3)
    for _ in range(3):
        rig.ask("fails")
    assert rig.states == ["open"]
    asked, refused = len(rig.calls()), rig.ask("refused", chat=2)
    assert len(rig.calls()) == asked and rig.said(2) == [FALLBACK] and rig.settled(refused)
    assert rig.failures() == {"status": 5} and rig.count("refused_by_breaker") == 1
    rig.time.ahead += 31.0
    rig.ask("the probe")
    assert rig.states == ["open", "half_open", "closed"]
    assert rig.said()[-1] == "re: the probe"


def test_a_probe_that_fails_opens_the_breaker_again(rig) -> None:
    rig.reopen(threshold=1)
    rig.api.fail(Fault(status=500), 2)
    rig.ask("fails")
    rig.time.ahead += 31.0
    rig.ask("the probe")
    rig.time.ahead += 20.0
    rig.ask("refused")
    assert rig.states == ["open", "half_open", "open"] and len(rig.calls()) == 2


def test_a_probe_without_a_verdict_leaves_the_next_one_the_probe(rig) -> None:
    rig.reopen(threshold=1)
    rig.api.fail(Fault(status=500))
    rig.ask("fails")
    rig.time.ahead += 31.0
    rig.api.fail(Fault(status=400))
    rig.ask("not taken")
    assert rig.states == ["open", "half_open"]
    rig.ask("the probe")
    assert rig.states[-1] == "closed"


def test_of_many_chats_one_is_the_probe(rig) -> None:
    rig.reopen(threshold=1, concurrent=20)
    rig.api.fail(Fault(status=500))
    rig.ask("fails")
    rig.time.ahead += 31.0
    slow(rig)
    chats = rig.chats()
    for chat in range(100, 120):
        rig.hub.add_chat(chat, "all")
        ask = rig.hear("hi", chat=chat)
        rig.arrive(ask)
        chats.put(str(chat), ask)
    assert rig.until(lambda: len(rig.hub.posted()) == 1 + 19)
    assert len(rig.calls()) == 1 + 1 and rig.breaker.state == "half_open"
    rig.gate.set()
    assert rig.until(lambda: len(rig.hub.posted()) == 1 + 20)
    chats.stop()
    chats.close()
    assert rig.states == ["open", "half_open", "closed"]


# --- the slots


def test_the_chats_get_their_turn_in_the_order_in_which_they_wait(rig) -> None:
    rig.reopen(concurrent=1)
    slow(rig)
    chats = rig.chats()
    texts = [f"from {chat}" for chat in range(107, 99, -1)]
    for waiting, text in enumerate(texts):
        chat = int(text.removeprefix("from "))
        rig.hub.add_chat(chat, "all")
        ask = rig.hear(text, chat=chat)
        rig.arrive(ask)
        chats.put(str(chat), ask)
        assert rig.until(lambda waiting=waiting: rig.slots.waiting == waiting and rig.slots.taken)
    rig.gate.set()
    assert rig.until(lambda: len(rig.hub.posted()) == len(texts))
    chats.stop()
    chats.close()
    assert [call["text"] for call in rig.calls()] == texts


def test_so_many_calls_at_once_and_no_more(rig) -> None:
    rig.reopen(concurrent=3)
    slow(rig)
    chats = rig.chats()
    for chat in range(100, 108):
        rig.hub.add_chat(chat, "all")
        ask = rig.hear("hi", chat=chat)
        rig.arrive(ask)
        chats.put(str(chat), ask)
    assert rig.until(lambda: rig.slots.waiting == 5 and rig.api.active == 3)
    assert len(rig.calls()) == 3
    rig.gate.set()
    assert rig.until(lambda: len(rig.hub.posted()) == 8)
    chats.stop()
    chats.close()


def test_no_slot_is_held_while_an_answer_is_posted(rig) -> None:
    rig.reopen(concurrent=1)
    held: list[int] = []
    rig.hub.send_status(503, times=2)
    rig.time.on_wait = lambda seconds: held.append(rig.slots.taken)
    rig.ask("hi")
    assert held == [0, 0] and rig.said() == ["re: hi"]


# --- the stop


def test_a_call_in_flight_at_the_stop_is_answered(rig) -> None:
    ask = rig.hear("hi")

    def think(call: Call) -> Answer:
        rig.stop()
        return Answer("in time")

    rig.think = think
    rig.handle(ask)
    assert rig.said() == ["in time"] and rig.settled(ask.message)


def test_who_waits_for_a_slot_at_the_stop_is_not_begun(rig) -> None:
    rig.reopen(concurrent=1)
    slow(rig)
    chats = rig.chats()
    asks = [rig.hear("in flight"), rig.hear("waits for a slot", chat=2), rig.hear("queued")]
    for ask in asks:
        rig.arrive(ask)
        chats.put(ask.message.chat, ask)
        # The first one has the slot before the others want it.
        assert rig.until(lambda: len(rig.calls()) == 1)
    assert rig.until(lambda: rig.slots.waiting == 1)
    rig.stop()
    chats.stop()
    rig.gate.set()
    chats.close()
    assert [call["text"] for call in rig.calls()] == ["in flight"]
    assert [rig.settled(ask.message) for ask in asks] == [True, False, False]
    assert rig.said() == ["late: in flight"] and rig.said(2) == []


def test_a_call_that_the_end_of_the_grace_cuts_off_stays_open(rig) -> None:
    ask = rig.hear("hi")
    rig.stop_at("call", ask)
    assert rig.said() == [] and not rig.settled(ask.message) and rig.failures() == {}
    turn = rig.store.turn("1", ask.message.message)
    assert turn is not None and turn.attempts == 1


# --- what the log says


def test_the_log_holds_ids_and_no_content(rig, caplog) -> None:
    caplog.set_level("DEBUG")
    rig.api.fail(Fault(status=500, body=b"sesame in a body"))
    message = rig.ask("open sesame")
    rig.think = lambda call: Answer("sesame is open")
    rig.hub.send_status(403, body=json.dumps({"error": "sesame"}).encode())
    rig.ask("open sesame")
    assert "sesame" not in caplog.text
    assert f"message {message.message} of chat 1 failed after" in caplog.text
    assert "HTTP 500" in caplog.text
