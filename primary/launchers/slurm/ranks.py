"""Number of ranks per SLURM node, and the resources requested for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.ranks import (
    Settled,
    asked_ranks,
    idle,
    ranks_of,
    through_host,
    with_ranks,
)
from aiperf_hpc.primary.launchers.slurm.jobs import Nodes
from aiperf_hpc.primary.launchers.slurm.resources import (
    NodeGroup,
    accelerator_name,
    accelerators_in,
    node_groups,
    offers,
    partition_of,
    usable_of,
)

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
            f"{asked_ranks(ranks)}: a rank has an accelerator of its own, and a node has "
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
    asked = slurm.cpus_per_task is not None or any(_CPUS.search(each) for each in slurm.extra)
    if not (slurm.exclusive or asked or slurm.template is not None):
        yield (
            "replicas share nodes (slurm.exclusive false) and slurm.cpus_per_task is not given: "
            "each rank gets what SLURM gives a task, which may be a single CPU, and a GPU wants 10 "
            "and more to decode for it"
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
                f"slurm.gres {gres}: the nodes of {group.partition}, which this is in, were "
                f"requested with {group.gres}; leave slurm.gres out to use these"
            )


def _asked_gres(slurm: SlurmConfig) -> str | None:
    """Return the generic resources requested per node, or None."""
    if slurm.gres is not None:
        return slurm.gres
    found = (_EXTRA.search(each) for each in slurm.extra)
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
