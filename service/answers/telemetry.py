"""What the nodes of a run do and draw, now and over time."""

from __future__ import annotations

from dataclasses import dataclass

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import Telemetry, absences, telemetry_series
from aiperf_hpc.service.problem import not_found


@dataclass(frozen=True, slots=True)
class TelemetryQuestion:
    """The question for the telemetry of all nodes, or of one with its course."""

    host: str | None
    points: int

    def __call__(self, view: RunView) -> Telemetry:
        history = view.history
        if self.host is not None and self.host not in history.telemetry:
            raise not_found(f"the run has no telemetry of a node {self.host!r}")
        return Telemetry(
            now=view.telemetry(),
            series=telemetry_series(history, [self.host] if self.host else [], self.points),
            absent=absences(history),
        )
