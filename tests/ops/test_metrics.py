"""`hermes-bridges metrics`: valid text exposition, whatever the status files hold."""

import math
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hermes_bridges.ctl import counters, exposition
from hermes_bridges.ctl.exposition import Exposition
from hermes_bridges.donut import service
from tests.conftest import ROOT, wait
from tests.harness.scene import Scene
from tests.ops.asking import Ask, status_file
from tests.ops.conftest import Operator

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
TEXT = r'"(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(
    rf"({NAME})(?:\{{({LABEL}={TEXT}(?:,{LABEL}={TEXT})*)\}})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
)
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (gauge|counter)")

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def strictly(text: str) -> Samples:
    """The samples by family; fails for anything that the format does not allow."""
    assert text.endswith("\n") and "\r" not in text
    found: Samples = {}
    kind = name = ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("#"):
            begin = HELP.fullmatch(line)
            assert begin, line
            name = begin[1]
            told = TYPE.fullmatch(next(lines))
            assert told and told[1] == name, line
            kind = told[2]
            assert name not in found, f"{name} stands twice"
            assert (kind == "counter") == name.endswith("_total"), name
            found[name] = {}
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample and sample[1] == name, line
        labels = re.findall(rf"({LABEL})=({TEXT})", sample[2] or "")
        assert len({label for label, _ in labels}) == len(labels), line
        key = frozenset(labels)
        assert key not in found[name], f"twice: {line}"
        found[name][key] = float(sample[3])
        assert kind != "counter" or found[name][key] >= 0
    assert all(found.values()), "a family without samples"
    # A second reader, which is not ours.
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = {name.removesuffix("_total") for name in found}
    assert set(families) == counted and len(families) == len(found)
    for family in families.values():
        assert family.documentation and family.type in ("gauge", "counter")
        assert all(math.isfinite(sample.value) for sample in family.samples)
    assert sum(len(f.samples) for f in families.values()) == sum(map(len, found.values()))
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    (found,) = [
        number
        for key, number in samples[name].items()
        if {(label, f'"{text}"') for label, text in labels.items()} <= key
    ]
    return found


def place(ask: Ask, name: str) -> Path:
    home = Path(ask.environ["HOME"])
    if name == "donut":
        return home / ".local/state/hermes-bridges/donut-bot/status.json"
    return home / f".pi/coms/hermes-bridge/status/{name}.json"


def test_without_a_bridge(ask: Ask) -> None:
    told = ask("metrics")
    assert (told.code, told.err) == (0, "")
    assert strictly(told.out) == {"hermes_bridges_bridges": {frozenset(): 0}}


def test_the_numbers_of_both_bridges(ask: Ask) -> None:
    status_file(
        place(ask, "default.user-remote"),
        counters={"questions": 7, "answer_rejected_invalid_json": 2, "reply_lost_asker_gone": 1},
        values={"open": 3, "replying": 0, "log_lost": 4, "peers": {"nack": 5, "bad": "x"}},
    )
    status_file(
        place(ask, "donut"),
        counters={"received": 9, "ignored.bot": 2, "ignored.self": 1, "call_failures.connect": 6},
        values={
            "connection": "connected",
            "connection_since": "2026-11-30T12:00:01.500Z",
            "breaker": {"state": "half_open", "since": "2026-11-30T12:00:02.000Z"},
            "queued": 1,
            "in_flight": 2,
            "outbox": 8,
            "workers": 2,
        },
    )
    samples = strictly(ask("metrics").out)
    coms, bot = {"instance": "user-remote@default"}, {"instance": "bot"}
    assert value(samples, "hermes_bridges_bridges") == 2
    assert value(samples, "hermes_bridges_up", bridge="coms", **coms) == 1
    assert value(samples, "hermes_bridges_state", bridge="coms", state="healthy", **coms) == 1
    assert value(samples, "hermes_bridges_state", bridge="donut", state="degraded") == 1
    assert value(samples, "hermes_bridges_info", bridge="coms", version="9.9.9") == 1
    assert 0 <= value(samples, "hermes_bridges_status_age_seconds", bridge="coms") < 30
    assert value(samples, "hermes_bridges_coms_questions_total", **coms) == 7
    name = "hermes_bridges_coms_answer_rejected_total"
    assert value(samples, name, reason="invalid_json", **coms) == 2
    assert value(samples, "hermes_bridges_coms_reply_lost_total", reason="asker_gone") == 1
    assert value(samples, "hermes_bridges_coms_log_lost_total", **coms) == 4
    assert value(samples, "hermes_bridges_coms_peer_total", event="nack") == 5
    assert len(samples["hermes_bridges_coms_peer_total"]) == 1
    assert value(samples, "hermes_bridges_coms_open", **coms) == 3
    assert value(samples, "hermes_bridges_donut_ignored_total", reason="self", **bot) == 1
    assert value(samples, "hermes_bridges_donut_call_failures_total", kind="connect") == 6
    assert value(samples, "hermes_bridges_donut_connected", **bot) == 1
    assert value(samples, "hermes_bridges_donut_breaker_state", state="half_open") == 1
    assert value(samples, "hermes_bridges_donut_breaker_state", state="closed") == 0
    assert value(samples, "hermes_bridges_donut_connection_time_seconds") == 1796040001.5
    assert value(samples, "hermes_bridges_donut_breaker_time_seconds") == 1796040002
    assert value(samples, "hermes_bridges_donut_outbox", **bot) == 8


def test_one_that_is_down_is_not_up(ask: Ask) -> None:
    status_file(place(ask, "default.user-remote"), values={"process_start": 1})
    told = ask("metrics")
    assert told.code == 0 and value(strictly(told.out), "hermes_bridges_up") == 0


def test_one_family_once_for_several_bridges(ask: Ask) -> None:
    for name in ("default.a", "default.b", "green.a"):
        status_file(place(ask, name), counters={"questions": 1})
    samples = strictly(ask("metrics").out)
    assert len(samples["hermes_bridges_coms_questions_total"]) == 3


@pytest.mark.parametrize(
    "hostile",
    ['a"b', "a\\", "a\nb", "\\n", "{}=,", "\x00\x1b[0m", "é\u202e\ud800", "", " ", "x" * 5000],
)
def test_hostile_names_and_texts_stay_within_their_label(ask: Ask, hostile: str) -> None:
    hostiles: dict[str, Any] = {
        f"{hostile}y": 1,
        f"ignored.{hostile}": 2,
        f"{hostile}.{hostile}": 3,
    }
    hostiles |= {"a.b": 1, "a": 2, "a b": 3, "a_b": 4, "up": 5, "state": 6, "x_total": 7, "9": 8}
    values = dict.fromkeys(("connection", "started_at", "version", "project", "name"), hostile)
    for where in (place(ask, "default.user-remote"), place(ask, "donut")):
        status_file(where, counters=hostiles, values=values, version=hostile)
    samples = strictly(ask("metrics").out)
    assert value(samples, "hermes_bridges_coms_up_total") == 5


@pytest.mark.parametrize("number", [-1, 1e400, 10**400, True, "1", None, [], {}, 2**63])
def test_what_is_no_count_is_left_out(ask: Ask, number: Any) -> None:
    values = dict.fromkeys(("open", "log_lost"), number) | {"peers": {"nack": number}}
    status_file(place(ask, "default.user-remote"), counters={"questions": number}, values=values)
    samples = strictly(ask("metrics").out)
    assert "hermes_bridges_coms_questions_total" not in samples
    assert "hermes_bridges_coms_log_lost_total" not in samples


def test_so_many_counters_and_no_more(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status_file(place(ask, "default.user-remote"), counters={f"c{n}": n for n in range(5000)})
    assert len(strictly(ask("metrics").out)) < 600
    monkeypatch.setattr(exposition, "SAMPLES_MOST", 50)
    samples = strictly(ask("metrics").out)
    assert sum(map(len, samples.values())) == 50


def test_the_first_of_two_equal_samples_counts() -> None:
    page = Exposition()
    page.add("a", "gauge", "help \\ with\nthings", {"x": "1"}, 1)
    page.add("a", "counter", "other", {"x": "1"}, 2)
    page.add("a", "gauge", "other", {"x": "2"}, 0.5)
    assert page.text() == (
        '# HELP a help \\\\ with things\n# TYPE a gauge\na{x="1"} 1\na{x="2"} 0.5\n'
    )


def test_every_counter_of_the_bridges_is_known() -> None:
    for bridge, kinds in counters.COUNTERS.items():
        source = "".join(
            path.read_text() for path in (ROOT / "hermes_bridges" / bridge).rglob("*.py")
        )
        names = set(re.findall(r'\bcount\(\s*f?"([a-z_]+)', source)) | (
            {name.partition(".")[0] for name in service.COUNTERS} if bridge == "donut" else set()
        )
        assert len(names) > 10
        for name in names:
            assert any(name == kind or name == f"{kind}_" for kind in kinds), (bridge, name)


# The file


def test_the_file_is_replaced_at_once_and_everybody_may_read_it(ask: Ask) -> None:
    path = ask.root / "out.prom"
    path.write_text("old")
    path.chmod(0o600)
    inode = path.stat().st_ino
    before = os.umask(0o077)
    try:
        assert ask("metrics", "--output", str(path)) == (0, "", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and path.stat().st_ino != inode
    strictly(path.read_text())
    assert [one.name for one in ask.root.iterdir() if "out.prom" in one.name] == ["out.prom"]


def test_a_link_in_the_place_of_the_file_is_not_followed(ask: Ask) -> None:
    target = ask.root / "precious"
    target.write_text("precious")
    (ask.root / "out.prom").symlink_to(target)
    assert ask("metrics", "--output", str(ask.root / "out.prom")).code == 0
    assert target.read_text() == "precious" and not (ask.root / "out.prom").is_symlink()


def test_what_is_no_regular_file_is_not_replaced(ask: Ask) -> None:
    # As root, that could be a device such as /dev/null.
    pipe, link = ask.root / "pipe", ask.root / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, ask.root):
        told = ask("metrics", "--output", str(path))
        assert told.code == 1 and "no regular file" in told.err
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and link.is_symlink()


def test_a_file_that_cannot_be_written_is_told(ask: Ask) -> None:
    told = ask("metrics", "--output", str(ask.root / "no" / "out.prom"))
    assert told.code == 1 and "No such file" in told.err
    for wrong in ("", "x/", "a\0b"):
        assert ask("metrics", "--output", wrong).code == 2


def test_the_counters_of_a_real_bridge(ask: Ask, short_tmp: Path) -> None:
    with Scene(str(short_tmp)) as scene:
        scene.daemon()
        scene.peers.pi().ask("Ship?")

        def asked() -> bool:
            samples = strictly(ask("metrics").out)
            name = "hermes_bridges_coms_questions_total"
            return name in samples and value(samples, name) == 1

        assert wait(asked, 12, 0.2)
        samples = strictly(ask("metrics").out)
        begun = value(samples, "hermes_bridges_coms_start_time_seconds")
        assert time.time() - 60 < begun <= time.time()


def test_the_installed_command(operator: Operator) -> None:
    path = operator.home / "hermes_bridges.prom"
    assert operator.run("hermes-bridges", "metrics", "--output", path).returncode == 0
    strictly(path.read_text())
