"""How far a run is: its status, score and headline figures, and where its replicas' time went."""

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
    """Return what the run does now."""
    return view.status()


class Score(Answer):
    """The score so far."""

    run_id: str
    """The run's own name."""
    final: bool
    """Whether the run has ended; while it lasts, `score` is that at the last record."""
    interval_hours: float
    """The hours between two points."""
    score: ScoreStatus
    """The score at the end, or at the last record so far."""
    points: tuple[ScoreStatus, ...]
    """The score at every interval, and at the end or the last record so far."""


def score(view: RunView) -> Score:
    """Return the score so far, and at every interval."""
    return Score(
        run_id=view.manifest.run_id,
        final=view.history.end_utc is not None,
        interval_hours=view.manifest.config.score.interval_hours,
        score=ScoreStatus.of(view.final()),
        points=tuple(view.score()),
    )


class QuantityAnswer(Answer):
    """A headline figure, whose values are the `figures` of runs."""

    name: str
    """Its key in `figures`."""
    title: str
    """Its title."""
    unit: str
    """Its unit; empty for a pure number."""
    format: Format
    """How it is written: with an SI prefix, as a percentage, a duration, a count, or a number."""
    help: str
    """What it is."""
    better: Literal["higher", "lower"] | None
    """Whether higher or lower values are better; null if neither is."""
    page: str | None
    """Its heading on the live page; null if that does not show it."""


class Quantities(Answer):
    """The headline figures of runs."""

    quantities: tuple[QuantityAnswer, ...]
    """Each headline figure, in the order in which it is shown."""


def quantities() -> Quantities:
    """Return the headline figures of runs."""
    return Quantities(
        quantities=tuple(
            QuantityAnswer(**QuantityAnswer.fields_from(each), page=each.heading(View.PAGE))
            for each in table.QUANTITIES
        )
    )


class Phase(Answer):
    """What time was spent on."""

    name: str
    """Such as `train`; `unrecorded` is what no record accounts for yet, trials in flight among
    it."""
    seconds: float
    """Seconds of all replicas together."""
    share: float
    """Of their elapsed time, from 0 to 1."""


class Time(Answer):
    """Where the time of all replicas went, so far."""

    elapsed_seconds: float
    """The elapsed time of all replicas together."""
    phases: tuple[Phase, ...]
    """Every phase; together they are the elapsed time."""
    trainings: tuple[TrainingTime, ...] = ()
    """Of a run that trains one network as it is: each training that came to its end, and its
    seconds as staging, compute and extra, as MLPerf HPC divides them."""


def time(view: RunView) -> Time:
    """Return where the time of all replicas went, until the run's end or its last record."""
    start = view.history.start_utc
    split = total_time(view, 0.0 if start is None else max(0.0, view.until - start))
    return Time(
        elapsed_seconds=split.elapsed_seconds,
        phases=tuple(
            Phase(name=name, seconds=phase.seconds, share=phase.share)
            for name, phase in split.phases.items()
        ),
        trainings=view.training_times(view.until),
    )
