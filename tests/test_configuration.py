"""The page of the settings says what the code does, and each setting is tried by a test."""

import re

import pytest

from hermes_bridges.core.settings import Setting
from tests import docs_configuration
from tests.conftest import ROOT

PAGE = docs_configuration.PAGE.read_text(encoding="utf-8")
SETTINGS = [one for table in docs_configuration.TABLES.values() for one in table]


def test_the_page_shows_the_tables_of_the_code() -> None:
    assert docs_configuration.names(PAGE) == list(docs_configuration.TABLES)
    assert docs_configuration.filled(PAGE) == PAGE, "run python -m tests.docs_configuration"


def test_a_table_that_differs_is_written_anew() -> None:
    stale = PAGE.replace("`BRIDGE_QUEUE_LIMIT`", "`BRIDGE_QUEUE`")
    assert stale != PAGE
    assert docs_configuration.filled(stale) == PAGE


@pytest.fixture(scope="module")
def words() -> set[str]:
    own = {"test_configuration.py", "docs_configuration.py"}
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name not in own:
            found |= set(re.findall(r"--[a-z-]+|[A-Z_]{3,}", path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.name)
def test_each_setting_is_named_in_a_test(setting: Setting, words: set[str]) -> None:
    assert {name for name in (setting.flag, setting.env) if name} <= words


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.name)
def test_each_setting_has_a_meaning(setting: Setting) -> None:
    assert setting.flag or setting.env
    assert len(setting.help) > 10 and not setting.help.endswith(".")
