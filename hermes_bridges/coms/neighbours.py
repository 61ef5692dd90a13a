"""Daemons of the other implementation under the same HOME: they would delete our answers."""

import os

from hermes_bridges.coms.presence import MODEL
from hermes_bridges.coms.records import Records
from hermes_bridges.coms.registry import Registry, listens, valid_project


def foreign_bridges(coms_dirs: frozenset[str], records: Records) -> list[str]:
    """The live bridges that are not of this package, as ``name@project``.

    One of ours holds an owner's lock beside the records; the existing daemon knows no such thing.
    """
    found = []
    for coms_dir in sorted(coms_dirs):
        try:
            projects = sorted(os.listdir(os.path.join(coms_dir, "projects")))
        except OSError:
            continue
        for project in filter(valid_project, projects):
            registry = Registry(coms_dir, project)
            for entry in registry.entries():
                session = entry.get("session_id")
                # A killed one of ours looks alive for a while, but nothing listens any more.
                if entry.get("model") != MODEL or not listens(str(entry["endpoint"])):
                    continue
                if not isinstance(session, str) or not records.is_alive(session):
                    found.append(f"{entry['name']}@{project}")
    return found
