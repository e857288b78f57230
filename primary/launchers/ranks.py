"""Number of ranks per node, and their collective, if the configuration has ``auto``.

A rank is one accelerator. ``run.yaml`` records the resolved numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.loading import validate
from aiperf_hpc.errors import UsageError
from aiperf_hpc.extras import COLLECTIVES
from aiperf_hpc.host.machine import VisibleDevices
from aiperf_hpc.primary.programs import output_for
from aiperf_hpc.system.accelerators import computing_on_bus, find_accelerators


@dataclass(frozen=True, slots=True)
class Settled:
    """A configuration with numbers, and messages about it."""

    config: RunConfig
    devices: tuple[str, ...] = ()
    """Devices of the replicas, as ``RunManifest.devices``."""
    remarks: tuple[str, ...] = ()


def accelerators_told() -> list[str]:
    """Return this machine's accelerators from the vendors' tools or else from the PCI bus."""
    told = [each.model for each in find_accelerators().accelerators]
    return told or [f"{v} accelerator" for v, n in computing_on_bus().items() for _ in range(n)]


def devices_seen_by_engine(config: RunConfig) -> VisibleDevices | None:
    """Return the devices that a run's engine detects on this machine. Raises UsageError."""
    *_, said = output_for(["aiperf_hpc.replica.engines"], config).split("\n")[:-1]
    return VisibleDevices.parse(said) if said else None  # Frameworks may print before it.


def settle_here(config: RunConfig, nodes: int) -> Settled:
    """Resolve the ranks of a run whose replicas share this machine.

    Args:
        config: requested configuration.
        nodes: nominal number of nodes.

    Raises:
        UsageError: a replica would have more ranks than there are accelerators; or the engine does
            not detect the accelerators, and the CPU was not requested.
    """
    told = accelerators_told() if config.engine.uses_accelerators else ()
    seen = devices_seen_by_engine(config) if told or _is_picky(config) else None
    if seen is None:
        _require_none(config, told)
        return Settled(with_ranks(config, ranks_of(config, 1), on_accelerators=False))
    count = len(seen.names)
    ranks = ranks_of(config, max(1, count // nodes))
    of_a_replica = ranks * config.replica.nodes
    if of_a_replica > count:
        raise UsageError(
            f"replica.ranks_per_node {ranks}: a replica has {of_a_replica} ranks, each with an "
            f"accelerator of its own; engine '{config.engine.name}' sees {count} here ({seen}); "
            f"give at most {max(1, count // config.replica.nodes)}, or engine.device=cpu"
        )
    devices = tuple(_devices(seen, nodes // config.replica.nodes, of_a_replica))
    settled = with_ranks(config, ranks, on_accelerators=True)
    remarks = (*_sharing(nodes, ranks, count), *through_host(settled))
    return Settled(settled, devices, remarks)


def _is_picky(config: RunConfig) -> bool:
    """Return whether the engine may refuse, or detect more devices than the machine reports."""
    engine = config.engine
    made_up = engine.name == "simulated" and engine.uses_accelerators
    return made_up or engine.device in ("cuda", "npu") or config.training.precision == "fp16"


def _require_none(config: RunConfig, told: Sequence[str]) -> None:
    """Reject training on the CPU of a machine with accelerators, unless it is requested."""
    if told:
        counted = ", ".join(f"{n} x {model}" for model, n in Counter(told).items())
        raise UsageError(
            f"this machine has {counted}, which engine '{config.engine.name}' does not see: it "
            "would train on the CPU; install the engine's build for it (`aiperf doctor`), or "
            "leave it idle with --set engine.device=cpu"
        )


def _devices(seen: VisibleDevices, replicas: int, each: int) -> Iterator[str]:
    """Yield each replica's accelerators: contiguous, and reused from the first if too few."""
    for number in range(replicas):
        places = range(number * each, (number + 1) * each)
        names = tuple(seen.names[place % len(seen.names)] for place in places)
        yield str(VisibleDevices(seen.variable, names))


def _sharing(nodes: int, each: int, count: int) -> Iterator[str]:
    ranks = nodes * each
    if ranks > count:
        yield (
            f"{ranks} ranks share {count} accelerator{'s' * (count > 1)}: the score is that "
            "of an oversubscribed machine and does not measure its performance"
        )
    elif ranks < count:
        more = f"; --nodes {count} makes a replica for each" if each == 1 else ""
        yield idle(count - ranks, f"of this machine's {count}") + more


def idle(count: int, whose: str) -> str:
    """Return the message about accelerators without a rank."""
    which = "an accelerator is" if count == 1 else f"{count} accelerators are"
    return f"{which} left idle, {whose}: the closed division requires that all are used"


def ranks_of(config: RunConfig, there: int) -> int:
    """Return the ranks per node: the configured number, else the number of accelerators."""
    asked = config.replica.ranks_per_node
    return there if asked == "auto" else asked


def with_ranks(
    config: RunConfig, ranks: int, *, on_accelerators: bool, **sections: object
) -> RunConfig:
    """Return the configuration with numbers and with replaced sections.

    Raises ConfigError if it is invalid.
    """
    collective = config.replica.collective
    if collective == "auto":
        collective = _collective(config, config.replica.nodes * ranks, on_accelerators)
    replica = config.replica.model_copy(update={"ranks_per_node": ranks, "collective": collective})
    changed = config.model_copy(update={"replica": replica, **sections})
    values: Mapping[str, Any] = changed.model_dump()
    return config if changed == config else validate(values, f"with {ranks} ranks a node")


def _collective(config: RunConfig, ranks: int, on_accelerators: bool) -> Literal["mpi", "torch"]:
    if ranks > 1 and on_accelerators and config.engine.name == "torch":
        return "torch"
    several_by_torch = ranks > 1 and not COLLECTIVES["mpi"].installed
    return "torch" if several_by_torch and COLLECTIVES["torch"].installed else "mpi"


def through_host(config: RunConfig) -> Iterator[str]:
    """Yield a message if gradients cross the host's memory unnecessarily."""
    replica = config.replica
    if replica.ranks > 1 and replica.collective == "mpi" and config.engine.name != "simulated":
        yield (
            "the accelerators' gradients pass through host memory in each step "
            f"(replica.collective mpi, engine '{config.engine.name}'); engine.name=torch with "
            "replica.collective=torch sums them on the accelerators"
        )
