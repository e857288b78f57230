"""Latency and cost of inference for networks that reach the benchmark's target.

Source: DAWNBench, entries' README, inference tasks: mean latency and cost of one sample at a time
for a network at or over the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.sections.contest import ranks
from aiperf_hpc.analysis.training_log import Entry, Inference
from aiperf_hpc.results.table import Table, optional, reasons
from aiperf_hpc.trial import Value


class RankedNetwork(Value):
    """Inference with one network."""

    entry: str
    quality: float
    latency: float | None
    """Latency, seconds per sample."""
    cost: float | None
    """Cost of one sample, US dollars."""
    latency_rank: int | None
    cost_rank: int | None


class BenchmarkInference(Value):
    """The networks of one benchmark, fastest first."""

    benchmark: str
    served: tuple[RankedNetwork, ...]
    excluded: dict[str, str]
    """Reason why each of the other entries is not ranked."""


class InferenceResults(Value):
    """Inference results of each benchmark."""

    benchmarks: tuple[BenchmarkInference, ...]


def inference(entries: Sequence[Entry], _options: Options) -> InferenceResults:
    """Return latency and cost of inference, ranked. O(n log n).

    Raises:
        NotMeasuredError: there is no inference entry.
    """
    groups: dict[str, dict[str, Inference]] = {}
    for entry in entries:
        if entry.inference:
            groups.setdefault(entry.benchmark, {})[entry.name] = entry.inference
    if not groups:
        raise NotMeasuredError("no entry measures inference")
    return InferenceResults(
        benchmarks=tuple(_serving(name, found) for name, found in groups.items())
    )


def _serving(benchmark: str, found: dict[str, Inference]) -> BenchmarkInference:
    shortfalls = {name: _shortfall(measured) for name, measured in found.items()}
    excluded = {name: reason for name, reason in shortfalls.items() if reason}
    good = {name: measured for name, measured in found.items() if name not in excluded}
    by_latency = ranks({name: measured.latency for name, measured in good.items()})
    by_cost = ranks({name: measured.cost for name, measured in good.items()})
    served = [
        RankedNetwork(
            entry=name,
            quality=measured.value or 0.0,
            latency=measured.latency,
            cost=measured.cost,
            latency_rank=by_latency.get(name),
            cost_rank=by_cost.get(name),
        )
        for name, measured in good.items()
    ]
    served.sort(key=lambda one: (one.latency_rank or math.inf, one.cost_rank or math.inf))
    return BenchmarkInference(benchmark=benchmark, served=tuple(served), excluded=excluded)


def _shortfall(measured: Inference) -> str | None:
    """Return the reason why a network is not good enough to be ranked, or None if it is."""
    quality, value = measured.quality, measured.value
    if quality is None or value is None:
        return "its quality is not known"
    if quality.target is None:
        return f"there is no target for {quality.name}"
    if not quality.reaches(value):
        return f"{quality.name} is {value:g}, the target {quality.target:g}"
    return None


def tables(found: InferenceResults) -> Iterator[Table]:
    """Yield latency and cost of each benchmark's networks, and the reasons for unranked ones."""
    for serving in found.benchmarks:
        rows = tuple(
            (
                one.entry, optional(lambda s: f"{1e3 * s:.6g}", one.latency),
                optional("{:.3g}".format, one.cost), f"{one.quality:.6g}",
            )
            for one in serving.served
        )  # fmt: skip
        yield Table(
            ("entry", "ms", "USD", "quality"),
            rows,
            title=serving.benchmark,
            notes=tuple(f"not ranked: {note}" for note in reasons(serving.excluded)),
        )
