"""Layers on vectors and on integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Distribution,
    InitialValue,
    Layer,
    Shape,
    layer_class,
    require,
    require_number,
)
from aiperf_hpc.untrusted.bounds import LARGEST


@layer_class
class Dense(Layer):
    """x @ kernel + bias on vectors. Kernel layout: (in, out).

    An optional L2 penalty of the kernel, l2 times the sum of its squares, is added to the minimized
    loss (its gradient is 2 l2 w). Reported losses do not include it.
    """

    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES

    units: int
    initial: Distribution = Distribution.HE_NORMAL
    """Initial distribution of the kernel; the bias is initially 0."""
    l2: float = 0.0

    def __post_init__(self) -> None:
        Layer.__post_init__(self)
        require_number(self, "l2", 0.0, LARGEST, "a number of at least 0")

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        return {"kernel": self.initial, "bias": 0.0}

    @property
    def penalties(self) -> Mapping[str, float]:
        return {"kernel": self.l2} if self.l2 else {}

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) == 1, f"needs an input (features,), got {inputs[0]}")
        return (self.units,)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (inputs[0][0], self.units), "bias": (self.units,)}

    def with_channels(self, channels: int) -> Self:
        return replace(self, units=channels)


@layer_class
class PositionwiseDense(Dense):
    """A dense layer applied to each vector of a sample: (vectors, in) to (vectors, units)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) == 2, f"needs an input (vectors, features), got {inputs[0]}")
        return inputs[0][0], self.units

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (inputs[0][1], self.units), "bias": (self.units,)}


@layer_class
class Embedding(Layer):
    """An embedding of the integers below ``vocabulary``. Table layout: (vocabulary, channels)."""

    initial_values: ClassVar[Mapping[str, InitialValue]] = {"table": Distribution.STANDARD_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"table"})
    # Unlike a kernel, its table has no input channels, so a morphism cannot widen it.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    vocabulary: int
    channels: int

    def output_shape(self, *inputs: Shape) -> Shape:
        return *inputs[0], self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"table": (self.vocabulary, self.channels)}
