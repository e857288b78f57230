"""Losses and metrics of the ``torch`` engine, by their names in an objective.

A loss is a function of the network's output and a batch's targets that returns the loss of each
sample, (samples,). Training minimizes the mean. A metric returns the parts of its ``QualityMetric``
in order: sums over the batch, (), or rows, (samples,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.engines.torch.detection import (
    Loss,
    Quality,
    Targets,
    detection,
    mean_average_precision,
)


def softmax_cross_entropy(output: Tensor, targets: Targets, smoothing: float) -> Tensor:
    """Return -log of the label's softmax; (samples, classes) and labels (samples,).

    Label smoothing spreads a fraction of the target over all classes (Szegedy et al. 2016,
    section 7).
    """
    return cross_entropy(output, targets["label"], reduction="none", label_smoothing=smoothing)


def mean_squared_error(output: Tensor, targets: Targets, smoothing: float) -> Tensor:
    """Return the mean squared error of each sample; only labels are smoothed."""
    return (output - targets["values"]).square().flatten(1).mean(dim=1)


def pixel_cross_entropy(
    output: Tensor, targets: Targets, smoothing: float, weights: tuple[float, ...] = ()
) -> Tensor:
    """Return the mean over all pixels of -log of the class's softmax times the class's weight.

    The divisor is the number of pixels, not the sum of their weights. The output is (samples,
    classes, height, width), the mask (samples, height, width). Only labels are smoothed.
    """
    by_class = _on_device(weights, output.device) if weights else None
    losses = cross_entropy(output, targets["mask"], by_class, reduction="none")
    return losses.flatten(1).mean(dim=1)


@lru_cache(maxsize=4)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers on a device, cached because a copy waits for the device."""
    return torch.tensor(numbers, device=device)


def accuracy(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the number of samples whose most probable class is their label."""
    return ((output.argmax(dim=1) == targets["label"]).sum(),)


def mean_absolute_error(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the sum of the absolute errors and the number of values."""
    distances = (output - targets["values"]).abs()
    return distances.sum(), distances.new_full((), distances.numel())


def intersection_over_union(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the sum over samples of the ratio's mean over classes; 0 / 0 is 1."""
    found, there = output.argmax(dim=1).flatten(1), targets["mask"].flatten(1)
    ratios = []
    for number in range(output.shape[1]):
        one, other = found == number, there == number
        both, any_ = (one & other).sum(dim=1), (one | other).sum(dim=1)
        ratios.append(torch.where(any_ > 0, both.double() / any_.clamp(min=1), 1.0))
    return (torch.stack(ratios).mean(dim=0).sum(),)


LOSSES: dict[str, Loss] = {
    f.__name__: f for f in (softmax_cross_entropy, mean_squared_error, pixel_cross_entropy)
}
QUALITIES: dict[str, Quality] = {
    f.__name__: f for f in (accuracy, mean_absolute_error, intersection_over_union)
}
LOSSES_OF: dict[str, Callable[[Graph], Loss]] = {detection.__name__: detection}
"""Losses that depend on the network because they split its output."""
QUALITIES_OF: dict[str, Callable[[Graph], Quality]] = {
    mean_average_precision.__name__: mean_average_precision
}
"""Metrics that depend on the network."""


def loss_of(objective: Objective, graph: Graph) -> Loss:
    """Return an objective's loss for a network. Raises EngineError if the network has none."""
    name = objective.loss
    if name in LOSSES_OF:
        return LOSSES_OF[name](graph)
    if name == pixel_cross_entropy.__name__:
        return partial(pixel_cross_entropy, weights=objective.class_weights)
    return LOSSES[name]


def quality_of(name: str, graph: Graph) -> Quality:
    """Return a metric by its name for a network; raises as ``loss_of``."""
    return QUALITIES_OF[name](graph) if name in QUALITIES_OF else QUALITIES[name]
