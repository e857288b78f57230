"""Where the time of a run's replicas went, so far."""

from __future__ import annotations

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.time_split import total_time
from aiperf_hpc.results.views.trainings import TrainingTime
from aiperf_hpc.service.answers.base import Answer


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
