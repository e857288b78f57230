"""Metrics of one training, as defined by benchmarks, and statistics over several trainings."""

from aiperf_hpc.analysis.metric import Metric
from aiperf_hpc.analysis.metrics import time_to_solution
from aiperf_hpc.analysis.metrics.score import ERROR, OPS, REGULATED
from aiperf_hpc.analysis.metrics.time_to_accuracy import TIME_TO_ACCURACY

METRICS: tuple[Metric, ...] = (
    *time_to_solution.METRICS,
    TIME_TO_ACCURACY,
    OPS,
    REGULATED,
    ERROR,
)

__all__ = ["METRICS"]
