"""Tables of scaling studies."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.analysis.metric import plus_minus
from aiperf_hpc.analysis.metrics.scaling import Estimate, PowerLaw, PrincipalComponent
from aiperf_hpc.analysis.sections.scaling_study import (
    EqualWork,
    ScalingPoint,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.analysis.training_log import plural
from aiperf_hpc.formatting import few, percent
from aiperf_hpc.results.table import NONE, Table, optional, reasons

NAMES = {
    "epochs_by_batch": "epochs against batch size",
    "component": "principal component",
    "equal_work": "extrapolation",
}


def tables(found: ScalingStudies) -> Iterator[Table]:
    """Yield throughput, epochs and time at each scale, and predictions for other scales."""
    for study in found.studies:
        yield _throughput(study)
        yield _convergence(study)
        yield from (_predictions(study, work) for work in study.equal_work)
    excluded = (f"in no study: {note}" for note in reasons(found.excluded))
    yield Table(notes=tuple(excluded))


def _throughput(study: ScalingStudy) -> Table:
    columns = (
        "entry", plural(study.device), "batch", "samples/s", "each",
        "speed-up", "ideal", "efficiency",
    )  # fmt: skip
    rows = tuple(
        (
            *_scale(p), _mean(p.throughput, 1), f"{p.throughput_each:,.2f}", f"{p.speedup:.2f}",
            f"{p.ideal_speedup:g}", percent(p.efficiency, 1),
        )
        for p in study.points
    )  # fmt: skip
    return Table(columns, rows, f"{study.subject}, relative to {study.points[0].entry}: throughput")


def _convergence(study: ScalingStudy) -> Table:
    columns = (
        "entry", plural(study.device), "batch", "epochs", "minutes",
        "speed-up", "ideal", "efficiency",
    )  # fmt: skip
    rows = tuple(
        (
            *_scale(p), _mean(p.epochs, 2), _mean(p.minutes, 2),
            optional("{:.2f}".format, p.time_speedup), f"{p.ideal_speedup:g}",
            percent(p.time_efficiency, 1),
        )
        for p in study.points
    )  # fmt: skip
    notes = [*study.notes]
    if study.epochs_by_batch is not None:
        notes.append(f"epochs ~ batch^{_power(study.epochs_by_batch)}")
    if study.component is not None:
        notes.append(_in_words(study.component))
    missing = tuple(f"{NAMES[what]}: {why}" for what, why in study.missing.items())
    return Table(columns, rows, f"{study.subject}: time to solution", tuple(notes), missing)


def _scale(point: ScalingPoint) -> tuple[str, str, str]:
    batch = optional("{:,}".format, point.global_batch_size)
    return point.entry, f"{point.accelerators:,}", batch


def _mean(spread: Spread | None, digits: int) -> str:
    text = f"{{:,.{digits}f}}".format
    return NONE if spread is None else plus_minus(spread.mean, spread.deviation, text)


def _in_words(component: PrincipalComponent) -> str:
    power = component.exponent
    law = "epochs alone differ" if power is None else f"epochs ~ throughput^{power:.3f}"
    return (
        f"principal component of {component.trainings} training runs in logarithms: {law}, "
        f"{percent(component.explained, 1)} of the variance"
    )


def _predictions(study: ScalingStudy, work: EqualWork) -> Table:
    columns = (
        plural(study.device),
        "batch",
        "samples/s",
        "epochs",
        "training alone, min",
        "minutes",
    )
    rows = tuple(
        (
            f"{p.accelerators:,}", _digits(p.global_batch_size), _estimate(p.throughput),
            _estimate(p.epochs), _estimate(p.compute_minutes), _estimate(p.minutes),
        )
        for p in work.predictions
    )  # fmt: skip
    each = f"{work.local_batch_size:g} samples per {study.device} and step"
    title = f"{study.subject}: predicted at {each}"
    return Table(columns, rows, title, tuple(_laws(work)))


def _laws(work: EqualWork) -> Iterator[str]:
    yield (
        f"from {few(work.entries)}: throughput ~ N^{_power(work.throughput)}, "
        f"epochs ~ N^{_power(work.epochs)}, time to solution ~ N^{_power(work.minutes)}"
    )
    if work.minutes.residual is None:
        yield "two points determine these laws: their uncertainty is not known"
    else:
        yield "in parentheses: the 95 % prediction interval of one more entry"
    if work.superlinear:
        yield (
            "throughput grows faster than the scale, so more differs than the scale: "
            "do not rely on these predictions"
        )


def _power(law: PowerLaw) -> str:
    return plus_minus(law.exponent, law.exponent_margin, "{:.3f}".format)


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return _digits(estimate.value)
    return f"{_digits(estimate.value)} ({_digits(estimate.low)} to {_digits(estimate.high)})"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= value < 1e15 else f"{value:.4g}"
