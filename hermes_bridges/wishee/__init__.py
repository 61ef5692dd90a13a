"""Wishee connector: a plugin of the Hermes gateway."""

import logging
import os
from typing import Any

_log = logging.getLogger(__name__)


def register(ctx: Any) -> None:
    """Hermes's entry point: every command of it calls this, so that it is quick and does little.

    Raises RuntimeError for a Hermes that is too old; the text is shown by ``hermes plugins list``.
    """
    # Hermes loads this module in every command: no more than is needed, and only now.
    from hermes_bridges.wishee import compat
    from hermes_bridges.wishee.settings import ALLOW_ALL

    compat.check_version()
    if compat.rivals():
        _log.warning(
            "two connectors for Wishee are installed: uninstall wishee-hermes-connector; this one"
            " takes over its identity"
        )
    # The oldest version asks nothing else; who may write was decided when the device was bound.
    os.environ.setdefault(ALLOW_ALL, "true")
    compat.platform()
    compat.register(ctx, _make)


def _make(config: Any) -> Any:
    from hermes_bridges.wishee.adapter import make

    return make(config)
