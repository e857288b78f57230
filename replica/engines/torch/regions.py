"""Implementation of a detector's layers in the ``torch`` engine; see ``torch.layers``.

Regions are (samples, channels, regions, height, width) in channels-last memory, so that the regions
of all samples can be viewed as images without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from aiperf_hpc.graph import Layer, Node, layers
from aiperf_hpc.graph.layers.regions import BOX
from aiperf_hpc.replica.engines.torch.detection import areas, propose, text_of
from aiperf_hpc.replica.engines.torch.layers import Builder, ModuleCode

PLACES = 14.0
"""Minimum side of a box on its level, in positions, if a finer level exists (Lin et al. 2017)."""


def _proposal_head(code: ModuleCode, node: Node, layer: layers.ProposalHead) -> fx.Node:
    parts = [code.tensor(node, key) for key in layer.initial_values]
    return code.call(proposal_rows, parts, [code.values[name] for name in node.inputs])


def proposal_rows(parameters: Sequence[Tensor], levels: Sequence[Tensor]) -> Tensor:
    """Return the score and four shifts of each anchor of all levels, (samples, anchors, 5)."""
    shared, shared_bias, score, score_bias, box, box_bias = parameters
    rows = []
    for level in levels:
        read = torch.relu_(torch.conv2d(level, shared, shared_bias, 1, 1))
        scores = torch.conv2d(read, score, score_bias).permute(0, 2, 3, 1)
        shifts = torch.conv2d(read, box, box_bias).permute(0, 2, 3, 1)
        samples = len(level)
        rows.append(
            torch.cat([scores.reshape(samples, -1, 1), shifts.reshape(samples, -1, BOX)], 2)
        )
    return torch.cat(rows, 1)


def _proposals(code: ModuleCode, node: Node, layer: layers.Proposals) -> fx.Node:
    rows, truths = (code.values[name] for name in node.inputs)
    return code.call(propose, rows, truths, text_of(layer), code.training)


def _region_align(code: ModuleCode, node: Node, layer: layers.RegionAlign) -> fx.Node:
    boxes, *levels = (code.values[name] for name in node.inputs)
    return code.call(align, boxes, layer.size, layer.strides, *levels)


def align(boxes: Tensor, size: int, strides: tuple[int, ...], *levels: Tensor) -> Tensor:
    """Return the features of boxes, (samples, channels, regions, size, size).

    Each is a weighted sum of 16 positions, the corners around four points. A weighted embedding
    look-up sums them without storing the individual values.

    Args:
        boxes: boxes in pixels, (samples, regions, 4).
        size: height and width of the result.
        strides: distance in pixels between positions of each level.
        levels: features of each level, (samples, channels, height, width).
    """
    samples, regions, _ = boxes.shape
    pixels = [level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels]
    table = torch.cat(pixels, 1)
    of_sample = torch.arange(samples, device=boxes.device) * table.shape[1]
    chosen = _level_of(boxes, strides)
    widths = [level.shape[3] for level in levels]
    first, stride, height, width = (
        torch.tensor(values, device=boxes.device)[chosen]
        for values in (_starts(pixels), strides, [level.shape[2] for level in levels], widths)
    )
    down, down_weights = _corners(boxes[..., 0], boxes[..., 2], stride, height, size)
    across, across_weights = _corners(boxes[..., 1], boxes[..., 3], stride, width, size)
    place = (of_sample[:, None] + first)[..., None, None, None, None]
    # (samples, regions, 2 size, corners, 1, 1) and (samples, regions, 1, 1, 2 size, corners).
    rows = down[..., None, None] * width[..., None, None, None, None]
    found = place + rows + across[:, :, None, None]
    weights = down_weights[..., None, None] * across_weights[:, :, None, None] / 4.0
    made = functional.embedding_bag(
        _bags(found, size),
        table.flatten(0, 1),
        mode="sum",
        per_sample_weights=_bags(weights, size).to(table.dtype),
    )
    return made.view(samples, regions, size, size, -1).movedim(-1, 1)


def _starts(pixels: list[Tensor]) -> list[int]:
    """Return the index of each level's first position among all positions of a sample."""
    starts = [0]
    for level in pixels[:-1]:
        starts.append(starts[-1] + level.shape[1])
    return starts


def _level_of(boxes: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the index of each box's level, int64 (samples, regions)."""
    places = areas(boxes).sqrt() / (PLACES * strides[0])
    level = torch.log2(places.clamp(min=2.0**-20)).floor()
    return level.clamp(0, len(strides) - 1).long()


def _corners(
    first: Tensor, last: Tensor, stride: Tensor, places: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Return the two positions around each point along an axis, and their weights.

    Args:
        first: start of the boxes in pixels, (samples, regions).
        last: end of the boxes in pixels, (samples, regions).
        stride: distance in pixels between positions.
        places: number of positions.
        size: number of features along the axis, with two points each.

    Returns:
        Positions and weights, both (samples, regions, 2 size, 2).
    """
    points = layers.RegionAlign.samples * size
    shares = (torch.arange(points, device=first.device) + 0.5) / points
    along = first[..., None] + (last - first)[..., None] * shares
    along = along / stride[..., None] - 0.5
    last_place = (places - 1)[..., None]
    along = torch.minimum(along.clamp(min=0.0), last_place.to(along.dtype))
    before = along.floor().long()
    behind = torch.minimum(before + 1, last_place)
    share = along - before
    return torch.stack([before, behind], -1), torch.stack([1.0 - share, share], -1)


def _bags(values: Tensor, size: int) -> Tensor:
    """Return the values of each feature as a row, (features, 16).

    ``values`` are (samples, regions, 2 size, 2, 2 size, 2), with points and corners of both axes.
    """
    split = values.reshape(*values.shape[:2], size, 2, 2, size, 2, 2)
    return split.permute(0, 1, 2, 5, 3, 4, 6, 7).flatten(4).flatten(0, 3)


def convolve_regions(x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """Convolve each region of each sample as an image."""
    samples, regions = x.shape[0], x.shape[2]
    images, side = x.movedim(2, 1).flatten(0, 1), kernel.shape[-1]
    if side == 1 and stride > 1:
        # The strided view skips unused pixels, and avoids oneDNN's overrun (``overruns_onednn``).
        images, stride = images[:, :, ::stride, ::stride], 1
    made = torch.conv2d(images, kernel, None, stride, side // 2)
    return made.view(samples, regions, *made.shape[1:]).movedim(1, 2)


def average_of_regions(x: Tensor) -> Tensor:
    """Return the means over height and width, (samples, regions, channels)."""
    return x.mean((3, 4)).movedim(1, 2)


def flatten_regions(x: Tensor) -> Tensor:
    """Return each region as a vector in channels-last order, (samples, regions, features)."""
    return x.movedim(1, -1).flatten(2)


def _positionwise_dense(code: ModuleCode, node: Node, layer: layers.PositionwiseDense) -> fx.Node:
    weight, bias = code.tensor(node, "kernel"), code.tensor(node, "bias")
    return code.call(positionwise_dense, code.read(node), weight, bias)


def positionwise_dense(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ kernel + bias`` for each vector, (samples, vectors, units)."""
    return torch.addmm(bias, x.flatten(0, 1), kernel).view(*x.shape[:2], -1)


def behind_each_other(*parts: Tensor) -> Tensor:
    """Return all values of each sample in float32, which boxes need, (samples, numbers)."""
    return torch.cat([part.flatten(1).float() for part in parts], 1)


BUILDERS: Final[Mapping[type[Layer], Builder]] = {
    layers.Detector: lambda code, node, _: code.call(
        behind_each_other, *(code.values[name] for name in node.inputs)
    ),
    layers.NearestResize2D: lambda code, node, layer: code.call(
        functional.interpolate, code.read(node), (layer.height, layer.width)
    ),
    layers.PositionwiseDense: _positionwise_dense,
    layers.ProposalHead: _proposal_head,
    layers.Proposals: _proposals,
    layers.RegionAlign: _region_align,
    layers.RegionAverage: lambda code, node, _: code.call(average_of_regions, code.read(node)),
    layers.RegionConv2D: lambda code, node, layer: code.call(
        convolve_regions, code.read(node), code.tensor(node, "kernel"), layer.stride
    ),
    layers.RegionFlatten: lambda code, node, _: code.call(flatten_regions, code.read(node)),
}
"""Builders of the layers of detectors, by class."""
