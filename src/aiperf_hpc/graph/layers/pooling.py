"""Poolings."""

from __future__ import annotations

import math
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    Layer,
    Shape,
    image,
    layer_class,
    volume,
)


@layer_class
class MaxPool2D(Layer):
    """Maximum over k x k windows with odd k, padded by (k - 1) / 2 on every side.

    With ``same``, the padding is TensorFlow's SAME: the minimum that the windows need on each axis,
    with an odd element at the end. A window of 3 at stride 2 then starts at the first element of an
    axis of even length instead of before it.
    """

    kind: ClassVar[str] = "max_pool2d"
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

    kind: ClassVar[str] = "max_pool3d"

    kernel: int
    stride: int

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = volume(inputs[0])
        return (*self.window.slid_over(tuple(places)), channels)


@layer_class
class GlobalAveragePool2D(Layer):
    """Mean over height and width."""

    kind: ClassVar[str] = "global_average_pool2d"

    def output_shape(self, *inputs: Shape) -> Shape:
        return (image(inputs[0])[2],)


@layer_class
class ImagePool2D(Layer):
    """Mean over height and width, as an image of one pixel."""

    kind: ClassVar[str] = "image_pool2d"

    def output_shape(self, *inputs: Shape) -> Shape:
        return 1, 1, image(inputs[0])[2]
