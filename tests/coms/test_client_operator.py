"""questions and answer: the way out when the chat is down."""

import json
import os
import pty
import pwd
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_bridges.coms import client
from tests.coms.client_stage import Pool
from tests.harness.wire import ulid


@pytest.fixture
def pool(short_tmp: Path) -> Iterator[Pool]:
    pool = Pool(short_tmp)
    yield pool
    pool.close()


def bridge(pool: Pool) -> Path:
    return pool.home / ".pi" / "coms" / "hermes-bridge"


def record(pool: Pool, state: str = "delivered", age: float = 5.0, **more: Any) -> str:
    """A question as the daemon records it."""
    qid = more.pop("qid", ulid())
    directory = bridge(pool) / "pending"
    directory.mkdir(parents=True, exist_ok=True)
    body = {
        "v": 1,
        "qid": qid,
        "state": state,
        "owner": {"project": "default", "name": "user-remote", "session": ulid()},
        "envelope": {
            "sender_session": "s",
            "sender_endpoint": "/x.sock",
            "sender_name": "asker",
            "sender_cwd": "/w",
        },
        "options": ["Yes", "No"],
        "text": "❓ Deploy?\n\nOptions:\n1. Yes\n2. No",
        "received_at": time.time() - age,
        "deadline": time.time() + 600,
        "limit_ms": 600_000,
        "sends": 1,
        **more,
    }
    (directory / f"{qid}.json").write_text(json.dumps(body))
    return qid


def shown(pool: Pool, capsys, *words: str) -> list[dict[str, Any]]:
    assert client.main(["questions", "--json", *words], pool.environ) == 0
    return json.loads(capsys.readouterr().out)


# questions.


def test_questions_prints_the_open_ones_oldest_first(pool: Pool, capsys) -> None:
    young = record(pool, "received", age=3)
    old = record(
        pool,
        "delivered",
        age=3 * 3600 + 120,
        owner={"project": "web", "name": "x", "session": ulid()},
    )
    middle = record(pool, "sending", age=125)
    for state in ("replying", "closed", "other"):
        record(pool, state)
    assert client.main(["questions"], pool.environ) == 0
    head, *rows = [re.split(" {2,}", row) for row in capsys.readouterr().out.splitlines()]
    assert head == ["qid", "age", "project", "peer", "delivered"]
    assert [row[0] for row in rows] == [old, middle, young]
    assert rows[0][1:] == ["3h02m", "web", "asker", "yes"]
    assert rows[1][1] in ("2m05s", "2m06s") and rows[1][4] == "no"
    assert rows[2][1] in ("3s", "4s") and rows[2][2:] == ["default", "asker", "no"]


def test_questions_says_when_there_are_none(pool: Pool, capsys) -> None:
    assert client.main(["questions"], pool.environ) == 0
    assert capsys.readouterr().out == "(no open questions)\n"
    record(pool, "closed")
    assert client.main(["questions"], pool.environ) == 0
    assert capsys.readouterr().out == "(no open questions)\n"
    assert shown(pool, capsys) == []


def test_texts_are_shown_only_when_asked_for(pool: Pool, capsys) -> None:
    record(pool, age=90_000)
    assert client.main(["questions"], pool.environ) == 0
    out = capsys.readouterr().out
    assert "Deploy" not in out and "1d01h" in out
    assert client.main(["questions", "--show"], pool.environ) == 0
    out = capsys.readouterr().out
    assert "    ❓ Deploy?\n\n    Options:\n    1. Yes\n    2. No\n" in out


def test_a_question_whose_text_is_not_kept_shows_its_options(pool: Pool, capsys) -> None:
    qid = record(pool, text="")
    (bridge(pool) / "questions").mkdir()
    (bridge(pool) / "questions" / f"{qid}.answer.json").write_text("{}")
    assert client.main(["questions", "--show"], pool.environ) == 0
    out = capsys.readouterr().out
    assert "    1. Yes\n    2. No\n" in out and "waits to be taken" in out


def test_questions_in_json(pool: Pool, capsys) -> None:
    qid = record(pool, age=10)
    (item,) = shown(pool, capsys)
    assert 10 <= item.pop("age_s") < 15
    assert item == {
        "qid": qid,
        "project": "default",
        "peer": "asker",
        "delivered": True,
        "answer_waits": False,
    }
    (item,) = shown(pool, capsys, "--show")
    assert item["text"].startswith("❓ Deploy?") and item["options"] == ["Yes", "No"]


def test_questions_of_one_project(pool: Pool, capsys) -> None:
    record(pool)
    web = record(pool, owner={"project": "web", "name": "x", "session": "y"})
    assert [item["qid"] for item in shown(pool, capsys, "--project", "web")] == [web]
    assert client.main(["questions", "--project", "../x"], pool.environ) == 2


def test_an_answer_that_waits_is_told_in_json(pool: Pool, capsys) -> None:
    qid = record(pool)
    elsewhere = pool.root / "q"
    elsewhere.mkdir()
    (elsewhere / f"{qid}.answer.json").write_text("{}")
    assert shown(pool, capsys)[0]["answer_waits"] is False
    words = ["--questions-dir", str(elsewhere)]
    assert shown(pool, capsys, *words)[0]["answer_waits"] is True


def test_KH33_odd_files_beside_the_records_hide_nothing(pool: Pool, capsys) -> None:
    good = record(pool)
    pending = bridge(pool) / "pending"
    (pending / ".owner-x.lock").touch()
    (pending / f"{ulid()}.json.bad-1").write_text("{")
    (pending / "notes.json").write_text("{}")
    (pending / f"{ulid()}.json").write_text("{")
    (pending / f"{ulid()}.json").write_text("[" * 100_000)
    (pending / f"{ulid()}.json").write_text("[]")
    (pending / f"{ulid()}.json").mkdir()
    linked = pending / f"{record(pool)}.json"
    linked.symlink_to(linked.rename(bridge(pool) / "elsewhere.json"))
    os.mkfifo(pending / f"{ulid()}.json")
    with (pending / f"{ulid()}.json").open("wb") as file:
        file.truncate(1 << 40)
    record(pool, v=2)
    assert client.main(["questions"], pool.environ) == 0
    out, err = capsys.readouterr()
    assert [row.split()[0] for row in out.splitlines()[1:]] == [good]
    assert err == f"8 record(s) in {pending} could not be read\n"


def test_records_with_fields_of_other_types_are_shown_as_far_as_they_go(pool: Pool, capsys) -> None:
    record(pool, envelope=[], options="x", text=None, received_at="now")
    (item,) = shown(pool, capsys, "--show")
    assert item["project"] == "default" and item["peer"] == "" and item["options"] == []
    assert client.main(["questions"], pool.environ) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2:] == ["default", "-", "yes"]


@pytest.mark.parametrize(
    "received_at", ["-Infinity", "Infinity", "NaN", "-1", "1e300", "9" * 4_000, "1e11", '"now"']
)
def test_a_time_that_is_none_counts_as_the_oldest(pool: Pool, capsys, received_at: str) -> None:
    good, odd = record(pool), record(pool, received_at="here")
    path = bridge(pool) / "pending" / f"{odd}.json"
    path.write_text(path.read_text().replace('"here"', received_at))
    items = shown(pool, capsys)
    assert [item["qid"] for item in items] == [odd, good]
    assert abs(items[0]["age_s"] - time.time()) < 60
    assert client.main(["questions"], pool.environ) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == [odd, good]


def test_a_peers_text_cannot_forge_rows_or_reach_the_terminal(pool: Pool, capsys) -> None:
    envelope = {"sender_name": "a\nFAKE ROW\x1b[2J"}
    text = "\x1b[2Jhello\u2028FAKE\u2029FAKE\x85FAKE \u202eolleh\u2069\ufeff\u200b"
    record(pool, envelope=envelope, text=text)
    assert client.main(["questions", "--show"], pool.environ) == 0
    assert f"    {text}\n" in capsys.readouterr().out
    main, other = pty.openpty()
    child = pool.start("questions", "--show", stdout=other)
    os.close(other)
    assert child.wait(20) == 0
    seen = os.read(main, 4096)
    os.close(main)
    lines = seen.decode().splitlines()
    assert "    hello FAKE FAKE FAKE olleh" in lines and "\x1b" not in "".join(lines)
    assert not [line for line in lines if line.startswith("FAKE")]


def test_a_pending_directory_that_cannot_be_read_is_said(pool: Pool, capsys) -> None:
    bridge(pool).mkdir(parents=True)
    (bridge(pool) / "pending").write_text("")
    assert client.main(["questions"], pool.environ) == 1
    assert "pending" in capsys.readouterr().err


# answer.


def written(pool: Pool, qid: str, directory: Path | None = None) -> dict[str, Any]:
    directory = directory or bridge(pool) / "questions"
    path = directory / f"{qid}.answer.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    # A temporary file would be looked at by the daemon.
    assert [entry.name for entry in directory.iterdir()] == [path.name]
    return json.loads(path.read_text())


def test_answer_writes_the_file_that_the_skill_would_write(pool: Pool, capsys) -> None:
    qid = record(pool)
    assert client.main(["answer", qid, "  ja,", "bitte ü "], pool.environ) == 0
    assert capsys.readouterr().out == f"answered {qid}\n"
    answer = written(pool, qid)
    assert set(answer) == {"qid", "answer", "answered_by", "at"}
    assert (answer["qid"], answer["answer"]) == (qid, "ja, bitte ü")
    assert answer["answered_by"] == f"console:{pwd.getpwuid(os.getuid()).pw_name}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answer["at"])


def test_answer_in_the_name_of_somebody_and_elsewhere(pool: Pool, capsys) -> None:
    qid = record(pool)
    elsewhere = pool.root / "a" / "questions"
    words = ["--as", "telegram:anna", "--questions-dir", str(elsewhere)]
    assert client.main(["answer", qid, "2", *words], pool.environ) == 0
    assert written(pool, qid, elsewhere)["answered_by"] == "telegram:anna"


@pytest.mark.parametrize("by", ["anna", "telegram:", "telegram:a b", "telegram:a\n", "x:y"])
def test_answer_in_a_name_that_is_none_is_refused(pool: Pool, capsys, by) -> None:
    qid = record(pool)
    assert client.main(["answer", qid, "x", "--as", by], pool.environ) == 2
    assert "telegram:<user>" in capsys.readouterr().err
    assert not (bridge(pool) / "questions").exists()


def test_answer_from_stdin(pool: Pool) -> None:
    qid = record(pool)
    code, _, _ = pool.run("answer", qid, "-", input=b"first\nsecond\n")
    assert code == 0 and written(pool, qid)["answer"] == "first\nsecond"


@pytest.mark.parametrize("text", ["", "  \n", "\ufeff", "\u00a0"])
def test_an_empty_answer_is_refused(pool: Pool, capsys, text) -> None:
    qid = record(pool)
    assert client.main(["answer", qid, text], pool.environ) == 2
    assert "empty" in capsys.readouterr().err
    assert not (bridge(pool) / "questions").exists()


@pytest.mark.parametrize("state", [None, "closed", "replying"])
def test_answer_to_what_is_not_open_needs_force(pool: Pool, capsys, state) -> None:
    qid = ulid() if state is None else record(pool, state)
    assert client.main(["answer", qid, "x"], pool.environ) == 1
    assert f"no open question {qid}" in capsys.readouterr().err
    assert not (bridge(pool) / "questions").exists()
    assert client.main(["answer", qid, "x", "--force"], pool.environ) == 0
    assert written(pool, qid)["answer"] == "x"


def test_answer_does_not_replace_one_that_waits_without_force(pool: Pool, capsys) -> None:
    qid = record(pool)
    assert client.main(["answer", qid, "first"], pool.environ) == 0
    assert client.main(["answer", qid, "second"], pool.environ) == 1
    assert "waits" in capsys.readouterr().err
    assert written(pool, qid)["answer"] == "first"
    assert client.main(["answer", qid, "second", "--force"], pool.environ) == 0
    assert written(pool, qid)["answer"] == "second"


def test_a_record_that_cannot_be_read_is_said_and_force_writes(pool: Pool, capsys) -> None:
    qid = record(pool)
    (bridge(pool) / "pending" / f"{qid}.json").write_text("{")
    assert client.main(["answer", qid, "x"], pool.environ) == 1
    assert "is damaged" in capsys.readouterr().err
    assert client.main(["answer", qid, "x", "--force"], pool.environ) == 0


@pytest.mark.parametrize("qid", ["x", "../../../../tmp/x", "0" * 25, "0" * 26 + "\n", "o" * 26])
def test_a_qid_that_is_none_becomes_no_path(pool: Pool, capsys, qid) -> None:
    assert client.main(["answer", qid, "x", "--force"], pool.environ) == 2
    assert "invalid qid" in capsys.readouterr().err
    assert not bridge(pool).exists()


def test_S2_a_loose_questions_directory_is_tightened(pool: Pool, capsys) -> None:
    qid = record(pool)
    (bridge(pool) / "questions").mkdir()
    (bridge(pool) / "questions").chmod(0o777)
    before = os.umask(0)
    try:
        assert client.main(["answer", qid, "x"], pool.environ) == 0
    finally:
        os.umask(before)
    written(pool, qid)


def test_S3_a_symlink_in_place_of_the_answer_is_replaced_and_not_followed(
    pool: Pool, capsys
) -> None:
    qid = record(pool)
    victim = pool.root / "victim"
    victim.write_text("untouched")
    (bridge(pool) / "questions").mkdir(mode=0o700)
    (bridge(pool) / "questions" / f"{qid}.answer.json").symlink_to(victim)
    assert client.main(["answer", qid, "x", "--force"], pool.environ) == 0
    assert victim.read_text() == "untouched" and written(pool, qid)["answer"] == "x"


def test_a_directory_that_cannot_be_written_is_said(pool: Pool, capsys) -> None:
    qid = record(pool)
    (bridge(pool) / "questions").write_text("")
    assert client.main(["answer", qid, "x"], pool.environ) == 1
    out, err = capsys.readouterr()
    assert out == "" and "questions" in err


def test_a_user_without_a_name_answers_by_number(pool: Pool, capsys, monkeypatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    qid = record(pool)
    assert client.main(["answer", qid, "x"], pool.environ) == 0
    assert written(pool, qid)["answered_by"] == f"console:{os.getuid()}"
