"""The databases of tests/wishee are those that the Hermes versions make."""

import json
import sqlite3
import subprocess
from contextlib import closing

import pytest

from tests.hermes_versions import hermes
from tests.wishee.state_db import SCHEMAS, TABLES, VERSIONS, StateDb

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(240)]

MAKE = """
import pathlib, sys
from hermes_state import SessionDB
SessionDB(pathlib.Path(sys.argv[1]))
"""
INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"


def tables(path):
    """The columns of each table: name, type, whether it may be NULL, default, place in the key."""
    with closing(sqlite3.connect(path)) as db:
        return {
            table: db.execute("SELECT * FROM pragma_table_info(?)", (table,)).fetchall()
            for table in TABLES
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_of_each_version(version, tmp_path):
    python = hermes(version).with_name("python")
    made = tmp_path / "made.db"
    home = {"HOME": str(tmp_path), "HERMES_HOME": str(tmp_path)}
    subprocess.run([python, "-c", MAKE, made], env=home, check=True, timeout=60)
    ours = StateDb(tmp_path / "ours", VERSIONS[version])
    assert json.dumps(tables(ours.path)) == json.dumps(tables(made))
    with closing(sqlite3.connect(made)) as real, closing(sqlite3.connect(ours.path)) as copy:
        assert set(copy.execute(INDEXES)) <= set(real.execute(INDEXES))
        schema = real.execute("SELECT version FROM schema_version").fetchone()[0]
    assert schema == SCHEMAS[VERSIONS[version]]
