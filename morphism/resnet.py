"""ResNet-50 for any input size and class count.

Version 1 (He et al. 2016) is the initial network of the search. Version 1.5 is used by many public
benchmarks, including HPC AI500.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from aiperf_hpc.graph import Distribution, Graph, GraphBuilder, Layer, Node, Shape, layers

RESNET50_BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
"""Ratio of a block's output channels to those of its 3x3 convolution."""


@dataclass(frozen=True, slots=True)
class Version:
    """Differences between versions of ResNet-50; all have the same number of parameters."""

    strided_3x3: bool
    """Whether the stride of a stage is in its first 3x3 convolution instead of the 1x1 before."""
    initial: Distribution
    """Initializer of kernels."""
    same: bool
    """Whether the max-pooling uses TensorFlow's SAME padding."""


V1 = Version(strided_3x3=False, initial=Distribution.HE_NORMAL, same=False)
"""Version of He et al. 2016. Its windows do not shift when a kernel is enlarged."""
V1_5 = Version(strided_3x3=True, initial=Distribution.FAN_OUT_TRUNCATED_NORMAL, same=True)
"""NVIDIA's version in TensorFlow. It reads all pixels, where a strided 1x1 convolution skips three
of four, for 6 % more operations."""


class ResNetBuilder(GraphBuilder):
    """Builder of residual networks; each method returns the name of the last node that it adds."""

    def conv_norm(self, name: str, source: str, conv: Layer) -> str:
        return self.add(f"{name}_norm", layers.BatchNorm(), self.add(f"{name}_conv", conv, source))

    def conv_norm_relu(self, name: str, source: str, conv: Layer) -> str:
        return self.add(f"{name}_relu", layers.ReLU(), self.conv_norm(name, source, conv))

    def bottleneck(
        self,
        name: str,
        source: str,
        width: int,
        strides: tuple[int, int],
        project: bool,
        conv: Callable[[int, int, int], Layer] = layers.Conv2D,
    ) -> str:
        """1x1 - 3x3 - 1x1 and a shortcut.

        Args:
            name: beginning of the nodes' names.
            source: name of the node that it reads.
            width: channels of the 3x3 convolution.
            strides: strides of the first two convolutions, of which one is 1.
            project: whether the shortcut has a convolution.
            conv: makes a convolution of channels, kernel size and stride.
        """
        reduced = self.conv_norm_relu(f"{name}_a", source, conv(width, 1, strides[0]))
        spatial = self.conv_norm_relu(f"{name}_b", reduced, conv(width, 3, strides[1]))
        expanded = self.conv_norm(f"{name}_c", spatial, conv(EXPANSION * width, 1, 1))
        if project:
            shortcut = conv(EXPANSION * width, 1, math.prod(strides))
            source = self.conv_norm(f"{name}_shortcut", source, shortcut)
        total = self.add(f"{name}_add", layers.Add(), expanded, source)
        return self.add(f"{name}_relu", layers.ReLU(), total)


def resnet50(
    input_shape: Shape = (224, 224, 3),
    classes: int = 1000,
    *,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    base_width: int = 64,
    blocks: tuple[int, int, int, int] = RESNET50_BLOCKS,
    version: Version = V1,
) -> Graph:
    """Return ResNet-50: 50 layers with a kernel.

    Args:
        input_shape: (height, width, channels).
        classes: outputs of the softmax.
        stem: ``imagenet`` is 7x7 stride 2 and a 3x3 max-pool stride 2; ``cifar`` is 3x3
            stride 1 without a max-pool, for small images.
        base_width: channels of the stem, 64 in ResNet-50; all others scale with it.
        blocks: residual blocks of each stage.
        version: version of ResNet-50.

    Raises:
        GraphError: a dimension is below 1.
    """
    net = ResNetBuilder(Node("image", layers.Input(input_shape)))
    conv = partial(layers.Conv2D, initial=version.initial)
    if stem == "imagenet":
        net.conv_norm_relu("stem", net.last, conv(base_width, 7, 2))
        net.add("stem_pool", layers.MaxPool2D(3, 2, version.same))
    else:
        net.conv_norm_relu("stem", net.last, conv(base_width, 3, 1))
    for stage, number in enumerate(blocks):
        width = base_width * 2**stage
        for block in range(number):
            stride = 2 if block == 0 and stage > 0 else 1
            strides = (1, stride) if version.strided_3x3 else (stride, 1)
            name = f"s{stage + 1}b{block + 1}"
            net.bottleneck(name, net.last, width, strides, block == 0, conv)
    net.add("pool", layers.GlobalAveragePool2D())
    net.add("logits", layers.Dense(classes, version.initial))
    net.add("probabilities", layers.Softmax())
    return net.graph()
