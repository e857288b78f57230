"""A hand-written ResNet-50 for PyTorch: the network of the benchmarks' peers."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of each."""
EXPANSION = 4


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias and its normalisation."""
    padding = kernel // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and the shortcut; the stride is in the first (v1, He et al. 2015), or in the
    3x3 (v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int, *, strided_3x3: bool) -> None:
        super().__init__()
        outputs = width * EXPANSION
        first, second = (1, stride) if strided_3x3 else (stride, 1)
        self.branch = nn.Sequential(
            conv_norm(inputs, width, 1, first),
            nn.ReLU(inplace=True),
            conv_norm(width, width, 3, second),
            nn.ReLU(inplace=True),
            conv_norm(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.relu(self.branch(images) + self.shortcut(images)))


def resnet50(classes: int = 1000, *, strided_3x3: bool = False) -> nn.Sequential:
    """Return the network from images (samples, 3, height, width) to logits."""
    layers: list[nn.Module] = [
        conv_norm(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, blocks, first in STAGES:
        for block in range(blocks):
            stride = first if block == 0 else 1
            layers.append(Bottleneck(channels, width, stride, strided_3x3=strided_3x3))
            channels = width * EXPANSION
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return nn.Sequential(*layers, *head)
