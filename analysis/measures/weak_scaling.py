"""Weak scaling of MLPerf HPC: models trained at once, to fill a machine.

[training_policies, hpc_training_rules.adoc, Benchmark results; mlcommons/logging,
result_summarizer, _compute_weak_score_standalone]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.measures.time_to_solution import MINUTE, reached_target
from aiperf_hpc.analysis.training_log import Interval, TrainingLog


def succeeded(log: TrainingLog) -> bool:
    """Return whether a model was trained to its target, in a time that the log tells."""
    try:
        return reached_target(log) and log.run is not None and log.run.ended is not None
    except NotMeasuredError:
        return False


def time_to_train_all(runs: Sequence[Interval]) -> float:
    """Return the minutes from the first start to the last end of several trainings.

    Raises:
        NotMeasuredError: there are none, or one has no end.
    """
    ends = [run.ended for run in runs if run.ended is not None]
    if not runs or len(ends) < len(runs):
        raise NotMeasuredError("no models, or one without an end")
    return (max(ends) - min(run.started for run in runs)) / MINUTE


def models_per_minute(runs: Sequence[Interval]) -> float:
    """Return how many models were trained a minute: models / time to train all."""
    minutes = time_to_train_all(runs)
    if minutes <= 0:
        raise NotMeasuredError("no time passed by the logs' clocks")
    return len(runs) / minutes


def equal_seeds(logs: Sequence[TrainingLog]) -> tuple[str, ...]:
    """Return the seeds that more than one model has: equal seeds are not several models."""
    seeds = Counter(str(log.settings["seed"]) for log in logs if "seed" in log.settings)
    return tuple(sorted(seed for seed, count in seeds.items() if count > 1))
