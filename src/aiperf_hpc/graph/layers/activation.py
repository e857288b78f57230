"""Activations and a factor, which change each element by itself, and the softmax."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import ChannelRole, Layer, Shape, layer_class, require
from aiperf_hpc.untrusted.bounds import LARGEST


@layer_class
class ReLU(Layer):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"
    follower: ClassVar[bool] = True

    @property
    def negative_slope(self) -> float | None:
        return 0.0

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@layer_class
class LeakyReLU(Layer):
    """max(x, 0) + slope * min(x, 0). The default slope is Keras'; PyTorch's is 0.01."""

    kind: ClassVar[str] = "leaky_relu"
    follower: ClassVar[bool] = True

    slope: float = 0.3

    def __post_init__(self) -> None:
        number = type(self.slope) is not bool and isinstance(self.slope, int | float)
        require(
            number and 0.0 <= self.slope <= LARGEST,
            f"leaky_relu: slope must be a number of at least 0, got {self.slope!r}",
        )
        object.__setattr__(self, "slope", float(self.slope))  # One number, one hash.

    @property
    def negative_slope(self) -> float | None:
        return self.slope

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@layer_class
class Tanh(Layer):
    """The hyperbolic tangent."""

    kind: ClassVar[str] = "tanh"
    follower: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@layer_class
class Scale(Layer):
    """factor * x, the same factor for all elements: not trained."""

    kind: ClassVar[str] = "scale"
    follower: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        number = type(self.factor) is not bool and isinstance(self.factor, int | float)
        require(
            number and -LARGEST <= self.factor <= LARGEST,
            f"scale: factor must be a finite number, got {self.factor!r}",
        )
        object.__setattr__(self, "factor", float(self.factor))  # One number, one hash.

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@layer_class
class Softmax(Layer):
    """exp(x) / sum(exp(x)) over the last axis."""

    kind: ClassVar[str] = "softmax"
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]
