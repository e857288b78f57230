"""What the closed division asks of each trial besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence, told
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.ops_counter.divisions.settings import CLOSED
from aiperf_hpc.run.records import TrialStarted
from aiperf_hpc.trial import Hyperparameters, RoundPhase, ScheduleSettings

BATCH: Final[int] = CLOSED["training.batch_size"]
BATCHES: Final = range(256, 448 + 1, 64)
KERNELS: Final = (None, 3, 5, 7)
EXACT: Final = {
    name: CLOSED[f"training.{name}"]
    for name in (
        "optimizer", "learning_rate", "momentum", "weight_decay", "label_smoothing",
        "max_gradient_norm", "weight_decay_of", "weight_decay_in",
    )
}  # fmt: skip
SCHEDULE: Final = ScheduleSettings()
"""The closed division's: linear to zero, by steps."""
WARMUP_EPOCHS: Final[list[int]] = CLOSED["rounds.warmup_epochs"]
MOST_EPOCHS: Final[int] = CLOSED["training.max_epochs"]


def hyperparameters(run: RunEvidence) -> RuleCheck:
    """Each trial was trained as the closed division has it, whatever was configured."""
    number = len(run.history.trials)
    limit = f"batch {BATCH}; HPO {BATCHES.start} to {BATCHES[-1]}, kernels 3, 5, 7"
    return RuleCheck.of("hyperparameters", f"{number:,} trials", limit, told(_others(run)))


def _others(run: RunEvidence) -> Iterator[str]:
    for trial in run.trials:
        if wrong := next(_wrong(trial.started), None):
            yield f"{trial.id}: {wrong}"


def _wrong(started: TrialStarted) -> Iterator[str]:
    """Yield what differs in a trial."""
    used = started.hyperparameters
    if started.phase is RoundPhase.HPO:
        if used.batch_size not in BATCHES:
            yield f"batch size {used.batch_size}"
        if used.kernel_size not in KERNELS:
            yield f"kernel size {used.kernel_size}"
    elif used.batch_size != BATCH or used.kernel_size is not None:
        yield f"batch size {used.batch_size}, kernel size {used.kernel_size or 'none'}"
    yield from _inexact(used)
    rounds = dict(enumerate(WARMUP_EPOCHS, 1))
    if started.epoch_limit != rounds.get(started.round, MOST_EPOCHS):
        yield f"{started.epoch_limit} epochs in round {started.round}"


def _inexact(used: Hyperparameters) -> Iterator[str]:
    for name, value in EXACT.items():
        if getattr(used, name) != value:
            yield f"{name} {getattr(used, name)}"
    if used.schedule is not SCHEDULE and used.schedule != SCHEDULE:
        yield f"schedule {used.schedule.name}"
