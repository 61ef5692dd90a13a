"""list, ping and cancel."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms import client
from tests.coms.client_stage import Connection, Peer, Pool, Script, acks
from tests.harness.wire import Fields, ulid


@pytest.fixture
def pool(short_tmp: Path) -> Iterator[Pool]:
    pool = Pool(short_tmp)
    yield pool
    pool.close()


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


# list.


def test_list_prints_name_model_and_purpose_by_tabs(pool: Pool, capsys) -> None:
    pool.enter("beta", "/b.sock", model="m2", purpose="second")
    pool.enter("alpha", "/a.sock", model="m1", purpose="first")
    assert client.main(["list"], pool.environ) == 0
    assert capsys.readouterr().out == "alpha\tm1\tfirst\nbeta\tm2\tsecond\n"


def test_list_leaves_out_oneself_and_explicit_peers(pool: Pool, capsys) -> None:
    pool.enter("me", "/m.sock")
    pool.enter("helper", "/h.sock", explicit=True)
    pool.enter("alpha", "/a.sock")
    assert client.main(["list", "--name", "me"], pool.environ) == 0
    assert [row.split("\t")[0] for row in capsys.readouterr().out.splitlines()] == ["alpha"]
    assert client.main(["list", "--name", "me", "--all"], pool.environ) == 0
    rows = [row.split("\t")[0] for row in capsys.readouterr().out.splitlines()]
    assert rows == ["alpha", "helper"]


def test_list_of_an_empty_pool_says_so(pool: Pool, capsys) -> None:
    assert client.main(["list", "--project", "other"], pool.environ) == 0
    assert capsys.readouterr().out == '(no live peers in project "other")\n'
    assert client.main(["list", "--json"], pool.environ) == 0
    assert capsys.readouterr().out == "[]\n"
    assert not (pool.coms / "projects" / "other").exists()


def test_list_in_json_holds_the_entries(pool: Pool, capsys) -> None:
    path = pool.enter("alpha", "/a.sock", purpose="tab\tand ü")
    assert client.main(["list", "--json"], pool.environ) == 0
    assert json.loads(capsys.readouterr().out) == [json.loads(path.read_text())]


def test_the_dead_are_not_listed_and_their_entries_go(pool: Pool, capsys) -> None:
    dead = pool.enter("dead", "/d.sock", pid=dead_pid(), heartbeat_at="2020-01-01T00:00:00.000Z")
    odd = pool.agents / "odd.json"
    odd.write_text("{")
    pool.enter("alive", "/a.sock", pid=dead_pid())
    assert client.main(["list"], pool.environ) == 0
    assert capsys.readouterr().out.split("\t")[0] == "alive"
    assert not dead.exists() and odd.exists()


def test_a_peer_cannot_forge_a_row_or_reach_the_terminal(pool: Pool, capsys) -> None:
    pool.enter(
        "evil", "/e.sock", model={"a": 1}, purpose="x\nfake\tm\tp\x1b[2J\u2028y\u202e\u200b\r"
    )
    assert client.main(["list"], pool.environ) == 0
    plain = 'evil\t{\n  "a": 1\n}\tx fake m p\x1b[2J y\u202e\u200b \n'
    assert capsys.readouterr().out == plain.replace('{\n  "a": 1\n}', '{   "a": 1 }')
    main, other = pty.openpty()
    child = pool.start("list", stdout=other)
    os.close(other)
    assert child.wait(20) == 0
    shown = os.read(main, 4096)
    os.close(main)
    assert shown.decode() == 'evil\t{   "a": 1 }\tx fake m p y \r\n'


def test_entries_without_the_fields_are_listed_with_blanks(pool: Pool, capsys) -> None:
    (pool.agents / "bare.json").write_text(
        json.dumps({"name": "bare", "endpoint": "/b.sock", "pid": os.getpid()})
    )
    assert client.main(["list"], pool.environ) == 0
    assert capsys.readouterr().out == "bare\t\t\n"


def test_a_registry_that_cannot_be_read_is_said(pool: Pool, capsys) -> None:
    pool.agents.rmdir()
    pool.agents.write_text("")
    assert client.main(["list"], pool.environ) == 1
    assert str(pool.agents) in capsys.readouterr().err


# ping.


def pongs(card: object) -> Script:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        pong = {"type": "pong", "msg_id": envelope["msg_id"], "agent_card": card}
        connection.send(pong)

    return script


def test_ping_prints_the_card_and_the_time(pool: Pool, capsys) -> None:
    card = {"name": "user-remote", "purpose": "human", "model": "m", "queue_depth": 3}
    peer = pool.peer(script=pongs(card))
    assert client.main(["ping", "user-remote"], pool.environ) == 0
    *cells, took = capsys.readouterr().out.rstrip("\n").split("\t")
    assert cells == ["user-remote", "m", "human", "queue 3"]
    assert took.endswith(" ms") and 0 <= float(took.removesuffix(" ms")) < 5000
    sent = peer.next("ping")
    assert len(sent["msg_id"]) == 26


def test_a_peer_that_only_acks_a_ping_is_there(pool: Pool, capsys) -> None:
    pool.peer("cli", explicit=True)
    assert client.main(["ping", "cli", "--all"], pool.environ) == 0
    assert capsys.readouterr().out.startswith("cli\t\t\tqueue ?\t")


def test_H5_ping_of_a_peer_that_does_not_answer_ends_with_3(pool: Pool, capsys) -> None:
    begun = time.monotonic()
    with pool.stuck():
        assert client.main(["ping", "user-remote", "--timeout", "200"], pool.environ) == 3
    assert time.monotonic() - begun < 5
    assert "user-remote gave no ack" in capsys.readouterr().err


def test_a_peer_that_is_gone_or_refuses_a_ping_is_exit_1(pool: Pool, capsys) -> None:
    pool.enter("gone", str(pool.sockets / "gone.sock"))
    assert client.main(["ping", "gone"], pool.environ) == 1
    assert "gone has no socket any more" in capsys.readouterr().err
    nack = {"type": "nack", "error": "awaits responses only"}
    pool.peer(script=lambda peer, connection, envelope: connection.send(nack))
    assert client.main(["ping", "user-remote"], pool.environ) == 1
    assert "awaits responses only" in capsys.readouterr().err


# cancel.


def test_cancel_sends_the_envelope_and_ends_the_wait(pool: Pool, capsys) -> None:
    peer = pool.peer()
    msg_id = ulid()
    pending = pool.spool("me") / "pending"
    pending.mkdir(parents=True)
    (pending / f"{msg_id}.json").write_text("{}")
    assert client.main(["cancel", "user-remote", msg_id, "--name", "me"], pool.environ) == 0
    assert capsys.readouterr().out == f"cancelled {msg_id}\n"
    cancel = peer.next("cancel")
    assert set(cancel) == {"type", "msg_id", "from", "to", "created_at", "ref_msg_id"}
    assert (cancel["from"], cancel["to"], cancel["ref_msg_id"]) == ("me", "user-remote", msg_id)
    assert list(pending.iterdir()) == []
    # Nothing is kept of it, so it may be sent twice, and before anything was ever sent.
    assert client.main(["cancel", "user-remote", msg_id, "--name", "new"], pool.environ) == 0


def test_a_cancel_that_is_refused_keeps_the_marker(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        connection.send({"type": "nack", "msg_id": envelope["msg_id"], "error": "no"})

    pool.peer(script=script)
    msg_id = ulid()
    pending = pool.spool() / "pending"
    pending.mkdir(parents=True)
    (pending / f"{msg_id}.json").write_text("{}")
    assert client.main(["cancel", "user-remote", msg_id], pool.environ) == 1
    assert "user-remote refused: no" in capsys.readouterr().err
    assert len(list(pending.iterdir())) == 1


def test_H5_a_cancel_that_is_never_acked_ends_with_3(pool: Pool, capsys, monkeypatch) -> None:
    monkeypatch.setattr("hermes_bridges.coms.client.peers.ACK_LIMIT", 0.2)
    with pool.stuck():
        assert client.main(["cancel", "user-remote", ulid()], pool.environ) == 3


def test_peers_of_another_project_are_not_seen(pool: Pool, capsys) -> None:
    pool.peer(script=acks)
    words = ["--project", "elsewhere"]
    assert client.main(["cancel", "user-remote", ulid(), *words], pool.environ) == 1
    assert 'in project "elsewhere" (live peers: none)' in capsys.readouterr().err
