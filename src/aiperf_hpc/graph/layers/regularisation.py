"""Layers that make training harder, so that it generalises, and change nothing in inference."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import Layer, Shape, layer_class, require


@layer_class
class Dropout(Layer):
    """Zeros in place of a share ``rate`` of all elements in training; the identity in inference.

    Inverted dropout (Srivastava et al. 2014): what is kept is divided by 1 - rate in training, so
    that each element keeps its mean. Each element is dropped or kept by itself.
    """

    kind: ClassVar[str] = "dropout"
    follower: ClassVar[bool] = True

    rate: float

    def __post_init__(self) -> None:
        number = type(self.rate) is not bool and isinstance(self.rate, int | float)
        require(
            number and 0.0 <= self.rate < 1.0,
            f"dropout: rate must be a number from 0 to below 1, got {self.rate!r}",
        )
        object.__setattr__(self, "rate", float(self.rate))  # One number, one hash.

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]
