"""Batch normalization, channel-wise scale and shift, and dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    InitialValue,
    Layer,
    Shape,
    layer_class,
    require_number,
)


@layer_class
class BatchNorm(Layer):
    """Batch normalization over all but the last axis, with scale (gamma) and shift (beta)."""

    kind: ClassVar[str] = "batch_norm"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0
    }  # fmt: skip
    normalizes: ClassVar[bool] = True
    output_kept: ClassVar[bool] = False
    follower: ClassVar[bool] = True
    epsilon: ClassVar[float] = 1e-5
    """Number added to the variance before its square root."""
    momentum: ClassVar[float] = 0.9
    """Fraction of the running statistics that a training step retains."""

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"gamma": inputs[0][-1:], "beta": inputs[0][-1:]}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        return {"mean": inputs[0][-1:], "variance": inputs[0][-1:]}


@layer_class
class ChannelAffine(Layer):
    """scale * x + shift per channel: the trainable part of a normalization."""

    kind: ClassVar[str] = "channel_affine"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"scale": 1.0, "shift": 0.0}
    # It has a parameter per input channel, which no morphism adds.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"scale": inputs[0][-1:], "shift": inputs[0][-1:]}


@layer_class
class Dropout(Layer):
    """Dropout of a fraction ``rate`` of the elements in training; the identity in inference.

    Inverted dropout (Srivastava et al. 2014): remaining elements are divided by 1 - rate in
    training, which preserves their mean. Elements are dropped independently.
    """

    kind: ClassVar[str] = "dropout"
    follower: ClassVar[bool] = True

    rate: float

    def __post_init__(self) -> None:
        below_one = math.nextafter(1.0, 0.0)
        require_number(self, "rate", 0.0, below_one, "a number from 0 to below 1")
