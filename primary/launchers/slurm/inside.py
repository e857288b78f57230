"""The job that the primary is in: its nodes are used, and nothing is submitted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from aiperf_hpc.errors import SchedulerError, UsageError
from aiperf_hpc.primary.launchers.slurm.client import Nodes
from aiperf_hpc.primary.launchers.slurm.held_jobs import INFINITY, HeldJobs, Job
from aiperf_hpc.primary.launchers.slurm.node_groups import NodeGroup
from aiperf_hpc.primary.launchers.slurm.step_launcher import held_nodes

END_SECONDS = 60.0
"""What a run needs of its allocation after its last second: last records, score and report."""


class Inside:
    """The allocation that the primary is in."""

    name = "inside"
    queues = False

    def __init__(self, held_jobs: HeldJobs, job: str | None) -> None:
        """Ask nothing yet. Raises UsageError where this process is in no job."""
        if job is None:
            raise UsageError(
                "--launcher inside: SLURM_JOB_ID is not set, so that this is no job of SLURM; "
                "run it within salloc or a batch script, or use --launcher slurm"
            )
        self._held_jobs = held_jobs
        self._job = job

    def look(self) -> Sequence[Job]:
        return self._held_jobs.jobs(self._job)

    def check(self, nodes: int) -> None:
        if (there := held_nodes(self.look())) < nodes:
            raise UsageError(f"--nodes {nodes}: the allocation has {there} nodes")

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        del nodes, minutes, group
        raise SchedulerError("an allocation that the run is only in does not grow")

    def requested(self, group: NodeGroup) -> int:
        del group
        return 0

    def granted(self) -> Sequence[Job]:
        return ()

    def release(self) -> None:
        pass  # It was there before the run.


def nodes_inside(jobs: Sequence[Job], environment: Mapping[str, str] = os.environ) -> list[Nodes]:
    """Return an allocation's nodes as ``SlurmClient.partitions`` returns those of a partition.

    What was not asked for by node, but came with whole nodes, is told to a batch script's first.
    """
    given = environment.get("SLURM_JOB_GPUS", "")
    here = f"gpu:{given.count(',') + 1}" if given else ""
    return [
        Nodes(f"job {job.id}", True, True, "allocated", len(job.nodes), job.gres or here, INFINITY)
        for job in jobs
        if job.held
    ]


def check_allocation(jobs: Sequence[Job], nodes: int, hours: float, now: float) -> None:
    """Require what a run asks of the allocation that it is in.

    Args:
        jobs: the allocation; several where it is heterogeneous.
        nodes: how many nodes the run needs.
        hours: for how long.
        now: UTC seconds.

    Raises:
        UsageError: it is not there, has too few nodes, or ends before the run.
    """
    held = [job for job in jobs if job.held]
    if not held:
        raise UsageError("--launcher inside: SLURM does not know the job of SLURM_JOB_ID any more")
    name = held[0].id.partition("+")[0]
    if (there := held_nodes(held)) < nodes:
        raise UsageError(f"--nodes {nodes}: the allocation {name} has {there}; ask for fewer nodes")
    end = min(job.end_utc for job in held)
    if now + hours * 3600.0 + END_SECONDS > end:
        left = max(0.0, end - now - END_SECONDS) / 3600.0
        at = datetime.fromtimestamp(end).astimezone()
        raise UsageError(
            f"--hours {hours:g}: the allocation {name} ends at {at:%Y-%m-%d %H:%M:%S %Z}; with "
            f"{END_SECONDS:g} s for the last records there is time for --hours "
            f"{int(left * 1000) / 1000:g}"
        )
