"""How many ranks a node that SLURM gives has, and what is asked of SLURM for them."""

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
"""Directives of a user's own that ask for accelerators."""
_CPUS = re.compile(r"^(?:--cpus-per-(?:task|gpu)\b|-c)")
"""Directives of a user's own that ask for CPUs."""


def settle_on_cluster(
    config: RunConfig, nodes: int, found: Sequence[Nodes], *, inside: bool = False
) -> Settled:
    """Settle a run that SLURM starts.

    Args:
        config: what is asked for.
        nodes: how many.
        found: what ``SlurmClient.partitions`` returned; empty where SLURM was not asked.
        inside: whether they are the nodes of an allocation, whatever partition they are of.

    Raises:
        UsageError: a node would have more ranks than accelerators; or the partition's nodes
            differ, so that nobody can say how many there are.
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
    """Say what decodes for an accelerator, where that is left to SLURM."""
    asked = slurm.cpus_per_task is not None or any(_CPUS.search(each) for each in slurm.extra)
    if not (slurm.exclusive or asked or slurm.template is not None):
        yield (
            "replicas share nodes (slurm.exclusive false) and slurm.cpus_per_task is not given: "
            "each rank gets what SLURM gives a task, which may be a single CPU, and a GPU wants 10 "
            "and more to decode for it"
        )


@dataclass(frozen=True, slots=True)
class _Offer:
    """The accelerators of the nodes of a group."""

    group: NodeGroup
    gres: str | None
    """As generic resources of SLURM's; None where there are none."""
    where: str
    """How that is known."""

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
    """Require that no group has accelerators where one has none."""
    for other in offered:
        if other.there:
            raise UsageError(
                f"{without.group.where}: its nodes have no accelerators, and those of "
                f"{other.group.where} have {other.there} each; select them by "
                f"{without.group.where}.gres, or train on CPUs with engine.device=cpu"
            )


def _asking(slurm: SlurmConfig, offered: Sequence[_Offer]) -> SlurmConfig:
    """Return what is asked of SLURM, with what its nodes offer where nothing was said."""
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
    """Require that an allocation has what is asked for, where it tells what it has."""
    for group in found:
        if group.gres and not offers(group.gres, gres):
            raise UsageError(
                f"slurm.gres {gres}: the nodes of {group.partition}, which this is in, were "
                f"requested with {group.gres}; leave slurm.gres out to use these"
            )


def _asked_gres(slurm: SlurmConfig) -> str | None:
    """Return what is asked of each node as generic resources; None where nothing is."""
    if slurm.gres is not None:
        return slurm.gres
    found = (_EXTRA.search(each) for each in slurm.extra)
    values = [each[1] for each in found if each is not None]
    return next((v if "gpu" in v else f"gpu:{v}" for v in values), None)


def _offered(usable: Sequence[Nodes], asked: NodeGroup) -> str | None:
    """Return the accelerators that as many nodes as are asked for have; None where none has any.

    Raises:
        UsageError: some have, and not enough.
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
