"""The epoch of a trial's best evaluation, as two checkpoints: it can be executed again from them.

The one is what the epoch began with, the optimizer's state included; the other is the weights that
were evaluated at its end. Both are copies in the host's memory until the trial is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aiperf_hpc.config import KeepConfig, RunConfig
from aiperf_hpc.errors import StorageError
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.checkpoint import serialized_training
from aiperf_hpc.replica.training.trial import BestEpoch, TrainingState
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.records import BestEpochDropped, BestEpochKept, KeptFile


class BestEpochSoFar:
    """Follows a trial, epoch by epoch."""

    def __init__(self, beginning: TrainingState) -> None:
        self._before = beginning
        self.best: BestEpoch | None = None

    def after(self, now: TrainingState) -> None:
        """Take the state at the end of another epoch; the first of equals is the best."""
        if self.best is None or now.course.values[-1] > self.best.value:
            self.best = BestEpoch(self._before, replace(now, optimizer_state={}))
        self._before = now


def keeps_best_epochs(config: RunConfig) -> bool:
    """Return whether there is anything to keep: what is simulated cannot be executed again."""
    return config.keep.trials != "none" and config.engine.name != "simulated"


@dataclass(frozen=True, slots=True)
class Worth:
    """What a trial's best epoch is worth and takes."""

    value: float
    """The objective value of its evaluation."""
    bytes: int


def worth_keeping(found: Mapping[str, Worth], settings: KeepConfig) -> list[str]:
    """Return which trials' best epochs are kept, best first; the first of equals is the best.

    The best one's always; others in the order of their worth while there is room.
    """
    best, *others = sorted(found, key=lambda trial: -found[trial].value)
    kept, left = [best], settings.gib * 2**30 - found[best].bytes
    for trial in others if settings.trials == "all" else ():
        left -= found[trial].bytes
        if left < 0:
            break
        kept.append(trial)
    return kept


class BestEpochStore:
    """The best epochs of a replica's trials, in files."""

    def __init__(self, context: ReplicaContext) -> None:
        self._settings = context.config.keep
        self._context = context
        self._kept: dict[str, Worth] = {}

    def recall(self, trial: Trial) -> None:
        """Learn what an earlier life of this replica has kept of a trial."""
        kept = trial.best_epoch
        if kept is not None and trial.best is not None:
            size = kept.began.bytes + kept.evaluated.bytes
            self._kept[trial.id] = Worth(trial.best.objective_value, size)

    def keep(self, trial: str, best: BestEpoch | None) -> str:
        """Store a trial's best epoch, if it is worth keeping; return why it could not be stored.

        What is no longer worth keeping is deleted first, to free its space.
        """
        if best is None:
            return ""
        found = self._kept | {trial: Worth(best.value, best.bytes)}
        chosen = worth_keeping(found, self._settings)
        if trial not in chosen:
            return ""
        for other in self._kept.keys() - set(chosen):
            self._drop(other)
        try:
            self._store(trial, best)
        except StorageError as error:
            return f"its best epoch is not kept: {error}"
        self._kept[trial] = found[trial]
        return ""

    def _store(self, trial: str, best: BestEpoch) -> None:
        began = self._written(
            self._context.paths.epoch_began(self._context.replica, trial), best.began
        )
        path = self._context.paths.epoch_evaluated(self._context.replica, trial)
        evaluated, epoch = self._written(path, best.evaluated), best.evaluated.course.epochs
        self._context.journal.append(
            BestEpochKept(trial=trial, epoch=epoch, began=began, evaluated=evaluated)
        )

    def _written(self, path: Path, state: TrainingState) -> KeptFile:
        """Write a checkpoint; return the size and digest of what was to be written."""
        content = serialized_training(state)
        self._context.retry(lambda: write_whole(path, content, self._context.sync), str(path))
        return KeptFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def _drop(self, trial: str) -> None:
        del self._kept[trial]
        # First the record, then the files: a reader that believes the record is never wrong.
        self._context.journal.append(BestEpochDropped(trial=trial))
        for place in (self._context.paths.epoch_began, self._context.paths.epoch_evaluated):
            self._context.delete(place(self._context.replica, trial))
