"""Progress of a run: status, score, headline figures, and time split of its replicas."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.results.views import quantities as table
from aiperf_hpc.results.views.quantities import Format, View
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.results.views.score import ScoreStatus
from aiperf_hpc.results.views.time_split import total_time
from aiperf_hpc.results.views.trainings import TrainingTime
from aiperf_hpc.service.answers.base import Answer


def status(view: RunView) -> RunStatus:
    """Return the current status of the run."""
    return view.status()


class Score(Answer):
    """Score so far."""

    run_id: str
    """Name of the run."""
    final: bool
    """Whether the run has ended; before its end, `score` is the score at the last record."""
    interval_hours: float
    """Interval between points in hours."""
    score: ScoreStatus
    """Score at the end of the run, or at the last record so far."""
    points: tuple[ScoreStatus, ...]
    """Score at every interval, and at the end of the run or the last record so far."""


def score(view: RunView) -> Score:
    """Return the score so far and at every interval."""
    return Score(
        run_id=view.manifest.run_id,
        final=view.history.end_utc is not None,
        interval_hours=view.manifest.config.score.interval_hours,
        score=ScoreStatus.of(view.final()),
        points=tuple(view.score()),
    )


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
    """Name of the phase, such as `train`; `unrecorded` is time without a record so far, which
    includes trials in progress."""
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
    """Completed trainings of a run without a search, with their seconds split into staging, compute
    and extra, as MLPerf HPC defines them."""


def time(view: RunView) -> Time:
    """Return the time split of all replicas until the run's end or its last record."""
    start = view.history.start_utc
    split = total_time(view, 0.0 if start is None else max(0.0, view.until - start))
    return Time(
        elapsed_seconds=split.elapsed_seconds,
        phases=tuple(
            Phase(name=name, seconds=phase.seconds, fraction=phase.fraction)
            for name, phase in split.phases.items()
        ),
        trainings=view.training_times(view.until),
    )
