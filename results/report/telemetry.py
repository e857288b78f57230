"""Telemetry in the report: time series of the nodes, energy, and OPS per watt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from aiperf_hpc.errors import UsageError
from aiperf_hpc.grouping import grouped
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import (
    DISK,
    NETWORK,
    EnergyStatus,
    HostEnergy,
    NodeUse,
    absences,
    host_energies,
    telemetry_status,
)
from aiperf_hpc.run.history import Point
from aiperf_hpc.run.peaks import Peaks
from aiperf_hpc.trial import Machine, Value

INTERVALS: Final = 120
"""Number of equal time intervals of a run."""

Take = Callable[[Point], float | None]


class Spread(Value):
    """One quantity over all nodes in a time interval."""

    mean: float
    min: float
    max: float


class TelemetryInterval(Value):
    """A time interval of the run over all nodes; values without a report are None."""

    from_seconds: float
    to_seconds: float
    cpu_percent: Spread | None
    """Utilization of all logical CPUs of a node."""
    accelerator_percent: Spread | None
    """Mean utilization of a node's accelerators."""
    power_watts: float | None
    """Power of all metered components, summed over all nodes."""
    network_rate: float | None
    """Bytes per second sent and received by all nodes, by interfaces and by verbs."""
    disk_rate: float | None
    """Bytes per second read and written by all nodes."""


class NodeReport(NodeUse):
    """Telemetry of one node over the run."""

    host: str
    sampled_seconds: float
    max_memory_bytes: float | None
    """Maximum memory in use, from the means of the points in time."""
    max_celsius: float | None
    """Maximum temperature of an accelerator, from the points in time."""
    watts: float | None
    """Mean power of all metered components of the node."""
    joules: float | None
    network_bytes: float | None
    """Bytes sent and received, by interfaces and by verbs."""
    disk_bytes: float | None
    """Bytes read and written."""


class Absence(Value):
    """Missing telemetry of nodes, with reasons."""

    name: str
    reason: str
    hosts: tuple[str, ...]


class PeakFraction(Value):
    """Score as a fraction of the measured peak of the machine."""

    peak_ops: float
    """Peak operations per second of all ranks, from the best matrix product or convolution in the
    precision."""
    fraction: float
    """Score divided by ``peak_ops``."""
    precision: str
    ranks: int
    """Number of ranks of the run, each with a part of its node."""


class TelemetryReport(Value):
    """Telemetry of a run's nodes over time."""

    interval_seconds: float
    """Configured sampling interval in seconds; 0 if sampling is off."""
    unavailable_reason: str
    """Reason why there is no telemetry; empty if there is some."""
    energy: EnergyStatus
    overhead: float | None
    """Fraction of a core used by sampling, maximum over the nodes."""
    nodes: tuple[NodeReport, ...]
    timeline: tuple[TelemetryInterval, ...]
    absent: tuple[Absence, ...]
    peak: PeakFraction | None
    peak_unavailable_reason: str
    """Reason why there is no fraction of a peak; empty if there is one."""


def telemetry_report(view: RunView, end: float, ops: float) -> TelemetryReport:
    """Return the report's telemetry; ``ops`` is the score at ``end`` (UTC seconds)."""
    history = view.history
    status = telemetry_status(history, view.manifest, end, ops)
    hosts = [host for host in host_energies(history, end) if host.samplers]
    start = history.origin_utc or 0.0
    peak = _peak(view, ops)
    values = {
        **TelemetryReport.fields_from(status),
        "nodes": tuple(_node(host, end) for host in hosts),
        "timeline": _timeline([_points(host, end) for host in hosts], start, end),
        "absent": _absent(view),
        "peak": None if isinstance(peak, str) else peak,
        "peak_unavailable_reason": peak if isinstance(peak, str) else "",
    }
    return TelemetryReport(**values)


def _points(host: HostEnergy, end: float) -> list[Point]:
    return [point for sampler in host.samplers for point in sampler.points if point.begin < end]


def _node(host: HostEnergy, end: float) -> NodeReport:
    points = _points(host, end)
    return NodeReport(
        host=host.host,
        sampled_seconds=math.fsum(point.seconds for point in points),
        cpu_percent=_mean(points, "cpu"),
        processes_cpu_percent=_mean(points, "processes_cpu"),
        max_memory_bytes=_most(points, "memory"),
        accelerator_percent=_mean(points, "utilization"),
        max_celsius=_most(points, "celsius"),
        watts=host.watts,
        joules=host.joules,
        network_bytes=_total(points, *NETWORK),
        disk_bytes=_total(points, *DISK),
    )


def _mean(points: Iterable[Point], name: str) -> float | None:
    known = [(v, point.seconds) for point in points if (v := point.get(name)) is not None]
    seconds = math.fsum(weight for _, weight in known)
    return math.fsum(v * weight for v, weight in known) / seconds if seconds > 0.0 else None


def _most(points: Iterable[Point], name: str) -> float | None:
    return max((v for point in points if (v := point.get(name)) is not None), default=None)


def _total(points: Iterable[Point], *names: str) -> float | None:
    known = [v for point in points for name in names if (v := point.get(name)) is not None]
    return math.fsum(known) if known else None


def _timeline(
    nodes: Sequence[Sequence[Point]], start: float, end: float
) -> tuple[TelemetryInterval, ...]:
    """Return the telemetry of all nodes, in equal intervals of the run's time."""
    if end <= start or not nodes:
        return ()
    edges = [start + (end - start) * number / INTERVALS for number in range(INTERVALS + 1)]

    def over_time(take: Take) -> list[list[float]]:
        """Return the values of all nodes in each interval."""
        binned = [_binned(points, edges, take) for points in nodes]
        return [_known(each) for each in zip(*binned, strict=True)]

    columns: dict[str, list[Any]] = {
        "cpu_percent": list(map(_spread, over_time(lambda point: point.get("cpu")))),
        "accelerator_percent": list(map(_spread, over_time(lambda p: p.get("utilization")))),
        "power_watts": list(map(_sum, over_time(lambda point: point.get("power")))),
        "network_rate": list(map(_sum, over_time(lambda point: _rates(point, NETWORK)))),
        "disk_rate": list(map(_sum, over_time(lambda point: _rates(point, DISK)))),
    }
    return tuple(
        TelemetryInterval(
            from_seconds=begin - start,
            to_seconds=stop - start,
            **{name: values[place] for name, values in columns.items()},
        )
        for place, (begin, stop) in enumerate(pairwise(edges))
    )


def _rates(point: Point, names: Iterable[str]) -> float | None:
    return _sum([rate for name in names if (rate := point.rate(name)) is not None])


def _binned(points: Iterable[Point], edges: Sequence[float], take: Take) -> list[float]:
    """Return a node's quantity per interval, weighted by each point's overlap; nan if none."""
    weights, sums = [0.0] * (len(edges) - 1), [0.0] * (len(edges) - 1)
    start, width = edges[0], edges[1] - edges[0]
    for point in points:
        if (value := take(point)) is None:
            continue
        first = max(0, int((point.begin - start) / width))
        for place in range(first, len(weights)):
            if edges[place] >= point.end:
                break
            inside = min(point.end, edges[place + 1]) - max(point.begin, edges[place])
            if inside > 0.0:
                weights[place] += inside
                sums[place] += inside * value
    return [s / w if w > 0.0 else math.nan for s, w in zip(sums, weights, strict=True)]


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _spread(known: Sequence[float]) -> Spread | None:
    if not known:
        return None
    return Spread(mean=math.fsum(known) / len(known), min=min(known), max=max(known))


def _sum(known: Sequence[float]) -> float | None:
    return math.fsum(known) if known else None


def _absent(view: RunView) -> tuple[Absence, ...]:
    nodes = absences(view.history)
    found = grouped((fact, node.host) for node in nodes for fact in node.absent.items())
    return tuple(Absence(name=k[0], reason=k[1], hosts=tuple(v)) for k, v in sorted(found.items()))


def _peak(view: RunView, ops: float) -> PeakFraction | str:
    """Return the score relative to the machine's peak, or the reason why it is unknown."""
    path = view.paths.peaks
    if not path.exists():
        return "run `aiperf peaks --out RUN` on an idle machine"
    machines = [r.machine for r in view.history.replicas.values() if r.machine is not None]
    if not machines:
        return "no replica has recorded its machine"
    try:
        peaks = Peaks.read(path)
    except UsageError as error:
        return str(error)
    engines = {r.started.engine for r in view.history.replicas.values() if r.started is not None}
    precision, each = view.manifest.config.training.precision, view.manifest.config.replica.ranks
    rates = [_rank_peak(peaks, machine, precision, engines) for machine in machines]
    if not all(rates):
        return f"the peaks have no rate of this run's engine in {precision} on its devices"
    whole = each * math.fsum(rates)
    ranks = each * len(machines)
    return PeakFraction(peak_ops=whole, fraction=ops / whole, precision=precision, ranks=ranks)


def _rank_peak(peaks: Peaks, machine: Machine, precision: str, engines: Iterable[str]) -> float:
    """Return the measured peak of a rank's part of its node in operations per second; 0 if unknown.

    That part is its accelerator, or its cores' fraction of the processors.
    """
    accelerated = bool(machine.accelerators)
    part = 1.0 if accelerated else min(1.0, len(machine.cores) / peaks.cores)
    return part * max(
        (
            reading.best
            for engine in engines
            for sweep in peaks.products(engine, accelerator=accelerated)
            if sweep.precision == precision
            for reading in sweep.readings
        ),
        default=0.0,
    )
