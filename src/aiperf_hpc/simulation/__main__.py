"""``python -m aiperf_hpc.simulation``."""

import os
import sys

try:
    from aiperf_hpc.simulation.main import main
except ModuleNotFoundError as error:
    if error.name != "greenlet":
        raise
    sys.exit(
        "aiperf: a simulation needs the package 'greenlet'; install the extra aiperf-hpc[simulate]"
    )

status = main()
sys.stdout.flush()
sys.stderr.flush()
# Taking thousands of replicas apart takes longer than it is worth; all records are written.
os._exit(status)
