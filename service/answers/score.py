"""The score so far, and at every interval."""

from __future__ import annotations

from aiperf_hpc.results.views.run_view import RunView, ScoreStatus
from aiperf_hpc.service.answers.base import Answer


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
