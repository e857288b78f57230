"""Time to solution of one training run and its parts, as defined by MLPerf HPC.

Farrell et al., "MLPerf HPC: A Holistic Benchmark Suite for Scientific Machine Learning on HPC
Systems" (2021), divides the time to solution (equations 1 and 2):

    T_solution = T_staging + T_compute + T_extra,    T_compute = epochs x T_epoch

Staging is inside the timed run until MLPerf HPC v2.0 and may be outside from v3.0 on; the log's
times decide. A training runs from ``run_start`` to ``run_stop``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError, metric, required
from aiperf_hpc.analysis.training_log import Evaluation, TrainingLog, cached_for_log

MINUTE = 60.0
HOUR = 3600.0
HPC_PAPER = "Farrell et al. 2021, MLPerf HPC"
Span = tuple[float, float]


def reached_target(log: TrainingLog) -> bool:
    """Return whether a run reached its target, by its logged status or else its evaluations.

    Raises:
        NotMeasuredError: the log has neither.
    """
    if log.succeeded is not None:
        return log.succeeded
    if log.quality is None or log.quality.target is None:
        raise NotMeasuredError("the log does not state whether the target was reached")
    return reaching_evaluation(log) is not None


@cached_for_log
def reaching_evaluation(log: TrainingLog) -> Evaluation | None:
    """Return the first evaluation that is as good as the target, or None."""
    return None if log.quality is None else log.quality.first_reached(log.evaluations)


def run_seconds(log: TrainingLog) -> float:
    """Return the seconds from run_start to run_stop."""
    run = required(log.run, "the log has no start of the run")
    return required(run.seconds, "the log has no end of the run after its start")


@metric("time to solution", "min", f"{HPC_PAPER}, eq. 1")
def time_to_solution(log: TrainingLog) -> float:
    """Time from the start to the end of a training run that reached its target."""
    if log.timeline is not None:
        raise NotMeasuredError("a search ends when its time is over; see the time to accuracy")
    seconds = run_seconds(log)
    if not reached_target(log):
        raise NotMeasuredError("the training did not reach its target")
    return seconds / MINUTE


@metric("… scaled by convergence", "min", "mlcommons/logging, result_summarizer")
def scaled_time_to_solution(log: TrainingLog) -> float:
    """Time to solution multiplied by the factor of the entry's `scaling.json`.

    From MLPerf HPC v3.0 on, an entry that converged in fewer epochs than the reference is scaled
    by the ratio. [mlcommons/logging, result_summarizer, _get_scaling_factor]
    """
    scale = required(log.convergence_scale, "the entry has no scaling.json")
    return time_to_solution(log) * scale


def staging_spans(log: TrainingLog) -> list[Span]:
    """Return the intervals in which the dataset was copied to the nodes."""
    if not log.staging:
        raise NotMeasuredError("the log has no staging")
    spans = [(each.started, each.ended) for each in log.staging if each.ended is not None]
    if len(spans) < len(log.staging):
        raise NotMeasuredError("the log has a staging without an end")
    return spans


@metric("staging", "min", f"{HPC_PAPER}, eq. 1")
def staging(log: TrainingLog) -> float:
    """Time in which the dataset was copied to the nodes, during the run or before it."""
    return length(staging_spans(log)) / MINUTE


def staging_inside_seconds(log: TrainingLog) -> float:
    """Return the seconds of staging inside the run, or 0 if the log has none."""
    if not log.staging:
        return 0.0
    run = _run_span(log)
    return length(_clipped(staging_spans(log), run))


@metric("… of it outside the run", "min", f"{HPC_PAPER}, eq. 1")
def staging_outside(log: TrainingLog) -> float:
    """Part of the staging time that the time to solution does not contain."""
    outside = length(staging_spans(log)) - staging_inside_seconds(log)
    if outside <= 0:
        raise NotMeasuredError("all of its staging is inside the run")
    return outside / MINUTE


@metric("compute", "min", f"{HPC_PAPER}, eq. 1 and 2")
def compute(log: TrainingLog) -> float:
    """Time of the run spent in epochs or evaluations."""
    return _compute_seconds(log) / MINUTE


@metric("… of it in evaluations", "min", f"{HPC_PAPER}, table of compute")
def evaluation(log: TrainingLog) -> float:
    """Time of the run spent in evaluations.

    It is part of the compute time; the paper's training time excludes it.
    """
    return _known_evaluations(log).covered / MINUTE


@metric("extra", "min", f"{HPC_PAPER}, eq. 1")
def extra(log: TrainingLog) -> float:
    """Time of the run that is neither staging nor compute."""
    return (run_seconds(log) - staging_inside_seconds(log) - _compute_seconds(log)) / MINUTE


@metric("time of an epoch", "s", f"{HPC_PAPER}, eq. 2")
def epoch_time(log: TrainingLog) -> float:
    """Duration of the run without staging, divided by the number of its epochs.

    It includes the small extra time.
    """
    return (run_seconds(log) - staging_inside_seconds(log)) / epochs_run(log)


@metric("staging / epoch time", "", f"{HPC_PAPER}, table of staging")
def staging_in_epochs(log: TrainingLog) -> float:
    """Staging time divided by the time of an epoch.

    It is the number of epochs whose time equals that of staging.
    """
    each = epoch_time(log)
    if each <= 0.0:
        raise NotMeasuredError("no time passed in its epochs by the log's clock")
    return staging(log) * MINUTE / each


@cached_for_log
def counts_samples(log: TrainingLog) -> bool:
    """Return whether the log numbers its epochs by the trained samples, as OpenFold does.

    This holds if every number is a multiple of a global batch size above 1, which a numbering of
    several epochs from 0 or 1 cannot satisfy.
    """
    batch = log.global_batch_size
    numbers = [epoch.number for epoch in log.epochs if epoch.number]
    return (
        bool(numbers) and batch is not None and batch > 1 and all(n % batch == 0 for n in numbers)
    )


@cached_for_log
def epochs_run(log: TrainingLog) -> float:
    """Return the passes over the training data, including a partial last pass."""
    return _epochs(log, None)


@metric("epochs to converge", "", f"{HPC_PAPER}, eq. 2", name="epochs")
@cached_for_log
def epochs_to_converge(log: TrainingLog) -> float:
    """Passes over the training data until the target was reached."""
    if not reached_target(log):
        raise NotMeasuredError("the training did not reach its target")
    return _epochs(log, reaching_evaluation(log))


def convergence_point(log: TrainingLog) -> float:
    """Return the epochs to converge in the unit of the reference convergence points.

    The unit is samples for a benchmark whose log counts samples. [mlcommons/logging, rcp_checker]
    """
    epochs = epochs_to_converge(log)
    if not counts_samples(log) or log.train_samples is None:
        return epochs
    return round(epochs * log.train_samples)


def _epochs(log: TrainingLog, last: Evaluation | None) -> float:
    """Return the passes until an evaluation, or all passes."""
    if not log.epochs:
        raise NotMeasuredError("the log has no epochs")
    until = None if last is None else last.epoch
    epochs = [epoch for epoch in log.epochs if until is None or epoch.number <= until]
    if last is not None and until is None:
        epochs = [epoch for epoch in log.epochs if epoch.started < last.ended]
    if not epochs:
        raise NotMeasuredError("the log has no epoch before the target was reached")
    if not counts_samples(log):
        return sum(epoch.passes for epoch in epochs)
    missing = "the log counts samples and does not state how many an epoch has"
    return max(epoch.number for epoch in epochs) / required(log.train_samples, missing)


@cached_for_log
def throughput_of_all(log: TrainingLog) -> float:
    """Return the training samples per second of all accelerators together.

    [MLPerf HPC, table of compute: samples of all epochs / (time in epochs - time in evaluations)]
    """
    samples = required(log.train_samples, "the log does not state how many samples an epoch has")
    seconds = _compute_seconds(log) - _evaluations(log).covered
    return _rate(samples * epochs_run(log), seconds)


@metric("training, per accelerator", "samples/s", f"{HPC_PAPER}, table of compute")
def train_throughput(log: TrainingLog) -> float:
    """Training samples per second and accelerator, without the time of evaluations."""
    return throughput_of_all(log) / _accelerators(log)


@metric("evaluation, per accelerator", "samples/s", f"{HPC_PAPER}, table of compute")
def eval_throughput(log: TrainingLog) -> float:
    """Evaluated samples per second and accelerator, over all evaluations."""
    missing = "the log does not state how many samples an evaluation has"
    samples = required(log.eval_samples, missing)
    timed = _known_evaluations(log)
    return _rate(samples * timed.number, timed.seconds) / _accelerators(log)


@metric("compute budget", "accelerator-hours", HPC_PAPER)
def compute_budget(log: TrainingLog) -> float:
    """Number of accelerators multiplied by the hours of the run."""
    return _accelerators(log) * run_seconds(log) / HOUR


@metric("initialization", "min", "training_policies, Run results")
def init_time(log: TrainingLog) -> float:
    """Time of initialization, which precedes the run and is not part of it.

    [training_policies, Run results: at most 30 minutes according to the rules' checker]
    """
    seconds = None if log.init is None else log.init.seconds
    return required(seconds, "the log has no complete initialization") / MINUTE


def length(spans: Iterable[Span]) -> float:
    """Return the length of the union of intervals, in O(n log n)."""
    total, reached = 0.0, float("-inf")
    for started, ended in sorted(spans):
        if ended > reached:
            total += ended - max(started, reached)
            reached = ended
    return total


@cached_for_log
def _compute_seconds(log: TrainingLog) -> float:
    if not log.epochs:
        raise NotMeasuredError("the log has no epochs")
    return length([*_epoch_spans(log), *_evaluation_spans(log)])


def _epoch_spans(log: TrainingLog) -> list[Span]:
    """Return the intervals of epochs in the run; one without an end lasts until the next event."""
    run = _run_span(log)
    after = chain((epoch.started for epoch in islice(log.epochs, 1, None)), run[1:])
    return _clipped(
        [
            (started, following if ended is None else ended)
            for (started, ended, _, _), following in zip(log.epochs, after, strict=True)
        ],
        run,
    )


def _evaluation_spans(log: TrainingLog) -> list[Span]:
    spans = [(one.started, one.ended) for one in log.evaluations if one.started is not None]
    return _clipped(spans, _run_span(log))


class _Evaluations(NamedTuple):
    """The evaluations of a run whose start is known."""

    number: int
    seconds: float
    """Sum of the lengths of all evaluations."""
    covered: float
    """Seconds of the run in at least one evaluation."""


@cached_for_log
def _evaluations(log: TrainingLog) -> _Evaluations:
    spans = _evaluation_spans(log)
    seconds = sum(ended - started for started, ended in spans)
    return _Evaluations(len(spans), seconds, length(spans))


def _known_evaluations(log: TrainingLog) -> _Evaluations:
    found = _evaluations(log)
    if not found.number:
        raise NotMeasuredError("the log does not state when an evaluation started")
    return found


def _run_span(log: TrainingLog) -> Span:
    seconds = run_seconds(log)
    assert log.run is not None  # noqa: S101 -- it has seconds
    return log.run.started, log.run.started + seconds


def _clipped(spans: Iterable[Span], within: Span) -> list[Span]:
    """Return the parts of intervals within another interval."""
    start, stop = within
    given = list(spans)
    if given and min(given)[0] >= start and max(map(itemgetter(1), given)) <= stop:
        return given
    clipped = ((max(started, start), min(ended, stop)) for started, ended in given)
    return [(started, ended) for started, ended in clipped if ended > started]


def _accelerators(log: TrainingLog) -> int:
    return required(log.accelerators, "the number of accelerators is unknown")


def _rate(samples: float, seconds: float) -> float:
    if seconds <= 0:
        raise NotMeasuredError("no time passed in it by the log's clock")
    return samples / seconds


SCORES = frozenset({"time_to_solution", "scaled_time_to_solution", "epochs", "time_to_accuracy"})
"""Metrics that require enough training runs to reach the target."""
