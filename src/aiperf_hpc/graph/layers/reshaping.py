"""The input layer, and layers that change only the shape."""

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
)
from aiperf_hpc.untrusted.bounds import MOST_AXES


@layer_class
class Flatten(Layer):
    """All elements of a sample as one vector, channels last: row-major over (h, w, c)."""

    kind: ClassVar[str] = "flatten"
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        return (math.prod(inputs[0]),)


@layer_class
class Tile(Layer):
    """Repetition of a one-pixel image over a height and a width."""

    kind: ClassVar[str] = "tile"
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

    kind: ClassVar[str] = "nearest_resize2d"
    output_kept: ClassVar[bool] = False

    height: int
    width: int

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.height, self.width, image(inputs[0])[2]


@layer_class
class Input(Layer):
    """An input layer for the samples of a dataset, with a fixed shape."""

    kind: ClassVar[str] = "input"
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
