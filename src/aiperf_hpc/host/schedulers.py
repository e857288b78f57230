"""The schedulers that launch replicas, a row for each: their launchers and their jobs' variables.

Both sides read this table. What the primary asks a scheduler is in the module that its row names;
a replica only reads the variables of the job that it runs in.
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
"""The fields of ``system.description.Job``, then the restarts of the job, the name of the node, the
number of its accelerators that the job has and those of the step, then the fields of ``Task`` and
the number of the process on its node."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One scheduler."""

    name: str
    """Also the name of its section of the configuration, and of the launcher which that chooses."""
    modes: tuple[str, ...]
    """The names of its other launchers."""
    help: str
    """The part of the help of ``--launcher`` about it."""
    backend: str
    """The module of the primary whose ``BACKEND`` launches by it."""
    accelerators: str
    """The setting that requests a node's accelerators."""
    prefix: str
    """The beginning of the names of its variables."""
    variables: Mapping[JobField, str]
    """The variable of each field, where it has one."""

    @property
    def title(self) -> str:
        """Its name in texts."""
        return self.name.upper()

    @property
    def launchers(self) -> tuple[str, ...]:
        """All names of its launchers."""
        return (self.name, *self.modes)


# sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES.
SLURM = Scheduler(
    name="slurm",
    modes=("array", "allocation", "inside"),
    help="in SLURM slurm, array, allocation or inside one",
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
    """Return the launchers that a user may request."""
    modes = (mode for each in SCHEDULERS for mode in each.modes)
    return ("auto", *(each.name for each in SCHEDULERS), "local", *modes)


class Task(NamedTuple):
    """One process of a job's step."""

    job: int
    rank: int
    ranks: int
    step: int
    first_address: str
    """The address of the allocation's first node, where rank 0 is."""


def job_variable(field: JobField, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of the scheduler's variable of a field; None if it is not set."""
    names = (each.variables[field] for each in SCHEDULERS if field in each.variables)
    return next((environment[name] for name in names if name in environment), None)


def current(environment: Mapping[str, str] = os.environ) -> Scheduler | None:
    """Return the scheduler whose job this process is in; None outside of one."""
    return next((each for each in SCHEDULERS if each.variables["id"] in environment), None)


def node_name() -> str:
    """Return the scheduler's name for this node, or the host's."""
    return job_variable("node") or socket.gethostname()


def task() -> Task:
    """Return which task this process is. Raises KeyError for a variable that is not set."""
    variables = (current() or SCHEDULERS[0]).variables
    job, rank, ranks = (int(os.environ[variables[name]]) for name in ("id", "rank", "ranks"))
    first = os.environ[variables["first_address"]]
    return Task(job, rank, ranks, int(job_variable("step") or 0), first)
