"""The context windows that Hermes has found out: ``context_length_cache.yaml`` in its home.

Hermes versions ship different YAML packages, and some of them take a while. The file is written by
Hermes alone, as a map of maps with numbers: of YAML, that much is read here.
"""

import os
import re
from collections.abc import Iterator, Mapping

from hermes_bridges.core import files
from hermes_bridges.errors import FileRefused

_NAME = "context_length_cache.yaml"
_FILE_MAX = 4 * 1024 * 1024
_LINE = re.compile(r"[ ]+(?:\? )?('(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^'\"#\s].*?)\s*:\s+(\d+)\s*")
_ADDRESS = re.compile(r"@(?=[a-z]+://|[^@]*\Z)")


def windows(home: str) -> Mapping[str, int]:
    """The window of each model in tokens: the largest where several providers have it.

    None when there is no file that could be read.
    """
    try:
        raw = files.read_capped(os.path.join(home, _NAME), _FILE_MAX, own=False)
    except (OSError, FileRefused):
        return {}
    found: dict[str, int] = {}
    for model, tokens in _lengths(raw.decode(errors="replace")):
        found[model] = max(tokens, found.get(model, 0))
    return found


def _lengths(text: str) -> Iterator[tuple[str, int]]:
    is_inside = False
    # A key of more than 128 characters has its number on the next line.
    for line in re.sub(r"\n[ ]+:[ ]", ": ", text).splitlines():
        if line[:1] not in (" ", "#", ""):
            is_inside = line.rstrip() == "context_lengths:"
        elif is_inside and (found := _LINE.fullmatch(line)):
            key = _unquoted(found[1])
            yield _ADDRESS.split(key, maxsplit=1)[0], int(found[2])


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1].replace("''", "'")
    return re.sub(r"\\(.)", r"\1", key[1:-1]) if key[0] == '"' else key
