"""``python -m hermes_bridges``."""

from hermes_bridges.ctl import main

raise SystemExit(main())
