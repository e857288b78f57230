"""Layers on vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Distribution,
    InitialValue,
    Layer,
    Shape,
    layer_class,
    require,
    require_sizes,
)


@layer_class
class Dense(Layer):
    """x @ kernel + bias on vectors. Kernel layout: (in, out)."""

    kind: ClassVar[str] = "dense"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "kernel": Distribution.HE_NORMAL, "bias": 0.0
    }  # fmt: skip
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES

    units: int

    def __post_init__(self) -> None:
        require_sizes(self, "units")

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) == 1, f"needs an input (features,), got {inputs[0]}")
        return (self.units,)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (inputs[0][0], self.units), "bias": (self.units,)}

    def with_channels(self, channels: int) -> Dense:
        return replace(self, units=channels)
