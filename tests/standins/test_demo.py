"""The demo: it shows the main job, says what failed, and leaves nothing behind."""

import json
import os
import pty
import signal

import pytest

from hermes_bridges.standins import demo
from tests.conftest import wait
from tests.standins.demo_run import Run, gone


def bridge_of(run: Run) -> int:
    """The process id of the demo's bridge."""
    (entry,) = run.place.glob("hb-demo-*/.pi/coms/projects/demo/agents/user-remote.json")
    return int(json.loads(entry.read_text())["pid"])


def test_by_itself(start):
    run = start("coms", "--auto")
    assert run.end() == 0, run.said
    for text in (
        "bridge │ coms-hermes-bridge: user-remote@demo listening",
        "phone │ 2. Asia",
        "phone │ You answered: 2",
        'asker │     "Asia"',
        "phone │ ✖ [HUB-Q:",
        "All went as it should",
    ):
        assert text in run.said
    assert len(run.said.splitlines()) <= 48


def test_a_person_types_the_answer(start):
    master, slave = pty.openpty()
    run = start(stdin=slave)
    os.close(slave)
    run.until("type: HUB-Q:")
    os.write(master, b"\n")
    run.until("The answer is empty")
    os.write(master, b"wherever you like\n")
    assert run.end() == 0, run.said
    os.close(master)
    assert '"text": "wherever you like"' in run.said
    assert "✖ [HUB-Q:" in run.said


def test_lines_typed_ahead_answer_both_questions(start):
    reader, writer = os.pipe()
    os.write(writer, b"3\nstill here")
    os.close(writer)
    run = start(stdin=reader)
    os.close(reader)
    assert run.end() == 0, run.said
    assert '"none"' in run.said and '"text": "still here"' in run.said


def test_nobody_can_type(start):
    run = start()
    assert run.end() == 0, run.said
    assert "Nobody can type here" in run.said and '"Asia"' in run.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_can_be_stopped_at_any_time_and_clears_up(start, number):
    reader, writer = os.pipe()
    run = start(stdin=reader)
    os.close(reader)
    run.until("type: HUB-Q:")
    bridge = bridge_of(run)
    run.process.send_signal(number)
    assert run.end() == 130, run.said
    os.close(writer)
    assert "demo: stopped" in run.said and "Traceback" not in run.said
    assert wait(lambda: gone(bridge), 5)


def test_a_bridge_that_dies_is_told_and_ends_it(start):
    reader, writer = os.pipe()
    run = start(stdin=reader)
    os.close(reader)
    run.until("type: HUB-Q:")
    os.kill(bridge_of(run), signal.SIGKILL)
    assert run.end() == 1
    os.close(writer)
    assert "demo: failed: the bridge ended, exit code -9" in run.said
    assert "Traceback" not in run.said


def test_a_wrong_word_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as end:
        demo.main(["supper"])
    assert end.value.code == 2
    assert "supper" in capsys.readouterr().err
