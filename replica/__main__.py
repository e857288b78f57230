"""``python -m aiperf_hpc.replica``."""

import os
import sys
import traceback

from aiperf_hpc.errors import UNEXPECTED_STATUS
from aiperf_hpc.replica.main import main

try:
    status = main()
except Exception:  # noqa: BLE001 -- said in full, and by the exit status
    traceback.print_exc()
    status = UNEXPECTED_STATUS
sys.stdout.flush()
sys.stderr.flush()
# A framework takes seconds to take itself apart, which the run would be charged for; all
# records are on stable storage by now and the search workers have ended.
os._exit(status)
