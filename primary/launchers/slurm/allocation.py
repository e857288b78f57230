"""Allocations of the steps' nodes: jobs that the run submits, or the job of the primary.

``NodePool`` places replicas on the nodes.
"""

from __future__ import annotations

import os
import re
import shlex
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, job_options
from aiperf_hpc.primary.launchers.slurm.client import TIMEOUT_SECONDS, Answer, SlurmClient, error_of
from aiperf_hpc.primary.launchers.slurm.jobs import INFINITY, Job, Nodes
from aiperf_hpc.primary.launchers.slurm.resources import (
    FOREIGN,
    NodeGroup,
    group_of,
    groups_of,
    in_its_group,
)
from aiperf_hpc.primary.launchers.slurm.steps import (
    Place,
    Process,
    Spawn,
    StaleSteps,
    spawn,
    trial_command,
)
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
        self._requests: list[tuple[Job, Process]] = []
        """Requested jobs with the salloc processes that wait for their nodes."""
        self._groups = groups_of(self.manifest)

    def look(self) -> Sequence[Job]:
        jobs = self.client.named(job_name(self.manifest))
        return [in_its_group(job, self._groups) for job in jobs]

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
                self._requests.append((job, process))
                return job
            if status is not None:
                raise error_of("salloc", Answer(status, "", output))
            if self.clock.monotonic() >= until:
                raise SchedulerSilentError(
                    f"salloc has not responded within {TIMEOUT_SECONDS:.0f} s"
                )
            self.clock.sleep(LOOK_SECONDS)

    def requested(self, group: NodeGroup) -> int:
        return sum(job.count for job, _ in self._requests if job.group == group.number)

    def granted(self) -> Sequence[Job]:
        over = [each for each in self._requests if each[1].poll() is not None]
        self._requests = [each for each in self._requests if each not in over]
        return [job for job, process in over if process.poll() == 0]

    def release(self) -> None:
        self.client.cancel_named(job_name(self.manifest))


def release_jobs(manifest: RunManifest, client: SlurmClient | None = None) -> str | None:
    """Release the nodes of a run whose primary has died; return the reason if that failed."""
    try:
        (client or SlurmClient()).cancel_named(job_name(manifest))
    except SchedulerError as error:
        return f"its nodes are not released ({error}): scancel --name={job_name(manifest)}"
    return None


@dataclass(eq=False)
class NodePool:
    """Places replicas on the nodes of an allocation."""

    manifest: RunManifest
    allocation: Allocation
    client: SlurmClient
    stale_steps: StaleSteps

    def __post_init__(self) -> None:
        self.jobs: list[Job] = []
        self.groups = groups_of(self.manifest)
        self._tried: dict[str, int] = {}
        """Jobs on whose nodes a step was started, with their node groups."""
        self.hosts: dict[str, str] = {}
        """Host name of each node."""

    def job_at(self, place: Place) -> Job | None:
        """Return the job of a place, or None if it has ended."""
        return next((job for job in self.jobs if job.id == place.job), None)

    def group(self, replica: str) -> int:
        """Return the number of a replica's group."""
        return group_of(self.manifest, replica)

    def of_group(self, group: int) -> list[Job]:
        """Return the jobs of a group."""
        return [job for job in self.jobs if job.group == group]

    def untried(self) -> list[Job]:
        """Return the run's jobs with usable nodes that were not tested."""
        held = (job for job in self.jobs if job.held and job.group != FOREIGN)
        return [job for job in held if job.id not in self._tried]

    def try_step(self, place: Place, count: int = 0) -> list[str]:
        """Run an empty step on these nodes, and return their names.

        Raises:
            UsageError: the step was rejected; nothing else was started.
            SchedulerSilentError: SLURM does not respond.
        """
        overlap = self.stale_steps.overlaps(place)
        command = trial_command(self.manifest, place, count, overlap=overlap)
        try:
            output = self.client.try_step(command)
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            raise UsageError(
                f"job {place.job} refused a step: {error}; nothing was started; check the slurm "
                "section of the configuration and the other steps of the job"
            ) from None
        self._tried[place.job] = place.group
        columns = (line.split() for line in output)
        hosts = {found[0]: found[1] for found in columns if len(found) == 2}
        self.hosts |= hosts
        return sorted(hosts, key=lambda node: (len(node), node))

    def take(self, job: Job) -> None:
        """Add the nodes of a granted job. Raises the errors of ``try_step``."""
        nodes = self.try_step(Place(job.id, job.nodes, job.group), job.count)
        others = [other for other in self.jobs if other.id != job.id]
        self.jobs = [*others, replace(job, state="RUNNING", nodes=tuple(nodes))]

    def places(self, replicas: Sequence[str], used: Collection[Place]) -> dict[str, Place]:
        """Return places for all or some of these replicas on nodes without steps."""
        free: dict[int, deque[Place]] = {}
        for place in self._free(used):
            free.setdefault(place.group, deque()).append(place)
        own = ((name, free.get(self.group(name))) for name in replicas)
        return {name: places.popleft() for name, places in own if places}

    def _free(self, used: Collection[Place]) -> Iterator[Place]:
        busy = {node for place in used for node in place.nodes}
        each = self.manifest.config.replica.nodes
        for job in self.jobs:
            usable = job.held and (job.id in self._tried or not self.allocation.queues)
            free = [node for node in job.nodes if usable and node not in busy]
            for at in range(0, len(free) // each * each, each):
                yield Place(job.id, tuple(free[at : at + each]), job.group)

    def lacking(self, waiting: Collection[str]) -> NodeGroup | None:
        """Return the group whose lost nodes are to be replaced."""
        begun = self._tried.values() if self.allocation.queues else ()
        groups = (g for g in self.groups if g.number in begun and self._lacks(g, waiting))
        return next(groups, None)

    def _lacks(self, group: NodeGroup, replicas: Collection[str]) -> bool:
        """Return whether the waiting replicas of a group need more nodes than requested."""
        waiting = sum(self.group(name) == group.number for name in replicas)
        pending = sum(job.count for job in self.of_group(group.number) if job.waits)
        requested = max(self.allocation.requested(group), pending)
        return requested < waiting * self.manifest.config.replica.nodes

    def surplus(self, used: Collection[Place]) -> list[str]:
        """Return the jobs without steps on their nodes, except the first job of each group."""
        first = {job.group: job.id for job in reversed(self.jobs) if job.group != FOREIGN}
        needed = {place.job for place in used}.union(first.values())
        return [job.id for job in self.jobs if (job.held or job.waits) and job.id not in needed]
