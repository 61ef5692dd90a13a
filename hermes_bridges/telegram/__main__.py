"""``python -m hermes_bridges.telegram``."""

from hermes_bridges.telegram.control import main

raise SystemExit(main())
