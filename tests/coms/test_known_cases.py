"""Known failures of software like this one, at the level of the daemon.

The cases of shared parts have their tests beside those parts, the loops are in tests/process.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.coms.looks import (
    delivered,
    elsewhere,
    event,
    gone,
    names,
    reasons,
    said,
    serves,
    state,
    wait_state,
)
from tests.harness import journal, wire
from tests.harness.answers import document
from tests.harness.daemon import Call, alive, stays, wait
from tests.harness.scene import Scene

QUICK = ("--poll-ms", "50")

# H03: the child and its profile


def environment(scene: Scene) -> dict[str, str]:
    """What the child of a new question got, as far as the fake notes it."""
    call = scene.hermes.wait_sent(scene.peers.pi().ask("Ship?").qid)
    found: dict[str, str] = call.begin["env"]
    return found


def test_KH03_the_child_is_always_told_its_home(scene: Scene) -> None:
    root = os.path.join(scene.home.path, ".hermes")
    scene.daemon(*QUICK)
    assert environment(scene)["HERMES_HOME"] == root
    os.makedirs(os.path.join(root, "profiles", "work"))
    with open(os.path.join(root, "active_profile"), "w") as file:
        file.write("work\n")
    call = scene.hermes.wait_sent(scene.peers.pi().ask("Ship?").qid)
    assert call.begin["env"]["HERMES_HOME"] == root, "the profile was switched too late for it"
    assert call.argv[:3] == ["--profile", "default", "send"]


def test_KH03_the_profile_of_the_start_counts(scene: Scene) -> None:
    root = os.path.join(scene.home.root, "hermes")
    for profile in ("work", "play"):
        os.makedirs(os.path.join(root, "profiles", profile))
    active = os.path.join(root, "active_profile")
    with open(active, "w") as file:
        file.write("work")
    scene.daemon(*QUICK, environ={"HERMES_HOME": root})
    for profile in ("work", "play", "default"):
        with open(active, "w") as file:
            file.write(profile)
        assert environment(scene)["HERMES_HOME"] == os.path.join(root, "profiles", "work")


def test_KH03_a_profile_that_does_not_exist_stops_the_start(scene: Scene) -> None:
    root = os.path.join(scene.home.path, ".hermes")
    os.makedirs(root)
    with open(os.path.join(root, "active_profile"), "w") as file:
        file.write("gone")
    daemon = scene.daemon(start=False)
    daemon.start(ready=False)
    assert daemon.wait_exit(10) == 1
    (line,) = daemon.stderr().splitlines()
    assert "active_profile" in line and "gone" in line


# H08: what a helper of `hermes` keeps open


def test_KH08_a_helper_that_keeps_the_pipes_delays_nothing(scene: Scene) -> None:
    scene.hermes.rule(match="First", grandchild=60)
    scene.hermes.rule(match="Second", err="x" * 1000, repeat=1000)
    scene.hermes.rule(match="Third", stdin=True)
    scene.daemon(*QUICK, "--max-sends", "1")
    begin = time.monotonic()
    for text in ("First?", "Second?", "Third?"):
        delivered(scene, scene.peers.pi().ask(text))
    assert time.monotonic() - begin < 2.5
    notes = journal.read(scene.hermes.journal)
    (helper,) = (n["child"] for n in notes if n["what"] == "grandchild")
    assert not alive(helper)
    assert [n["bytes"] for n in notes if n["what"] == "stdin"] == [0]


# H11: separators that are no line ends

ODD = "a\u2028b\u2029c\x85d\x1ce"


def test_KH11_separators_inside_a_text_are_text(scene: Scene) -> None:
    """Raw on the socket, raw in the answer file, and one line each in log and record."""
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.prepare("a\u2028b\u2029c\x85d", [ODD], sender_name="x\u2028y")
    assert "\u2028".encode() in wire.encode(question.envelope)
    question.endpoint = daemon.endpoint
    assert question.send()
    delivered(scene, question)
    (call,) = scene.hermes.calls(question.qid)
    assert "a\u2028b\u2029cd\n" in call.text, "a control character, U+0085, is dropped"
    data = json.dumps(document(question.qid, ODD), ensure_ascii=False).encode()
    assert "\u2028".encode() in data and "\x85".encode() in data
    scene.answers.put(question.qid, data, ODD)
    assert question.wait()["response"] == {"kind": "selection", "selections": [ODD]}
    wait_state(scene, question.qid, "closed")
    with open(scene.home.log, encoding="utf-8") as file:
        text = file.read()
    assert len(text.splitlines()) == text.count("\n") == 3
    assert json.loads(text.splitlines()[0])["detail"] == {"from": "x\u2028y"}


# H13 and H40: the service manager


class Manager:
    """A service manager's socket, and what came through it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.heard: list[tuple[float, str]] = []

    def listen(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append((time.monotonic(), self.socket.recv(4096).decode()))
        return [text for _, text in self.heard]

    def pings(self) -> list[float]:
        self.listen()
        return [at for at, text in self.heard if "WATCHDOG=1" in text]


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Manager]:
    path = os.path.join(scene.home.root, "notify")
    made = Manager(path if request.param == "file" else "@" + path)
    yield made
    made.socket.close()


def test_KH13_the_service_manager_hears_how_it_goes(scene: Scene, manager: Manager) -> None:
    """Half a second of watchdog, and a `hermes` that takes much longer."""
    scene.hermes.rule(delay=1.0)
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "500000"}
    daemon = scene.daemon(*QUICK, start=False, environ=environ)
    daemon.start(ready=False)
    while not any("READY=1" in text for text in manager.listen()):
        assert daemon.running
    assert wire.exchange(daemon.endpoint, wire.ping())["type"] == "pong", "ready means ready"
    asker = scene.peers.pi()
    begin = time.monotonic()
    qids = [asker.ask("Ship?").qid for _ in range(3)]
    while not scene.hermes.calls(qids[2]) or time.monotonic() < begin + 1.2:
        manager.listen()
        time.sleep(0.01)
    pings = [at for at in manager.pings() if at >= begin]
    gaps = [b - a for a, b in itertools.pairwise(pings)]
    assert sorted(gaps)[len(gaps) // 2] <= 0.25 and max(gaps) < 0.5, gaps
    assert daemon.stop() == 0
    told = [text for text in manager.listen() if "WATCHDOG=1" not in text]
    assert told[0].startswith("READY=1") and told[-1] == "STOPPING=1"
    assert sum("READY=1" in text for text in told) == 1


def test_KH40_children_know_nothing_of_the_service_manager(scene: Scene, manager: Manager) -> None:
    environ = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": "1",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "1",
        "LISTEN_FDNAMES": "x",
        "MARK_FOR_THE_CHILD": "kept",
    }
    daemon = scene.daemon(*QUICK, environ=environ)
    found = environment(scene)
    assert not [name for name in found if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]
    assert found["MARK_FOR_THE_CHILD"] == "kept"
    assert daemon.stop() == 0
    assert "READY=1" in "".join(manager.listen())
    assert manager.pings() == [], "the watchdog is another process's"


def test_KH40_a_service_manager_that_is_not_there_stops_nothing(scene: Scene) -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "500000"}
    daemon = scene.daemon(*QUICK, environ=environ)
    serves(scene, daemon)
    assert daemon.stop() == 0


# H17: a log that ends in the middle


@pytest.mark.parametrize(
    "torn",
    [b'{"a":2', '{"a":"中'.encode()[:-1], b'{"at":"x","qid":"y","event":"z"}', b"\0" * 512],
)
def test_KH17_a_torn_log_costs_only_its_torn_line(scene: Scene, torn: bytes) -> None:
    whole = b'{"at":"1","qid":"2","event":"3"}\n'
    os.makedirs(scene.home.bridge, mode=0o700)
    with open(scene.home.log, "wb") as file:
        file.write(whole + torn)
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    assert daemon.stop() == 0
    with open(scene.home.log, "rb") as file:
        lines = file.read().split(b"\n")
    assert lines[0] + b"\n" == whole and lines[1] == torn and lines[-1] == b""
    assert [json.loads(line)["event"] for line in lines[2:-1]] == ["question_received", "delivered"]


# H22: secrets


def test_KH22_a_token_that_hermes_prints_stands_nowhere(scene: Scene) -> None:
    """In a URL's query and path, in a header, and bare; for the question and for notes."""
    token = "SECRET123"
    text = (
        f"GET https://x.example/v1?token={token}&x=1 and /bot{token}/send failed: "
        f"Authorization: Bearer {token}; {token!r} is refused"
    )
    scene.hermes.rule(match="Fail|✖", exit=1, err=text)
    scene.hermes.rule(err=text)
    environ = {"SERVICE_TOKEN": token}
    daemon = scene.daemon(*QUICK, "--log-format", "json", start=False, environ=environ)
    daemon.start(ready=False)
    wait(daemon.entry, 20, "its entry")
    failed, cancelled = scene.peers.pi().ask("Fail?"), scene.peers.pi().ask("Ship?")
    assert token not in json.dumps(failed.wait())
    delivered(scene, cancelled)
    with open(f"/proc/{daemon.pid}/cmdline") as file:
        assert token not in file.read()
    assert cancelled.cancel()
    wait(lambda: scene.home.events(cancelled.qid, "delivery_error"), what="the note failed")
    wait(scene.home.status_file, 5, "the status file")
    daemon.kill()
    looked_at = 0
    for directory, _, file_names in os.walk(scene.home.path):
        for name in file_names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                looked_at += 1
                with open(path, "rb") as log:
                    assert token.encode() not in log.read(), path
    assert looked_at >= 4
    assert token not in daemon.stderr()


# H23: what an exit status says


def test_KH23_a_failure_is_told_and_never_sent_again(scene: Scene) -> None:
    """It may have been delivered all the same, so nobody tries again, after a restart either."""
    scene.hermes.rule(match="Fails", exit=1, err="gave up waiting, it may have gone out")
    scene.hermes.rule(match="Hangs", hang=True)
    scene.hermes.rule(match="Warns", err="warning: slow network")
    daemon = scene.daemon(*QUICK, "--send-timeout", "400")
    fails, hangs, warns = (scene.peers.pi().ask(f"{t}?") for t in ("Fails", "Hangs", "Warns"))
    assert "it may have gone out" in fails.wait()["error"]
    assert "unknown" in hangs.wait()["error"]
    delivered(scene, warns)
    assert scene.home.events(warns.qid, "delivery_error") == []
    for question in (fails, hangs):
        detail = event(scene, "delivery_error", question.qid)["detail"]
        assert detail == {"error": question.responses[0]["error"]}
        wait_state(scene, question.qid, "closed")
    daemon.restart()
    delivered(scene, scene.peers.pi().ask("Another?"))
    for question in (fails, hangs, warns):
        assert len(scene.hermes.calls(question.qid)) == 1
    for question in (fails, hangs):
        assert state(scene, question.qid) == "closed" and len(question.responses) == 1


# H26: peers that do not read


def test_KH26_a_peer_that_does_not_read_costs_nobody_elses_time(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    before = daemon.memory()
    line = scene.peers.pi().open_line(daemon.endpoint)
    line.socket.setblocking(False)
    pings = wire.encode(wire.ping("x" * 1000)) * 20_000
    sent = 0
    last = time.monotonic()
    while sent < len(pings) and time.monotonic() - last < 0.3:
        try:
            sent += line.socket.send(pings[sent : sent + 50_000])
            last = time.monotonic()
        except BlockingIOError:
            assert daemon.ping() < 1
    assert sent < 4_000_000, "it is not read any further"
    assert daemon.memory() - before < 4_000_000
    question = scene.peers.pi().ask("Ship?")
    begin = time.monotonic()
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    assert time.monotonic() - begin < 1
    line.close()
    serves(scene, daemon)


def test_KH26_a_peer_that_vanishes_is_no_fault(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    for number in range(60):
        line = wire.Line(daemon.endpoint)
        line.send((wire.encode(wire.ping("x" * 20_000)) * 4)[: -(number % 7) * 1000 or None])
        line.close()
    files = daemon.open_files()
    assert daemon.ping() < 1
    wait(lambda: daemon.open_files() <= files, 2, "all are let go")
    assert daemon.stop() == 0


# H27: lone surrogates


def test_KH27_lone_surrogates_are_replaced_and_pairs_joined(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question = asker.prepare("x")
    question.envelope["prompt"] = json.dumps(
        {
            "question": "hi \ud83d there \ud83d\ude00",
            "context": "\udc80",
            "options": [{"title": "\ude00t", "description": "d\ud83d"}],
        }
    )
    question.envelope["sender_name"] = "n\ud800"
    asker.note("prompt", qid=question.qid, prompt="surrogates")
    reply = daemon.ask(json.dumps(question.envelope).encode() + b"\n")
    assert reply == {"type": "ack", "msg_id": question.qid}
    asker.note_reply(question.qid, "prompt", reply)
    delivered(scene, question)
    (call,) = scene.hermes.calls(question.qid)
    for part in ("hi \ufffd there 😀\n", "Context: \ufffd\n", "1. \ufffdt — d\ufffd\n"):
        assert part in call.text
    data = json.dumps(document(question.qid, "no \ud83d, \ud83d\ude00")).encode()
    scene.answers.put(question.qid, data, "no \ufffd, 😀")
    assert question.wait()["response"] == said("no \ufffd, 😀")
    wait_state(scene, question.qid, "closed")
    assert names(scene, question.qid) == ["question_received", "delivered", "answered"]
    serves(scene, daemon)


# H33: what else lies about in the directory


def test_KH33_odd_entries_do_not_keep_a_good_answer(scene: Scene) -> None:
    directory = scene.home.questions
    os.makedirs(directory, mode=0o700)
    left = [scene.answers.stray(name) for name in (".a.tmp", "x.json~", "\udcff\udcfe")]
    left += [os.path.join(directory, name) for name in ("sub", "fifo", "dangling", "link")]
    os.mkdir(left[3])
    os.mkfifo(left[4])
    os.symlink("/nowhere", left[5])
    os.symlink("/nowhere/else", left[6])
    daemon = scene.daemon(*QUICK)
    asker = scene.peers.pi()
    question, linked, sparse = (asker.ask(f"Question {number}?") for number in range(3))
    target = elsewhere(scene, linked.qid)
    scene.answers.symlink(linked.qid, target)
    scene.answers.sparse(sparse.qid, 1 << 30)
    begin = time.monotonic()
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    assert time.monotonic() - begin < 1
    gone(scene, linked.qid)
    gone(scene, sparse.qid)
    wait(lambda: len(reasons(scene)) == 2, what="both are logged")
    stays(lambda: all(map(os.path.lexists, left)), 0.4, "the others are left, eight polls long")
    assert sorted(reasons(scene)) == ["invalid_path", "invalid_schema"], "once each"
    assert daemon.stderr().count("\n") == 1, "and nothing else is said"
    assert os.path.exists(target)


def test_KH33_old_odd_entries_are_removed_unopened(scene: Scene) -> None:
    daemon = scene.daemon("--poll-ms", "100", start=False)
    daemon.start()
    directory = scene.home.questions
    os.mkfifo(os.path.join(directory, "fifo"))
    target = elsewhere(scene, wire.ulid())
    os.symlink(target, os.path.join(directory, "link"))
    scene.answers.stray("\udcff")
    for name in ("fifo", "link", "\udcff"):
        path = os.path.join(directory, name)
        found = os.lstat(path)
        old = (found.st_atime - 4000, found.st_mtime - 4000)
        os.utime(path, old, follow_symlinks=False)
    wait(lambda: scene.home.answer_files() == [], 5, "removed")
    wait(lambda: len(reasons(scene)) == 3, what="all are logged")
    assert set(reasons(scene)) == {"invalid_path"}
    files = {e["detail"]["file"] for e in scene.home.events(event="answer_rejected")}
    assert files == {"fifo", "link", "?"}
    assert os.path.exists(target)


# H35: its own messages


def test_KH35_it_takes_nothing_from_itself(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    own = wire.prompt(wire.ulid(), "Ship?", daemon.endpoint)
    assert daemon.ask(own)["type"] == "nack"
    response = {
        "type": "response",
        "msg_id": own["msg_id"],
        "sender_session": "s",
        "sender_endpoint": daemon.endpoint,
        "hops": 0,
        "timestamp": wire.iso(),
        "response": said("x"),
        "error": None,
    }
    for _ in range(3):
        assert daemon.ask(response) == {
            "type": "nack",
            "msg_id": own["msg_id"],
            "error": "bridge accepts prompts, cancels, and pings",
        }
    delivered(scene, scene.peers.pi().ask("Another?"))
    assert len(scene.hermes.calls()) == 1


def test_KH35_two_bridges_do_not_answer_each_other(scene: Scene) -> None:
    """A prompt that names the other bridge as its asker: one response, which that one refuses."""
    first, second = scene.daemon(*QUICK), scene.daemon(*QUICK)
    envelope = wire.prompt(wire.ulid(), "Ship?", second.endpoint)
    assert first.ask(envelope)["type"] == "ack"
    wait_state(scene, envelope["msg_id"], "delivered")
    with open(scene.answers.path(envelope["msg_id"]), "w") as file:
        json.dump(document(envelope["msg_id"], "yes"), file)
    wait_state(scene, envelope["msg_id"], "replying")
    stays(lambda: state(scene, envelope["msg_id"]) == "replying", 0.3)
    assert [call.kind for call in scene.hermes.calls()] == ["question"]
    assert first.stop() == 0 and second.stop() == 0


# H39: a rewrite that mtime does not show


def test_KH39_an_answer_of_equal_size_and_time_is_a_new_one(scene: Scene) -> None:
    scene.daemon(*QUICK)
    asker = scene.peers.pi()
    path = ""
    qid, stamp = wire.ulid(), 0
    for text in ("answer A", "answer B", "answer C"):
        question = asker.ask("Which?", qid=qid)
        wait(lambda: len(scene.hermes.calls(qid)) >= len(names(scene, qid)) // 3)
        wait_state(scene, qid, "delivered")
        data = json.dumps(document(qid, text, at="2026-01-02T03:04:05Z")).encode()
        temp = os.path.join(scene.home.questions, ".next.tmp")
        with open(temp, "wb") as file:
            file.write(data)
        stamp = stamp or os.stat(temp).st_mtime_ns
        os.utime(temp, ns=(stamp, stamp))
        path = scene.answers.path(qid)
        scene.answers.note(qid, text, "same stamp", valid=True)
        os.rename(temp, path)
        assert question.wait()["response"] == said(text)
        wait_state(scene, qid, "closed")
    assert not os.path.exists(path)
    assert [len(q.responses) for q in asker.questions.values()] == [1]
    assert names(scene, qid) == ["question_received", "delivered", "answered"] * 3


def test_KH39_a_partial_file_that_is_replaced_within_the_tick_is_read_again(scene: Scene) -> None:
    """The same size and the same time as the one that was left alone: only the inode differs."""
    scene.daemon("--poll-ms", "60000")
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    good = json.dumps(document(question.qid, "yes")).encode()
    bad = b"{" * len(good)
    temp = os.path.join(scene.home.questions, ".next.tmp")
    stamp = time.time_ns()
    for data, text in ((bad, None), (good, "yes")):
        with open(temp, "wb") as file:
            file.write(data)
        os.utime(temp, ns=(stamp, stamp))
        scene.answers.note(question.qid, text, "same stamp", valid=text is not None)
        os.rename(temp, scene.answers.path(question.qid))
        time.sleep(0.1)
    assert question.wait(1)["response"] == said("yes")


# H43: everybody gets the signal at once


def test_KH43_a_signal_for_all_is_no_failed_send(scene: Scene) -> None:
    scene.hermes.rule(delay=3, times=2)
    daemon = scene.daemon(*QUICK)
    questions = [scene.peers.pi().ask(f"Question {number}?") for number in range(2)]
    wait(lambda: len(scene.hermes.running()) == 2, what="two children")
    children: list[Call] = scene.hermes.running()
    for call in children:
        os.kill(call.pid, signal.SIGTERM)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait_exit(2) == 0
    for question in questions:
        assert state(scene, question.qid) == "sending"
        assert names(scene, question.qid) == ["question_received"]
        assert question.peer.received == []
    daemon.start()
    for question in questions:
        delivered(scene, question)
        assert len(scene.hermes.calls(question.qid)) == 2
        scene.answers.write(question.qid, "yes")
        assert question.wait()["response"] == said("yes")


# H47: delivered, and not recorded as delivered


def test_KH47_a_kill_after_the_delivery_costs_one_copy_at_most(scene: Scene) -> None:
    """The child lives on and delivers; nobody is there to note it."""
    scene.hermes.rule(delay=0.4)
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    for number in (1, 2):
        wait(lambda: len(scene.hermes.calls(question.qid)) == number)  # noqa: B023
        daemon.kill()
        wait(lambda: all(c.ok for c in scene.hermes.calls(question.qid)), what="it is delivered")
        assert state(scene, question.qid) == "sending"
        daemon.start()
    other = scene.peers.pi().ask("Another?")
    delivered(scene, other)
    assert len(scene.hermes.calls(question.qid)) == 2
    scene.answers.write(question.qid, "yes")
    assert question.wait()["response"] == said("yes")
    wait_state(scene, question.qid, "closed")
    daemon.restart()
    delivered(scene, scene.peers.pi().ask("One more?"))
    assert len(scene.hermes.calls(question.qid)) == 2, "the second restart sends nothing"


def test_KH47_what_is_recorded_as_delivered_is_never_sent_again(scene: Scene) -> None:
    daemon = scene.daemon(*QUICK)
    question = scene.peers.pi().ask("Ship?")
    delivered(scene, question)
    for _ in range(2):
        daemon.kill()
        daemon.start()
    delivered(scene, scene.peers.pi().ask("Another?"))
    assert len(scene.hermes.calls(question.qid)) == 1
