"""The scaling studies as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.primary.analyze.layout import reasons, wrapped
from aiperf_hpc.primary.analyze.measures.scaling import Estimate, PowerLaw, PrincipalComponent
from aiperf_hpc.primary.analyze.sections.columns import aligned
from aiperf_hpc.primary.analyze.sections.scaling_study import (
    EqualWork,
    ScalingPoint,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.primary.formatting import percent


def lines(studies: ScalingStudies) -> Iterator[str]:
    """Yield the studies as lines of text."""
    for study in studies.studies:
        yield from _study_lines(study)
    for said in reasons(studies.left_out):
        yield from wrapped(f"in no study: {said}")


def _study_lines(study: ScalingStudy) -> Iterator[str]:
    yield f"  {study.subject}, relative to {study.points[0].entry}"
    yield from aligned([THROUGHPUT, *(_throughput_cells(point) for point in study.points)])
    yield from aligned([CONVERGENCE, *(_convergence_cells(point) for point in study.points)])
    for note in study.notes:
        yield from wrapped(note, 4)
    if study.epochs_by_batch:
        yield f"    epochs ~ batch^{_power(study.epochs_by_batch)}"
    if study.component:
        yield from wrapped(_component_words(study.component), 4)
    for work in study.equal_work:
        for line in _work_lines(work):
            yield from wrapped(line, 4)
    for what, reason in study.missing.items():
        yield from wrapped(f"{NAMES[what]}: not measured: {reason}", 4)


THROUGHPUT = ("accelerators", "batch", "samples/s", "each", "speed-up", "ideal", "efficiency", "")
CONVERGENCE = ("accelerators", "batch", "epochs", "min", "speed-up", "ideal", "efficiency", "")
NAMES = {
    "epochs_by_batch": "epochs against batch size",
    "component": "principal component",
    "equal_work": "extrapolation",
}


def _throughput_cells(point: ScalingPoint) -> tuple[str, ...]:
    return (
        *_scale_cells(point),
        _mean(point.throughput, 1),
        f"{point.throughput_each:.2f}",
        f"{point.speedup:.2f}",
        f"{point.ideal_speedup:g}",
        percent(point.efficiency, 1),
        point.entry,
    )


def _convergence_cells(point: ScalingPoint) -> tuple[str, ...]:
    return (
        *_scale_cells(point),
        _mean(point.epochs, 2),
        _mean(point.minutes, 2),
        "–" if point.time_speedup is None else f"{point.time_speedup:.2f}",
        f"{point.ideal_speedup:g}",
        percent(point.time_efficiency, 1),
        point.entry,
    )


def _scale_cells(point: ScalingPoint) -> tuple[str, str]:
    batch = "–" if point.global_batch_size is None else f"{point.global_batch_size:,}"
    return f"{point.accelerators:,}", batch


def _mean(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:,.{digits}f}"
    return f"{spread.mean:,.{digits}f}{deviation}"


def _component_words(component: PrincipalComponent) -> str:
    power = component.exponent
    law = "epochs alone differ" if power is None else f"epochs ~ throughput^{power:.3f}"
    return (
        f"principal component of {component.trainings} trainings in logarithms: {law}, "
        f"{percent(component.explained, 1)} of the variance"
    )


def _work_lines(work: EqualWork) -> Iterator[str]:
    yield (
        f"at {work.local_batch_size:g} samples an accelerator and step, of "
        f"{len(work.entries)} entries: throughput ~ N^{_power(work.throughput)}, "
        f"epochs ~ N^{_power(work.epochs)}, time to solution ~ N^{_power(work.minutes)}"
    )
    for one in work.predictions:
        yield (
            f"{one.accelerators:,} accelerators, batch {_digits(one.global_batch_size)}: "
            f"{_estimate(one.minutes)} min; training alone {_estimate(one.compute_minutes)} min, "
            f"{_estimate(one.epochs)} epochs at {_estimate(one.throughput)} samples/s"
        )
    if work.minutes.residual is None:
        yield "two points determine these laws: their uncertainty is not known"
    else:
        yield "in brackets: where one more entry would lie with a probability of 95 %"
    if work.superlinear:
        yield (
            "throughput outgrows the accelerators, so more differs than the scale: "
            "do not rely on these predictions"
        )


def _power(law: PowerLaw) -> str:
    margin = "" if law.exponent_margin is None else f" ± {law.exponent_margin:.3f}"
    return f"{law.exponent:.3f}{margin}"


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return _digits(estimate.value)
    return f"{_digits(estimate.value)} ({_digits(estimate.low)} to {_digits(estimate.high)})"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= value < 1e15 else f"{value:.4g}"
