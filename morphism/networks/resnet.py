"""The initial network: ResNet-50 v1 (He et al. 2016), for any input size and class count."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
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


class _GraphBuilder:
    """Appends nodes and remembers them; each method returns the name of its last node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        self.nodes.append(Node(name, layer, inputs))
        return name

    def conv_norm(self, name: str, source: str, channels: int, kernel: int, stride: int) -> str:
        conv = self.add(f"{name}_conv", Conv2D(channels, kernel, stride), source)
        return self.add(f"{name}_norm", BatchNorm(), conv)

    def conv_norm_relu(
        self, name: str, source: str, channels: int, kernel: int, stride: int
    ) -> str:
        norm = self.conv_norm(name, source, channels, kernel, stride)
        return self.add(f"{name}_relu", ReLU(), norm)

    def bottleneck(self, name: str, source: str, width: int, stride: int, project: bool) -> str:
        """1x1 - 3x3 - 1x1 with the stride on the first 1x1, as in v1."""
        reduced = self.conv_norm_relu(f"{name}_a", source, width, 1, stride)
        spatial = self.conv_norm_relu(f"{name}_b", reduced, width, 3, 1)
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
) -> Graph:
    """Return ResNet-50 v1: 50 layers with a kernel, the stride on the first 1x1 of a stage.

    Args:
        input_shape: (height, width, channels).
        classes: outputs of the softmax.
        stem: ``imagenet`` is 7x7 stride 2 and a 3x3 max-pool stride 2; ``cifar`` is 3x3
            stride 1 without a max-pool, for small images.
        base_width: channels of the stem, 64 in ResNet-50; all others scale with it.
        blocks: of each stage; fewer than ResNet-50's make a network of its kind with fewer layers.

    Raises:
        GraphError: a dimension is below 1.
    """
    net = _GraphBuilder()
    last = net.add("image", Input(input_shape))
    if stem == "imagenet":
        last = net.conv_norm_relu("stem", last, base_width, 7, 2)
        last = net.add("stem_pool", MaxPool2D(3, 2), last)
    else:
        last = net.conv_norm_relu("stem", last, base_width, 3, 1)
    for stage, number in enumerate(blocks):
        width = base_width * 2**stage
        for block in range(number):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            last = net.bottleneck(f"s{stage + 1}b{block + 1}", last, width, stride, first)
    last = net.add("pool", GlobalAveragePool2D(), last)
    last = net.add("logits", Dense(classes), last)
    net.add("probabilities", Softmax(), last)
    return Graph(tuple(net.nodes))
