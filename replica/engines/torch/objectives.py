"""The losses and measures of the ``torch`` engine, by the names in an objective.

A loss is a function of the network's output and a batch's targets that returns the loss of each
sample, (samples,); its mean is trained on. A measure returns the parts of its ``Measure``, in
their order: its sums over the batch, (), or its rows, (samples,).
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

    With smoothing, a share of the target is spread over all classes (Szegedy et al. 2016,
    section 7).
    """
    return cross_entropy(output, targets["label"], reduction="none", label_smoothing=smoothing)


def mean_squared_error(output: Tensor, targets: Targets, smoothing: float) -> Tensor:
    """Return the mean square of a sample's distances to its targets."""
    del smoothing  # Labels alone are smoothed.
    return (output - targets["values"]).square().flatten(1).mean(dim=1)


def pixel_cross_entropy(
    output: Tensor, targets: Targets, smoothing: float, weights: tuple[float, ...] = ()
) -> Tensor:
    """Return the mean over all pixels of -log of the class's softmax times the class's weight.

    Divided by the number of pixels, not by the sum of their weights; (samples, classes, height,
    width), and a mask (samples, height, width).
    """
    del smoothing  # Labels alone are smoothed.
    by_class = _on_device(weights, output.device) if weights else None
    losses = cross_entropy(output, targets["mask"], by_class, reduction="none")
    return losses.flatten(1).mean(dim=1)


@lru_cache(maxsize=4)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers where they are used, brought there once: a copy waits for the device."""
    return torch.tensor(numbers, device=device)


def accuracy(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return how many samples have their label as the most probable class."""
    return ((output.argmax(dim=1) == targets["label"]).sum(),)


def mean_absolute_error(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the sum of all distances to targets, and their number."""
    distances = (output - targets["values"]).abs()
    return distances.sum(), distances.new_full((), distances.numel())


def intersection_over_union(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the sum over samples of the mean over classes of the ratio; 0 / 0 is 1."""
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
"""The losses that depend on the network, whose output has to be taken apart."""
QUALITIES_OF: dict[str, Callable[[Graph], Quality]] = {
    mean_average_precision.__name__: mean_average_precision
}
"""The measures that depend on the network."""


def loss_of(objective: Objective, graph: Graph) -> Loss:
    """Return an objective's loss for a network. Raises EngineError if the network has none."""
    name = objective.loss
    if name in LOSSES_OF:
        return LOSSES_OF[name](graph)
    if name == pixel_cross_entropy.__name__:
        return partial(pixel_cross_entropy, weights=objective.class_weights)
    return LOSSES[name]


def quality_of(name: str, graph: Graph) -> Quality:
    """Return the measure of a name; as ``loss_of``."""
    return QUALITIES_OF[name](graph) if name in QUALITIES_OF else QUALITIES[name]
