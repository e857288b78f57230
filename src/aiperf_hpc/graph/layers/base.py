"""The base class and the registry of layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from aiperf_hpc.errors import GraphError
from aiperf_hpc.untrusted.bounds import MOST_SIZE

Shape = tuple[int, ...]


class Distribution(StrEnum):
    """Distribution of the initial values of a parameter."""

    HE_NORMAL = "he_normal"
    """Normal with mean 0 and variance 2 / fan-in (He et al. 2015)."""
    STANDARD_NORMAL = "standard_normal"
    """Normal with mean 0 and variance 1."""
    NORMAL_HUNDREDTH = "normal_hundredth"
    """Normal with mean 0 and standard deviation 0.01."""
    NORMAL_THOUSANDTH = "normal_thousandth"
    """Normal with mean 0 and standard deviation 0.001."""
    GLOROT_UNIFORM = "glorot_uniform"
    """Uniform with mean 0 and variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010, eq. 16)."""
    FAN_OUT_TRUNCATED_NORMAL = "fan_out_truncated_normal"
    """Normal truncated at two standard deviations, with mean 0 and variance 2 / fan-out, as in
    TensorFlow's variance scaling by fan-out."""
    FAN_IN_UNIFORM = "fan_in_uniform"
    """Uniform in [-b, b] with b = sqrt(1 / fan-in) of the layer's kernel, as in PyTorch's
    layers."""


InitialValue = Distribution | float
"""Initial values of an array: a distribution or a constant."""


class ChannelRole(Enum):
    """Relation between the input channels (last axis) and the output channels of a layer."""

    PRODUCES = "produces"
    """The layer produces a configured number of new channels with a ``kernel`` (..., in, out)."""
    PASSES_ON = "passes on"
    """The layer has the same channels as each of its inputs; each output channel depends on the
    input channels at the same position."""
    FIXED = "fixed"
    """The dataset determines the channels: those of a sample, or its classes."""
    REARRANGES = "rearranges"
    """The layer rearranges its input channels, so that no channel can be added to its input."""


class SlidingWindow(NamedTuple):
    """Sliding window over an image or a volume; kernel 1 and stride 1 for other layers."""

    kernel: int
    """Size along each axis except the channels."""
    stride: int
    """Step along each of these axes."""
    dilation: int = 1
    """Distance between its elements along each of these axes."""

    @property
    def padding(self) -> tuple[int, int]:
        """Padding before and after each of these axes; the sum is dilation (k - 1).

        If the sum is odd, the additional element is at the end, as in TensorFlow's SAME padding at
        stride 1.
        """
        added = self.dilation * (self.kernel - 1)
        return added // 2, added - added // 2

    def slid_over(self, places: Shape) -> Shape:
        """Return the number of window positions on each padded axis: n / stride, rounded up."""
        return tuple(math.ceil(n / self.stride) for n in places)


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of a network. Subclasses add their hyperparameters as fields."""

    kind: ClassVar[str]
    """Name of the layer in JSON and in counts, the class's name in snake case, unless
    ``graph/graph.py`` has another for its parameters."""
    inputs: ClassVar[tuple[int, int | None]] = (1, 1)
    """Minimum and maximum number of inputs; ``None`` is unlimited."""
    commutative: ClassVar[bool] = False
    """Whether the order of the inputs is irrelevant."""
    decayed: ClassVar[frozenset[str]] = frozenset()
    """Names of the parameters subject to weight decay."""
    channel_role: ClassVar[ChannelRole] = ChannelRole.PASSES_ON
    """Relation between input channels and output channels."""
    normalizes: ClassVar[bool] = False
    """Whether the layer standardizes each channel by the statistics ``mean`` and ``variance``, then
    scales it by ``gamma`` and shifts it by ``beta``."""
    output_kept: ClassVar[bool] = True
    """Whether its output is a separate tensor that is stored for the backward pass."""
    unfolds_input: ClassVar[bool] = False
    """Whether the layer works on a copy of its input, which is part of its working set."""
    follower: ClassVar[bool] = False
    """Whether the layer is element-wise and is shown together with the preceding layer in
    descriptions of networks."""
    odd_kernel: ClassVar[bool] = False
    """Whether the kernel size must be odd, so that the kernel has a center."""

    def __post_init__(self) -> None:
        """Validate fields by type. Raises GraphError."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                fits, what = is_size(value), "a whole number of at least 1"
            elif field.type == "bool":
                fits, what = type(value) is bool, "true or false"
            elif field.type == "Distribution":
                fits, what = value in list(Distribution), f"one of {', '.join(Distribution)}"
            else:
                continue
            require(fits, f"{self.kind}: {field.name} must be {what}, got {value!r}")
            if field.type == "Distribution":
                object.__setattr__(self, field.name, Distribution(value))
        kernel = getattr(self, "kernel", 1)
        require(
            not self.odd_kernel or kernel % 2 == 1, f"{self.kind}: kernel must be odd, got {kernel}"
        )

    @property
    def dtype(self) -> str:
        """Type of the output, before an engine reduces its precision."""
        return "float32"

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        """Initial values of each possible parameter and statistic, by name."""
        return {}

    @property
    def growable_kernel(self) -> bool:
        """Whether morphisms can enlarge the kernel with zeros without changing the function."""
        return False

    @property
    def window(self) -> SlidingWindow:
        """Sliding window over the input, by the fields ``kernel``, ``stride`` and ``dilation``."""
        return SlidingWindow(*(getattr(self, name, 1) for name in SlidingWindow._fields))

    @property
    def negative_slope(self) -> float | None:
        """Slope for negative inputs of a layer that is the identity for positive ones, or None."""
        return None

    @property
    def penalties(self) -> Mapping[str, float]:
        """Factors of the L2 penalties in the minimized loss (times the sum of squares), by
        parameter."""
        return {}

    def output_shape(self, *inputs: Shape) -> Shape:
        """Return the output shape, by default the input's. Raises GraphError for invalid inputs."""
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each trainable parameter."""
        return {}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each array that training updates without a gradient."""
        return {}

    def with_channels(self, channels: int) -> Layer:
        """Return the layer with ``channels`` channels. Raises GraphError if it produces none."""
        raise GraphError(f"a layer of kind '{self.kind}' makes no channels")


LAYERS: dict[str, type[Layer]] = {}
"""Layer classes by kind, their name in a graph's JSON."""

_L = TypeVar("_L", bound=Layer)


@dataclass_transform(frozen_default=True)
def layer_class(cls: type[_L]) -> type[_L]:
    """Convert a class to a frozen dataclass with slots, and register it by its kind."""
    made: Any = dataclass(frozen=True, slots=True)(cls)
    made.kind = re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
    LAYERS[made.kind] = made
    return made  # type: ignore[no-any-return]


def require(condition: bool, message: str) -> None:
    """Raise GraphError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise GraphError(message)


def image(shape: Shape) -> tuple[int, int, int]:
    """Return height, width and channels. Raises GraphError if it is not the shape of an image."""
    require(len(shape) == 3, f"needs an input (height, width, channels), got {shape}")
    return shape[0], shape[1], shape[2]


def volume(shape: Shape) -> tuple[int, int, int, int]:
    """Return depth, height, width and channels. Raises GraphError if it is not that of a volume."""
    require(len(shape) == 4, f"needs an input (depth, height, width, channels), got {shape}")
    return shape[0], shape[1], shape[2], shape[3]


def require_number(layer: Layer, name: str, least: float, most: float, what: str) -> None:
    """Store a field as a float, so that equal layers have one hash.

    Raises:
        GraphError: it is not a number from ``least`` to ``most``; ``what`` describes the range.
    """
    value = getattr(layer, name)
    number = type(value) is not bool and isinstance(value, int | float)
    require(
        number and least <= value <= most, f"{layer.kind}: {name} must be {what}, got {value!r}"
    )
    object.__setattr__(layer, name, float(value))


def is_size(value: object) -> bool:
    """Return whether ``value`` is a positive 31-bit integer."""
    return type(value) is int and 1 <= value <= MOST_SIZE  # True is also an int.
