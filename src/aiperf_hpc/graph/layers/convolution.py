"""Convolutions."""

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
    volume,
)


@dataclass(frozen=True, slots=True)
class _OddConv2D(Layer):
    """What convolutions of images have in common: k x k with odd k, without a bias, at stride 1.

    Padded by (k - 1) / 2 on every side, so that an image keeps its size. Kernel layout:
    (k, k, in, out).
    """

    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    unfolds_input: ClassVar[bool] = True
    odd_kernel: ClassVar[bool] = True

    channels: int
    kernel: int

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1)

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        return {"kernel": Distribution.HE_NORMAL}

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, _ = image(inputs[0])
        return (*self.window.slid_over(tuple(places)), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, image(inputs[0])[2], self.channels)}

    def with_channels(self, channels: int) -> Self:
        return replace(self, channels=channels)


@dataclass(frozen=True, slots=True)
class _StridedConv2D(_OddConv2D):
    """The same at any stride: a side of n places becomes one of n / stride, rounded up."""

    stride: int = 1

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, self.stride)


@layer_class
class Conv2D(_StridedConv2D):
    """Convolution, k x k with odd k, padded by (k - 1) / 2 on every side.

    The symmetric padding makes output positions independent of k, for every stride, so that
    growing a kernel by zeros keeps the function. (TensorFlow's SAME padding does not: with
    stride 2 its windows move when k changes.) Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "conv2d"

    initial: Distribution = Distribution.HE_NORMAL
    """The kernel's. A bias begins uniform with a kernel that does, as in PyTorch, or at 0."""
    bias: bool = False

    @property
    def initial_values(self) -> Mapping[str, InitialValue]:
        uniform = self.initial is Distribution.FAN_IN_UNIFORM
        return {"kernel": self.initial, "bias": self.initial if uniform else 0.0}

    @property
    def growable_kernel(self) -> bool:
        # The others belong to networks that no search grows.
        return not self.bias and self.initial is not Distribution.FAN_IN_UNIFORM

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        kernel = _StridedConv2D.parameters(self, *inputs)
        return {**kernel, "bias": (self.channels,)} if self.bias else kernel


@layer_class
class Conv3D(Layer):
    """Convolution of volumes, k x k x k with any k, with a bias where it is asked for.

    Padded by (k - 1) // 2 before and k // 2 behind each axis. Kernel layout: (k, k, k, in, out).
    """

    kind: ClassVar[str] = "conv3d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "kernel": Distribution.GLOROT_UNIFORM, "bias": 0.0
    }  # fmt: skip
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    unfolds_input: ClassVar[bool] = True

    channels: int
    kernel: int
    stride: int = 1
    bias: bool = False

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, self.stride)

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, _ = volume(inputs[0])
        return (*self.window.slid_over(tuple(places)), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        kernel = (*[self.kernel] * 3, volume(inputs[0])[3], self.channels)
        return {"kernel": kernel, "bias": (self.channels,)} if self.bias else {"kernel": kernel}

    def with_channels(self, channels: int) -> Conv3D:
        return replace(self, channels=channels)


@layer_class
class DepthwiseConv2D(Layer):
    """A convolution of each channel by itself, k x k with odd k, without a bias.

    Padded by dilation (k - 1) / 2 on every side. Kernel layout: (k, k, 1, channels).
    """

    kind: ClassVar[str] = "depthwise_conv2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.HE_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    # Its kernel has a channel of its own for each that it reads: none can be added alone.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    odd_kernel: ClassVar[bool] = True

    kernel: int
    stride: int = 1
    dilation: int = 1

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, self.stride, self.dilation)

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = image(inputs[0])
        return (*self.window.slid_over(tuple(places)), channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, 1, image(inputs[0])[2])}


@layer_class
class AtrousConv2D(_OddConv2D):
    """A bias-free convolution whose k x k taps, with odd k, lie ``dilation`` apart, at stride 1.

    Padded by dilation (k - 1) / 2 on every side. Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "atrous_conv2d"

    dilation: int

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1, self.dilation)


@layer_class
class RegionConv2D(_StridedConv2D):
    """A convolution of each region by itself, as ``Conv2D``: (regions, height, width, channels).

    Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "region_conv2d"

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, *places, _ = volume(inputs[0])
        return (regions, *self.window.slid_over(tuple(places)), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, volume(inputs[0])[3], self.channels)}


@layer_class
class ConvTranspose2D(_OddConv2D):
    """What a bias-free convolution of k x k with odd k at a stride has for its input's gradient.

    An image becomes ``stride`` times as high and as wide: each of its elements is multiplied by
    the kernel, and what falls on one place is added up; (k - 1) / 2 rows and columns before the
    first are left out, and as many behind as are too many. It begins as PyTorch's does.
    Kernel layout: (k, k, out, in).
    """

    kind: ClassVar[str] = "conv_transpose2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.FAN_IN_UNIFORM}
    # A kernel whose last axis is not its own channels cannot be widened.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES

    stride: int

    def __post_init__(self) -> None:
        Layer.__post_init__(self)
        require(
            2 * self.stride <= self.kernel + 1,
            f"{self.kind}: a kernel of {self.kernel} reaches not all places at stride "
            f"{self.stride}; (kernel + 1) / 2 at most",
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return height * self.stride, width * self.stride, self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, self.channels, image(inputs[0])[2])}
