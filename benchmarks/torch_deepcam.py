"""DeepCAM, the segmentation network of MLPerf HPC, in PyTorch: a peer of the package's own.

[mlcommons/hpc, deepcam/src/deepCam/architecture/deeplab_xception.py: Xception-65 and DeepLabv3+
with an output stride of 16, 16 channels in and 3 classes out]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _normalized(layer: nn.Module, channels: int, relu: bool = True) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(channels), *([nn.ReLU()] if relu else []))


def _conv(below: int, above: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    return nn.Conv2d(below, above, kernel, stride, padding, dilation, bias=False)


def _separable(below: int, above: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A convolution of each channel by itself, then one of all channels at each place."""
    depthwise = nn.Conv2d(below, below, 3, stride, dilation, dilation, groups=below, bias=False)
    return nn.Sequential(depthwise, _conv(below, above, 1))


class _Block(nn.Module):
    """Three separable convolutions, of which the last one is not normalized where it strides."""

    def __init__(self, channels: Sequence[int], stride: int = 1) -> None:
        super().__init__()
        first, second, third, fourth = channels
        last: nn.Module = _separable(third, fourth, stride)
        same = first == fourth and stride == 1
        self.body = nn.Sequential(
            _normalized(_separable(first, second), second),
            _normalized(_separable(second, third), third, relu=False),
            _normalized(last, fourth, relu=False) if same else last,
        )
        self.skip: nn.Module = nn.Identity()
        if not same:
            self.skip = _normalized(_conv(first, fourth, 1, stride), fourth, relu=False)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.body(images) + self.skip(images)
        return found


class _Pool(nn.Module):
    """The mean over all places, scaled channel by channel, at each place again."""

    def __init__(self, below: int, above: int) -> None:
        super().__init__()
        self.conv = _conv(below, above, 1)
        self.weight = nn.Parameter(torch.ones(above))
        self.bias = nn.Parameter(torch.zeros(above))

    def forward(self, images: Tensor) -> Tensor:
        found = self.conv(images.mean((2, 3), keepdim=True))
        scaled = torch.relu(found * self.weight[:, None, None] + self.bias[:, None, None])
        return scaled.expand(-1, -1, *images.shape[2:])


def _doubled(below: int, above: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(below, above, 3, 2, 1, output_padding=1, bias=False)


class DeepCAM(nn.Module):
    """From (N, 16, H, W) to logits (N, 3, H, W); 16 divides H and W."""

    def __init__(self) -> None:
        super().__init__()
        stem = (_normalized(_conv(16, 32, 3, 2), 32), _normalized(_conv(32, 64, 3), 64))
        self.entry = nn.Sequential(*stem, _Block((64, 128, 128, 128), 2), nn.ReLU())
        middle = [_Block((728,) * 4) for _ in range(16)]
        self.trunk = nn.Sequential(
            _Block((128, 256, 256, 256), 2),
            _Block((256, 728, 728, 728), 2),
            *middle,
            _Block((728, 728, 1024, 1024)),
            _normalized(_separable(1024, 1536, dilation=2), 1536),
            _normalized(_separable(1536, 1536, dilation=2), 1536),
            _normalized(_separable(1536, 2048, dilation=2), 2048),
        )
        rates = ((1, 1), (3, 6), (3, 12), (3, 18))
        self.pyramid = nn.ModuleList(
            [_normalized(_conv(2048, 256, kernel, 1, rate), 256) for kernel, rate in rates]
        )
        self.pyramid.append(_Pool(2048, 256))
        self.merge = _normalized(_conv(1280, 256, 1), 256)
        self.low = _normalized(_conv(128, 48, 1), 48)
        self.up = nn.Sequential(*(_normalized(_doubled(256, 256), 256) for _ in range(2)))
        self.fuse = nn.Sequential(
            _normalized(_conv(304, 256, 3), 256),
            _normalized(_conv(256, 256, 3), 256),
            nn.Conv2d(256, 256, 1),
        )
        self.out = nn.Sequential(_normalized(_doubled(256, 256), 256), _doubled(256, 3))

    def forward(self, images: Tensor) -> Tensor:
        low = self.entry(images)
        high = self.trunk(low)
        merged = self.merge(torch.cat([each(high) for each in self.pyramid], 1))
        fused = self.fuse(torch.cat([self.up(merged), self.low(low)], 1))
        logits: Tensor = self.out(fused)
        return logits
