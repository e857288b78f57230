"""Where the nodes of steps come from: jobs of the run's own, or the job that the primary is in."""

from __future__ import annotations

import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, job_options
from aiperf_hpc.primary.launchers.slurm.client import (
    TIMEOUT_SECONDS,
    Answer,
    SlurmClient,
    error_of,
)
from aiperf_hpc.primary.launchers.slurm.jobs import INFINITY, Job, Nodes
from aiperf_hpc.primary.launchers.slurm.resources import (
    NodeGroup,
    check_cluster,
    groups_of,
    in_its_group,
)
from aiperf_hpc.primary.launchers.slurm.steps import Process, Spawn, spawn
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

ACCEPTED = re.compile(r"(?:Pending|Granted) job allocation (\d+)")
"""The output of salloc once SLURM has taken the job."""
LOOK_SECONDS = 0.05
END_SECONDS = 60.0
"""The time that a run needs of its allocation after its last second: records, score, report."""


class Allocation(ABC):
    """Jobs whose nodes the primary holds."""

    queues = False
    """Whether nodes may be waited for after the start, and more be requested."""

    @abstractmethod
    def look(self) -> Sequence[Job]:
        """Return the jobs whose nodes may be used, as they are now. One call of a client."""

    @abstractmethod
    def check(self, nodes: int) -> None:
        """Require that a run may have so many nodes. One call of a client.

        Raises UsageError where it may not, SchedulerError when SLURM does not answer.
        """

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        """Request a job of so many nodes of a group; return it as soon as SLURM has taken it."""
        raise SchedulerError(f"{nodes} nodes more: this allocation does not grow")

    def requested(self, group: NodeGroup) -> int:
        """Return how many nodes of a group were requested and are waited for."""
        del group
        return 0

    def granted(self) -> Sequence[Job]:
        """Return the jobs that were granted since the last call. SLURM is not asked."""
        return ()

    def release(self) -> None:
        """Give back what is held. One call of a client."""
        return


class CurrentAllocation(Allocation):
    """The allocation that the primary is in: its nodes are used, and nothing is submitted."""

    def __init__(self, client: SlurmClient, job: str | None) -> None:
        """Ask nothing yet. Raises UsageError where this process is in no job."""
        if job is None:
            raise UsageError(
                "--launcher inside: SLURM_JOB_ID is not set, so that this is no job of SLURM; "
                "run it within salloc or a batch script, or use --launcher slurm"
            )
        self._client = client
        self._job = job

    def look(self) -> Sequence[Job]:
        return self._client.jobs(self._job)

    def check(self, nodes: int) -> None:
        if (there := held_nodes(self.look())) < nodes:
            raise UsageError(f"--nodes {nodes}: the allocation has {there} nodes")


def held_nodes(jobs: Sequence[Job]) -> int:
    """Return how many nodes may be used."""
    return sum(len(job.nodes) for job in jobs if job.held)


def nodes_inside(jobs: Sequence[Job], environment: Mapping[str, str] = os.environ) -> list[Nodes]:
    """Return an allocation's nodes as ``SlurmClient.partitions`` returns those of a partition.

    Accelerators that were not requested by node, but came with whole nodes, are in a variable of
    the first node alone.
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


def salloc_command(manifest: RunManifest, nodes: int, minutes: int, group: NodeGroup) -> list[str]:
    """Return the command that requests a job of so many nodes of a group for so many minutes.

    No shell: the job is not salloc's, whose end, or that of the primary, does not end it. No kill:
    the loss of a node, be it the first, does not end it either.
    """
    slurm = group.slurm
    return [
        "salloc",
        "--no-shell",
        "--no-kill",
        f"--job-name={job_name(manifest)}",
        f"--nodes={nodes}",
        f"--ntasks-per-node={manifest.config.replica.ranks_per_node}",
        f"--time={minutes}",
        f"--signal=TERM@{slurm.signal_seconds}",
        *(word for option in job_options(slurm) for word in shlex.split(option)),
    ]


@dataclass(frozen=True, slots=True)
class _Request:
    """A salloc that waits for its nodes."""

    job: Job
    process: Process


class SubmittedAllocation(Allocation):
    """Jobs of the run's nodes that no batch script holds, and further ones for lost nodes."""

    queues = True

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        client: SlurmClient,
        *,
        spawn: Spawn = spawn,
        clock: Clock = SYSTEM,
    ) -> None:
        """Request nothing yet."""
        self._manifest = manifest
        self._log = paths.allocation_log
        self._client = client
        self._spawn = spawn
        self._clock = clock
        self._requests: list[_Request] = []
        self._groups = groups_of(manifest)

    def look(self) -> Sequence[Job]:
        jobs = self._client.named(job_name(self._manifest))
        return [in_its_group(job, self._groups) for job in jobs]

    def check(self, nodes: int) -> None:
        manifest = self._manifest
        check_cluster(manifest.config.slurm, nodes, manifest.hours, self._client.partitions())

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        begins = self._log.stat().st_size if self._log.exists() else 0
        command = salloc_command(self._manifest, nodes, minutes, group)
        process = self._spawn(command, self._log)
        until = self._clock.monotonic() + TIMEOUT_SECONDS
        while True:
            status = process.poll()  # Before its output, so that none is missed.
            with self._log.open("rb") as file:
                file.seek(begins)
                output = file.read().decode("utf-8", "replace")
            if found := ACCEPTED.search(output):
                job = Job(found[1], "PENDING", count=nodes, group=group.number)
                self._requests.append(_Request(job, process))
                return job
            if status is not None:
                raise error_of("salloc", Answer(status, "", output))
            if self._clock.monotonic() >= until:
                raise SchedulerSilentError(
                    f"salloc has not answered within {TIMEOUT_SECONDS:.0f} s"
                )
            self._clock.sleep(LOOK_SECONDS)

    def requested(self, group: NodeGroup) -> int:
        jobs = (request.job for request in self._requests)
        return sum(job.count for job in jobs if job.group == group.number)

    def granted(self) -> Sequence[Job]:
        over = [each for each in self._requests if each.process.poll() is not None]
        self._requests = [each for each in self._requests if each not in over]
        return [each.job for each in over if each.process.poll() == 0]

    def release(self) -> None:
        self._client.cancel_named(job_name(self._manifest))


def release_jobs(manifest: RunManifest, client: SlurmClient | None = None) -> str | None:
    """Give back the nodes of a run whose primary has died; return why that failed, if it did."""
    try:
        (client or SlurmClient()).cancel_named(job_name(manifest))
    except SchedulerError as error:
        return f"its nodes are not given back ({error}): scancel --name={job_name(manifest)}"
    return None
