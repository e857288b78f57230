"""Score of a run over time."""

from __future__ import annotations

from aiperf_hpc.ops_counter.score import ScoreStatus, end_of, score_series, score_times
from aiperf_hpc.run.history import RunHistory

CURVE_POINTS = 720
"""Number of points of a plotted score."""


class ScoreSeries:
    """Score of a run over time, recomputed only if there are new records."""

    def __init__(self, history: RunHistory, interval_hours: float) -> None:
        self._history = history
        self._interval = interval_hours
        self._computed: tuple[int, list[ScoreStatus], list[ScoreStatus]] | None = None
        """Both series, with the number of records that they cover."""

    def official(self) -> list[ScoreStatus]:
        """Return the score at every interval and at the end (or the last record so far)."""
        return list(self._both()[1])

    def curve(self) -> list[ScoreStatus]:
        """Return the score at every ``CURVE_POINTS``-th part of the time so far."""
        return list(self._both()[2])

    def points(self, interval_hours: float) -> list[ScoreStatus]:
        """Return the score at every multiple of an interval."""
        history = self._history
        return score_series(history, score_times(history, interval_hours))

    def _both(self) -> tuple[int, list[ScoreStatus], list[ScoreStatus]]:
        """Return the score points and the curve in one pass over all records."""
        history = self._history
        if self._computed is None or self._computed[0] != history.record_count:
            official = score_times(history, self._interval)
            elapsed = 0.0 if history.start_utc is None else end_of(history) - history.start_utc
            fine = score_times(history, elapsed / CURVE_POINTS / 3600.0) if elapsed >= 1.0 else []
            times = sorted({*official, *fine})
            points = dict(zip(times, score_series(history, times), strict=True))
            series, curve = ([points[utc] for utc in each] for each in (official, fine))
            self._computed = history.record_count, series, curve
        return self._computed
