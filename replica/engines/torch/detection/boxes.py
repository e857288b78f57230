"""Boxes, (..., 4) as (top, left, bottom, right) in pixels: anchors, overlaps, shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from aiperf_hpc.graph.layers.regions import RATIOS, Level

MOST_GROWTH = math.log(1000.0 / 16.0)
"""The logarithm by which a shift changes a side at most, so that no box becomes infinite."""
_CHUNK = 1024


@lru_cache(maxsize=8)
def anchors_of(
    levels: tuple[Level, ...], sizes: tuple[tuple[int, ...], ...], device: torch.device
) -> Tensor:
    """Return the anchors of all levels, (anchors, 4): by level, row, column, size and ratio.

    Args:
        levels: rows, columns and stride of each.
        sizes: of each level's square anchors; of other ratios they have the same area.
        device: where they are to be.
    """
    found = [_of_level(level, own) for level, own in zip(levels, sizes, strict=True)]
    return torch.cat(found).to(device)


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
    """Return the boxes' areas, (...); none is negative."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0.0).prod(-1)


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of each with each, (boxes, others); 0 of empty ones."""
    first = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    last = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (last - first).clamp(min=0.0).prod(-1)
    united = areas(boxes)[:, None] + areas(others)[None] - shared
    return shared / united.clamp(min=torch.finfo(united.dtype).tiny)


def shifts_of(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return by what anchors are shifted to be boxes, (..., 4): in sides, and logarithms of them.

    Of empty ones they are finite numbers.
    """
    middles, sides = _split(anchors)
    wanted, made = _split(boxes)
    return torch.cat([(wanted - middles) / sides, torch.log(made / sides)], -1)


def shifted(anchors: Tensor, shifts: Tensor) -> Tensor:
    """Return anchors where shifts put them, (..., 4): the inverse of ``shifts_of``."""
    middles, sides = _split(anchors)
    middles = middles + shifts[..., :2] * sides
    half = torch.exp(shifts[..., 2:].clamp(max=MOST_GROWTH)) * sides / 2.0
    return torch.cat([middles - half, middles + half], -1)


def _split(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return middles and sides; those of empty boxes are very small."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return (first + last) / 2.0, (last - first).clamp(min=1e-3)


def clipped(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return what of boxes lies in a sample."""
    most = boxes.new_tensor([height, width, height, width])
    return torch.minimum(boxes.clamp(min=0.0), most)


def best_apart(boxes: Tensor, overlap: float) -> Tensor:
    """Return which boxes overlap no kept one before them by more than a share, bool (boxes,).

    This is greedy suppression, of boxes in falling order of their scores. Each pass settles all
    boxes whose overlapping predecessors are settled: some passes for any number of boxes.
    """
    hidden = _hidden(boxes, overlap)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    while True:
        settled = ~(hidden & kept[:, None]).any(0)
        if torch.equal(settled, kept):
            return kept
        kept = settled


def _hidden(boxes: Tensor, overlap: float) -> Tensor:
    """Return which boxes, the columns, would go if the one of a row is kept."""
    hidden = torch.zeros((len(boxes), len(boxes)), dtype=torch.bool, device=boxes.device)
    for first in range(0, len(boxes), _CHUNK):
        part = slice(first, first + _CHUNK)
        hidden[part] = overlaps(boxes[part], boxes) > overlap
    return hidden.triu_(1)
