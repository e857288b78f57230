"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

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
    require_sizes,
    volume,
)


@layer_class
class Conv2D(Layer):
    """Bias-free convolution, k x k with odd k, padded by (k - 1) / 2 on every side.

    The symmetric padding makes output positions independent of k, for every stride, so that
    growing a kernel by zeros keeps the function. (TensorFlow's SAME padding does not: with
    stride 2 its windows move when k changes.) Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "conv2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.HE_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    growable_kernel: ClassVar[bool] = True
    unfolds_input: ClassVar[bool] = True

    channels: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        require_sizes(self, "channels", "kernel", "stride")
        require(self.kernel % 2 == 1, f"{self.kind}: kernel must be odd, got {self.kernel}")

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, self.stride)

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return math.ceil(height / self.stride), math.ceil(width / self.stride), self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, image(inputs[0])[2], self.channels)}

    def with_channels(self, channels: int) -> Conv2D:
        return replace(self, channels=channels)


@layer_class
class FanOutConv2D(Conv2D):
    """The same, with a kernel that begins as in TensorFlow's ResNets: by what it gives."""

    kind: ClassVar[str] = "fan_out_conv2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "kernel": Distribution.FAN_OUT_TRUNCATED_NORMAL
    }


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

    def __post_init__(self) -> None:
        require_sizes(self, "channels", "kernel", "stride")
        require(type(self.bias) is bool, f"conv3d: bias must be true or false, got {self.bias!r}")

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

    kernel: int
    stride: int = 1
    dilation: int = 1

    def __post_init__(self) -> None:
        require_sizes(self, "kernel", "stride", "dilation")
        _require_odd(self)

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, self.stride)

    def output_shape(self, *inputs: Shape) -> Shape:
        *places, channels = image(inputs[0])
        return (*self.window.slid_over(tuple(places)), channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, 1, image(inputs[0])[2])}


@layer_class
class AtrousConv2D(Layer):
    """A bias-free convolution whose k x k taps, with odd k, lie ``dilation`` apart, at stride 1.

    Padded by dilation (k - 1) / 2 on every side. Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "atrous_conv2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.HE_NORMAL}
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    unfolds_input: ClassVar[bool] = True

    channels: int
    kernel: int
    dilation: int

    def __post_init__(self) -> None:
        require_sizes(self, "channels", "kernel", "dilation")
        _require_odd(self)

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return height, width, self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, image(inputs[0])[2], self.channels)}

    def with_channels(self, channels: int) -> AtrousConv2D:
        return replace(self, channels=channels)


@layer_class
class UniformConv2D(Layer):
    """A convolution as PyTorch makes it, k x k with odd k, at stride 1; kernel and bias begin
    uniform.

    Padded by (k - 1) / 2 on every side. Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "uniform_conv2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        "kernel": Distribution.FAN_IN_UNIFORM, "bias": Distribution.FAN_IN_UNIFORM
    }  # fmt: skip
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.PRODUCES
    unfolds_input: ClassVar[bool] = True

    channels: int
    kernel: int
    bias: bool = False

    def __post_init__(self) -> None:
        require_sizes(self, "channels", "kernel")
        _require_odd(self)
        require(type(self.bias) is bool, f"{self.kind}: bias must be true or false")

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return height, width, self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        kernel = (self.kernel, self.kernel, image(inputs[0])[2], self.channels)
        return {"kernel": kernel, "bias": (self.channels,)} if self.bias else {"kernel": kernel}

    def with_channels(self, channels: int) -> UniformConv2D:
        return replace(self, channels=channels)


@layer_class
class ConvTranspose2D(Layer):
    """What a bias-free convolution of k x k with odd k at a stride has for its input's gradient.

    An image becomes ``stride`` times as high and as wide: each of its elements is multiplied by
    the kernel, and what falls on one place is added up; (k - 1) / 2 rows and columns before the
    first are left out, and as many behind as are too many. It begins as PyTorch's does.
    Kernel layout: (k, k, out, in).
    """

    kind: ClassVar[str] = "conv_transpose2d"
    initial_values: ClassVar[Mapping[str, InitialValue]] = {"kernel": Distribution.FAN_IN_UNIFORM}
    decayed: ClassVar[frozenset[str]] = frozenset({"kernel"})
    # A kernel whose last axis is not its own channels cannot be widened.
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    unfolds_input: ClassVar[bool] = True

    channels: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        require_sizes(self, "channels", "kernel", "stride")
        _require_odd(self)
        require(
            2 * self.stride <= self.kernel + 1,
            f"{self.kind}: a kernel of {self.kernel} reaches not all places at stride "
            f"{self.stride}; (kernel + 1) / 2 at most",
        )

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow(self.kernel, 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = image(inputs[0])
        return height * self.stride, width * self.stride, self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, self.channels, image(inputs[0])[2])}

    def with_channels(self, channels: int) -> ConvTranspose2D:
        return replace(self, channels=channels)


def _require_odd(layer: AtrousConv2D | ConvTranspose2D | DepthwiseConv2D | UniformConv2D) -> None:
    require(layer.kernel % 2 == 1, f"{layer.kind}: kernel must be odd, got {layer.kernel}")
