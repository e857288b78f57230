"""Progress of a run: status, score, headline figures, and time split of its replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from aiperf_hpc.ops_counter.score import CURVE_POINTS, ScoreStatus
from aiperf_hpc.results.views import quantities as table
from aiperf_hpc.results.views.quantities import Format, View
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.time_split import UNRECORDED, total_time
from aiperf_hpc.results.views.trials import TrainingTime
from aiperf_hpc.service.answers.base import Answer, Question

IN_PROGRESS: Final = "in progress"
"""Name of the time of trials that have not ended."""


def status(view: RunView) -> RunStatus:
    """Return the current status of the run."""
    return view.status()


def summary(view: RunView) -> RunStatus:
    """Return the current status of the run without its replicas and nodes."""
    found = view.status()
    telemetry = found.telemetry and found.telemetry.model_copy(update={"nodes": ()})
    return found.model_copy(update={"replicas": (), "telemetry": telemetry})


class BestPoint(Answer):
    """An evaluation that improved the run's best quality."""

    elapsed_seconds: float
    """Seconds from the run's start to the end of the evaluation."""
    trial: str
    """Trial that was evaluated."""
    quality: float
    """Quality in the run's metric."""
    error: float | None
    """Fraction of validation samples with a wrong prediction; null if the metric has none."""


class Score(Answer):
    """Score so far."""

    run_id: str
    """Name of the run."""
    final: bool
    """Whether the run has ended; before its end, `score` is the score at the last record."""
    metric: str
    """Name of the quality metric."""
    interval_hours: float
    """Interval between points, in hours."""
    score: ScoreStatus
    """Score at the end of the run, or at the last record so far."""
    points: tuple[ScoreStatus, ...]
    """Score at every interval, and at the end of the run or the last record so far."""
    curve: tuple[ScoreStatus, ...] = ()
    """Evenly spaced points: at least the requested number, less than twice as many."""
    best: tuple[BestPoint, ...] = ()
    """Evaluations that improved the best quality; only with ``curve``."""


class ScoreQuestion(Question):
    """Return the score so far and at every interval."""

    curve: int = Field(0, ge=0, le=CURVE_POINTS)
    """Minimum number of further points for a plot."""

    def __call__(self, view: RunView) -> Score:
        fine = view.series.curve() if self.curve else []
        step = max(1, len(fine) // max(1, self.curve))
        return Score(
            run_id=view.manifest.run_id,
            final=view.history.end_utc is not None,
            metric=view.quality_metric.name,
            interval_hours=view.manifest.config.score.interval_hours,
            score=view.final(),
            points=tuple(view.series.official()),
            curve=tuple(fine[::-step][::-1]),
            best=tuple(_improvements(view)) if self.curve else (),
        )


def _improvements(view: RunView) -> Iterator[BestPoint]:
    best, start = None, view.history.start_utc
    for each in view.history.evaluations:
        if start is not None and each.utc <= view.until and each.beats(best):
            best = each
            yield BestPoint(**BestPoint.fields_from(each), elapsed_seconds=each.utc - start)


class QuantityAnswer(Answer):
    """Description of a headline figure; its values are in the `figures` of runs."""

    name: str
    """Key of the figure in `figures`."""
    title: str
    """Title of the figure."""
    unit: str
    """Unit of the figure; empty for a dimensionless number."""
    format: Format
    """Format of the values: with an SI prefix, or as a percentage, a duration, a count or a
    number."""
    help: str
    """Description of the figure."""
    better: Literal["higher", "lower"] | None
    """Whether higher or lower values are better; null if neither."""
    page: str | None
    """Heading on the live page; null if the page does not show the figure."""


class Quantities(Answer):
    """Headline figures of runs."""

    quantities: tuple[QuantityAnswer, ...]
    """Headline figures in display order."""


def quantities() -> Quantities:
    """Return the headline figures of runs."""
    return Quantities(
        quantities=tuple(
            QuantityAnswer(**QuantityAnswer.fields_from(each), page=each.heading(View.PAGE))
            for each in table.QUANTITIES
        )
    )


class Phase(Answer):
    """Time spent in one phase."""

    name: str
    """Name of the phase, such as `train`; `in progress` is the time of current trials, which report
    their phases when they end, and `unrecorded` is time without a record."""
    seconds: float
    """Total seconds over all replicas."""
    fraction: float
    """Fraction of the elapsed time of all replicas, from 0 to 1."""


class Time(Answer):
    """Time split of all replicas so far."""

    elapsed_seconds: float
    """Total elapsed seconds over all replicas."""
    phases: tuple[Phase, ...]
    """All phases; they sum to the elapsed time."""
    trainings: tuple[TrainingTime, ...] = ()
    """Completed training runs of a run without a search, with their seconds split into staging,
    compute and extra, as MLPerf HPC defines them."""


def time(view: RunView) -> Time:
    """Return the time split of all replicas until the run's end or its last record."""
    start = view.history.start_utc
    split = total_time(view, 0.0 if start is None else max(0.0, view.until - start))
    elapsed = split.elapsed_seconds
    seconds = {name: phase.seconds for name, phase in split.phases.items()}
    unrecorded = seconds.pop(UNRECORDED)
    seconds[IN_PROGRESS] = min(unrecorded, _in_progress(view))
    seconds[UNRECORDED] = unrecorded - seconds[IN_PROGRESS]
    return Time(
        elapsed_seconds=elapsed,
        phases=tuple(
            Phase(name=name, seconds=each, fraction=each / elapsed if elapsed else 0.0)
            for name, each in seconds.items()
        ),
        trainings=view.training_times(view.until),
    )


def _in_progress(view: RunView) -> float:
    """Return the seconds of the current trials up to their replica's last record, at most one per
    replica at a time."""
    if view.history.end_utc is not None:
        return 0.0
    began: dict[str, float] = {}
    for trial in view.history.trials.values():
        if not trial.state.ended:
            began[trial.replica] = min(trial.started_utc, began.get(trial.replica, math.inf))
    replicas = view.history.replicas
    return sum(
        max(0.0, min(view.until, replicas[name].last_utc) - utc) for name, utc in began.items()
    )
