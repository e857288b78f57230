"""The scaling study: the same benchmark at several scales, as MLPerf HPC compares submissions.

Farrell et al. 2021, "MLPerf HPC: A Holistic Benchmark Suite for Scientific Machine Learning on
HPC Systems" (arXiv:2110.11466), the analysis of its first round: throughput and epochs to converge
against the number of accelerators and the batch size, compared with the ideal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured, measured_each, plus_minus
from aiperf_hpc.analysis.metrics.mlperf_rules import ScoredRuns, scored_runs
from aiperf_hpc.analysis.metrics.scaling import (
    Estimate,
    PowerLaw,
    PrincipalComponent,
    efficiency,
    fit_power_law,
    geometric_mean,
    log_pca,
    speedup,
)
from aiperf_hpc.analysis.metrics.time_to_solution import (
    epochs_to_converge,
    throughput_of_all,
    time_to_solution,
)
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry, TrainingLog, any_of, plural
from aiperf_hpc.formatting import counted, few, percent
from aiperf_hpc.grouping import grouped
from aiperf_hpc.results.table import NONE, Table, optional, reasons
from aiperf_hpc.trial import Value

UNNAMED = "unnamed ones"
LAWS = ("throughput", "epochs", "compute_minutes", "minutes")
"""Quantities fitted by power laws of the scale."""
FURTHER = (2, 4)
"""Multiples of the largest scale to predict for by default."""


class Spread(Value):
    """A metric over the scored training runs of an entry."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one training run."""
    values: tuple[float, ...]


class MeasuredScale(Value):
    """Measurements of one entry."""

    entry: str
    accelerators: int
    global_batch_size: int | None
    throughput: Spread
    """Training samples/s of all accelerators together."""
    epochs: Spread | None
    """Epochs to converge; None if no training reached the target."""
    minutes: Spread | None
    """Time to solution; None if no training reached the target."""

    @property
    def throughput_each(self) -> float:
        """Training samples/s of one accelerator."""
        return self.throughput.mean / self.accelerators

    @property
    def local_batch_size(self) -> float | None:
        """Samples of one accelerator per step."""
        batch = self.global_batch_size
        return None if batch is None else batch / self.accelerators


class ScalingPoint(MeasuredScale):
    """One entry compared with the smallest."""

    speedup: float
    """Speed-up of throughput."""
    ideal_speedup: float
    """Speed-up proportional to the accelerators."""
    efficiency: float
    """``speedup`` over ``ideal_speedup``."""
    time_speedup: float | None
    """Time to solution of the smallest entry over that of this entry."""
    time_efficiency: float | None
    """``time_speedup`` over ``ideal_speedup``."""


class Prediction(Value):
    """Predictions of the laws for a scale."""

    accelerators: int
    global_batch_size: float
    throughput: Estimate
    epochs: Estimate
    compute_minutes: Estimate
    """Time of training alone: epochs × samples per epoch / throughput."""
    minutes: Estimate
    """Time to solution, including staging and evaluation."""


class EqualWork(Value):
    """Power laws over entries with equal work per accelerator in each step.

    With one local batch size the global one is proportional to the accelerators, so throughput
    ~ N^a and epochs ~ N^b have the same abscissa, and training time ~ N^(b - a). Each law is
    fitted to one point per entry, the geometric mean of its training runs; the interval of a
    prediction is for one more entry under otherwise equal conditions.
    """

    local_batch_size: float
    entries: tuple[str, ...]
    throughput: PowerLaw
    epochs: PowerLaw
    compute_minutes: PowerLaw
    minutes: PowerLaw
    predictions: tuple[Prediction, ...]

    @property
    def superlinear(self) -> bool:
        """Whether throughput grows faster than the accelerators, so entries differ beyond scale."""
        return self.throughput.exponent > 1.0


class ScalingStudy(Value):
    """The entries of one benchmark, fewest accelerators first."""

    device: str
    """Device in ``accelerators``: ``accelerator``; ``rank`` for runs without accelerators."""
    subject: str
    """Benchmark, round, division and, if several are compared separately, the accelerator."""
    points: tuple[ScalingPoint, ...]
    epochs_by_batch: PowerLaw | None
    """Epochs to converge against the global batch size, independent of the scale."""
    component: PrincipalComponent | None
    equal_work: tuple[EqualWork, ...]
    missing: dict[str, str]
    """Reasons for a missing ``epochs_by_batch``, ``component`` or ``equal_work``."""
    notes: tuple[str, ...]


class ScalingStudies(Value):
    """All benchmarks with entries at several scales."""

    studies: tuple[ScalingStudy, ...]
    excluded: dict[str, str]
    """Reason why each of the other entries is in no study."""


class _EntryScale(NamedTuple):
    """One entry with its measurements."""

    entry: Entry
    scored: ScoredRuns
    train_samples: int | None
    point: MeasuredScale
    """Scaling point, not yet compared with another."""

    @property
    def accelerators(self) -> int:
        return self.point.accelerators


_LawValues = dict[str, float]
"""The geometric mean of an entry's training runs, by the names of ``LAWS``."""


def scaling_studies(entries: Sequence[Entry], options: Options) -> ScalingStudies:
    """Compare the entries of each benchmark at different scales.

    Only entries of the same benchmark, round and division are compared: rounds differ in dataset
    and network, divisions in permitted changes. Models of accelerators may differ, as in MLPerf
    HPC's own comparison; each model with two scales then also has a separate study.

    Raises:
        NotMeasuredError: no benchmark has entries at two scales.
    """
    found, excluded = measured_each(entries, lambda entry: (_entry_scale(entry), _subject(entry)))
    studies: list[ScalingStudy] = []
    for subject, samples in grouped((subject, sample) for sample, subject in found).items():
        if _several_scales(samples):
            studies += _studies(subject, samples, options)
        else:
            size = counted(samples[0].accelerators, samples[0].entry.system.device)
            reason = f"no other scale of {subject} than {size}"
            excluded |= {sample.entry.name: reason for sample in samples}
    if not studies:
        needed = "scaling needs entries of one benchmark with different numbers of accelerators"
        raise NotMeasuredError("; ".join((f"{needed} or ranks", *reasons(excluded))))
    return ScalingStudies(studies=tuple(studies), excluded=excluded)


def _several_scales(samples: Sequence[_EntryScale]) -> bool:
    return len({sample.accelerators for sample in samples}) > 1


def _subject(entry: Entry) -> str:
    if entry.scenario == "weak":
        raise NotMeasuredError("several concurrent models, which share the machine (weak scaling)")
    return ", ".join(part for part in (entry.benchmark, entry.round, entry.division) if part)


def _entry_scale(entry: Entry) -> _EntryScale:
    scored = scored_runs(entry)
    # If none reached the target, all count, since their throughput is valid.
    logs = [entry.logs[place] for place in scored.indices] or list(entry.logs)
    if not logs:
        raise NotMeasuredError("the entry has no training runs")
    accelerators = _common(log.accelerators for log in logs)
    if not accelerators:
        raise NotMeasuredError("the number of accelerators of all its training runs is unknown")
    point = MeasuredScale(
        entry=entry.name,
        accelerators=accelerators,
        global_batch_size=_common(log.global_batch_size for log in logs),
        throughput=_spread(throughput_of_all, logs),
        # Throughput is comparable even without these.
        epochs=measured(lambda: _spread(epochs_to_converge, logs))[0],
        minutes=measured(lambda: _spread(time_to_solution, logs))[0],
    )
    return _EntryScale(entry, scored, _common(log.train_samples for log in logs), point)


def _common(values: Iterable[int | None]) -> int | None:
    """Return the common value of all training runs, or None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _spread(of: Callable[[TrainingLog], float], logs: Sequence[TrainingLog]) -> Spread:
    """Summarize a metric of training runs.

    Raises:
        NotMeasuredError: ``of`` raises it for any of them, or a value is not positive, for example
            because a clock stopped.
    """
    values = tuple(of(log) for log in logs)
    for log, value in zip(logs, values, strict=True):
        if not value > 0.0:
            raise NotMeasuredError(f"{log.source} gives {value:g}; a positive number is required")
    deviation = stdev(values) if len(values) > 1 else None
    return Spread(mean=fmean(values), deviation=deviation, values=values)


def _studies(subject: str, samples: list[_EntryScale], options: Options) -> Iterator[ScalingStudy]:
    models = grouped((s.entry.system.accelerator or UNNAMED, s) for s in samples)
    notes: tuple[str, ...] = ()
    if len(models) > 1 or UNNAMED in models:
        names = ", ".join(sorted(models))
        notes = (f"the hardware may differ, and efficiency with it: {names}",)
    yield _study(subject, samples, options, notes)
    for model, own in sorted(models.items()):
        if len(models) > 1 and model != UNNAMED and _several_scales(own):
            yield _study(f"{subject}, {model}", own, options, ())


def _study(
    subject: str, samples: Sequence[_EntryScale], options: Options, notes: tuple[str, ...]
) -> ScalingStudy:
    # The fastest of the entries with the fewest accelerators, so that no efficiency is inflated.
    ordered = sorted(
        samples, key=lambda s: (s.accelerators, -s.point.throughput.mean, s.entry.name)
    )
    points = [_compared(sample.point, ordered[0].point) for sample in ordered]
    by_batch, no_law = measured(lambda: _epochs_by_batch(points))
    component, no_component = measured(lambda: _component(points))
    work, no_work = measured(lambda: _equal_work(ordered, options))
    missing = {"epochs_by_batch": no_law, "component": no_component, "equal_work": no_work}
    invalid = (s for s in ordered if not s.scored.valid)
    return ScalingStudy(
        device=any_of(sample.entry.system.device for sample in ordered),
        subject=subject,
        points=tuple(points),
        epochs_by_batch=by_batch,
        component=component,
        equal_work=work or (),
        missing={part: why for part, why in missing.items() if why},
        notes=(*notes, *(f"{s.entry.name}: {', '.join(s.scored.problems)}" for s in invalid)),
    )


def _epochs_by_batch(points: Iterable[ScalingPoint]) -> PowerLaw:
    pairs = [
        (point.global_batch_size, geometric_mean(point.epochs.values))
        for point in points
        if point.global_batch_size and point.epochs
    ]
    if len({batch for batch, _ in pairs}) < 2:
        raise NotMeasuredError("no two batch sizes of training runs that converged")
    return fit_power_law(*zip(*pairs, strict=True))


def _compared(point: MeasuredScale, base: MeasuredScale) -> ScalingPoint:
    """Return a point with its speed-up and efficiency relative to another."""
    faster = speedup(point.throughput.mean, base.throughput.mean)
    sooner = None
    if point.minutes and base.minutes:
        sooner = speedup(base.minutes.mean, point.minutes.mean)
    scales = point.accelerators, base.accelerators
    return ScalingPoint(
        **dict(point),
        speedup=faster,
        ideal_speedup=point.accelerators / base.accelerators,
        efficiency=efficiency(faster, *scales),
        time_speedup=sooner,
        time_efficiency=None if sooner is None else efficiency(sooner, *scales),
    )


def _component(points: Iterable[ScalingPoint]) -> PrincipalComponent:
    pairs = [
        pair
        for point in points
        if point.epochs
        for pair in zip(point.throughput.values, point.epochs.values, strict=True)
    ]
    if not pairs:
        raise NotMeasuredError("no training run converged")
    return log_pca(*zip(*pairs, strict=True))


def _equal_work(samples: Iterable[_EntryScale], options: Options) -> tuple[EqualWork, ...]:
    """Fit power laws for each local batch size that occurs at two scales."""
    series = grouped(
        (local, (sample.point, values))
        for sample in samples
        if (local := sample.point.local_batch_size) and (values := _law_values(sample))
    )
    fitted = tuple(
        _fitted(local, own, options)
        for local, own in sorted(series.items())
        if len({point.accelerators for point, _ in own}) > 1
    )
    if not fitted:
        sizes = ", ".join(f"{local:g}" for local in sorted(series)) or "none is known"
        raise NotMeasuredError(
            f"no two scales that converged have the same batch size per accelerator ({sizes})"
        )
    return fitted


def _law_values(sample: _EntryScale) -> _LawValues | None:
    """Return the quantities for the fit, or None if one is unknown."""
    point = sample.point
    if not (point.epochs and point.minutes and sample.train_samples):
        return None
    spreads = (point.throughput, point.epochs, point.minutes)
    throughput, epochs, minutes = (geometric_mean(spread.values) for spread in spreads)
    compute = epochs * sample.train_samples / throughput / 60.0
    return {
        "throughput": throughput,
        "epochs": epochs,
        "compute_minutes": compute,
        "minutes": minutes,
    }


def _fitted(
    local: float, points: Sequence[tuple[MeasuredScale, _LawValues]], options: Options
) -> EqualWork:
    scales = [point.accelerators for point, _ in points]
    laws = {name: fit_power_law(scales, [values[name] for _, values in points]) for name in LAWS}
    return EqualWork(
        local_batch_size=local,
        entries=tuple(point.entry for point, _ in points),
        **laws,
        predictions=tuple(
            Prediction(
                accelerators=scale,
                global_batch_size=local * scale,
                **{name: law.at(scale) for name, law in laws.items()},
            )
            for scale in options.scales or tuple(times * max(scales) for times in FURTHER)
        ),
    )


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
        plural(study.device), "batch", "samples/s", "epochs", "training alone, min", "minutes",
    )  # fmt: skip
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
