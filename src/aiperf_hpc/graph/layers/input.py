"""Where samples come in."""

from __future__ import annotations

from typing import ClassVar

from aiperf_hpc.graph.layers.base import ChannelRole, Layer, Shape, is_size, layer_class, require
from aiperf_hpc.untrusted.bounds import MOST_AXES


@layer_class
class Input(Layer):
    """The samples of a dataset, of one fixed shape."""

    kind: ClassVar[str] = "input"
    inputs: ClassVar[tuple[int, int | None]] = (0, 0)
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        require(
            0 < len(self.shape) <= MOST_AXES and all(is_size(n) for n in self.shape),
            f"input: every dimension must be at least 1, got {self.shape}"[:200],
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.shape


@layer_class
class IntegerInput(Input):
    """Samples that are integers, such as the numbers of words."""

    kind: ClassVar[str] = "integer_input"

    @property
    def dtype(self) -> str:
        return "int32"
