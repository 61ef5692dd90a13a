"""The plugin as a folder of a Hermes home, with the package and what it needs in ``lib``."""

import re
import sys
from pathlib import Path
from typing import Any

_LIB = Path(__file__).resolve().parent / "lib"


def register(ctx: Any) -> None:
    """Hermes's entry point. RuntimeError where another version of the package is in the way."""
    # Behind everything else: what Hermes has installed stays what Hermes gets.
    if str(_LIB) not in sys.path:
        sys.path.append(str(_LIB))
    import hermes_bridges
    from hermes_bridges.wishee import register as register_wishee

    text = (_LIB / "hermes_bridges" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    ours = found[1] if found else ""
    if ours != hermes_bridges.__version__:
        raise RuntimeError(
            f"the folder of the Wishee plugin holds hermes_bridges {ours}, but"
            f" {hermes_bridges.__version__} is installed: remove one of them"
        )
    register_wishee(ctx)
