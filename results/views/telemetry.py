"""Telemetry of a run's nodes (utilization, traffic and power), and its energy: the sum over the
samples of its nodes, with the missing parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from aiperf_hpc.formatting import few, si, size
from aiperf_hpc.grouping import grouped
from aiperf_hpc.rules.validity.replicas import hosts_of
from aiperf_hpc.run.history import PartEnergy, Point, RunHistory, SamplerHistory, counted
from aiperf_hpc.run.history.telemetry import power_of
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.telemetry.values import Label, Meter, Part, TelemetrySample
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


NETWORK = ("network_received", "network_sent", "fabric_received", "fabric_sent")
DISK = ("disk_read", "disk_written")
TRAFFIC = (*DISK, *NETWORK)
"""Quantities of samples with the unit byte."""


class AcceleratorStatus(Value):
    """Latest sample of one accelerator; values that were not reported are None."""

    name: str
    """Vendor and index of the accelerator, e.g. ``NVIDIA 0``."""
    utilization_percent: float | None
    """Utilization in percent of the time since the previous sample."""
    memory_bytes: float | None
    """Memory in use, in bytes."""
    watts: float | None
    """Mean power since the previous sample."""
    celsius: float | None
    """Highest temperature since the previous sample."""
    mhz: float | None
    """Clock frequency of the compute units in MHz."""
    memory_mhz: float | None
    """Clock frequency of the memory in MHz."""


class NodeUse(Value):
    """Utilization of a node in a time span; values that were not measured are None."""

    cpu_percent: float | None
    """Mean utilization of all logical CPUs of the node."""
    processes_cpu_percent: float | None
    """CPU utilization by the run's processes, in percent of one core."""
    accelerator_percent: float | None
    """Mean utilization of its accelerators."""


class NodeTraffic(NodeUse):
    """Utilization and memory of a node, and its traffic in bytes per second."""

    memory_bytes: float | None
    """Bytes of memory in use by all processes."""
    disk_read_rate: float | None
    """Bytes per second read from block devices."""
    disk_written_rate: float | None
    """Bytes per second written to block devices."""
    network_received_rate: float | None
    """Bytes per second received by its network interfaces."""
    network_sent_rate: float | None
    """Bytes per second sent by its network interfaces."""
    fabric_received_rate: float | None
    """Bytes per second received by verbs: InfiniBand, RoCE or Omni-Path."""
    fabric_sent_rate: float | None
    """Bytes per second sent by verbs."""


class NodeStatus(NodeTraffic):
    """Latest sample of one node."""

    host: str
    """Name of the host."""
    elapsed_seconds: float
    """Seconds from the run's start to the sample."""
    seconds: float
    """Duration of the sample in seconds."""
    processes_memory_bytes: float | None
    """Total resident memory of the run's processes in bytes."""
    watts: float | None
    """Power of all metered components of the node in watts."""
    accelerator_count: int
    """Number of accelerators."""
    accelerators: tuple[AcceleratorStatus, ...] = ()
    """Samples of the accelerators; omitted in a run's status."""


class TelemetryStatus(Value):
    """Latest telemetry of a run."""

    interval_seconds: float
    """Configured sampling interval in seconds; 0 if sampling is off."""
    unavailable_reason: str
    """Reason why there is no telemetry; empty if there is some."""
    nodes: tuple[NodeStatus, ...]
    """Latest telemetry of each node."""
    energy: EnergyStatus
    """Energy with its label."""
    overhead: float | None
    """Fraction of a core used by sampling, maximum over the nodes; None before the first sample."""


class NodeAbsences(Value):
    """Missing telemetry of a node."""

    host: str
    """Name of the host."""
    absent: dict[str, str]
    """Missing facts by name, each with the reason."""


class TelemetryPoint(NodeTraffic):
    """A time interval of a node."""

    from_seconds: float
    """Seconds since the run's start."""
    to_seconds: float
    """Seconds from the run's start to the end of the interval."""
    sampled_seconds: float
    """Sampled seconds of the interval."""
    accelerator_memory_bytes: float | None
    """Total memory in use on its accelerators in bytes."""
    accelerator_watts: float | None
    """Total power of its accelerators in watts."""
    celsius: float | None
    """Temperature of its hottest accelerator."""
    power_watts: float | None
    """Power of all metered components of the node in watts."""
    utilization_percent: tuple[float | None, ...]
    """Utilization of each accelerator in percent."""
    watts: tuple[float | None, ...]
    """Power of each accelerator in watts."""


class NodeSeries(Value):
    """Time series of a node."""

    host: str
    """Name of the host."""
    accelerators: tuple[str, ...]
    """Names of its accelerators."""
    total: int
    """Total number of points, of which the latest are returned."""
    points: tuple[TelemetryPoint, ...]
    """Points in chronological order."""


class Telemetry(Value):
    """Telemetry of a run: latest samples of its nodes and, if requested, time series."""

    now: TelemetryStatus
    """Latest sample of each node."""
    series: tuple[NodeSeries, ...]
    """Requested time series."""
    absent: tuple[NodeAbsences, ...]
    """Missing telemetry of each node, with reasons."""


def telemetry_status(
    history: RunHistory, manifest: RunManifest, until: float, ops: float, *, briefly: bool = True
) -> TelemetryStatus:
    """Return the telemetry of a run's nodes at a time.

    Args:
        history: records of the run.
        manifest: manifest of the run.
        until: time in UTC seconds.
        ops: score of the run.
        briefly: whether to omit the samples of individual accelerators.
    """
    start = history.origin_utc or 0.0
    hosts = host_energies(history, until)
    nodes = (_node(host, start, briefly=briefly) for host in hosts)
    sampled = [each for host in hosts for each in host.samplers if each.latest is not None]
    return TelemetryStatus(
        interval_seconds=manifest.config.telemetry.interval_seconds,
        unavailable_reason=_unavailable_reason(history, manifest),
        nodes=tuple(node for node in nodes if node is not None),
        energy=energy_status(history, hosts, until, ops),
        overhead=max(map(_overhead, sampled), default=None),
    )


def telemetry_series(
    history: RunHistory, hosts: Iterable[str], limit: int
) -> tuple[NodeSeries, ...]:
    """Return the latest points of the given hosts, at most ``limit`` per host."""
    start = history.origin_utc or 0.0
    telemetry = history.telemetry
    return tuple(
        _series(host, counted(telemetry[host]), start, limit) for host in hosts if host in telemetry
    )


def absences(history: RunHistory) -> tuple[NodeAbsences, ...]:
    """Return the missing telemetry of each node, from its latest report."""
    return tuple(
        NodeAbsences(host=host, absent=own[-1].absent)
        for host, samplers in history.telemetry.items()
        if (own := counted(samplers))
    )


def telemetry_lines(status: TelemetryStatus) -> Iterator[str]:
    """Yield a line for each node and one for the energy, for a terminal."""
    for node in status.nodes:
        said = [
            None if node.cpu_percent is None else f"CPU {node.cpu_percent:.0f}%",
            None if node.memory_bytes is None else f"memory {size(round(node.memory_bytes))}",
            _accelerators_line(node),
            None if node.watts is None else f"{node.watts:.0f} W",
        ]
        yield f"{node.host}  {', '.join(part for part in said if part)}"
    if (line := energy_line(status.energy)) and not status.unavailable_reason:
        yield line


def energy_line(energy: EnergyStatus) -> str:
    """Return a run's energy in one line."""
    if energy.joules is None:
        return f"energy not measured: {energy.missing[0]}" if energy.missing else ""
    said = f"energy {si(energy.joules, 'J')}, {energy.label}"
    if energy.ops_per_watt is not None:
        said += f", {si(energy.ops_per_watt, 'OPS')} per watt"
    return f"{said}; without {energy.missing[0]}" if energy.missing else said


def _accelerators_line(node: NodeStatus) -> str | None:
    if not node.accelerator_count:
        return None
    busy = "" if node.accelerator_percent is None else f" {node.accelerator_percent:.0f}%"
    return f"{node.accelerator_count} accelerator{'s' * (node.accelerator_count > 1)}{busy}"


def _overhead(sampler: SamplerHistory) -> float:
    passed = sampler.end_utc - sampler.began_utc
    return sampler.cpu_seconds / passed if passed > 0.0 else 0.0


def _unavailable_reason(history: RunHistory, manifest: RunManifest) -> str:
    if manifest.simulated:
        return "the run is simulated: its nodes do not exist"
    if manifest.config.telemetry.interval_seconds == 0.0:
        return "telemetry.interval_seconds is 0; AIPerf's rules require monitoring"
    if not history.telemetry:
        return "no replica has recorded any"
    return ""


def _node(host: HostEnergy, start: float, *, briefly: bool) -> NodeStatus | None:
    latest = [sampler for sampler in host.samplers if sampler.latest is not None]
    if not latest or latest[-1].latest is None:
        return None
    utc, sample = latest[-1].latest
    node, seconds = sample.node, sample.seconds
    known = [u for u in sample.accelerators.utilization if u is not None]
    return NodeStatus(
        host=host.host,
        elapsed_seconds=utc - start,
        seconds=seconds,
        cpu_percent=node.cpu,
        processes_cpu_percent=node.processes_cpu,
        processes_memory_bytes=node.processes_memory,
        memory_bytes=node.memory,
        **{f"{name}_rate": _rate(getattr(node, name), seconds) for name in TRAFFIC},
        watts=power_of(sample),
        accelerator_count=len(latest[-1].equipment.accelerators),
        accelerator_percent=math.fsum(known) / len(known) if known else None,
        accelerators=() if briefly else tuple(_accelerators(latest[-1], sample)),
    )


def _accelerators(sampler: SamplerHistory, sample: TelemetrySample) -> Iterator[AcceleratorStatus]:
    use = sample.accelerators
    columns = (use.utilization, use.memory, use.watts, use.celsius, use.mhz, use.memory_mhz)
    for name, *values in zip(sampler.equipment.accelerators, *columns, strict=False):
        names = list(AcceleratorStatus.model_fields)[1:]
        yield AcceleratorStatus(name=str(name), **dict(zip(names, values, strict=True)))


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0.0 else amount / seconds


def _series(host: str, samplers: Sequence[SamplerHistory], start: float, limit: int) -> NodeSeries:
    points = [point for sampler in samplers for point in sampler.points]
    names = samplers[-1].equipment.accelerators if samplers else ()
    return NodeSeries(
        host=host,
        accelerators=tuple(map(str, names)),
        total=len(points),
        points=tuple(_point(point, start) for point in points[max(0, len(points) - limit) :]),
    )


def _point(point: Point, start: float) -> TelemetryPoint:
    return TelemetryPoint(
        from_seconds=point.begin - start,
        to_seconds=point.end - start,
        sampled_seconds=point.seconds,
        cpu_percent=point.get("cpu"),
        processes_cpu_percent=point.get("processes_cpu"),
        memory_bytes=point.get("memory"),
        **{f"{name}_rate": point.rate(name) for name in TRAFFIC},
        accelerator_percent=point.get("utilization"),
        accelerator_memory_bytes=point.get("accelerator_memory"),
        accelerator_watts=point.get("watts"),
        celsius=point.get("celsius"),
        power_watts=point.get("power"),
        utilization_percent=_told(point.utilization),
        watts=_told(point.watts),
    )


def _told(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values)
