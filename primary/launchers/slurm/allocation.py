"""A job of the run's nodes that no batch script holds, and further ones for lost nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, job_options
from aiperf_hpc.primary.launchers.slurm.client import (
    TIMEOUT_SECONDS,
    Answer,
    SlurmClient,
    error_of,
)
from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs, Job
from aiperf_hpc.primary.launchers.slurm.node_groups import NodeGroup, groups_of, in_its_group
from aiperf_hpc.primary.launchers.slurm.partitions import check_cluster
from aiperf_hpc.primary.launchers.slurm.steps import Process, Spawn, spawn
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

ACCEPTED = re.compile(r"(?:Pending|Granted) job allocation (\d+)")
"""What salloc says once SLURM has taken the job."""
LOOK_SECONDS = 0.05


def salloc_command(manifest: RunManifest, nodes: int, minutes: int, group: NodeGroup) -> list[str]:
    """Return the command that asks for a job of so many nodes of a group for so many minutes.

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


class Allocation:
    """The run's own jobs. It is a ``Holding``."""

    name = "allocation"
    queues = True

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        held_jobs: HeldJobs,
        *,
        client: SlurmClient | None = None,
        spawn: Spawn = spawn,
        clock: Clock = SYSTEM,
    ) -> None:
        """Ask for nothing yet."""
        self._client = client or SlurmClient()
        self._manifest = manifest
        self._log = paths.allocation_log
        self._held_jobs = held_jobs
        self._spawn = spawn
        self._clock = clock
        self._requests: list[_Request] = []
        self._groups = groups_of(manifest)

    def look(self) -> Sequence[Job]:
        jobs = self._held_jobs.named(job_name(self._manifest))
        return [in_its_group(job, self._groups) for job in jobs]

    def check(self, nodes: int) -> None:
        check_cluster(
            self._manifest.config.slurm, nodes, self._manifest.hours, self._client.partitions()
        )

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        begins = self._log.stat().st_size if self._log.exists() else 0
        command = salloc_command(self._manifest, nodes, minutes, group)
        process = self._spawn(command, self._log)
        until = self._clock.monotonic() + TIMEOUT_SECONDS
        while True:
            status = process.poll()  # Before its words, so that none is missed.
            with self._log.open("rb") as file:
                file.seek(begins)
                said = file.read().decode("utf-8", "replace")
            if found := ACCEPTED.search(said):
                job = Job(found[1], "PENDING", count=nodes, group=group.number)
                self._requests.append(_Request(job, process))
                return job
            if status is not None:
                raise error_of("salloc", Answer(status, "", said))
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
        self._held_jobs.cancel_named(job_name(self._manifest))


def release_jobs(manifest: RunManifest, held_jobs: HeldJobs | None = None) -> str | None:
    """Give back the nodes of a run whose primary has died; return why that failed, if it did."""
    try:
        (held_jobs or HeldJobs()).cancel_named(job_name(manifest))
    except SchedulerError as error:
        return f"its nodes are not given back ({error}): scancel --name={job_name(manifest)}"
    return None
