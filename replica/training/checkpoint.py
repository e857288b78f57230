"""The checkpoint of a training under way: what a new life of a replica needs to go on with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, Field, ValidationError

from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checked_file import (
    Tell,
    damaged,
    ignore,
    load_checked,
    save_checked,
)
from aiperf_hpc.morphism.weights.checkpoint import Weights, expected_shapes, stored_graph
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import Value


class TrialProgress(Value):
    """What has happened in a trial until the end of an epoch."""

    trial: str
    epochs: int = 0
    """Complete ones, evaluated."""
    values: tuple[float, ...] = Field((), validation_alias=AliasChoices("values", "accuracies"))
    """The objective value after each epoch; earlier versions had accuracies alone."""
    lowest_loss: float = float("inf")
    since_lowest: int = 0
    losses: tuple[float, ...] = ()
    """On the validation samples, after each epoch; earlier checkpoints have none."""

    def after(self, value: float, loss: float) -> TrialProgress:
        """Return the progress after one more epoch, of this objective value and loss."""
        lower = loss < self.lowest_loss
        return TrialProgress(
            trial=self.trial,
            epochs=self.epochs + 1,
            values=(*self.values, value),
            lowest_loss=loss if lower else self.lowest_loss,
            since_lowest=0 if lower else self.since_lowest + 1,
            losses=(*self.losses, loss),
        )


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
    """Write a checkpoint, whole or not at all.

    Weights and optimizer state are beside each other: no key of a state is a weight's name.
    """
    tensors = {**weights, **optimizer_state}
    save_checked(path, tensors, {"graph": graph.to_json(), "course": course.model_dump_json()})


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
        what = error.errors(include_url=False)[0]["msg"]
        raise damaged(path, f"its course: {what}") from None
    try:
        named = expected_shapes(Graph.from_json(texts["graph"])).keys()
    except GraphError as error:
        raise damaged(path, error) from None
    weights = {name: array for name, array in tensors.items() if name in named}
    state = {key: array for key, array in tensors.items() if key not in named}
    graph = stored_graph(path, texts["graph"], weights)
    return Interrupted(course=course, graph=graph, weights=weights, optimizer_state=state)
