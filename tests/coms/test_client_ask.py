"""ask, and send --await: one question to scripted peers, through the command and by calls."""

import json
import os
import pty
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges.coms import client
from tests.coms.client_stage import (
    COMMAND,
    Connection,
    Peer,
    Pool,
    acks,
    answers,
    exchange,
    exchange_all,
)
from tests.conftest import wait
from tests.harness.wire import Fields, encode, ping, prompt, ulid


@pytest.fixture
def pool(short_tmp: Path) -> Iterator[Pool]:
    pool = Pool(short_tmp)
    yield pool
    pool.close()


def in_background(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# The way a question goes.


def test_the_prompt_is_one_as_coms_cli_sends_it(pool: Pool) -> None:
    peer = pool.peer(script=answers("forty-two"))
    code, out, err = pool.run("ask", "user-remote", "what", "now?")
    assert (code, out) == (0, "forty-two\n")
    sent = peer.next("prompt")
    assert set(sent) == {
        *("type", "msg_id", "sender_session", "sender_endpoint", "hops", "timestamp", "prompt"),
        *("sender_name", "sender_cwd", "conversation_id", "response_schema"),
    }
    assert (sent["prompt"], sent["hops"], sent["sender_name"]) == ("what now?", 0, "coms-client")
    assert sent["sender_endpoint"] == str(pool.sockets / f"{sent['sender_session']}.sock")
    assert Path(sent["sender_cwd"]).samefile(pool.root)
    assert sent["conversation_id"] is None and sent["response_schema"] is None
    assert sent["msg_id"] in err and "300000 ms" in err
    assert wait(lambda: peer.replies, 10)
    assert peer.replies == [{"type": "ack", "msg_id": sent["msg_id"]}]
    assert peer.nothing_more() and not pool.left()


def test_send_with_await_is_the_same_call(pool: Pool, capsys) -> None:
    peer = pool.peer(script=answers("yes"))
    assert client.main(["send", "user-remote", "go?", "--await"], pool.environ) == 0
    assert capsys.readouterr().out == "yes\n"
    assert peer.next("prompt")["prompt"] == "go?"
    assert not pool.left() and not (pool.coms / "cli").exists()


def test_options_and_context_make_a_json_prompt(pool: Pool, capsys) -> None:
    peer = pool.peer(script=answers({"kind": "selection", "selections": ["Nein"]}))
    words = ["ask", "user-remote", "Weiter?", "--option", "Ja", "--option=Nein", "--context", "x"]
    assert client.main(words, pool.environ) == 0
    assert json.loads(peer.next()["prompt"]) == {
        "question": "Weiter?",
        "context": "x",
        "options": [{"title": "Ja"}, {"title": "Nein"}],
    }
    expected = '{\n  "kind": "selection",\n  "selections": [\n    "Nein"\n  ]\n}\n'
    assert capsys.readouterr().out == expected


def test_a_context_alone_brings_an_empty_array_of_options(pool: Pool) -> None:
    peer = pool.peer(script=answers("ok"))
    assert client.main(["ask", "user-remote", "q", "--context", "c"], pool.environ) == 0
    assert json.loads(peer.next()["prompt"]) == {"question": "q", "context": "c", "options": []}


def test_while_it_waits_it_is_an_explicit_peer(pool: Pool, capsys) -> None:
    seen: list[Fields] = []
    modes: list[int] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        entry = pool.agents / "asker.json"
        seen.append(json.loads(entry.read_text()))
        paths = (entry, pool.sockets, Path(envelope["sender_endpoint"]))
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in paths)
        seen.append(exchange(envelope["sender_endpoint"], encode(ping("p1"))))
        peer.respond(envelope, "done")

    pool.sockets.chmod(0o755)
    peer = pool.peer(script=script)
    before = os.umask(0)
    try:
        assert client.main(["ask", "user-remote", "q", "--name", "asker"], pool.environ) == 0
    finally:
        os.umask(before)
    sent = peer.next()
    entry, pong = seen
    assert entry == {
        "session_id": sent["sender_session"],
        "name": "asker",
        "purpose": entry["purpose"],
        "model": "cli",
        "color": "#FEDE5D",
        "pid": os.getpid(),
        "endpoint": sent["sender_endpoint"],
        "cwd": os.getcwd(),
        "started_at": entry["started_at"],
        "explicit": True,
        "version": 1,
    }
    assert pong["type"] == "pong" and pong["msg_id"] == "p1"
    card = {"name": "asker", "purpose": entry["purpose"], "model": "cli", "color": "#FEDE5D"}
    assert pong["agent_card"] == {**card, "context_used_pct": 0, "queue_depth": 0}
    assert modes == [0o600, 0o700, 0o600]
    assert not pool.left()


def test_S2_modes_do_not_follow_the_umask(pool: Pool) -> None:
    modes: dict[str, int] = {}

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        for path in (pool.coms, pool.sockets, Path(envelope["sender_endpoint"])):
            modes[path.name[-5:]] = stat.S_IMODE(path.stat().st_mode)
        peer.respond(envelope, "done")

    pool.coms.chmod(0o777)
    pool.sockets.chmod(0o777)
    pool.peer(script=script)
    before = os.umask(0)
    try:
        assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    finally:
        os.umask(before)
    assert list(modes.values()) == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("", ""),
        ("two\nlines\n", "two\nlines\n"),
        (None, "null"),
        (True, "true"),
        (1.0, "1"),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, {"b": "ü"}]}, '{\n  "a": [\n    1,\n    {\n      "b": "ü"\n    }\n  ]\n}'),
    ],
)
def test_a_text_is_printed_as_it_is_other_json_with_two_spaces(
    pool: Pool, capsys, value, printed
) -> None:
    pool.peer(script=answers(value))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert capsys.readouterr().out == printed + "\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("hermes send failed (2)", "hermes send failed (2)"),
        ({"code": 7}, '{"code":7}'),
        ([], "[]"),
    ],
)
def test_an_error_of_the_peer_is_told_and_exit_1(pool: Pool, capsys, error, told) -> None:
    pool.peer(script=answers(None, error))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == f"peer error: {told}"
    assert not pool.left()


@pytest.mark.parametrize("error", ["", 0, False])
def test_an_error_that_is_none_is_no_error(pool: Pool, capsys, error) -> None:
    pool.peer(script=answers("fine", error))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert capsys.readouterr().out == "fine\n"


def test_a_nack_is_told_with_its_reason(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        connection.send({"type": "nack", "msg_id": "x", "error": "queue full"})

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "user-remote refused: queue full" in capsys.readouterr().err
    peer.next("prompt")
    assert peer.nothing_more() and not pool.left()


def test_a_nack_without_reason_still_says_so(pool: Pool, capsys) -> None:
    pool.peer(script=lambda peer, connection, envelope: connection.send({"type": "nack"}))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "no reason given" in capsys.readouterr().err


def test_a_response_that_comes_before_the_ack_counts(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        peer.respond(envelope, "early bird")
        acks(peer, connection, envelope)

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert capsys.readouterr().out == "early bird\n"
    assert wait(lambda: peer.replies, 10) and peer.replies[0]["type"] == "ack"
    assert peer.next()["type"] == "prompt" and peer.nothing_more()


# Text from standard input, and its limits.


def test_a_lone_dash_reads_the_text_from_stdin(pool: Pool) -> None:
    peer = pool.peer(script=answers("read"))
    code, out, _ = pool.run("ask", "user-remote", "-", input="zwei\n Zeilen ü\n".encode())
    assert (code, out) == (0, "read\n")
    assert peer.next()["prompt"] == "zwei\n Zeilen ü"


def test_stdin_may_be_a_file(pool: Pool) -> None:
    peer = pool.peer(script=answers("read"))
    path = pool.root / "question.txt"
    path.write_text("from a file\r\n")
    with path.open("rb") as stdin:
        assert pool.run("ask", "user-remote", "-", stdin=stdin)[0] == 0
    assert peer.next()["prompt"] == "from a file"


def test_stdin_that_never_ends_is_a_timeout(pool: Pool) -> None:
    peer = pool.peer()
    child = pool.start("ask", "user-remote", "-", "--timeout", "300", stdin=-1)
    assert child.wait(20) == 3
    assert child.stderr is not None and b"standard input" in child.stderr.read()
    assert peer.nothing_more()


def test_stdin_that_is_far_too_long_is_refused_before_it_was_read(pool: Pool) -> None:
    peer = pool.peer()
    with Path("/dev/zero").open("rb") as zero:
        code, _, err = pool.run("ask", "user-remote", "-", stdin=zero)
    assert code == 2 and "too long" in err
    assert peer.nothing_more()


def test_a_closed_stdin_is_said(pool: Pool, capsys, monkeypatch) -> None:
    pool.peer()
    monkeypatch.setattr("sys.stdin", None)
    assert client.main(["ask", "user-remote", "-"], pool.environ) == 2
    assert "standard input" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_text_is_refused(pool: Pool, capsys, text) -> None:
    peer = pool.peer()
    assert client.main(["ask", "user-remote", text], pool.environ) == 2
    assert "empty" in capsys.readouterr().err
    assert peer.nothing_more()


@pytest.mark.parametrize("unit", ["a", "ü", "😀", '"'])
def test_a_text_over_the_line_cap_is_refused_and_one_below_is_sent_whole(
    pool: Pool, capsys, unit
) -> None:
    cost = {"a": 1, "ü": 1, "😀": 2, '"': 2}[unit]
    peer = pool.peer(script=answers("got it"))
    fits = unit * ((65_536 - 700) // cost)
    assert client.main(["ask", "user-remote", fits], pool.environ) == 0
    assert peer.next("prompt")["prompt"] == fits
    assert client.main(["ask", "user-remote", unit * (65_536 // cost)], pool.environ) == 2
    assert "too long" in capsys.readouterr().err
    assert peer.nothing_more() and not pool.left()


def test_KH27_a_lone_surrogate_from_the_command_line_becomes_a_replacement(
    pool: Pool, capsys
) -> None:
    peer = pool.peer(script=answers("ok \ud83d there"))
    code, out, _ = pool.run("ask", "user-remote", os.fsdecode(b"caf\xe9 ok"))
    assert (code, out) == (0, "ok \ufffd there\n")
    assert peer.next()["prompt"] == "caf\ufffd ok"


# Peers that are not there.


def test_an_unknown_peer_is_named_with_those_that_live(pool: Pool, capsys) -> None:
    pool.peer("alpha")
    pool.peer("beta", explicit=True)
    assert client.main(["ask", "gamma", "q"], pool.environ) == 1
    assert 'no live peer "gamma" in project "default" (live peers: alpha)' in (
        capsys.readouterr().err
    )
    assert client.main(["ask", "beta", "q"], pool.environ) == 1
    assert "--all" in capsys.readouterr().err


def test_explicit_peers_are_reached_with_all_and_oneself_never(pool: Pool, capsys) -> None:
    pool.peer("beta", answers("b"), explicit=True)
    pool.peer("coms-client", answers("me"))
    assert client.main(["ask", "beta", "q", "--all"], pool.environ) == 0
    assert client.main(["ask", "coms-client", "q", "--all"], pool.environ) == 1


def test_a_stale_socket_is_said(pool: Pool, capsys) -> None:
    stuck = pool.stuck()
    stuck.close()
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "does not listen" in capsys.readouterr().err
    pool.enter("user-remote", str(pool.sockets / "gone.sock"))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "no socket" in capsys.readouterr().err
    pool.enter("user-remote", str(pool.root))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "does not listen" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["relative.sock", "/a\0b", "/" + "x" * 107, "/\ud800"])
def test_an_entry_whose_endpoint_is_no_path_is_said(pool: Pool, capsys, endpoint) -> None:
    pool.enter("user-remote", endpoint)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "no path of a socket" in capsys.readouterr().err


# Peers that stall, or talk nonsense.


def test_H5_a_peer_that_never_acks_does_not_hold_the_client(pool: Pool, capsys) -> None:
    stuck = pool.stuck()
    endpoint = stuck.getsockname()
    begun = time.monotonic()
    with stuck:
        code = client.main(["ask", "user-remote", "q", "--timeout", "300"], pool.environ)
    assert code == 3
    assert 0.3 <= time.monotonic() - begun < 5
    assert "gave no ack" in capsys.readouterr().err
    assert sorted(path.name for path in pool.agents.iterdir()) == ["user-remote.json"]
    assert list(pool.sockets.iterdir()) == [Path(endpoint)]


def test_H5_the_ack_has_a_limit_of_its_own(pool: Pool, monkeypatch, capsys) -> None:
    monkeypatch.setattr("hermes_bridges.coms.client.ask.ACK_LIMIT", 0.2)
    monkeypatch.setattr("hermes_bridges.coms.client.ask.CANCEL_LIMIT", 0.2)
    begun = time.monotonic()
    with pool.stuck():
        assert client.main(["ask", "user-remote", "q", "--timeout", "15000"], pool.environ) == 3
    assert time.monotonic() - begun < 10
    assert "could not be cancelled" in capsys.readouterr().err


def test_H5_a_full_backlog_is_tried_again_within_the_limit(pool: Pool, capsys) -> None:
    listening = pool.stuck(backlog=0)
    endpoint = listening.getsockname()
    first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    first.connect(endpoint)

    def make_room() -> None:
        first.close()
        listening.accept()[0].close()
        with listening.accept()[0] as connected:
            connection = Connection(connected)
            envelope = json.loads(connection.line() or b"null")
            connection.send({"type": "ack", "msg_id": envelope["msg_id"]})
        late = {"type": "response", "msg_id": envelope["msg_id"], "response": "late"}
        exchange(envelope["sender_endpoint"], encode(late))

    # Full: whoever connects now would wait.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        with pytest.raises(BlockingIOError):
            probe.connect(endpoint)
    timer = threading.Timer(0.3, make_room)
    timer.start()
    assert client.main(["ask", "user-remote", "q", "--timeout", "20000"], pool.environ) == 0
    timer.join()
    listening.close()
    assert capsys.readouterr().out == "late\n"


def test_the_timeout_sends_one_cancel_and_exits_3(pool: Pool, capsys) -> None:
    peer = pool.peer()
    assert client.main(["ask", "user-remote", "q", "--timeout", "200"], pool.environ) == 3
    sent, cancel = peer.next("prompt"), peer.next("cancel")
    assert cancel["ref_msg_id"] == sent["msg_id"]
    assert (cancel["from"], cancel["to"]) == ("coms-client", "user-remote")
    assert cancel["msg_id"] != sent["msg_id"] and cancel["created_at"].endswith("Z")
    err = capsys.readouterr().err
    assert "no response within 200 ms" in err and "was cancelled" in err
    assert peer.nothing_more() and not pool.left()


def test_a_response_that_crosses_the_cancel_still_counts(pool: Pool, capsys) -> None:
    asked: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        if envelope["type"] == "prompt":
            asked.append(envelope)
        else:
            peer.respond(asked[0], "just in time")
        acks(peer, connection, envelope)

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q", "--timeout", "200"], pool.environ) == 0
    assert capsys.readouterr().out == "just in time\n"


@pytest.mark.parametrize(
    "reply",
    [b"garbage\n", b"null\n", b"[]\n", b'{"type":"prompt"}\n', b"\xff\xfe\n", b"{" * 5000 + b"\n"],
)
def test_an_ack_that_is_none_ends_the_call(pool: Pool, capsys, reply) -> None:
    pool.peer(script=lambda peer, connection, envelope: connection.send(reply))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "no reply" in capsys.readouterr().err


def test_an_ack_in_pieces_after_blank_lines_is_one(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        for byte in b'\r\n \n{"type":"ack","msg_id":"x"}\r\n':
            connection.send(bytes([byte]))
        peer.respond(envelope, "ok")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0


def test_a_peer_that_closes_without_a_word_is_said_and_the_prompt_withdrawn(
    pool: Pool, capsys
) -> None:
    calls: list[str] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        calls.append(envelope["type"])
        if envelope["type"] == "cancel":
            acks(peer, connection, envelope)

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "without a reply" in capsys.readouterr().err
    assert calls == ["prompt", "cancel"]


def test_a_peer_that_sends_without_end_is_left(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        with pytest.raises(OSError):
            while True:
                connection.send(b"x" * 65536)

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "too long" in capsys.readouterr().err


def test_a_response_to_another_prompt_is_nacked_and_does_not_count(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        for msg_id in (ulid(), "../../x", 7, None, {"a": 1}):
            peer.respond(envelope, "wrong", msg_id=msg_id)
        peer.respond(envelope, "right")

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert capsys.readouterr().out == "right\n"
    assert wait(lambda: len(peer.replies) == 6, 10)
    assert [reply["type"] for reply in peer.replies] == ["nack"] * 5 + ["ack"]
    assert peer.replies[2]["msg_id"] == 7 and peer.replies[3]["msg_id"] == ""


def test_prompts_cancels_and_the_rest_are_nacked_while_it_waits(pool: Pool, capsys) -> None:
    others: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        inbox = envelope["sender_endpoint"]
        others.append(exchange(inbox, encode(prompt("m1", "hello", "/x.sock"))))
        others.append(exchange(inbox, b'{"type":"response","msg_id":"m2"}\n'))
        others.append(exchange(inbox, b'{"type":"cancel","msg_id":"m3"}\n'))
        others.append(exchange(inbox, b'{"msg_id":"m4"}\n'))
        peer.respond(envelope, "ok")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert [(reply["type"], reply["msg_id"]) for reply in others] == [
        ("nack", "m1"),
        ("nack", "m2"),
        ("nack", "m3"),
        ("nack", "m4"),
    ]
    assert "response only" in others[0]["error"]


def test_H1_null_and_other_garbage_on_its_socket_is_nacked(pool: Pool, capsys) -> None:
    lines = [
        b"null\n",
        b"[]\n",
        b"7\n",
        b"nonsense\n",
        b"\xef\xbb\xbf{}\n",
        b"[" * 60_000 + b"\n",
        b'{"type":"response","msg_id":"x","response":' + b"[" * 400 + b"]" * 400 + b"}\n",
        b'{"type":"response","msg_id":"x","response":1,"error":' + b"[" * 900 + b"]" * 900 + b"}\n",
        b"x" * 300_000 + b"\n",
    ]
    replies: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        replies.extend(exchange(envelope["sender_endpoint"], line) for line in lines)
        peer.respond(envelope, "alive")

    pool.peer(script=script)
    code, out, err = pool.run("ask", "user-remote", "q")
    assert (code, out) == (0, "alive\n") and "Traceback" not in err
    assert [reply["type"] for reply in replies] == ["nack"] * len(lines)
    assert replies[3]["error"] == "invalid json" and replies[4]["error"] == "invalid json"
    assert replies[-1] == {"type": "nack", "msg_id": "", "error": "line too large"}


def test_a_response_too_deep_to_be_shown_is_refused(pool: Pool, capsys) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        for depth in (10_000, 300):
            deep = b'{"type":"response","msg_id":"%s","response":%s%s}\n'
            filled = deep % (envelope["msg_id"].encode(), b"[" * depth, b"]" * depth)
            peer.replies.append(exchange(envelope["sender_endpoint"], filled))

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    wait(lambda: len(peer.replies) == 2, 10)
    assert [reply["type"] for reply in peer.replies] == ["nack", "ack"]
    assert capsys.readouterr().out.count("[") == 300


def test_L12_a_response_split_inside_a_character_arrives_whole(pool: Pool, capsys) -> None:
    text = "größer 😀 ende"

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        line = encode({"type": "response", "msg_id": envelope["msg_id"], "response": text})
        inside = line.index("ö".encode()) + 1, line.index("😀".encode()) + 2
        pieces = line[: inside[0]], line[inside[0] : inside[1]], line[inside[1] :]
        peer.replies.append(exchange(envelope["sender_endpoint"], *pieces, pause=0.1))

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q", "--timeout", "10000"], pool.environ) == 0
    wait(lambda: peer.replies, 10)
    assert peer.replies[0]["type"] == "ack"
    assert capsys.readouterr().out == text + "\n"


def test_KH11_line_separators_inside_a_text_do_not_split_it(pool: Pool, capsys) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be"
    peer = pool.peer(script=answers(text))
    assert client.main(["ask", "user-remote", text], pool.environ) == 0
    assert peer.next()["prompt"] == text
    assert capsys.readouterr().out == text + "\n"


def test_D9_each_of_several_envelopes_on_one_connection_is_answered(pool: Pool, capsys) -> None:
    replies: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        lines = [encode(ping("a")), b"\r\n", encode(ping("b")), b'{"type":']
        rest = [b'"ping","msg_id":"c"}\n']
        replies.extend(
            exchange_all(envelope["sender_endpoint"], b"".join(lines), *rest, pause=0.05)
        )
        peer.respond(envelope, "ok")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert [reply["msg_id"] for reply in replies] == ["a", "b", "c"]


def test_a_second_response_is_acked_and_changes_nothing(pool: Pool, capsys) -> None:
    replies: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        both = [
            encode({"type": "response", "msg_id": envelope["msg_id"], "response": text})
            for text in ("first", "second")
        ]
        replies.extend(exchange_all(envelope["sender_endpoint"], b"".join(both)))

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert wait(lambda: [reply["type"] for reply in replies] == ["ack", "ack"], 10)
    assert capsys.readouterr().out == "first\n"


def test_L7_the_longest_response_is_printed_whole(pool: Pool) -> None:
    text = "€" * (65_536 - 400)
    pool.peer(script=answers(text))
    code, out, _ = pool.run("ask", "user-remote", "q")
    assert (code, out) == (0, text + "\n")


def test_idle_and_many_visitors_keep_nobody_out(pool: Pool, capsys, monkeypatch) -> None:
    monkeypatch.setattr("hermes_bridges.coms.client.inbox.IDLE", 0.3)
    monkeypatch.setattr("hermes_bridges.coms.client.inbox.VISITORS_MAX", 4)
    crowd: list[socket.socket] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        for _ in range(6):
            crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            crowd[-1].connect(envelope["sender_endpoint"])
        peer.respond(envelope, "through the crowd")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q", "--timeout", "20000"], pool.environ) == 0
    assert capsys.readouterr().out == "through the crowd\n"
    for one in crowd:
        one.close()


def test_KH26_a_visitor_that_does_not_read_blocks_nobody(pool: Pool, capsys) -> None:
    """Its pings fill both buffers; the response of another one still gets through."""
    greedy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        greedy.connect(envelope["sender_endpoint"])
        greedy.settimeout(0.5)
        # No newline at the end: the connection stays open on both sides.
        with pytest.raises(OSError):
            while True:
                greedy.sendall(encode(ping("p" * 500)) * 100 + b'{"type"')
        peer.respond(envelope, "served")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q", "--timeout", "20000"], pool.environ) == 0
    greedy.close()
    assert capsys.readouterr().out == "served\n"


# Names and entries.


def test_D4_two_clients_of_one_name_each_get_their_own_response(pool: Pool) -> None:
    arrived = threading.Barrier(2)

    def late(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        in_background(lambda: (arrived.wait(10), peer.respond(envelope, envelope["prompt"] * 2)))

    pool.peer(script=late)
    children = [pool.start("ask", "user-remote", text) for text in ("a", "b")]
    outputs = [child.communicate(timeout=30)[0] for child in children]
    assert outputs == [b"aa\n", b"bb\n"]
    assert not pool.left()


def test_D4_the_entry_of_another_live_session_is_left_alone(pool: Pool, capsys) -> None:
    """Neither replaced while we wait nor removed when we end."""
    namesake = pool.peer("asker")
    before = (pool.agents / "asker.json").read_bytes()
    during: list[bytes] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        during.append((pool.agents / "asker.json").read_bytes())
        peer.respond(envelope, "ok")

    pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q", "--name", "asker"], pool.environ) == 0
    assert during == [before] and (pool.agents / "asker.json").read_bytes() == before
    assert namesake.nothing_more()


@pytest.mark.parametrize("pid", [0, os.getpid()], ids=["nobody", "itself"])
def test_an_entry_that_nobody_listens_for_is_replaced(pool: Pool, capsys, pid) -> None:
    more = {"pid": pid, "explicit": True, "heartbeat_at": None}
    pool.enter("coms-client", str(pool.sockets / "dead.sock"), **more)
    seen: list[Fields] = []

    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        acks(peer, connection, envelope)
        seen.append(json.loads((pool.agents / "coms-client.json").read_text()))
        peer.respond(envelope, "ok")

    peer = pool.peer(script=script)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert seen[0]["session_id"] == peer.next()["sender_session"]
    assert not pool.left()


def test_a_legacy_spool_is_refused(pool: Pool, capsys) -> None:
    peer = pool.peer()
    (pool.coms / "cli" / "coms-client").mkdir(parents=True)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert str(pool.coms / "cli" / "coms-client") in capsys.readouterr().err
    assert peer.nothing_more()


def test_no_room_for_the_socket_path_is_said_before_anything_is_sent(pool: Pool, capsys) -> None:
    deep = pool.root / ("d" * 70)
    (deep / "projects" / "default" / "agents").mkdir(parents=True)
    peer = pool.peer()
    (deep / "projects" / "default" / "agents" / "user-remote.json").write_text(
        (pool.agents / "user-remote.json").read_text()
    )
    environ = {**pool.environ, "PI_COMS_DIR": str(deep)}
    assert client.main(["ask", "user-remote", "q"], environ) == 1
    assert "107" in capsys.readouterr().err
    assert peer.nothing_more()


def test_a_registry_that_cannot_be_written_is_said_and_leaves_no_socket(pool: Pool, capsys) -> None:
    peer = pool.peer()
    (pool.agents.parent / "registry.lock").mkdir()
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "registry.lock" in capsys.readouterr().err
    assert peer.nothing_more() and not pool.left()


def test_a_working_directory_that_is_gone_does_not_matter(pool: Pool, capsys) -> None:
    peer = pool.peer(script=answers("ok"))
    gone = pool.root / "gone"
    gone.mkdir()
    before = os.getcwd()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    finally:
        os.chdir(before)
    assert peer.next()["sender_cwd"] == "/"


# Signals and terminals.


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_D1_a_signal_cancels_the_question_and_leaves_nothing(pool: Pool, signum, code) -> None:
    peer = pool.peer()
    child = pool.start("ask", "user-remote", "q")
    sent = peer.next("prompt")
    assert child.stderr is not None
    child.stderr.readline()
    child.send_signal(signum)
    assert child.wait(20) == code
    assert peer.next("cancel")["ref_msg_id"] == sent["msg_id"]
    assert peer.nothing_more() and not pool.left()
    assert b"Traceback" not in child.stderr.read()


def test_a_second_ctrl_c_does_not_wait_for_the_cancel(pool: Pool) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        if envelope["type"] == "prompt":
            acks(peer, connection, envelope)
        else:
            peer.release.wait(20)

    peer = pool.peer(script=script)
    child = pool.start("ask", "user-remote", "q")
    peer.next("prompt")
    assert child.stderr is not None
    child.stderr.readline()
    child.send_signal(signal.SIGINT)
    peer.next("cancel")
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert time.monotonic() - begun < 1.5
    assert not pool.left()


def test_a_cancel_that_is_never_acked_holds_the_client_for_two_seconds_only(pool: Pool) -> None:
    def script(peer: Peer, connection: Connection, envelope: Fields) -> None:
        if envelope["type"] == "prompt":
            acks(peer, connection, envelope)
        else:
            peer.release.wait(20)

    peer = pool.peer(script=script)
    begun = time.monotonic()
    assert client.main(["ask", "user-remote", "q", "--timeout", "100"], pool.environ) == 3
    assert 2 <= time.monotonic() - begun < 6
    peer.release.set()


def test_an_ignored_signal_stays_ignored(pool: Pool) -> None:
    peer = pool.peer()
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *COMMAND, "ask", "user-remote", "q"]
    child = subprocess.Popen(
        command, env=pool.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pool.children.append(child)
    sent = peer.next("prompt")
    child.send_signal(signal.SIGHUP)
    peer.respond(sent, "still here")
    assert child.communicate(timeout=20)[0] == b"still here\n"


HOSTILE = "a\x1b[31mb\x1b]0;title\x07c\x1b(Bd\x9b2Je\x1bPq\x1b\\f\rg\x08h\x1b]open\ttab\nline\x7f"
TAME = "abcdefghopen\ttab\nline"
HOSTILE += "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
HOSTILE += "e\u0301\u2028👩\u200d👦\u2029a\x85\u200cb"
TAME += "e\u0301 👩\u200d👦 a \u200cb"


def test_a_terminal_gets_no_control_sequences_and_a_pipe_gets_all(pool: Pool, capsys) -> None:
    pool.peer(script=answers(HOSTILE))
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 0
    assert capsys.readouterr().out == HOSTILE + "\n"
    main, other = pty.openpty()
    child = pool.start("ask", "user-remote", "q", stdout=other, stderr=other)
    os.close(other)
    assert child.wait(20) == 0
    shown = os.read(main, 65536).decode().replace("\r\n", "\n")
    os.close(main)
    assert shown.split("\n")[1:] == [*TAME.split("\n"), ""]


def test_an_error_of_a_peer_is_tamed_on_a_terminal_too(pool: Pool) -> None:
    pool.peer(script=answers(None, "\x1b[2Jgone"))
    main, other = pty.openpty()
    child = pool.start("ask", "user-remote", "q", stderr=other)
    os.close(other)
    assert child.wait(20) == 1
    shown = os.read(main, 65536)
    os.close(main)
    assert b"peer error: gone" in shown and b"\x1b" not in shown


def test_output_that_nobody_reads_is_no_traceback(pool: Pool) -> None:
    pool.peer(script=answers("x" * 60_000))
    read, write = os.pipe()
    os.close(read)
    code, _, err = pool.run("ask", "user-remote", "q", stdout=write)
    os.close(write)
    assert code == 1 and "Traceback" not in err and "Exception" not in err


def test_output_that_is_full_is_said(pool: Pool) -> None:
    pool.peer(script=answers("x"))
    with Path("/dev/full").open("wb") as full:
        code, _, err = pool.run("ask", "user-remote", "q", stdout=full)
    assert code == 1 and "No space left" in err and "Traceback" not in err


def test_closed_output_is_said_and_closed_stderr_is_borne(pool: Pool, capsys, monkeypatch) -> None:
    pool.peer(script=answers("x"))
    monkeypatch.setattr("sys.stdout", None)
    assert client.main(["ask", "user-remote", "q"], pool.environ) == 1
    assert "standard output is closed" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr", None)
    assert client.main(["ask", "nobody", "q"], pool.environ) == 1


def test_a_locale_without_utf_8_changes_nothing(pool: Pool) -> None:
    pool.peer(script=answers("Größe 😀"))
    env = {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    code, out, _ = pool.run("ask", "user-remote", "q", env=env)
    assert (code, out) == (0, "Größe 😀\n")
