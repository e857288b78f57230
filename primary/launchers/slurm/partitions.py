"""Whether a cluster has what a run asks for: its partitions, and the nodes that can be used."""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.config import SlurmConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.slurm.batch_script import time_limit_minutes
from aiperf_hpc.primary.launchers.slurm.client import Nodes
from aiperf_hpc.primary.launchers.slurm.gres import accelerators_in, offers
from aiperf_hpc.primary.launchers.slurm.node_groups import NodeGroup, node_groups, require_total

UNUSABLE = ("down", "drain", "fail", "error", "unknown", "inval", "future", "perfctrs", "blocked")
"""How the states of nodes begin that will run nothing."""


def check_cluster(slurm: SlurmConfig, nodes: int, hours: float, found: Sequence[Nodes]) -> None:
    """Require what a run asks of the cluster.

    Args:
        slurm: what is asked.
        nodes: how many nodes.
        hours: for how long.
        found: what ``SlurmClient.partitions`` returned.

    Raises:
        UsageError: there is no such partition, it is down, allows less time, or has too few
            nodes that can be used, or too few with the accelerators asked for.
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
            f"{group.asked}: partition '{name}' has {has} that can be used, of {total}; see sinfo"
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
    """Require that no partition is asked for more nodes by several groups than it has."""
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
    """Return how many replicas have room on nodes."""
    if _alone(slurm):
        return group.count
    return group.count * max(1, accelerators_in(group.gres) // accelerators_in(slurm.gres or ""))


def _alone(slurm: SlurmConfig) -> bool:
    """Return whether each replica has its nodes to itself, and not a share of accelerators."""
    asked = slurm.gres is not None and accelerators_in(slurm.gres) > 0
    return slurm.exclusive or slurm.mode != "array" or not asked


def usable_of(members: Sequence[Nodes]) -> list[Nodes]:
    """Return the nodes of a partition that may run something."""
    usable = [group for group in members if not group.state.startswith(UNUSABLE)]
    return [group for group in usable if "*" not in group.state]  # * does not respond


def partition_of(slurm: SlurmConfig, found: Sequence[Nodes], where: str = "slurm") -> list[Nodes]:
    """Return the nodes of the partition that is asked for. Raises UsageError: there is none."""
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
