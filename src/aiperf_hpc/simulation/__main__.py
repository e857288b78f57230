"""``python -m aiperf_hpc.simulation``."""

import os
import sys

from aiperf_hpc.errors import UsageError
from aiperf_hpc.extras import SIMULATION

if not SIMULATION.installed:
    sys.stderr.write(
        f"aiperf: a simulation needs the package '{SIMULATION.package}': {SIMULATION.remedy}\n"
    )
    sys.exit(UsageError.exit_status)

from aiperf_hpc.simulation.main import main

status = main()
sys.stdout.flush()
sys.stderr.flush()
# Skips the slow destruction of thousands of replicas; all records are written.
os._exit(status)
