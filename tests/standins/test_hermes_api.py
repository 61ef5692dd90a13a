"""The scripted Hermes API server: each rule of the real one that it keeps, and what it can be told.

The sections are those of the facts about real servers: 2.2 bodies, 2.3 completions, 2.4 sessions,
2.5 idempotency, 2.6 concurrency, 2.7 clients that leave.
"""

import http.client
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermes_bridges.standins.hermes_api import CHAT, KEY, Answer, Call, Fault, HermesApi
from tests.conftest import wait


class Got(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.json["choices"][0]["message"]["content"]

    @property
    def message(self) -> str:
        return self.json["error"]["message"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A server with a journal, and clients for it."""

    def __init__(self, journal: Path) -> None:
        self.clock = Clock()
        self.gate = threading.Event()
        self.journal = journal
        self.api = HermesApi(self.brain, journal=str(journal), clock=self.clock)
        self.port = int(self.api.base_url.rpartition(":")[2])
        self.pool = ThreadPoolExecutor(16)

    def brain(self, call: Call) -> Answer:
        if call.text.startswith("wait"):
            assert self.gate.wait(10)
        return Answer(f"{call.turn}: {call.text}")

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Got:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Got(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Got:
        return self.ask("GET", path, Authorization=f"Bearer {KEY}")

    def chat(
        self,
        content: object = "hi",
        session: str = "s",
        key: str | None = None,
        more: Mapping[str, object] = {},
        headers: Mapping[str, str] = {},
    ) -> Got:
        body = {"model": "m", "messages": [{"role": "user", "content": content}]} | {**more}
        own = {"Authorization": f"Bearer {KEY}", "X-Hermes-Session-Id": session} | {**headers}
        if key is not None:
            own["Idempotency-Key"] = key
        return self.ask("POST", CHAT, json.dumps(body).encode(), **own)

    def later(self, *arguments: Any, **more: Any) -> "Future[Got]":
        return self.pool.submit(self.chat, *arguments, **more)

    def notes(self, what: str) -> list[dict[str, Any]]:
        lines = self.journal.read_text().splitlines()
        return [note for note in map(json.loads, lines) if note["what"] == what]

    def close(self) -> None:
        self.gate.set()
        self.api.close()
        self.pool.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "journal")
    yield made
    made.close()


# --- 2.1, 2.2


def test_health_needs_no_key(place: Place) -> None:
    for path in ("/health", "/v1/health"):
        got = place.ask("GET", path)
        health = {"status": "ok", "platform": "hermes-agent", "version": "0.22.2.post1"}
        assert (got.status, got.json) == (200, health)


def test_detailed_health_needs_the_key_and_names_the_process(place: Place) -> None:
    assert place.ask("GET", "/health/detailed").status == 401
    told = place.get("/health/detailed").json
    assert told["pid"] == place.api.pid and told["gateway_state"] == "running"
    assert (told["active_agents"], told["gateway_busy"]) == (0, False)
    waiting = place.later("wait")
    assert wait(lambda: place.api.active == 1, 10)
    assert place.get("/health/detailed").json["gateway_busy"] is True
    place.gate.set()
    waiting.result(10)
    place.api.restart()
    assert place.get("/health/detailed").json["pid"] != told["pid"]


def test_the_models_need_the_key(place: Place) -> None:
    assert place.ask("GET", "/v1/models").status == 401
    told = place.get("/v1/models").json
    assert told["object"] == "list" and [model["id"] for model in told["data"]] == ["hermes-agent"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"bearer {KEY}", KEY, "Bearer ä"])
def test_a_wrong_key_is_refused_word_for_word(place: Place, header: str | None) -> None:
    more = {} if header is None else {"Authorization": header}
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    got = place.ask("POST", CHAT, body, **more)
    assert got.status == 401 and got.headers["Content-Type"] == "application/json; charset=utf-8"
    assert got.body == (
        b'{"error": {"message": "Invalid gateway API key (API_SERVER_KEY)",'
        b' "type": "gateway_auth_error", "code": "gateway_auth_failed"}}'
    )
    assert place.notes("run") == []


@pytest.mark.parametrize(
    "method, path, status, body",
    [
        ("GET", "/v2/models", 404, b"404: Not Found"),
        ("GET", CHAT, 405, b"405: Method Not Allowed"),
        ("POST", "/health", 405, b"405: Method Not Allowed"),
    ],
)
def test_unknown_paths_and_methods_are_told_in_plain_text(
    place: Place, method: str, path: str, status: int, body: bytes
) -> None:
    got = place.ask(method, path)
    assert (got.status, got.body) == (status, body)
    assert got.headers["Content-Type"].startswith("text/plain")


def test_profiles_have_paths_of_their_own(place: Place) -> None:
    assert place.ask("GET", "/p/default/health").status == 200
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    bearer = f"Bearer {KEY}"
    assert place.ask("POST", f"/p/default{CHAT}", body, Authorization=bearer).text == "1: hi"
    got = place.ask("POST", f"/p/other{CHAT}", body, Authorization=bearer)
    assert (got.status, got.body) == (404, b'{"error": "Unknown or unconfigured profile"}')


@pytest.mark.parametrize(
    "body, message",
    [
        (b"{", "Invalid JSON in request body"),
        (b"[" * 100_000, "Invalid JSON in request body"),
        (b"\xff", "Invalid JSON in request body"),
        (b"[]", "Missing or invalid 'messages' field"),
        (b"{}", "Missing or invalid 'messages' field"),
        (b'{"messages": "hi"}', "Missing or invalid 'messages' field"),
        (b'{"messages": ["hi"]}', "Missing or invalid 'messages' field"),
        (
            b'{"messages": [{"role": "user", "content": " "}]}',
            "No user message found in messages",
        ),
        (
            b'{"messages": [{"role": "system", "content": "x"}]}',
            "No user message found in messages",
        ),
        (b'{"messages": [{"role": "user"}]}', "No user message found in messages"),
    ],
)
def test_bodies_that_are_refused(place: Place, body: bytes, message: str) -> None:
    got = place.ask("POST", CHAT, body, Authorization=f"Bearer {KEY}")
    assert (got.status, got.message) == (400, message)
    assert got.json["error"]["type"] == "invalid_request_error"
    assert place.api.active == 0


def test_parts_of_a_message(place: Place) -> None:
    text = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert place.chat(text).text == "1: a\nb"
    got = place.chat([{"type": "file"}])
    assert (got.status, got.json["error"]["code"]) == (400, "unsupported_content_type")
    assert got.json["error"]["param"] == "messages[0].content"


def test_a_body_that_is_too_large(place: Place) -> None:
    got = place.chat("x" * 10_000_000)
    assert (got.status, got.json["error"]["code"]) == (413, "body_too_large")
    assert got.message == "Request body too large."


def test_a_long_text_is_cut_without_a_word(place: Place) -> None:
    place.chat("x" * 70_000)
    assert place.api.calls[-1].text == "x" * 65_536


def test_it_does_not_stream(place: Place) -> None:
    assert place.chat(more={"stream": True}).status == 501


# --- 2.3


def test_a_completion(place: Place) -> None:
    got = place.chat()
    assert got.status == 200
    told = got.json
    assert told["id"].startswith("chatcmpl-") and len(told["id"]) == 38
    assert (told["object"], told["model"]) == ("chat.completion", "m")
    message = {"role": "assistant", "content": "1: hi"}
    assert told["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
    assert set(told["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert "hermes" not in told and "X-Hermes-Completed" not in got.headers


def test_a_failed_turn_with_a_text_is_a_200(place: Place) -> None:
    place.api.script(Answer("It broke, sorry.", failed=True, error="HTTP 500: broken"))
    got = place.chat()
    assert (got.status, got.text) == (200, "It broke, sorry.")
    assert got.json["choices"][0]["finish_reason"] == "error"
    assert got.json["hermes"] == {
        "completed": False,
        "partial": False,
        "failed": True,
        "error": "HTTP 500: broken",
        "error_code": "agent_error",
    }
    assert got.headers["X-Hermes-Completed"] == got.headers["X-Hermes-Partial"] == "false"
    assert got.headers["X-Hermes-Error"] == "HTTP 500: broken"


def test_a_failed_turn_without_a_text_is_a_502(place: Place) -> None:
    place.api.script(Answer(failed=True, error="Error code: 400"))
    got = place.chat()
    assert (got.status, got.message) == (502, "Error code: 400")
    assert got.json["error"]["code"] == "agent_incomplete"
    assert got.json["error"]["hermes"] == {"completed": False, "partial": False, "failed": True}
    assert got.headers["X-Hermes-Completed"] == "false"


def test_a_truncated_turn(place: Place) -> None:
    place.api.script(Answer("Half of", partial=True, error="response truncated"))
    got = place.chat()
    assert got.json["choices"][0]["finish_reason"] == "length"
    assert got.json["hermes"]["error_code"] == "output_truncated"
    assert (
        got.headers["X-Hermes-Completed"] == "false" and got.headers["X-Hermes-Partial"] == "true"
    )


@pytest.mark.parametrize("reason", ["length", "content_filter", None])
def test_a_finish_reason_on_demand(place: Place, reason: str | None) -> None:
    place.api.script(Answer("x", finish_reason=reason))
    choice = place.chat().json["choices"][0]
    assert choice.get("finish_reason", None) == reason
    assert ("finish_reason" in choice) is (reason is not None)


def test_a_raw_answer_of_a_run(place: Place) -> None:
    place.api.script(Answer(body=b"<html>", status=203, headers={"X-Hermes-Session-Id": ""}))
    got = place.chat()
    assert (got.status, got.body, got.headers["X-Hermes-Session-Id"]) == (203, b"<html>", "")


# --- 2.4


@pytest.mark.parametrize("session", ["tg:123", "a/b", "a b", "a..b", "C:x", "ä"])
def test_session_ids_that_are_refused(place: Place, session: str) -> None:
    got = place.chat(session=session)
    assert (got.status, got.message) == (400, "Invalid session ID")


def test_session_ids_and_keys_have_a_longest(place: Place) -> None:
    longest = "x" * 256
    got = place.chat(session=longest, headers={"X-Hermes-Session-Key": longest})
    assert got.headers["X-Hermes-Session-Id"] == got.headers["X-Hermes-Session-Key"] == longest
    assert place.chat(session=longest + "x").message == "Session ID too long"
    got = place.chat(headers={"X-Hermes-Session-Key": longest + "x"})
    assert (got.status, got.message) == (400, "Session key too long")


def test_each_session_has_its_turns_also_after_a_restart(place: Place) -> None:
    assert [place.chat(session=name).text[0] for name in "aaba"] == ["1", "2", "1", "3"]
    place.api.restart()
    assert place.chat(session="a").text[0] == "4"
    place.api.script(Answer("moved", session="a2"))
    assert place.chat(session="a").headers["X-Hermes-Session-Id"] == "a2"
    got = place.chat(session="a2")
    assert (got.text[0], got.headers["X-Hermes-Session-Id"]) == ("6", "a2")


def test_without_an_id_the_beginning_is_the_session(place: Place) -> None:
    one, two, other = (place.chat(text, session="") for text in ("x", "x", "y"))
    assert one.headers["X-Hermes-Session-Id"] == two.headers["X-Hermes-Session-Id"]
    assert other.headers["X-Hermes-Session-Id"] != one.headers["X-Hermes-Session-Id"]
    assert two.text == "2: x" and "X-Hermes-Session-Key" not in two.headers


# --- 2.5


def test_a_repeated_key_gets_the_result_of_the_one_run(place: Place) -> None:
    first, second = place.chat(key="k"), place.chat(key="k")
    assert first.text == second.text and first.json["id"] != second.json["id"]
    assert len(place.notes("run")) == 1
    assert [note["joined"] for note in place.notes("call")] == [False, True]


def test_a_repeated_key_joins_a_run_that_goes_on(place: Place) -> None:
    calls = [place.later("wait", key="k") for _ in range(4)]
    assert wait(lambda: len(place.notes("call")) == 4, 10)
    assert len(place.notes("run")) == 1 and place.notes("done") == []
    place.gate.set()
    assert {call.result(10).text for call in calls} == {"1: wait"}


@pytest.mark.parametrize(
    "more, runs",
    [
        ({"messages": [{"role": "user", "content": "other"}]}, 2),
        ({"model": "other"}, 2),
        ({"tools": []}, 2),
        ({"tool_choice": "none"}, 2),
        ({"stream": False}, 2),
        ({"user": "other", "temperature": 1}, 1),
    ],
)
def test_only_the_same_body_gets_it(place: Place, more: dict[str, object], runs: int) -> None:
    place.chat(key="k")
    assert place.chat(key="k", more=more).status == 200
    assert len(place.notes("run")) == runs


def test_another_body_takes_the_place_of_the_first(place: Place) -> None:
    for text in ("a", "b", "b", "a"):
        place.chat(text, key="k")
    assert [note["joined"] for note in place.notes("call")] == [False, False, True, False]


def test_failed_results_come_back_too(place: Place) -> None:
    place.api.script(Answer("broke", failed=True), Answer("fine"))
    assert [place.chat(key="k").text for _ in range(2)] == ["broke", "broke"]
    assert place.chat(key="other").text == "fine"


def test_results_are_kept_for_300_seconds_from_their_end(place: Place) -> None:
    place.chat(key="k")
    place.clock.now = 300
    assert place.chat(key="k").text == "1: hi"
    place.clock.now = 300.1
    assert place.chat(key="k").text == "2: hi"


def test_1000_results_are_kept(place: Place) -> None:
    for number in range(1000):
        place.chat(key=str(number))
    place.chat(key="0")
    assert len(place.notes("run")) == 1000
    place.chat(key="1000")
    place.chat(key="1")
    assert len(place.notes("run")) == 1001
    place.chat(key="0")
    assert len(place.notes("run")) == 1002


def test_without_a_key_each_request_is_a_run(place: Place) -> None:
    for _ in range(2):
        place.chat()
    assert len(place.notes("run")) == 2


def test_nothing_is_kept_over_a_restart(place: Place) -> None:
    place.chat(key="k")
    place.api.restart()
    assert place.chat(key="k").text == "2: hi"


def test_a_kill_ends_runs_without_an_answer(place: Place) -> None:
    place.api.script(Answer("never", delay=None))
    calls = [place.later(key="k") for _ in range(2)]
    assert wait(lambda: place.api.active == 2, 10)
    place.api.stop()
    for call in calls:
        with pytest.raises((http.client.HTTPException, OSError)):
            call.result(10)
    with pytest.raises(ConnectionRefusedError):
        place.chat()
    assert wait(lambda: place.api.active == 0, 10) and place.notes("ran") == []
    place.api.start()
    assert place.chat(key="k").status == 200


def test_a_brain_that_breaks_leaves_nobody_waiting(place: Place) -> None:
    place.gate.set()

    def broken(call: Call) -> Answer:
        raise OSError(call.text)

    place.api.close()
    place.api = HermesApi(broken)
    place.port = int(place.api.base_url.rpartition(":")[2])
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            place.chat(key="k")
    assert wait(lambda: place.api.active == 0, 10)


# --- 2.6


def test_no_more_than_the_cap_are_at_work_and_joining_counts(place: Place) -> None:
    calls = [place.later("wait", session=f"s{n}", key=str(n // 2)) for n in range(10)]
    assert wait(lambda: place.api.active == 10, 10)
    got = place.chat(key="1")
    assert (got.status, got.headers["Retry-After"]) == (429, "1")
    assert got.body == (
        b'{"error": {"message": "Too many concurrent runs (max 10)", "type": "rate_limit_error",'
        b' "param": null, "code": "rate_limit_exceeded"}}'
    )
    place.gate.set()
    assert {call.result(10).status for call in calls} == {200}
    assert place.chat().status == 200


def test_without_a_cap(place: Place) -> None:
    place.api.cap = 0
    calls = [place.later("wait", session=f"s{n}") for n in range(14)]
    assert wait(lambda: place.api.active == 14, 10)
    place.gate.set()
    assert {call.result(10).status for call in calls} == {200}


def test_turns_of_one_session_overlap_and_it_shows(place: Place) -> None:
    calls = [place.later(f"wait {n}") for n in range(2)]
    assert wait(lambda: place.api.active == 2, 10)
    place.gate.set()
    assert {call.result(10).text for call in calls} == {"1: wait 0", "1: wait 1"}
    assert len(place.notes("run")) == 2
    assert place.notes("run")[1]["t"] <= place.notes("ran")[0]["t"]


def test_a_draining_server_refuses_turns_and_finishes_its_own(place: Place) -> None:
    running = place.later("wait")
    assert wait(lambda: place.api.active == 1, 10)
    place.api.draining = True
    got = place.chat()
    assert (got.status, got.headers["Retry-After"]) == (503, "1")
    assert got.body == (
        b'{"error": {"message": "Gateway is draining existing work; retry shortly.",'
        b' "type": "invalid_request_error", "param": null, "code": "gateway_draining"}}'
    )
    assert place.ask("GET", "/health").status == 200
    assert place.get("/health/detailed").json["gateway_state"] == "draining"
    place.gate.set()
    assert running.result(10).status == 200
    place.api.restart()
    assert place.chat().status == 200


# --- 2.7


def test_a_run_goes_on_when_its_client_leaves(place: Place) -> None:
    body = b'{"messages": [{"role": "user", "content": "wait"}]}'
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    more = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": "k", "X-Hermes-Session-Id": "s"}
    connection.request("POST", CHAT, body, more)
    assert wait(lambda: place.api.active == 1, 10)
    connection.close()
    place.gate.set()
    assert wait(lambda: place.notes("done"), 10)
    assert place.notes("done")[0]["hung_up"] is True and len(place.notes("ran")) == 1
    assert place.ask("POST", CHAT, body, **more).text == "1: wait"
    assert wait(lambda: len(place.notes("done")) == 2, 10)
    assert place.notes("done")[-1]["hung_up"] is False and len(place.notes("run")) == 1


# --- what it can be told


def test_the_journal(place: Place) -> None:
    place.chat(key="k", headers={"X-Hermes-Session-Key": "sk"})
    place.chat(headers={"Authorization": "none"})
    assert wait(lambda: len(place.notes("done")) == 2, 10)
    notes = [json.loads(line) for line in place.journal.read_text().splitlines()]
    assert [note["what"] for note in notes] == ["call", "run", "ran", "done", "call", "done"]
    times = [note.pop("t") for note in notes]
    assert times == sorted(times) and abs(times[0] - time.monotonic()) < 60
    call = {"what": "call", "n": 1, "session": "s", "session_key": "sk", "key": "k", "text": "hi"}
    assert notes[0] == call | {"joined": False}
    assert notes[1] == {"what": "run", "n": 1, "key": "k", "session": "s"}
    assert notes[2] == {"what": "ran", "n": 1, "key": "k"}
    assert notes[3] == {"what": "done", "n": 1, "status": 200, "hung_up": False}
    assert (notes[4]["text"], notes[5]["status"]) == (None, 401)


def test_a_delay(place: Place) -> None:
    place.api.script(Answer("slow", delay=0.2))
    began = time.monotonic()
    assert place.chat().text == "slow" and time.monotonic() - began >= 0.2


def test_statuses_without_a_run(place: Place) -> None:
    place.api.fail(Fault(503, {"Retry-After": "7"}), 2)
    place.api.fail(Fault(500, body=b"<html>"))
    place.api.fail(Fault(302, {"Location": "/elsewhere"}))
    got = [place.chat(key="k") for _ in range(5)]
    assert [one.status for one in got] == [503, 503, 500, 302, 200]
    assert got[0].headers["Retry-After"] == "7" and got[2].body == b"<html>"
    assert got[3].headers["Location"] == "/elsewhere"
    assert len(place.notes("run")) == 1


def test_a_fault_lasts_until_it_is_mended_and_has_its_path(place: Place) -> None:
    place.api.fail(Fault(500), math.inf, "/health/detailed")
    assert [place.get("/health/detailed").status for _ in range(3)] == [500, 500, 500]
    assert place.get("/health").status == place.chat().status == 200
    place.api.mend()
    assert place.get("/health/detailed").status == 200


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "drop, runs", [("before", 0), ("after", 0), ("late", 1), ("midway", 1)], ids=str
)
def test_dropped_connections(place: Place, drop: Any, runs: int, reset: bool) -> None:
    place.api.fail(Fault(drop=drop, reset=reset))
    with pytest.raises((http.client.HTTPException, ConnectionError)) as failed:
        place.chat("x" * 100, key="k")
    assert isinstance(failed.value, http.client.IncompleteRead) is (
        drop == "midway" and not reset
    ) or (reset and isinstance(failed.value, ConnectionError))
    assert len(place.notes("run")) == runs
    assert place.chat("x" * 100, key="k").status == 200 and len(place.notes("run")) == 1
    place.api.fail(Fault(drop="before"), path="/health")
    with pytest.raises(http.client.RemoteDisconnected):
        place.get("/health")


def test_a_request_that_hangs(place: Place) -> None:
    place.api.fail(Fault(hang=True))
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=0.3)
    connection.request("POST", CHAT, b"{}")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert wait(lambda: place.notes("done"), 10) and place.notes("done")[0]["status"] is None


def test_a_dripping_answer(place: Place) -> None:
    place.api.fail(Fault(drip=0.001))
    began = time.monotonic()
    got = place.chat()
    assert got.text == "1: hi" and time.monotonic() - began > 0.001 * len(got.body)


def test_a_late_request_does_not_hold_up_the_end(place: Place) -> None:
    place.api.fail(Fault(delay=600))
    call = place.later()
    assert wait(lambda: not place.api._faults[CHAT], 10)
    began = time.monotonic()
    place.api.close()
    with pytest.raises((http.client.HTTPException, OSError)):
        call.result(10)
    assert time.monotonic() - began < 5


def test_connections_are_refused_while_runs_go_on(place: Place) -> None:
    running = place.later("wait")
    assert wait(lambda: place.api.active == 1, 10)
    pid = place.api.pid
    place.api.refuse()
    with pytest.raises(ConnectionRefusedError):
        place.chat()
    place.gate.set()
    assert running.result(10).text == "1: wait"
    place.api.accept()
    assert place.get("/health/detailed").json["pid"] == pid


def test_idle_connections_can_be_dropped(place: Place) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    assert wait(lambda: place.api.drop_idle() == 1, 10)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        connection.request("GET", "/health")
        connection.getresponse()
    connection.close()


def test_without_a_brain_it_echoes(tmp_path: Path) -> None:
    api = HermesApi(delay=0.05)
    connection = http.client.HTTPConnection(api.base_url.removeprefix("http://"), timeout=10)
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    answer: Callable[[], Any] = lambda: json.loads(connection.getresponse().read())  # noqa: E731
    began = time.monotonic()
    connection.request("POST", CHAT, body, {"Authorization": f"Bearer {KEY}"})
    assert answer()["choices"][0]["message"]["content"] == "1: hi"
    assert time.monotonic() - began >= 0.05
    connection.close()
    api.close()


def test_it_is_quick_enough_for_a_load(tmp_path: Path) -> None:
    api = HermesApi(journal=str(tmp_path / "journal"), cap=0)
    body = json.dumps({"messages": [{"role": "user", "content": "hello " * 20}]}).encode()

    keys = itertools.count()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(api.base_url.removeprefix("http://"), timeout=10)
        for _ in range(250):
            more = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": f"{next(keys)}"}
            connection.request("POST", CHAT, body, more)
            assert connection.getresponse().read()
        connection.close()

    def rate() -> float:
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client, range(4)))
        return 1000 / (time.monotonic() - began)

    # Thousands on an idle host; delayed acknowledgements would make it 100.
    assert any(rate() > 400 for _ in range(5))
    api.close()
