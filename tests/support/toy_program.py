"""Runs a module of the package that knows one more scheduler: ``toy_scheduler.py``'s."""

from __future__ import annotations

import runpy
import sys

from aiperf_hpc.host import schedulers
from aiperf_hpc.host.schedulers import Scheduler

TOY = Scheduler(
    name="toy",
    modes=(),
    help="toy",
    backend="tests.support.toy_scheduler",
    accelerators="toy.accelerators",
    prefix="TOY_",
    variables={"id": "TOY_JOB", "node": "TOY_NODE"},
)

if __name__ == "__main__":
    schedulers.SCHEDULERS = (*schedulers.SCHEDULERS, TOY)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
