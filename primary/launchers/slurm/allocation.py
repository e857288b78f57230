"""Allocations of the steps' nodes: jobs that the run submits, or the job of the primary."""

from __future__ import annotations

import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, job_options
from aiperf_hpc.primary.launchers.slurm.client import TIMEOUT_SECONDS, Answer, SlurmClient, error_of
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
"""Output of salloc after SLURM has accepted the job."""
LOOK_SECONDS = 0.05
END_SECONDS = 60.0
"""Time after the run's end that an allocation must allow, for records, score and report."""


class Allocation(ABC):
    """Jobs whose nodes the primary holds."""

    queues = False
    """Whether nodes may arrive after the start, and more nodes can be requested."""

    @abstractmethod
    def look(self) -> Sequence[Job]:
        """Return the current jobs whose nodes can be used. One client call."""

    @abstractmethod
    def check(self, nodes: int) -> None:
        """Require that a run can have this number of nodes. One client call.

        Raises UsageError if it cannot, SchedulerError if SLURM does not respond.
        """

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        """Request a job of ``count`` nodes of a group; return when SLURM has accepted it."""
        raise SchedulerError(f"{nodes} more nodes: an allocation cannot grow")

    def requested(self, group: NodeGroup) -> int:
        """Return the number of requested nodes of a group that are still pending."""
        del group
        return 0

    def granted(self) -> Sequence[Job]:
        """Return the jobs that were granted since the last call, without a request to SLURM."""
        return ()

    def release(self) -> None:
        """Release the held nodes. One client call."""
        return


class CurrentAllocation(Allocation):
    """Allocation that contains the primary: its nodes are used, and nothing is submitted."""

    def __init__(self, client: SlurmClient, job: str | None) -> None:
        """Read the job from the environment. Raises UsageError if this process is in no job."""
        if job is None:
            raise UsageError(
                "--launcher inside: SLURM_JOB_ID is not set, so this is not a SLURM job; run it "
                "inside salloc or a batch script, or use --launcher slurm"
            )
        self._client = client
        self._job = job

    def look(self) -> Sequence[Job]:
        return self._client.jobs(self._job)

    def check(self, nodes: int) -> None:
        if (there := held_nodes(self.look())) < nodes:
            raise UsageError(f"--nodes {nodes}: the allocation has {there} nodes")


def held_nodes(jobs: Sequence[Job]) -> int:
    """Return the number of usable nodes."""
    return sum(len(job.nodes) for job in jobs if job.held)


def nodes_inside(jobs: Sequence[Job], environment: Mapping[str, str] = os.environ) -> list[Nodes]:
    """Return an allocation's nodes in the format of ``SlurmClient.partitions``.

    Accelerators that were not requested per node, but belong to whole nodes, appear only in an
    environment variable on the first node.
    """
    given = environment.get("SLURM_JOB_GPUS", "")
    here = f"gpu:{given.count(',') + 1}" if given else ""
    return [
        Nodes(f"job {job.id}", True, True, "allocated", len(job.nodes), job.gres or here, INFINITY)
        for job in jobs
        if job.held
    ]


def check_allocation(jobs: Sequence[Job], nodes: int, hours: float, now: float) -> None:
    """Require that the primary's allocation satisfies a run's request.

    Args:
        jobs: jobs of the allocation; several if it is heterogeneous.
        nodes: number of nodes of the run.
        hours: duration of the run in hours.
        now: current time in UTC seconds.

    Raises:
        UsageError: the allocation does not exist, has too few nodes, or ends before the run.
    """
    held = [job for job in jobs if job.held]
    if not held:
        raise UsageError("--launcher inside: SLURM no longer knows the job in SLURM_JOB_ID")
    name = held[0].id.partition("+")[0]
    if (there := held_nodes(held)) < nodes:
        raise UsageError(f"--nodes {nodes}: the allocation {name} has {there}; request fewer nodes")
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
    """Return the command that requests a job with these nodes of a group and this time limit.

    With --no-shell, the job outlives salloc and the primary. With --no-kill, it outlives the
    failure of a node, even of the first.
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
    """A salloc process that waits for its nodes."""

    job: Job
    process: Process


@dataclass(eq=False)
class SubmittedAllocation(Allocation):
    """Jobs without batch script that hold the run's nodes, and further ones for lost nodes."""

    queues = True

    manifest: RunManifest
    paths: RunPaths
    client: SlurmClient
    _: KW_ONLY
    spawn: Spawn = spawn
    clock: Clock = SYSTEM

    def __post_init__(self) -> None:
        self._log = self.paths.allocation_log
        self._requests: list[_Request] = []
        self._groups = groups_of(self.manifest)

    def look(self) -> Sequence[Job]:
        jobs = self.client.named(job_name(self.manifest))
        return [in_its_group(job, self._groups) for job in jobs]

    def check(self, nodes: int) -> None:
        manifest = self.manifest
        check_cluster(manifest.config.slurm, nodes, manifest.hours, self.client.partitions())

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        begins = self._log.stat().st_size if self._log.exists() else 0
        command = salloc_command(self.manifest, nodes, minutes, group)
        process = self.spawn(command, self._log)
        until = self.clock.monotonic() + TIMEOUT_SECONDS
        while True:
            status = process.poll()  # Before its output is read, so that none is missed.
            with self._log.open("rb") as file:
                file.seek(begins)
                output = file.read().decode("utf-8", "replace")
            if found := ACCEPTED.search(output):
                job = Job(found[1], "PENDING", count=nodes, group=group.number)
                self._requests.append(_Request(job, process))
                return job
            if status is not None:
                raise error_of("salloc", Answer(status, "", output))
            if self.clock.monotonic() >= until:
                raise SchedulerSilentError(
                    f"salloc has not responded within {TIMEOUT_SECONDS:.0f} s"
                )
            self.clock.sleep(LOOK_SECONDS)

    def requested(self, group: NodeGroup) -> int:
        jobs = (request.job for request in self._requests)
        return sum(job.count for job in jobs if job.group == group.number)

    def granted(self) -> Sequence[Job]:
        over = [each for each in self._requests if each.process.poll() is not None]
        self._requests = [each for each in self._requests if each not in over]
        return [each.job for each in over if each.process.poll() == 0]

    def release(self) -> None:
        self.client.cancel_named(job_name(self.manifest))


def release_jobs(manifest: RunManifest, client: SlurmClient | None = None) -> str | None:
    """Release the nodes of a run whose primary has died; return the reason if that failed."""
    try:
        (client or SlurmClient()).cancel_named(job_name(manifest))
    except SchedulerError as error:
        return f"its nodes are not released ({error}): scancel --name={job_name(manifest)}"
    return None
