"""``python -m hermes_bridges.donut``."""

from hermes_bridges.donut.service import main

raise SystemExit(main())
