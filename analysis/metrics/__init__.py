"""Metrics of one training run, as defined by benchmarks, and statistics over several."""

from aiperf_hpc.analysis.metric import Metric
from aiperf_hpc.analysis.metrics import score, time_to_accuracy, time_to_solution

METRICS: tuple[Metric, ...] = tuple(
    each
    for module in (time_to_solution, time_to_accuracy, score)
    for each in vars(module).values()
    if isinstance(each, Metric)
)
"""All metrics, in the order of their definitions."""
