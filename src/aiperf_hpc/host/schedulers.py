"""The table of schedulers that launch replicas, with their launchers and job variables.

Primary and replicas read this table. The primary's requests to a scheduler are in the module that
the row names; a replica only reads the variables of its job.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

JobField = Literal[
    "id", "partition", "nodes", "node_count", "cpus_on_node", "gpus", "cluster",
    "restarts", "node", "node_gpus", "step_gpus",
    "rank", "ranks", "local_rank", "step", "first_address",
]  # fmt: skip
"""Fields of ``system.description.Job``, followed by the job's restart count, the node name, the
accelerators of the job and of the step on the node, and the fields of ``Task`` with the local
rank."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler."""

    name: str
    """Name of the scheduler, its configuration section and its default launcher."""
    modes: tuple[str, ...]
    """Names of its other launchers."""
    help: str
    """Part of the help text of ``--launcher``."""
    backend: str
    """Module of the primary with the ``BACKEND`` for this scheduler."""
    accelerators: str
    """Setting that requests a node's accelerators."""
    prefix: str
    """Prefix of its environment variables."""
    variables: Mapping[JobField, str]
    """Environment variable of each available field."""

    @property
    def title(self) -> str:
        """Display name."""
        return self.name.upper()

    @property
    def launchers(self) -> tuple[str, ...]:
        """Names of all its launchers."""
        return (self.name, *self.modes)


# sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES.
SLURM = Scheduler(
    name="slurm",
    modes=("array", "allocation", "inside"),
    help="array: as a SLURM job array; allocation: in one SLURM job; slurm: as set by slurm.mode; "
    "inside: in the current SLURM job",
    backend="aiperf_hpc.primary.launchers.slurm.backend",
    accelerators="slurm.gres",
    prefix="SLURM_",
    variables={
        "id": "SLURM_JOB_ID",
        "partition": "SLURM_JOB_PARTITION",
        "nodes": "SLURM_JOB_NODELIST",
        "node_count": "SLURM_JOB_NUM_NODES",
        "cpus_on_node": "SLURM_CPUS_ON_NODE",
        "gpus": "SLURM_JOB_GPUS",
        "cluster": "SLURM_CLUSTER_NAME",
        "restarts": "SLURM_RESTART_COUNT",
        "node": "SLURMD_NODENAME",
        "node_gpus": "SLURM_GPUS_ON_NODE",
        "step_gpus": "SLURM_STEP_GPUS",
        "rank": "SLURM_PROCID",
        "ranks": "SLURM_NTASKS",
        "local_rank": "SLURM_LOCALID",
        "step": "SLURM_STEP_ID",
        "first_address": "SLURM_LAUNCH_NODE_IPADDR",
    },
)
SCHEDULERS: tuple[Scheduler, ...] = (SLURM,)


def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers that a user can request."""
    modes = (mode for each in SCHEDULERS for mode in each.modes)
    return ("auto", *(each.name for each in SCHEDULERS), "local", *modes)


class Task(NamedTuple):
    """A process of a job step."""

    job: int
    rank: int
    ranks: int
    step: int
    first_address: str
    """Address of the first node of the allocation, which runs rank 0."""


def job_variable(field: JobField, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of the scheduler's variable for a field, or None if it is not set."""
    names = (each.variables[field] for each in SCHEDULERS if field in each.variables)
    return next((environment[name] for name in names if name in environment), None)


def current(environment: Mapping[str, str] = os.environ) -> Scheduler | None:
    """Return the scheduler of this process's job, or None outside a job."""
    return next((each for each in SCHEDULERS if each.variables["id"] in environment), None)


def node_name() -> str:
    """Return the scheduler's name for this node, or else the host name."""
    return job_variable("node") or socket.gethostname()


def task() -> Task:
    """Return the task of this process. Raises KeyError if a variable is not set."""
    variables = (current() or SCHEDULERS[0]).variables
    job, rank, ranks = (int(os.environ[variables[name]]) for name in ("id", "rank", "ranks"))
    first = os.environ[variables["first_address"]]
    return Task(job, rank, ranks, int(job_variable("step") or 0), first)
