"""Energy of a run: the sum over the samples of its nodes, with the missing parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aiperf_hpc.formatting import few
from aiperf_hpc.results.grouping import grouped
from aiperf_hpc.rules.validity.replicas import hosts_of
from aiperf_hpc.run.history import PartEnergy, RunHistory, SamplerHistory, counted
from aiperf_hpc.telemetry.values import Label, Meter, Part
from aiperf_hpc.trial import Value

LEAST_COVERED = 0.95
"""Minimum metered fraction of a run's time for its energy to count as measured."""


class PartStatus(Value):
    """Energy of one component over all nodes, e.g. of their accelerators."""

    label: Label
    """Whether the energy is measured, estimated or absent."""
    joules: float | None
    """Metered energy in joules."""
    watts: float | None
    """Mean power in watts while it was metered, summed over all reporting nodes."""
    nodes: int
    """Number of reporting nodes."""
    sources: tuple[str, ...]
    """Tools that reported the energy."""


class EnergyStatus(Value):
    """Known energy of a run until now."""

    label: Label
    """Measured if no part is missing or estimated; otherwise estimated or absent."""
    joules: float | None
    """Energy in joules."""
    watts: float | None
    """Mean power in watts, summed over all components and nodes, each while it was metered."""
    ops_per_watt: float | None
    """Credited operations per second and watt of the mean power."""
    parts: dict[Part, PartStatus]
    """Energy of each component of the nodes."""
    missing: tuple[str, ...]
    """Parts missing from the sum, each with the reason; the sum is then too low."""


class HostEnergy:
    """Energy of one host, from the samplers that are counted."""

    def __init__(self, host: str, samplers: Sequence[SamplerHistory], until: float) -> None:
        self.host = host
        self.samplers = counted(samplers)
        self.parts: dict[Part, PartEnergy] = {}
        for sampler in self.samplers:
            for part, energy in sampler.energy(until).items():
                before = self.parts.get(part, PartEnergy(0.0, 0.0))
                self.parts[part] = PartEnergy(
                    before.joules + energy.joules, before.seconds + energy.seconds
                )

    @property
    def joules(self) -> float | None:
        """Energy summed over the components."""
        return math.fsum(e.joules for e in self.parts.values()) if self.parts else None

    @property
    def watts(self) -> float | None:
        """Mean power of the host while it was metered."""
        known = [e.watts for e in self.parts.values() if e.watts is not None]
        return math.fsum(known) if known else None

    def meters(self, part: Part) -> list[Meter]:
        """Return the meters of a component."""
        meters = (m for sampler in self.samplers for m in sampler.equipment.meters)
        return [meter for meter in meters if meter.part is part]

    def missing(self, start: float, until: float, accelerated: bool) -> Iterator[tuple[str, str]]:
        """Yield the parts missing from the host's energy, each with the reason.

        Args:
            start: start of the run, UTC seconds.
            until: end of the run or current time, UTC seconds.
            accelerated: whether the host's replica trains on accelerators.
        """
        if not self.samplers:
            yield "all", "no telemetry was recorded there"
            return
        last = self.samplers[-1]
        own, absent = last.equipment, last.absent
        metered = {meter.name for meter in own.meters}
        for name in map(str, own.accelerators):
            if name not in metered:
                yield name, absent.get(f"{name}: power", "no tool reports its power")
        if accelerated and not own.accelerators:
            yield "the accelerators", "no vendor's tool reports them"
        if Part.PROCESSORS not in last.meters:
            yield "the processors", absent.get("RAPL", "no tool reports their power")
        # Time that the next sample will cover is not missing yet.
        soon = until - last.end_utc <= 2.0 * own.seconds
        whole = (last.end_utc if soon else until) - start
        for part, energy in self.parts.items():
            if whole > 0.0 and energy.seconds < LEAST_COVERED * whole:
                yield f"some of the time of the {part}", "not all of it was metered"


def host_energies(history: RunHistory, until: float) -> list[HostEnergy]:
    """Return the energy of each host with a present or former replica, until UTC seconds."""
    telemetry = history.telemetry
    hosts = [host for replica in history.replicas.values() for host in hosts_of(replica)]
    hosts = list(dict.fromkeys((*hosts, *telemetry)))
    return [HostEnergy(host, telemetry.get(host, ()), until) for host in hosts]


def energy_status(
    history: RunHistory, hosts: Sequence[HostEnergy], until: float, ops: float
) -> EnergyStatus:
    """Return a run's energy.

    Args:
        history: records of the run.
        hosts: energy of each host until ``until``.
        until: time in UTC seconds.
        ops: score of the run.
    """
    missing = _missing(history, hosts, until)
    parts = {part: _part(part, hosts) for part in Part}
    known = [each for each in parts.values() if each.joules is not None]
    watts = math.fsum(each.watts or 0.0 for each in known)
    whole = not missing and all(each.label == "measured" for each in known)
    return EnergyStatus(
        label="absent" if not known else "measured" if whole else "estimated",
        joules=math.fsum(each.joules or 0.0 for each in known) if known else None,
        watts=watts if known else None,
        ops_per_watt=ops / watts if watts > 0.0 else None,
        parts=parts,
        missing=missing,
    )


def _part(part: Part, hosts: Sequence[HostEnergy]) -> PartStatus:
    telling = [host for host in hosts if part in host.parts]
    watts = [w for host in telling if (w := host.parts[part].watts) is not None]
    meters = [meter for host in telling for meter in host.meters(part)]
    estimated = any(meter.label != "measured" for meter in meters)
    return PartStatus(
        label="absent" if not telling else "estimated" if estimated else "measured",
        joules=math.fsum(host.parts[part].joules for host in telling) if telling else None,
        watts=math.fsum(watts) if watts else None,
        nodes=len(telling),
        sources=tuple(sorted({meter.source for meter in meters})),
    )


def _missing(history: RunHistory, hosts: Sequence[HostEnergy], until: float) -> tuple[str, ...]:
    start = history.origin_utc
    if start is None:
        return ()
    accelerated = {
        host
        for replica in history.replicas.values()
        if replica.machine is not None and replica.machine.accelerators
        for host in hosts_of(replica)
    }
    found = grouped(
        (reason, host.host)
        for host in hosts
        for reason in host.missing(start, until, host.host in accelerated)
    )
    return tuple(f"{what} of {few(names)}: {why}" for (what, why), names in found.items())
