"""send without waiting, its detached waiter, await and reply: the spool that coms-cli shares."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms import client
from tests.coms.client_stage import COMMAND, Connection, Peer, Pool, acks, answers, exchange
from tests.conftest import wait
from tests.harness.wire import Fields, encode, ping, prompt, ulid


@pytest.fixture
def pool(short_tmp: Path) -> Iterator[Pool]:
    pool = Pool(short_tmp)
    yield pool
    pool.close()
    for pid in waiters(pool):
        os.kill(pid, signal.SIGKILL)


def waiters(pool: Pool) -> list[int]:
    """Detached processes that serve this pool."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            mine = f"PI_COMS_DIR={pool.coms}".encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mine and b"_listen" in words:
            found.append(int(entry.name))
    return found


def gone(pool: Pool) -> bool:
    return bool(wait(lambda: not waiters(pool) and not pool.left(), 15))


def sent(pool: Pool, peer: Peer, *words: str) -> tuple[str, Fields]:
    """One `send`: the msg_id that it prints, and the prompt."""
    code, out, err = pool.run("send", peer.name, *words)
    assert code == 0, err
    envelope = peer.next("prompt")
    assert out == envelope["msg_id"] + "\n"
    return envelope["msg_id"], envelope


def names(directory: Path) -> list[str]:
    """Files that are whole: one that is being written has a name of its own."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


# A prompt goes out, its response is kept.


def test_send_leaves_a_waiter_that_keeps_the_response_in_coms_clis_form(pool: Pool) -> None:
    peer = pool.peer()
    msg_id, envelope = sent(pool, peer, "how", "far?")
    assert envelope["prompt"] == "how far?" and envelope["hops"] == 0
    spool = pool.spool()
    marker = json.loads((spool / "pending" / f"{msg_id}.json").read_text())
    assert set(marker) == {"msg_id", "target", "sent_at"}
    assert (marker["msg_id"], marker["target"]) == (msg_id, "user-remote")
    assert marker["sent_at"].endswith("Z")

    (pid,) = waiters(pool)
    assert os.getsid(pid) == pid and os.getpgid(pid) == pid
    entry = json.loads((pool.agents / "coms-client.json").read_text())
    assert (entry["pid"], entry["explicit"], entry["model"]) == (pid, True, "cli")
    assert entry["endpoint"] == envelope["sender_endpoint"]
    assert "heartbeat_at" not in entry

    assert peer.respond(envelope, {"kind": "freeform", "text": "9 km"})["type"] == "ack"
    record = json.loads((spool / "responses" / f"{msg_id}.json").read_text())
    assert set(record) == {"response", "error", "received_at"}
    assert record["response"] == {"kind": "freeform", "text": "9 km"} and record["error"] is None
    assert names(spool / "pending") == [] and gone(pool)


def test_the_response_is_awaited_by_another_call(pool: Pool, capsys) -> None:
    peer = pool.peer(script=answers("done: ü"))
    msg_id, _ = sent(pool, peer, "q", "--name", "me", "--timeout", "60000")
    words = ["await", msg_id, "--name", "me", "--timeout", "20000"]
    for _ in range(2):
        assert client.main(words, pool.environ) == 0
        assert capsys.readouterr().out == "done: ü\n"
    assert gone(pool)


def test_S2_the_spool_is_private_whatever_the_umask(pool: Pool) -> None:
    peer = pool.peer()
    _, envelope = sent(pool, peer, "q")
    peer.respond(envelope, "x")
    assert gone(pool)
    before = os.umask(0)
    try:
        _, envelope = sent(pool, peer, "q", "--name", "open")
        exchange(envelope["sender_endpoint"], encode(prompt(ulid(), "in", "/x.sock")))
        peer.respond(envelope, "x")
    finally:
        os.umask(before)
    assert gone(pool)
    for path in (pool.coms / "cli").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_send_reads_stdin_and_builds_json_prompts_too(pool: Pool) -> None:
    peer = pool.peer()
    words = ["send", "user-remote", "-", "--option", "a", "--option", "b"]
    code, out, _ = pool.run(*words, input=b"Which?\n")
    envelope = peer.next("prompt")
    assert (code, out) == (0, envelope["msg_id"] + "\n")
    assert json.loads(envelope["prompt"]) == {
        "question": "Which?",
        "options": [{"title": "a"}, {"title": "b"}],
    }
    peer.respond(envelope, "a")
    assert gone(pool)


def test_the_output_of_send_ends_with_it(pool: Pool) -> None:
    """`id=$(... send ...)` must not wait for the waiter, nor may that keep a lock of the shell."""
    peer = pool.peer()
    read, write = os.pipe()
    assert pool.run("send", "user-remote", "q", pass_fds=[write])[0] == 0
    os.close(write)
    assert len(waiters(pool)) == 1
    with open(read, "rb") as pipe:
        assert pipe.read() == b""
    peer.respond(peer.next(), "x")
    assert gone(pool)


def test_KH40_the_waiter_does_not_inherit_what_belongs_to_the_service_manager(pool: Pool) -> None:
    peer = pool.peer()
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "LISTEN_FDS": "1", "KEPT": "yes"}
    assert pool.run("send", "user-remote", "q", env=environ)[0] == 0
    (pid,) = waiters(pool)
    inherited = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"KEPT=yes" in inherited
    for name in (b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"LISTEN_FDS"):
        assert not [line for line in inherited if line.startswith(name)]
    peer.respond(peer.next(), "x")
    assert gone(pool)


def test_files_in_the_working_directory_are_not_run(pool: Pool) -> None:
    """Modules there have names that the waiter imports."""
    trap = pool.root / "trap"
    (trap / "hermes_bridges").mkdir(parents=True)
    for name in ("select.py", "json.py", "signal.py", "hermes_bridges/__init__.py"):
        (trap / name).write_text("open('sprung', 'w')\n")
    peer = pool.peer()
    boot = "import os, sys; from hermes_bridges.coms.client import main;"
    command = [sys.executable, "-P", "-c", f"{boot} sys.exit(main(sys.argv[1:], os.environ))"]
    done = subprocess.run([*command, "send", "user-remote", "q"], env=pool.environ, cwd=trap)
    assert done.returncode == 0 and not (trap / "sprung").exists()
    peer.respond(peer.next(), "x")
    assert gone(pool)


# Where send fails, nothing stays.


def test_a_prompt_that_is_refused_leaves_no_waiter_and_no_marker(pool: Pool) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        connection.send({"type": "nack", "msg_id": "", "error": "no"})

    peer = pool.peer(script=script)
    code, out, err = pool.run("send", "user-remote", "q")
    assert (code, out) == (1, "") and "user-remote refused: no" in err
    assert names(pool.spool() / "pending") == [] and gone(pool)
    peer.next("prompt")
    assert peer.nothing_more()


def test_H5_send_to_a_peer_that_never_acks_ends_and_cancels(pool: Pool) -> None:
    begun = time.monotonic()
    with pool.stuck():
        code, out, err = pool.run("send", "user-remote", "q", "--timeout", "300")
    assert time.monotonic() - begun < 8
    assert (code, out) == (3, "") and "gave no ack" in err
    assert names(pool.spool() / "pending") == []
    assert wait(lambda: not waiters(pool), 15)


def test_ctrl_c_while_send_waits_for_the_ack_takes_all_back(pool: Pool) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        if envelope["type"] == "cancel":
            acks(peer, connection, envelope)
        else:
            in_background = threading.Thread(target=peer.release.wait, args=(20,), daemon=True)
            in_background.start()
            held.append(connection.socket.dup())

    held: list = []
    peer = pool.peer(script=script)
    child = pool.start("send", "user-remote", "q")
    envelope = peer.next("prompt")
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert peer.next("cancel")["ref_msg_id"] == envelope["msg_id"]
    assert names(pool.spool() / "pending") == [] and gone(pool)
    for one in held:
        one.close()


def test_a_waiter_that_cannot_start_says_why(pool: Pool) -> None:
    peer = pool.peer()
    (pool.agents.parent / "registry.lock").mkdir()
    code, out, err = pool.run("send", "user-remote", "q")
    assert (code, out) == (1, "")
    assert "the waiter did not start" in err and "registry.lock" in err
    assert peer.nothing_more() and names(pool.spool() / "pending") == []


def test_a_waiter_that_says_too_much_or_nothing_is_no_waiter(pool: Pool, capsys) -> None:
    peer = pool.peer()
    for script, told in (("exit 0", "it said nothing"), ("yes", "y")):
        fake = pool.root / "python"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        boot = (
            "import os, sys; from hermes_bridges.coms.client import main;"
            f" sys.executable = {str(fake)!r}; sys.exit(main(sys.argv[1:], os.environ))"
        )
        command = [sys.executable, "-c", boot, "send", "user-remote", "q"]
        done = subprocess.run(command, env=pool.environ, cwd=pool.root, capture_output=True)
        assert done.returncode == 1 and told in done.stderr.decode()
    assert peer.nothing_more() and names(pool.spool() / "pending") == []


def test_a_legacy_spool_is_refused_by_every_verb_that_has_a_spool(pool: Pool, capsys) -> None:
    peer = pool.peer()
    (pool.coms / "cli" / "coms-client" / "pending").mkdir(parents=True)
    for words in (["send", "user-remote", "q"], ["await", ulid()], ["reply", ulid(), "x"]):
        assert client.main(words, pool.environ) == 1
        assert "belongs to no project" in capsys.readouterr().err
    assert peer.nothing_more()


# The waiter.


class Listening:
    """A waiter that the test starts itself."""

    def __init__(self, pool: Pool, *words: str, name: str = "coms-client", ttl: int = 60_000):
        self.pool, self.name = pool, name
        self.session, self.message = ulid(), ulid()
        self.endpoint = str(pool.sockets / f"{self.session}.sock")
        for part in ("pending", "responses", "inbound"):
            (pool.spool(name) / part).mkdir(parents=True, exist_ok=True)
        self.marker = pool.spool(name) / "pending" / f"{self.message}.json"
        self.marker.write_text(json.dumps({"msg_id": self.message}))
        flags = {"--name": name, "--session": self.session, "--message": self.message}
        pairs = [word for pair in flags.items() for word in pair]
        self.child = pool.start("_listen", *pairs, "--ttl", str(ttl), *words)

    def ready(self) -> "Listening":
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"READY\n"
        return self

    def tell(self, *fields: Fields | bytes) -> list[Fields]:
        lines = [item if isinstance(item, bytes) else encode(item) for item in fields]
        return [exchange(self.endpoint, line) for line in lines]

    def response(self, value: object, **more: object) -> Fields:
        return {"type": "response", "msg_id": self.message, "response": value, **more}

    def stored(self, kind: str, msg_id: str) -> Fields:
        return json.loads((self.pool.spool(self.name) / kind / f"{msg_id}.json").read_text())


@pytest.fixture
def listening(pool: Pool) -> Listening:
    return Listening(pool).ready()


def test_the_waiter_ends_at_its_time(pool: Pool) -> None:
    begun = time.monotonic()
    waiter = Listening(pool, ttl=400).ready()
    assert waiter.child.wait(20) == 0
    assert time.monotonic() - begun >= 0.4
    assert waiter.marker.exists() and not pool.left()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_D1_the_waiter_leaves_nothing_when_it_is_told_to_end(
    pool: Pool, listening: Listening, signum
) -> None:
    assert pool.left()
    listening.child.send_signal(signum)
    assert listening.child.wait(20) == 0
    assert not pool.left()


def test_the_waiter_ends_when_its_marker_goes(pool: Pool, monkeypatch) -> None:
    waiter = Listening(pool).ready()
    waiter.marker.unlink()
    assert waiter.child.wait(20) == 0
    assert not pool.left()


def test_H1_the_waiter_survives_garbage_and_serves_many_connections(
    pool: Pool, listening: Listening
) -> None:
    replies = listening.tell(
        b"null\n",
        b"garbage\n",
        b"[" * 50_000 + b"\n",
        b"x" * 300_000 + b"\n",
        b'{"type":"response","msg_id":"../../../x","response":1}\n',
        b'{"type":"response","response":1}\n',
        listening.response("wrong", msg_id=ulid()),
        {"type": "cancel"},
        # Some versions of Python can read this one, and not follow it to write it down.
        listening.response(json.loads("[" * 495 + "]" * 495)),
    )
    assert [reply["type"] for reply in replies] == ["nack"] * 9
    assert names(pool.spool() / "responses") == []
    assert listening.tell(ping("p"))[0]["type"] == "pong"
    assert listening.tell(listening.response("good"))[0]["type"] == "ack"
    assert listening.stored("responses", listening.message)["response"] == "good"
    assert listening.child.wait(20) == 0 and not pool.left()


def test_an_untrusted_id_becomes_no_path(pool: Pool, listening: Listening) -> None:
    for msg_id in ("../../../../evil", "a/b", "", "x" * 300, ulid().lower(), ulid() + "\n"):
        (reply,) = listening.tell(prompt(msg_id, "hi", "/x.sock"))
        assert reply["type"] == "nack" and "ULID" in reply["error"]
    everything = {path.name for path in pool.root.rglob("*")}
    assert not [name for name in everything if "evil" in name]
    assert names(pool.spool() / "inbound") == []


def test_an_error_response_is_stored_and_told_by_await(
    pool: Pool, listening: Listening, capsys
) -> None:
    listening.tell(listening.response(None, error="no remote answer within 9ms"))
    assert listening.stored("responses", listening.message)["error"] == (
        "no remote answer within 9ms"
    )
    assert client.main(["await", listening.message], pool.environ) == 1
    assert capsys.readouterr().err == "peer error: no remote answer within 9ms\n"


def test_a_response_that_is_sent_again_is_acked_and_not_stored_again(
    pool: Pool, listening: Listening
) -> None:
    both = encode(listening.response("first")) + encode(listening.response("second"))
    assert exchange(listening.endpoint, both)["type"] == "ack"
    assert listening.child.wait(20) == 0
    assert listening.stored("responses", listening.message)["response"] == "first"


def test_a_response_that_cannot_be_stored_is_nacked(pool: Pool, listening: Listening) -> None:
    responses = pool.spool() / "responses"
    shutil.rmtree(responses)
    (reply,) = listening.tell(listening.response("x"))
    assert reply["type"] == "nack" and "could not be stored" in reply["error"]
    responses.mkdir()
    assert listening.tell(listening.response("x"))[0]["type"] == "ack"


def test_a_prompt_is_spooled_for_reply(pool: Pool, listening: Listening) -> None:
    qid = ulid()
    asked = prompt(qid, "und du?", "/some/where.sock", hops=2)
    assert listening.tell(asked)[0] == {"type": "ack", "msg_id": qid}
    record = listening.stored("inbound", qid)
    assert record.pop("received_at").endswith("Z")
    assert record == {
        "msg_id": qid,
        "prompt": "und du?",
        "sender_name": "tester",
        "sender_endpoint": "/some/where.sock",
        "sender_session": f"session-of-{qid}",
        "hops": 2,
    }
    # The same again is a repetition; from elsewhere it would take the reply away.
    assert listening.tell(asked)[0]["type"] == "ack"
    other = listening.tell({**asked, "sender_endpoint": "/thief.sock"})[0]
    assert other["type"] == "nack" and "another endpoint" in other["error"]
    assert listening.stored("inbound", qid)["sender_endpoint"] == "/some/where.sock"


def test_prompts_that_cannot_be_spooled_are_nacked(pool: Pool, listening: Listening) -> None:
    inbound = pool.spool() / "inbound"
    qid = ulid()
    target = pool.root / "elsewhere.json"
    target.write_text(json.dumps(prompt(qid, "hi", "/x.sock")))
    (inbound / f"{qid}.json").symlink_to(target)
    (reply,) = listening.tell(prompt(qid, "hi", "/x.sock"))
    assert reply["type"] == "nack" and "in use" in reply["error"]
    assert json.loads(target.read_text())["prompt"] == "hi"
    (inbound / f"{qid}.json").unlink()
    for number in range(1_000):
        (inbound / f"{number}").touch()
    (reply,) = listening.tell(prompt(qid, "hi", "/x.sock"))
    assert reply["type"] == "nack" and reply["error"] == "queue full"
    shutil.rmtree(inbound)
    (reply,) = listening.tell(prompt(qid, "hi", "/x.sock"))
    assert reply["type"] == "nack" and "could not be stored" in reply["error"]


def test_a_stale_socket_of_the_session_is_taken_and_a_live_one_is_not(pool: Pool) -> None:
    live = pool.peer("other")
    flags = ["--session", live.session, "--message", ulid(), "--ttl", "9"]
    code, out, err = pool.run("_listen", *flags)
    assert code == 1 and live.endpoint in err and out == ""
    assert Path(live.endpoint).exists()
    session = ulid()
    (pool.sockets / f"{session}.sock").touch()
    assert pool.run("_listen", "--session", session, "--message", ulid(), "--ttl", "9")[0] == 0
    assert not pool.left()


@pytest.mark.parametrize(
    "words", [[], ["--session", "x"], ["--session", "0" * 26], ["--message", "0" * 26], ["word"]]
)
def test_a_waiter_with_wrong_arguments_is_a_usage_error(pool: Pool, capsys, words) -> None:
    assert client.main(["_listen", *words], pool.environ) == 2


# await.


def test_a_response_that_coms_cli_has_written_is_awaited(pool: Pool, capsys) -> None:
    """The directories and the file as it makes them, in the compact form of JSON.stringify."""
    responses = pool.spool("team-cli") / "responses"
    responses.mkdir(parents=True)
    msg_id = ulid()
    (responses / f"{msg_id}.json").write_text(
        '{"response":{"kind":"freeform","text":"grün"},"error":null,'
        '"received_at":"2026-01-01T00:00:00.000Z"}'
    )
    environ = {**pool.environ, "COMS_CLI_NAME": "team-cli"}
    assert client.main(["await", msg_id], environ) == 0
    out, err = capsys.readouterr()
    assert out == '{\n  "kind": "freeform",\n  "text": "grün"\n}\n' and err == ""


def test_await_sees_a_response_that_comes_later_and_in_pieces(pool: Pool) -> None:
    responses = pool.spool() / "responses"
    msg_id = ulid()
    child = pool.start("await", msg_id, "--timeout", "20000")
    # It says so because there is no marker; from then on it looks.
    assert child.stderr is not None and msg_id.encode() in child.stderr.readline()
    with (responses / f"{msg_id}.json").open("w") as file:
        file.write('{"response":"in two')
        file.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        file.write(' pieces"}')
    assert child.wait(20) == 0
    assert child.stdout is not None and child.stdout.read() == b"in two pieces\n"


def test_await_ends_at_its_time_with_3(pool: Pool, capsys) -> None:
    msg_id = ulid()
    (pool.spool() / "pending").mkdir(parents=True)
    (pool.spool() / "pending" / f"{msg_id}.json").write_text("{}")
    begun = time.monotonic()
    assert client.main(["await", msg_id, "--timeout", "250"], pool.environ) == 3
    assert 0.25 <= time.monotonic() - begun < 5
    assert capsys.readouterr().err == f"no response to {msg_id} within 250 ms\n"


def test_await_gives_up_on_a_file_that_stays_unreadable(pool: Pool, capsys, monkeypatch) -> None:
    monkeypatch.setattr("hermes_bridges.coms.client.mail.GRACE", 0.2)
    responses = pool.spool() / "responses"
    responses.mkdir(parents=True)
    msg_id = ulid()
    (responses / f"{msg_id}.json").write_text("[1]")
    assert client.main(["await", msg_id, "--timeout", "20000"], pool.environ) == 1
    assert "no JSON object" in capsys.readouterr().err


def test_H2_a_fifo_in_place_of_a_response_does_not_block(pool: Pool, capsys) -> None:
    responses = pool.spool() / "responses"
    responses.mkdir(parents=True)
    msg_id = ulid()
    os.mkfifo(responses / f"{msg_id}.json")
    assert client.main(["await", msg_id, "--timeout", "20000"], pool.environ) == 1
    assert "not regular" in capsys.readouterr().err


def test_S3_a_symlink_in_place_of_a_response_is_not_followed(pool: Pool, capsys) -> None:
    responses = pool.spool() / "responses"
    responses.mkdir(parents=True)
    secret = pool.root / "secret.json"
    secret.write_text('{"response":"secret"}')
    msg_id = ulid()
    (responses / f"{msg_id}.json").symlink_to(secret)
    assert client.main(["await", msg_id, "--timeout", "20000"], pool.environ) == 1
    out, err = capsys.readouterr()
    assert "symlink" in err and "secret" not in out


def test_S4_a_huge_file_in_place_of_a_response_is_not_read(pool: Pool, capsys) -> None:
    responses = pool.spool() / "responses"
    responses.mkdir(parents=True)
    msg_id = ulid()
    with (responses / f"{msg_id}.json").open("wb") as file:
        file.truncate(64 << 20)
    assert client.main(["await", msg_id, "--timeout", "20000"], pool.environ) == 1
    assert "too large" in capsys.readouterr().err


def test_ctrl_c_ends_await_with_130(pool: Pool) -> None:
    child = pool.start("await", ulid())
    assert child.stderr is not None and child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert child.stderr.read() == b""


@pytest.mark.parametrize("msg_id", ["x", "../" + "0" * 23, "0" * 27, "I" * 26, "0" * 26 + "\n"])
def test_an_id_that_is_no_ulid_is_a_usage_error(pool: Pool, capsys, msg_id) -> None:
    for words in (["await", msg_id], ["reply", msg_id, "x"], ["cancel", "user-remote", msg_id]):
        assert client.main(words, pool.environ) == 2
        assert "ULID" in capsys.readouterr().err


# reply.


def inbound(pool: Pool, endpoint: object, name: str = "coms-client", **more: object) -> str:
    """A prompt in the spool as coms-cli writes it."""
    directory = pool.spool(name) / "inbound"
    directory.mkdir(parents=True, exist_ok=True)
    msg_id = ulid()
    record = {
        "msg_id": msg_id,
        "prompt": "and you?",
        "sender_name": "asker",
        "sender_endpoint": endpoint,
        "sender_session": "s1",
        "hops": 1,
        "received_at": "2026-01-01T00:00:00.000Z",
        **more,
    }
    (directory / f"{msg_id}.json").write_text(json.dumps(record))
    return msg_id


def test_reply_sends_the_response_and_forgets_the_prompt(pool: Pool, capsys) -> None:
    peer = pool.peer()
    msg_id = inbound(pool, peer.endpoint)
    assert client.main(["reply", msg_id, "I", "am", "fine"], pool.environ) == 0
    assert capsys.readouterr().out == f"replied to asker ({msg_id})\n"
    response = peer.next("response")
    assert set(response) == {
        *("type", "msg_id", "sender_session", "sender_endpoint", "hops", "timestamp"),
        *("response", "error"),
    }
    assert response["msg_id"] == msg_id and response["response"] == "I am fine"
    assert response["error"] is None and response["hops"] == 0
    assert response["sender_endpoint"].endswith(f"/sockets/{response['sender_session']}.sock")
    assert names(pool.spool() / "inbound") == []
    assert client.main(["reply", msg_id, "again"], pool.environ) == 1
    assert f"no prompt {msg_id}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["-"]])
def test_reply_takes_its_text_from_stdin(pool: Pool, words) -> None:
    peer = pool.peer()
    msg_id = inbound(pool, peer.endpoint, sender_name=None)
    code, out, _ = pool.run("reply", msg_id, *words, input=b"piped\ntext\n")
    assert (code, out) == (0, f"replied to s1 ({msg_id})\n")
    assert peer.next("response")["response"] == "piped\ntext"


def test_reply_without_a_text_is_a_usage_error(pool: Pool, capsys, monkeypatch) -> None:
    peer = pool.peer()
    msg_id = inbound(pool, peer.endpoint)
    monkeypatch.setattr("sys.stdin", None)
    assert client.main(["reply", msg_id], pool.environ) == 2
    assert "text" in capsys.readouterr().err and peer.nothing_more()


def test_reply_that_is_too_long_is_refused_and_not_cut(pool: Pool, capsys) -> None:
    peer = pool.peer()
    msg_id = inbound(pool, peer.endpoint)
    assert client.main(["reply", msg_id, "x" * 65_536], pool.environ) == 2
    assert "too long" in capsys.readouterr().err and peer.nothing_more()
    assert client.main(["reply", msg_id, "x" * 65_000], pool.environ) == 0
    assert peer.next()["response"] == "x" * 65_000


def test_a_reply_that_does_not_arrive_keeps_the_prompt(pool: Pool, capsys, monkeypatch) -> None:
    monkeypatch.setattr("hermes_bridges.coms.client.mail.ACK_LIMIT", 0.2)
    endpoints: list[object] = [str(pool.sockets / "gone.sock"), 7, None, "relative"]
    with pool.stuck() as stuck:
        endpoints.append(stuck.getsockname())
        codes = []
        for endpoint in endpoints:
            msg_id = inbound(pool, endpoint)
            codes.append(client.main(["reply", msg_id, "x"], pool.environ))
            assert "asker" in capsys.readouterr().err
            assert (pool.spool() / "inbound" / f"{msg_id}.json").exists()
    assert codes == [1, 1, 1, 1, 3]


def test_a_record_without_a_sender_is_replied_to_all_the_same(pool: Pool, capsys) -> None:
    peer = pool.peer()
    msg_id = inbound(pool, peer.endpoint, sender_name=7, sender_session=None)
    assert client.main(["reply", msg_id, "x"], pool.environ) == 0
    assert "replied to (unknown)" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{", "7"])
def test_a_damaged_record_is_said(pool: Pool, capsys, content) -> None:
    msg_id = inbound(pool, "/x.sock")
    (pool.spool() / "inbound" / f"{msg_id}.json").write_text(content)
    assert client.main(["reply", msg_id, "x"], pool.environ) == 1
    assert "no JSON object" in capsys.readouterr().err


# Two of our own, and many at once.


def test_two_clients_talk_to_each_other(pool: Pool, capsys) -> None:
    """One sends and waits in the background; the other asks it; the first replies."""
    peer = pool.peer()
    _, envelope = sent(pool, peer, "q", "--name", "one")
    child = pool.start("ask", "one", "are you there?", "--name", "two", "--all")
    directory = pool.spool("one") / "inbound"
    assert wait(lambda: names(directory), 20)
    asked = names(directory)[0].removesuffix(".json")
    assert client.main(["reply", asked, "yes", "--name", "one"], pool.environ) == 0
    assert child.communicate(timeout=20)[0] == b"yes\n"
    peer.respond(envelope, "x")
    assert gone(pool)


def test_several_sends_of_one_name_each_keep_their_response(pool: Pool, capsys) -> None:
    peer = pool.peer()
    sends = [sent(pool, peer, f"q{number}") for number in range(3)]
    assert len(waiters(pool)) == 3
    for _, envelope in reversed(sends):
        assert peer.respond(envelope, envelope["prompt"] + "!")["type"] == "ack"
    for number, (msg_id, _) in enumerate(sends):
        assert client.main(["await", msg_id, "--timeout", "20000"], pool.environ) == 0
        assert capsys.readouterr().out == f"q{number}!\n"
    assert gone(pool)


def test_the_command_of_the_waiter_holds_no_text(pool: Pool) -> None:
    peer = pool.peer()
    _, envelope = sent(pool, peer, "a secret question")
    (pid,) = waiters(pool)
    assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert COMMAND[0].encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    peer.respond(envelope, "x")
    assert gone(pool)
