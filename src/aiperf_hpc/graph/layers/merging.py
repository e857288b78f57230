"""Layers that make one of several inputs."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import ChannelRole, Layer, Shape, layer_class, require


@layer_class
class Add(Layer):
    """Element-wise sum of two or more inputs of one shape."""

    kind: ClassVar[str] = "add"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    commutative: ClassVar[bool] = True
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(set(inputs)) == 1, f"adds inputs of different shapes {inputs}")
        return inputs[0]


@layer_class
class Concat(Layer):
    """The channels of two or more inputs behind each other, in their order."""

    kind: ClassVar[str] = "concat"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def output_shape(self, *inputs: Shape) -> Shape:
        require(
            len({shape[:-1] for shape in inputs}) == 1,
            f"puts inputs behind each other that differ in more than channels: {inputs}",
        )
        return *inputs[0][:-1], sum(shape[-1] for shape in inputs)
