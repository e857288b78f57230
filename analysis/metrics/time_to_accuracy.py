"""Time to accuracy: time of a training run until an evaluation reached a threshold.

DAWNBench uses the first evaluation at or over the threshold. The same definition applies to every
threshold and to any log with timed evaluations.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, metric, required
from aiperf_hpc.analysis.training_log import Quality, TrainingLog, cached_for_log

NO_TARGET = "the benchmark has no target: name one with --target"
SOURCE = "DAWNBench, entries' README: the first evaluation at or over the target"


class Progress(NamedTuple):
    """The evaluations of a training run that improved on all previous ones."""

    started: float
    """Start in UTC seconds, or by another clock of the log."""
    seconds: tuple[float, ...]
    """Time of each evaluation since the start."""
    qualities: tuple[float, ...]
    """Quality of each evaluation: ascending if higher is better, descending if lower is better."""
    higher_is_better: bool
    fault: str | None = None
    """Reason why times after the last evaluation are unknown; None if all are known."""

    @property
    def best(self) -> float:
        """The best quality reached at a known time."""
        return self.qualities[-1]

    def time_to(self, threshold: float) -> float | None:
        """Return the seconds to the first evaluation as good as a threshold, or None.

        Raises:
            NotMeasuredError: it was not reached before the log's times became invalid.
        """
        sign = 1.0 if self.higher_is_better else -1.0
        place = bisect_left(self.qualities, sign * threshold, key=lambda q: sign * q)
        if place < len(self.seconds):
            return self.seconds[place]
        if self.fault:
            raise NotMeasuredError(self.fault)
        return None


@cached_for_log
def progress_of(log: TrainingLog) -> Progress:
    """Return the best quality of a training run over time, in O(n) of its evaluations.

    Evaluations without a finite quality are skipped. Evaluations after the first backward step in
    time are ignored, because the times of thresholds are then unknown.

    Raises:
        NotMeasuredError: the log does not state its start, or has no evaluation with a quality and
            a time.
    """
    run = required(log.run, f"{log.source}: no start of the run")
    if log.quality is None or not log.evaluations:
        raise NotMeasuredError(f"{log.source}: no evaluations")
    found, fault = _improvements(log, run.started, log.quality)
    if not found:
        raise NotMeasuredError(fault or f"{log.source}: no evaluation has a quality")
    seconds, qualities = zip(*found, strict=True)
    return Progress(run.started, seconds, qualities, log.quality.higher_is_better, fault)


def _improvements(
    log: TrainingLog, started: float, quality: Quality
) -> tuple[list[tuple[float, float]], str | None]:
    sign = 1.0 if quality.higher_is_better else -1.0
    found: list[tuple[float, float]] = []
    before, best = started, -math.inf
    for number, evaluation in enumerate(log.evaluations, 1):
        if not evaluation.ended >= before:
            return found, (
                f"{log.source}: time goes backwards at evaluation {number}, "
                f"{before - evaluation.ended:.6g} s before the previous one"
            )
        before = evaluation.ended
        value = evaluation.quality
        if value is not None and sign * value > best:
            best = sign * value
            found.append((evaluation.ended - started, value))
    return found, None


def time_to_quality(log: TrainingLog, threshold: float) -> float:
    """Return the seconds from the run's start to the first evaluation as good as a threshold.

    Raises:
        NotMeasuredError: no evaluation was as good, or the log does not state it.
    """
    progress = progress_of(log)
    missing = f"{threshold:g} was never reached: the best is {progress.best:g}"
    return required(progress.time_to(threshold), missing)


@metric("time to accuracy", "s", SOURCE, name="time_to_accuracy")
def time_to_target(log: TrainingLog) -> float:
    """Time from the start of the run to the first evaluation that is as good as the target.

    min(t: q(t) ≥ target), for errors q(t) ≤ target, over the ends of evaluations.

    Raises:
        NotMeasuredError: the target is unknown or was never reached, or the log does not state it.
    """
    target = None if log.quality is None else log.quality.target
    return time_to_quality(log, required(target, NO_TARGET))


def time_at_once(starts: Sequence[float], times: Sequence[float | None]) -> float | None:
    """Return the time from the first start until all concurrent training runs reached the target.

    Return None if one did not. Source: MLPerf HPC's rules, weak scaling: the time to train all.
    """
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None
    return max(s + t for s, t in zip(starts, known, strict=True)) - min(starts)
