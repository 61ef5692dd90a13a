"""Prompts that were acked in a burst survive a kill before each has its record."""

import json
import os
from pathlib import Path

import pytest

from hermes_bridges.coms.envelope import Prompt
from hermes_bridges.coms.intake import Intake
from hermes_bridges.coms.records import Owner, Records

QIDS = [f"01ARZ3NDEKTSV4RRFFQ69G5FA{letter}" for letter in "VWXYZ"]
OLD, NEW = "01ARZ3NDEKTSV4RRFFQ69G5F00", "01ARZ3NDEKTSV4RRFFQ69G5F01"


def prompt(qid: str, text: str = "q") -> Prompt:
    return Prompt(qid, text, "/tmp/asker.sock", "session", "näme", None, 5000.0)


def records(directory: Path, session: str, name: str = "user-remote") -> Records:
    made = Records(str(directory), Owner("default", name, session), lambda reason: None)
    made.open()
    return made


def killed(directory: Path, name: str = "user-remote") -> Intake:
    """An intake whose daemon was killed: its lock is free, its file is there."""
    owner = records(directory, OLD, name)
    intake = Intake(owner)
    intake.note([prompt(qid) for qid in QIDS], 1000.5)
    os.close(owner._lock_fd)
    return intake


def file_names(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(".intake-"))


def test_the_next_daemon_reads_what_a_killed_one_noted(tmp_path: Path) -> None:
    killed(tmp_path)
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert [noted.prompt for noted in left] == [prompt(qid) for qid in QIDS]
        assert {noted.at for noted in left} == {1000.5}
        assert file_names(tmp_path) == [f".intake-{OLD}.ndjson"]
    assert file_names(tmp_path) == []


def test_the_file_is_private(tmp_path: Path) -> None:
    killed(tmp_path)
    assert (tmp_path / f".intake-{OLD}.ndjson").stat().st_mode & 0o777 == 0o600


def test_what_has_its_record_is_not_noted_any_more(tmp_path: Path) -> None:
    intake = killed(tmp_path)
    intake.clear()
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert left == []


def test_a_clean_end_leaves_no_file_and_one_with_work_left_keeps_it(tmp_path: Path) -> None:
    intake = Intake(records(tmp_path, OLD))
    intake.note([prompt(QIDS[0])], 1.0)
    intake.clear()
    intake.close()
    assert file_names(tmp_path) == []
    other = Intake(records(tmp_path, NEW))
    other.note([prompt(QIDS[0])], 1.0)
    other.close()
    assert file_names(tmp_path) == [f".intake-{NEW}.ndjson"]
    Intake(records(tmp_path, QIDS[0])).close()


@pytest.mark.parametrize("name", ["user-remote2", "other"])
def test_the_notes_of_a_daemon_of_another_name_are_left_alone(tmp_path: Path, name: str) -> None:
    killed(tmp_path, name)
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert left == []
    assert file_names(tmp_path) == [f".intake-{OLD}.ndjson"]


def test_the_notes_of_a_living_daemon_are_left_alone(tmp_path: Path) -> None:
    owner = records(tmp_path, OLD)
    Intake(owner).note([prompt(QIDS[0])], 1.0)
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert left == []
    assert file_names(tmp_path) == [f".intake-{OLD}.ndjson"]
    owner.close()


def test_a_torn_or_odd_line_costs_only_itself(tmp_path: Path) -> None:
    killed(tmp_path)
    path = tmp_path / f".intake-{OLD}.ndjson"
    lines = path.read_bytes().split(b"\n")
    odd = json.loads(lines[0])
    odd["prompt"]["more"] = 1
    newer = {**odd, "v": 2}
    path.write_bytes(
        b"\n".join(
            [
                json.dumps(odd).encode(),
                json.dumps(newer).encode(),
                b"[]",
                b"[" * 100_000,
                b"\0" * 4096,
                lines[1],
                lines[2][:-30],
            ]
        )
    )
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert [noted.prompt.msg_id for noted in left] == [QIDS[1]]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}\n")
    os.symlink(tmp_path / "elsewhere", tmp_path / f".intake-{OLD}.ndjson")
    with Intake(records(tmp_path, NEW)).left_behind() as left:
        assert left == []
    assert (tmp_path / "elsewhere").read_text() == "{}\n"


def test_what_cannot_be_noted_is_counted(tmp_path: Path) -> None:
    counted: list[str] = []
    owner = Records(str(tmp_path), Owner("default", "user-remote", NEW), counted.append)
    owner.open()
    intake = Intake(owner)
    os.mkdir(tmp_path / f".intake-{NEW}.ndjson")
    intake.note([prompt(QIDS[0])], 1.0)
    assert counted == ["intake_failed"]
    intake.close()
