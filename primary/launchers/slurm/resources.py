"""Node groups that a run requests from SLURM, and their validation against the cluster.

Generic resources (gres) have SLURM's notation: gpu:h100:4(S:0-1),ssd:1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aiperf_hpc.config import SlurmConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.slurm.batch_script import time_limit_minutes
from aiperf_hpc.primary.launchers.slurm.jobs import Job, Nodes
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import replica_number

FOREIGN = -1
"""Group number of a job that matches none of the run's groups."""
UNUSABLE = ("down", "drain", "fail", "error", "unknown", "inval", "future", "perfctrs", "blocked")
"""Prefixes of the states of nodes that cannot run jobs."""
ACCELERATORS = ("gpu", "npu", "dcu", "mlu")
"""Names of accelerators at sites. Others, such as ``shard`` and ``mps``, are parts of one."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with an equal request."""

    number: int
    nodes: int
    slurm: SlurmConfig
    """Request per node."""
    where: str
    """Setting that requests the nodes, for messages."""

    @property
    def request(self) -> str:
        """Setting with the number of nodes, for messages."""
        setting = "--nodes" if self.where == "slurm" else f"{self.where}.nodes"
        return f"{setting} {self.nodes}"


def node_groups(slurm: SlurmConfig, nodes: int) -> list[NodeGroup]:
    """Return the groups of this number of nodes; without ``slurm.node_groups`` there is one."""
    groups = [
        NodeGroup(number, each.nodes, slurm.of_group(each), f"slurm.node_groups.{number}")
        for number, each in enumerate(slurm.node_groups)
    ]
    return groups or [NodeGroup(0, nodes, slurm, "slurm")]


def groups_of(manifest: RunManifest) -> list[NodeGroup]:
    """Return the groups of a run's nodes."""
    return node_groups(manifest.config.slurm, manifest.nodes)


def group_of(manifest: RunManifest, replica: str) -> int:
    """Return the group number of a replica: replicas of the first group come first."""
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
    """Yield each group of these replicas, with the replicas that belong to it."""
    of = {name: group_of(manifest, name) for name in replicas}
    for group in groups_of(manifest):
        if own := [name for name in replicas if of[name] == group.number]:
            yield group, own


def in_its_group(job: Job, groups: Sequence[NodeGroup]) -> Job:
    """Return a job of a run with its group, determined from the request that SLURM reports."""
    if len(groups) == 1:
        return job
    found = (group.number for group in groups if _matches(group.slurm, job))
    return replace(job, group=next(found, FOREIGN))


def _matches(slurm: SlurmConfig, job: Job) -> bool:
    same = (slurm.partition, slurm.constraint or "") == (job.partition, job.constraint)
    return same and (slurm.gres is None or same_gres(slurm.gres, job.gres))


def require_none(slurm: SlurmConfig) -> None:
    """Require no node groups if nothing is submitted. Raises UsageError."""
    if slurm.node_groups:
        raise UsageError(
            "--launcher inside: an allocation has the nodes that it has; leave slurm.node_groups "
            "out: --set slurm.node_groups=[]"
        )


def require_total(slurm: SlurmConfig, nodes: int) -> None:
    """Require that a run's nodes match its groups. Raises UsageError."""
    total = sum(each.nodes for each in slurm.node_groups)
    if slurm.node_groups and total != nodes:
        raise UsageError(
            f"--nodes {nodes}: slurm.node_groups has {total} nodes, no more and no fewer; give "
            f"--nodes {total}, or change the groups"
        )


def check_cluster(slurm: SlurmConfig, nodes: int, hours: float, found: Sequence[Nodes]) -> None:
    """Require that the cluster satisfies a run's request.

    Args:
        slurm: SLURM settings.
        nodes: number of nodes.
        hours: duration of the run in hours.
        found: nodes returned by ``SlurmClient.partitions``.

    Raises:
        UsageError: the partition does not exist, is down, has a shorter time limit, or has too few
            usable nodes, or too few with the requested accelerators.
    """
    require_total(slurm, nodes)
    groups = node_groups(slurm, nodes)
    for group in groups:
        _check_group(group, hours, found)
    _check_together(groups, found)


def _check_group(group: NodeGroup, hours: float, found: Sequence[Nodes]) -> None:
    slurm, nodes, where = group.slurm, group.nodes, group.where
    members = partition_of(slurm, found, where)
    name = members[0].partition
    if not members[0].available:
        raise UsageError(f"partition '{name}' is not up; name another one in {where}.partition")
    minutes = time_limit_minutes(hours, slurm)
    if minutes > members[0].minutes:
        raise UsageError(
            f"--hours {hours:g} with slurm.time_margin_minutes {slurm.time_margin_minutes} is "
            f"{minutes} minutes; partition '{name}' allows {members[0].minutes:g}"
        )
    usable = usable_of(members)
    total, there = sum(g.count for g in members), sum(_room(g, slurm) for g in usable)
    if there < nodes:
        has = f"{there} nodes" if _alone(slurm) else f"room for {there} replicas on nodes"
        raise UsageError(
            f"{group.request}: partition '{name}' has {has} that can be used, of {total}; see sinfo"
        )
    offering = (g for g in usable if slurm.gres is None or offers(g.gres, slurm.gres))
    fitting = sum(_room(g, slurm) for g in offering)
    if fitting < nodes:
        offered = ", ".join(sorted({g.gres or "none" for g in usable}))
        raise UsageError(
            f"{where}.gres {slurm.gres}: {fitting} nodes of partition '{name}' offer it, "
            f"{nodes} are needed; its nodes offer: {offered}"
        )


def _check_together(groups: Sequence[NodeGroup], found: Sequence[Nodes]) -> None:
    """Require that several groups do not request more nodes of a partition than it has."""
    for partition in {group.slurm.partition for group in groups[1:]}:
        own = [group for group in groups if group.slurm.partition == partition]
        asked = sum(group.nodes for group in own)
        there = sum(each.count for each in found if each.partition == partition)
        if asked > there:
            raise UsageError(
                f"slurm.node_groups: {len(own)} groups ask for {asked} nodes of partition "
                f"'{partition}', which has {there}"
            )


def _room(group: Nodes, slurm: SlurmConfig) -> int:
    """Return the number of replicas that fit on nodes."""
    if _alone(slurm):
        return group.count
    return group.count * max(1, accelerators_in(group.gres) // accelerators_in(slurm.gres or ""))


def _alone(slurm: SlurmConfig) -> bool:
    """Return whether each replica has exclusive nodes instead of a part of the accelerators."""
    asked = slurm.gres is not None and accelerators_in(slurm.gres) > 0
    return slurm.exclusive or slurm.mode != "array" or not asked


def usable_of(members: Sequence[Nodes]) -> list[Nodes]:
    """Return the usable nodes of a partition."""
    usable = [group for group in members if not group.state.startswith(UNUSABLE)]
    return [group for group in usable if "*" not in group.state]  # *: does not respond


def partition_of(slurm: SlurmConfig, found: Sequence[Nodes], where: str = "slurm") -> list[Nodes]:
    """Return the nodes of the requested partition. Raises UsageError if there is none."""
    names = ", ".join(sorted({group.partition for group in found})) or "none"
    if slurm.partition is None:
        members = [group for group in found if group.default]
        if not members:
            raise UsageError(f"SLURM has no default partition; set slurm.partition, of: {names}")
        return members
    members = [group for group in found if group.partition == slurm.partition]
    if not members:
        raise UsageError(
            f"{where}.partition: SLURM has no partition '{slurm.partition}', but {names}"
        )
    return members


def offers(gres: str, asked: str) -> bool:
    """Return whether a node with ``gres`` satisfies the request, e.g. gpu:8 or gpu:h100:8."""
    there = [_generic(entry) for entry in _entries(gres)]
    for name, kind, count in (_generic(entry) for entry in _entries(asked)):
        fitting = (n for other, k, n in there if other == name and kind in ("", k))
        if sum(fitting) < count:
            return False
    return True


def same_gres(one: str, other: str) -> bool:
    """Return whether both request the same resources."""
    return sorted(map(_generic, _entries(one))) == sorted(map(_generic, _entries(other)))


def accelerators_in(gres: str) -> int:
    """Return the number of accelerators of a node with ``gres``."""
    entries = (_generic(entry) for entry in _entries(gres))
    return sum(count for name, _, count in entries if name in ACCELERATORS)


def accelerator_name(gres: str) -> str:
    """Return the SLURM name of the accelerators in ``gres``, or "gpu" if there are none."""
    names = (_generic(entry)[0] for entry in _entries(gres))
    return next((name for name in names if name in ACCELERATORS), ACCELERATORS[0])


def _entries(gres: str) -> list[str]:
    """Split at commas, without the sockets that SLURM adds in parentheses."""
    plain = ""
    depth = 0
    for character in gres:
        depth += (character == "(") - (character == ")")
        plain += character if depth == 0 and character != ")" else ""
    return [entry for entry in plain.split(",") if entry]


def _generic(entry: str) -> tuple[str, str, int]:
    """Return name, type ("" for any) and count."""
    name, *rest = re.sub("^gres[:/]", "", entry).split(":")
    count = 1
    if rest and rest[-1].rstrip("KMG").isdigit():
        digits = rest.pop()
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(digits[-1], 1)
        count = int(digits.rstrip("KMG")) * factor
    return name, rest[0] if rest else "", count
