"""Layers that read integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Distribution,
    InitialValue,
    Layer,
    Shape,
    layer_class,
    require_sizes,
)


@layer_class
class Embedding(Layer):
    """A vector for each integer below ``vocabulary``. Table layout: (vocabulary, channels)."""

    kind: ClassVar[str] = "embedding"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"table": Distribution.STANDARD_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"table"})
    # Its table has no channels to read, as a kernel has, so that a morphism cannot widen it.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    vocabulary: int
    channels: int

    def __post_init__(self) -> None:
        require_sizes(self, "vocabulary", "channels")

    def output_shape(self, *inputs: Shape) -> Shape:
        return *inputs[0], self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"table": (self.vocabulary, self.channels)}
