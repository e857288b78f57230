"""Pool of the nodes of an allocation's jobs: free, missing and unneeded nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.slurm.allocation import Allocation
from aiperf_hpc.primary.launchers.slurm.client import SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Job
from aiperf_hpc.primary.launchers.slurm.resources import FOREIGN, NodeGroup, group_of, groups_of
from aiperf_hpc.primary.launchers.slurm.steps import Place, StaleSteps, trial_command
from aiperf_hpc.run.manifest import RunManifest


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
