"""What rank 0 says to the other ranks of a replica: commands, and networks to build."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Weights, expected_shapes
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.replica.parallel.collectives.base import Collective
from aiperf_hpc.trial import Hyperparameters

_NUMBERS = 3
"""Numbers that come with every command: as many as the one with the most has."""

Floats = NDArray[np.float32]


class Command(IntEnum):
    """What all ranks do next; most are named after the call of a dataset or a network."""

    END = auto()
    BUILD = auto()  # With the network's number, and the bytes of the request's head.
    TAKE_NETWORK = auto()  # With the network's number.
    TRAIN = auto()  # With epoch, batch size and seed.
    VALIDATION = auto()  # With the batch size.
    CALIBRATE = auto()
    TRAIN_STEP = auto()  # With the learning rate, and 1 where all ranks agree in it.
    DRAIN_TRAINING = auto()
    EVALUATE_STEP = auto()
    DRAIN_EVALUATION = auto()
    WATCH_TARGETS = auto()  # Of the evaluation that was announced last.
    SUM_TARGETS = auto()
    CLOSE = auto()


class Warmup(StrEnum):
    """When each rank warms a network with its own part of a batch."""

    NEVER = "never"
    BUILT = "built"
    TAKEN = "taken"
    """When all take it, for there is no memory before; until then with one sample."""


class Announce:
    """Tells all other ranks what to do next."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def __call__(self, command: Command, *numbers: float) -> None:
        words = np.zeros(1 + _NUMBERS, np.float64)
        words[: 1 + len(numbers)] = (float(command), *numbers)
        self._collective.command(words)


def next_command(collective: Collective) -> tuple[Command, list[float]]:
    """Wait for what rank 0 announces; return it, and its numbers and zeros up to three."""
    words = np.zeros(1 + _NUMBERS, np.float64)
    collective.command(words)
    command, *numbers = words.tolist()
    return Command(int(command)), numbers


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A network that all ranks are to build."""

    graph: Graph
    weights: Weights
    hyperparameters: Hyperparameters
    optimizer_state: OptimizerState | None
    warmup: Warmup

    def send(self, collective: Collective, number: int) -> None:
        """Announce it to the other ranks under a number, and give them its arrays."""
        state = self.optimizer_state
        head = {
            "graph": self.graph.to_json(),
            "hyperparameters": self.hyperparameters.model_dump_json(),
            "optimizer_shapes": None if state is None else {n: a.shape for n, a in state.items()},
            "warmup": self.warmup,
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8).copy()
        Announce(collective)(Command.BUILD, number, text.size)
        collective.broadcast(text)
        collective.broadcast(_flattened(expected_shapes(self.graph), self.weights))
        if state is not None:
            collective.broadcast(_flattened(state, state))

    @classmethod
    def received(cls, collective: Collective, head_bytes: int) -> BuildRequest:
        """Return what rank 0 sends, whose announcement said how long its head is."""
        text = np.zeros(head_bytes, np.uint8)
        collective.broadcast(text)
        head = json.loads(text.tobytes())
        graph = Graph.from_json(head["graph"])
        weights = _received(collective, expected_shapes(graph))
        shapes = head["optimizer_shapes"]
        return cls(
            graph,
            weights,
            Hyperparameters.model_validate_json(head["hyperparameters"]),
            None if shapes is None else _received(collective, shapes),
            Warmup(head["warmup"]),
        )


def _flattened(names: Iterable[str], arrays: Mapping[str, Floats]) -> Floats:
    """Return arrays one after the other, in the order of their names."""
    parts = [np.asarray(arrays[name], np.float32).ravel() for name in names]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def _received(collective: Collective, shapes: Mapping[str, Sequence[int]]) -> dict[str, Floats]:
    """Return the arrays that rank 0 broadcasts as one, by name."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    flat = np.zeros(sum(sizes), np.float32)
    collective.broadcast(flat)
    *parts, _ = np.split(flat, np.cumsum(sizes, dtype=np.intp))
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
