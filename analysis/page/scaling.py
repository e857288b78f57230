"""The drawings of the scaling studies."""

from __future__ import annotations

from aiperf_hpc.analysis.sections.scaling_study import ScalingPoint, ScalingStudies, Spread
from aiperf_hpc.analysis.training_log import plural
from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.scaling_study import Scale, scaling_study_plot


def scaling_plots(studies: ScalingStudies) -> list[Plot]:
    """Draw the four panels of each study."""
    return [
        scaling_study_plot(
            study.subject,
            [_scale(point) for point in study.points],
            f"study{place}",
            plural(study.device),
        )
        for place, study in enumerate(studies.studies)
    ]


def _scale(point: ScalingPoint) -> Scale:
    minutes, minutes_deviation = _parts(point.minutes)
    epochs, epochs_deviation = _parts(point.epochs)
    return Scale(
        accelerators=point.accelerators,
        minutes=minutes,
        minutes_deviation=minutes_deviation,
        epochs=epochs,
        epochs_deviation=epochs_deviation,
        throughput=point.throughput.mean,
        throughput_deviation=point.throughput.deviation,
        efficiency=point.efficiency,
        time_efficiency=point.time_efficiency,
    )


def _parts(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.mean, spread.deviation)
