"""Layers that give what they read in another shape."""

from __future__ import annotations

import math
from typing import ClassVar

from aiperf_hpc.graph.layers.base import ChannelRole, Layer, Shape, layer_class


@layer_class
class Flatten(Layer):
    """All elements of a sample as one vector, channels last: row-major over (h, w, c)."""

    kind: ClassVar[str] = "flatten"
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        return (math.prod(inputs[0]),)
