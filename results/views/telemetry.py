"""The telemetry of a run's nodes: their use, traffic and power, for status and REST."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from aiperf_hpc.formatting import si, size
from aiperf_hpc.results.views.energy import EnergyStatus, HostEnergy, energy_status, host_energies
from aiperf_hpc.run.history import Point, RunHistory, SamplerHistory, counted
from aiperf_hpc.run.history.telemetry import power_of
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.telemetry.values import Sample
from aiperf_hpc.trial import Value

NETWORK = ("network_received", "network_sent", "fabric_received", "fabric_sent")
DISK = ("disk_read", "disk_written")
TRAFFIC = (*DISK, *NETWORK)
"""The quantities in bytes of samples."""


class AcceleratorStatus(Value):
    """One accelerator when it was last sampled; None where it was not reported."""

    name: str
    """Its vendor and number, e.g. ``NVIDIA 0``."""
    utilisation_percent: float | None
    """Of the time since the sample before."""
    memory_bytes: float | None
    """Memory in use, in bytes."""
    watts: float | None
    """The mean power since the sample before."""
    celsius: float | None
    """The highest temperature since the sample before."""
    mhz: float | None
    """The clock of the compute units, in MHz."""
    memory_mhz: float | None
    """The clock of the memory in MHz."""


class NodeUse(Value):
    """The use of a node in a span of time; None where it was not measured."""

    cpu_percent: float | None
    """Of all its logical CPUs."""
    processes_cpu_percent: float | None
    """Of one core, by the run's processes."""
    accelerator_percent: float | None
    """The mean utilization of its accelerators."""


class NodeTraffic(NodeUse):
    """The use of a node with its memory, and its traffic in bytes a second."""

    memory_bytes: float | None
    """In use, by any process."""
    disk_read_rate: float | None
    """Bytes a second that were read from disks."""
    disk_written_rate: float | None
    """Bytes a second that its block devices wrote."""
    network_received_rate: float | None
    """Bytes a second that its interfaces received."""
    network_sent_rate: float | None
    """Bytes a second that its interfaces sent."""
    fabric_received_rate: float | None
    """By verbs: InfiniBand, RoCE or Omni-Path."""
    fabric_sent_rate: float | None
    """Bytes a second that its ports sent by verbs."""


class NodeStatus(NodeTraffic):
    """One node when it was last sampled."""

    host: str
    """The host's name."""
    at_seconds: float
    """Seconds from the run's start to the sample."""
    seconds: float
    """How long the sample is."""
    processes_memory_bytes: float | None
    """Bytes of the run's processes' resident sets together."""
    watts: float | None
    """The power of all that is metered there."""
    accelerator_count: int
    """How many accelerators it has."""
    accelerators: tuple[AcceleratorStatus, ...] = ()
    """Left out of a run's status."""


class TelemetryStatus(Value):
    """A run's telemetry now."""

    seconds: float
    """Between two samples, as configured; 0 for none."""
    why_none: str
    """Why there is none; empty where there is some."""
    nodes: tuple[NodeStatus, ...]
    """The latest telemetry of each node."""
    energy: EnergyStatus
    """The energy, with its label."""
    overhead: float | None
    """The share of a core that sampling took, at most of all nodes; None before a sample."""


class NodeAbsences(Value):
    """What a node does not report, and why."""

    host: str
    """The host's name."""
    absent: dict[str, str]
    """Missing facts by name, each with the reason."""


class TelemetryPoint(NodeTraffic):
    """A stretch of a node's time."""

    from_seconds: float
    """Seconds since the run's start."""
    to_seconds: float
    """Seconds from the run's start to the end of the stretch."""
    sampled_seconds: float
    """How much of it was sampled."""
    accelerator_memory_bytes: float | None
    """Bytes of memory in use on its accelerators together."""
    accelerator_watts: float | None
    """The power of its accelerators together."""
    celsius: float | None
    """The temperature of its hottest accelerator."""
    power_watts: float | None
    """The power of all that is metered there."""
    utilisation_percent: tuple[float | None, ...]
    """Of each accelerator."""
    watts: tuple[float | None, ...]
    """Of each accelerator."""


class NodeSeries(Value):
    """A node over the time of the run."""

    host: str
    """The host's name."""
    accelerators: tuple[str, ...]
    """Its accelerators."""
    total: int
    """How many points there are; the latest are given."""
    points: tuple[TelemetryPoint, ...]
    """The points in order of time."""


class Telemetry(Value):
    """A run's telemetry: what its nodes did last and, where it was requested, over time."""

    now: TelemetryStatus
    """The latest sample of each node."""
    series: tuple[NodeSeries, ...]
    """The requested time series."""
    absent: tuple[NodeAbsences, ...]
    """What each node does not report, and why."""


def telemetry_status(
    history: RunHistory, manifest: RunManifest, until: float, ops: float, *, briefly: bool = True
) -> TelemetryStatus:
    """Return what a run's nodes do at a time.

    Args:
        history: the run's.
        manifest: what it is.
        until: UTC seconds.
        ops: its score.
        briefly: whether to leave the accelerators out one by one.
    """
    start = history.origin_utc or 0.0
    hosts = host_energies(history, until)
    nodes = (_node(host, start, briefly=briefly) for host in hosts)
    return TelemetryStatus(
        seconds=manifest.config.telemetry.seconds,
        why_none=_why_none(history, manifest),
        nodes=tuple(node for node in nodes if node is not None),
        energy=energy_status(history, hosts, until, ops),
        overhead=max(map(_overhead, _samplers(hosts)), default=None),
    )


def telemetry_series(
    history: RunHistory, hosts: Iterable[str], limit: int
) -> tuple[NodeSeries, ...]:
    """Return the latest points of some hosts, at most ``limit`` of each."""
    start = history.origin_utc or 0.0
    telemetry = history.telemetry
    return tuple(
        _series(host, counted(telemetry[host]), start, limit) for host in hosts if host in telemetry
    )


def absences(history: RunHistory) -> tuple[NodeAbsences, ...]:
    """Return what each node does not tell, as last said."""
    return tuple(
        NodeAbsences(host=host, absent=own[-1].absent)
        for host, samplers in history.telemetry.items()
        if (own := counted(samplers))
    )


def telemetry_lines(status: TelemetryStatus) -> Iterator[str]:
    """Yield a line for each node, and one for the energy, for a terminal."""
    for node in status.nodes:
        said = [
            None if node.cpu_percent is None else f"CPU {node.cpu_percent:.0f}%",
            None if node.memory_bytes is None else f"memory {size(round(node.memory_bytes))}",
            _accelerators_line(node),
            None if node.watts is None else f"{node.watts:.0f} W",
        ]
        yield f"{node.host}  {', '.join(part for part in said if part)}"
    if (line := energy_line(status.energy)) and not status.why_none:
        yield line


def energy_line(energy: EnergyStatus) -> str:
    """Return a run's energy in one line."""
    if energy.joules is None:
        return f"energy absent: {energy.missing[0]}" if energy.missing else ""
    said = f"energy {si(energy.joules, 'J')}, {energy.label}"
    if energy.ops_per_watt is not None:
        said += f", {si(energy.ops_per_watt, 'OPS')} per watt"
    return f"{said}; without {energy.missing[0]}" if energy.missing else said


def _accelerators_line(node: NodeStatus) -> str | None:
    if not node.accelerator_count:
        return None
    busy = "" if node.accelerator_percent is None else f" {node.accelerator_percent:.0f}%"
    return f"{node.accelerator_count} accelerator{'s' * (node.accelerator_count > 1)}{busy}"


def _samplers(hosts: Sequence[HostEnergy]) -> list[SamplerHistory]:
    return [s for host in hosts for s in host.samplers if s.latest is not None]


def _overhead(sampler: SamplerHistory) -> float:
    passed = sampler.end_utc - sampler.began_utc
    return sampler.cpu_seconds / passed if passed > 0.0 else 0.0


def _why_none(history: RunHistory, manifest: RunManifest) -> str:
    if manifest.simulated:
        return "the run is simulated: its nodes are not there"
    if manifest.config.telemetry.seconds == 0.0:
        return "telemetry.seconds is 0; AIPerf's rules demand that a run is monitored"
    if not history.telemetry:
        return "no replica has recorded any"
    return ""


def _node(host: HostEnergy, start: float, *, briefly: bool) -> NodeStatus | None:
    latest = [sampler for sampler in host.samplers if sampler.latest is not None]
    if not latest or latest[-1].latest is None:
        return None
    utc, sample = latest[-1].latest
    node, seconds = sample.node, sample.seconds
    known = [u for u in sample.accelerators.utilisation if u is not None]
    return NodeStatus(
        host=host.host,
        at_seconds=utc - start,
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


def _accelerators(sampler: SamplerHistory, sample: Sample) -> Iterator[AcceleratorStatus]:
    use = sample.accelerators
    columns = (use.utilisation, use.memory, use.watts, use.celsius, use.mhz, use.memory_mhz)
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
        accelerator_percent=point.get("utilisation"),
        accelerator_memory_bytes=point.get("accelerator_memory"),
        accelerator_watts=point.get("watts"),
        celsius=point.get("celsius"),
        power_watts=point.get("power"),
        utilisation_percent=_told(point.utilisation),
        watts=_told(point.watts),
    )


def _told(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values)
