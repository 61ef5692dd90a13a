"""Posting: section 4 of the contract, from the outbox to the hub."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from typing import Any

import pytest

from hermes_bridges.donut import keys, poster
from hermes_bridges.donut.poster import Place
from hermes_bridges.donut.store import Part
from tests.donut.rig import LONG, TOKEN, Rig, Worker, errors, running


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    with running(tmp_path) as rig:
        yield rig


def put(rig: Rig, texts: list[str], chat: Any = 1, thread_id: Any = None) -> str:
    """An answer in the outbox, to a message that was just heard; its key."""
    message = rig.hear("hi", chat=chat, thread_id=thread_id).message
    run_key = keys.run_key("77", message.chat, message.message)
    parts = [
        Part(
            id=0,
            chat=message.chat,
            chat_id=message.chat_id,
            thread_id=thread_id,
            reply_to=message.message_id,
            key=keys.part_key(run_key, number),
            answer=run_key,
            number=number,
            text=text,
            created_at=rig.time.wall(),
        )
        for number, text in enumerate(texts, start=1)
    ]
    rig.store.settle(message.chat, message.message, parts=parts)
    return run_key


def drain(rig: Rig, chat: Any = 1, **options: Any) -> bool:
    found: bool = rig.poster.drain(Worker(str(chat)), **options)
    return found


def say(rig: Rig, text: str, chat: Any = 1, **options: Any) -> bool:
    found: bool = rig.poster.say(Worker(str(chat)), Place(chat, None, None), text, "k", **options)
    return found


# --- what goes out


def test_parts_go_out_in_order_each_with_its_key(rig) -> None:
    first = put(rig, ["a1", "a2", "a3"])
    second = put(rig, ["b1"])
    assert drain(rig) and rig.store.outbox_size() == 0
    posts = rig.hub.posted(1)
    assert [post["content"] for post in posts] == ["a1", "a2", "a3", "b1"]
    assert [post["key"] for post in posts] == [
        *(keys.part_key(first, number) for number in (1, 2, 3)),
        keys.part_key(second, 1),
    ]
    assert {post["content_type"] for post in posts} == {"MD"}
    assert None not in [post["reply_to"] for post in posts]


def test_continuations_go_below_the_first_part(rig) -> None:
    put(rig, ["1", "2", "3"])
    put(rig, ["in a thread", "too"], thread_id="t9")
    put(rig, ["alone"])
    assert drain(rig)
    posts = rig.hub.posted(1)
    top = posts[0]["message_id"]
    assert [p["thread_id"] for p in posts] == [None, top, top, "t9", "t9", None]
    replies = [p["reply_to"] for p in posts]
    assert replies[0] == replies[1] == replies[2] and replies[3] == replies[4]


@pytest.mark.parametrize("body", [b"{}", b"", b"<p>thanks", b'{"id": null}'])
def test_an_answer_without_an_id_counts_as_sent(rig, body) -> None:
    put(rig, ["1", "2"])
    rig.hub.send_status(200, body=body, stored=True)
    assert drain(rig) and rig.said() == ["1", "2"] and rig.store.outbox_size() == 0
    assert [post["thread_id"] for post in rig.hub.posted(1)] == [None, None]


def test_plain_text_is_posted_as_such(rig) -> None:
    rig.reopen(markdown=False)
    put(rig, ["*1*"])
    assert drain(rig) and rig.hub.posted(1)[0]["content_type"] == "TX"


@pytest.mark.parametrize(
    ("chat", "thread"), [(1, None), ("chat:ü", "thread"), ("12", 12), (12, "12")]
)
def test_ids_keep_their_json_types_over_a_restart(rig, chat, thread) -> None:
    rig.hub.add_chat(chat, "all")
    rig.hub.stop_listening()
    put(rig, ["1", "2"], chat=chat, thread_id=thread)
    assert not drain(rig, chat, patience=0)
    rig.reopen()
    rig.hub.start_listening()
    # The hub refuses an id in another type than its own.
    assert drain(rig, chat) and rig.said(chat) == ["1", "2"]


# --- later


@pytest.mark.parametrize(
    ("retry_after", "header", "body"),
    [
        (7, True, False),
        (7, False, True),
        (7.5, True, True),
        (7.5, False, True),
        ("7", True, False),
        ("7.5", False, True),
    ],
)
def test_KH09_the_hub_says_when(rig, retry_after, header, body) -> None:
    put(rig, ["1", "2"])
    rig.hub.send_busy(retry_after, header=header, body=body)
    assert drain(rig) and rig.said() == ["1", "2"]
    assert rig.time.waits == [float(retry_after)]
    # The typing signal of this chat pauses as long.
    ((chat, seconds),) = rig.paused
    assert chat == "1" and seconds == pytest.approx(float(retry_after), abs=0.5)


def test_the_hub_may_say_it_as_a_date(rig) -> None:
    put(rig, ["1"])
    date = formatdate(int(rig.time.wall()) + 20, usegmt=True)
    rig.hub.send_status(429, headers={"Retry-After": date})
    assert drain(rig) and 15 < rig.time.waits[0] <= 20


def test_KH09_a_busy_chat_holds_up_no_other_and_a_long_wait_nobody(rig) -> None:
    put(rig, ["1", "2"])
    put(rig, ["other"], chat=2)
    rig.hub.send_busy(3600, chat=1)
    assert not drain(rig) and rig.time.waits == []
    assert drain(rig, 2) and rig.said(2) == ["other"]
    # Until then nothing more is sent to that chat, and it all stays.
    assert not drain(rig) and not drain(rig, patience=0) and not say(rig, "notice")
    assert [note["chat_id"] for note in rig.sends()] == [1, 2]
    rig.time.ahead += 3601
    assert drain(rig) and rig.said() == ["1", "2"]


def test_KH09_a_wait_beyond_all_reason_is_none(rig) -> None:
    """A chat would be silent until the next start: each of its answers waits for a day at most."""
    put(rig, ["1"])
    rig.hub.send_status(429, headers={"Retry-After": "999999999"}, times=2)
    assert drain(rig) and rig.said() == ["1"]
    assert rig.paused == []


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_part_is_tried_for_a_minute_and_then_kept(rig, status) -> None:
    run_key = put(rig, ["1", "2"])
    rig.hub.send_status(status, times=None)
    assert not drain(rig)
    assert 40 < sum(rig.time.waits) <= 60 and max(rig.time.waits) <= 8.1
    assert {note["key"] for note in rig.sends()} == {keys.part_key(run_key, 1)}
    assert len(rig.sends()) == len(rig.time.waits) + 1 and rig.store.outbox_size() == 2
    rig.hub.heal()
    assert drain(rig) and rig.said() == ["1", "2"]
    assert rig.count("refused") == rig.count("unknown") == 0


def test_without_patience_it_is_tried_once(rig) -> None:
    put(rig, ["1"])
    rig.hub.send_status(503, times=None)
    assert not drain(rig, patience=0)
    assert len(rig.sends()) == 1 and rig.time.waits == []


def test_a_connection_that_cannot_be_made_is_tried_again(rig) -> None:
    put(rig, ["1", "2"])
    rig.hub.stop_listening()
    rig.time.on_wait = lambda _: len(rig.time.waits) == 3 and rig.hub.start_listening()
    assert drain(rig) and rig.said() == ["1", "2"] and len(rig.time.waits) == 3


def test_a_newer_answer_waits_behind_an_older(rig) -> None:
    put(rig, ["old 1", "old 2"])
    rig.hub.send_status(503, times=None)
    assert not drain(rig)
    put(rig, ["new"])
    assert not drain(rig) and rig.said() == []
    assert {note["content"] for note in rig.sends()} == {"old 1"}
    rig.hub.heal()
    assert drain(rig) and rig.said() == ["old 1", "old 2", "new"]


def test_the_stop_ends_the_tries_and_nothing_else(rig) -> None:
    put(rig, ["1", "2"])
    rig.hub.send_status(503, times=1)
    rig.time.on_wait = lambda _: rig.time.set()
    assert not drain(rig) and rig.store.outbox_size() == 2
    # What needs no wait is still posted.
    assert drain(rig) and rig.said() == ["1", "2"]


# --- not again


def test_KH04_what_may_be_stored_is_not_sent_again(rig, monkeypatch) -> None:
    monkeypatch.setattr(poster, "SEND_LIMIT", 0.3)
    put(rig, ["1", "2", "3"])
    rig.hub.send_status(503)
    rig.hub.send_hang(stored=True)
    assert drain(rig)
    # The first was stored, and the others went on without its id.
    assert rig.said() == ["1", "2", "3"] and rig.store.outbox_size() == 0
    assert [post["thread_id"] for post in rig.hub.posted(1)] == [None] * 3
    assert [note["content"] for note in rig.sends()] == ["1", "1", "2", "3"]
    assert (rig.count("unknown"), rig.count("refused")) == (1, 0)


def test_KH04_nor_when_it_was_not_stored(rig, monkeypatch) -> None:
    monkeypatch.setattr(poster, "SEND_LIMIT", 0.3)
    put(rig, ["1", "2"])
    rig.hub.send_hang(stored=False)
    assert drain(rig) and rig.said() == ["2"] and rig.count("unknown") == 1
    assert rig.time.waits == []


@pytest.mark.parametrize("stored", [True, False])
def test_a_fresh_connection_that_breaks_leaves_it_unknown(rig, stored) -> None:
    put(rig, ["1", "2"])
    rig.hub.send_drop(stored=stored)
    assert drain(rig) and rig.said() == (["1", "2"] if stored else ["2"])
    assert (rig.count("unknown"), len(rig.sends())) == (1, 2)


@pytest.mark.parametrize("stored", [True, False])
def test_KH42_a_reused_connection_that_breaks_is_tried_once_more_with_the_same_key(
    rig, stored
) -> None:
    warm = put(rig, ["warm"])
    drain(rig)
    run_key = put(rig, ["1", "2"])
    rig.hub.send_drop(stored=stored)
    assert drain(rig) and rig.said() == ["warm", "1", "2"] and rig.count("unknown") == 0
    assert [note["key"] for note in rig.sends()] == [
        keys.part_key(warm, 1),
        keys.part_key(run_key, 1),
        keys.part_key(run_key, 1),
        keys.part_key(run_key, 2),
    ]
    assert [note["repeat"] for note in rig.sends()] == [False, False, stored, False]


def test_once_more_and_not_twice(rig) -> None:
    put(rig, ["warm"])
    drain(rig)
    put(rig, ["1", "2"])
    rig.hub.send_drop(stored=False, times=2)
    assert drain(rig) and rig.said() == ["warm", "2"] and rig.count("unknown") == 1


def test_a_reused_connection_that_had_begun_to_answer_is_not_tried_again(rig) -> None:
    with closing(Halfway()) as half:
        rig.reopen(send_url=half.url)
        put(rig, ["1", "2", "3"])
        assert drain(rig)
        assert half.heard == ["1", "2", "3"]
        assert rig.count("unknown") == 1 and rig.store.outbox_size() == 0


class Halfway:
    """A hub that answers its first post, then breaks off in its answer, then answers again."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._run, name="halfway", daemon=True).start()

    def _run(self) -> None:
        for answers in ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"HTTP/1.1 2"], None):
            sock, _ = self._listener.accept()
            with sock:
                for answer in answers or [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]:
                    data = b""
                    while not data.endswith(b"}"):
                        data += sock.recv(65536)
                    self.heard.append(json.loads(data.partition(b"\r\n\r\n")[2])["content"])
                    sock.sendall(answer)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("status", [400, 402, 403, 404, 409, 413, 422, 301, 302, 307])
def test_after_a_refused_part_the_rest_of_its_answer_is_given_up(rig, status, caplog) -> None:
    put(rig, ["a1", "a2", "a3"])
    put(rig, ["b1"])
    rig.hub.send_status(200, stored=True, body=b"{}")
    rig.hub.send_status(status, headers={"Location": rig.hub.send_url})
    assert drain(rig) and rig.said() == ["a1", "b1"] and rig.store.outbox_size() == 0
    assert (rig.count("refused"), rig.count("unknown")) == (1, 0)
    assert [note["content"] for note in rig.sends()] == ["a1", "a2", "b1"]
    assert f"HTTP {status}; parts given up: 2" in caplog.text


def test_a_token_that_the_hub_refuses_costs_no_answer(rig, caplog) -> None:
    put(rig, ["1", "2"])
    rig.hub.send_status(401)
    assert not drain(rig) and rig.store.outbox_size() == 2
    assert len(rig.sends()) == 1 and rig.time.waits == []
    assert ["DONUT_BOT_TOKEN" in line for line in errors(caplog)] == [True]
    assert TOKEN not in caplog.text
    assert drain(rig) and rig.said() == ["1", "2"]


# --- the limits of one request


def test_a_hub_that_drips_is_left_in_time(rig, monkeypatch) -> None:
    monkeypatch.setattr(poster, "SEND_LIMIT", 0.4)
    put(rig, ["1", "2"])
    rig.hub.send_drip(0.05)
    began = time.monotonic()
    assert drain(rig) and time.monotonic() - began < 5 and rig.count("unknown") == 1
    assert poster.SEND_LIMIT == 0.4


def test_the_limits_are_those_of_the_contract() -> None:
    assert (poster.SEND_LIMIT, poster.PATIENCE) == (15.0, 60.0)


def test_KH18_chats_are_posted_to_side_by_side(rig) -> None:
    put(rig, ["a1", "a2", "a3"])
    put(rig, ["b1"], chat=2)
    rig.hub.send_delay(1.0, times=1, chat=1)
    worker = Worker("1")
    slow = threading.Thread(target=rig.poster.drain, args=(worker,), name="slow")
    slow.start()
    # It tells how long its request may take.
    assert rig.until(lambda: any(worker.expected))
    assert drain(rig, 2) and rig.said(2) == ["b1"] and rig.said() == []
    slow.join(LONG)
    assert rig.said() == ["a1", "a2", "a3"]


# --- notices


def test_a_notice_is_tried_for_a_minute_and_not_kept(rig) -> None:
    rig.hub.send_status(503, times=3)
    assert say(rig, "notice") and rig.said() == ["notice"]
    del rig.time.waits[:]
    rig.hub.send_status(503, times=None)
    assert not say(rig, "another") and 40 < sum(rig.time.waits) <= 60
    rig.hub.heal()
    assert rig.store.outbox_size() == 0 and rig.count("notices_not_posted") == 1
    assert drain(rig) and rig.said() == ["notice"]


def test_KH18_a_notice_does_not_come_between_the_parts_of_an_answer(rig) -> None:
    put(rig, ["1", "2", "3"])
    rig.hub.send_status(200, stored=True, body=b"{}")
    rig.hub.send_status(503, times=None)
    assert not drain(rig)
    assert not say(rig, "notice") and rig.count("notices_not_posted") == 1
    rig.hub.heal()
    assert say(rig, "notice") and rig.said() == ["1", "2", "3", "notice"]


def test_a_notice_that_may_be_stored_is_told(rig) -> None:
    rig.hub.send_drop(stored=True)
    assert say(rig, "notice") and rig.said() == ["notice"] and rig.count("unknown") == 1
