import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

from hermes_bridges.core.deadlines import Deadlines
from hermes_bridges.core.httpclient import Clients, HttpClient
from hermes_bridges.donut.hermes_api import (
    CONNECT_WITHIN,
    Answered,
    Failed,
    Hermes,
    Outcome,
    Rejected,
    TimedOut,
    Unsettled,
)
from hermes_bridges.standins.hermes_api import CHAT, KEY, Answer, Call, Fault, HermesApi
from tests.conftest import wait

HEALTH = "/health/detailed"
NOON = 1_800_000_000.0  # wall clock
LONG = 30.0  # seconds; more than any call here takes


class HandTurned(threading.Event):
    """A stop whose waits pass at once, on a clock of their own, which runs along with the real."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return time.monotonic() + self.skipped

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.skipped += timeout
        return self.is_set()


class Place:
    """A scripted Hermes and a caller."""

    def __init__(self, directory: Any) -> None:
        self.journal = directory / "hermes.ndjson"
        self.api = HermesApi(self.brain, journal=str(self.journal))
        self.gate = threading.Event()
        self.on_run: Callable[[], object] = lambda: None
        self.deadlines = Deadlines()
        self.stopping = HandTurned()
        self.clients = Clients(lambda: HttpClient(self.deadlines), 8)
        self.hermes = self.caller(self.stopping)

    def caller(
        self, stopping: threading.Event, key: str = KEY, path: str = "", rand: float = 0.0
    ) -> Hermes:
        """One whose delays are the shortest, or with 1.0 the longest."""
        clock = stopping.clock if isinstance(stopping, HandTurned) else time.monotonic
        return Hermes(
            self.api.base_url + path,
            key,
            self.clients,
            stopping,
            clock=clock,
            wall=lambda: NOON,
            rand=lambda: rand,
        )

    def brain(self, call: Call) -> Answer:
        self.on_run()
        if call.text.startswith("wait"):
            assert self.gate.wait(LONG)
        return Answer(f"answer to {call.text}")

    def turn(self, text: str = "hi", limit: float = LONG, session: str = "s1") -> Outcome:
        return self.hermes.turn(*asked(text, session), limit)

    def join(self, text: str = "hi", limit: float = LONG, session: str = "s1") -> Outcome:
        return self.hermes.join(*asked(text, session), limit)

    def noted(self, what: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [line for line in lines if line["what"] == what]

    @property
    def requests(self) -> int:
        return len(self.noted("call"))

    @property
    def runs(self) -> int:
        return len(self.noted("run"))

    def close(self) -> None:
        self.gate.set()
        self.clients.close()
        self.api.close()


def asked(text: str, session: str = "s1") -> tuple[bytes, str, str, str]:
    message = {"role": "user", "content": text}
    body = json.dumps({"model": "m", "messages": [message], "stream": False}).encode()
    return body, session, "memory-of-1", f"donut:77:1:{text}"


def answered(text: str = "hi", session: str | None = "s1") -> Answered:
    return Answered(f"answer to {text}", session, cut=False)


def kind(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed)
    return outcome.kind


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    with Deadlines.running() as deadlines:
        place = Place(tmp_path)
        place.deadlines = deadlines
        yield place
        place.close()


# --- one call


def test_a_turn(place) -> None:
    assert place.turn() == answered()
    call = place.api.calls[0]
    assert (call.session, call.session_key, call.key, call.text) == (
        "s1",
        "memory-of-1",
        "donut:77:1:hi",
        "hi",
    )
    assert place.requests == 1 and place.stopping.waits == []


def test_turns_use_one_connection(place) -> None:
    for number in range(5):
        assert place.turn(f"no. {number}") == answered(f"no. {number}")
    assert wait(lambda: place.api.drop_idle() == 1, 5)


def test_the_path_of_a_profile(place) -> None:
    api = HermesApi(profiles=("default", "work"))
    hermes = Hermes(f"{api.base_url}/p/work", KEY, place.clients, place.stopping)
    assert isinstance(hermes.turn(*asked("hi"), LONG), Answered)
    api.close()


def test_KH05_the_session_id_that_comes_back(place) -> None:
    place.api.script(Answer("ok", session="s2"))
    assert place.turn() == Answered("ok", "s2", cut=False)


def test_KH06_the_error_sentence_of_a_failed_turn_is_no_answer(place) -> None:
    place.api.script(Answer("The provider said: HTTP 500.", failed=True))
    outcome = place.turn()
    assert kind(outcome) == "answer" and "HTTP 500" not in str(outcome)
    # A repeat would only bring the same result again.
    assert place.requests == 1


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_what_is_the_fault_of_the_message_is_not_tried_again(place, status) -> None:
    place.api.fail(Fault(status=status), math.inf)
    assert place.turn() == Rejected(status)
    assert place.requests == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405, 302, 500, 502, 504, 204])
def test_other_failures_are_not_tried_again(place, status) -> None:
    place.api.fail(Fault(status=status, body=b"" if status == 204 else None), math.inf)
    assert isinstance(place.turn(), Failed)
    assert place.requests == 1 and place.stopping.waits == []


def test_a_wrong_key_and_a_wrong_address_are_errors_in_the_log(place, caplog) -> None:
    place.hermes = place.caller(place.stopping, key="another-key-0123456789")
    assert kind(place.turn()) == "auth"
    place.hermes = place.caller(place.stopping, path="/p/none")
    assert kind(place.turn()) == "address"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2 and "HERMES_API_KEY" in told[0] and "HERMES_BASE_URL" in told[1]


def test_a_redirect_is_not_followed(place) -> None:
    other = HermesApi()
    place.api.fail(Fault(status=307, headers={"Location": other.base_url + CHAT}))
    assert kind(place.turn()) == "address"
    assert not other.calls
    other.close()


def test_an_answer_that_is_too_large(place) -> None:
    place.clients = Clients(lambda: HttpClient(place.deadlines, body_limit=10_000), 8)
    place.hermes = place.caller(place.stopping)
    place.api.script(Answer("long " * 3000))
    assert kind(place.turn()) == "too_large"
    assert place.requests == 1


# --- a Hermes that is busy


@pytest.mark.parametrize("status", [429, 503, 408, 425])
def test_a_busy_hermes_is_waited_for(place, status) -> None:
    place.api.fail(Fault(status=status, headers={"Retry-After": "7"}), 3)
    assert place.turn() == answered()
    assert place.stopping.waits == [7.0] * 3 and place.runs == 1


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": formatdate(NOON + 9, usegmt=True)}, 9.0),
        ({"Retry-After": formatdate(NOON - 9, usegmt=True)}, 0.2),
        ({"Retry-After": "0"}, 0.2),
        ({"Retry-After": "soon"}, 0.2),
        ({}, 0.2),
    ],
)
def test_how_long_a_busy_hermes_is_waited_for(place, headers, waits) -> None:
    place.api.fail(Fault(status=429, headers=headers))
    assert place.turn() == answered()
    assert place.stopping.waits == [waits]


def test_a_hermes_that_stays_busy_is_a_failure_within_the_time(place) -> None:
    place.api.fail(Fault(status=429, headers={"Retry-After": "10"}), math.inf)
    assert kind(place.turn(limit=45.0)) == "busy"
    assert place.stopping.waits == [10.0] * 4 and place.requests == 5


def test_without_a_word_from_hermes_the_waits_grow(place) -> None:
    place.hermes = place.caller(place.stopping, rand=1.0)
    place.api.fail(Fault(status=503), math.inf)
    assert kind(place.turn(limit=60.0)) == "busy"
    assert [round(seconds, 1) for seconds in place.stopping.waits[:5]] == [1.2, 2.2, 4.2, 8.2, 10.2]


def test_a_wait_that_would_outlast_the_call_is_not_begun(place) -> None:
    place.api.fail(Fault(status=503, headers={"Retry-After": "31"}), math.inf)
    assert kind(place.turn(limit=30.0)) == "busy"
    assert place.stopping.waits == [] and place.requests == 1


# --- no connection


def test_a_connection_is_tried_again_for_ten_seconds(place) -> None:
    place.api.refuse()
    outcome = place.turn(limit=120.0)
    assert kind(outcome) == "connect" and "Connection refused" in str(outcome)
    assert CONNECT_WITHIN - 1 < sum(place.stopping.waits) < CONNECT_WITHIN
    assert place.stopping.waits[0] == 0.05


def test_or_for_as_long_as_the_call_may_take_if_that_is_shorter(place) -> None:
    place.api.refuse()
    assert kind(place.turn(limit=3.0)) == "connect"
    assert 2 < sum(place.stopping.waits) < 3


def test_a_hermes_that_comes_up_in_time(place) -> None:
    place.api.stop()
    threading.Timer(0.2, place.api.start).start()
    place.hermes = place.caller(threading.Event())
    assert place.turn() == answered()
    assert place.runs == 1


def test_the_ten_seconds_begin_anew_when_hermes_was_there_in_between(place) -> None:
    real_wait = place.stopping.wait

    def waiting(timeout: float) -> bool:
        if timeout == 40.0:
            place.api.refuse()
            assert wait(place.api.drop_idle, 5)
        if len(place.stopping.waits) == 20:
            place.api.accept()
        return bool(real_wait(timeout))

    place.stopping.wait = waiting
    place.api.fail(Fault(status=429, headers={"Retry-After": "40"}))
    assert place.turn(limit=120.0) == answered()
    assert place.stopping.waits[0] == 40.0 and len(place.stopping.waits) > 20


# --- a connection that breaks


@pytest.mark.parametrize("fault", [Fault(drop="late"), Fault(drop="late", reset=True)])
def test_a_run_whose_connection_broke_is_joined(place, fault) -> None:
    place.api.fail(fault)
    assert place.turn() == answered()
    assert (place.requests, place.runs) == (2, 1)
    assert [call["joined"] for call in place.noted("call")] == [False, True]


@pytest.mark.parametrize("drop", ["before", "after", "midway"])
def test_wherever_it_breaks_one_run_is_made(place, drop) -> None:
    place.turn("first")
    place.api.fail(Fault(drop=drop))
    assert place.turn() == answered()
    assert place.runs == 2


def test_one_that_breaks_again_is_a_failure(place) -> None:
    place.api.fail(Fault(drop="late"), math.inf)
    assert kind(place.turn()) == "broken"
    assert (place.requests, place.runs) == (2, 1)


def test_an_idle_connection_that_hermes_had_closed(place) -> None:
    place.turn("first")
    assert wait(lambda: place.api.drop_idle() == 1, 5)
    assert place.turn() == answered()
    assert place.runs == 2


def test_no_second_run_is_begun_in_another_process(place) -> None:
    place.on_run = place.api.restart
    assert kind(place.turn()) == "restarted"
    assert (place.requests, place.runs) == (1, 1)


def test_nor_where_it_is_not_known_which_process_it_is(place) -> None:
    place.api.fail(Fault(status=404), math.inf, HEALTH)
    place.api.fail(Fault(drop="late"))
    assert kind(place.turn()) == "restarted"
    assert (place.requests, place.runs) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"x", b'{"pid": null}', b'{"pid": true}', b'{"pid": "7"}', b"[" * 99_999],
)
def test_an_answer_without_a_process_id_says_nothing(place, body) -> None:
    place.api.fail(Fault(status=200, body=body), math.inf, HEALTH)
    place.api.fail(Fault(drop="late"))
    assert kind(place.turn()) == "restarted"


def test_a_restart_between_two_turns_is_noticed_by_the_connection(place) -> None:
    """Otherwise the run would count as one of the process that is gone, and not be joined."""
    assert place.turn("first") == answered("first")
    place.api.restart()
    place.api.fail(Fault(drop="late"))
    assert place.turn("second") == answered("second")
    place.api.restart()
    assert place.turn("wait", 0.5) == TimedOut()
    place.gate.set()
    assert place.join("wait") == answered("wait")
    assert place.runs == 3


def test_where_it_is_known_nobody_is_asked(place) -> None:
    assert place.turn("first") == answered("first")
    place.api.fail(Fault(hang=True), math.inf, HEALTH)
    assert place.turn("second", 1.0) == answered("second")


def test_what_another_call_has_learned_since_is_not_the_process_that_had_the_run(place) -> None:
    place.api.fail(Fault(drop="late"))
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(place.turn("wait")))
    thread.start()
    assert wait(lambda: place.api.calls, 5)
    # Another process answers, and a failure of another worker makes the next one ask for it.
    place.api.pid += 1
    place.api.fail(Fault(status=500))
    assert kind(place.turn("failing")) == "status"
    assert place.turn("other") == answered("other")
    place.gate.set()
    thread.join(LONG)
    assert [kind(outcome) for outcome in outcomes] == ["restarted"]
    assert [call["text"] for call in place.noted("call")].count("wait") == 1


def test_a_health_page_that_hangs_delays_but_does_not_fail_a_turn(place) -> None:
    place.api.fail(Fault(hang=True), 1, HEALTH)
    began = time.monotonic()
    assert place.turn() == answered()
    assert 2.5 < time.monotonic() - began < 10


# --- time


def test_KH04_a_call_that_is_out_of_time_is_not_made_again(place) -> None:
    began = time.monotonic()
    assert place.turn("wait", 0.5) == TimedOut()
    assert 0.5 <= time.monotonic() - began < 5
    assert (place.requests, place.runs) == (1, 1)


def test_KH04_nor_after_a_first_try_that_was_refused(place) -> None:
    place.api.fail(Fault(status=503, headers={"Retry-After": "1"}))
    assert place.turn("wait", 1.5) == TimedOut()
    assert (place.requests, place.runs) == (2, 1)


def test_an_answer_that_drips_is_out_of_time(place) -> None:
    place.api.fail(Fault(drip=0.05))
    began = time.monotonic()
    assert place.turn(limit=1.0) == TimedOut()
    assert 1.0 <= time.monotonic() - began < 5


def test_KH31_a_run_that_stalls_is_joined_and_its_late_answer_comes(place) -> None:
    assert place.turn("wait", 0.4) == TimedOut()
    threading.Timer(0.3, place.gate.set).start()
    assert place.join("wait") == answered("wait")
    assert (place.requests, place.runs) == (2, 1)
    assert [call["joined"] for call in place.noted("call")] == [False, True]


def test_the_join_has_an_end_too(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    assert place.join("wait", 0.3) == TimedOut()
    assert (place.requests, place.runs) == (2, 1)
    # It was the only one.
    assert kind(place.join("wait", 0.3)) == "restarted"
    assert place.requests == 2


def test_a_run_that_has_ended_in_between_is_still_found(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    place.gate.set()
    assert wait(lambda: place.noted("ran"), 5)
    assert place.join("wait") == answered("wait")
    assert place.runs == 1


def test_a_join_begins_no_run_in_another_process(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    place.api.restart()
    assert kind(place.join("wait")) == "restarted"
    assert (place.requests, place.runs) == (1, 1)


def test_nor_one_that_restarts_while_it_waits(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    threading.Timer(0.3, place.api.restart).start()
    assert kind(place.join("wait")) == "restarted"
    assert place.runs == 1


def test_a_join_waits_for_a_hermes_that_is_busy(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    place.api.fail(Fault(status=429, headers={"Retry-After": "5"}), 2)
    place.gate.set()
    assert place.join("wait") == answered("wait")
    assert place.stopping.waits == [5.0, 5.0] and place.runs == 1


def test_a_join_whose_connection_breaks_is_made_again(place) -> None:
    assert place.turn("wait", 0.3) == TimedOut()
    place.gate.set()
    place.api.fail(Fault(drop="late"))
    assert place.join("wait") == answered("wait")
    assert place.runs == 1


def test_a_turn_that_had_to_wait_for_hermes_can_be_joined(place) -> None:
    place.api.stop()
    threading.Timer(0.2, place.api.start).start()
    place.hermes = place.caller(threading.Event())
    assert place.turn("wait", 2.0) == TimedOut()
    place.gate.set()
    assert place.join("wait") == answered("wait")
    assert place.runs == 1


# --- the stop


def stopped_in(seconds: float, work: Callable[[threading.Event], Outcome]) -> tuple[Outcome, float]:
    """What comes of work that is told to stop after so long, and how long it went on then."""
    stopping = threading.Event()
    told = []

    def stop() -> None:
        told.append(time.monotonic())
        stopping.set()

    timer = threading.Timer(seconds, stop)
    timer.start()
    outcome = work(stopping)
    ended = time.monotonic()
    timer.join()
    return outcome, ended - told[0]


def test_a_stop_ends_the_wait_for_a_busy_hermes(place) -> None:
    place.api.fail(Fault(status=503, headers={"Retry-After": "20"}), math.inf)

    def work(stopping: threading.Event) -> Outcome:
        return place.caller(stopping).turn(*asked("hi"), LONG)

    outcome, after = stopped_in(0.3, work)
    assert outcome == Unsettled() and after < 0.3


def test_a_stop_ends_the_tries_to_connect(place) -> None:
    place.api.refuse()

    def work(stopping: threading.Event) -> Outcome:
        return place.caller(stopping, rand=1.0).turn(*asked("hi"), LONG)

    # The third wait lasts from 0.85 to 1.9 s.
    outcome, after = stopped_in(1.1, work)
    assert outcome == Unsettled() and after < 0.3


def test_after_a_stop_nothing_is_begun(place) -> None:
    place.stopping.set()
    assert place.turn() == Unsettled()
    assert place.join() == Unsettled()
    assert not place.journal.exists() or place.requests == 0


def test_a_stop_lets_a_call_in_progress_go_on(place) -> None:
    threading.Timer(0.5, place.gate.set).start()

    def work(stopping: threading.Event) -> Outcome:
        return place.caller(stopping).turn(*asked("wait"), LONG)

    outcome, _ = stopped_in(0.2, work)
    assert outcome == answered("wait")


def test_a_call_that_breaks_during_a_stop_is_left_to_the_next_start(place) -> None:
    place.api.fail(Fault(drop="late"), math.inf)
    threading.Timer(0.5, place.gate.set).start()

    def work(stopping: threading.Event) -> Outcome:
        return place.caller(stopping).turn(*asked("wait"), LONG)

    outcome, _ = stopped_in(0.2, work)
    assert outcome == Unsettled()
    assert place.requests == 1


@pytest.mark.parametrize("join", [False, True])
def test_the_end_of_the_grace_ends_a_call_in_progress(place, join) -> None:
    stopping = threading.Event()
    place.hermes = place.caller(stopping)
    if join:
        assert place.turn("wait", 0.3) == TimedOut()
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(place.join("wait") if join else place.turn("wait"))
    )
    thread.start()
    assert wait(lambda: place.journal.exists() and place.requests == 1 + join, 5)
    stopping.set()
    began = time.monotonic()
    place.deadlines.shut_all()
    thread.join(LONG)
    assert outcomes == [Unsettled()] and time.monotonic() - began < 0.5


def test_it_is_left_to_the_next_start_also_when_it_had_broken_before(place) -> None:
    stopping = threading.Event()
    hermes = place.caller(stopping)
    place.api.fail(Fault(drop="after"))
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(hermes.turn(*asked("wait"), LONG)))
    thread.start()
    assert wait(lambda: place.api.calls, 5)
    stopping.set()
    place.deadlines.shut_all()
    thread.join(LONG)
    assert outcomes == [Unsettled()]


# --- secrets


def test_KH22_neither_key_nor_content_is_told(tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    secret, content = "SECRET123-SECRET123", "what was said in the chat"
    with Deadlines.running() as deadlines:
        place = Place(tmp_path)
        place.deadlines = deadlines
        outcomes: list[Outcome] = []
        for fault in (
            Fault(status=401, body=secret.encode()),
            Fault(status=500, body=f"{secret} {content}".encode()),
            Fault(status=302, headers={"Location": f"/{secret}"}),
            Fault(status=200, body=f"<p>{secret} {content}".encode()),
            Fault(status=400, body=secret.encode()),
            Fault(drop="midway"),
        ):
            place.api.fail(fault, math.inf)
            place.hermes = place.caller(place.stopping, key=secret)
            outcomes.append(place.turn(content))
            place.api.mend()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        hermes = Hermes(f"http://127.0.0.1:{port}", secret, place.clients, place.stopping)
        outcomes.append(hermes.turn(*asked(content), 0.5))
        place.close()
    told = caplog.text + "".join(map(str, outcomes))
    assert len(outcomes) == 7 and not any(isinstance(outcome, Answered) for outcome in outcomes)
    assert secret not in told and content not in told
