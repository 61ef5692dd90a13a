import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hermes_bridges.wishee.disk import Disk
from hermes_bridges.wishee.runjournal import RunJournal
from hermes_bridges.wishee.runs import LATER_MAX, REMEMBERED, SIZE_MAX, Remembered, Run
from hermes_bridges.wishee.sessionkeys import Chat
from hermes_bridges.wishee.turns import RUNS_MAX, Refused, Turns
from tests.wishee.hermes_host import SHORT, STORED, FakeHost, build

DEAD = "99999999-1"
USER = "user-1"


class Stage:
    """Runs on a loop, with a host, a journal and the runs that have ended."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.host = FakeHost()
        self.journal = RunJournal(str(path), disk)
        self.journal.load()
        self.ended: list[Run] = []
        self.mark = 0
        self.slow: list[asyncio.Event] = []
        self.now = 0.0
        self.turns = Turns(
            self.host, self.journal, self._end, self._mark, wall=lambda: 1e9, clock=lambda: self.now
        )

    def _end(self, run: Run) -> None:
        self.ended.append(run)
        self.journal.ended(run.run_id)

    async def _mark(self) -> int:
        if self.slow:
            await self.slow.pop(0).wait()
        return self.mark

    def start(self, text: str, key: str = SHORT, user: str = USER) -> Run:
        run, _ = self.turns.admit(key, text, user)
        self.turns.begin(run)
        return run

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.001)

    async def going(self, text: str, key: str = SHORT) -> Run:
        run = self.start(text, key)
        await self.until(lambda: text in self.host.turns)
        return run

    async def answered(self, text: str, result: str | Exception) -> Run:
        count = len(self.ended)
        self.host.answer(text, result)
        await self.until(lambda: len(self.ended) > count)
        return self.ended[-1]


@asynccontextmanager
async def stage(path: Path) -> AsyncIterator[Stage]:
    disk = Disk()
    made = Stage(path, disk)
    try:
        yield made
    finally:
        await made.turns.stop(5)
        assert disk.stop(5)


@pytest.fixture
def path(short_tmp: Path) -> Path:
    return short_tmp / "runs.json"


def left_by_the_dead(path: Path, *run_ids: str, key: str = SHORT, stored: str = STORED) -> None:
    disk = Disk()
    journal = RunJournal(str(path), disk, process=DEAD)
    journal.belong_to(USER)
    for run_id in run_ids:
        journal.started(run_id, key, stored, 1e9)
    assert disk.stop(5)


def test_a_turn_ends_with_what_it_returned(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            s.mark = 41
            run = await s.going("hello")
            assert len(s.turns) == 1 and s.turns.working() == {STORED}
            assert s.host.handled == [(Chat("dm", SHORT, SHORT, None), "hello")]
            assert (await s.answered("hello", " the answer ")) is run
            assert (run.text, run.error, run.mark, run.key) == ("the answer", "", 41, SHORT)
            assert len(s.turns) == 0 and len(s.journal) == 0
            assert s.turns.of_session(STORED) == [run]

    asyncio.run(scene())


def test_a_turn_that_raises_has_an_empty_result(path: Path, caplog: pytest.LogCaptureFixture):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("hello")
            s.turns.hear(SHORT, "half a word", False)
            run = await s.answered("hello", RuntimeError("no"))
            assert (run.text, run.error) == ("", "The turn failed.")
            assert run.recall().error

    asyncio.run(scene())
    assert "Traceback" in caplog.text and "half a word" not in caplog.text


def test_W4_a_message_waits_until_the_gateway_has_started(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            s.host.ready = False
            s.start("early")
            await asyncio.sleep(0.2)
            assert s.host.handled == [] and len(s.turns) == 1
            s.host.ready = True
            await s.until(lambda: "early" in s.host.turns)
            assert (await s.answered("early", "late answer")).text == "late answer"

    asyncio.run(scene())


def test_W11_a_second_message_is_absorbed_under_either_form_of_the_key(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            first = await s.going("first")
            s.host.at_once = {"second": "", "third": " "}
            s.start("second", STORED)
            s.start("third", SHORT)
            await s.until(lambda: s.turns.absorbed == 2)
            assert s.ended == [] and first.later == ["second", "third"]
            assert len(s.journal) == 1
            run = await s.answered("first", "for all of them")
            assert run is first and run.recall().later == ("second", "third")
            assert s.turns.of_session(STORED) == [first]

    asyncio.run(scene())


def test_a_second_message_with_an_answer_of_its_own_has_its_own_result(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("first")
            s.host.at_once = {"/status": "all is well"}
            second = s.start("/status")
            await s.until(lambda: s.ended)
            assert s.ended == [second] and second.text == "all is well"

    asyncio.run(scene())


def test_a_message_of_another_session_is_not_absorbed(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("first")
            s.host.at_once = {"other": ""}
            other = s.start("other", "another")
            await s.until(lambda: s.ended)
            assert s.ended == [other] and other.text == ""

    asyncio.run(scene())


def test_a_second_message_that_outlives_the_first_is_not_absorbed(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("first")
            second = await s.going("second")
            await s.answered("first", "one")
            assert (await s.answered("second", "")) is second
            assert s.turns.absorbed == 0

    asyncio.run(scene())


def test_messages_of_a_session_are_handed_over_in_order(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            gate = asyncio.Event()
            s.slow = [gate]
            first = s.start("first")
            s.host.at_once = {"second": ""}
            s.start("second", STORED)
            await s.going("of another session", "other")
            await asyncio.sleep(0.1)
            assert [text for _, text in s.host.handled] == ["of another session"]
            gate.set()
            await s.until(lambda: s.turns.absorbed)
            assert [text for _, text in s.host.handled][1:] == ["first", "second"]
            assert (await s.answered("first", "for both")) is first

    asyncio.run(scene())


def test_a_message_of_before_a_reset_is_not_handed_over_after_it(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            s.host.ready = False
            run = s.start("too late")
            await asyncio.sleep(0.02)
            s.turns.forget_session(STORED)
            assert s.ended == [run]
            s.host.ready = True
            await asyncio.sleep(0.2)
            assert s.host.handled == [] and s.ended == [run]

    asyncio.run(scene())


def test_W5_a_text_reaches_the_run_of_exactly_its_chat(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("one", "c1")
            await s.going("two", "c2")
            assert s.turns.hear("c2", "for two", True)
            assert not s.turns.hear("c", "for nobody", True)
            assert s.turns.foreign == 1
            assert (await s.answered("one", "")).text == ""
            assert (await s.answered("two", "")).text == "for two"
            assert not s.turns.hear("c2", "too late", True)

    asyncio.run(scene())


def test_W12_a_reset_forgets_what_was_and_ends_what_goes_on(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            s.host.at_once = {"old": "x"}
            s.start("old")
            await s.until(lambda: s.ended)
            first = await s.going("first")
            s.turns.hear(SHORT, "half a word", False)
            s.turns.forget_session(STORED)
            assert s.ended[1:] == [first] and first.text == ""
            assert s.turns.of_session(STORED) == [] and s.turns.working() == set()
            # A message of the new session has nothing to do with the old turn, nor that with it.
            await s.going("newest")
            s.host.answer("first", "too late")
            s.turns.hear(SHORT, "to the new one", False)
            assert (await s.answered("newest", "")).text == "to the new one"
            assert len(s.ended) == 3 and s.turns.absorbed == 0
            assert first not in s.turns.of_session(STORED)

    asyncio.run(scene())


def test_W26_the_number_of_runs_at_once_is_bounded(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            for number in range(RUNS_MAX):
                s.turns.admit(f"c{number}", "x", USER)
            with pytest.raises(Refused, match="too many runs"):
                s.turns.admit("one more", "x", USER)

    asyncio.run(scene())


def test_another_platforms_session_is_refused(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            with pytest.raises(Refused, match="another platform"):
                s.turns.admit("agent:main:telegram:dm:1", "x", USER)
            assert len(s.turns) == 0

    asyncio.run(scene())


def test_the_runs_of_another_user_are_given_up(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("of one")
            mine = s.start("of two", "c2", "user-2")
            await s.until(lambda: "of two" in s.host.turns)
            assert s.turns.forget_others("user-2") == 1
            s.host.answer("of one", "secret")
            assert (await s.answered("of two", "mine")) is mine
            assert s.ended == [mine]
            assert s.turns.of_session(STORED) == []

    asyncio.run(scene())


def test_W3_a_stop_gives_what_is_cut_off_an_empty_result(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            run = await s.going("hello")
            await s.turns.stop(5)
            assert s.ended == [run] and run.text == "" and run.error

    asyncio.run(scene())


@pytest.mark.parametrize("returned", ["", None])
def test_W3_a_turn_that_Hermes_will_go_on_with_stays_in_the_journal(path: Path, returned: object):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("hello")
            s.turns.hear(SHORT, "the gateway is about to stop", False)
            s.host.stopping = True
            if returned is not None:
                s.host.answer("hello", "")
                await s.until(lambda: len(s.turns) == 0)
            await s.turns.stop(5)
            assert s.ended == [] and len(s.journal) == 1

    asyncio.run(scene())


def test_W3_a_turn_that_ends_in_the_stop_has_its_result(path: Path):
    async def scene() -> None:
        async with stage(path) as s:
            await s.going("hello")
            s.host.stopping = True
            assert (await s.answered("hello", "just in time")).text == "just in time"
            await s.going("more")
            s.turns.hear(SHORT, "marked", True)
            assert (await s.answered("more", "")).text == "marked"
            s.host.goes_on = False
            await s.going("last")
            assert (await s.answered("last", "")).text == ""

    asyncio.run(scene())


def test_W3_the_run_of_a_dead_process_has_an_empty_result_and_is_shown_as_failed(path: Path):
    left_by_the_dead(path, "run-1", "run-2")

    async def scene() -> None:
        async with stage(path) as s:
            s.host.ready = False
            s.turns.adopt(USER, {"run-2"})
            s.turns.adopt(USER, {"run-2"})
            assert [run.run_id for run in s.turns.of_session(STORED)] == ["run-1"]
            await asyncio.sleep(0.2)
            assert s.ended == [], "the gateway may go on with it when it has started"
            s.host.ready = True
            await s.until(lambda: s.ended)
            await asyncio.sleep(0.1)
            (run,) = s.ended
            assert (run.run_id, run.key, run.text) == ("run-1", SHORT, "")
            assert "stopped" in run.error and len(s.journal) == 0

    asyncio.run(scene())


def test_W3_an_interrupted_turn_that_Hermes_takes_up_has_that_answer(path: Path):
    left_by_the_dead(path, "run-1")

    async def scene() -> None:
        async with stage(path) as s:
            s.host.resumes_within = 120.0
            s.turns.adopt(USER, ())
            # It is put off at first.
            s.turns.resumed(SHORT)
            s.turns.resumed_over(SHORT)
            s.now = 119.0
            s.turns.resumed(SHORT)
            s.now = 1000.0
            await asyncio.sleep(0.2)
            assert s.ended == []
            assert s.turns.hear(SHORT, "working on it", False)
            assert s.ended == []
            assert s.turns.hear(SHORT, "the answer", True)
            assert [run.text for run in s.ended] == ["the answer"] and not s.ended[0].error
            assert not s.turns.hear(SHORT, "the answer", True), "there is one result"

    asyncio.run(scene())


def test_W3_a_resumed_turn_without_a_marked_answer_ends_with_what_was_said(path: Path):
    left_by_the_dead(path, "run-1", "run-2")

    async def scene() -> None:
        async with stage(path) as s:
            s.host.resumes_within = 120.0
            s.turns.adopt(USER, ())
            s.turns.resumed("another chat")
            s.turns.resumed(SHORT)
            s.turns.hear(SHORT, "a notice", False)
            s.turns.resumed_over(SHORT)
            s.now = 2.0
            s.turns.resumed(SHORT)
            s.turns.hear(SHORT, "unmarked", False)
            s.turns.resumed_over(SHORT)
            s.now = 4.0
            await asyncio.sleep(0.1)
            assert s.ended == [], "the answer may still come"
            s.now = 5.0
            await s.until(lambda: s.ended)
            assert [(run.run_id, run.text) for run in s.ended] == [("run-1", "unmarked")]
            s.now = 121.0
            await asyncio.sleep(0.1)
            assert len(s.ended) == 1
            s.now = 122.0
            await s.until(lambda: len(s.ended) == 2)
            assert s.ended[1].text == ""

    asyncio.run(scene())


def test_W23_what_is_remembered_is_bounded():
    runs = Remembered()

    def add(n: int, session: str, text: str = "") -> None:
        chat = Chat("dm", session, session, None)
        run = Run(f"run-{n}", session, build(chat), chat, "hello", USER, 1.0)
        run.text = text
        runs.add(run)

    for n in range(20):
        add(n, "a")
    kept = [run.run_id for run in runs.of_session(build(Chat("dm", "a", "a", None)))]
    assert kept == [f"run-{n}" for n in range(20 - REMEMBERED, 20)]
    for n in range(20, 40):
        add(n, f"b{n}", "x" * (SIZE_MAX // 10))
    alive = [n for n in range(20, 40) if runs.of_session(f"agent:main:wishee:dm:b{n}")]
    assert alive == list(range(31, 40)), "the oldest sessions made room"
    assert runs.of_session(build(Chat("dm", "a", "a", None))) == []


def test_W23_the_messages_that_a_run_takes_in_are_bounded():
    run = Run("run-1", SHORT, STORED, Chat("dm", SHORT, SHORT, None), "m", USER, 1.0)
    for _ in range(2 * LATER_MAX):
        run.absorb("x")
    assert len(run.later) == LATER_MAX
    run.later.clear()
    run.absorb("x" * 256 * 1024)
    run.absorb("y")
    assert len(run.later) == 1
