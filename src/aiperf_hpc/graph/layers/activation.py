"""Activations, scaling, softmax, normalization, dropout, and layers that merge several inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    InitialValue,
    Layer,
    Shape,
    layer_class,
    require,
    require_number,
)
from aiperf_hpc.untrusted.bounds import LARGEST


@layer_class
class ReLU(Layer):
    """max(x, 0)."""

    follower: ClassVar[bool] = True

    @property
    def negative_slope(self) -> float | None:
        return 0.0


@layer_class
class LeakyReLU(Layer):
    """max(x, 0) + slope * min(x, 0). The default slope is Keras'; PyTorch's is 0.01."""

    follower: ClassVar[bool] = True

    slope: float = 0.3

    def __post_init__(self) -> None:
        require_number(self, "slope", 0.0, LARGEST, "a number of at least 0")

    @property
    def negative_slope(self) -> float | None:
        return self.slope


@layer_class
class Tanh(Layer):
    """The hyperbolic tangent."""

    follower: ClassVar[bool] = True


@layer_class
class Scale(Layer):
    """factor * x, with a fixed factor for all elements."""

    follower: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        require_number(self, "factor", -LARGEST, LARGEST, "a finite number")


@layer_class
class Softmax(Layer):
    """exp(x) / sum(exp(x)) over the last axis."""

    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED


@layer_class
class Add(Layer):
    """Element-wise sum of two or more inputs of equal shape."""

    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    commutative: ClassVar[bool] = True
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(set(inputs)) == 1, f"adds inputs of different shapes {inputs}")
        return inputs[0]


@layer_class
class Concat(Layer):
    """Concatenation of the channels of two or more inputs, in order."""

    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def output_shape(self, *inputs: Shape) -> Shape:
        require(
            len({shape[:-1] for shape in inputs}) == 1,
            f"concatenates inputs that differ in more than channels: {inputs}",
        )
        return *inputs[0][:-1], sum(shape[-1] for shape in inputs)


@layer_class
class BatchNorm(Layer):
    """Batch normalization over all but the last axis, with scale (gamma) and shift (beta)."""

    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0
    }  # fmt: skip
    normalizes: ClassVar[bool] = True
    output_kept: ClassVar[bool] = False
    follower: ClassVar[bool] = True
    epsilon: ClassVar[float] = 1e-5
    """Number added to the variance before its square root."""
    momentum: ClassVar[float] = 0.9
    """Fraction of the running statistics that a training step retains."""

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"gamma": inputs[0][-1:], "beta": inputs[0][-1:]}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        return {"mean": inputs[0][-1:], "variance": inputs[0][-1:]}


@layer_class
class ChannelAffine(Layer):
    """scale * x + shift per channel: the trainable part of a normalization."""

    initial_values: ClassVar[Mapping[str, InitialValue]] = {"scale": 1.0, "shift": 0.0}
    # It has a parameter per input channel, which no morphism adds.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"scale": inputs[0][-1:], "shift": inputs[0][-1:]}


@layer_class
class Dropout(Layer):
    """Dropout of a fraction ``rate`` of the elements in training; the identity in inference.

    Inverted dropout (Srivastava et al. 2014): remaining elements are divided by 1 - rate in
    training, which preserves their mean. Elements are dropped independently.
    """

    follower: ClassVar[bool] = True

    rate: float

    def __post_init__(self) -> None:
        below_one = math.nextafter(1.0, 0.0)
        require_number(self, "rate", 0.0, below_one, "a number from 0 to below 1")
