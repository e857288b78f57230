"""The choice of the boxes that a detector's second stage looks at."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from aiperf_hpc.graph import Proposals
from aiperf_hpc.graph.layers.regions import BOX
from aiperf_hpc.replica.engines.torch.detection.boxes import (
    anchors_of,
    areas,
    best_apart,
    clipped,
    overlaps,
    shifted,
)

FOREGROUND = 0.5
"""The overlap with a true box from which a region is taken for it."""
FOREGROUND_SHARE = 4
"""One of so many regions that are drawn is one of those at most."""


class Truth(NamedTuple):
    """The true boxes of a sample."""

    boxes: Tensor
    """(boxes, 4), empty where there is none."""
    classes: Tensor
    """(boxes,), -1 where there is none."""

    @classmethod
    def of(cls, rows: Tensor) -> Truth:
        """Return those of a sample's rows, (boxes, 5); rows without an area are none."""
        boxes = rows[:, :BOX].float()
        there = (rows[:, BOX] >= 0) & (areas(boxes) > 0.0)
        classes = torch.where(there, rows[:, BOX], -1)
        return cls(boxes * there[:, None], classes)


def text_of(layer: Proposals) -> str:
    """Return a layer as text, which operators and code can be given."""
    return json.dumps(asdict(layer))


@lru_cache(maxsize=16)
def _layer_of(text: str) -> Proposals:
    return Proposals(**json.loads(text))


def propose(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    """Return the regions of each sample, float32 (samples, count, 4), empty ones last.

    Args:
        rows: (samples, anchors, 5): a score and four shifts of each.
        truths: (samples, boxes, 5), read in training alone.
        layer: what is asked for, as ``text_of`` has it.
        training: whether true boxes join them and a mixture is drawn.
    """
    regions: Tensor = _operator(rows.detach(), truths, layer, training)
    return regions


@torch.library.custom_op("aiperf_hpc::propose", mutates_args=())
def _operator(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    """As ``propose``. One operator, since how much it compares depends on the numbers."""
    return _proposed(_layer_of(layer), rows, truths, training=training)


@_operator.register_fake
def _of_no_values(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    del truths, training
    return rows.new_empty((len(rows), _layer_of(layer).count, BOX), dtype=torch.float32)


def _proposed(layer: Proposals, rows: Tensor, truths: Tensor, *, training: bool) -> Tensor:
    anchors = anchors_of(layer.levels, layer.of_a_level, rows.device)
    found = []
    for sample, truth in zip(rows.float(), truths, strict=True):
        boxes = _best(layer, sample, anchors, layer.kept if training else layer.count)
        if training:
            boxes = _drawn(boxes, Truth.of(truth).boxes, layer.count)
        found.append(_filled(boxes, layer.count))
    return torch.stack(found)


def _best(layer: Proposals, rows: Tensor, anchors: Tensor, most: int) -> Tensor:
    """Return a sample's best boxes of all levels, apart from each other on each, (boxes, 4)."""
    scores, boxes = [], []
    sizes = list(layer.anchors)
    levels = zip(rows.split_with_sizes(sizes), anchors.split_with_sizes(sizes), strict=True)
    for own, there in levels:
        best = own[:, 0].topk(min(layer.before, len(own)))
        placed = shifted(there[best.indices], own[best.indices, 1:])
        placed = clipped(placed, layer.height, layer.width)
        kept = best_apart(placed, layer.overlap) & (areas(placed) > 0.0)
        scores.append(best.values[kept])
        boxes.append(placed[kept])
    order = torch.cat(scores).sort(descending=True, stable=True).indices[:most]
    return torch.cat(boxes)[order]


def _drawn(boxes: Tensor, truth: Tensor, count: int) -> Tensor:
    """Return regions to train on: a quarter at most lie on a true box, the others do not."""
    candidates = torch.cat([boxes, truth[areas(truth) > 0.0]])
    on = (overlaps(candidates, truth) >= FOREGROUND).any(1)
    order = torch.randperm(len(candidates), device=boxes.device)
    candidates, on = candidates[order], on[order]
    foreground = candidates[on][: count // FOREGROUND_SHARE]
    return torch.cat([foreground, candidates[~on][: count - len(foreground)]])


def _filled(boxes: Tensor, count: int) -> Tensor:
    return torch.cat([boxes, boxes.new_zeros((count - len(boxes), BOX))])
