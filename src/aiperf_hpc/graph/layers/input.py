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
    dtype: str = "float32"
    """``int32`` for samples that are integers, such as the numbers of words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        require(
            0 < len(self.shape) <= MOST_AXES and all(is_size(n) for n in self.shape),
            f"input: every dimension must be at least 1, got {self.shape}"[:200],
        )
        known = self.dtype in ("float32", "int32")
        require(known, f"input: dtype must be float32 or int32, got {self.dtype!r}")

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.shape
