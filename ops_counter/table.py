"""From a layer's kind to its formulas. A kind that is not here cannot be counted."""

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
from aiperf_hpc.ops_counter import formulas


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A layer where it stands: what it reads, what it makes, what trains below it."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    input_gradient: bool
    """Whether something before this layer is trained, so that its inputs need gradients."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one layer for one sample."""

    forward: int
    backward: int = 0
    """Gradients and update together."""
    update: int = 0
    """The part of ``backward`` that applies the gradients to the weights."""


def _conv2d(context: LayerContext) -> Operations:
    (kernel, _, inputs, outputs), (height, width, _) = (
        context.layer.parameters(*context.inputs)["kernel"],
        context.output,
    )
    return Operations(
        formulas.conv_forward(kernel, inputs, outputs, height, width),
        formulas.conv_backward(
            kernel, inputs, outputs, height, width, input_gradient=context.input_gradient
        ),
        formulas.conv_update(kernel, inputs, outputs),
    )


def _dense(context: LayerContext) -> Operations:
    inputs, outputs = context.layer.parameters(*context.inputs)["kernel"]
    return Operations(
        formulas.dense_forward(inputs, outputs),
        formulas.dense_backward(inputs, outputs, input_gradient=context.input_gradient),
        formulas.dense_update(inputs, outputs),
    )


def _batch_norm(context: LayerContext) -> Operations:
    return Operations(formulas.batch_norm_forward(math.prod(context.output)))


def _relu(context: LayerContext) -> Operations:
    return Operations(formulas.elementwise_forward(math.prod(context.output)))


def _add(context: LayerContext) -> Operations:
    additions = len(context.inputs) - 1
    return Operations(additions * formulas.elementwise_forward(math.prod(context.output)))


def _max_pool2d(context: LayerContext) -> Operations:
    assert isinstance(context.layer, MaxPool2D)  # noqa: S101 -- for the type checker
    return Operations(formulas.max_pool_forward(context.layer.kernel, math.prod(context.output)))


def _global_average_pool2d(context: LayerContext) -> Operations:
    height, width, channels = context.inputs[0]
    return Operations(formulas.global_average_pool_forward(height, width, channels))


def _softmax(context: LayerContext) -> Operations:
    return Operations(formulas.softmax_forward(math.prod(context.output)))


TABLE: dict[type[Layer], Callable[[LayerContext], Operations]] = {
    Input: lambda _: Operations(0),
    Conv2D: _conv2d,
    Dense: _dense,
    BatchNorm: _batch_norm,
    ReLU: _relu,
    Add: _add,
    MaxPool2D: _max_pool2d,
    GlobalAveragePool2D: _global_average_pool2d,
    Softmax: _softmax,
}
