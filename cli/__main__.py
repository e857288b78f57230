"""``python -m aiperf_hpc.cli``."""

from aiperf_hpc.cli.program import main

raise SystemExit(main())
