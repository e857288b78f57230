"""Activations, which change each element by itself, and the softmax."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import ChannelRole, Layer, Shape, layer_class


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
class Softmax(Layer):
    """exp(x) / sum(exp(x)) over the last axis."""

    kind: ClassVar[str] = "softmax"
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]
