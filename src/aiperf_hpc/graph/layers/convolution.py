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
