"""The checkpoint of a training under way, from which a replica's next incarnation resumes it."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checked_file import (
    Tell,
    damaged,
    ignore,
    load_checked,
    serialized,
)
from aiperf_hpc.morphism.weights.checkpoint import Weights, expected_shapes, stored_graph
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.engines.base import Network
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training.trial import PlannedTrial, TrainingState, TrialProgress
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.untrusted.bounds import first_fault

HOLD_SECONDS = 10.0
"""The least time between two snapshots in memory of a trial under way."""


def save_training(path: Path, state: TrainingState) -> None:
    """Write a checkpoint, whole or not at all."""
    write_whole(path, serialized_training(state))


def serialized_training(state: TrainingState) -> bytes:
    """Return the content of a checkpoint's file.

    Weights and optimizer state have the same place: no key of a state is a weight's name.
    """
    tensors = {**state.weights, **state.optimizer_state}
    texts = {"graph": state.graph.to_json(), "course": state.course.model_dump_json()}
    return serialized(tensors, texts)


def load_training(path: Path, retry: Retry = no_retry, tell: Tell = ignore) -> TrainingState:
    """Read a checkpoint, and verify its checksums.

    Args:
        path: its file.
        retry: how to read; a BackoffRetry waits while the storage is away.
        tell: told when the file is from before there were checksums.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    texts, tensors = load_checked(path, ("graph", "course"), retry, tell)
    try:
        course = TrialProgress.model_validate_json(texts["course"])
    except ValidationError as error:
        raise damaged(path, f"its course: {first_fault(error)}") from None
    try:
        named = expected_shapes(Graph.from_json(texts["graph"])).keys()
    except GraphError as error:
        raise damaged(path, error) from None
    weights = {name: array for name, array in tensors.items() if name in named}
    state = {key: array for key, array in tensors.items() if key not in named}
    graph = stored_graph(path, texts["graph"], weights)
    return TrainingState(course, graph, weights, state)


class EpochEnd:
    """A network at the end of an epoch; its state is copied when it is first requested.

    Nothing may be trained between the end of the epoch and that.
    """

    def __init__(
        self, network: Network, watch: Stopwatch, graph: Graph, course: TrialProgress
    ) -> None:
        self._network = network
        self._watch = watch
        self._graph = graph
        self._course = course

    @cached_property
    def weights(self) -> Weights:
        with self._watch.during(TimePhase.STORE):
            return self._network.weights()

    @cached_property
    def state(self) -> TrainingState:
        weights = self.weights
        with self._watch.during(TimePhase.STORE):
            optimizer_state = self._network.optimizer_state()
        return TrainingState(self._course, self._graph, weights, optimizer_state)


class TrialCheckpoints:
    """The checkpoints of one trial under way: in a file now and then, and in memory between.

    The one in memory is for a scheduler that preempts the node: the trial then loses seconds,
    and not the minutes since its file was written, which would be written too often otherwise.
    Another thread writes the file during the training. The next call raises its errors.
    """

    def __init__(self, context: ReplicaContext, trial: PlannedTrial, background: Executor) -> None:
        self._background = background
        self._writing: Future[None] | None = None
        who = context.who
        self._path = context.paths.under_way(who.replica, who.incarnation)
        self._every = context.config.training.checkpoint_seconds
        self._clock = context.clock
        self._context = context
        self._saved = self._held_at = self._clock.monotonic()
        self._held = trial.beginning if trial.optimizer_state is not None else None
        """The snapshot in memory, if it is newer than the file."""

    def after_epoch(self, end: EpochEnd) -> None:
        """Have the file written if that is due, or else take a snapshot if that is.

        The file is not due as long as the previous one is being written.
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
        """Wait until the file is written, if it is being."""
        if self._writing is not None:
            with self._context.stopwatch.during(TimePhase.STORE):
                self._writing.result()
            self._writing = None

    def _written(self) -> bool:
        """Return whether no file is being written."""
        if self._writing is not None and not self._writing.done():
            return False
        self.finish()
        return True

    def _store(self, state: TrainingState) -> None:
        """Write all that the next incarnation of this replica needs to resume the trial."""
        self._context.retry(lambda: save_training(self._path, state), str(self._path))
