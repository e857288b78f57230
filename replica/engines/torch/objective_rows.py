"""The loss and the measure of a network: rows of tables, or made of what the network is."""

from __future__ import annotations

from collections.abc import Callable

from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.engines.torch.detection.objectives import detection, mean_average_precision
from aiperf_hpc.replica.engines.torch.objectives import QUALITIES, Loss, Quality, weighted

LOSSES_OF: dict[str, Callable[[Graph], Loss]] = {detection.__name__: detection}
"""What makes the loss of a network whose output has to be taken apart."""
QUALITIES_OF: dict[str, Callable[[Graph], Quality]] = {
    mean_average_precision.__name__: mean_average_precision
}
"""What makes the measure of such a network."""


def loss_of(objective: Objective, graph: Graph) -> Loss:
    """Return an objective's loss for a network. Raises EngineError where the network has none."""
    name = objective.loss
    return LOSSES_OF[name](graph) if name in LOSSES_OF else weighted(objective)


def quality_of(name: str, graph: Graph) -> Quality:
    """Return the measure of a name; as ``loss_of``."""
    return QUALITIES_OF[name](graph) if name in QUALITIES_OF else QUALITIES[name]
