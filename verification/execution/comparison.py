"""Comparison of the recorded values of an epoch with its re-execution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from aiperf_hpc.graph import KINDS, Dropout, Graph
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.run.history import Evaluation, Trial
from aiperf_hpc.run.records import BestEpochSaved
from aiperf_hpc.run.replica_requests import EpochAgain, EvaluationAgain, ExecutionResult
from aiperf_hpc.trial import Value
from aiperf_hpc.verification.execution.checks import (
    EXACT,
    ROUNDED,
    Check,
    Tolerance,
    Verdict,
    compare,
    evaluation_losses,
    judged,
    relative,
    training_checks,
)

BASELINE_SHARE = 1e-9
"""Relative tolerance of a trivial predictor's quality: ranks add up in different orders."""
MATRIX_LAYERS = tuple(
    kind for kind, layer in KINDS.items() if any(name.endswith("kernel") for name in layer.decayed)
)
"""Kinds of layers with kernels, whose operations PyTorch's counter includes."""
TIME_FACTOR: Final = 2.0
"""Maximum ratio of the re-execution's time to the recorded time, on the same device. Smaller ratios
may be due to other load on the machine."""
TIME_SLACK: Final = 10.0
"""Additional tolerance in seconds, for other load during epochs of a few seconds."""


class ReexecutedTrial(Value):
    """The result of a sampled trial."""

    trial: str
    selected_by: str
    """Reason of its selection: as the best trial, or by the seed."""
    epoch: int | None = None
    verdict: Verdict
    failure: str = ""
    """Reason why it could not be re-executed."""
    checks: tuple[Check, ...] = ()


def not_executed(trial: Trial, selected_by: str, why: str) -> ReexecutedTrial:
    """Return the result of a trial of which nothing could be compared."""
    verdict = Verdict.NOT_EXECUTABLE if trial.best_epoch is None else Verdict.FAILED
    return ReexecutedTrial(trial=trial.id, selected_by=selected_by, verdict=verdict, failure=why)


def compared(
    run: Evidence, trial: Trial, selected_by: str, result: ExecutionResult, again: EpochAgain
) -> ReexecutedTrial:
    """Return the result of a trial with all checks of its best epoch."""
    kept = trial.best_epoch
    if again.failure or kept is None:
        return not_executed(trial, selected_by, again.failure)
    checks = tuple(_checks(run, trial, kept, result, again))
    failed = any(check.verdict is Verdict.FAILED for check in checks)
    return ReexecutedTrial(
        trial=trial.id,
        selected_by=selected_by,
        epoch=kept.epoch,
        verdict=Verdict.FAILED if failed else Verdict.PASSED,
        checks=checks,
    )


def _checks(
    run: Evidence, trial: Trial, kept: BestEpochSaved, result: ExecutionResult, again: EpochAgain
) -> Iterator[Check]:
    tolerance, graph = _tolerance(run, trial, kept, result), run.graph(trial)
    recorded = {e.epoch: e for e in trial.evaluations}
    own, before = recorded[kept.epoch], recorded.get(kept.epoch - 1)
    earlier = run.manifest.earlier
    if again.evaluated is not None:
        yield from _evaluations(own, again.evaluated, f"epoch {kept.epoch}", tolerance)
        if again.recorded is not None:
            yield evaluation_losses(
                f"epoch {kept.epoch}", again.recorded, again.evaluated, tolerance, earlier=earlier
            )
        yield from _baseline(run, trial, again.evaluated)
    if before is not None and again.before is not None:
        yield from _evaluations(before, again.before, f"epoch {before.epoch}", tolerance)
    what = f"epoch {own.epoch} trained again"
    if again.train_loss is not None:
        most = tolerance.trained_loss
        yield relative(f"{what}: loss", own.train_loss, again.train_loss, most)
    yield from training_checks(what, graph, again, tolerance, earlier=earlier)
    if again.after is not None:
        yield _trained_quality(own, again.after, tolerance)
    if again.seconds is not None:
        yield _time(run, trial, own, result, again.seconds)
    yield from _operations(run, trial, again)


def _tolerance(
    run: Evidence, trial: Trial, kept: BestEpochSaved, result: ExecutionResult
) -> Tolerance:
    replica = run.history.replicas[trial.replica]
    machine, started = replica.machine, replica.started
    exact = (
        machine is not None
        and started is not None
        and not machine.accelerators
        and started.engine == result.engine
        and not _other_device(run, trial, result)
        and all(machine.versions.get(name) == v for name, v in result.versions.items())
    )
    precision = trial.started.hyperparameters.precision
    if precision == "fp32" and run.config.engine.tf32:
        precision = "bf16"  # TF32 rounds factors to three bits more.
    tolerance = EXACT if exact else ROUNDED[precision]
    if _drops(run.graph(trial)):
        return tolerance.dropping
    return tolerance if exact or kept.epoch > 1 else tolerance.first


def _drops(graph: Graph) -> bool:
    """Return whether a network has dropout, whose random choices differ in the re-execution."""
    return any(isinstance(node.layer, Dropout) and node.layer.rate > 0.0 for node in graph.nodes)


def _evaluations(
    recorded: Evaluation, again: EvaluationAgain, where: str, tolerance: Tolerance
) -> Iterator[Check]:
    """Yield the checks of the same weights on the same samples."""
    if recorded.quality_metric.name == "accuracy":
        most = tolerance.samples(recorded.samples)
        words = f"{most} samples" if most else "none"
        correct = round(recorded.sums["correct"]), round(again.sums["correct"])
        yield compare(f"{where}: correct of {recorded.samples}", *correct, most, words)
    else:
        qualities = recorded.quality, recorded.quality_metric.quality(again.sums, again.samples)
        name = f"{where}: {recorded.quality_metric.label}"
        yield relative(name, *qualities, tolerance.loss)
    losses = recorded.validation_loss, again.loss
    yield relative(f"{where}: validation loss", *losses, tolerance.loss)


def _baseline(run: Evidence, trial: Trial, again: EvaluationAgain) -> Iterator[Check]:
    """Yield the check of the trivial predictor's quality."""
    recorded = run.history.replicas[trial.replica].baseline
    if recorded is None or again.baseline is None:
        return
    metric = QUALITY_METRICS[recorded.metric]
    what = f"{metric.baseline}: {metric.label}"
    now = metric.quality(again.baseline, again.samples)
    yield relative(what, recorded.quality, now, BASELINE_SHARE)


def _trained_quality(recorded: Evaluation, again: EvaluationAgain, tolerance: Tolerance) -> Check:
    """Compare the quality after the epoch: training twice from one state ends similarly."""
    what = f"epoch {recorded.epoch} trained again: {recorded.quality_metric.label}"
    quality = recorded.quality_metric.quality(again.sums, again.samples)
    if recorded.quality_metric.name != "accuracy":
        return relative(what, recorded.quality, quality, tolerance.trained_loss)
    most = tolerance.trained_deviations * deviation(recorded.quality, recorded.samples)
    return compare(what, recorded.quality, quality, most, f"{most:.4f}")


def _time(
    run: Evidence, trial: Trial, recorded: Evaluation, result: ExecutionResult, again: float
) -> Check:
    what = f"epoch {recorded.epoch} trained again: seconds"
    seconds = recorded.utc - _began(trial, recorded.epoch)
    if why := _other_device(run, trial, result):
        return judged(what, seconds, again, why, None)
    tolerance = f"at most {TIME_FACTOR:g} times, and {TIME_SLACK:g} s"
    return judged(what, seconds, again, tolerance, again <= TIME_FACTOR * seconds + TIME_SLACK)


def _began(trial: Trial, epoch: int) -> float:
    """Return the start of an epoch, UTC seconds."""
    before = [e.utc for e in trial.evaluations if e.epoch == epoch - 1]
    return before[0] if before else trial.training_utc or trial.started_utc


def _other_device(run: Evidence, trial: Trial, result: ExecutionResult) -> str:
    """Return the reason why times cannot be compared; empty if they can."""
    if run.config.replica.ranks > 1:
        return f"one process did the work of {run.config.replica.ranks} ranks"
    machine = run.history.replicas[trial.replica].machine
    if machine is None:
        return "the replica did not record its hardware"
    device = ", ".join(machine.accelerators) or machine.cpu
    if result.device != device:
        return f"recorded on {device}, executed on {result.device}"
    if not machine.accelerators and len(machine.cores) != result.cores:
        return f"recorded on {len(machine.cores)} cores, executed on {result.cores}"
    return ""


def _operations(run: Evidence, trial: Trial, again: EpochAgain) -> Iterator[Check]:
    """Compare operations: PyTorch's count of the layers that it includes plus ours of others."""
    kinds = count(run.graph(trial)).by_kind()
    known = [kinds[kind] for kind in MATRIX_LAYERS if kind in kinds]
    forward = sum(each.forward for each in known)
    training = sum(each.forward + each.backward - each.update for each in known)
    counted, started = again.operations, trial.started
    in_training = None if counted is None else counted.training
    in_forward = None if counted is None else counted.forward
    yield _counted("a training sample", started.train_operations, training, in_training)
    yield _counted("a validation sample", started.validation_operations, forward, in_forward)


def _counted(of: str, recorded: int, ours: int, theirs: int | None) -> Check:
    what = f"operations of {of}"
    if theirs is None:
        return judged(what, recorded, None, "PyTorch is not installed", None)
    return compare(what, recorded, recorded - ours + theirs, 0, "none")


def deviation(share: float, samples: int) -> float:
    """Return the standard deviation of a fraction estimated from so many samples."""
    share = min(max(share, 1.0 / samples), 1.0 - 1.0 / samples)
    return math.sqrt(share * (1.0 - share) / samples)
