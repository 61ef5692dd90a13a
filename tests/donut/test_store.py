"""The state store: what is committed stays, what is posted is wiped, what is odd is refused."""

import fcntl
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_bridges.donut.protocol import Message
from hermes_bridges.donut.store import (
    ChatState,
    Part,
    StateFailed,
    StateUnusable,
    Store,
    Turn,
    reset_state,
)
from tests.conftest import ROOT, wait
from tests.donut import committer

DAY = 24 * 3600.0
NOW = 1_800_000_000.0
SECRET = "the quick brown fox jumps over the lazy dog"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(directory: Path, clock: Clock) -> Iterator[Store]:
    store = Store(str(directory), wall=clock)
    yield store
    store.close()


@pytest.fixture
def again(directory: Path, clock: Clock, store: Store) -> Iterator[Callable[[], Store]]:
    """A restart: closes the store and opens its directory anew."""
    opened = [store]

    def reopen() -> Store:
        opened[-1].close()
        opened.append(Store(str(directory), wall=clock))
        return opened[-1]

    yield reopen
    opened[-1].close()


def part(number: int = 1, *, answer: str = "a1", chat: str = "c", text: str = "hi", **more) -> Part:
    fields = {
        "id": 0,
        "chat": chat,
        "chat_id": 1234,
        "thread_id": None,
        "reply_to": 9001,
        "key": f"{answer}/{number}",
        "answer": answer,
        "number": number,
        "text": text,
        "created_at": NOW,
    }
    return Part(**{**fields, **more})


def message(n: int | str = 1, text: str = "hello") -> Message:
    return Message(None, 7, n, "t1", 5, "ana", None, text)


# What is stored


def test_a_new_store_knows_nothing(store: Store):
    assert store.cursor() is None
    assert store.bot() is None
    assert store.chat("c") == ChatState(None, 0, None, False, 0, 0.0)
    assert store.turn("c", "m") is None
    assert not store.is_settled("c", "m")
    assert (store.outbox("c"), store.outbox_chats(9), store.outbox_size()) == ([], [], 0)
    assert store.kept() == []
    assert store.expire_outbox() == []


def test_facts_survive(store: Store, again: Callable[[], Store]):
    store.set_cursor("1")
    store.set_cursor("1042")
    store.set_bot("77")
    store = again()
    assert (store.cursor(), store.bot()) == ("1042", "77")
    store.set_cursor(None)
    assert again().cursor() is None


def test_attempts_are_counted_and_the_first_one_decides_what_is_sent(
    store: Store, again: Callable[[], Store], clock: Clock
):
    people = ChatState(first_person="5", several=False, bot_run=2)
    assert store.begin("c", "m", "s1", False, people) == Turn(1, NOW, "s1", False)
    clock.now += 60
    store = again()
    assert store.turn("c", "m") == Turn(1, NOW, "s1", False)
    later = people._replace(several=True, bot_run=0)
    assert store.begin("c", "m", "s2", True, later) == Turn(2, NOW, "s1", False)
    assert store.chat("c") == ChatState(None, 0, "5", True, 0, 0.0)
    assert store.begin("c", "n", "s2", True, later) == Turn(1, NOW + 60, "s2", True)


def test_a_settled_message_is_begun_no_more(store: Store, again: Callable[[], Store]):
    store.begin("c", "m", "s", False, ChatState())
    store.settle("c", "m")
    store = again()
    assert store.is_settled("c", "m")
    assert not store.is_settled("d", "m")
    assert store.turn("c", "m") is None
    store.settle("c", "m")
    assert store.is_settled("c", "m")


def test_KH05_a_session_is_taken_over_and_nothing_but_another_one_ends_it(
    store: Store, again: Callable[[], Store]
):
    store.settle("c", "1", session="s1")
    store.settle("d", "1", session="other")
    store.settle("c", "2", session="s2")
    store.settle("c", "3", session=None)
    store.settle("c", "4", session="")
    store.begin("c", "5", "s2", False, ChatState(bot_run=1))
    store = again()
    assert store.chat("c") == ChatState("s2", 0, None, False, 1, 0.0)
    assert store.chat("d").session == "other"


def test_people_are_stored_without_touching_the_rest(store: Store):
    store.settle("c", "1", session="s1")
    stale = store.chat("c")
    store.note_fallback("c", 77.0)
    store.settle("c", "2", chat_state=stale._replace(first_person="5", several=True))
    assert store.chat("c") == ChatState("s1", 0, "5", True, 0, 77.0)
    store.note_fallback("c", 0.0)
    assert store.chat("c").fallback_at == 0.0


def test_a_reset_begins_another_generation(store: Store, again: Callable[[], Store]):
    store.settle("c", "1", session="s1", chat_state=ChatState(first_person="5"))
    assert store.reset("c", "2") == 1
    assert store.is_settled("c", "2")
    assert store.reset("d", "1") == 1
    store = again()
    assert store.reset("c", "3") == 2
    assert store.chat("c") == ChatState(None, 2, "5", False, 0, 0.0)


@pytest.mark.parametrize("value", [1234, "1234", 2**70, -5, "7é\n", "x" * 1024])
def test_ids_keep_their_types_through_the_outbox(store: Store, again, value):
    answer = [part(1, chat_id=value, thread_id=value, reply_to=value), part(2)]
    store.settle("c", "m", parts=answer)
    store = again()
    first, second = store.outbox("c")
    for found in (first.chat_id, first.thread_id, first.reply_to):
        assert (found, type(found)) == (value, type(value))
    store.posted(first, value)
    assert store.outbox("c") == [second._replace(thread_id=value)]


def test_the_outbox_gives_what_was_put_in_in_its_order(store: Store, again):
    texts = ["one", "", "zwei\0drei", "\U0001f600 \ufffd", "x" * 4000]
    answer = [part(n, text=text) for n, text in enumerate(texts, 1)]
    store.settle("c", "m", parts=answer)
    store.settle("d", "m", parts=[part(1, chat="d")])
    store.settle("c", "n", parts=[part(1, answer="a2")])
    store = again()
    found = store.outbox("c")
    assert [p._replace(id=0) for p in found] == [*answer, part(1, answer="a2")]
    assert store.outbox("c", 2) == found[:2]
    assert store.outbox_size() == 7


def test_a_posted_part_is_gone_and_the_rest_of_its_answer_follows_it_into_a_thread(store: Store):
    store.settle("c", "m", parts=[part(1), part(2), part(3)])
    store.settle("c", "n", parts=[part(1, answer="a2")])
    store.settle("d", "n", parts=[part(1, chat="d")])
    store.posted(store.outbox("c")[0], 9002)
    assert [p.thread_id for p in store.outbox("c")] == [9002, 9002, None]
    store.posted(store.outbox("c")[0])
    assert [(p.number, p.thread_id) for p in store.outbox("c")] == [(3, 9002), (1, None)]
    assert store.outbox("d")[0].thread_id is None


def test_a_part_of_unknown_fate_goes_alone_and_a_refused_one_takes_the_rest_along(store: Store):
    store.settle("c", "m", parts=[part(1), part(2), part(3)])
    store.settle("c", "n", parts=[part(1, answer="a2")])
    store.drop_part(store.outbox("c")[0])
    assert store.give_up(store.outbox("c")[0]) == 2
    assert [p.answer for p in store.outbox("c")] == ["a2"]


def test_a_part_that_is_gone_cannot_remove_another_one(store: Store):
    store.settle("c", "m", parts=[part(1)])
    stale = store.outbox("c")[0]
    store.posted(stale)
    store.settle("c", "n", parts=[part(1, answer="a2")])
    assert store.outbox("c")[0].id == stale.id
    store.posted(stale)
    store.drop_part(stale)
    assert store.give_up(stale) == 0
    assert store.outbox_size() == 1


def test_chats_with_something_to_post_are_told_in_pages(store: Store):
    for chat in ("b", "a", "d", "c", "a"):
        store.settle(chat, "m", parts=[part(1, chat=chat)])
    assert store.outbox_chats(3) == ["a", "b", "c"]
    assert store.outbox_chats(3, "c") == ["d"]
    assert store.outbox_chats(3, "d") == []


def test_an_answer_is_given_up_after_a_day(store: Store, clock: Clock):
    store.settle("c", "m", parts=[part(1), part(2)])
    store.settle("d", "m", parts=[part(1, chat="d", answer="a2", created_at=NOW + 60)])
    clock.now += DAY
    assert store.expire_outbox() == []
    clock.now += 1
    assert store.expire_outbox() == [("c", "a1")]
    assert (store.outbox_size(), store.outbox_chats(9)) == (1, ["d"])


def test_kept_messages_come_back_whole_until_they_are_settled(store: Store, again):
    first, second, third = message(1, "eins \U0001f600"), message("2"), message(3)
    for kept in (first, second, first, third):
        store.keep(kept)
    store = again()
    assert store.kept() == [first, second, third]
    assert type(store.kept()[1].message_id) is str
    store.settle(first.chat, first.message)
    store.forget(third.chat, third.message)
    assert store.kept() == [second]
    assert not store.is_settled(third.chat, third.message)
    store.reset(second.chat, second.message)
    assert store.kept() == []


def test_a_commit_that_fails_stores_nothing(store: Store):
    store.begin("c", "m", "s", False, ChatState())
    odd = part(2)._replace(text=None)  # type: ignore[arg-type]
    with pytest.raises(StateFailed) as caught:
        store.settle("c", "m", session="s2", parts=[part(1), odd])
    assert "donut.sqlite3" in str(caught.value)
    assert not store.is_settled("c", "m")
    assert store.turn("c", "m") is not None
    assert store.chat("c").session is None
    assert store.outbox_size() == 0
    store.settle("c", "m")


def test_no_text_of_a_message_or_an_answer_is_in_another_table(store: Store, directory: Path):
    store.keep(message(1, SECRET))
    store.begin("7", "1", "s", True, ChatState(first_person="5"))
    store.settle("7", "1", session="s", parts=[part(1, chat="7", text=SECRET)])
    store.keep(message(2, SECRET))
    store.close()
    holding = set()
    with sqlite3.connect(directory / "donut.sqlite3") as sql:
        for (table,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            if any(SECRET in str(row) for row in sql.execute(f"SELECT * FROM {table}")):
                holding.add(table)
    sql.close()
    assert holding == {"outbox", "kept"}


# What is forgotten


def test_KH29_the_oldest_of_100_000_settled_ids_go_but_nothing_that_is_live(
    store: Store, directory: Path, clock: Clock
):
    store.begin("live", "m", "s", False, ChatState())
    store.settle("c", "first")
    with other(directory) as sql, sql:
        sql.executemany(
            "INSERT INTO settled (chat, message, at) VALUES (?, ?, ?)",
            ((f"c{n % 100}", f"m{n}", NOW) for n in range(1, 100_000)),
        )
    waited = longest_wait(store, lambda: store.prune(NOW))
    with other(directory) as sql:
        assert sql.execute("SELECT count(*) FROM settled").fetchone() == (50_000,)
    assert not store.is_settled("c", "first")
    assert not store.is_settled("c99", "m49999")
    assert store.is_settled("c0", "m50000")
    assert store.is_settled("c99", "m99999")
    assert store.turn("live", "m") == Turn(1, NOW, "s", False)
    # Others are let in between; it is 0.2 seconds of work.
    assert waited < 0.5


def longest_wait(store: Store, work: Callable[[], None]) -> float:
    """How long another thread has had to wait for an answer of the store during some work."""
    waits = [0.0]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            begin = time.monotonic()
            store.is_settled("c", "m")
            waits.append(time.monotonic() - begin)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join(10)
    return max(waits)


def test_KH29_a_settled_id_is_known_for_a_day_through_restarts(
    store: Store, again: Callable[[], Store], clock: Clock
):
    store.settle("c", "m")
    for minutes in (6, 70, 7 * 60, 24 * 60):
        clock.now = NOW + minutes * 60
        store = again()
        store.prune(clock.now)
        assert store.is_settled("c", "m"), minutes
    clock.now += 1
    store.prune(clock.now)
    assert not store.is_settled("c", "m")


def test_KH28_a_killed_attempt_does_not_claim_a_message_for_ever(directory: Path):
    child = start("work", directory)
    assert child.stdout is not None
    while not child.stdout.readline().startswith(b"begun 3"):
        pass
    # Somewhere between the claim of a message and its end.
    child.kill()
    child.wait(10)
    last = max(3, last_of(child.stdout.read().decode().splitlines())["begun"])
    child.stdout.close()
    store = Store(str(directory))
    begun = [n for n in range(last + 2) if store.turn(f"c{n % 5}", f"m{n}")]
    assert all(store.is_settled(f"c{n % 5}", f"m{n}") != (n in begun) for n in range(last + 1))
    assert len(begun) <= 1
    store.begin("c4", "m9999", "s", False, ChatState())
    assert not store.is_settled("c4", "m9999")
    store.close()


def test_an_attempt_without_an_end_is_forgotten_after_a_day(store: Store):
    store.begin("c", "m", "s", False, ChatState())
    store.prune(NOW + DAY)
    assert store.turn("c", "m") is not None
    store.prune(NOW + DAY + 1)
    assert store.turn("c", "m") is None


# What lies on the disk


def everything(directory: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(directory.iterdir()) if p.is_file())


def secret_past(store: Store) -> None:
    """A message and its answer, longer than a page too, from their arrival to their end."""
    for n in range(20):
        text = f"{SECRET} {n} " * (200 if n % 2 else 1)
        store.keep(message(n, text))
        store.begin("7", str(n), "s", False, ChatState())
        store.settle("7", str(n), parts=[part(1, chat="7", answer=f"a{n}", text=text)])
    for found in store.outbox("7"):
        store.posted(found)


def test_nothing_of_what_was_said_can_be_read_after_the_close(store: Store, directory: Path):
    secret_past(store)
    assert SECRET.encode() in everything(directory)
    store.close()
    assert SECRET.encode() not in everything(directory)
    assert sorted(os.listdir(directory)) == ["donut.lock", "donut.sqlite3"]


def test_nothing_of_what_was_said_can_be_read_after_the_housekeeping(store: Store, directory: Path):
    secret_past(store)
    store.prune(NOW)
    assert SECRET.encode() not in everything(directory)


def test_nothing_of_what_was_said_can_be_read_after_a_kill_and_a_start(
    directory: Path, tmp_path: Path
):
    store = Store(str(directory))
    secret_past(store)
    copy = tmp_path / "killed"
    shutil.copytree(directory, copy)
    store.close()
    assert SECRET.encode() in everything(copy)
    store = Store(str(copy))
    assert SECRET.encode() not in everything(copy)
    assert store.is_settled("7", "19")
    store.close()


def test_the_log_does_not_grow_without_end(store: Store, directory: Path):
    largest = 0
    for n in range(3_000):
        store.begin("c", f"m{n}", "s", False, ChatState())
        store.settle("c", f"m{n}", parts=[part(1, text="x" * 2_000)])
        store.posted(store.outbox("c")[0])
        largest = max(largest, (directory / "donut.sqlite3-wal").stat().st_size)
    assert largest < 6_000_000
    assert (directory / "donut.sqlite3").stat().st_size < 2_000_000


def test_a_message_costs_little(store: Store):
    took = []
    for n in range(600):
        began = time.perf_counter()
        store.begin("c", f"m{n}", "s", False, ChatState())
        store.settle("c", f"m{n}", session="s", parts=[part(1, text="x" * 500)])
        store.posted(store.outbox("c")[0])
        took.append(time.perf_counter() - began)
    # About 0.15 ms; a single wait for the disk would be more than the limit on most machines.
    assert sorted(took)[len(took) // 2] < 0.002


def test_files_are_private_whatever_the_umask(directory: Path):
    before = os.umask(0)
    try:
        store = Store(str(directory))
        store.settle("c", "m")
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert set(modes) >= {"donut.sqlite3", "donut.sqlite3-wal", "donut.lock"}
    assert set(modes.values()) == {0o600}


def test_files_that_others_could_read_are_made_private(directory: Path):
    Store(str(directory)).close()
    (directory / "donut.sqlite3").chmod(0o644)
    directory.chmod(0o755)
    store = Store(str(directory))
    store.settle("c", "m")
    for name in ("donut.sqlite3", "donut.sqlite3-wal"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    store.close()


def test_a_directory_with_an_odd_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    name = "50% ?mode=memory#ü"
    store = Store(name)
    store.set_cursor("e1")
    store.close()
    assert (tmp_path / name / "donut.sqlite3").stat().st_size > 0
    store = Store(str(tmp_path / name))
    assert store.cursor() == "e1"
    store.close()


# Kills


def start(what: str, directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.donut.committer", what, str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )


def killed(child: subprocess.Popen[bytes], pause: float) -> list[str]:
    """What a child told until it was killed, a moment after its first words."""
    assert child.stdout is not None
    with child.stdout:
        first = child.stdout.readline()
        time.sleep(pause)  # the random moment itself
        child.send_signal(signal.SIGKILL)
        told = first + child.stdout.read()
    assert child.wait(10) == -signal.SIGKILL
    return told.decode().splitlines()


def last_of(told: list[str]) -> dict[str, int]:
    """The last number that was told of each kind."""
    last = dict.fromkeys(("begun", "settled", "posted"), -1)
    for line in told:
        kind, _, number = line.partition(" ")
        if kind in last:
            last[kind] = int(number)
    return last


def test_kill_9_at_any_moment_loses_and_tears_nothing(directory: Path, counts):
    moment = random.Random(7)
    for turn in range(counts(12, 300)):
        shutil.rmtree(directory, ignore_errors=True)
        last = last_of(killed(start("work", directory), moment.uniform(0, 0.15)))
        store = Store(str(directory))
        waiting = [p for n in range(committer.CHATS) for p in store.outbox(f"c{n}", 10_000)]
        with_parts = {p.answer for p in waiting}
        whole = 0
        for n in range(last["begun"] + 2):
            chat, name = f"c{n % committer.CHATS}", f"m{n}"
            is_settled, begun = store.is_settled(chat, name), store.turn(chat, name)
            assert is_settled or n > last["settled"], (turn, n)
            assert is_settled or begun or n > last["begun"], (turn, n)
            assert not (is_settled and begun), (turn, n)
            assert is_settled or name not in with_parts, (turn, n)
            whole += (n % 3 + 1) * is_settled
        # All parts are there, but for the one of each message that was posted.
        assert whole - len(waiting) in (last["posted"] + 1, last["posted"] + 2), turn
        store.close()


def test_kill_9_while_a_state_is_made(directory: Path, counts):
    moment = random.Random(8)
    for turn in range(counts(6, 100)):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        killed(start("make", directory), moment.uniform(0, 0.1))
        for made in directory.iterdir():
            store = Store(str(made))
            store.set_cursor("e1")
            assert store.cursor() == "e1", turn
            store.close()
            assert sorted(os.listdir(made)) == ["donut.lock", "donut.sqlite3"]


def test_the_lock_dies_with_its_process(directory: Path):
    child = start("hold", directory)
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    with pytest.raises(StateUnusable) as caught:
        Store(str(directory))
    assert caught.value.transient
    child.kill()
    child.wait(10)
    child.stdout.close()
    Store(str(directory)).close()


def test_a_full_disk_is_told_and_loses_nothing(directory: Path):
    child = start("fill", directory)
    told = child.communicate(timeout=60)[0].decode().splitlines()
    assert child.returncode == 0
    failed, read, closed = told[-3:]
    assert failed.startswith(f"failed state file {directory}/donut.sqlite3 fails: ")
    settled = last_of(told)["settled"]
    assert settled > 20
    assert read.startswith("can be read: True")
    assert closed == "closed"
    store = Store(str(directory))
    assert all(store.is_settled(f"c{n % 5}", f"m{n}") for n in range(settled + 1))
    store.settle("c", "m")
    store.close()


def test_a_full_disk_at_the_start_is_told(directory: Path):
    Store(str(directory)).close()
    shutil.rmtree(directory)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    told = run_alone(limit, str(directory))
    assert told.startswith(f"True state file {directory}/donut.sqlite3")
    Store(str(directory)).close()


# What is refused


class other:
    """A connection of another program to the database."""

    def __init__(self, directory: Path) -> None:
        self.sql = sqlite3.connect(directory / "donut.sqlite3", timeout=0)

    def __enter__(self) -> sqlite3.Connection:
        return self.sql

    def __exit__(self, *ignored) -> None:
        self.sql.close()


def spoil(path: Path, how: str) -> None:
    """Turn a sound database into one that can't be used."""
    whole = path.read_bytes()
    if how == "text":
        path.write_bytes(b'{"cursor": "1042"}\n')
    elif how == "short":
        path.write_bytes(whole[:10])
    elif how == "nul":
        path.write_bytes(bytes(len(whole)))
    elif how == "nul_but_for_its_head":
        path.write_bytes(whole[:100] + bytes(len(whole) - 100))
    elif how == "truncated":
        path.write_bytes(whole[: len(whole) // 2 // 4096 * 4096])
    elif how == "torn":
        path.write_bytes(whole[: len(whole) - 1000])
    elif how == "overwritten":
        path.write_bytes(whole[:8192] + b"\xa5" * 4096 + whole[12288:])
    elif how == "empty_beside_a_log":
        path.write_bytes(b"")
        path.with_name(f"{path.name}-wal").write_bytes(b"what was committed")
    elif how == "gone_beside_a_log":
        path.unlink()
        path.with_name(f"{path.name}-wal").write_bytes(b"what was committed")
    elif how == "directory":
        path.unlink()
        path.mkdir()
    elif how == "symlink":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif how == "dangling":
        path.unlink()
        path.symlink_to("nowhere")
    else:
        statement = {
            "foreign": "PRAGMA application_id = 0",
            "newer": "PRAGMA user_version = 2",
            "table_gone": "DROP TABLE turns",
        }[how]
        sql = sqlite3.connect(path)
        sql.execute(statement)
        sql.close()


SPOILT = {
    "text": "is corrupt",
    "short": "is corrupt",
    "nul": "is corrupt",
    "nul_but_for_its_head": "is corrupt",
    "truncated": "is corrupt",
    "torn": "is corrupt",
    "overwritten": "is corrupt",
    "empty_beside_a_log": "is corrupt",
    "gone_beside_a_log": "is corrupt",
    "directory": "is not a regular file",
    "symlink": "is not a regular file",
    "dangling": "is not a regular file",
    "foreign": "is not a state file of this bridge",
    "newer": "is from a newer version of this bridge",
    "table_gone": "is corrupt",
}


def listing(directory: Path) -> dict[str, bytes | str | None]:
    """All that holds anything."""
    found = {
        p.name: os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        for p in directory.iterdir()
    }
    # Looking at a database makes these two; the index of the log never holds any state.
    empty_log = [name for name in found if name.endswith("-wal") and not found[name]]
    index = [name for name in found if name.endswith("-shm")]
    return {name: what for name, what in found.items() if name not in empty_log + index}


@pytest.mark.parametrize("how", SPOILT)
def test_KH14_what_is_no_sound_state_is_refused_and_left_as_it_is(directory: Path, how: str):
    store = Store(str(directory))
    for n in range(300):
        store.settle("c", f"m{n}", parts=[part(1, text="x" * 500)])
    store.close()
    path = directory / "donut.sqlite3"
    spoil(path, how)
    before = listing(directory)
    for _ in range(2):
        with pytest.raises(StateUnusable) as caught:
            Store(str(directory))
        assert not caught.value.transient
        text = str(caught.value)
        assert text.startswith(f"state file {path} {SPOILT[how]}")
        assert "--reset-state" in text
        assert listing(directory) == before
    aside = reset_state(str(directory))
    moved = {name.replace(".bad-1", ""): what for name, what in listing(directory).items()}
    assert moved == before
    assert aside == f"{path}.bad-1"
    Store(str(directory)).close()


def test_KH14_a_log_that_belongs_to_a_spoilt_database_is_left_as_it_is(
    directory: Path, tmp_path: Path
):
    store = Store(str(directory))
    for n in range(300):
        store.settle("c", f"m{n}")
    copy = tmp_path / "killed"
    shutil.copytree(directory, copy)
    store.close()
    spoil(copy / "donut.sqlite3", "truncated")
    with (copy / "donut.sqlite3-wal").open("r+b") as log:
        log.seek(30_000)
        log.write(b"\xa5" * 4096)
    before = listing(copy)
    with pytest.raises(StateUnusable):
        Store(str(copy))
    assert listing(copy) == before


@pytest.mark.parametrize("is_there", [False, True])
def test_KH14_no_file_or_an_empty_one_is_a_new_state(directory: Path, is_there: bool):
    directory.mkdir()
    if is_there:
        (directory / "donut.sqlite3").touch()
    store = Store(str(directory))
    store.set_cursor("e1")
    store.close()
    store = Store(str(directory))
    assert store.cursor() == "e1"
    store.close()


def test_what_a_killed_start_left_behind_is_no_hindrance(directory: Path):
    directory.mkdir()
    for suffix in ("", "-wal", "-shm", "-journal"):
        (directory / f"donut.sqlite3.new{suffix}").write_bytes(b"half")
    Store(str(directory)).close()
    assert sorted(os.listdir(directory)) == ["donut.lock", "donut.sqlite3"]


def test_KH14_a_file_that_may_not_be_read_stops_the_start(directory: Path):
    Store(str(directory)).close()
    path = directory / "donut.sqlite3"
    path.chmod(0)
    before = path.stat()
    if os.geteuid() == 0:
        # Root can read everything, so the child becomes nobody, to whom all but the file is open.
        # Directories further up are closed to nobody, hence the relative path.
        directory.parent.chmod(0o711)
        for mine in (directory, directory / "donut.lock"):
            os.chown(mine, 65534, 65534)
    told = run_alone(
        f"import os; os.chdir({str(directory.parent)!r}); os.geteuid() or os.setuid(65534)", "state"
    )
    assert told.startswith(
        "False state file state/donut.sqlite3 cannot be used: Permission denied; "
    )
    assert "--reset-state" in told
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mode) == (
        before.st_ino,
        before.st_size,
        before.st_mode,
    )


def run_alone(first: str, directory: str) -> str:
    """What a process of its own tells when it tries to open a store after something else."""
    code = (
        f"from hermes_bridges.donut.store import *\n{first}\ntry: Store({directory!r})\n"
        "except StateUnusable as fault: print(fault.transient, fault)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=30)
    return done.stdout or done.stderr


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StateUnusable) as caught:
        Store(str(tmp_path / "file" / "state"))
    assert "Not a directory" in str(caught.value)
    assert not caught.value.transient


def test_two_stores_on_one_directory(directory: Path, store: Store):
    with pytest.raises(StateUnusable) as caught:
        Store(str(directory))
    assert caught.value.transient
    text = str(caught.value)
    assert text.startswith(f"state file {directory}/donut.sqlite3 is in use by another bridge; ")
    assert "--reset-state" in text
    # The first one notices nothing, and after it the directory is free.
    store.set_cursor("e1")
    store.close()
    second = Store(str(directory))
    assert second.cursor() == "e1"
    second.close()


def test_a_refused_start_leaves_no_lock(directory: Path):
    Store(str(directory)).close()
    spoil(directory / "donut.sqlite3", "nul")
    with pytest.raises(StateUnusable):
        Store(str(directory))
    with (directory / "donut.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("how", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_database_that_another_program_writes_is_refused_for_now(directory: Path, how: str):
    Store(str(directory)).close()
    with other(directory) as sql:
        sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        sql.execute(how)
        sql.execute("DELETE FROM facts")
        with pytest.raises(StateUnusable) as caught:
            Store(str(directory))
        sql.execute("ROLLBACK")
    assert caught.value.transient
    assert "donut.sqlite3 is locked by another program; " in str(caught.value)
    # Nobody is led to give up a state that is all right.
    assert "--reset-state" not in str(caught.value)
    Store(str(directory)).close()


def test_a_program_that_only_reads_is_no_hindrance(directory: Path, store: Store):
    store.settle("c", "m")
    with other(directory) as sql:
        sql.execute("BEGIN")
        assert sql.execute("SELECT count(*) FROM settled").fetchone() == (1,)
        store.settle("c", "n")
        began = time.monotonic()
        store.prune(NOW)
        assert time.monotonic() - began < 1
        assert sql.execute("SELECT count(*) FROM settled").fetchone() == (1,)
        store.close()
        Store(str(directory)).close()


def test_a_closed_store_says_so(store: Store):
    store.close()
    store.close()
    with pytest.raises(StateFailed):
        store.set_cursor("e1")
    with pytest.raises(StateFailed):
        store.cursor()


# --reset-state


def test_a_state_is_moved_aside_whole_and_can_still_be_read(directory: Path, tmp_path: Path):
    store = Store(str(directory))
    store.set_cursor("e1")
    killed_state = tmp_path / "killed"
    shutil.copytree(directory, killed_state)
    store.close()
    path = killed_state / "donut.sqlite3"
    (killed_state / "status.json").write_text("{}")
    for n in (1, 2):
        aside = reset_state(str(killed_state))
        assert aside == f"{path}.bad-{n}"
        if n == 1:
            Store(str(killed_state)).close()
    assert sorted(os.listdir(killed_state)) == [
        "donut.lock",
        "donut.sqlite3.bad-1",
        "donut.sqlite3.bad-1-shm",
        "donut.sqlite3.bad-1-wal",
        "donut.sqlite3.bad-2",
        "status.json",
    ]
    # What was in the log only is in it.
    sql = sqlite3.connect(f"{path}.bad-1")
    assert sql.execute("SELECT value FROM facts WHERE name = 'cursor'").fetchone() == ("e1",)
    sql.close()


def test_nothing_is_overwritten_by_what_is_moved_aside(directory: Path):
    Store(str(directory)).close()
    (directory / "donut.sqlite3.bad-1-wal").write_bytes(b"somebody's")
    assert reset_state(str(directory)) == f"{directory}/donut.sqlite3.bad-2"
    assert (directory / "donut.sqlite3.bad-1-wal").read_bytes() == b"somebody's"


def test_nothing_is_moved_while_a_bridge_runs(directory: Path, store: Store):
    before = sorted(os.listdir(directory))
    with pytest.raises(StateUnusable) as caught:
        reset_state(str(directory))
    assert caught.value.transient
    assert sorted(os.listdir(directory)) == before
    store.set_cursor("e1")


def test_there_may_be_nothing_to_move(tmp_path: Path):
    assert reset_state(str(tmp_path / "none")) is None
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    assert reset_state(str(tmp_path / "empty")) is None


# Threads


def test_many_threads_commit_at_once(store: Store):
    faults: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for n in range(60):
                chat, name = f"c{worker}", f"m{n}"
                store.begin(chat, name, "s", False, ChatState(bot_run=n))
                store.settle(chat, name, parts=[part(1, chat=chat, answer=name)])
                assert [p.answer for p in store.outbox(chat)] == [name]
                store.posted(store.outbox(chat)[0])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    wait(lambda: not any(thread.is_alive() for thread in threads), 30)
    assert not faults
    assert all(store.is_settled(f"c{n}", f"m{m}") for n in range(8) for m in range(60))
    assert store.outbox_size() == 0
