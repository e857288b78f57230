"""Study: its file, the systems to measure, their measurements, and each factor's contribution.

Factor analysis adds one optimization to the plain system; a lesion study removes one from the
system with all of them (Coleman et al., DAWNBench, 2017; Analysis of DAWNBench, 2019). If the
two ratios of a factor differ, it depends on the others.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from aiperf_hpc.analysis.metric import NotMeasuredError, plus_minus
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import ConfigError, restated
from aiperf_hpc.formatting import duration, si
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RequestedLauncher
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import yaml_model

MOST_BYTES = 1_000_000
MOST_FACTORS = 50
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")

MetricName = Literal["ops", "throughput", "time_to_quality"]
Settings = dict[str, Any]


class Study(Value):
    """A study's file."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = "study"
    config: str = "quickstart"
    """Preset or YAML file on which every variation is based, relative to the study's file."""
    settings: Settings = {}
    """Additional settings of every variation: ``{training.batch_size: 32}``."""
    nodes: int = Field(1, ge=1)
    hours: float = Field(gt=0.0, le=8760.0)
    """Length of each run in hours."""
    launcher: RequestedLauncher = "auto"
    metric: MetricName = "ops"
    quality: float | None = None
    """Target of ``time_to_quality``, in the workload's quality metric."""
    repeats: int = Field(1, ge=1, le=100)
    factors: Annotated[dict[str, Settings], Field(min_length=1, max_length=MOST_FACTORS)]
    """Settings of each factor by its name."""

    @field_validator("factors")
    @classmethod
    def _folder_names(cls, factors: dict[str, Settings]) -> dict[str, Settings]:
        for name, settings in factors.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"'{name}': a factor's name is letters, digits, '.', '_' and '-'")
            if not settings:
                raise ValueError(f"the factor '{name}' sets nothing")
        return factors

    @property
    def higher_is_better(self) -> bool:
        """Whether the metric is a rate, not a time."""
        return self.metric != "time_to_quality"


class Variation(NamedTuple):
    """One system, with a subset of the factors."""

    name: str
    factors: frozenset[str]

    def assignments(self, study: Study) -> list[str]:
        """Return the changes to the configuration file as ``--set`` arguments."""
        chosen = [study.factors[name] for name in study.factors if name in self.factors]
        return [
            f"{key}={json.dumps(value)}"
            for settings in (study.settings, *chosen)
            for key, value in settings.items()
        ]


def read_study(path: Path) -> Study:
    """Read a study's file.

    Raises:
        ConfigError: the file cannot be read or is not a study; the message states the key.
    """
    with restated(f"cannot read the study {path}", ConfigError):
        study = yaml_model(path, Study, MOST_BYTES)
    if (study.metric == "time_to_quality") != (study.quality is not None):
        raise ConfigError(f"{path}: set 'quality' if and only if 'metric' is 'time_to_quality'")
    sibling = path.parent / study.config
    if sibling.is_file():
        study = study.model_copy(update={"config": str(sibling.resolve())})
    return study


def variations(study: Study) -> tuple[Variation, ...]:
    """Return the systems to measure: no factor, all factors, each alone, all except each."""
    every = frozenset(study.factors)
    found = {frozenset[str](): "none", every: "all"} if len(every) > 1 else {frozenset(): "none"}
    for name in study.factors:
        found.setdefault(frozenset({name}), f"only-{name}")
    for name in study.factors:
        found.setdefault(every - {name}, f"without-{name}")
    return tuple(Variation(name, factors) for factors, name in found.items())


def configuration(study: Study, variation: Variation) -> RunConfig:
    """Return a variation's configuration. Raises ConfigError with the name of the variation."""
    with restated(f"the variation '{variation.name}'", ConfigError):
        return load_config(study.config, variation.assignments(study))


def schedule(study: Study) -> Iterator[tuple[Variation, int]]:
    """Yield every run of a study: all variations once, then all again.

    Slow changes of the machine then affect all variations equally.
    """
    for repeat in range(1, study.repeats + 1):
        for variation in variations(study):
            yield variation, repeat


class SystemResult(Value):
    """One system's measurements."""

    name: str
    factors: tuple[str, ...]
    values: tuple[float, ...]
    """Values of its measured runs, in the unit of the metric."""
    missing: tuple[str, ...]
    """Reasons why its other runs were not measured."""


class Effect(Value):
    """Contribution of a factor. A ratio is None if a required system was not measured."""

    factor: str
    alone: Ratio | None
    """Ratio when added to the system without factors."""
    within: Ratio | None
    """Ratio when added to the system with all other factors, which is lost if it is removed."""


class StudyResult(Value):
    """Result of a study, possibly incomplete."""

    study: Study
    systems: tuple[SystemResult, ...]
    effects: tuple[Effect, ...]
    together: Ratio | None
    """Ratio of all factors together to none."""

    @property
    def complete(self) -> bool:
        """Whether every run of the study was measured."""
        return all(len(system.values) == self.study.repeats for system in self.systems)


def measured(view: RunView, study: Study) -> float:
    """Return a finished run's value of the study's metric.

    Returns:
        ``ops``: operations per second, the score. ``throughput``: training samples per second
        of the run's time, over all replicas. ``time_to_quality``: seconds from the run's start to
        the first complete evaluation at the study's quality or better.

    Raises:
        NotMeasuredError: the run has executed no operations, or never reached the quality.
    """
    if study.metric == "time_to_quality":
        return _time_to_quality(view, study)
    final = view.final()
    if study.metric == "ops":
        value = final.ops
    else:
        value = sum(e.train_samples for e in view.history.executions) / final.elapsed_seconds
    if value <= 0.0:
        raise NotMeasuredError("no sample was executed")
    return value


def _time_to_quality(view: RunView, study: Study) -> float:
    aim, start = study.quality, view.history.start_utc
    assert aim is not None  # noqa: S101 -- the study's file was checked
    assert start is not None  # noqa: S101 -- the run has ended
    for evaluation in view.history.evaluations:
        if view.quality_metric.reaches(evaluation.quality, aim):
            return evaluation.utc - start
    raise NotMeasuredError(f"no evaluation reached {aim:g}")


def make_result(
    study: Study, values: Mapping[str, list[float]], missing: Mapping[str, list[str]]
) -> StudyResult:
    """Compare the systems of a study.

    Args:
        study: the requested study.
        values: measurements by the name of the variation.
        missing: reasons for missing measurements by the name of the variation.
    """
    by_factors = {v.factors: tuple(values.get(v.name, ())) for v in variations(study)}
    every = frozenset(study.factors)

    def ratio(fewer: frozenset[str], more: frozenset[str]) -> Ratio | None:
        before, after = by_factors[fewer], by_factors[more]
        if not before or not after:
            return None
        return improvement(before, after, higher_is_better=study.higher_is_better)

    return StudyResult(
        study=study,
        systems=tuple(
            SystemResult(
                name=v.name,
                factors=tuple(name for name in study.factors if name in v.factors),
                values=by_factors[v.factors],
                missing=tuple(missing.get(v.name, ())),
            )
            for v in variations(study)
        ),
        effects=tuple(
            Effect(
                factor=name,
                alone=ratio(frozenset(), frozenset({name})),
                within=ratio(every - {name}, every),
            )
            for name in study.factors
        ),
        together=ratio(frozenset(), every),
    )


def lines(result: StudyResult) -> Iterator[str]:
    """Yield a result as lines of text."""
    study = result.study
    better = "more" if study.higher_is_better else "less"
    yield f"{study.name}: {_named(study)}, {better} is better; {study.repeats} of each"
    width = max(len(system.name) for system in result.systems)
    for system in result.systems:
        yield f"  {system.name:<{width}}  {_values(system, study)}".rstrip()
        yield from (f"  {'':<{width}}  not measured: {why}" for why in system.missing)
    yield f"  {'factor':<{width}}  {'alone':>14}  {'within all':>14}"
    for effect in result.effects:
        alone, within = _times(effect.alone), _times(effect.within)
        yield f"  {effect.factor:<{width}}  {alone:>14}  {within:>14}"
    yield f"  {'all together':<{width}}  {_times(result.together):>14}"


def _named(study: Study) -> str:
    if study.metric == "time_to_quality":
        return f"time to quality {study.quality:g}"
    return "OPS" if study.metric == "ops" else "training samples per second"


def _values(system: SystemResult, study: Study) -> str:
    if not system.values:
        return "" if system.missing else "not run yet"
    mean = statistics.fmean(system.values)
    spread = statistics.stdev(system.values) / mean if len(system.values) > 1 else None
    return _formatted(mean, study) + ("" if spread is None else f" ± {100 * spread:.1f}%")


def _formatted(value: float, study: Study) -> str:
    if study.metric == "time_to_quality":
        return duration(value)
    return si(value, "OPS" if study.metric == "ops" else "samples/s")


def _times(ratio: Ratio | None) -> str:
    return (
        "–" if ratio is None else f"{plus_minus(ratio.value, ratio.deviation, '{:.2f}'.format)} ×"
    )


class Ratio(Value):
    """Improvement of one system over another; above 1 is better."""

    value: float
    deviation: float | None
    """Standard error of ``value``; None if a system was measured only once."""


def improvement(
    without: Sequence[float], having: Sequence[float], *, higher_is_better: bool
) -> Ratio:
    """Return the factor by which the second system is better than the first.

    It is the ratio of the means. Its standard error is first-order for independent means: the
    relative standard errors of both means, added in quadrature.

    Args:
        without: measurements of the system without the factor, all positive.
        having: measurements of the system with the factor, all positive.
        higher_is_better: whether the metric is a rate, not a time.
    """
    before, after = statistics.fmean(without), statistics.fmean(having)
    value = after / before if higher_is_better else before / after
    if min(len(without), len(having)) < 2:
        return Ratio(value=value, deviation=None)
    errors = (
        statistics.stdev(v) / math.sqrt(len(v)) / statistics.fmean(v) for v in (without, having)
    )
    return Ratio(value=value, deviation=value * math.hypot(*errors))
