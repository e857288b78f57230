"""Layers with parameters: convolutions, dense layers, embeddings and normalization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Distribution,
    InitialValue,
    Layer,
    Shape,
    SlidingWindow,
    image,
    layer_class,
    require,
    require_number,
    volume,
)
from aiperf_hpc.untrusted.bounds import LARGEST


@dataclass(frozen=True, slots=True)
class _Convolution(Layer):
    """Base class of convolutions; by default of images, k x k with odd k, no bias, stride 1.

    The padding of (k - 1) / 2 on every side preserves the image size. Kernel layout:
    (k, k, in, out).
    """

    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    unfolds_input: ClassVar[bool] = True
    odd_kernel: ClassVar[bool] = True

    channels: int
    kernel: int

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        return {"kernel": Distribution.HE_NORMAL}

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, _ = image(inputs[0])
        return (*self.window.slid_over(tuple(places)), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, inputs[0][-1], self.channels)}

    def with_channels(self, channels: int) -> Self:
        return replace(self, channels=channels)


@dataclass(frozen=True, slots=True)
class _StridedConvolution(_Convolution):
    """A convolution with any stride: a side of n becomes n / stride, rounded up."""

    stride: int = 1


@layer_class
class Conv2D(_StridedConvolution):
    """Convolution, k x k with odd k, padded by (k - 1) / 2 on every side.

    With symmetric padding, output positions do not depend on k for any stride, so that enlarging a
    kernel with zeros preserves the function. (With TensorFlow's SAME padding and stride 2, windows
    shift if k changes.) Kernel layout: (k, k, in, out).
    """

    initial: Distribution = Distribution.HE_NORMAL
    """Initial distribution of the kernel. A bias is uniform if the kernel is (PyTorch), or 0."""
    bias: bool = False

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        uniform = self.initial is Distribution.FAN_IN_UNIFORM
        return {"kernel": self.initial, "bias": self.initial if uniform else 0.0}

    @property
    def growable_kernel(self) -> bool:
        # The other distributions are for networks without a search.
        return not self.bias and self.initial is not Distribution.FAN_IN_UNIFORM

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        kernel = _StridedConvolution.parameters(self, *inputs)
        return {**kernel, "bias": (self.channels,)} if self.bias else kernel


@layer_class
class Conv3D(_StridedConvolution):
    """Convolution of volumes, k x k x k with any k, with an optional bias.

    Padded by (k - 1) // 2 before and k // 2 after each axis. Kernel layout: (k, k, k, in, out).
    """

    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "kernel": Distribution.GLOROT_UNIFORM, "bias": 0.0
    }  # fmt: skip
    odd_kernel: ClassVar[bool] = False

    bias: bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, _ = volume(inputs[0])
        return (*self.window.slid_over(tuple(places)), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        kernel = (*[self.kernel] * 3, volume(inputs[0])[3], self.channels)
        return {"kernel": kernel, "bias": (self.channels,)} if self.bias else {"kernel": kernel}


@layer_class
class DepthwiseConv2D(Layer):
    """A depthwise convolution, k x k with odd k, without a bias.

    Padded by dilation (k - 1) / 2 on every side. Kernel layout: (k, k, 1, channels).
    """

    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.HE_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    # The kernel has one channel per input channel, so channels cannot be added independently.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    odd_kernel: ClassVar[bool] = True

    kernel: int
    stride: int = 1
    dilation: int = 1

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = image(inputs[0])
        return (*self.window.slid_over(tuple(places)), channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, 1, image(inputs[0])[2])}


@layer_class
class AtrousConv2D(_Convolution):
    """A dilated convolution without a bias, k x k with odd k, at stride 1.

    Padded by dilation (k - 1) / 2 on every side. Kernel layout: (k, k, in, out).
    """

    dilation: int


@layer_class
class RegionConv2D(_StridedConvolution):
    """A ``Conv2D`` applied to each region separately: (regions, height, width, channels).

    Kernel layout: (k, k, in, out).
    """

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, *places, _ = volume(inputs[0])
        return (regions, *self.window.slid_over(tuple(places)), self.channels)


@layer_class
class ConvTranspose2D(_Convolution):
    """A transposed convolution without a bias, k x k with odd k.

    The height and width of the image are multiplied by ``stride``. Each element is multiplied by
    the kernel, and overlapping results are added. The first (k - 1) / 2 rows and columns are
    cropped, and the excess at the end. The initialization is that of PyTorch. Kernel layout:
    (k, k, out, in).
    """

    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.FAN_IN_UNIFORM}
    # A kernel cannot be widened if its last axis is not the output channels.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    stride: int

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1)

    def __post_init__(self) -> None:
        Layer.__post_init__(self)
        require(
            2 * self.stride <= self.kernel + 1,
            f"{self.kind}: a kernel of {self.kernel} does not cover all positions at stride "
            f"{self.stride}; use at most (kernel + 1) / 2",
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return height * self.stride, width * self.stride, self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, self.channels, image(inputs[0])[2])}


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
        return {"kernel": (inputs[0][-1], self.units), "bias": (self.units,)}

    def with_channels(self, channels: int) -> Self:
        return replace(self, units=channels)


@layer_class
class PositionwiseDense(Dense):
    """A dense layer applied to each vector of a sample: (vectors, in) to (vectors, units)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) == 2, f"needs an input (vectors, features), got {inputs[0]}")
        return inputs[0][0], self.units


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


@layer_class
class BatchNorm(Layer):
    """Batch normalization over all but the last axis, with scale (gamma) and shift (beta)."""

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

    initial_values: ClassVar[Mapping[str, InitialValue]] = {"scale": 1.0, "shift": 0.0}
    # It has a parameter per input channel, which no morphism adds.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"scale": inputs[0][-1:], "shift": inputs[0][-1:]}
