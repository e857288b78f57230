"""Element-wise activations, scaling, softmax, and layers that merge several inputs."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
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

    kind: ClassVar[str] = "relu"
    follower: ClassVar[bool] = True

    @property
    def negative_slope(self) -> float | None:
        return 0.0


@layer_class
class LeakyReLU(Layer):
    """max(x, 0) + slope * min(x, 0). The default slope is Keras'; PyTorch's is 0.01."""

    kind: ClassVar[str] = "leaky_relu"
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

    kind: ClassVar[str] = "tanh"
    follower: ClassVar[bool] = True


@layer_class
class Scale(Layer):
    """factor * x, with a fixed factor for all elements."""

    kind: ClassVar[str] = "scale"
    follower: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        require_number(self, "factor", -LARGEST, LARGEST, "a finite number")


@layer_class
class Softmax(Layer):
    """exp(x) / sum(exp(x)) over the last axis."""

    kind: ClassVar[str] = "softmax"
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED


@layer_class
class Add(Layer):
    """Element-wise sum of two or more inputs of equal shape."""

    kind: ClassVar[str] = "add"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    commutative: ClassVar[bool] = True
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(set(inputs)) == 1, f"adds inputs of different shapes {inputs}")
        return inputs[0]


@layer_class
class Concat(Layer):
    """Concatenation of the channels of two or more inputs, in order."""

    kind: ClassVar[str] = "concat"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def output_shape(self, *inputs: Shape) -> Shape:
        require(
            len({shape[:-1] for shape in inputs}) == 1,
            f"concatenates inputs that differ in more than channels: {inputs}",
        )
        return *inputs[0][:-1], sum(shape[-1] for shape in inputs)
