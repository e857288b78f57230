"""``python -m aiperf_hpc.primary.cli``."""

from aiperf_hpc.primary.cli.program import main

raise SystemExit(main())
