"""What the report states of a run's nodes: their course, their energy, and OPS by the watt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from aiperf_hpc.errors import UsageError
from aiperf_hpc.ops_counter.score import ScorePoint
from aiperf_hpc.results.views.energy import EnergyStatus, HostEnergy, host_energies
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import (
    DISK,
    NETWORK,
    NodeUse,
    absences,
    telemetry_status,
)
from aiperf_hpc.run.history import Point
from aiperf_hpc.run.peaks import Peaks
from aiperf_hpc.trial import Machine, Value

STRETCHES: Final = 120
"""Into how many equal stretches the run's time is divided."""

Take = Callable[[Point], float | None]


class Spread(Value):
    """One figure of all nodes in a stretch of time."""

    mean: float
    least: float
    most: float


class Stretch(Value):
    """A stretch of the run's time, over all nodes; None where none reported it."""

    from_seconds: float
    to_seconds: float
    cpu_percent: Spread | None
    """Of all logical CPUs of a node."""
    accelerator_percent: Spread | None
    """The mean utilisation of a node's accelerators."""
    power_watts: float | None
    """Of all that is metered, all nodes together."""
    network_rate: float | None
    """Bytes a second of all nodes, received and sent, by interfaces and by verbs."""
    disk_rate: float | None
    """Bytes a second of all nodes, read and written."""


class NodeReport(NodeUse):
    """One node over the run."""

    host: str
    sampled_seconds: float
    most_memory_bytes: float | None
    """The most that was in use, as the mean of a point in time."""
    most_celsius: float | None
    """The highest temperature of an accelerator, likewise."""
    watts: float | None
    """The mean power of all that is metered there."""
    joules: float | None
    network_bytes: float | None
    """Received and sent, by interfaces and by verbs."""
    disk_bytes: float | None
    """Read and written."""


class Absence(Value):
    """What some nodes do not report, and why."""

    what: str
    why: str
    hosts: tuple[str, ...]


class PeakShare(Value):
    """The score as a share of what the machine was measured to do."""

    peak_ops: float
    """Operations a second of all ranks, by the best product or convolution in the precision."""
    share: float
    precision: str
    ranks: int
    """How many ranks the run has, each with a share of its node."""


class TelemetryReport(Value):
    """The nodes of a run over its time."""

    seconds: float
    """Between two samples, as configured; 0 for none."""
    why_none: str
    """Why there is none; empty where there is some."""
    energy: EnergyStatus
    overhead: float | None
    """The share of a core that sampling took, at most of all nodes."""
    nodes: tuple[NodeReport, ...]
    course: tuple[Stretch, ...]
    absent: tuple[Absence, ...]
    peak: PeakShare | None
    without_peak: str
    """Why there is no fraction of a peak; empty where there is."""


def telemetry_report(view: RunView, end: float, final: ScorePoint) -> TelemetryReport:
    """Return what the report states; ``final`` is the score at the ``end``, UTC seconds."""
    history = view.history
    status = telemetry_status(history, view.manifest, end, final.ops)
    hosts = [host for host in host_energies(history, end) if host.samplers]
    start = history.origin_utc or 0.0
    peak = _peak(view, final.ops)
    values = {
        **TelemetryReport.fields_from(status),
        "nodes": tuple(_node(host, end) for host in hosts),
        "course": _course([_points(host, end) for host in hosts], start, end),
        "absent": _absent(view),
        "peak": None if isinstance(peak, str) else peak,
        "without_peak": peak if isinstance(peak, str) else "",
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
        most_memory_bytes=_most(points, "memory"),
        accelerator_percent=_mean(points, "utilisation"),
        most_celsius=_most(points, "celsius"),
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


def _course(nodes: Sequence[Sequence[Point]], start: float, end: float) -> tuple[Stretch, ...]:
    """Return all nodes together, in equal stretches of the run's time."""
    if end <= start or not nodes:
        return ()
    edges = [start + (end - start) * number / STRETCHES for number in range(STRETCHES + 1)]

    def over_time(take: Take) -> list[list[float]]:
        """Return the values of all nodes in each stretch."""
        binned = [_binned(points, edges, take) for points in nodes]
        return [_known(each) for each in zip(*binned, strict=True)]

    columns = zip(
        pairwise(edges),
        over_time(lambda point: point.get("cpu")),
        over_time(lambda point: point.get("utilisation")),
        over_time(lambda point: point.get("power")),
        over_time(lambda point: _rates(point, NETWORK)),
        over_time(lambda point: _rates(point, DISK)),
        strict=True,
    )
    return tuple(
        Stretch(
            from_seconds=begin - start,
            to_seconds=stop - start,
            cpu_percent=_spread(cpu),
            accelerator_percent=_spread(accelerators),
            power_watts=_sum(power),
            network_rate=_sum(network),
            disk_rate=_sum(disk),
        )
        for (begin, stop), cpu, accelerators, power, network, disk in columns
    )


def _rates(point: Point, names: Iterable[str]) -> float | None:
    return _sum([rate for name in names if (rate := point.rate(name)) is not None])


def _binned(points: Iterable[Point], edges: Sequence[float], take: Take) -> list[float]:
    """Return a node's figure in each stretch, by how long each point is in it; nan for none."""
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
    return Spread(mean=math.fsum(known) / len(known), least=min(known), most=max(known))


def _sum(known: Sequence[float]) -> float | None:
    return math.fsum(known) if known else None


def _absent(view: RunView) -> tuple[Absence, ...]:
    found = defaultdict[tuple[str, str], list[str]](list)
    for node in absences(view.history):
        for what, why in node.absent.items():
            found[what, why].append(node.host)
    return tuple(Absence(what=k[0], why=k[1], hosts=tuple(v)) for k, v in sorted(found.items()))


def _peak(view: RunView, ops: float) -> PeakShare | str:
    """Return the score beside the machine's peak, or why there is none to be told."""
    path = view.paths.peaks
    if not path.exists():
        return "the run has no peaks.json: `aiperf peaks --out RUN` on an idle machine"
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
    return PeakShare(peak_ops=whole, share=ops / whole, precision=precision, ranks=ranks)


def _rank_peak(peaks: Peaks, machine: Machine, precision: str, engines: Iterable[str]) -> float:
    """Return what a rank's part of its node was measured to do, operations a second; 0 if nothing.

    That is its accelerator, or its cores' share of the processors.
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
