"""Whatever comes down the stream, the bridge stays up, keeps its connection, and answers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.donut_scene import DonutScene
from tests.process.donut_fuzz import Frames

SEED = 61


@pytest.mark.timeout(900)
def test_odd_frames_do_no_harm(short_tmp: Path, counts: Callable[[int, int], int]) -> None:
    number = counts(3_000, 20_000)
    chats = list(range(1, 9))
    frames = Frames(SEED, chats)
    with DonutScene(str(short_tmp), BRIDGE_QUEUE_LIMIT="1000") as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(chat) for chat in chats])
        base = bridge.memory()
        for place in range(number):
            scene.hub.frame(*frames.next())
            if place % 500 == 499:
                scene.wait_answered([scene.say(50)], 60)
        scene.wait_answered([scene.say(chat) for chat in (*chats, 50)], 60)
        assert bridge.running and scene.dialled() == 1, "one connection from begin to end"
        assert bridge.memory() - base < 40e6
        bridge.assert_no_traceback()
        assert bridge.stop(limit=5.0) == 0
        status = bridge.status()
        print(status)
        assert status["ignored.malformed"] > number / 10
        assert status["answered"] > number / 10


def test_bytes_that_are_no_frames_end_the_connection_and_no_more(short_tmp: Path) -> None:
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        for number, garbage in enumerate((b"\xff" * 50, b"HTTP/1.1 400 Bad Request\r\n\r\n"), 2):
            scene.hub.streams()[0].wire(garbage)
            scene.wait_dials(number)
            scene.wait_answered([scene.say(1)])
        assert bridge.stop() == 0
        scene.assert_good()


def test_a_message_that_is_too_large_is_read_away(short_tmp: Path) -> None:
    """Over a mebibyte: counted and skipped, the connection stays."""
    with DonutScene(str(short_tmp)) as scene:
        bridge = scene.start()
        scene.wait_answered([scene.say(1)])
        base = bridge.memory()
        scene.hub.frame(b'{"type":"message.new","pad":"' + b"x" * 12_000_000 + b'"}')
        scene.wait_answered([scene.say(1)])
        assert scene.dialled() == 1
        assert bridge.memory() - base < 20e6
        assert bridge.stop() == 0
        assert bridge.status()["ignored.oversized"] == 1
        scene.assert_good()
