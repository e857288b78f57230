"""The groups of nodes that a run asks SLURM for: one, or one of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aiperf_hpc.config import SlurmConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.slurm.gres import equal
from aiperf_hpc.primary.launchers.slurm.held_jobs import Job
from aiperf_hpc.run.identity import replica_number
from aiperf_hpc.run.manifest import RunManifest

FOREIGN = -1
"""The group of a job that was asked for as none of a run's groups is."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are asked for alike."""

    number: int
    nodes: int
    slurm: SlurmConfig
    """What is asked for each of them."""
    where: str
    """The setting that asks for them, for messages."""

    @property
    def asked(self) -> str:
        """How many nodes are asked for, and where."""
        setting = "--nodes" if self.where == "slurm" else f"{self.where}.nodes"
        return f"{setting} {self.nodes}"


def node_groups(slurm: SlurmConfig, nodes: int) -> list[NodeGroup]:
    """Return the groups of so many nodes; without ``slurm.node_groups`` they are one."""
    groups = [
        NodeGroup(number, each.nodes, slurm.of_group(each), f"slurm.node_groups.{number}")
        for number, each in enumerate(slurm.node_groups)
    ]
    return groups or [NodeGroup(0, nodes, slurm, "slurm")]


def groups_of(manifest: RunManifest) -> list[NodeGroup]:
    """Return the groups of a run's nodes."""
    return node_groups(manifest.config.slurm, manifest.nodes)


def group_of(manifest: RunManifest, replica: str) -> int:
    """Return the number of the group of a replica: those of the first group come first."""
    *earlier, last = groups_of(manifest)
    number = replica_number(replica)
    for group in earlier:
        number -= group.nodes // manifest.config.replica.nodes
        if number < 0:
            return group.number
    return last.number


def by_group(
    manifest: RunManifest, replicas: Sequence[str]
) -> Iterator[tuple[NodeGroup, list[str]]]:
    """Yield each group of which there are some among these replicas, with those."""
    of = {name: group_of(manifest, name) for name in replicas}
    for group in groups_of(manifest):
        if own := [name for name in replicas if of[name] == group.number]:
            yield group, own


def in_its_group(job: Job, groups: Sequence[NodeGroup]) -> Job:
    """Return a job of a run with its group, by what SLURM says that it was asked for."""
    if len(groups) == 1:
        return job
    found = (group.number for group in groups if _asks_for(group.slurm, job))
    return replace(job, group=next(found, FOREIGN))


def _asks_for(slurm: SlurmConfig, job: Job) -> bool:
    same = (slurm.partition, slurm.constraint or "") == (job.partition, job.constraint)
    return same and (slurm.gres is None or equal(slurm.gres, job.gres))


def require_none(slurm: SlurmConfig) -> None:
    """Require that nothing is asked for where nothing is submitted. Raises UsageError."""
    if slurm.node_groups:
        raise UsageError(
            "--launcher inside: an allocation has the nodes that it has; leave slurm.node_groups "
            "out: --set slurm.node_groups=[]"
        )


def require_total(slurm: SlurmConfig, nodes: int) -> None:
    """Require that a run has the nodes of its groups. Raises UsageError."""
    total = sum(each.nodes for each in slurm.node_groups)
    if slurm.node_groups and total != nodes:
        raise UsageError(
            f"--nodes {nodes}: slurm.node_groups has {total} nodes, no more and no fewer; give "
            f"--nodes {total}, or change the groups"
        )
