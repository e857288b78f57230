"""The scores of Ren et al. 2021, "AIPerf: Automated Machine Learning as an AI-HPC Benchmark"."""

from __future__ import annotations

import math

from aiperf_hpc.analysis.metric import NotMeasuredError, metric, required
from aiperf_hpc.analysis.training_log import TrainingLog
from aiperf_hpc.objective import ACCURACY

SOURCE = "Ren et al. 2021"


@metric("operations per second", "OPS", SOURCE, name="ops", si=True)
def operations_per_second(log: TrainingLog) -> float:
    """Counted operations of all executed samples, divided by the elapsed time.

    Operations are counted analytically; for a search, over all replicas and the whole runtime.

    Raises:
        NotMeasuredError: the log has no count of operations, or no end.
    """
    operations = required(log.operations, "the log does not state the executed operations")
    seconds = None if log.run is None else log.run.seconds
    if seconds is None or seconds <= 0.0:
        raise NotMeasuredError("the log has no end")
    return operations / seconds


@metric("regulated score", "OPS", SOURCE, si=True)
def regulated(log: TrainingLog) -> float:
    """Operations per second multiplied by -ln(error).

    The error is at least that of one misclassified validation sample, so the score is finite.

    Raises:
        NotMeasuredError: as for ``error`` and ``operations_per_second``, or the size of the
            validation set is unknown.
    """
    samples = required(log.eval_samples, "the size of the validation set is not known")
    least = max(error(log), 1.0 / samples)
    return (0.0 - math.log(least)) * operations_per_second(log)


@metric("error", "", SOURCE)
def error(log: TrainingLog) -> float:
    """1 minus the best validation accuracy.

    Raises:
        NotMeasuredError: the quality is not AIPerf's accuracy, or there is no evaluation.
    """
    if log.quality is None or log.quality.name != ACCURACY.name:
        raise NotMeasuredError("the quality is not a fraction of the samples")
    values = [e.quality for e in log.evaluations if e.quality is not None]
    if not values:
        raise NotMeasuredError("no evaluation was completed")
    return 1.0 - max(values)
