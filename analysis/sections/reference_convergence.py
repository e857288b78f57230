"""Whether closed entries of MLPerf HPC converge faster than the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.measures.convergence_points import Verdict, compare
from aiperf_hpc.analysis.measures.time_to_solution import convergence_point, time_to_solution
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.formatting import few
from aiperf_hpc.results.table import NONE, Table, number, reasons
from aiperf_hpc.trial import Value


class ConvergenceRow(Value):
    """One entry beside the reference of MLPerf HPC v3.0."""

    entry: str
    batch_size: int
    mean: float
    """Epochs to converge, samples for OpenFold, without the fastest and the slowest."""
    reference: float
    """Of the reference at that batch size."""
    interpolated: bool
    """Whether it lies between two batch sizes of the reference."""
    least: float
    """The smallest mean that chance allows."""
    verdict: Verdict
    factor: float
    """By what the time to solution is to be multiplied."""
    submitted: float | None
    """The factor of its ``scaling.json``."""


class ReferenceConvergence(Value):
    """All entries that the reference has points for."""

    rows: tuple[ConvergenceRow, ...]
    missing: dict[str, str]
    """Why other entries were not compared."""


def reference_convergence(entries: Sequence[Entry], options: Options) -> ReferenceConvergence:
    """Compare closed entries of strong scaling with the reference convergence points of v3.0."""
    rows = []
    missing = {}
    for entry in entries:
        try:
            rows.append(_row_of(entry))
        except NotMeasuredError as error:
            missing[entry.name] = str(error)
    if not rows:
        raise NotMeasuredError(next(iter(missing.values()), "there are no entries"))
    return ReferenceConvergence(rows=tuple(rows), missing=missing)


def _row_of(entry: Entry) -> ConvergenceRow:
    batches = {log.global_batch_size for log in entry.logs}
    _check(entry, batches)
    batch = batches.pop()
    if batch is None:
        raise NotMeasuredError("its logs do not state a global batch size")
    found = compare(entry.benchmark, batch, _converged(entry))
    return ConvergenceRow(
        entry=entry.name,
        batch_size=batch,
        mean=found.mean,
        reference=found.reference.mean,
        interpolated=found.reference.interpolated,
        least=found.least,
        verdict=found.verdict,
        factor=found.factor,
        submitted=entry.convergence_scale,
    )


def _check(entry: Entry, batches: set[int | None]) -> None:
    """Raise NotMeasuredError for entries that the points are not for."""
    if entry.format == "dawnbench" or entry.scenario != "strong":
        raise NotMeasuredError("the reference points are for strong scaling of MLPerf HPC")
    if entry.division == "open":
        raise NotMeasuredError("the reference points do not bind the open division")
    if entry.round == "hpc-0.7":
        raise NotMeasuredError("the reference points are of other networks and data than v0.7's")
    if len(batches) > 1:
        raise NotMeasuredError("its runs have different batch sizes")


def _converged(entry: Entry) -> list[float]:
    """Return the epochs to converge, infinite for one failed run: the rules admit one.

    Raises:
        NotMeasuredError: more failed, or a log of one that did not has no convergence point.
    """
    epochs = []
    for log in entry.logs:
        try:
            time_to_solution(log)
        except NotMeasuredError:  # It failed, as for the olympic mean.
            epochs.append(float("inf"))
        else:
            epochs.append(convergence_point(log))
    epochs += [float("inf")] * entry.lost
    if epochs.count(float("inf")) > 1:
        raise NotMeasuredError("more than one of its runs failed")
    return epochs


def tables(found: ReferenceConvergence) -> Iterator[Table]:
    """Yield how fast entries converge beside the reference, and why others are not compared."""
    columns = (
        "entry", "batch", "to converge", "reference of v3.0", "least by chance", "time ×",
        "scaling.json", "verdict",
    )  # fmt: skip
    rows = tuple(
        (
            row.entry, f"{row.batch_size:,}", number(row.mean), number(row.reference),
            number(row.least), f"{row.factor:.4f}", _submitted(row), str(row.verdict),
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
