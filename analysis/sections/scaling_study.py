"""The scaling study: the same benchmark at several scales, as MLPerf HPC compares submissions.

Farrell et al. 2021, "MLPerf HPC: A Holistic Benchmark Suite for Scientific Machine Learning on
HPC Systems" (arXiv:2110.11466), the analysis of its first round: throughput and epochs to converge
against the number of accelerators and the batch size, beside the ideal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, measured, measured_each
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
    throughput_of_all,
)
from aiperf_hpc.analysis.metrics.time_to_solution import epochs_to_converge, time_to_solution
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry, TrainingLog, any_of
from aiperf_hpc.results.table import reasons
from aiperf_hpc.results.views.resources import counted
from aiperf_hpc.trial import Value

UNNAMED = "unnamed ones"
LAWS = ("throughput", "epochs", "compute_minutes", "minutes")
"""The quantities to which power laws of the scale are fitted."""
FURTHER = (2, 4)
"""How many times the largest scale is predicted for, where no other scales are asked for."""


class Spread(Value):
    """A measure over the trainings of an entry that count."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None of one training."""
    values: tuple[float, ...]


class ScalingPoint(Value):
    """One entry, and how it compares with the smallest."""

    entry: str
    accelerators: int
    global_batch_size: int | None
    throughput: Spread
    """Training samples/s of all accelerators together."""
    epochs: Spread | None
    """To converge; None where no training reached the target."""
    minutes: Spread | None
    """Time to solution; None likewise."""
    speedup: float
    """Of throughput."""
    ideal_speedup: float
    """In proportion to the accelerators."""
    efficiency: float
    """``speedup`` over ``ideal_speedup``."""
    time_speedup: float | None
    """The smallest entry's time to solution over this one's."""
    time_efficiency: float | None
    """``time_speedup`` over ``ideal_speedup``."""

    @property
    def throughput_each(self) -> float:
        """Training samples/s of one accelerator."""
        return self.throughput.mean / self.accelerators

    @property
    def local_batch_size(self) -> float | None:
        """Samples of one accelerator in a step."""
        batch = self.global_batch_size
        return None if batch is None else batch / self.accelerators


class Prediction(Value):
    """What the laws say of a scale."""

    accelerators: int
    global_batch_size: float
    throughput: Estimate
    epochs: Estimate
    compute_minutes: Estimate
    """Epochs × samples of an epoch / throughput: training alone."""
    minutes: Estimate
    """Time to solution, with staging, evaluation and all else."""


class EqualWork(Value):
    """Power laws over entries whose accelerators have the same work in each step.

    With one local batch size the global one is in proportion to the accelerators, so throughput
    ~ N^a and epochs ~ N^b have the same abscissa, and training time ~ N^(b - a). Each law is
    fitted to one point an entry, the geometric mean of its trainings; the interval of a
    prediction is that of one more entry, if what the entries share goes on.
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
        """Whether throughput outgrows the accelerators: more differs than the scale."""
        return self.throughput.exponent > 1.0


class ScalingStudy(Value):
    """The entries of one benchmark, fewest accelerators first."""

    device: str
    """What ``accelerators`` counts: ``accelerator``; ``rank`` for runs without accelerators."""
    subject: str
    """Benchmark, round, division and, where several are compared apart, the accelerator."""
    points: tuple[ScalingPoint, ...]
    epochs_by_batch: PowerLaw | None
    """Epochs to converge against the global batch size, whatever the scale."""
    component: PrincipalComponent | None
    equal_work: tuple[EqualWork, ...]
    missing: dict[str, str]
    """Why there is no ``epochs_by_batch``, ``component`` or ``equal_work``."""
    notes: tuple[str, ...]


class ScalingStudies(Value):
    """All benchmarks that were run at several scales."""

    studies: tuple[ScalingStudy, ...]
    left_out: dict[str, str]
    """Why each of the other entries is in no study."""


class _EntryScale(NamedTuple):
    """What one entry brings."""

    entry: Entry
    kept: ScoredRuns
    """Which of its trainings count."""
    accelerators: int
    batch: int | None
    train_samples: int | None
    throughput: Spread
    epochs: Spread | None
    minutes: Spread | None


class _LawPoint(NamedTuple):
    """One entry as a point of the laws: geometric means of its trainings."""

    entry: str
    accelerators: int
    local_batch_size: float
    throughput: float
    epochs: float
    compute_minutes: float
    minutes: float


def scaling_studies(entries: Sequence[Entry], options: Options) -> ScalingStudies:
    """Compare the entries of each benchmark that were run at different scales.

    Only entries of one benchmark, round and division are compared: rounds differ in dataset and
    network, divisions in what may be changed. Models of accelerators may differ, as in MLPerf
    HPC's own comparison; then each model with two scales has a study of its own besides.

    Raises:
        NotMeasuredError: no benchmark was run at two scales.
    """
    found, left_out = measured_each(
        entries, lambda entry: (_entry_scale(entry), _subject(entry)), lambda entry: entry.name
    )
    groups: dict[str, list[_EntryScale]] = defaultdict(list)
    for sample, subject in found:
        groups[subject].append(sample)
    studies: list[ScalingStudy] = []
    for subject, samples in groups.items():
        if len(_scales(samples)) < 2:
            reason = f"no other scale of {subject} than {_size(samples[0])}"
            left_out |= {sample.entry.name: reason for sample in samples}
        else:
            studies += _studies(subject, samples, options)
    if not studies:
        raise NotMeasuredError(_why_none(left_out))
    return ScalingStudies(studies=tuple(studies), left_out=left_out)


def _size(sample: _EntryScale) -> str:
    return counted(sample.accelerators, sample.entry.system.device)


def _why_none(left_out: dict[str, str]) -> str:
    needed = (
        "scaling needs entries of one benchmark with different numbers of accelerators or ranks"
    )
    found = "; ".join(reasons(left_out))
    return f"{needed}; {found}" if found else needed


def _subject(entry: Entry) -> str:
    if entry.scenario == "weak":
        raise NotMeasuredError("several models at once, which share the machine (weak scaling)")
    return ", ".join(part for part in (entry.benchmark, entry.round, entry.division) if part)


def _entry_scale(entry: Entry) -> _EntryScale:
    kept = scored_runs(entry)
    # Where none reached the target all count, since their throughput is as good as any.
    logs = [entry.logs[place] for place in kept.indices] or list(entry.logs)
    if not logs:
        raise NotMeasuredError("the entry has no trainings")
    accelerators = _common(log.accelerators for log in logs)
    if not accelerators:
        raise NotMeasuredError("nothing says how many accelerators all its trainings had")
    return _EntryScale(
        entry=entry,
        kept=kept,
        accelerators=accelerators,
        batch=_common(log.global_batch_size for log in logs),
        train_samples=_common(log.train_samples for log in logs),
        throughput=_spread(throughput_of_all, logs),
        # Without these, throughput is comparable all the same.
        epochs=measured(lambda: _spread(epochs_to_converge, logs))[0],
        minutes=measured(lambda: _spread(time_to_solution, logs))[0],
    )


def _invalid(samples: Iterable[_EntryScale]) -> Iterator[str]:
    """Yield which entries have too many failed runs for a result by MLPerf's rules."""
    for sample in samples:
        if not sample.kept.valid:
            yield f"{sample.entry.name}: {', '.join(sample.kept.problems)}"


def _common(values: Iterable[int | None]) -> int | None:
    """Return the value that all trainings have, or None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _spread(of: Callable[[TrainingLog], float], logs: Sequence[TrainingLog]) -> Spread:
    """Summarise a measure of trainings.

    Raises:
        NotMeasuredError: as ``of`` does for any of them, or a value is not positive, as where a
            clock stood still.
    """
    values = tuple(of(log) for log in logs)
    for log, value in zip(logs, values, strict=True):
        if not value > 0.0:
            raise NotMeasuredError(f"{log.source} gives {value:g}, where a positive number belongs")
    deviation = stdev(values) if len(values) > 1 else None
    return Spread(mean=fmean(values), deviation=deviation, values=values)


def _scales(samples: Iterable[_EntryScale]) -> list[int]:
    return sorted({sample.accelerators for sample in samples})


def _studies(subject: str, samples: list[_EntryScale], options: Options) -> Iterator[ScalingStudy]:
    models: dict[str, list[_EntryScale]] = defaultdict(list)
    for sample in samples:
        models[sample.entry.system.accelerator or UNNAMED].append(sample)
    notes: tuple[str, ...] = ()
    if len(models) > 1 or UNNAMED in models:
        names = ", ".join(sorted(models))
        notes = (f"the hardware may differ, and efficiency with it: {names}",)
    yield _study(subject, samples, options, notes)
    for model, own in sorted(models.items()):
        if len(models) > 1 and model != UNNAMED and len(_scales(own)) > 1:
            yield _study(f"{subject}, {model}", own, options, ())


def _study(
    subject: str, samples: Sequence[_EntryScale], options: Options, notes: tuple[str, ...]
) -> ScalingStudy:
    # Of several with the fewest accelerators the fastest, so that no efficiency is flattered.
    ordered = sorted(samples, key=lambda s: (s.accelerators, -s.throughput.mean, s.entry.name))
    by_batch, no_law = measured(lambda: _epochs_by_batch(ordered))
    component, no_component = measured(lambda: _component(ordered))
    work, no_work = measured(lambda: _equal_work(ordered, options))
    missing = {"epochs_by_batch": no_law, "component": no_component, "equal_work": no_work}
    return ScalingStudy(
        device=any_of(sample.entry.system.device for sample in ordered),
        subject=subject,
        points=tuple(_point(sample, ordered[0]) for sample in ordered),
        epochs_by_batch=by_batch,
        component=component,
        equal_work=work or (),
        missing={part: why for part, why in missing.items() if why},
        notes=(*notes, *_invalid(ordered)),
    )


def _epochs_by_batch(samples: Iterable[_EntryScale]) -> PowerLaw:
    pairs = [
        (sample.batch, geometric_mean(sample.epochs.values))
        for sample in samples
        if sample.batch and sample.epochs
    ]
    if len({batch for batch, _ in pairs}) < 2:
        raise NotMeasuredError("no two batch sizes of trainings that converged")
    return fit_power_law([batch for batch, _ in pairs], [epochs for _, epochs in pairs])


def _point(sample: _EntryScale, base: _EntryScale) -> ScalingPoint:
    faster = speedup(sample.throughput.mean, base.throughput.mean)
    sooner = None
    if sample.minutes and base.minutes:
        sooner = speedup(base.minutes.mean, sample.minutes.mean)
    scales = sample.accelerators, base.accelerators
    return ScalingPoint(
        entry=sample.entry.name,
        accelerators=sample.accelerators,
        global_batch_size=sample.batch,
        throughput=sample.throughput,
        epochs=sample.epochs,
        minutes=sample.minutes,
        speedup=faster,
        ideal_speedup=sample.accelerators / base.accelerators,
        efficiency=efficiency(faster, *scales),
        time_speedup=sooner,
        time_efficiency=None if sooner is None else efficiency(sooner, *scales),
    )


def _component(samples: Iterable[_EntryScale]) -> PrincipalComponent:
    pairs = [
        pair
        for sample in samples
        if sample.epochs
        for pair in zip(sample.throughput.values, sample.epochs.values, strict=True)
    ]
    if not pairs:
        raise NotMeasuredError("no training converged")
    throughputs, epochs = zip(*pairs, strict=True)
    return log_pca(throughputs, epochs)


def _equal_work(samples: Iterable[_EntryScale], options: Options) -> tuple[EqualWork, ...]:
    """Fit each local batch size that two scales share."""
    series: dict[float, list[_LawPoint]] = defaultdict(list)
    for sample in samples:
        if converged := _converged(sample):
            series[converged.local_batch_size].append(converged)
    fitted = tuple(
        _fitted(local, own, options)
        for local, own in sorted(series.items())
        if len({one.accelerators for one in own}) > 1
    )
    if not fitted:
        sizes = ", ".join(f"{local:g}" for local in sorted(series)) or "none is known"
        raise NotMeasuredError(
            f"no two scales that converged have one batch size an accelerator ({sizes})"
        )
    return fitted


def _converged(sample: _EntryScale) -> _LawPoint | None:
    """Return what laws are fitted to; None where a part of it is not known."""
    if not (sample.epochs and sample.minutes and sample.batch and sample.train_samples):
        return None
    throughput = geometric_mean(sample.throughput.values)
    epochs = geometric_mean(sample.epochs.values)
    return _LawPoint(
        entry=sample.entry.name,
        accelerators=sample.accelerators,
        local_batch_size=sample.batch / sample.accelerators,
        throughput=throughput,
        epochs=epochs,
        compute_minutes=epochs * sample.train_samples / throughput / 60.0,
        minutes=geometric_mean(sample.minutes.values),
    )


def _fitted(local: float, points: Sequence[_LawPoint], options: Options) -> EqualWork:
    scales = [point.accelerators for point in points]
    laws = {
        name: fit_power_law(scales, [getattr(point, name) for point in points]) for name in LAWS
    }
    return EqualWork(
        local_batch_size=local,
        entries=tuple(point.entry for point in points),
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
