"""Whether closed entries of MLPerf HPC converge faster than the reference.

[mlcommons/logging, mlperf_logging/rcp_checker]
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured, measured_each, required
from aiperf_hpc.analysis.metrics.mlperf_rules import REQUIRED_RUNS, mean_without_extremes
from aiperf_hpc.analysis.metrics.time_to_solution import convergence_point, time_to_solution
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.formatting import few
from aiperf_hpc.results.table import NONE, Table, number, reasons
from aiperf_hpc.trial import Value

SIGNIFICANCE = 0.05
"""Significance level of the one-sided t-test. [rcp_checker.py, alpha]"""

Verdict = Literal["no faster", "faster, within chance", "faster than chance allows"]


class Reference(NamedTuple):
    """Convergence of the reference at one batch size."""

    batch_size: float
    mean: float
    """Mean epochs (samples for OpenFold), without the fastest and the slowest run."""
    deviation: float
    """Population standard deviation of the same runs."""
    runs: int
    """Number of runs in mean and deviation."""
    interpolated: bool = False


class ConvergenceRow(Value):
    """One entry compared with the reference of MLPerf HPC v3.0."""

    mean: float
    """Mean epochs to converge (samples for OpenFold), without the fastest and the slowest."""
    reference: float
    """Mean of the reference at that batch size."""
    interpolated: bool
    """Whether the reference is interpolated between two batch sizes."""
    min_mean: float
    """Smallest mean that the checker permits."""
    verdict: Verdict
    factor: float
    """Factor on the time to solution."""

    entry: str
    batch_size: int
    submitted: float | None
    """Factor in its ``scaling.json``."""


_EPOCHS: dict[str, dict[int, str]] = {
    # rcp_checker/hpc_3.0.0/rcps_cosmoflow.json
    "cosmoflow": {
        32: "8 8 9 8 6 8 6 6 7 8 8 8 9 8 7 8 6 9 8 8 8 8 9 8 9 8 8 8 8 8 8 8 8",
        64: "19 18 20 17 18 19 18 18 18 18 18 18 18 19 18 18 18 18 18 20",
        128: "16 18 18 18 18 17 18 18 18 18 18 18 17 18 18 18 19 18 18 18",
        512: "22 23 23 24 24 21 23 23 23 23 24 23 23 21 23 23 21 23 23 23",
        1024: "42 38 42 40 40 39 43 37 39 37 43 39 38 42 40 42 42 38 36 43",
    },
    # rcp_checker/hpc_3.0.0/rcps_deepcam.json
    "deepcam": {
        128: "7 7 7 7 7 7 7 8 8 6 7 8 7 6 6 7 7 6 7 7",
        256: "9 9 9 9 9 9 9 9 9 9",
        512: "11 11 11 11 11 10 16 12 11 11 11 10 11 11 11 10 11 11 11 11"
        " 11 11 11 12 11 11 11 11 13 10 11 13 11 11 11 10 14 10 10 10",
        1024: "13 13 12 13 13 13 14 13 13 13",
        2048: "23 23 22 23 22 26 22 22 24 22",
    },
    # rcp_checker/hpc_1.0.0/rcps_oc20.json, the latest available
    "oc20": {
        256: "20 18 20 20 22 18 19 19 21 21",
        1024: "23 25 22 25 25 25 25 24 23 25",
    },
    # rcp_checker/hpc_3.0.0/rcps_openfold.json, in samples
    "openfold": {
        128: "97280 87040 81920 92160 92160 87040 92160 81920 81920 81920"
        " 71680 92160 107520 81920 92160 81920 87040 81920 97280 107520",
        256: "153600 153600 122880 143360 133120 143360 122880 122880 112640 112640"
        " 133120 153600 122880 133120 122880 153600 143360 133120 133120 112640",
    },
}


def references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference points of a benchmark in ascending order of batch size.

    Raises:
        NotMeasuredError: the benchmark has none.
    """
    if benchmark not in _EPOCHS:
        raise NotMeasuredError(f"{benchmark} has no reference convergence points of MLPerf HPC")
    return tuple(
        _reference(batch, [float(one) for one in epochs.split()])
        for batch, epochs in sorted(_EPOCHS[benchmark].items())
    )


def _reference(batch_size: float, epochs: Sequence[float]) -> Reference:
    remaining = sorted(epochs)[1:-1]
    return Reference(
        batch_size, statistics.fmean(remaining), statistics.pstdev(remaining), len(remaining)
    )


def least_mean(reference: Reference, runs: int) -> float:
    """Return the smallest mean that is not significantly below the reference's.

    One-sided t-test of two samples of equal variance, the reference's and ``runs`` of an entry
    without the fastest and the slowest. [rcp_checker.py, _find_min_acceptable_mean]
    """
    from scipy.stats import t

    remaining = runs - 2
    quantile = float(t.ppf(1 - SIGNIFICANCE, reference.runs + remaining - 2))
    error = reference.deviation * math.sqrt(1 / reference.runs + 1 / remaining)
    return max(0.0, reference.mean - quantile * error)


def interpolated(batch_size: float, low: Reference, high: Reference, runs: int) -> Reference:
    """Return a point interpolated between two others, with twice an entry's number of runs."""
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Reference(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.deviation + share * (high.deviation - low.deviation),
        2 * runs,
        interpolated=True,
    )


def pruned(points: Sequence[Reference], runs: int) -> tuple[Reference, ...]:
    """Return the points for the checker's scaling, which converge fastest for their batch size.

    Points with smaller batches than the overall fastest are omitted, and then each point slower
    than the interpolation of its neighbors. [rcp_checker.py, _prune_rcps]
    """
    fastest = min(points, key=lambda point: least_mean(point, runs))
    remaining = [point for point in points if point.batch_size >= fastest.batch_size]
    place = 1
    while place < len(remaining) - 1:
        between = interpolated(
            remaining[place].batch_size, remaining[place - 1], remaining[place + 1], runs
        )
        if least_mean(remaining[place], runs) > least_mean(between, runs):
            del remaining[place]
        else:
            place += 1
    return tuple(remaining)


def reference_at(batch_size: float, points: Sequence[Reference], runs: int) -> Reference:
    """Return the point of a batch size, or one interpolated between its neighbors.

    Below the smallest batch size, the point of the smallest applies.

    Raises:
        NotMeasuredError: the batch size is larger than that of all points.
    """
    below = [point for point in points if point.batch_size <= batch_size]
    above = [point for point in points if point.batch_size >= batch_size]
    if not above:
        largest = points[-1].batch_size
        raise NotMeasuredError(f"batch {batch_size:g} is above all reference points ({largest:g})")
    if not below or below[-1].batch_size == batch_size:
        return below[-1] if below else above[0]
    return interpolated(batch_size, below[-1], above[0], runs)


def compare(entry: Entry, batch_size: int, converged: Sequence[float]) -> ConvergenceRow:
    """Compare an entry's epochs to converge with the reference's at its batch size.

    Raises:
        NotMeasuredError: there is no reference for the entry, or it has too few runs.
    """
    points = references(entry.benchmark)
    runs = REQUIRED_RUNS[entry.benchmark]
    reference = reference_at(batch_size, pruned(points, runs), runs)
    mean = mean_without_extremes(converged)
    if mean <= 0:
        raise NotMeasuredError("the log's epochs do not count from the start of the training")
    least = least_mean(reference, runs)
    verdict: Verdict = "no faster"
    if mean < reference.mean:
        verdict = "faster, within chance" if mean >= least else "faster than chance allows"
    return ConvergenceRow(
        entry=entry.name,
        batch_size=batch_size,
        submitted=entry.convergence_scale,
        mean=mean,
        reference=reference.mean,
        interpolated=reference.interpolated,
        min_mean=least,
        verdict=verdict,
        factor=max(1.0, reference.mean / mean),
    )


class ReferenceConvergence(Value):
    """All entries with reference points."""

    rows: tuple[ConvergenceRow, ...]
    missing: dict[str, str]
    """Reason why each of the other entries was not compared."""


def reference_convergence(entries: Sequence[Entry], options: Options) -> ReferenceConvergence:
    """Compare closed entries of strong scaling with the reference convergence points of v3.0."""
    rows, missing = measured_each(entries, _row_of, none="there are no entries")
    return ReferenceConvergence(rows=tuple(rows), missing=missing)


def _row_of(entry: Entry) -> ConvergenceRow:
    batches = {log.global_batch_size for log in entry.logs}
    _check(entry, batches)
    batch = required(batches.pop(), "its logs do not state a global batch size")
    return compare(entry, batch, _converged(entry))


def _check(entry: Entry, batches: set[int | None]) -> None:
    """Raise NotMeasuredError for entries to which the points do not apply."""
    if entry.format == "dawnbench" or entry.scenario != "strong":
        raise NotMeasuredError("the reference points are for strong scaling of MLPerf HPC")
    if entry.division == "open":
        raise NotMeasuredError("the reference points do not bind the open division")
    if entry.round == "hpc-0.7":
        raise NotMeasuredError("the reference points are of other networks and data than v0.7's")
    if len(batches) > 1:
        raise NotMeasuredError("its runs have different batch sizes")


def _converged(entry: Entry) -> list[float]:
    """Return the epochs to converge, infinite for one failed run, which the rules permit.

    Raises:
        NotMeasuredError: more runs failed, or a successful run's log has no convergence point.
    """
    times = [measured(partial(time_to_solution, log))[0] for log in entry.logs]
    failed = times.count(None) + entry.lost  # As in the olympic mean.
    if failed > 1:
        raise NotMeasuredError("more than one of its runs failed")
    known = zip(entry.logs, times, strict=True)
    converged = [convergence_point(log) for log, time in known if time is not None]
    return [*converged, *[math.inf] * failed]


def tables(found: ReferenceConvergence) -> Iterator[Table]:
    """Yield the convergence of entries relative to the reference, and reasons for the others."""
    columns = (
        "entry", "batch", "to converge", "reference of v3.0", "least by chance", "time ×",
        "scaling.json", "verdict",
    )  # fmt: skip
    rows = tuple(
        (
            row.entry, f"{row.batch_size:,}", number(row.mean), number(row.reference),
            number(row.min_mean), f"{row.factor:.4f}", _submitted(row), str(row.verdict),
        )
        for row in found.rows
    )  # fmt: skip
    between = [row.entry for row in found.rows if row.interpolated]
    notes = (f"{few(between)}: the reference is interpolated between batch sizes",)
    yield Table(
        columns,
        rows,
        notes=notes * bool(between),
        missing=tuple(reasons(found.missing)),
        words=(7,),
    )


def _submitted(row: ConvergenceRow) -> str:
    if row.submitted is None:
        return NONE
    same = math.isclose(row.submitted, row.factor, rel_tol=1e-9)
    return f"{row.submitted:.4f}" + (", the same" if same else "")
