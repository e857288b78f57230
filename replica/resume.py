"""The checkpoint of a training under way: what a new life of a replica needs to go on with it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from aiperf_hpc.errors import CheckpointError, GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights import (
    Weights,
    check_weights,
    checkpoint_metadata,
    read_checkpoint,
)
from aiperf_hpc.paths import write_whole
from aiperf_hpc.storage import Persist, at_once
from aiperf_hpc.trial import Value

_MOMENTUM = "momentum:"


class Course(Value):
    """What has happened in a trial until the end of an epoch."""

    trial: str
    epochs: int = 0
    """Complete ones, evaluated."""
    accuracies: tuple[float, ...] = ()
    lowest_loss: float = float("inf")
    since_lowest: int = 0

    def after(self, accuracy: float, loss: float) -> Course:
        """Return the course with one more evaluated epoch."""
        lower = loss < self.lowest_loss
        return Course(
            trial=self.trial,
            epochs=self.epochs + 1,
            accuracies=(*self.accuracies, accuracy),
            lowest_loss=loss if lower else self.lowest_loss,
            since_lowest=0 if lower else self.since_lowest + 1,
        )


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A training to go on with."""

    course: Course
    graph: Graph
    weights: Weights
    momenta: Weights


def save_course(
    path: Path, course: Course, graph: Graph, weights: Weights, momenta: Weights
) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {**weights, **{f"{_MOMENTUM}{name}": array for name, array in momenta.items()}}
    metadata = {"graph": graph.to_json(), "course": course.model_dump_json()}
    write_whole(path, save_tensors(tensors, metadata))


def load_course(path: Path, persist: Persist = at_once) -> Interrupted:
    """Read a checkpoint.

    Args:
        path: its file.
        persist: how to read; a Patience waits while the storage is away.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    content = read_checkpoint(path, persist)
    try:
        metadata = checkpoint_metadata(content)
        course = Course.model_validate_json(metadata["course"])
        graph = Graph.from_json(metadata["graph"])
        tensors = load_tensors(content)
    except (struct.error, ValueError, KeyError, TypeError, SafetensorError, GraphError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from None
    momenta = {n.removeprefix(_MOMENTUM): a for n, a in tensors.items() if n.startswith(_MOMENTUM)}
    weights = {name: array for name, array in tensors.items() if not name.startswith(_MOMENTUM)}
    check_weights(graph, weights)
    return Interrupted(course=course, graph=graph, weights=weights, momenta=momenta)
