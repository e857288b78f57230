"""What every layer says of itself, and the registry of all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from aiperf_hpc.errors import GraphError
from aiperf_hpc.untrusted.bounds import MOST_SIZE

Shape = tuple[int, ...]


class Distribution(StrEnum):
    """A distribution from which a parameter's first values are drawn."""

    HE_NORMAL = "he_normal"
    """Normal, of mean 0 and variance 2 / fan-in (He et al. 2015)."""
    STANDARD_NORMAL = "standard_normal"
    """Normal, of mean 0 and variance 1."""
    NORMAL_HUNDREDTH = "normal_hundredth"
    """Normal, of mean 0 and standard deviation 0.01."""
    NORMAL_THOUSANDTH = "normal_thousandth"
    """Normal, of mean 0 and standard deviation 0.001."""
    GLOROT_UNIFORM = "glorot_uniform"
    """Uniform, of mean 0 and variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010, eq. 16)."""
    FAN_OUT_TRUNCATED_NORMAL = "fan_out_truncated_normal"
    """Normal, cut off at two deviations, of mean 0 and variance 2 / fan-out: TensorFlow's variance
    scaling by fan-out."""
    FAN_IN_UNIFORM = "fan_in_uniform"
    """Uniform within the root of 1 / fan-in of the layer's kernel: what PyTorch's layers begin
    with."""


InitialValue = Distribution | float
"""How an array begins: drawn, or all of it one number."""


class ChannelRole(Enum):
    """What a layer does with the channels, the last axis, of what it reads."""

    PRODUCES = "produces"
    """A layer that makes as many new ones as it was told to, by a ``kernel`` (..., in, out)."""
    PASSES_ON = "passes on"
    """A layer that gives as many as each of its inputs has, each of the channel at the same
    place."""
    FIXED = "fixed"
    """A layer whose channels the dataset decides: those of a sample, or its classes."""
    REARRANGES = "rearranges"
    """A layer that makes other channels of them, so that no channel can be added to what it
    reads."""


class SlidingWindow(NamedTuple):
    """What a layer slides over an image or a volume; 1 and 1 for one that slides nothing."""

    kernel: int
    """Elements along each axis but the channels'."""
    stride: int
    """Elements that it moves by along each of these axes."""
    dilation: int = 1
    """From one of its elements to the next, along each of these axes."""

    @property
    def padding(self) -> tuple[int, int]:
        """Elements added before and behind each of these axes, dilation (k - 1) together.

        Of an odd number the one more is behind, as in TensorFlow's SAME padding at stride 1.
        """
        added = self.dilation * (self.kernel - 1)
        return added // 2, added - added // 2

    def slid_over(self, places: Shape) -> Shape:
        """Return how often it lies on each axis of some places, padded: n / stride, rounded up."""
        return tuple(math.ceil(n / self.stride) for n in places)


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of a network. Subclasses add their hyperparameters as fields."""

    kind: ClassVar[str]
    """The layer's name in JSON and in counts, unless ``graph/recording.py`` has another for its
    parameters."""
    inputs: ClassVar[tuple[int, int | None]] = (1, 1)
    """Least and most number of inputs; ``None`` is unbounded."""
    commutative: ClassVar[bool] = False
    """Whether the order of its inputs does not matter."""
    decayed: ClassVar[frozenset[str]] = frozenset()
    """The names of the parameters that weight decay shrinks."""
    channel_role: ClassVar[ChannelRole] = ChannelRole.PASSES_ON
    """What it does with the channels of what it reads."""
    normalises: ClassVar[bool] = False
    """Whether it standardises each channel, by the statistics ``mean`` and ``variance``, and then
    scales it by ``gamma`` and shifts it by ``beta``."""
    output_kept: ClassVar[bool] = True
    """Whether its output, as a tensor of its own, waits in memory for the backward pass."""
    unfolds_input: ClassVar[bool] = False
    """Whether it works on a copy of its input, which counts to its working set."""
    follower: ClassVar[bool] = False
    """Whether it belongs to the layer that it follows, element by element, so that the two
    together stand for one layer where networks are described."""
    odd_kernel: ClassVar[bool] = False
    """Whether its kernel must be odd, so that it has a center."""

    def __post_init__(self) -> None:
        """Check fields by their types. Raises GraphError."""
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
        """The type of the numbers that it gives, before an engine lowers their precision."""
        return "float32"

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        """How each parameter and statistic that it can have begins, by its name."""
        return {}

    @property
    def growable_kernel(self) -> bool:
        """Whether morphisms may enlarge its kernel, padded by zeros, and keep its function."""
        return False

    @property
    def window(self) -> SlidingWindow:
        """What it slides over its input."""
        return SlidingWindow(1, 1)

    @property
    def negative_slope(self) -> float | None:
        """The slope below zero of what is the identity above it; None for other functions."""
        return None

    @property
    def penalties(self) -> Mapping[str, float]:
        """By what the sum of a parameter's squares is multiplied and added to the loss that is
        minimized, for the parameters that are penalised so, by their names."""
        return {}

    def output_shape(self, *inputs: Shape) -> Shape:
        """Return the output's shape, here the input's. Raises GraphError if inputs do not fit."""
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each trainable parameter."""
        return {}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each stored value that training updates without a gradient."""
        return {}

    def with_channels(self, channels: int) -> Layer:
        """Return the same layer, making so many channels. Raises GraphError if it makes none."""
        raise GraphError(f"a layer of kind '{self.kind}' makes no channels")


LAYERS: dict[str, type[Layer]] = {}
"""Every layer's class by its kind, as a graph's JSON names it."""

_L = TypeVar("_L", bound=Layer)


@dataclass_transform(frozen_default=True)
def layer_class(cls: type[_L]) -> type[_L]:
    """Make a class a frozen dataclass with slots, and register it by its kind."""
    made: Any = dataclass(frozen=True, slots=True)(cls)
    LAYERS[made.kind] = made
    return made  # type: ignore[no-any-return]


def require(condition: bool, message: str) -> None:
    """Raise GraphError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise GraphError(message)


def image(shape: Shape) -> tuple[int, int, int]:
    """Return height, width and channels. Raises GraphError unless ``shape`` is an image's."""
    require(len(shape) == 3, f"needs an input (height, width, channels), got {shape}")
    return shape[0], shape[1], shape[2]


def volume(shape: Shape) -> tuple[int, int, int, int]:
    """Return depth, height, width and channels. Raises GraphError unless it is a volume's shape."""
    require(len(shape) == 4, f"needs an input (depth, height, width, channels), got {shape}")
    return shape[0], shape[1], shape[2], shape[3]


def require_number(layer: Layer, name: str, least: float, most: float, what: str) -> None:
    """Store a field as a float, so that equal layers have one hash.

    Raises:
        GraphError: it is no number from ``least`` to ``most``, or not what ``what`` describes.
    """
    value = getattr(layer, name)
    number = type(value) is not bool and isinstance(value, int | float)
    require(
        number and least <= value <= most, f"{layer.kind}: {name} must be {what}, got {value!r}"
    )
    object.__setattr__(layer, name, float(value))


def is_size(value: object) -> bool:
    """Return whether ``value`` is a whole number of at least 1, of 31 bits."""
    return type(value) is int and 1 <= value <= MOST_SIZE  # True is an int too, and no size.
