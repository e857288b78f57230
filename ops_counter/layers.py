"""Operations of one layer for one sample: a function a kind of layer, in Python integers.

Convention (Ren et al. 2021): a multiply-accumulate is 2 operations;
an addition, subtraction, multiplication or comparison is 1; a division or square root is 4; an
exponential is 8. fvcore and ptflops count a multiply-accumulate as 1.

Where the paper is not consistent with itself (softmax, global average pooling and the backward
pass of batch normalisation, three small rows of its Table 3), docs/decisions/counting.md says
which reading is taken here and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Input,
    Layer,
    MaxPool2D,
    ReLU,
    Shape,
    Softmax,
)

MAC = 2
ADD = COMPARE = 1
DIVIDE = 4
EXP = 8


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A layer where it stands: what it reads, what it makes, what trains below it."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    input_gradient: bool
    """Whether something before this layer is trained, so that its inputs need gradients."""

    @property
    def elements(self) -> int:
        """How many numbers it makes."""
        return math.prod(self.output)


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one layer for one sample."""

    forward: int
    backward: int = 0
    """Operations of the gradients and the update together."""
    update: int = 0
    """The part of ``backward`` that applies the gradients to the weights."""


def conv2d(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co Ho Wo forward, and 2 k² Ci Co for the update."""
    kernel, _, inputs, outputs = context.layer.parameters(*context.inputs)["kernel"]
    height, width, _ = context.output
    weights = kernel * kernel * inputs * outputs
    return _trained(context, MAC * weights * height * width, MAC * weights)


def dense(context: LayerContext) -> Operations:
    """Return 2 Ci Co forward, and 2 (Ci + 1) Co for the update of weights and bias."""
    inputs, outputs = context.layer.parameters(*context.inputs)["kernel"]
    return _trained(context, MAC * inputs * outputs, MAC * (inputs + 1) * outputs)


def _trained(context: LayerContext, forward: int, update: int) -> Operations:
    """Return these with the gradients by weights and, where it is needed, by inputs.

    Each costs as much as the forward pass. A layer below which nothing is trained computes no
    gradient by its inputs.
    """
    gradients = 1 + int(context.input_gradient)
    return Operations(forward, gradients * forward + update, update)


def batch_norm(context: LayerContext) -> Operations:
    """Return 7 an element."""
    return Operations(7 * context.elements)


def relu(context: LayerContext) -> Operations:
    """Return a comparison an element."""
    return Operations(COMPARE * context.elements)


def add(context: LayerContext) -> Operations:
    """Return an addition an element for each input after the first."""
    return Operations(ADD * (len(context.inputs) - 1) * context.elements)


def max_pool2d(context: LayerContext) -> Operations:
    """Return k² comparisons an element."""
    assert isinstance(context.layer, MaxPool2D)  # noqa: S101 -- for the type checker
    return Operations(COMPARE * context.layer.kernel**2 * context.elements)


def global_average_pool2d(context: LayerContext) -> Operations:
    """Return an addition an input element and one division a channel."""
    height, width, channels = context.inputs[0]
    return Operations(ADD * height * width * channels + DIVIDE * channels)


def softmax(context: LayerContext) -> Operations:
    """Return an exponential, an addition and a division a class: 13 a class."""
    return Operations((EXP + ADD + DIVIDE) * context.elements)


TABLE: dict[type[Layer], Callable[[LayerContext], Operations]] = {
    Input: lambda _: Operations(0),
    Conv2D: conv2d,
    Dense: dense,
    BatchNorm: batch_norm,
    ReLU: relu,
    Add: add,
    MaxPool2D: max_pool2d,
    GlobalAveragePool2D: global_average_pool2d,
    Softmax: softmax,
}
"""The function of each kind of layer. A kind that is not here cannot be counted."""
