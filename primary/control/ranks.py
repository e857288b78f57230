"""How many ranks a node has, and what sums their gradients, where the configuration says auto.

A rank is one accelerator. What is settled here stands in ``run.yaml`` as numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.config.loading import validate
from aiperf_hpc.errors import UsageError
from aiperf_hpc.extras import COLLECTIVES
from aiperf_hpc.host.visible_devices import VisibleDevices
from aiperf_hpc.primary.control.working_side import ask
from aiperf_hpc.primary.launchers.slurm.client import Nodes
from aiperf_hpc.primary.launchers.slurm.gres import accelerator_name, accelerators_in, offers
from aiperf_hpc.primary.launchers.slurm.node_groups import NodeGroup, node_groups
from aiperf_hpc.primary.launchers.slurm.partitions import partition_of, usable_of
from aiperf_hpc.system.accelerators import computing_on_bus, find_accelerators

_EXTRA = re.compile(r"--(?:gres|gpus-per-node)[= ](\S+)")
"""Directives of a user's own that ask for accelerators."""
_CPUS = re.compile(r"^(?:--cpus-per-(?:task|gpu)\b|-c)")
"""Directives of a user's own that ask for CPUs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has; tests have one of their own."""

    accelerators: Callable[[], Sequence[str]]
    """Returns what the machine tells of its accelerators: a model each, whether usable or not."""
    seen: Callable[[RunConfig], VisibleDevices | None]
    """Asks a run's engine, which takes seconds. Raises UsageError: it has not what is asked for."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A configuration with numbers, and what there is to say about it."""

    config: RunConfig
    devices: tuple[str, ...] = ()
    """As ``RunManifest.devices``."""
    remarks: tuple[str, ...] = ()


def accelerators_told() -> list[str]:
    """Return the accelerators of this machine by their vendors' tools or, without, by its bus."""
    told = [each.model for each in find_accelerators().accelerators]
    return told or [f"{v} accelerator" for v, n in computing_on_bus().items() for _ in range(n)]


def devices_seen_by_engine(config: RunConfig) -> VisibleDevices | None:
    """Ask the working side what a run's engine sees on this machine. Raises UsageError."""
    *_, said = ask(["aiperf_hpc.replica.engines"], config, UsageError).split("\n")[:-1]
    return VisibleDevices.parse(said) if said else None  # Above it frameworks may have printed.


THIS_MACHINE = Machine(accelerators_told, devices_seen_by_engine)


def settle_here(config: RunConfig, nodes: int, machine: Machine = THIS_MACHINE) -> Settled:
    """Settle a run whose replicas share this machine.

    Args:
        config: what is asked for.
        nodes: as many nodes as the run is said to have.
        machine: what is asked.

    Raises:
        UsageError: a replica would have more ranks than there are accelerators; or there are some
            that the engine does not see, and nobody asked for the CPU.
    """
    told = machine.accelerators() if config.engine.uses_accelerators else ()
    seen = machine.seen(config) if told or _is_picky(config) else None
    if seen is None:
        _require_none(config, told)
        return Settled(_with(config, _ranks(config, 1), on_accelerators=False))
    count = len(seen.names)
    ranks = _ranks(config, max(1, count // nodes))
    of_a_replica = ranks * config.replica.nodes
    if of_a_replica > count:
        raise UsageError(
            f"{_asked_ranks(ranks)}: a replica has {of_a_replica} ranks, each with an accelerator "
            f"of its own; engine '{config.engine.name}' sees {count} here ({seen}); give at most "
            f"{max(1, count // config.replica.nodes)}, or engine.device=cpu"
        )
    devices = tuple(_devices(seen, nodes // config.replica.nodes, of_a_replica))
    settled = _with(config, ranks, on_accelerators=True)
    remarks = (*_sharing(nodes, ranks, count), *_through_host(settled))
    return Settled(settled, devices, remarks)


def _is_picky(config: RunConfig) -> bool:
    """Return whether the engine may refuse, or see more than the machine tells."""
    engine = config.engine
    made_up = engine.name == "simulated" and engine.uses_accelerators
    return made_up or engine.device in ("cuda", "npu") or config.training.precision == "fp16"


def _require_none(config: RunConfig, told: Sequence[str]) -> None:
    """Refuse to train beside accelerators that the engine does not see, unless that is asked."""
    if told:
        counted = ", ".join(f"{n} x {model}" for model, n in Counter(told).items())
        raise UsageError(
            f"this machine has {counted}, which engine '{config.engine.name}' does not see: it "
            "would train on the CPU; install the engine's build for it (`aiperf doctor`), or "
            "leave it idle with --set engine.device=cpu"
        )


def _devices(seen: VisibleDevices, replicas: int, each: int) -> Iterator[str]:
    """Yield what each replica has: neighbours, from the first again where there are too few."""
    for number in range(replicas):
        places = range(number * each, (number + 1) * each)
        names = tuple(seen.names[place % len(seen.names)] for place in places)
        yield str(VisibleDevices(seen.variable, names))


def _sharing(nodes: int, each: int, count: int) -> Iterator[str]:
    ranks = nodes * each
    if ranks > count:
        yield (
            f"{ranks} ranks share {count} accelerator{'s' * (count > 1)}: the score will be that "
            "of a crowded machine, and no measure of it"
        )
    elif ranks < count:
        more = f"; --nodes {count} makes a replica for each" if each == 1 else ""
        yield idle(count - ranks, f"of this machine's {count}") + more


def idle(count: int, whose: str) -> str:
    """Return what is said about accelerators without a rank."""
    which = "an accelerator is" if count == 1 else f"{count} accelerators are"
    return f"{which} left idle, {whose}: the closed division wants every one used"


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
        return Settled(_with(config, _ranks(config, 1), on_accelerators=False))
    offers = [_offer(group, found, inside=inside) for group in node_groups(slurm, nodes)]
    if inside and slurm.gres is not None:
        _require_of_allocation(slurm.gres, found)
    least = min(offers, key=lambda offer: offer.there)
    ranks = _ranks(config, max(1, least.there))
    if not least.there:
        _require_like(least, offers)
        return Settled(_with(config, ranks, on_accelerators=False))
    if ranks > least.there:
        raise UsageError(
            f"{_asked_ranks(ranks)}: a rank has an accelerator of its own, and a node has "
            f"{least.there}, {least.where}; give at most {least.there}, or engine.device=cpu"
        )
    settled = _with(config, ranks, on_accelerators=True, slurm=_asking(slurm, offers))
    left = [
        idle(each.there - ranks, f"of the {each.there} of each node {each.where}")
        for each in offers
        if ranks < each.there
    ]
    return Settled(settled, remarks=(*left, *_unsaid_cpus(slurm), *_through_host(settled)))


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
    return _Offer(group, gres, f"asked for by {gres}")


def _require_like(without: _Offer, offers: Sequence[_Offer]) -> None:
    """Require that no group has accelerators where one has none."""
    for other in offers:
        if other.there:
            raise UsageError(
                f"{without.group.where}: its nodes have no accelerators, and those of "
                f"{other.group.where} have {other.there} each; say which are meant by "
                f"{without.group.where}.gres, or train on CPUs with engine.device=cpu"
            )


def _asking(slurm: SlurmConfig, offers: Sequence[_Offer]) -> SlurmConfig:
    """Return what is asked of SLURM, with what its nodes offer where nothing was said."""
    if not slurm.node_groups:
        (offer,) = offers
        return slurm.model_copy(update={"gres": offer.gres}) if _says_none(offer) else slurm
    groups = tuple(
        group.model_copy(update={"gres": offer.gres}) if _says_none(offer) else group
        for group, offer in zip(slurm.node_groups, offers, strict=True)
    )
    return slurm.model_copy(update={"node_groups": groups})


def _says_none(offer: _Offer) -> bool:
    return _asked_gres(offer.group.slurm) is None


def _require_of_allocation(gres: str, found: Sequence[Nodes]) -> None:
    """Require that an allocation has what is asked for, where it tells what it has."""
    for group in found:
        if group.gres and not offers(group.gres, gres):
            raise UsageError(
                f"slurm.gres {gres}: the nodes of {group.partition}, which this is in, were asked "
                f"for with {group.gres}; leave slurm.gres out to take what there is"
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
            f"{asked.asked}: {having(1)} nodes of '{usable[0].partition}' have "
            "accelerators and the others have none; say which are meant by "
            f"{asked.where}.gres, e.g. gpu:{counts[0]}, or with engine.device=cpu"
        )
    return None


def _ranks(config: RunConfig, there: int) -> int:
    asked = config.replica.ranks_per_node
    return there if asked == "auto" else asked


def _asked_ranks(ranks: int) -> str:
    return f"replica.ranks_per_node {ranks}"


def _with(
    config: RunConfig, ranks: int, *, on_accelerators: bool, slurm: SlurmConfig | None = None
) -> RunConfig:
    """Return the configuration with numbers. Raises ConfigError: they make no run."""
    collective = config.replica.collective
    if collective == "auto":
        collective = _collective(config, config.replica.nodes * ranks, on_accelerators)
    replica = config.replica.model_copy(update={"ranks_per_node": ranks, "collective": collective})
    changed = config.model_copy(update={"replica": replica, "slurm": slurm or config.slurm})
    values: Mapping[str, Any] = changed.model_dump()
    return config if changed == config else validate(values, f"with {ranks} ranks a node")


def _collective(config: RunConfig, ranks: int, on_accelerators: bool) -> Literal["mpi", "torch"]:
    if ranks > 1 and on_accelerators and config.engine.name == "torch":
        return "torch"
    several_by_torch = ranks > 1 and not COLLECTIVES["mpi"].installed
    return "torch" if several_by_torch and COLLECTIVES["torch"].installed else "mpi"


def _through_host(config: RunConfig) -> Iterator[str]:
    replica = config.replica
    if replica.ranks > 1 and replica.collective == "mpi" and config.engine.name != "simulated":
        yield (
            "the accelerators' gradients cross the host's memory in each step "
            f"(replica.collective mpi, engine '{config.engine.name}'); engine.name=torch with "
            "replica.collective=torch sums them where they are"
        )
