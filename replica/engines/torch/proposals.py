"""Boxes, anchors and proposals: the first stage of a two-stage detector.

Boxes are (..., 4) as (top, left, bottom, right) in pixels. torchvision has similar operators, but
only in its wheels for PyTorch's CUDA builds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aiperf_hpc.graph import Proposals
from aiperf_hpc.graph.layers.regions import BOX, RATIOS, Level

MOST_GROWTH = math.log(1000.0 / 16.0)
"""Maximum logarithm of the change of a side by a shift, so that boxes stay finite."""
_CHUNK = 1024
FOREGROUND = 0.5
"""Minimum overlap of a foreground region with its true box."""
FOREGROUND_SHARE = 4
"""Minimum number of sampled regions per foreground region."""


@lru_cache(maxsize=8)
def anchor_boxes(
    levels: tuple[Level, ...], sizes: tuple[tuple[int, ...], ...], device: torch.device
) -> Tensor:
    """Return the anchors of all levels, (anchors, 4), by level, row, column, size and ratio.

    Args:
        levels: rows, columns and stride of each level.
        sizes: side of each level's square anchors; anchors of other ratios have the same area.
        device: device of the result.
    """
    anchors = [_of_level(level, own) for level, own in zip(levels, sizes, strict=True)]
    return torch.cat(anchors).to(device)


def _of_level(level: Level, sizes: Sequence[int]) -> Tensor:
    rows, columns, stride = level
    down, across = ((torch.arange(n) + 0.5) * stride for n in (rows, columns))
    middles = torch.stack(torch.meshgrid(down, across, indexing="ij"), -1)
    sides = torch.tensor(
        [[size * ratio**0.5, size / ratio**0.5] for size in sizes for ratio in RATIOS]
    )
    half = sides / 2.0
    places = middles[:, :, None, :]
    return torch.cat([places - half, places + half], -1).reshape(-1, 4)


def areas(boxes: Tensor) -> Tensor:
    """Return the nonnegative areas of boxes, (...)."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0.0).prod(-1)


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of all pairs, (boxes, others); 0 for empty boxes."""
    first = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    last = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (last - first).clamp(min=0.0).prod(-1)
    united = areas(boxes)[:, None] + areas(others)[None] - shared
    return shared / united.clamp(min=torch.finfo(united.dtype).tiny)


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the shifts from anchors to boxes, (..., 4): in units of sides, and log side ratios.

    Shifts of empty boxes are finite.
    """
    middles, sides = _split(anchors)
    wanted, made = _split(boxes)
    return torch.cat([(wanted - middles) / sides, torch.log(made / sides)], -1)


def decode_boxes(anchors: Tensor, shifts: Tensor) -> Tensor:
    """Return anchors moved by shifts, (..., 4): the inverse of ``encode_boxes``."""
    middles, sides = _split(anchors)
    middles = middles + shifts[..., :2] * sides
    half = torch.exp(shifts[..., 2:].clamp(max=MOST_GROWTH)) * sides / 2.0
    return torch.cat([middles - half, middles + half], -1)


def _split(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return centers and sides; the sides of empty boxes are very small."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return (first + last) / 2.0, (last - first).clamp(min=1e-3)


def clip_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return boxes clipped to a sample."""
    most = boxes.new_tensor([height, width, height, width])
    return torch.minimum(boxes.clamp(min=0.0), most)


def non_maximum_suppression(boxes: Tensor, overlap: float) -> Tensor:
    """Return a mask of boxes that overlap no previous kept box by more than ``overlap``, (boxes,).

    This is greedy suppression of boxes in descending order of scores. Each pass decides all boxes
    whose overlapping predecessors are decided, so that a few passes suffice for any number of
    boxes.
    """
    suppressed = _suppressed(boxes, overlap)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    while True:
        settled = ~(suppressed & kept[:, None]).any(0)
        if torch.equal(settled, kept):
            return kept
        kept = settled


def _suppressed(boxes: Tensor, overlap: float) -> Tensor:
    """Return a matrix of the boxes (columns) that a kept box (row) suppresses."""
    suppressed = torch.zeros((len(boxes), len(boxes)), dtype=torch.bool, device=boxes.device)
    for first in range(0, len(boxes), _CHUNK):
        part = slice(first, first + _CHUNK)
        suppressed[part] = pairwise_iou(boxes[part], boxes) > overlap
    return suppressed.triu_(1)


class GroundTruth(NamedTuple):
    """True boxes of a sample."""

    boxes: Tensor
    """Coordinates, (boxes, 4), padded with empty boxes."""
    classes: Tensor
    """Classes, (boxes,), padded with -1."""

    @classmethod
    def of(cls, rows: Tensor) -> GroundTruth:
        """Return the true boxes of a sample's rows, (boxes, 5); rows without area are padding."""
        boxes = rows[:, :BOX].float()
        there = (rows[:, BOX] >= 0) & (areas(boxes) > 0.0)
        classes = torch.where(there, rows[:, BOX], -1)
        return cls(boxes * there[:, None], classes)


def text_of(layer: Proposals) -> str:
    """Return a layer as text, which operators and generated code accept as an argument."""
    return json.dumps(asdict(layer))


@lru_cache(maxsize=16)
def _layer_of(text: str) -> Proposals:
    return Proposals(**json.loads(text))


def propose(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    """Return the regions of each sample, float32 (samples, count, 4), with empty regions last.

    Args:
        rows: score and four shifts of each anchor, (samples, anchors, 5).
        truths: true boxes, (samples, boxes, 5), read only in training.
        layer: layer as text, from ``text_of``.
        training: whether to add true boxes and sample foreground and background regions.
    """
    regions: Tensor = _operator(rows.detach(), truths, layer, training)
    return regions


@torch.library.custom_op("aiperf_hpc::propose", mutates_args=())
def _operator(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    """Implement ``propose`` as one operator: the number of comparisons depends on the values."""
    return _proposed(_layer_of(layer), rows, truths, training=training)


@_operator.register_fake
def _of_no_values(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    del truths, training
    return rows.new_empty((len(rows), _layer_of(layer).count, BOX), dtype=torch.float32)


def _proposed(layer: Proposals, rows: Tensor, truths: Tensor, *, training: bool) -> Tensor:
    anchors = anchor_boxes(layer.levels, layer.of_a_level, rows.device)
    regions = []
    for sample, truth in zip(rows.float(), truths, strict=True):
        boxes = _best(layer, sample, anchors, layer.kept if training else layer.count)
        if training:
            boxes = _sampled(boxes, GroundTruth.of(truth).boxes, layer.count)
        regions.append(_padded(boxes, layer.count))
    return torch.stack(regions)


def _best(layer: Proposals, rows: Tensor, anchors: Tensor, most: int) -> Tensor:
    """Return a sample's best boxes after suppression on each level, (boxes, 4)."""
    scores, boxes = [], []
    sizes = list(layer.anchors)
    levels = zip(rows.split_with_sizes(sizes), anchors.split_with_sizes(sizes), strict=True)
    for own, there in levels:
        best = own[:, 0].topk(min(layer.before, len(own)))
        placed = decode_boxes(there[best.indices], own[best.indices, 1:])
        placed = clip_boxes(placed, layer.height, layer.width)
        kept = non_maximum_suppression(placed, layer.overlap) & (areas(placed) > 0.0)
        scores.append(best.values[kept])
        boxes.append(placed[kept])
    order = torch.cat(scores).sort(descending=True, stable=True).indices[:most]
    return torch.cat(boxes)[order]


def _sampled(boxes: Tensor, truth: Tensor, count: int) -> Tensor:
    """Return regions for training: at most a quarter foreground, the others background."""
    candidates = torch.cat([boxes, truth[areas(truth) > 0.0]])
    on = (pairwise_iou(candidates, truth) >= FOREGROUND).any(1)
    order = torch.randperm(len(candidates), device=boxes.device)
    candidates, on = candidates[order], on[order]
    foreground = candidates[on][: count // FOREGROUND_SHARE]
    return torch.cat([foreground, candidates[~on][: count - len(foreground)]])


def _padded(boxes: Tensor, count: int) -> Tensor:
    return torch.cat([boxes, boxes.new_zeros((count - len(boxes), BOX))])
