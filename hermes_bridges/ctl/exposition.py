"""The text format of Prometheus, version 0.0.4 (pure)."""

import re
from collections.abc import Mapping

from hermes_bridges.ctl.terminal import safe

_NOT_OF_A_NAME = re.compile(r"[^a-zA-Z0-9_]+", re.ASCII)
_LABEL_MOST = 200
SAMPLES_MOST = 20_000
"""Samples of a page; what comes after them is left out."""


class Exposition:
    """Collects samples; in ``text`` each family stands once, with its help and its type.

    Of two samples with the same name and labels the first one counts, and so do type and help of
    the first sample of a family. The name of a counter ends in ``_total``: see to it.
    """

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, dict[str, str]]] = {}
        self._samples = 0

    def add(
        self, name: str, kind: str, help_text: str, labels: Mapping[str, str], value: float
    ) -> None:
        """A sample of a ``gauge`` or a ``counter``."""
        if self._samples >= SAMPLES_MOST:
            return
        family = _NOT_OF_A_NAME.sub("_", name)
        _, _, samples = self._families.setdefault(family, (kind, help_text, {}))
        pairs = (f'{label}="{_escaped(text)}"' for label, text in labels.items())
        inner = ",".join(pairs)
        sample = f"{family}{{{inner}}}" if inner else family
        if sample not in samples:
            samples[sample] = _number(value)
            self._samples += 1

    def text(self) -> str:
        lines = []
        for family, (kind, help_text, samples) in self._families.items():
            lines.append(f"# HELP {family} {_help(help_text)}")
            lines.append(f"# TYPE {family} {kind}")
            lines += [f"{sample} {value}" for sample, value in samples.items()]
        return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    shown = safe(text, _LABEL_MOST)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return safe(text, _LABEL_MOST).replace("\\", "\\\\")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)
