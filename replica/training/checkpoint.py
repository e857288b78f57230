"""Checkpoints of the running trial and of its best epoch.

A replica's next attempt resumes the running trial from its checkpoint. The best epoch, the one
with the best evaluation, can be re-executed from two checkpoints: the state at its beginning,
including the optimizer's, and the weights evaluated at its end. Both stay in the host's memory
until the trial ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.config import RetentionConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights import weight_file
from aiperf_hpc.replica.context import ReplicaContext, Stopwatch
from aiperf_hpc.replica.engines.base import STEP, Network
from aiperf_hpc.replica.training.trial import BestEpoch, PlannedTrial, TrainingState, TrialProgress
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.records import BestEpochDeleted, BestEpochSaved, SavedFile
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.untrusted.bounds import first_fault

HOLD_SECONDS = 10.0
"""Minimum time between two in-memory snapshots of the running trial."""


def save_training(path: Path, state: TrainingState) -> None:
    """Write a checkpoint atomically."""
    write_whole(path, serialized_training(state))


def serialized_training(state: TrainingState) -> bytes:
    """Return the content of a checkpoint file.

    Weights and optimizer state share one namespace; their keys never collide.
    """
    tensors = {**state.weights, **state.optimizer_state}
    texts = {"graph": state.graph.to_json(), "course": state.progress.model_dump_json()}
    return weight_file.serialized(tensors, texts)


def load_training(path: Path, retry: Retry = no_retry) -> TrainingState:
    """Read a checkpoint, and verify its checksums.

    Args:
        path: checkpoint file.
        retry: retries failed reads; a BackoffRetry waits while the storage is unavailable.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    texts, tensors = weight_file.load_checked(path, ("graph", "course"), retry)
    try:
        progress = TrialProgress.model_validate_json(texts["course"])
    except ValidationError as error:
        raise weight_file.damaged(path, f"its progress: {first_fault(error)}") from None
    try:
        named = weight_file.expected_shapes(Graph.from_json(texts["graph"])).keys()
    except GraphError as error:
        raise weight_file.damaged(path, error) from None
    weights = {name: array for name, array in tensors.items() if name in named}
    state = {key: array for key, array in tensors.items() if key not in named}
    graph = weight_file.stored_graph(path, texts["graph"], weights)
    return TrainingState(progress, graph, weights, state)


@dataclass(eq=False)
class EpochEnd:
    """The state of a network at the end of an epoch, copied when it is first requested.

    The network must not be trained between the end of the epoch and the first request.
    """

    network: Network
    watch: Stopwatch
    graph: Graph
    progress: TrialProgress

    @cached_property
    def weights(self) -> weight_file.Weights:
        with self.watch.during(TimePhase.STORE):
            return self.network.weights()

    @cached_property
    def state(self) -> TrainingState:
        weights = self.weights
        with self.watch.during(TimePhase.STORE):
            optimizer_state = self.network.optimizer_state()
        return TrainingState(self.progress, self.graph, weights, optimizer_state)


class TrialCheckpoints:
    """Checkpoints of the running trial: a file at long intervals, in-memory snapshots between.

    The snapshot is written when a scheduler preempts the node, so that the trial loses seconds
    instead of the minutes since the last file. Another thread writes the file during training;
    the next call raises its errors.
    """

    def __init__(self, context: ReplicaContext, trial: PlannedTrial, background: Executor) -> None:
        self._background = background
        self._writing: Future[None] | None = None
        who = context.who
        self._path = context.paths.under_way(who.replica, who.incarnation)
        self._every = context.config.training.checkpoint_interval_seconds
        self._clock = context.clock
        self._context = context
        self._saved = self._held_at = self._clock.monotonic()
        self._held = trial.beginning if trial.optimizer_state is not None else None
        """The snapshot in memory, if it is newer than the file."""

    def after_epoch(self, end: EpochEnd) -> None:
        """Start to write the file or take a snapshot, if one is due.

        The file is not due while the previous one is being written.
        """
        now = self._clock.monotonic()
        if now - self._saved >= self._every and self._written():
            self._writing = self._background.submit(self._store, end.state)
            self._held = None
            self._saved = now
        elif now - max(self._saved, self._held_at) >= HOLD_SECONDS:
            self._held = end.state
            self._held_at = now

    def store_held(self) -> None:
        """Write the snapshot in memory, if it is newer than the file."""
        self.finish()
        if self._held is not None:
            with self._context.stopwatch.during(TimePhase.STORE):
                self._store(self._held)

    def finish(self) -> None:
        """Wait for a write in progress."""
        if self._writing is not None:
            with self._context.stopwatch.during(TimePhase.STORE):
                self._writing.result()
            self._writing = None

    def _written(self) -> bool:
        """Return whether no write is in progress."""
        if self._writing is not None and not self._writing.done():
            return False
        self.finish()
        return True

    def _store(self, state: TrainingState) -> None:
        """Write the state that the replica's next attempt needs to resume the trial."""
        self._context.retry(lambda: save_training(self._path, state), str(self._path))


class BestEpochSoFar:
    """Keeps the state of a trial's best epoch."""

    def __init__(self, beginning: TrainingState) -> None:
        self._before = beginning
        self.best: BestEpoch | None = None

    def after(self, now: TrainingState) -> None:
        """Add the state at the end of an epoch; among equals, the first is the best."""
        if self.best is None or now.progress.values[-1] > self.best.value:
            steps = {key: now.optimizer_state[key] for key in now.optimizer_state.keys() & {STEP}}
            self.best = BestEpoch(self._before, replace(now, optimizer_state=steps))
        self._before = now


@dataclass(frozen=True, slots=True)
class Worth:
    """The priority of storing a trial's best epoch, and the size of its files."""

    value: float
    """Objective value of the evaluation."""
    bytes: int


def worth_keeping(found: Mapping[str, Worth], settings: RetentionConfig) -> list[str]:
    """Return the trials whose best epochs are kept, best first; among equals, the first.

    The best is always kept, others in order of their value while there is room.
    """
    best, *others = sorted(found, key=lambda trial: -found[trial].value)
    kept, left = [best], settings.max_gib * 2**30 - found[best].bytes
    for trial in others if settings.trials == "all" else ():
        left -= found[trial].bytes
        if left < 0:
            break
        kept.append(trial)
    return kept


class BestEpochStore:
    """Files of the best epochs of a replica's trials."""

    def __init__(self, context: ReplicaContext) -> None:
        self._settings = context.config.retention
        self._context = context
        self._kept: dict[str, Worth] = {}

    def recall(self, trial: Trial) -> None:
        """Register the best epoch of a trial that a previous attempt stored."""
        kept = trial.best_epoch
        if kept is not None and trial.best is not None:
            size = kept.start_checkpoint.bytes + kept.end_checkpoint.bytes
            self._kept[trial.id] = Worth(trial.best.objective_value, size)

    def keep(self, trial: str, best: BestEpoch | None) -> None:
        """Store a trial's best epoch if there is one and it ranks high enough.

        Epochs that no longer rank high enough are deleted first, to free their space.

        Raises:
            StorageError: it cannot be written.
        """
        if best is None:
            return
        found = self._kept | {trial: Worth(best.value, best.bytes)}
        chosen = worth_keeping(found, self._settings)
        if trial not in chosen:
            return
        for other in self._kept.keys() - set(chosen):
            self._drop(other)
        self._store(trial, best)
        self._kept[trial] = found[trial]

    def _store(self, trial: str, best: BestEpoch) -> None:
        began = self._written(
            self._context.paths.epoch_began(self._context.replica, trial), best.began
        )
        path = self._context.paths.epoch_evaluated(self._context.replica, trial)
        evaluated, epoch = self._written(path, best.evaluated), best.evaluated.progress.epochs
        self._context.journal.append(
            BestEpochSaved(
                trial=trial, epoch=epoch, start_checkpoint=began, end_checkpoint=evaluated
            )
        )

    def _written(self, path: Path, state: TrainingState) -> SavedFile:
        """Write a checkpoint; return the size and digest of its content."""
        content = serialized_training(state)
        self._context.retry(lambda: write_whole(path, content, self._context.sync), str(path))
        return SavedFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def _drop(self, trial: str) -> None:
        del self._kept[trial]
        # Record first, delete second: a recorded file always exists.
        self._context.journal.append(BestEpochDeleted(trial=trial))
        for place in (self._context.paths.epoch_began, self._context.paths.epoch_evaluated):
            self._context.delete(place(self._context.replica, trial))
