"""Reading state.db of every Hermes version, and the files beside it (contract, sections 4 to 6)."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from hermes_bridges.standins import wishee_shapes
from hermes_bridges.wishee.cleaning import STEER_END, strip_thoughts
from hermes_bridges.wishee.history import History, HistoryFailed, Usage
from hermes_bridges.wishee.leases import lives
from hermes_bridges.wishee.recall import Recall
from hermes_bridges.wishee.routing import Route, RoutesFile, decode_route, route_of
from hermes_bridges.wishee.transcript import BUDGET, size
from hermes_bridges.wishee.windows import windows
from tests.wishee.state_db import VERSIONS, StateDb, entry

AT = 1_796_000_000.0
KEY = "agent:main:wishee:dm:agent:main:main"
FOREIGN = "agent:main:telegram:dm:1"
RUN = f"run-{'a' * 32}"
STEER = f"output\n\n[OUT-OF-BAND USER MESSAGE \u2014 x]\nfaster\n{STEER_END}"
EVERY = tuple(VERSIONS.values())
LIMIT = 0.5  # seconds: a generous deadline, as the steps of SQLite are what is judged


@pytest.fixture(params=EVERY, ids=list(VERSIONS))
def db(request, tmp_path):
    return StateDb(tmp_path / "home", request.param)


@pytest.fixture
def newest(tmp_path):
    return StateDb(tmp_path / "home", 22)


def history_of(db: StateDb, **more: Any) -> History:
    return History(str(db.home), **more)


def turns_of(db: StateDb, session_id: str | None = "s", limit: int = 20, recalls: Any = (), **more):
    found = history_of(db, **more).turns(session_id, limit, recalls, strip_thoughts)
    assert not wishee_shapes.reply("chat.turns", {"limit": limit}, {"turns": found})
    return found


def messages_of(db: StateDb, session_id: str | None = "s", limit: int = 20):
    found = history_of(db).history(session_id, limit)
    assert not wishee_shapes.reply("chat.history", {"limit": limit}, {"messages": found})
    return found


def list_of(db: StateDb, working: Any = (), **more):
    found = history_of(db).sessions(set(working), **more)
    assert not wishee_shapes.reply("sessions.list", {}, {"sessions": found})
    return found


def texts(turn):
    return [message["content"] for message in turn["messages"]]


def best(call: Callable[[], object]) -> float:
    """The seconds of the quickest of some calls: others use this machine too."""
    taken = []
    for _ in range(12):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return min(taken)


# --- messages and turns


def test_history_of_a_session(db):
    db.session("s")
    db.session("other")
    db.say("s", ("user", "a"), ("assistant", "b"), ("tool", "output"), ("user", "c"))
    db.say("other", ("user", "x"))
    assert [one["content"] for one in messages_of(db)] == ["a", "b", "c"]
    assert [one["content"] for one in messages_of(db, limit=2)] == ["b", "c"]
    assert messages_of(db)[0] == {"role": "user", "content": "a", "ts": 1_796_000_000_000}


def test_rows_that_say_nothing_do_not_count_against_the_limit(db):
    db.session("s")
    db.say("s", ("user", "a"), *[("user", "[System: x]")] * 30, ("tool", STEER))
    assert [one["content"] for one in messages_of(db, limit=2)] == ["a", "faster"]


def test_turns_of_a_session(db):
    db.session("s")
    first, *_, last = db.say(
        "s", ("user", "a"), ("assistant", ""), ("tool", STEER), ("assistant", "b"), ("user", "c")
    )
    found = turns_of(db)
    assert [texts(turn) for turn in found] == [["a", "faster", "b"], ["c"]]
    assert [turn["id"] for turn in found] == [f"s:{first}", f"s:{last}"]
    assert found[0]["status"] == "completed" and "status" not in found[1]
    assert [texts(turn) for turn in turns_of(db, limit=1)] == [["c"]]


def test_a_session_that_is_not_known(db):
    assert messages_of(db, "s") == turns_of(db, "s") == []
    assert messages_of(db, None) == turns_of(db, None) == []
    going = Recall(RUN, 0, AT, None, "hi")
    assert [texts(turn) for turn in turns_of(db, None, recalls=[going])] == [["hi"]]


def test_a_running_turn_is_told_from_memory_and_its_rows_are_left_out(db):
    db.session("s")
    mark = db.say("s", ("user", "before"), ("assistant", "x"))[-1]
    assert history_of(db).max_message_id() == mark
    db.say("s", ("user", "hi"), ("assistant", "half"), at=AT + 60)
    found = turns_of(db, recalls=[Recall(RUN, mark, AT + 60, None, "hi")])
    assert [texts(turn) for turn in found] == [["before", "x"], ["hi"]]
    assert found[1]["id"] == RUN
    ended = Recall(RUN, mark, AT + 60, AT + 70, "hi", text="done")
    found = turns_of(db, recalls=[ended])
    assert [texts(turn) for turn in found] == [["before", "x"], ["hi", "half"]]
    assert found[1]["completedAt"] == 1_796_000_070_000


@pytest.mark.parametrize("version", [19, 21, 22])
def test_rows_that_were_taken_back_are_not_told(tmp_path, version):
    db = StateDb(tmp_path / "home", version)
    db.session("s")
    db.say("s", ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    db.change("UPDATE messages SET active = 0 WHERE content IN ('c', 'd')")
    assert [one["content"] for one in messages_of(db)] == ["a", "b"]
    assert [texts(turn) for turn in turns_of(db)] == [["a", "b"]]
    # Memory does not bring them back.
    runs = [Recall(RUN, 2, AT + 2, AT + 4, "c", text="d")]
    assert [texts(turn) for turn in turns_of(db, recalls=runs)] == [["a", "b"]]


@pytest.mark.parametrize("version", [21, 22])
def test_kinds_of_rows(tmp_path, version):
    db = StateDb(tmp_path / "home", version)
    db.session("s")
    db.say(
        "s", ("user", "a"), ("user", "hidden"), ("user", "notice"), ("user", STEER), ("user", "b")
    )
    db.change("UPDATE messages SET display_kind = content WHERE content IN ('hidden', 'notice')")
    db.change("UPDATE messages SET display_kind = 'steer' WHERE content = ?", STEER)
    assert [texts(turn) for turn in turns_of(db)] == [["a", "faster"], ["b"]]


def test_commentary_of_the_provider(db):
    db.session("s")
    db.say("s", ("user", "a"), ("assistant", ""))
    items = json.dumps([{"phase": "commentary", "content": [{"text": "looking"}]}])
    db.change("UPDATE messages SET codex_message_items = ? WHERE role = 'assistant'", items)
    assert [texts(turn) for turn in turns_of(db)] == [["a", "looking"]]


def test_odd_values_in_rows(db):
    db.session("s")
    db.say("s", ("user", "a"))
    rows = [
        {"session_id": "s", "role": "user", "content": sqlite3.Binary(b"blob\xff"), "timestamp": 5},
        {"session_id": "s", "role": "assistant", "content": None, "timestamp": "never"},
        {"session_id": "s", "role": "user", "content": 12, "timestamp": AT},
    ]
    db.insert("messages", rows)
    db.change("UPDATE messages SET content = CAST(X'61FF62' AS TEXT) WHERE content = 'a'")
    assert [one["content"] for one in messages_of(db)] == ["a\ufffdb", "blob\ufffd", "12"]


def test_rows_are_told_in_the_order_of_their_ids(db):
    db.session("s")
    db.say("s", ("user", "a"), ("assistant", "b"), at=AT)
    db.say("s", ("user", "c"), ("assistant", "d"), at=AT)
    assert [one["content"] for one in messages_of(db)] == ["a", "b", "c", "d"]


# --- routes


def test_the_session_of_a_key(db):
    db.routes({KEY: "s", FOREIGN: "t"}, used=7)
    history = history_of(db)
    route = history.route(KEY)
    assert route is not None and (route.session_id, route.used) == ("s", 7)
    assert history.route("agent:main:main") is None


def test_W11_both_forms_of_a_key_are_one_session(db):
    db.routes({KEY: "s"})
    history = history_of(db)
    assert history.route("agent:main:main", KEY) == history.route(KEY, KEY) != None  # noqa: E711


@pytest.mark.parametrize("version", [19, 21, 22])
def test_the_table_wins_over_the_file_which_may_lag(tmp_path, version):
    db = StateDb(tmp_path / "home", version)
    db.routes({KEY: "new"})
    db.routes_file({"_README": "a copy", KEY: entry(KEY, "old"), FOREIGN: entry(FOREIGN, "t")})
    history = history_of(db)
    ours, foreign = history.route(KEY), history.route(FOREIGN)
    assert ours is not None and ours.session_id == "new"
    assert foreign is not None and foreign.session_id == "t"
    assert history.route("_README") is None


@pytest.mark.parametrize("version", [19, 21, 22])
def test_routes_of_another_scope_are_not_ours(tmp_path, version):
    db = StateDb(tmp_path / "home", version)
    db.routes({KEY: "s"})
    db.change("UPDATE gateway_routing SET scope = '/elsewhere/sessions'")
    assert history_of(db).route(KEY) is None
    assert list_of(db) == []


def test_a_home_behind_a_symlink(tmp_path):
    db = StateDb(tmp_path / "home", 22)
    db.session("s")
    db.routes({KEY: "s"})
    (tmp_path / "link").symlink_to(db.home)
    history = History(str(tmp_path / "link"))
    assert history.route(KEY) is not None and len(history.sessions(set())) == 1


@pytest.mark.parametrize("version", [19, 22])
@pytest.mark.parametrize("broken", ["", "nonsense", "[]", "{}", '{"session_id": 5}', "[" * 10_000])
def test_a_broken_entry_of_the_routing(tmp_path, version, broken):
    db = StateDb(tmp_path / "home", version)
    db.session("s")
    db.session("t")
    db.routes({KEY: "s", FOREIGN: "t"})
    db.change("UPDATE gateway_routing SET entry_json = ? WHERE session_key = ?", broken, KEY)
    assert history_of(db).route(KEY) is None
    assert [one["sessionKey"] for one in list_of(db)] == [FOREIGN]


def test_the_file_of_routes_is_read_again_when_it_has_changed(tmp_path):
    file = RoutesFile(str(tmp_path))
    assert file.routes() == {}
    path = tmp_path / "sessions.json"
    path.write_text(json.dumps({"a": {"session_id": "1"}}))
    first = file.routes()
    assert first == {"a": Route("1")} and file.routes() is first
    beside = tmp_path / "new"
    beside.write_text(json.dumps({"a": {"session_id": "2"}}))
    os.replace(beside, path)
    assert file.routes() == {"a": Route("2")}
    path.write_text("{ torn")
    assert file.routes() == {}
    path.unlink()
    assert file.routes() == {}


@pytest.mark.parametrize(
    "entry", [None, "text", {}, {"session_id": ""}, {"session_id": 5}, {"session_id": None}]
)
def test_an_entry_that_names_no_session(entry):
    assert route_of(entry) is None
    assert decode_route(json.dumps(entry)) is None


def test_what_an_entry_says():
    found = route_of(
        {"session_id": "s", "last_prompt_tokens": 9, "updated_at": "2026-11-30T11:42:03"}
    )
    assert found is not None and (found.session_id, found.used) == ("s", 9)
    assert found.at == time.mktime((2026, 11, 30, 11, 42, 3, 0, 0, -1))
    odd = {"session_id": "s", "last_prompt_tokens": -1, "updated_at": "yesterday"}
    assert route_of(odd) == Route("s")
    assert route_of({"session_id": "s", "last_prompt_tokens": True}) == Route("s")


# --- the list


def test_the_sessions_newest_first(db):
    for id, at in (("s", 10), ("t", 30), ("u", 20)):
        db.session(id, title=f"about {id}", message_count=2)
        db.say(id, ("user", "a"), ("assistant", "b"), at=AT + at)
    db.routes({KEY: "s", FOREIGN: "t"}, used=100)
    if db.version == 14:
        stamps = {KEY: "2026-11-30T11:42:10", FOREIGN: "2026-11-30T11:42:30"}
        ids = {KEY: "s", FOREIGN: "t"}
        db.routes_file({key: entry(key, ids[key], 100, stamp) for key, stamp in stamps.items()})
    (db.home / "context_length_cache.yaml").write_text("context_lengths:\n  m@http://h/v1: 2000\n")
    first, second = list_of(db)
    assert second.pop("lastActiveAt") < first.pop("lastActiveAt")
    more = {"usedTokens": 100, "contextWindow": 2000, "model": "m", "messageCount": 2}
    assert first == {
        "sessionKey": FOREIGN,
        "title": "about t",
        "working": False,
        "addressable": False,
        **more,
    }
    assert second == {
        "sessionKey": KEY,
        "title": "about s",
        "working": False,
        "addressable": True,
        **more,
    }


def test_the_time_of_a_session_is_that_of_its_last_message(newest):
    newest.session("s", started_at=AT)
    newest.session("t", started_at=AT + 5)
    newest.say("s", ("user", "a"), at=AT + 50)
    newest.routes({KEY: "s", FOREIGN: "t"})
    assert [one.get("lastActiveAt") for one in list_of(newest)] == [
        1_796_000_050_000,
        1_796_000_005_000,
    ]


def test_only_sessions_of_ours(db):
    db.session("s")
    db.session("t")
    lookalike = "agent:main:telegram:dm:agent:x:wishee:dm:1"
    db.routes({KEY: "s", FOREIGN: "t", lookalike: "t"})
    assert [one["sessionKey"] for one in list_of(db, ours=True)] == [KEY]
    assert len(list_of(db)) == 3


@pytest.mark.parametrize(
    ("last", "works"),
    [
        (("user", "a"), True),
        (("assistant", "a"), False),
        (("tool", "a"), False),
        (("user", "[Cron delivery: x]\nnews"), False),
        (("user", "[System: x]"), False),
    ],
)
def test_a_session_works_when_the_last_word_is_the_users(db, last, works):
    db.session("s")
    db.say("s", ("assistant", "x"), last)
    db.routes({KEY: "s"})
    assert list_of(db)[0]["working"] is works


def test_a_session_in_which_a_run_of_ours_goes_on_works(db):
    db.session("s")
    db.routes({KEY: "s"})
    new = "agent:main:wishee:dm:new"
    found = list_of(db, [KEY, new])
    assert found == [
        {"sessionKey": new, "working": True, "addressable": True},
        found[1] | {"sessionKey": KEY, "working": True},
    ]


def test_W13_the_list_has_sixty_sessions_whatever_is_remembered(db):
    ids = [f"s{n:03}" for n in range(100)]
    rows = [{"id": id, "source": "wishee", "started_at": AT + n} for n, id in enumerate(ids)]
    db.insert("sessions", rows)
    db.routes({f"agent:main:wishee:dm:{id}": id for id in ids})
    remembered = [f"agent:main:wishee:dm:{id}" for id in ids]
    found = list_of(db, remembered)
    assert len(found) == 60 and len({one["sessionKey"] for one in found}) == 60
    if db.version > 14:
        assert [one["sessionKey"][-4:] for one in list_of(db)] == ids[:39:-1]


# --- leases


def lease(db, session_id, holder="pid=1:turn=x", since=AT, until=AT + 300):
    row = {
        "conversation_id": session_id,
        "holder": holder,
        "acquired_at": since,
        "expires_at": until,
    }
    db.insert("session_turn_leases", [row])


def at_work(db, session_id="s", now=AT + 100):
    db.routes({KEY: session_id})
    history = history_of(db, wall=lambda: now)
    listed = history.sessions(set())[0]["working"]
    told = history.turns(session_id, 20, (), strip_thoughts)[-1].get("status") == "inProgress"
    assert listed == told
    return told


@pytest.fixture(params=[21, 22])
def leasing(request, tmp_path):
    db = StateDb(tmp_path / "home", request.param)
    db.session("s")
    db.say("s", ("user", "a"), ("assistant", "b"), at=AT + 50)
    return db


def test_a_lease_says_that_somebody_works(leasing):
    lease(leasing, "s")
    assert at_work(leasing)


def test_a_lease_of_another_session_says_nothing(leasing):
    lease(leasing, "other")
    assert not at_work(leasing)


def test_a_lease_that_has_run_out_says_nothing(leasing):
    lease(leasing, "s", until=AT + 99)
    assert not at_work(leasing)


def test_the_lease_of_a_dead_process_says_nothing(leasing):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    lease(leasing, "s", holder=f"pid={int(gone.stdout)}:turn=x")
    assert not at_work(leasing)


@pytest.mark.parametrize("reason", ["compression", "reset"])
def test_a_lease_is_held_by_what_the_session_was_before_its_compression(leasing, reason):
    leasing.session("root", end_reason="compression")
    leasing.session("middle", parent_session_id="root", end_reason=reason)
    leasing.change("UPDATE sessions SET parent_session_id = 'middle' WHERE id = 's'")
    lease(leasing, "root")
    assert at_work(leasing) is (reason == "compression")


def test_ancestors_in_a_circle(leasing):
    leasing.change("UPDATE sessions SET parent_session_id = 's', end_reason = 'compression'")
    started = time.monotonic()
    assert not at_work(leasing)
    leasing.change("DELETE FROM gateway_routing")
    lease(leasing, "s")
    assert at_work(leasing)
    assert time.monotonic() - started < 2


def test_a_lease_that_is_younger_than_the_last_row(leasing):
    lease(leasing, "s", since=AT + 90)
    (found,) = turns_of(leasing, wall=lambda: AT + 100)
    assert found["status"] == "completed"


def test_who_is_alive():
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    dead = int(gone.stdout)
    space = os.readlink("/proc/self/ns/pid")[5:-1]
    assert not lives(f"pid={dead}:turn=x")
    assert not lives(f"pid={dead}:pidns={space}:turn=x")
    assert lives(f"pid={os.getpid()}:turn=x") and lives("pid=1")
    # Doubt is left to the end of the lease.
    assert lives(f"pid={dead}:pidns=1{space}:turn=x")
    assert lives("") and lives("somebody") and lives("pid=0:") and lives(f"pid={'9' * 30}")


# --- usage and context


def test_usage_is_the_sum_of_all_sessions(db):
    db.session(
        "s",
        input_tokens=1,
        output_tokens=20,
        cache_read_tokens=300,
        cache_write_tokens=4000,
        estimated_cost_usd=0.5,
    )
    db.session("t", AT + 1, input_tokens=1, estimated_cost_usd=9.0, actual_cost_usd=0.25, model="n")
    db.session("u", AT + 2, model=None, output_tokens=None)
    assert history_of(db).usage() == Usage(2, 20, 300, 4000, 0.75, "n")


def test_usage_of_a_new_home(db):
    assert history_of(db).usage() == Usage()


def test_the_context_of_a_session(db):
    db.session("s")
    db.routes({KEY: "s"}, used=100)
    assert history_of(db).context("agent:main:main", KEY) is None
    cache = db.home / "context_length_cache.yaml"
    cache.write_text("context_lengths:\n  other@http://h/v1: 9\n")
    assert history_of(db).context(KEY) is None
    cache.write_text("context_lengths:\n  m@http://h/v1: 2000\n")
    assert history_of(db).context("agent:main:main", KEY) == (100, 2000)
    assert history_of(db).context(FOREIGN) is None


def test_the_context_of_a_session_that_has_sent_no_prompt(db):
    db.session("s")
    db.routes({KEY: "s"})
    (db.home / "context_length_cache.yaml").write_text("context_lengths:\n  m@http://h/v1: 2000\n")
    assert history_of(db).context(KEY) is None


def test_the_windows_that_hermes_has_found_out(tmp_path):
    long = "m" * 140
    (tmp_path / "context_length_cache.yaml").write_text(
        "bedrock_confirmed_v1:\n  no@http://h: 1\n"
        "context_lengths:\n"
        "  a/b:free@http://h:80/v1: 100\n"
        "  a/b:free@https://other/v1: 200\n"
        "  model-x@2024@https://u:p@host/v1: 300\n"
        "  'it''s: x@http://h': 400\n"
        '  "quo\\"ted@http://h": 500\n'
        f"  ? {long}@http://h\n  : 600\n"
        "  # a comment@http://h: 7\n"
        "  odd@http://h: many\n"
        "  plain: 700\n"
        "other:\n  m@http://h: 8\n"
    )
    assert windows(str(tmp_path)) == {
        "a/b:free": 200,
        "model-x@2024": 300,
        "it's: x": 400,
        'quo"ted': 500,
        long: 600,
        "plain": 700,
    }


def test_windows_that_cannot_be_read(tmp_path):
    assert windows(str(tmp_path)) == {}
    (tmp_path / "context_length_cache.yaml").write_bytes(b"context_lengths:\n  \xff@http: 1\n\0")
    assert len(windows(str(tmp_path))) == 1
    (tmp_path / "context_length_cache.yaml").unlink()
    (tmp_path / "context_length_cache.yaml").mkdir()
    assert windows(str(tmp_path)) == {}


# --- a database that is not as it should be


def everything(history: History) -> list[Any]:
    return [
        history.max_message_id(),
        history.route(KEY),
        history.history("s", 20),
        history.turns("s", 20, (), strip_thoughts),
        history.sessions(set()),
        history.usage(),
        history.context(KEY),
    ]


NOTHING: list[Any] = [0, None, [], [], [], Usage(), None]


def test_a_home_without_a_database(tmp_path):
    assert everything(History(str(tmp_path / "none"))) == NOTHING
    assert not (tmp_path / "none").exists()


def test_a_database_without_tables(tmp_path):
    with sqlite3.connect(tmp_path / "state.db") as made:
        made.execute("CREATE TABLE other (x)")
    made.close()
    assert everything(History(str(tmp_path))) == NOTHING


@pytest.mark.parametrize("missing", ["sessions", "gateway_routing", "session_turn_leases"])
def test_a_database_without_one_table(newest, missing):
    newest.session("s")
    newest.say("s", ("user", "a"))
    newest.routes({KEY: "s"})
    newest.change(f"DROP TABLE {missing}")
    everything(history_of(newest))
    assert [texts(turn) for turn in turns_of(newest)] == [["a"]]


def test_a_database_without_the_messages(newest):
    newest.session("s")
    newest.routes({KEY: "s"})
    newest.change("DROP TABLE messages")
    assert history_of(newest).turns("s", 20, (), strip_thoughts) == []
    everything(history_of(newest))


def test_a_schema_between_those_that_are_known(tmp_path):
    db = StateDb(tmp_path / "home", 14)
    db.change("ALTER TABLE messages ADD COLUMN active INTEGER")
    db.change("ALTER TABLE messages ADD COLUMN something_new TEXT")
    db.change("DROP INDEX idx_messages_session")
    db.session("s")
    db.say("s", ("user", "a"), ("user", "b"))
    db.change("UPDATE messages SET active = 0 WHERE content = 'b'")
    assert [one["content"] for one in messages_of(db)] == ["a"]


def test_a_damaged_database_is_said(tmp_path):
    (tmp_path / "state.db").write_bytes(b"no database " * 1000)
    with pytest.raises(HistoryFailed, match="not a database"):
        History(str(tmp_path)).history("s", 20)


def test_a_locked_database_is_waited_for(newest):
    newest.session("s")
    newest.say("s", ("user", "a"))
    with newest.write() as writer:
        writer.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        with pytest.raises(HistoryFailed, match="locked"):
            History(str(newest.home), busy=0.2).history("s", 20)
        assert 0.15 < time.monotonic() - started < 5
        ending = threading.Timer(0.2, lambda: None)
        ending.start()
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(messages_of(newest)))
        reader.start()
        ending.join()
        assert not found
        writer.execute("ROLLBACK")
        reader.join(10)
    assert [one["content"] for one in found[0]] == ["a"]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_writer_at_the_same_time(tmp_path, journal):
    db = StateDb(tmp_path / "home", 22, journal)
    db.session("s")
    db.routes({KEY: "s"})
    history = history_of(db)
    failed: list[BaseException] = []

    def write():
        try:
            with db.write() as connection:
                for n in range(150):
                    connection.execute(
                        "INSERT INTO messages (session_id, role, content, timestamp)"
                        " VALUES ('s', 'user', ?, ?)",
                        (f"{n}", AT + n),
                    )
        except sqlite3.Error as fault:
            failed.append(fault)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(len(history.history("s", 200)))
        assert len(history.sessions(set())) == 1
    writer.join()
    assert not failed and seen == sorted(seen)
    assert len(history.history("s", 200)) == 150


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_nothing_is_written(tmp_path, journal):
    db = StateDb(tmp_path / "home", 22, journal)
    db.session("s")
    db.say("s", ("user", "a"))
    db.routes({KEY: "s"})
    before = db.path.read_bytes()
    everything(history_of(db))
    assert db.path.read_bytes() == before
    assert not list(db.home.glob("state.db-journal"))


def test_the_database_is_found_again_after_it_was_replaced(newest, tmp_path):
    newest.session("s")
    newest.say("s", ("user", "old"))
    history = history_of(newest)
    assert history.history("s", 20)[0]["content"] == "old"
    other = StateDb(tmp_path / "other", 22)
    other.session("s")
    other.say("s", ("user", "new"))
    os.replace(other.path, newest.path)
    assert history.history("s", 20)[0]["content"] == "new"


# --- sizes


@pytest.fixture(scope="module", params=EVERY, ids=list(VERSIONS))
def large(request, tmp_path_factory):
    """1,000 sessions with 20 rows each, and one with 5,000 rows."""
    db = StateDb(tmp_path_factory.mktemp("large") / "home", request.param)
    ids = [f"20261130_114203_{n:08x}" for n in range(1000)]
    sessions = [
        {
            "id": id,
            "source": "wishee",
            "model": "m",
            "title": f"title {n}",
            "started_at": AT + n,
            "system_prompt": "x" * 8000,
            "input_tokens": 5,
        }
        for n, id in enumerate(ids)
    ]
    db.insert("sessions", [*sessions, {"id": "large", "source": "wishee", "started_at": AT}])
    rows = [
        {
            "session_id": id,
            "role": ("user", "assistant")[step % 2],
            "content": "word " * 40,
            "timestamp": AT + n + step,
        }
        for n, id in enumerate(ids)
        for step in range(20)
    ]
    roles = ("user", "assistant", "tool", "assistant", "tool")
    rows += [
        {
            "session_id": "large",
            "role": roles[step % 5],
            "content": "word " * 60,
            "timestamp": AT + step,
        }
        for step in range(5000)
    ]
    db.insert("messages", rows)
    db.routes({f"agent:main:wishee:dm:{id}": id for id in ids}, used=55)
    return db


@pytest.fixture
def steps(monkeypatch):
    """Counts what SQLite has to do for a call, in steps of its virtual machine."""
    real = sqlite3.connect
    count = 0

    def connect(*args: Any, **more: Any) -> sqlite3.Connection:
        def add() -> None:
            nonlocal count
            count += 10

        connection = real(*args, **more)
        connection.set_progress_handler(add, 10)
        return connection

    def of(call: Callable[[], object]) -> int:
        nonlocal count
        monkeypatch.setattr(sqlite3, "connect", connect)
        count = 0
        call()
        monkeypatch.setattr(sqlite3, "connect", real)
        return count

    return of


def test_W18_the_list_of_a_thousand_sessions_is_quick(large, steps):
    history = history_of(large)
    assert len(history.sessions(set())) == 60
    assert best(lambda: history.sessions(set())) < LIMIT
    assert best(lambda: history.sessions(set(), ours=True)) < LIMIT
    # A few for each session, and not those for each of its rows.
    assert steps(lambda: history.sessions(set())) < 60 * 1000


def test_W18_turns_and_history_of_five_thousand_rows_are_quick(large, steps):
    history = history_of(large)
    assert len(history.turns("large", 100, (), strip_thoughts)) == 100
    assert len(history.history("large", 200)) == 200
    assert best(lambda: history.turns("large", 20, (), strip_thoughts)) < LIMIT
    assert best(lambda: history.turns("large", 100, (), strip_thoughts)) < LIMIT
    assert best(lambda: history.history("large", 200)) < LIMIT
    # A few for each row that is told.
    assert steps(lambda: history.turns("large", 20, (), strip_thoughts)) < 5000
    assert steps(lambda: history.history("large", 80)) < 5000


def test_W18_what_each_turn_asks_for_reads_one_row(large, steps):
    history = history_of(large)
    key = f"agent:main:wishee:dm:20261130_114203_{7:08x}"
    assert history.route(key) is not None
    asked: tuple[Callable[[], object], ...] = (
        lambda: history.max_message_id(),
        lambda: history.route("agent:main:main", key),
        lambda: history.context(key),
    )
    for ask in asked:
        assert best(ask) < LIMIT
        assert steps(ask) < 600
    assert best(lambda: history.usage()) < LIMIT


def test_W22_a_large_session_is_cut(newest):
    newest.session("s")
    newest.say("s", *[("user", "a"), ("assistant", "x" * 20_000)] * 100)
    found = turns_of(newest, limit=200)
    assert 20 < len(found) < 30 and size({"turns": found}) <= BUDGET
    assert texts(found[-1]) == ["a", "x" * 20_000]
    found = messages_of(newest, limit=200)
    assert size({"messages": found}) <= BUDGET and found[-1]["content"] == "x" * 20_000


@pytest.mark.parametrize("later", [(), (("user", "b"),)])
def test_W22_of_a_large_turn_the_end_is_told(newest, later):
    newest.session("s")
    first = newest.say("s", ("user", "a"), *[("assistant", f"{n:020000}") for n in range(60)])[0]
    newest.say("s", *later)
    found = turns_of(newest)
    assert len(found) == 1 + len(later) and found[0]["id"] == f"s:{first}"
    assert found[0]["startedAt"] == 1_796_000_000_000
    assert texts(found[0]) == [f"{n:020000}" for n in range(60)][-len(texts(found[0])) :]
    assert 20 < len(texts(found[0])) < 30


def test_W23_what_is_held_is_bounded_whatever_is_stored(newest):
    newest.session("s")
    newest.say("s", ("user", "a"), *[("assistant", "x" * 20_000)] * 1500, ("user", "b"))
    history = history_of(newest)
    tracemalloc.start()
    try:
        history.turns("s", 200, (), strip_thoughts)
        history.history("s", 200)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * BUDGET and held < BUDGET


def test_W23_many_short_rows_are_not_all_read(newest):
    newest.session("s")
    newest.say("s", ("user", "a"), *[("assistant", "x")] * 20_000, ("user", "b"))
    started = time.monotonic()
    found = turns_of(newest)
    assert time.monotonic() - started < 2
    assert texts(found[-1]) == ["b"] and 1000 < len(texts(found[0])) < 5000
