"""The status file: counters and values, written when due, and never a reason to fail."""

import json
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_bridges import __version__
from hermes_bridges.core.status import Status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "status" / "default.user-remote.json"


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Undone before the fixtures of every test, which need the real calls to tidy up."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_the_file_holds_what_was_counted_and_set(path: Path) -> None:
    status = Status(str(path))
    status.count("duplicate")
    status.count("duplicate", 2)
    status.set("open", 3)
    status.set("open", 4)
    status.set("hermes", {"missing": "send"})
    status.write()
    whole = json.loads(path.read_text())
    assert list(whole) == ["at", "pid", "version", "counters", "values"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", whole["at"])
    assert (whole["pid"], whole["version"]) == (os.getpid(), __version__)
    assert whole["counters"] == {"duplicate": 3}
    assert whole["values"] == {"open": 4, "hermes": {"missing": "send"}}


def test_the_file_and_its_directory_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        Status(str(path)).write()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_is_written_when_due_and_not_before(path: Path) -> None:
    status = Status(str(path), every=5.0)
    assert status.write_if_due(100.0) == 105.0
    path.unlink()
    assert status.write_if_due(104.9) == 105.0
    assert not path.exists()
    assert status.write_if_due(106.0) == 111.0
    assert path.exists()


def test_a_write_in_between_moves_the_next_one(path: Path) -> None:
    status = Status(str(path), clock=lambda: 50.0, every=5.0)
    status.write()
    path.unlink()
    assert status.write_if_due(54.0) == 55.0
    assert not path.exists()


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status = Status(None)
    status.count("duplicate")
    assert status.write_if_due(10.0) == 15.0
    status.write()
    status.remove()
    assert os.listdir(tmp_path) == []


def test_it_need_not_survive_a_power_loss(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", lambda fd: pytest.fail("it was synced"))
    Status(str(path)).write()
    assert path.exists()


def test_L8_a_file_that_cannot_be_written_is_counted_told_once_and_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hermes_bridges.status")
    status = Status(str(path), every=5.0)
    for turn in (1, 2):
        path.mkdir(parents=True)
        for n in range(3):
            assert status.write_if_due(turn * 100 + n * 10.0) == turn * 100 + n * 10.0 + 5.0
        path.rmdir()
        status.write_if_due(turn * 100 + 50.0)
        assert json.loads(path.read_text())["counters"] == {"status_not_written": 3 * turn}
        path.unlink()
        path.parent.rmdir()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert caplog.messages[0] == f"status file {path} cannot be written: Is a directory"
    assert caplog.messages[1] == f"status file {path} is written again"


def test_a_file_in_the_place_of_its_directory_is_a_counted_failure(path: Path) -> None:
    path.parent.touch()
    status = Status(str(path))
    status.write()
    path.parent.unlink()
    status.write()
    assert json.loads(path.read_text())["counters"] == {"status_not_written": 1}


@pytest.mark.parametrize("value", [{1, 2}, float("inf")])
def test_a_value_that_is_no_json_is_a_counted_failure(path: Path, value: object) -> None:
    status = Status(str(path))
    status.set("odd", value)
    status.write()
    status.set("odd", None)
    status.write()
    whole = json.loads(path.read_text())
    assert (whole["counters"], whole["values"]) == ({"status_not_written": 1}, {"odd": None})


def test_remove_takes_the_file_away_and_may_be_repeated(path: Path) -> None:
    status = Status(str(path))
    status.write()
    status.remove()
    assert not path.exists()
    status.remove()


def test_a_file_that_cannot_be_removed_is_told(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir(parents=True)
    Status(str(path)).remove()
    assert caplog.messages == [f"status file {path} cannot be removed: Is a directory"]


def test_counting_from_many_threads_while_it_is_written_loses_nothing(path: Path) -> None:
    status = Status(str(path))

    def count(name: str) -> None:
        for n in range(2_000):
            status.count("all")
            status.count(f"{name}{n}")
            status.set(name, n)

    threads = [threading.Thread(target=count, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        status.write()
        json.loads(path.read_text())
    status.write()
    counters = json.loads(path.read_text())["counters"]
    assert counters["all"] == 6_000
    assert "status_not_written" not in counters
