"""Time to accuracy: how long a training took until an evaluation was as good as wanted.

DAWNBench reads it off at the first evaluation at or over the threshold. The same reading applies
to whatever log has evaluations with their times, and to every threshold.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from aiperf_hpc.analysis.metric import Metric, NotMeasuredError
from aiperf_hpc.analysis.training_log import Quality, TrainingLog


@dataclass(frozen=True, slots=True)
class Progress:
    """The evaluations of a training that were better than all before them."""

    started: float
    """UTC seconds, or whatever clock the log has."""
    seconds: tuple[float, ...]
    """Of each, since the start."""
    qualities: tuple[float, ...]
    """Of each: ascending where higher is better, descending where lower is."""
    higher_is_better: bool
    fault: str | None = None
    """Why nothing is known of the time after the last of them; None where all is known."""

    @property
    def best(self) -> float:
        """The best quality that was reached while time was known."""
        return self.qualities[-1]

    def time_to(self, threshold: float) -> float | None:
        """Return the seconds to the first evaluation as good as a threshold; None for never.

        Raises:
            NotMeasuredError: it was not reached before the log's times went wrong.
        """
        sign = 1.0 if self.higher_is_better else -1.0
        place = bisect_left(self.qualities, sign * threshold, key=lambda q: sign * q)
        if place < len(self.seconds):
            return self.seconds[place]
        if self.fault:
            raise NotMeasuredError(self.fault)
        return None


@cache
def progress_of(log: TrainingLog) -> Progress:
    """Return how the best quality of a training grew with time. O(n) in its evaluations.

    Evaluations without a finite quality are passed over. From where time goes backwards on,
    nothing is taken: what a threshold cost is not known any more.

    Raises:
        NotMeasuredError: the log does not say when it started, or has no evaluation with a
            quality and a time.
    """
    if log.run is None:
        raise NotMeasuredError(f"{log.source}: no start of the run")
    if log.quality is None or not log.evaluations:
        raise NotMeasuredError(f"{log.source}: no evaluations")
    found, fault = _improvements(log, log.run.started, log.quality)
    if not found:
        raise NotMeasuredError(fault or f"{log.source}: no evaluation has a quality")
    seconds, qualities = zip(*found, strict=True)
    return Progress(log.run.started, seconds, qualities, log.quality.higher_is_better, fault)


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
                f"{before - evaluation.ended:.6g} s before the one ahead of it"
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
        NotMeasuredError: no evaluation was; or the log does not tell.
    """
    progress = progress_of(log)
    seconds = progress.time_to(threshold)
    if seconds is None:
        raise NotMeasuredError(f"{threshold:g} was never reached: the best is {progress.best:g}")
    return seconds


def time_to_target(log: TrainingLog) -> float:
    """Return the seconds from the run's start to the first evaluation at the benchmark's target.

    Definition: min(t: q(t) ≥ target), for errors q(t) ≤ target, over the ends of evaluations.
    Unit: s. Source: DAWNBench, entries' README, Training Time.

    Raises:
        NotMeasuredError: the target is not known or was never reached; or the log does not tell.
    """
    if log.quality is None or log.quality.target is None:
        raise NotMeasuredError("the benchmark has no target: name one with --target")
    return time_to_quality(log, log.quality.target)


def time_at_once(starts: Sequence[float], times: Sequence[float | None]) -> float | None:
    """Return one time for trainings that ran at once: from the first start until all got there.

    None where one did not. Source: MLPerf HPC's rules, weak scaling: the time to train all.
    """
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None
    return max(s + t for s, t in zip(starts, known, strict=True)) - min(starts)


TIME_TO_ACCURACY = Metric(
    "time_to_accuracy",
    "time to accuracy",
    "s",
    "Time from the start of the run to the first evaluation that is as good as the target.",
    "DAWNBench, entries' README: the first evaluation at or over the target",
    time_to_target,
)
