"""ResNet-50 for any input size and class count.

Version 1 (He et al. 2016) is the initial network of the search. Version 1.5 is used by many public
benchmarks, including HPC AI500.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    Distribution,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    MaxPool2D,
    Node,
    ReLU,
    Shape,
    Softmax,
)

RESNET50_BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


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


class _GraphBuilder:
    """Builder of a graph; each method appends nodes and returns the name of the last."""

    def __init__(self, version: Version) -> None:
        self.nodes: list[Node] = []
        self.version = version

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        self.nodes.append(Node(name, layer, inputs))
        return name

    def conv_norm(self, name: str, source: str, channels: int, kernel: int, stride: int) -> str:
        layer = Conv2D(channels, kernel, stride, self.version.initial)
        conv = self.add(f"{name}_conv", layer, source)
        return self.add(f"{name}_norm", BatchNorm(), conv)

    def conv_norm_relu(
        self, name: str, source: str, channels: int, kernel: int, stride: int
    ) -> str:
        norm = self.conv_norm(name, source, channels, kernel, stride)
        return self.add(f"{name}_relu", ReLU(), norm)

    def bottleneck(self, name: str, source: str, width: int, stride: int, project: bool) -> str:
        """1x1 - 3x3 - 1x1, the stride on one of the first two."""
        first, second = (1, stride) if self.version.strided_3x3 else (stride, 1)
        reduced = self.conv_norm_relu(f"{name}_a", source, width, 1, first)
        spatial = self.conv_norm_relu(f"{name}_b", reduced, width, 3, second)
        expanded = self.conv_norm(f"{name}_c", spatial, EXPANSION * width, 1, 1)
        shortcut = source
        if project:
            shortcut = self.conv_norm(f"{name}_shortcut", source, EXPANSION * width, 1, stride)
        total = self.add(f"{name}_add", Add(), expanded, shortcut)
        return self.add(f"{name}_relu", ReLU(), total)


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
    net = _GraphBuilder(version)
    last = net.add("image", Input(input_shape))
    if stem == "imagenet":
        last = net.conv_norm_relu("stem", last, base_width, 7, 2)
        last = net.add("stem_pool", MaxPool2D(3, 2, version.same), last)
    else:
        last = net.conv_norm_relu("stem", last, base_width, 3, 1)
    for stage, number in enumerate(blocks):
        width = base_width * 2**stage
        for block in range(number):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            last = net.bottleneck(f"s{stage + 1}b{block + 1}", last, width, stride, first)
    last = net.add("pool", GlobalAveragePool2D(), last)
    last = net.add("logits", Dense(classes, version.initial), last)
    net.add("probabilities", Softmax(), last)
    return Graph(tuple(net.nodes))
