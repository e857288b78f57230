"""The losses and measures of the ``torch`` engine, by the names in an objective.

A loss is a function of the network's output and a batch's targets that returns the loss of each
sample, (samples,); its mean is trained on. A measure returns the parts of its ``Measure``, in
their order: its sums over the batch, (), or its rows, (samples,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn.functional import cross_entropy

Targets = Mapping[str, Tensor]


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


def accuracy(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return how many samples have their label as the most probable class."""
    return ((output.argmax(dim=1) == targets["label"]).sum(),)


def mean_absolute_error(output: Tensor, targets: Targets) -> Sequence[Tensor]:
    """Return the sum of all distances to targets, and their number."""
    distances = (output - targets["values"]).abs()
    return distances.sum(), distances.new_full((), distances.numel())


Loss = Callable[[Tensor, Targets, float], Tensor]
Quality = Callable[[Tensor, Targets], Sequence[Tensor]]

LOSSES: dict[str, Loss] = {f.__name__: f for f in (softmax_cross_entropy, mean_squared_error)}
QUALITIES: dict[str, Quality] = {f.__name__: f for f in (accuracy, mean_absolute_error)}
