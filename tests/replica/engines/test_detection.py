"""A detector's own operations, against others that are written as they are defined."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.support.detectors import detector, maps_with_boxes
from tests.support.engine_steps import hyperparameters, outputs_of
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.graph import Graph, Proposals
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import MEAN_AVERAGE_PRECISION, detection
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Network, NetworkState
from aiperf_hpc.replica.engines.torch.detection import (
    GroundTruth,
    anchor_boxes,
    decode_boxes,
    detections,
    encode_boxes,
    non_maximum_suppression,
    pairwise_iou,
    propose,
    text_of,
)
from aiperf_hpc.replica.engines.torch.regions import (
    align,
    average_of_regions,
    convolve_regions,
)


def some_boxes(number: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    first = torch.rand((number, 2), generator=made) * 40.0
    return torch.cat([first, first + 1.0 + torch.rand((number, 2), generator=made) * 40.0], 1)


def one_overlap(box: list[float], other: list[float]) -> float:
    down = max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
    across = max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
    both = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return down * across / (both - down * across)


def test_overlaps_are_intersections_by_unions() -> None:
    boxes, others = some_boxes(7), some_boxes(5, 1)
    wanted = [[one_overlap(a, b) for b in others.tolist()] for a in boxes.tolist()]
    torch.testing.assert_close(pairwise_iou(boxes, others), torch.tensor(wanted))
    assert pairwise_iou(boxes, torch.zeros(2, 4)).eq(0).all()


@pytest.mark.parametrize(("number", "overlap"), [(0, 0.5), (1, 0.5), (60, 0.2), (60, 0.7)])
def test_non_maximum_suppression_is_the_greedy_algorithm(number: int, overlap: float) -> None:
    boxes = some_boxes(number)
    kept: list[int] = []
    for place, box in enumerate(boxes.tolist()):
        if all(one_overlap(box, boxes[other].tolist()) <= overlap for other in kept):
            kept.append(place)
    assert non_maximum_suppression(boxes, overlap).nonzero().flatten().tolist() == kept


def test_shifts_lead_from_anchors_to_boxes_and_back() -> None:
    boxes, anchors = some_boxes(9), some_boxes(9, 1)
    torch.testing.assert_close(decode_boxes(anchors, encode_boxes(boxes, anchors)), boxes)
    (one,) = encode_boxes(
        torch.tensor([[0.0, 0, 20, 10]]), torch.tensor([[0.0, 0, 10, 10]])
    ).tolist()
    assert one == pytest.approx([0.5, 0.0, np.log(2.0), 0.0], abs=1e-6)


def test_anchors_lie_about_the_middles_of_places() -> None:
    anchors = anchor_boxes(((2, 3, 8), (1, 2, 16)), ((16,), (32,)), torch.device("cpu"))
    assert anchors.shape == ((6 + 2) * 3, 4)
    assert anchors[1].tolist() == pytest.approx([-4, -4, 12, 12])  # Of ratio 1, at (4, 4).
    assert anchors[1 + 3].tolist() == pytest.approx([-4, 4, 12, 20])
    assert anchors[18 + 1].tolist() == pytest.approx([-8, -8, 24, 24])
    sides = anchors[0, 2:] - anchors[0, :2]
    assert (sides[0] / sides[1]).item() == pytest.approx(0.5)
    assert sides.prod().item() == pytest.approx(256.0)


def naive_align(boxes: Tensor, size: int, stride: int, level: Tensor) -> Tensor:
    """By definition: a value is the mean of four points, each between four places."""
    samples, channels, height, width = level.shape
    found = torch.zeros(samples, channels, boxes.shape[1], size, size)
    points = [(i + share) / size for i in range(size) for share in (0.25, 0.75)]
    for sample, region in itertools.product(range(samples), range(boxes.shape[1])):
        top, left, bottom, right = (boxes[sample, region] / stride).tolist()
        for (i, down), (j, across) in itertools.product(enumerate(points), repeat=2):
            y = min(max(top + down * (bottom - top) - 0.5, 0.0), height - 1.0)
            x = min(max(left + across * (right - left) - 0.5, 0.0), width - 1.0)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
            fy, fx = y - y0, x - x0
            value = (1 - fy) * (1 - fx) * level[sample, :, y0, x0]
            value = value + (1 - fy) * fx * level[sample, :, y0, x1]
            value = value + fy * (1 - fx) * level[sample, :, y1, x0]
            value = value + fy * fx * level[sample, :, y1, x1]
            found[sample, :, region, i // 2, j // 2] += value / 4
    return found


def test_aligned_features_and_their_gradients_are_those_of_the_definition() -> None:
    boxes = torch.stack([some_boxes(3), some_boxes(3, 1)])
    made = torch.Generator().manual_seed(0)
    level = torch.randn((2, 5, 10, 9), generator=made)
    factors = torch.randn((2, 5, 3, 2, 2), generator=made)
    gradients = []
    for function in (align, naive_align):
        leaf = level.clone().requires_grad_()
        found = align(boxes, 2, (8,), leaf) if function is align else naive_align(boxes, 2, 8, leaf)
        (found * factors).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append((found.detach(), leaf.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_box_has_its_features_of_the_level_that_suits_its_size() -> None:
    levels = [torch.full((1, 1, n, n), float(i)) for i, n in enumerate((32, 16, 8))]
    sides = [3.0, 110.0, 120.0, 200.0, 300.0]
    boxes = torch.tensor([[[0.0, 0.0, side, side] for side in sides]])
    found = align(boxes, 1, (4, 8, 16), *levels)
    assert found.flatten().tolist() == [0.0, 0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_each_region_is_convolved_by_itself(kernel: int, stride: int) -> None:
    made = torch.Generator().manual_seed(0)
    regions = torch.randn((2, 3, 4, 6, 6), generator=made)
    weights = torch.randn((5, 3, kernel, kernel), generator=made)
    found = convolve_regions(regions, weights, stride)
    for region in range(4):
        wanted = functional.conv2d(regions[:, :, region], weights, None, stride, kernel // 2)
        torch.testing.assert_close(found[:, :, region], wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        average_of_regions(regions)[0, 2], regions[0, :, 2].mean((1, 2)), rtol=1e-5, atol=1e-6
    )


LAYER = Proposals(6, 20, 10, ((8, 8, 8),), (16,), 64, 64)


def rows() -> Tensor:
    made = torch.Generator().manual_seed(0)
    return torch.randn((2, 8 * 8 * 3, 5), generator=made) * torch.tensor([1, 0.3, 0.3, 0.3, 0.3])


def test_regions_are_the_best_anchors_apart_from_each_other() -> None:
    none = torch.full((2, 15, 5), -1)
    found = propose(rows(), none, text_of(LAYER), False)
    assert found.shape == (2, 6, 4)
    anchors = anchor_boxes(LAYER.levels, LAYER.of_a_level, torch.device("cpu"))
    best = rows()[0, :, 0].argmax()
    wanted = decode_boxes(anchors[best], rows()[0, best, 1:]).clamp(0, 64)
    torch.testing.assert_close(found[0, 0], wanted)
    apart = pairwise_iou(found[0], found[0]).fill_diagonal_(0.0)
    assert apart.max() <= 0.7


def test_in_training_true_boxes_are_among_the_regions_and_a_quarter_at_most() -> None:
    truth = torch.full((2, 15, 5), -1)
    truth[0, 0] = torch.tensor([2, 3, 30, 33, 1])
    found = propose(rows(), truth, text_of(LAYER), True)
    on = (pairwise_iou(found[0], truth[0, :1, :4].float()) >= 0.5).flatten()
    assert on.sum() == 1  # Of six; and the other sample has none.
    assert not (pairwise_iou(found[1], truth[0, :1, :4].float()) == 1.0).any()
    inference = propose(rows(), truth, text_of(LAYER), False)
    assert torch.equal(inference, propose(rows(), torch.zeros_like(truth), text_of(LAYER), False))


def test_regions_that_are_missing_are_empty() -> None:
    few = Proposals(50, 4, 10, ((8, 8, 8),), (16,), 64, 64)
    found = propose(rows(), torch.full((2, 15, 5), -1), text_of(few), False)
    assert found.shape == (2, 50, 4)
    assert not found[:, 4:].any()
    assert found[:, 0].any()


def test_rows_without_an_area_are_no_boxes() -> None:
    truth = GroundTruth.of(torch.tensor([[1, 1, 5, 5, 2], [3, 3, 3, 9, 1], [-1, -1, -1, -1, -1]]))
    assert truth.classes.tolist() == [2, -1, -1]
    assert truth.boxes[0].tolist() == [1, 1, 5, 5]
    assert not truth.boxes[1:].any()


def test_detections_are_the_probable_ones_apart_by_class_and_best_first() -> None:
    regions = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 11], [30, 30, 50, 50], [0, 0, 0, 0]])
    scores = torch.tensor([[5.0, -5, 0], [4, -5, 0], [-5, 4, 0], [9, 9, -9]])
    found = detections(LAYER, regions, scores, torch.zeros(4, 3, 4))
    assert found.shape == (100, 6)
    assert found[0, :4].tolist() == [0, 0, 10, 10]
    assert found[1, :4].tolist() == [30, 30, 50, 50]
    assert found[:2, 5].tolist() == [0, 1]
    assert found[0, 4] > found[1, 4] > 0.9
    assert (found[2:] == -1).all()


@pytest.fixture(scope="module", params=["fpn", "c4"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return detector(variant=request.param)


def built(graph: Graph, precision: str = "fp32") -> Network:
    torch.manual_seed(0)
    weights = initial_weights(graph, np.random.default_rng(0))
    engine = load_engine("torch", 1, objective=detection(15))
    return engine.build(NetworkState(graph, weights, hyperparameters(precision=precision)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_detector_learns_and_its_rows_give_precisions(graph: Graph, precision: str) -> None:
    network, batch = built(graph, precision), maps_with_boxes()
    network.warm(2)
    losses = []
    for _ in range(4):
        for _ in range(3):
            network.train_step(batch, 0.02)
        losses.append(network.drain_training())
    network.evaluate_step(batch)
    found = network.drain_evaluation()
    assert losses[-1] < 0.8 * losses[0]
    assert found.samples == 2
    assert found.parts["detections"].shape == (2, 600)
    assert found.parts["boxes"].shape == (2, 75)
    MEAN_AVERAGE_PRECISION.check(found.sums(MEAN_AVERAGE_PRECISION), 2)


def test_inference_is_deterministic_and_ignores_true_boxes(graph: Graph) -> None:
    network, batch = built(graph), maps_with_boxes()
    told = outputs_of(network, batch.inputs)
    blind = outputs_of(network, {**batch.inputs, "boxes": np.zeros_like(batch.inputs["boxes"])})
    np.testing.assert_array_equal(told, blind)
    losses = []
    for _ in range(2):
        network.evaluate_step(batch)
        losses.append(network.drain_evaluation().loss)
    assert losses[0] == losses[1]


def test_maps_without_a_box_have_a_loss_of_the_background_alone(graph: Graph) -> None:
    network, batch = built(graph), maps_with_boxes()
    none = np.full_like(batch.targets["boxes"], -1)
    network.train_step(Batch({**batch.inputs, "boxes": none}, {"boxes": none}), 0.01)
    assert 0.0 < network.drain_training() < 4.0
