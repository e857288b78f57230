"""A two-stage detector: boxes, anchors, proposals, its loss and its detections.

They follow tensorpack's Faster R-CNN (examples/FasterRCNN), the closest public program in
TensorFlow. The first stage samples 256 anchors per image, at most half of them positive. Its loss
is logistic for scores and Huber's for the shifts of positive anchors. The second stage uses a
softmax cross-entropy for the classes of regions, and absolute differences for the shifts of regions
on true boxes.

Boxes are (..., 4) as (top, left, bottom, right) in pixels. torchvision has similar operators, but
only in its wheels for PyTorch's CUDA builds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph, Proposals
from aiperf_hpc.graph.layers.regions import BOX, RATIOS, Level
from aiperf_hpc.objective import MOST_DETECTIONS

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
    found, regions = _layer_of(layer), []
    anchors = anchor_boxes(found.levels, found.of_a_level, rows.device)
    for sample, truth in zip(rows.float(), truths, strict=True):
        boxes = _best(found, sample, anchors, found.kept if training else found.count)
        if training:
            boxes = _sampled(boxes, GroundTruth.of(truth).boxes, found.count)
        regions.append(torch.cat([boxes, boxes.new_zeros((found.count - len(boxes), BOX))]))
    return torch.stack(regions)


@_operator.register_fake
def _of_no_values(rows: Tensor, truths: Tensor, layer: str, training: bool) -> Tensor:
    return rows.new_empty((len(rows), _layer_of(layer).count, BOX), dtype=torch.float32)


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


Targets = Mapping[str, Tensor]
Loss = Callable[[Tensor, Targets, float], Tensor]
"""Function of output, targets and label smoothing that returns the loss of each sample."""
Quality = Callable[[Tensor, Targets], Sequence[Tensor]]
"""Function of output and targets that returns the parts of a metric."""

ANCHORS = 256
"""Number of sampled anchors per sample for the first stage's loss."""
POSITIVE, NEGATIVE = 0.7, 0.3
"""Overlap of an anchor with a true box: minimum if positive, upper limit if negative."""
HUBER = 1.0 / 9.0
"""Threshold between squares and absolute values in Huber's loss."""
SCALES = (10.0, 10.0, 5.0, 5.0)
"""Factors of the second stage's shifts in the network's output."""
LEAST_SCORE = 0.05
"""Minimum probability of a detection."""
APART = 0.5
"""Maximum overlap of two detections of a class; above it, only the better one is kept."""
_CANDIDATES = 1000
"""Maximum number of detections per sample to compare with each other."""


class DetectorOutput(NamedTuple):
    """Parts of a detector's output."""

    rows: Tensor
    """Score and shifts of each anchor, (samples, anchors, 5)."""
    regions: Tensor
    """Boxes of the regions, (samples, regions, 4), padded with empty boxes."""
    scores: Tensor
    """Inputs of the softmax, (samples, regions, classes + 1), with the background last."""
    shifts: Tensor
    """Shifts as of ``boxes.encode_boxes``, (samples, regions, classes + 1, 4)."""

    @classmethod
    def of(cls, output: Tensor, shapes: Sequence[tuple[int, ...]]) -> DetectorOutput:
        """Split a network's output into its concatenated parts of the given shapes."""
        sizes = [rows * columns for rows, columns in shapes]
        rows, regions, scores, shifts = (
            part.reshape(-1, *shape)
            for part, shape in zip(output.split_with_sizes(sizes, 1), shapes, strict=True)
        )
        scales = shifts.new_tensor(SCALES)
        return cls(rows, regions, scores, shifts.reshape(*shifts.shape[:2], -1, BOX) / scales)


def _format_of(graph: Graph) -> tuple[Proposals, tuple[tuple[int, ...], ...]]:
    """Return a network's layer of proposals and the shapes of its output's parts."""
    found = [node.layer for node in graph.nodes if isinstance(node.layer, Proposals)]
    if len(found) != 1 or graph.output.layer.kind != "detector":
        raise EngineError("the objective 'detection' needs a network that ends in a detector")
    return found[0], graph.input_shapes(graph.output.name)


def detection(graph: Graph) -> Loss:
    """Return the loss function of a network: the sum over both stages, (samples,).

    Label smoothing does not apply.
    """
    layer, shapes = _format_of(graph)

    def loss(output: Tensor, targets: Targets, smoothing: float) -> Tensor:
        parts = DetectorOutput.of(output, shapes)
        anchors = anchor_boxes(layer.levels, layer.of_a_level, output.device)
        losses = []
        for rows, regions, scores, shifts, boxes in zip(*parts, targets["boxes"], strict=True):
            truth = GroundTruth.of(boxes)
            first = anchor_loss(rows, anchors, truth)
            losses.append(first + region_loss(regions, scores, shifts, truth))
        return torch.stack(losses)

    return loss


def anchor_loss(rows: Tensor, anchors: Tensor, truth: GroundTruth) -> Tensor:
    """Return the first stage's loss of a sample.

    The anchor with the largest overlap with a true box is also positive. In training, anchors are
    sampled randomly. Without gradients, the sample is fixed, which makes losses comparable.
    """
    found = pairwise_iou(anchors, truth.boxes)
    best, which = found.max(1)
    nearest = ((found == found.max(0).values) & (found > 0.0)).any(1)
    positive = (best >= POSITIVE) | nearest
    negative = (best < NEGATIVE) & ~positive
    random = _random_numbers(rows)
    taken = _some(positive, ANCHORS // 2, random)
    chosen = taken | _some(negative, ANCHORS - taken.sum(), random)
    scores = functional.binary_cross_entropy_with_logits(
        rows[:, 0], positive.to(rows.dtype), reduction="none"
    )
    wanted = encode_boxes(truth.boxes[which], anchors)
    shifts = functional.huber_loss(rows[:, 1:], wanted, reduction="none", delta=HUBER).sum(1)
    return (_sum_where(chosen, scores) + _sum_where(taken, shifts) / HUBER) / ANCHORS


def region_loss(regions: Tensor, scores: Tensor, shifts: Tensor, truth: GroundTruth) -> Tensor:
    """Return the second stage's loss of a sample over nonempty regions."""
    there = areas(regions) > 0.0
    best, which = pairwise_iou(regions, truth.boxes).max(1)
    on = (best >= FOREGROUND) & there
    background = scores.shape[1] - 1
    labels = torch.where(on, truth.classes[which], background)
    classes = functional.cross_entropy(scores, labels, reduction="none")
    own = shifts[torch.arange(len(regions), device=regions.device), labels]
    wanted = encode_boxes(truth.boxes[which], regions)
    scales = shifts.new_tensor(SCALES)
    differences = ((own - wanted).abs() * scales).sum(1)
    total = _sum_where(there, classes) + _sum_where(on, differences)
    return total / there.sum().clamp(min=1)


def _sum_where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the sum of the selected values; the others may be NaN."""
    return torch.where(mask, values, 0.0).sum()


def _random_numbers(like: Tensor) -> Callable[[], Tensor]:
    """Return a function that samples a number in [0, 1) per row."""
    generator = None
    if not torch.is_grad_enabled():
        generator = torch.Generator(like.device).manual_seed(0)
    return lambda: torch.rand(len(like), device=like.device, generator=generator)


def _some(mask: Tensor, most: Tensor | int, random: Callable[[], Tensor]) -> Tensor:
    """Return a random sample of a mask's rows, or all rows if there are fewer."""
    numbers = torch.where(mask, random(), -1.0)
    best = numbers.topk(min(ANCHORS, len(numbers)))
    places = torch.arange(len(best.indices), device=mask.device)
    kept = (best.values >= 0.0) & (places < most)
    return torch.zeros_like(mask).scatter(0, best.indices, kept)


def mean_average_precision(graph: Graph) -> Quality:
    """Return a function that returns each sample's detections and true boxes as rows.

    Detections are (samples, 6 x 100): box, score and class of the best detections, padded with -1.
    True boxes are (samples, 5 x boxes).
    """
    layer, shapes = _format_of(graph)

    def rows(output: Tensor, targets: Targets) -> Sequence[Tensor]:
        parts = DetectorOutput.of(output, shapes)
        found = [
            detections(layer, regions, scores, shifts)
            for regions, scores, shifts in zip(*parts[1:], strict=True)
        ]
        return torch.stack(found).flatten(1), targets["boxes"].flatten(1)

    return rows


def detections(layer: Proposals, regions: Tensor, scores: Tensor, shifts: Tensor) -> Tensor:
    """Return a sample's detections, (100, 6): box, probability and class, padded with -1."""
    there = areas(regions) > 0.0
    probabilities = scores.softmax(1)[:, :-1] * there[:, None]
    best = probabilities.flatten().topk(min(_CANDIDATES, probabilities.numel()))
    classes = probabilities.shape[1]
    region, number = best.indices // classes, best.indices % classes
    boxes = decode_boxes(regions[region], shifts[region, number])
    boxes = clip_boxes(boxes, layer.height, layer.width)
    good = (best.values >= LEAST_SCORE) & (areas(boxes) > 0.0)
    boxes, score, number = boxes[good], best.values[good], number[good]
    # Boxes of different classes are shifted apart so that they do not overlap.
    apart = boxes + (number * (2 * max(layer.height, layer.width)))[:, None]
    kept = non_maximum_suppression(apart, APART)
    found = torch.cat([boxes, score[:, None], number[:, None].to(boxes.dtype)], 1)[kept]
    found = found[:MOST_DETECTIONS]
    return functional.pad(found, (0, 0, 0, MOST_DETECTIONS - len(found)), value=-1.0)
