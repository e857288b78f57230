"""Node groups that a run requests from SLURM, validated against the cluster, and ranks per node.

Generic resources (gres) have SLURM's notation: gpu:h100:4(S:0-1),ssd:1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.ranks import (
    Settled,
    idle,
    ranks_of,
    through_host,
    with_ranks,
)
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
            "--launcher inside: the nodes of an allocation are fixed; leave slurm.node_groups "
            "out: --set slurm.node_groups=[]"
        )


def require_total(slurm: SlurmConfig, nodes: int) -> None:
    """Require that a run's nodes match its groups. Raises UsageError."""
    total = sum(each.nodes for each in slurm.node_groups)
    if slurm.node_groups and total != nodes:
        raise UsageError(
            f"--nodes {nodes}: slurm.node_groups has {total} nodes; give "
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
        UsageError: the partition does not exist, is not up, has a shorter time limit, or has too
            few usable nodes, or too few with the requested accelerators.
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
    there = _entries(gres)
    for name, kind, count in _entries(asked):
        fitting = (n for other, k, n in there if other == name and kind in ("", k))
        if sum(fitting) < count:
            return False
    return True


def same_gres(one: str, other: str) -> bool:
    """Return whether both request the same resources."""
    return sorted(_entries(one)) == sorted(_entries(other))


def accelerators_in(gres: str) -> int:
    """Return the number of accelerators of a node with ``gres``."""
    return sum(count for name, _, count in _entries(gres) if name in ACCELERATORS)


def accelerator_name(gres: str) -> str:
    """Return the SLURM name of the accelerators in ``gres``, or "gpu" if there are none."""
    return next((name for name, *_ in _entries(gres) if name in ACCELERATORS), ACCELERATORS[0])


def _entries(gres: str) -> list[tuple[str, str, int]]:
    """Return the resources, without the sockets that SLURM adds in parentheses."""
    plain = re.sub(r"\(.*?\)", "", gres)
    return [_generic(entry) for entry in plain.split(",") if entry]


def _generic(entry: str) -> tuple[str, str, int]:
    """Return name, type ("" for any) and count."""
    name, *rest = re.sub("^gres[:/]", "", entry).split(":")
    count = 1
    if rest and rest[-1].rstrip("KMG").isdigit():
        digits = rest.pop()
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(digits[-1], 1)
        count = int(digits.rstrip("KMG")) * factor
    return name, rest[0] if rest else "", count


_EXTRA = re.compile(r"--(?:gres|gpus-per-node)[= ](\S+)")
"""User-defined directives that request accelerators."""
_CPUS = re.compile(r"^(?:--cpus-per-(?:task|gpu)\b|-c)")
"""User-defined directives that request CPUs."""


def settle_on_cluster(
    config: RunConfig, nodes: int, found: Sequence[Nodes], *, inside: bool = False
) -> Settled:
    """Resolve the ranks of a run that SLURM starts.

    Args:
        config: requested configuration.
        nodes: number of nodes.
        found: nodes returned by ``SlurmClient.partitions``; empty if SLURM was not queried.
        inside: whether these are the nodes of an allocation, in any partition.

    Raises:
        UsageError: a node would have more ranks than accelerators; or the partition's nodes
            differ, so the number of accelerators is ambiguous.
    """
    slurm = config.slurm
    if not config.engine.uses_accelerators:
        return Settled(with_ranks(config, ranks_of(config, 1), on_accelerators=False))
    offered = [_offer(group, found, inside=inside) for group in node_groups(slurm, nodes)]
    if inside and slurm.gres is not None:
        _require_of_allocation(slurm.gres, found)
    least = min(offered, key=lambda offer: offer.there)
    ranks = ranks_of(config, max(1, least.there))
    if not least.there:
        _require_like(least, offered)
        return Settled(with_ranks(config, ranks, on_accelerators=False))
    if ranks > least.there:
        raise UsageError(
            f"replica.ranks_per_node {ranks}: a rank has an accelerator of its own, and a node has "
            f"{least.there}, {least.where}; give at most {least.there}, or engine.device=cpu"
        )
    settled = with_ranks(config, ranks, on_accelerators=True, slurm=_asking(slurm, offered))
    left = [
        idle(each.there - ranks, f"of the {each.there} of each node {each.where}")
        for each in offered
        if ranks < each.there
    ]
    return Settled(settled, remarks=(*left, *_unsaid_cpus(slurm), *through_host(settled)))


def _unsaid_cpus(slurm: SlurmConfig) -> Iterator[str]:
    """Yield a warning about the CPUs that decode data if SLURM's default determines them."""
    asked = slurm.cpus_per_task is not None or any(
        _CPUS.search(each) for each in slurm.extra_directives
    )
    if not (slurm.exclusive or asked or slurm.template is not None):
        yield (
            "replicas share nodes (slurm.exclusive false) and slurm.cpus_per_task is not set: "
            "each rank gets SLURM's default per task, which may be one CPU; decoding for a GPU "
            "takes 10 or more"
        )


@dataclass(frozen=True, slots=True)
class _Offer:
    """Accelerators per node of a group."""

    group: NodeGroup
    gres: str | None
    """Accelerators as SLURM's generic resources; None if there are none."""
    where: str
    """Source of the information."""

    @property
    def there(self) -> int:
        return accelerators_in(self.gres) if self.gres is not None else 0


def _offer(group: NodeGroup, found: Sequence[Nodes], *, inside: bool) -> _Offer:
    slurm = group.slurm
    gres = _asked_gres(slurm)
    if gres is None and found and slurm.template is None:
        usable = usable_of(found if inside else partition_of(slurm, found))
        name = usable[0].partition
        return _Offer(group, _offered(usable, group), f"that '{name}' offers")
    return _Offer(group, gres, f"requested by {gres}")


def _require_like(without: _Offer, offered: Sequence[_Offer]) -> None:
    """Require accelerators in all groups or in none."""
    for other in offered:
        if other.there:
            raise UsageError(
                f"{without.group.where}: its nodes have no accelerators, and those of "
                f"{other.group.where} have {other.there} each; select them by "
                f"{without.group.where}.gres, or train on CPUs with engine.device=cpu"
            )


def _asking(slurm: SlurmConfig, offered: Sequence[_Offer]) -> SlurmConfig:
    """Return the SLURM settings, with the nodes' accelerators if none were requested."""
    if not slurm.node_groups:
        (offer,) = offered
        return slurm.model_copy(update={"gres": offer.gres}) if _says_none(offer) else slurm
    groups = tuple(
        group.model_copy(update={"gres": offer.gres}) if _says_none(offer) else group
        for group, offer in zip(slurm.node_groups, offered, strict=True)
    )
    return slurm.model_copy(update={"node_groups": groups})


def _says_none(offer: _Offer) -> bool:
    return _asked_gres(offer.group.slurm) is None


def _require_of_allocation(gres: str, found: Sequence[Nodes]) -> None:
    """Require that an allocation has the requested accelerators, if it reports its own."""
    for group in found:
        if group.gres and not offers(group.gres, gres):
            raise UsageError(
                f"slurm.gres {gres}: the nodes of {group.partition}, in which this process "
                f"runs, were requested with {group.gres}; remove slurm.gres to use these"
            )


def _asked_gres(slurm: SlurmConfig) -> str | None:
    """Return the generic resources requested per node, or None."""
    if slurm.gres is not None:
        return slurm.gres
    found = (_EXTRA.search(each) for each in slurm.extra_directives)
    values = [each[1] for each in found if each is not None]
    return next((v if "gpu" in v else f"gpu:{v}" for v in values), None)


def _offered(usable: Sequence[Nodes], asked: NodeGroup) -> str | None:
    """Return the accelerators that enough nodes for the request have, or None if no node has any.

    Raises:
        UsageError: some nodes have accelerators, but too few nodes.
    """
    counts = sorted({accelerators_in(group.gres) for group in usable}, reverse=True)

    def having(count: int) -> int:
        return sum(group.count for group in usable if accelerators_in(group.gres) >= count)

    best = next((count for count in counts if having(count) >= asked.nodes), 0)
    if best:
        gres = next(group.gres for group in usable if accelerators_in(group.gres) == best)
        return f"{accelerator_name(gres)}:{best}"
    if any(counts):
        raise UsageError(
            f"{asked.request}: {having(1)} nodes of '{usable[0].partition}' have "
            "accelerators and the others have none; select them by "
            f"{asked.where}.gres, e.g. gpu:{counts[0]}, or with engine.device=cpu"
        )
    return None
