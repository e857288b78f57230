"""Layers that give what they read in another shape."""

from __future__ import annotations

import math
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Layer,
    Shape,
    image,
    layer_class,
    require,
    require_sizes,
)


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
    """An image of one pixel, repeated over a height and a width."""

    kind: ClassVar[str] = "tile"
    output_kept: ClassVar[bool] = False

    height: int
    width: int

    def __post_init__(self) -> None:
        require_sizes(self, "height", "width")

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = image(inputs[0])
        require(places == [1, 1], f"repeats one pixel, got {inputs[0]}")
        return self.height, self.width, channels


@layer_class
class NearestResize2D(Layer):
    """Each place of a larger or smaller image takes the nearest one's values: floor(i in / out)."""

    kind: ClassVar[str] = "nearest_resize2d"
    output_kept: ClassVar[bool] = False

    height: int
    width: int

    def __post_init__(self) -> None:
        require_sizes(self, "height", "width")

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.height, self.width, image(inputs[0])[2]
