"""Recorded values of an epoch, compared with those of executing it again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from aiperf_hpc.graph import KINDS, Dropout, Graph
from aiperf_hpc.objective import MEASURES
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.run.history import Evaluation, Trial
from aiperf_hpc.run.records import BestEpochKept
from aiperf_hpc.run.replica_requests import EpochAgain, EvaluationAgain, ExecutionResult
from aiperf_hpc.trial import Value

BASELINE_SHARE = 1e-9
"""By which a trivial predictor's quality may differ: ranks add numbers up in another order."""
MATRIX_LAYERS = tuple(
    kind for kind, layer in KINDS.items() if any(name.endswith("kernel") for name in layer.decayed)
)
"""The kinds of layers that have kernels, whose operations PyTorch's counter knows."""
TIME_FACTOR: Final = 2.0
"""An epoch that takes more than so many times what was recorded, on the same device, was not
executed in the time that was recorded; less tells a machine that was busy with something else."""
TIME_SLACK: Final = 10.0
"""Seconds besides: of epochs of a few seconds, what else a machine does is most."""
LEAST_LOSS: Final = 0.1
"""Losses below it may differ by the share of it that they may differ by: near zero a share of the
loss itself is nothing."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ."""

    flips: float
    """Share of the samples whose class may be another: those that two classes come close for."""
    loss: float
    """Of the validation loss of the same weights, relative."""
    trained_loss: float
    """Of the mean loss of a training epoch, relative."""
    trained_deviations: float
    """Of the quality after a training epoch, in deviations of what so many samples can tell."""

    @property
    def parted(self) -> Tolerance:
        """That of a training which parts from the recorded one at its first step."""
        return replace(self, **_PARTED)

    def samples(self, samples: int) -> int:
        """Return how many of so many samples may be of another class."""
        return math.ceil(self.flips * samples)


EXACT: Final = Tolerance(flips=0.0, loss=1e-6, trained_loss=0.02, trained_deviations=2.0)
"""On the CPU, by the same framework, processor and number of threads: the same code adds up in the
same order, so that evaluations are equal to the last digits that a record has. A recorded training
loss is a mean over stretches of some seconds, in which a last, smaller batch weighs by its samples
or as a step."""
_PARTED: Final = {"trained_loss": 0.10, "trained_deviations": 5.0}
"""Of two trainings of one epoch from one state, which part by rounding, or by what a dropout draws,
at the first step and go on to, most of all in a trial's first epochs."""
ROUNDED: Final = {
    "fp32": Tolerance(flips=0.0002, loss=1e-4, **_PARTED),
    "bf16": Tolerance(flips=0.002, loss=1e-2, **_PARTED),
    "fp16": Tolerance(flips=0.002, loss=1e-2, **_PARTED),
}
"""Elsewhere, by precision: another order of additions, and on accelerators also in the same place,
where libraries choose their kernels by what is fastest at the moment."""


class Verdict(StrEnum):
    """What came of a check, or of all of a trial's."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_COMPARED = "not compared"
    NOT_EXECUTABLE = "not re-executable"


class Check(Value):
    """A value that was recorded, and what it is now."""

    what: str
    recorded: float | int
    again: float | int | None
    tolerance: str
    """What may differ, in words; why nothing is compared, where that is so."""
    verdict: Verdict


class TrialAgain(Value):
    """A trial that was drawn."""

    trial: str
    drawn: str
    """Why it: as the best, or by the seed."""
    epoch: int | None
    verdict: Verdict
    failure: str
    """Why it could not be executed again."""
    checks: tuple[Check, ...]


def not_executed(trial: str, drawn: str, why: str, verdict: Verdict) -> TrialAgain:
    """Return what is said of a trial of which nothing could be compared."""
    return TrialAgain(trial=trial, drawn=drawn, epoch=None, verdict=verdict, failure=why, checks=())


def compared(
    run: Evidence, trial: Trial, drawn: str, result: ExecutionResult, again: EpochAgain
) -> TrialAgain:
    """Return a trial with all checks of its best epoch."""
    kept = trial.best_epoch
    if again.failure or kept is None:
        return not_executed(trial.id, drawn, again.failure, Verdict.FAILED)
    checks = tuple(_checks(run, trial, kept, result, again))
    failed = any(check.verdict is Verdict.FAILED for check in checks)
    return TrialAgain(
        trial=trial.id,
        drawn=drawn,
        epoch=kept.epoch,
        verdict=Verdict.FAILED if failed else Verdict.PASSED,
        failure="",
        checks=checks,
    )


def _checks(
    run: Evidence, trial: Trial, kept: BestEpochKept, result: ExecutionResult, again: EpochAgain
) -> Iterator[Check]:
    tolerance = _tolerance(run, trial, result)
    recorded = {e.epoch: e for e in trial.evaluations}
    own, before = recorded[kept.epoch], recorded.get(kept.epoch - 1)
    if again.evaluated is not None:
        yield from _evaluations(own, again.evaluated, f"epoch {kept.epoch}", tolerance)
        yield from _baseline(run, trial, again.evaluated)
    if before is not None and again.before is not None:
        yield from _evaluations(before, again.before, f"epoch {before.epoch}", tolerance)
    if again.train_loss is not None:
        yield _training_loss(own, again.train_loss, tolerance)
    if again.after is not None:
        yield _trained_quality(own, again.after, tolerance)
    if again.seconds is not None:
        yield _time(run, trial, own, result, again.seconds)
    yield from _operations(run, trial, again)


def _tolerance(run: Evidence, trial: Trial, result: ExecutionResult) -> Tolerance:
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
    if not exact:
        return ROUNDED[trial.started.hyperparameters.precision]
    return EXACT.parted if _drops(run.graph(trial)) else EXACT


def _drops(graph: Graph) -> bool:
    """Return whether a network draws in training, which it does anew when it is executed again."""
    return any(isinstance(node.layer, Dropout) and node.layer.rate > 0.0 for node in graph.nodes)


def _evaluations(
    recorded: Evaluation, again: EvaluationAgain, where: str, tolerance: Tolerance
) -> Iterator[Check]:
    """Yield the checks of the same weights on the same samples."""
    if recorded.measure.name == "accuracy":
        most = tolerance.samples(recorded.samples)
        words = f"{most} samples" if most else "none"
        correct = round(recorded.sums["correct"]), round(again.sums["correct"])
        yield _check(f"{where}: correct of {recorded.samples}", *correct, most, words)
    else:
        qualities = recorded.quality, recorded.measure.quality(again.sums, again.samples)
        name = f"{where}: {recorded.measure.label}"
        yield _relative(name, *qualities, tolerance.loss)
    losses = recorded.validation_loss, again.loss
    yield _relative(f"{where}: validation loss", *losses, tolerance.loss)


def _baseline(run: Evidence, trial: Trial, again: EvaluationAgain) -> Iterator[Check]:
    """Yield the check of what was said of a predictor that has learnt nothing."""
    recorded = run.history.replicas[trial.replica].baseline
    if recorded is None or again.baseline is None:
        return
    measure = MEASURES[recorded.measure]
    what = f"{measure.baseline}: {measure.label}"
    now = measure.quality(again.baseline, again.samples)
    yield _relative(what, recorded.quality, now, BASELINE_SHARE)


def _training_loss(recorded: Evaluation, again: float, tolerance: Tolerance) -> Check:
    what = f"epoch {recorded.epoch} trained again: loss"
    return _relative(what, recorded.train_loss, again, tolerance.trained_loss)


def _trained_quality(recorded: Evaluation, again: EvaluationAgain, tolerance: Tolerance) -> Check:
    """Compare what the epoch led to: two trainings from one state part, and end alike."""
    what = f"epoch {recorded.epoch} trained again: {recorded.measure.label}"
    quality = recorded.measure.quality(again.sums, again.samples)
    if recorded.measure.name != "accuracy":
        return _relative(what, recorded.quality, quality, tolerance.trained_loss)
    most = tolerance.trained_deviations * deviation(recorded.quality, recorded.samples)
    return _check(what, recorded.quality, quality, most, f"{most:.4f}")


def _time(
    run: Evidence, trial: Trial, recorded: Evaluation, result: ExecutionResult, again: float
) -> Check:
    what = f"epoch {recorded.epoch} trained again: seconds"
    seconds = recorded.utc - _began(trial, recorded.epoch)
    if why := _other_device(run, trial, result):
        return _judged(what, seconds, again, why, None)
    tolerance = f"at most {TIME_FACTOR:g} times, and {TIME_SLACK:g} s"
    return _judged(what, seconds, again, tolerance, again <= TIME_FACTOR * seconds + TIME_SLACK)


def _began(trial: Trial, epoch: int) -> float:
    """Return when an epoch began, UTC seconds."""
    before = [e.utc for e in trial.evaluations if e.epoch == epoch - 1]
    return before[0] if before else trial.training_utc or trial.started_utc


def _other_device(run: Evidence, trial: Trial, result: ExecutionResult) -> str:
    """Return why times cannot be compared; empty where they can."""
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
    """Yield what PyTorch counts of the layers that it knows, with our count of the others."""
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
        return _judged(what, recorded, None, "PyTorch is not installed", None)
    return _check(what, recorded, recorded - ours + theirs, 0, "none")


def _relative(what: str, recorded: float, again: float, share: float) -> Check:
    most = share * max(abs(recorded), LEAST_LOSS)
    return _check(what, recorded, again, most, f"{100.0 * share:g}%")


def _check(what: str, recorded: float, again: float, most: float, tolerance: str) -> Check:
    right = math.isfinite(again) and abs(again - recorded) <= most
    return _judged(what, recorded, again, tolerance, right)


def _judged(
    what: str, recorded: float, again: float | None, tolerance: str, right: bool | None
) -> Check:
    """Return a check; of what is not compared, it is not known whether it is right."""
    verdict = Verdict.NOT_COMPARED
    if right is not None:
        verdict = Verdict.PASSED if right else Verdict.FAILED
    return Check(what=what, recorded=recorded, again=again, tolerance=tolerance, verdict=verdict)


def deviation(share: float, samples: int) -> float:
    """Return the standard deviation of a share that so many samples show."""
    share = min(max(share, 1.0 / samples), 1.0 - 1.0 / samples)
    return math.sqrt(share * (1.0 - share) / samples)
