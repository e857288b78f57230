"""Protocol between rank 0 and the other ranks of a replica: commands, and networks to build."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto

import numpy as np

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Array, expected_shapes
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.trial import Hyperparameters

_NUMBERS = 3
"""Number of arguments of every command, padded to the longest."""


class Command(IntEnum):
    """Commands to all ranks; most are named after a method of dataset or network."""

    END = auto()
    BUILD = auto()  # Arguments: the network's number, bytes of the request's header.
    TAKE_NETWORK = auto()  # Argument: the network's number.
    TRAIN = auto()  # Arguments: epoch, batch size, seed.
    VALIDATION = auto()  # Argument: batch size.
    CALIBRATE = auto()
    TRAIN_STEP = auto()  # Arguments: learning rate, 1 for a step with an agreement.
    DRAIN_TRAINING = auto()
    EVALUATE_STEP = auto()
    DRAIN_EVALUATION = auto()
    WATCH_TARGETS = auto()  # For the last announced evaluation.
    SUM_TARGETS = auto()
    CLOSE = auto()


class Warmup(StrEnum):
    """When each rank warms a network with its own part of a batch."""

    NEVER = "never"
    BUILT = "built"
    TAKEN = "taken"
    """When all ranks take it, because memory is free only then; before, with one sample."""


def announce(collective: Collective, command: Command, *numbers: float) -> None:
    """Send a command to all other ranks."""
    words = np.zeros(1 + _NUMBERS, np.float64)
    words[: 1 + len(numbers)] = (float(command), *numbers)
    collective.command(words)


def next_command(collective: Collective) -> tuple[Command, list[float]]:
    """Wait for rank 0's command; return it and its arguments, padded with zeros to three."""
    words = np.zeros(1 + _NUMBERS, np.float64)
    collective.command(words)
    command, *numbers = words.tolist()
    return Command(int(command)), numbers


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Request to build a network on all ranks."""

    network: NetworkState
    warmup: Warmup

    def send(self, collective: Collective, number: int) -> None:
        """Send the request to the other ranks with its number and arrays."""
        network, state = self.network, self.network.optimizer_state
        head = {
            "graph": network.graph.to_json(),
            "hyperparameters": network.hyperparameters.model_dump_json(),
            "optimizer_shapes": None if state is None else {n: a.shape for n, a in state.items()},
            "warmup": self.warmup,
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8).copy()
        announce(collective, Command.BUILD, number, text.size)
        collective.broadcast(text)
        collective.broadcast(_flattened(expected_shapes(network.graph), network.weights))
        if state is not None:
            collective.broadcast(_flattened(state, state))

    @classmethod
    def received(cls, collective: Collective, head_bytes: int) -> BuildRequest:
        """Receive a request from rank 0; the command has the size of its header."""
        text = np.zeros(head_bytes, np.uint8)
        collective.broadcast(text)
        head = json.loads(text.tobytes())
        graph = Graph.from_json(head["graph"])
        weights = _received(collective, expected_shapes(graph))
        shapes = head["optimizer_shapes"]
        used = Hyperparameters.model_validate_json(head["hyperparameters"])
        state = None if shapes is None else _received(collective, shapes)
        return cls(NetworkState(graph, weights, used, state), Warmup(head["warmup"]))


def _flattened(names: Iterable[str], arrays: Mapping[str, Array]) -> Array:
    """Return the arrays concatenated in the order of their names."""
    parts = [np.asarray(arrays[name], np.float32).ravel() for name in names]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def _received(collective: Collective, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Receive concatenated arrays from rank 0; return them by name."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    flat = np.zeros(sum(sizes), np.float32)
    collective.broadcast(flat)
    *parts, _ = np.split(flat, np.cumsum(sizes, dtype=np.intp))
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
