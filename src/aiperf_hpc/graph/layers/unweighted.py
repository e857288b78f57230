"""Layers without parameters: the input, reshaping, pooling, activations, merging, dropout."""

from __future__ import annotations

import math
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Layer,
    Shape,
    image,
    is_size,
    layer_class,
    require,
    require_number,
    volume,
)
from aiperf_hpc.untrusted.bounds import LARGEST, MOST_AXES


@layer_class
class Flatten(Layer):
    """All elements of a sample as one vector, channels last: row-major over (h, w, c)."""

    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        return (math.prod(inputs[0]),)


@layer_class
class Tile(Layer):
    """Repetition of a one-pixel image over a height and a width."""

    output_kept: ClassVar[bool] = False

    height: int
    width: int

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = image(inputs[0])
        require(places == [1, 1], f"repeats one pixel, got {inputs[0]}")
        return self.height, self.width, channels


@layer_class
class NearestResize2D(Layer):
    """Nearest-neighbor resizing of an image: output i has the values of input floor(i in / out)."""

    output_kept: ClassVar[bool] = False

    height: int
    width: int

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.height, self.width, image(inputs[0])[2]


@layer_class
class Input(Layer):
    """An input layer for the samples of a dataset, with a fixed shape."""

    inputs: ClassVar[tuple[int, int | None]] = (0, 0)
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    shape: Shape
    dtype: str = "float32"
    """``int32`` for integer samples, such as token numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        require(
            0 < len(self.shape) <= MOST_AXES and all(is_size(n) for n in self.shape),
            f"input: every dimension must be at least 1, got {self.shape}"[:200],
        )
        known = self.dtype in ("float32", "int32")
        require(known, f"input: dtype must be float32 or int32, got {self.dtype!r}")

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.shape


@layer_class
class MaxPool2D(Layer):
    """Maximum over k x k windows with odd k, padded by (k - 1) / 2 on every side.

    With ``same``, the padding is TensorFlow's SAME: the minimum that the windows need on each axis,
    with an odd element at the end. For windows of 3 at stride 2, an axis of even length is thus
    padded only at its end.
    """

    odd_kernel: ClassVar[bool] = True

    kernel: int
    stride: int
    same: bool = False

    def padding(self, *places: int) -> list[tuple[int, int]]:
        """Return the padding before and after each axis with the given numbers of elements."""
        if not self.same:
            return [self.window.padding for _ in places]
        reached = [(n - 1) // self.stride * self.stride + self.kernel for n in places]
        added = [max(0, last - n) for last, n in zip(reached, places, strict=True)]
        return [(number // 2, number - number // 2) for number in added]

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, channels = image(inputs[0])
        return math.ceil(height / self.stride), math.ceil(width / self.stride), channels


@layer_class
class MaxPool3D(Layer):
    """Maximum over k x k x k windows with any k.

    Padded by (k - 1) // 2 before and k // 2 after each axis. Windows of 2 at stride 2 on axes of
    even length do not reach the padding.
    """

    kernel: int
    stride: int

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = volume(inputs[0])
        return (*self.window.slid_over(tuple(places)), channels)


@layer_class
class GlobalAveragePool2D(Layer):
    """Mean over height and width."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return (image(inputs[0])[2],)


@layer_class
class ImagePool2D(Layer):
    """Mean over height and width, as an image of one pixel."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return 1, 1, image(inputs[0])[2]


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
