"""Answers of Herdr that cannot be used; what it is asked, and in which order: see test_control."""

import pytest

from hermes_bridges.errors import BridgeError
from hermes_bridges.telegram.herdr import Herdr, Scene

from .stage import Stage

PANE = {"pane": {"workspace_id": "w", "cwd": "/c"}}
SCENE = Scene("p", "w", "/c", "default")
GET = ["pane", "get", "p"]
INFO = ["pane", "process-info", "--pane", "p"]
LIST = ["pane", "list", "--workspace", "w"]
SPLIT = [*("pane split p --direction right --ratio 0.3 --cwd /c --no-focus".split())]


def processes(*argvs: object) -> dict[str, object]:
    return {"process_info": {"foreground_processes": [{"argv": argv} for argv in argvs]}}


def herdr(stage: Stage) -> Herdr:
    return Herdr(stage.environ | {"HERDR_PANE_ID": "p"})


@pytest.mark.parametrize(
    "argvs, project",
    [
        ([], "default"),
        ([["pi", "--project", "a"], ["pi", "--project", "b"]], "a"),
        ([["pi"], ["pi", "--project=b"]], "b"),
        ([["pi", "--project", "a", "--project", "b"]], "a"),
        ([["pi", "--project"]], "default"),
        ([["--projects", "x"]], "default"),
    ],
)
def test_the_project_is_the_first_that_is_named(
    stage: Stage, argvs: list[object], project: str
) -> None:
    stage.herdr([(GET, PANE), (INFO, processes(*argvs))])
    assert herdr(stage).scene(None) == Scene("p", "w", "/c", project)


def test_an_empty_project_is_not_the_default(stage: Stage) -> None:
    stage.environ["PI_COMS_PROJECT"] = "env"
    stage.herdr([(GET, PANE), (INFO, processes(["pi", "--project="]))])
    assert herdr(stage).scene(None).project == "env"


@pytest.mark.parametrize(
    "answer, text",
    [
        ("[]", "tells no result that can be read"),
        ('{"error": 1}', "tells no result"),
        ('{"result": []}', "tells no result"),
        ("no JSON", "prints no JSON"),
        ("", "tells no pane"),
        ({"pane": []}, "tells no pane"),
        ({"pane": {"cwd": "/c"}}, "tells no workspace_id"),
        ({"pane": {"workspace_id": "--x", "cwd": "/c"}}, "tells no workspace_id"),
        ({"pane": {"workspace_id": 7, "cwd": "/c"}}, "tells no workspace_id"),
        ({"pane": {"workspace_id": "w", "cwd": ""}}, "tells no cwd"),
        ({"pane": {"workspace_id": "w", "cwd": "a\0b"}}, "tells no cwd"),
        (7, r"herdr pane get failed \(7\): why"),
    ],
)
def test_a_pane_that_cannot_be_read(stage: Stage, answer: object, text: str) -> None:
    stage.herdr([(GET, answer)])
    with pytest.raises(BridgeError, match=text):
        herdr(stage).scene(None)


@pytest.mark.parametrize(
    "answer, text",
    [
        ("", "tells no process_info"),
        ({"process_info": {}}, "tells no foreground_processes"),
        ({"process_info": {"foreground_processes": [7]}}, "tells no argv"),
        (processes("pi --project x"), "tells no argv"),
        (processes(["pi", 7]), "tells no argv"),
    ],
)
def test_processes_that_cannot_be_read(stage: Stage, answer: object, text: str) -> None:
    stage.herdr([(GET, PANE), (INFO, answer)])
    with pytest.raises(BridgeError, match=text):
        herdr(stage).scene(None)


@pytest.mark.parametrize(
    "answer, text",
    [
        ("", "tells no panes"),
        ({"panes": ["x"]}, "tells no panes"),
        ({"panes": [{"label": "hermes-bridge"}]}, "tells no pane_id"),
        ({"panes": [{"label": "hermes-bridge", "pane_id": "-x"}]}, "tells no pane_id"),
    ],
)
def test_panes_that_cannot_be_read(stage: Stage, answer: object, text: str) -> None:
    stage.herdr([(LIST, answer)])
    with pytest.raises(BridgeError, match=text):
        herdr(stage).close_bridges(SCENE)


def test_a_label_that_looks_like_ours_is_left_alone(stage: Stage) -> None:
    labels = ["hermes-bridge ", "Hermes-Bridge", ["hermes-bridge"], None, 7]
    found = [{"pane_id": str(n), "label": label} for n, label in enumerate(labels)]
    stage.herdr([(LIST, {"panes": found})])
    assert herdr(stage).close_bridges(SCENE) == []


@pytest.mark.parametrize("answer", ["", {"pane": {}}, {"pane": {"pane_id": "-1"}}])
def test_a_new_pane_that_is_not_named(stage: Stage, answer: object) -> None:
    stage.herdr([(SPLIT, answer)])
    with pytest.raises(BridgeError, match="pane split tells no pane"):
        herdr(stage).open_bridge(SCENE, ["x"])


def test_a_herdr_that_hangs_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_bridges.telegram.herdr.LIMIT", 0.2)
    (stage.bin / "herdr").write_text("#!/bin/sh\nsleep 60\n")
    (stage.bin / "herdr").chmod(0o755)
    with pytest.raises(BridgeError, match=r"herdr pane get took more than 0\.2 s"):
        herdr(stage).scene(None)
