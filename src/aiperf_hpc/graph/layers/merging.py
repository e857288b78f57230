"""Layers that make one of several inputs."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import Layer, Shape, layer_class, require


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
