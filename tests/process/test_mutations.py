"""The list of mutations fits the product, and the runner finds what it is for."""

from pathlib import Path

import pytest

from tests import mutate

MODULE = "def double(x: int) -> int:\n    if x < 0:\n        x = -x\n    return 2 * x\n"
TESTS = """
from pkg import m


def test_L1_doubles() -> None:
    assert m.double(3) == 6


def test_S2_sign_does_not_matter() -> None:
    assert m.double(1) == 2


def test_other() -> None:
    pass
"""


def block(**fields: str) -> str:
    return "".join(f"{key}: {value}\n" for key, value in fields.items()) + "\n"


DOUBLE = {"test": "tests/test_m.py::test_L1_doubles", "file": "pkg/m.py"}
SIGN = {"test": "tests/test_m.py::test_S2_sign_does_not_matter", "file": "pkg/m.py"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little project with two tests that need a mutation; the second one is too weak."""
    for name in ("pkg", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "pkg/m.py").write_text(MODULE)
    (tmp_path / "tests/test_m.py").write_text(TESTS)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    return tmp_path


def test_every_mutation_fits_the_product() -> None:
    assert mutate.misfits(mutate.read(mutate.ROOT), mutate.ROOT) == []


def test_every_named_test_has_a_mutation() -> None:
    assert mutate.unproven(mutate.read(mutate.ROOT), mutate.ROOT) == []


FAULTS = [
    (block(**DOUBLE, line="return 3 * x"), "occurs 0 times"),
    (block(**DOUBLE, line="x = -x", after="nowhere"), "`after` occurs 0 times"),
    (block(**DOUBLE, line="if x < 0:"), "does not compile"),
    (block(**DOUBLE) + "\n", "needs test, file and line"),
    (block(test="tests/test_m.py::test_gone", file="pkg/m.py", line="x = -x"), "no such test"),
    (block(**DOUBLE | {"file": "pkg/n.py"}, line="x = -x"), "No such file"),
    (block(**DOUBLE, line="x = -x") + "", ""),
]


@pytest.mark.parametrize(("text", "sign"), FAULTS)
def test_what_does_not_fit_is_told(project: Path, text: str, sign: str) -> None:
    faults = mutate.misfits(mutate.parse(text), project)
    assert (sign in faults[0]) if sign else (faults == [])


def test_a_line_must_be_the_only_one_of_its_kind(project: Path) -> None:
    (project / "pkg/m.py").write_text(MODULE + "\n\nif True:\n    x = 0\n    x = 0\n")
    twice = mutate.parse(block(**DOUBLE, line="x = 0"))
    assert "occurs 2 times" in mutate.misfits(twice, project)[0]
    anchored = mutate.parse(block(**DOUBLE, after="if True:", line="x = 0"))
    assert mutate.misfits(anchored, project) == []


def test_named_tests_without_a_mutation_are_told(project: Path) -> None:
    listed = mutate.parse(block(**DOUBLE, line="x = -x"))
    assert mutate.unproven(listed, project) == [SIGN["test"]]


@pytest.mark.slow
def test_the_runner_tells_red_from_green(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/mutations.txt").write_text(
        block(**DOUBLE, line="return 2 * x", **{"with": "return 3 * x"})
        + block(**SIGN, line="x = -x")
        + block(**DOUBLE, after="x = -x", line="return 2 * x", **{"with": "return x * y"})
    )
    assert mutate.main(["--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "2 of 3 turned their test red" in out
    assert out.count("STAYS GREEN") == 2, "in the list as it goes, and at the end"
    assert mutate.main(["--jobs", "1", "--only", "test_L1"]) == 0
    assert (project / "pkg/m.py").read_text() == MODULE


@pytest.mark.slow
def test_the_runner_refuses_tests_that_are_red_already(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pkg/m.py").write_text(MODULE.replace("2 * x", "4 * x"))
    (project / "tests/mutations.txt").write_text(block(**DOUBLE, line="x = -x"))
    with pytest.raises(SystemExit):
        mutate.main(["--only", "test_L1", "--jobs", "1"])
    assert "red without any mutation" in capsys.readouterr().out
