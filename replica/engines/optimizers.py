"""Common parts of all engines' optimizers: regularization and the format of the state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Array
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.trial import Hyperparameters

ITERATE = "iterate"
"""Slot of the trained parameters of an optimizer that evaluates an average of them."""
STEP = "step"
"""Entry of a state with the number of steps."""


class Regularization(NamedTuple):
    """Regularization of a trial: weight decay and penalties."""

    used: Hyperparameters
    """Hyperparameters of the trial, with the weight decay applied by the update."""
    decayed: Collection[str]
    """Parameters subject to the update's weight decay; empty without weight decay."""
    penalties: Mapping[str, float]
    """Factors of the squared parameters in the loss, by parameter."""


def regularization(graph: Graph, used: Hyperparameters) -> Regularization:
    """Return the weight decay and the penalties of a graph's parameters in a trial."""
    if not used.weight_decay:
        return Regularization(used, (), graph.penalties)
    decayed = sorted(graph.parameters if used.weight_decay_of == "all" else graph.decayed)
    if used.weight_decay_in == "update":
        return Regularization(used, decayed, graph.penalties)
    penalties = dict(graph.penalties)
    for name in decayed:
        penalties[name] = penalties.get(name, 0.0) + used.weight_decay / 2.0
    return Regularization(used.model_copy(update={"weight_decay": 0.0}), (), penalties)


def slots(state: OptimizerState, slot: str, parameters: Collection[str]) -> dict[str, Array]:
    """Return one slot of every parameter. Raises EngineError if the state lacks one."""
    keys = {name: f"{slot}:{name}" for name in parameters}
    if not state.keys() >= set(keys.values()):
        raise _missing(state, slot)
    return {name: state[key] for name, key in keys.items()}


def step_state(steps: int) -> dict[str, Array]:
    """Return the entry of a state for the number of steps."""
    return {STEP: np.array(steps, np.float32)}


def step_count(state: OptimizerState) -> int:
    """Return the number of steps in a state. Raises EngineError if it has none."""
    if STEP not in state:
        raise _missing(state, STEP)
    return round(float(state[STEP].item()))


def _missing(state: OptimizerState, missing: str) -> EngineError:
    kinds = sorted({key.split(":")[0] for key in state})
    return EngineError(
        f"the optimizer cannot resume from the state of another one: it has {kinds}, not "
        f"'{missing}' of every parameter"
    )
