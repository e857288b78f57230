"""What SLURM says to a job, and a job to SLURM: variables and exit statuses, for both sides.

The variables are those of sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES. What SLURM answers
to commands is for ``primary/launchers/slurm`` alone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

UNSEEN_RUN_STATUS, UNSEEN_PYTHON_STATUS = 79, 80
"""Exit statuses of the batch script on a node that does not see the run directory, or Python.

They may not change: a site's own template may have the numbers from an earlier script."""
SHELL_SIGNAL = 128
"""srun ends with this and the number of the signal that ended its task, as shells do."""
NO_OUTPUT = (0, 53)
"""Status and signal of a job whose output file its node could not open."""
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""The variables that are a site's or a user's, and not of one job."""


class SlurmTask(NamedTuple):
    """One process of a job's step."""

    job: int
    rank: int
    tasks: int
    step: int
    first_address: str
    """The address of the node that srun runs on: the allocation's first, where rank 0 is."""


def job_id() -> str | None:
    """Return the number of the job that this process is in, if it is in one."""
    return os.environ.get("SLURM_JOB_ID")


def job_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what SLURM's variables tell of a job, as the description of a process calls it."""
    named = {
        "id": "SLURM_JOB_ID",
        "partition": "SLURM_JOB_PARTITION",
        "nodes": "SLURM_JOB_NODELIST",
        "node_count": "SLURM_JOB_NUM_NODES",
        "cpus_on_node": "SLURM_CPUS_ON_NODE",
        "gpus": "SLURM_JOB_GPUS",
        "cluster": "SLURM_CLUSTER_NAME",
    }
    told = {
        name: environment[variable] for name, variable in named.items() if variable in environment
    }
    if not told.get("gpus") and "SLURM_GPUS_ON_NODE" in environment:
        told["gpus"] = environment["SLURM_GPUS_ON_NODE"]
    return told


def gpus_given(environment: Mapping[str, str]) -> int:
    """Return how many accelerators of its first node a job was given; 0 where that is not told."""
    given = environment.get("SLURM_JOB_GPUS", "")
    return given.count(",") + 1 if given else 0


def restart_count() -> int:
    """Return how often SLURM has queued this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def node_name() -> str:
    """Return SLURM's name for this node, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def task() -> SlurmTask:
    """Return which task this process is. Raises KeyError for a variable that is not set."""
    variables = os.environ
    return SlurmTask(
        int(variables["SLURM_JOB_ID"]),
        int(variables["SLURM_PROCID"]),
        int(variables["SLURM_NTASKS"]),
        int(variables.get("SLURM_STEP_ID", "0")),
        variables["SLURM_LAUNCH_NODE_IPADDR"],
    )


def outside_of_a_job() -> dict[str, str]:
    """Return this process's environment without what the job that it is in says of itself."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in SITE_VARIABLES
    }


def with_epoch_times() -> dict[str, str]:
    """Return the environment in which squeue and sacct tell times as seconds since 1970."""
    return {**os.environ, "SLURM_TIME_FORMAT": "%s"}
