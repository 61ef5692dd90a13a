"""``python -m hermes_bridges.coms``."""

from hermes_bridges.coms.service import main

raise SystemExit(main())
