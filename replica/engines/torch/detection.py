"""Loss and detections of a two-stage detector.

They follow tensorpack's Faster R-CNN (examples/FasterRCNN), the closest public program in
TensorFlow. The first stage samples 256 anchors per image, at most half of them positive. Its loss
is logistic for scores and Huber's for the shifts of positive anchors. The second stage uses a
softmax cross-entropy for the classes of regions, and absolute differences for the shifts of regions
on true boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph, Proposals
from aiperf_hpc.graph.layers.regions import BOX
from aiperf_hpc.objective import MOST_DETECTIONS
from aiperf_hpc.replica.engines.torch.proposals import (
    FOREGROUND,
    GroundTruth,
    anchor_boxes,
    areas,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    non_maximum_suppression,
    pairwise_iou,
)

Targets = Mapping[str, Tensor]
Loss = Callable[[Tensor, Targets, float], Tensor]
"""Function of output, targets and label smoothing that returns the loss of each sample."""
Quality = Callable[[Tensor, Targets], Sequence[Tensor]]
"""Function of output and targets that returns the parts of a measure."""

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


class _Detector(NamedTuple):
    """Properties of a network that determine its output's format."""

    layer: Proposals
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Graph) -> _Detector:
        layers = [node.layer for node in graph.nodes if isinstance(node.layer, Proposals)]
        if len(layers) != 1 or graph.output.layer.kind != "detector":
            raise EngineError("the objective 'detection' needs a network that ends in a detector")
        return cls(layers[0], graph.input_shapes(graph.output.name))

    def anchors(self, device: torch.device) -> Tensor:
        return anchor_boxes(self.layer.levels, self.layer.of_a_level, device)


def detection(graph: Graph) -> Loss:
    """Return the loss function of a network: the sum over both stages, (samples,)."""
    detector = _Detector.of(graph)

    def loss(output: Tensor, targets: Targets, smoothing: float) -> Tensor:
        del smoothing  # Only labels are smoothed.
        parts = DetectorOutput.of(output, detector.shapes)
        anchors = detector.anchors(output.device)
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
    detector = _Detector.of(graph)

    def rows(output: Tensor, targets: Targets) -> Sequence[Tensor]:
        parts = DetectorOutput.of(output, detector.shapes)
        found = [
            detections(detector.layer, regions, scores, shifts)
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
