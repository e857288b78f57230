"""The checkpoint of a training under way: what a new life of a replica needs to go on with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
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
from aiperf_hpc.replica.engines.base import Network, OptimizerState
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training.trial import PlannedTrial, TrialProgress
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.untrusted.bounds import first_fault

HOLD_SECONDS = 10.0
"""The least time between two snapshots in memory of a trial under way."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A training to go on with."""

    course: TrialProgress
    graph: Graph
    weights: Weights
    optimizer_state: OptimizerState


def save_training(
    path: Path,
    course: TrialProgress,
    graph: Graph,
    weights: Weights,
    optimizer_state: OptimizerState,
) -> None:
    """Write a checkpoint, whole or not at all."""
    write_whole(path, serialized_training(course, graph, weights, optimizer_state))


def serialized_training(
    course: TrialProgress, graph: Graph, weights: Weights, optimizer_state: OptimizerState
) -> bytes:
    """Return what the file of a checkpoint holds.

    Weights and optimizer state are beside each other: no key of a state is a weight's name.
    """
    tensors = {**weights, **optimizer_state}
    return serialized(tensors, {"graph": graph.to_json(), "course": course.model_dump_json()})


def load_training(path: Path, retry: Retry = no_retry, tell: Tell = ignore) -> Interrupted:
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
    return Interrupted(course=course, graph=graph, weights=weights, optimizer_state=state)


class EpochEnd:
    """What a network has learnt by the end of an epoch, copied when it is asked for first.

    Nothing may be trained between the end of the epoch and that.
    """

    def __init__(self, network: Network, watch: Stopwatch) -> None:
        self._network = network
        self._watch = watch

    @cached_property
    def weights(self) -> Weights:
        with self._watch.during(TimePhase.STORE):
            return self._network.weights()

    @cached_property
    def optimizer_state(self) -> OptimizerState:
        with self._watch.during(TimePhase.STORE):
            return self._network.optimizer_state()


class TrialCheckpoints:
    """The checkpoints of one trial under way: in a file now and then, and in memory between.

    The one in memory is for a scheduler that takes the node away: the trial then loses seconds,
    and not the minutes since its file was written, which would be written too often otherwise.
    The file is written by another thread, while the training goes on. What that could not do is
    raised by the next call.
    """

    def __init__(self, context: ReplicaContext, trial: PlannedTrial, background: Executor) -> None:
        self._background = background
        self._writing: Future[None] | None = None
        who = context.who
        self._path = context.paths.under_way(who.replica, who.incarnation)
        self._every = context.config.training.checkpoint_seconds
        self._clock = context.clock
        self._retry = context.retry
        self._watch = context.stopwatch
        self._graph = trial.candidate.graph
        self._saved = self._held_at = self._clock.monotonic()
        self._held: Callable[[], None] | None = None
        """What stores the snapshot in memory, if that is newer than the file."""
        if trial.optimizer_state is not None:
            weights, state = trial.candidate.weights, trial.optimizer_state
            self._held = self._snapshot(trial.course, weights, state)

    def after_epoch(self, course: TrialProgress, end: EpochEnd) -> None:
        """Have the file written if that is due, or else take a snapshot if that is.

        It is not due as long as storage has not taken the one before.
        """
        now = self._clock.monotonic()
        if now - self._saved >= self._every and self._written():
            store = self._snapshot(course, end.weights, end.optimizer_state)
            self._writing = self._background.submit(store)
            self._held = None
            self._saved = now
        elif now - max(self._saved, self._held_at) >= HOLD_SECONDS:
            self._held = self._snapshot(course, end.weights, end.optimizer_state)
            self._held_at = now

    def store_held(self) -> None:
        """Write the snapshot in memory, if it is newer than the file."""
        self.finish()
        if self._held is not None:
            with self._watch.during(TimePhase.STORE):
                self._held()

    def finish(self) -> None:
        """Wait until the file is written, if it is being."""
        if self._writing is not None:
            with self._watch.during(TimePhase.STORE):
                self._writing.result()
            self._writing = None

    def _written(self) -> bool:
        """Return whether no file is being written."""
        if self._writing is not None and not self._writing.done():
            return False
        self.finish()
        return True

    def _snapshot(
        self, course: TrialProgress, weights: Weights, state: OptimizerState
    ) -> Callable[[], None]:
        """Return what stores all that a new life of this replica needs to go on with the trial."""
        path, graph = self._path, self._graph

        def store() -> None:
            self._retry(lambda: save_training(path, course, graph, weights, state), str(path))

        return store
