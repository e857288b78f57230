"""A child computes what its parent computes, as PyTorch sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.support.networks import SMALL, THIN, random_chain, residual, trained_weights, two_stems
from tests.support.torch_network import logits, moments, to_tensors
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.graph import Conv2D, Dense, Graph, ReLU
from aiperf_hpc.morphism.operators.morphisms import (
    MORPHISMS,
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    Wider,
    grow_with_weights,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.channels import channel_groups
from aiperf_hpc.morphism.weights.weight_file import Weights, check_weights

CHAINS, PARTS = 200, 4
FP32_TOLERANCE = 1e-5
ROUNDING = 2e-6
"""What rounding the children's weights to float32 changes, in fp64; no more."""
EXACT = 1e-12
"""The difference, in fp64, of the morphisms that only add zeros and so round nothing."""


def images(graph: Graph, rng: np.random.Generator, samples: int = 2) -> Tensor:
    height, width, channels = graph.nodes[0].layer.output_shape()
    return torch.from_numpy(rng.standard_normal((samples, channels, height, width)))


def difference(
    parent: tuple[Graph, Weights],
    child: tuple[Graph, Weights],
    inputs: Tensor,
    dtype: torch.dtype,
    *,
    training: bool = False,
    lively: bool = True,
) -> float:
    """The largest difference of logits over the largest logit."""
    with torch.no_grad():
        one, other = (
            logits(graph, to_tensors(graph, weights, dtype), inputs.to(dtype), training=training)
            for graph, weights in (parent, child)
        )
    assert not lively or varies(one)
    return float((one - other).abs().max() / one.abs().max())


def varies(logits: Tensor) -> bool:
    """Whether they do depend on the images."""
    return bool(logits.std(dim=0).max() > 1e-3 * logits.abs().max())


def calibrated_on(graph: Graph, weights: Weights, inputs: Tensor) -> Weights:
    now = dict(weights)
    waves = transparent(graph, weights)
    names = calibrate(graph, waves, lambda: moments(graph, now, inputs), now.update)
    assert names == tuple(name for wave in waves for name in wave)
    changed = {name.split("/")[0] for name in now if not np.array_equal(now[name], weights[name])}
    assert changed <= set(names)
    return now


def assert_preserved(graph: Graph, chain: Sequence[Morphism], rng: np.random.Generator) -> None:
    weights = trained_weights(graph, rng)
    child = grow_with_weights(graph, weights, chain, rng)
    check_weights(*child)
    inputs = images(graph, rng)
    rounds = any(isinstance(morphism, Wider | Deeper) for morphism in chain)
    assert difference((graph, weights), child, inputs, torch.float32) <= FP32_TOLERANCE
    in_fp64 = difference((graph, weights), child, inputs, torch.float64)
    assert in_fp64 <= (ROUNDING if rounds else EXACT)


class Errors(NamedTuple):
    """How far a child's logits are from its parent's, relative to the largest."""

    alive: bool
    """Whether the parent's depend on the images at all."""
    fits: bool
    """Whether there was something to calibrate."""
    in_fp32: float
    calibrated: float
    """The difference in fp64."""
    training: float
    """The difference in fp64, calibrated on the batch, in training mode."""
    uncalibrated: float
    """The difference in fp64, in training mode, without calibration."""


def errors(number: int) -> Errors:
    """Of a random chain of depth 1 to 8, every fifth of them of all of ResNet-50, thin."""
    rng = np.random.default_rng(number)
    graph = (THIN if number % 5 == 0 else SMALL)[number // 5 % 2]()
    weights, chain = trained_weights(graph, rng), random_chain(graph, 1 + number % 8, rng)
    child, inherited = grow_with_weights(graph, weights, chain, rng)
    check_weights(child, inherited)
    inputs = images(graph, rng, samples=16)
    fitted = calibrated_on(child, inherited, inputs)

    def error(found: Weights, dtype: torch.dtype, *, training: bool = False) -> float:
        parent = (graph, weights)
        return difference(parent, (child, found), inputs, dtype, training=training, lively=False)

    with torch.no_grad():
        alive = varies(logits(graph, to_tensors(graph, weights, torch.float64), inputs))
    return Errors(
        alive,
        bool(transparent(child, inherited)),
        error(inherited, torch.float32),
        error(fitted, torch.float64),
        error(fitted, torch.float64, training=True),
        error(inherited, torch.float64, training=True),
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_random_chains_keep_the_function_and_once_calibrated_in_training_mode_too(
    part: int,
) -> None:
    """200 chains, as in ``errors``; docs/decisions/morphism.md reports 1,000."""
    found = [errors(number) for number in range(part, CHAINS, PARTS)]
    for number, one in enumerate(found):
        where = part + number * PARTS, one
        assert one.in_fp32 <= FP32_TOLERANCE, where
        assert one.calibrated <= ROUNDING, where
        assert one.training <= FP32_TOLERANCE, where
    # Both sides were really computed, of networks that look at their images, and in training
    # mode calibrating them was needed.
    assert max(one.in_fp32 for one in found) > 0.0
    assert sum(one.alive for one in found) > 0.9 * len(found)
    assert sum(one.fits for one in found) > 0.4 * len(found)
    assert np.median([one.uncalibrated for one in found if one.fits]) > 1e-3


@pytest.mark.parametrize("make", [*SMALL, *THIN])
def test_every_place_of_every_kind_keeps_the_function(make: Callable[[], Graph]) -> None:
    graph, rng = make(), np.random.default_rng(0)
    relus = [
        n.name for n in graph.nodes if isinstance(n.layer, ReLU) and len(graph.shapes[n.name]) == 3
    ]
    free = [name for name, group in channel_groups(graph).items() if not group.fixed]
    places: list[Morphism] = [Deeper(name, 3) for name in relus]
    places += [Wider(name, 2 * graph.shapes[name][-1]) for name in free]
    places += [
        KernelSize(n.name, 7)
        for n in graph.nodes
        if isinstance(n.layer, Conv2D) and n.layer.kernel < 7
    ]
    few = places if make in SMALL else [places[i] for i in rng.permutation(len(places))[:20]]
    for morphism in few:
        assert_preserved(graph, [morphism], rng)


@pytest.mark.parametrize(
    "chain",
    [
        # Makers of channels that read the same channels, then what was added between them.
        [Wider("stem_conv", 6), Wider("stem_conv", 9), Deeper("one_relu", 3)],
        # A projection that ties no groups, widened at both of its ends.
        [Skip("one_relu", "two_relu"), Wider("stem_conv", 6), Wider("two_conv", 11)],
        # The convolution of one's own that now makes the channels of a group.
        [Deeper("stem_relu", 1), Wider("stem_relu_deep1_conv", 7), Wider("stem_conv", 7)],
        # Across a stage, then between the ReLU and the addition behind it, then once more.
        [Skip("stem_relu", "two_relu"), Deeper("two_relu", 3), Skip("one_relu", "two_relu")],
        # A skip over a skip, out of what a skip made.
        [
            Skip("one_relu_a", "one_relu"),
            Deeper("one_relu", 5),
            Skip("one_relu", "one_relu_deep1_relu"),
            Skip("one_relu", "one_relu_deep1_relu"),
            KernelSize("one_relu_skip1_branch", 7),
        ],
        # The size of a strided projection.
        [Skip("stem_relu", "two_relu"), KernelSize("two_relu_skip1_branch", 5)],
        [Wider("hidden", 9), Wider("hidden", 20)],
        # Around a ReLU that several layers read, in the network of two stems.
        [
            Deeper("relu", 3),
            Skip("relu", "relu_deep1_relu"),
            Deeper("relu_deep1_relu", 1),
            Wider("relu_deep1_conv", 5),
            Deeper("image_relu", 3),
            Skip("image_relu", "loop_relu"),
            Wider("left_conv", 4),
        ],
    ],
)
def test_morphisms_upon_morphisms_keep_the_function(chain: list[Morphism]) -> None:
    graph = two_stems() if chain[0] == Deeper("relu", 3) else residual()
    for seed in range(3):
        assert_preserved(graph, chain, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", sorted(set(MORPHISMS) - {"deeper"}))
@pytest.mark.parametrize("make", [*SMALL, THIN[0]])
def test_all_but_deeper_keep_the_function_in_training_mode_too(
    make: Callable[[], Graph], kind: str
) -> None:
    graph, rng = make(), np.random.default_rng(7)
    weights = trained_weights(graph, rng)
    inputs = images(graph, rng, samples=16)
    for _ in range(5):
        chain = [MORPHISMS[kind].sample(graph, rng)]
        child = grow_with_weights(graph, weights, chain, rng)
        changed = difference((graph, weights), child, inputs, torch.float64, training=True)
        assert changed <= (1e-5 if kind == "wider" else EXACT)


@pytest.mark.parametrize("make", [*SMALL, THIN[0]])
def test_copies_of_a_channel_get_different_gradients(make: Callable[[], Graph]) -> None:
    """Else they would stay copies, and the wider network would be no larger."""
    graph, rng = make(), np.random.default_rng(11)
    weights = trained_weights(graph, rng)
    inputs = images(graph, rng, samples=8)
    labels = torch.from_numpy(rng.integers(0, 4, 8))
    free = [name for name, group in channel_groups(graph).items() if not group.fixed]
    for producer in free[:: max(1, len(free) // 6)]:
        assert isinstance(graph.by_name[producer].layer, Conv2D | Dense)
        now = graph.shapes[producer][-1]
        child, child_weights = grow_with_weights(graph, weights, [Wider(producer, 2 * now)], rng)
        tensors = to_tensors(child, child_weights, torch.float64)
        loss = functional.cross_entropy(logits(child, tensors, inputs, training=True), labels)
        kernel = tensors[f"{producer}/kernel"]
        (gradient,) = torch.autograd.grad(loss, kernel)
        axis = 0 if kernel.ndim == 4 else 1
        values = [k.detach() for k in kernel.unbind(axis)]
        slopes = list(gradient.unbind(axis))
        compared = 0
        for copy in range(now, 2 * now):
            origin = next(o for o in range(now) if torch.equal(values[o], values[copy]))
            apart = (slopes[copy] - slopes[origin]).norm()
            if slopes[origin].norm() > 1e-12:  # A channel that is alive for these images.
                assert apart > 1e-3 * slopes[origin].norm()
                compared += 1
        assert compared > 0


def test_skips_reach_over_any_number_of_blocks_and_strides_of_resnet50() -> None:
    """Every pair of a ReLU and one before it is a place for a skip, and what is drawn says so."""
    graph = resnet50()
    relus = [n.name for n in graph.nodes if isinstance(n.layer, ReLU)]
    pairs = [(source, target) for place, target in enumerate(relus) for source in relus[:place]]
    sides = {name: graph.shapes[name][0] for name in relus}
    strides = {sides[source] // sides[target] for source, target in pairs}
    assert strides == {1, 2, 4, 8, 16}
    rng = np.random.default_rng(5)
    drawn = [Skip.sample(graph, rng) for _ in range(400)]
    assert {(skip.source, skip.target) for skip in drawn} <= set(pairs)
    assert {sides[skip.source] // sides[skip.target] for skip in drawn} == strides
    far = [relus.index(skip.target) - relus.index(skip.source) for skip in drawn]
    assert np.median(far) > 3 * 3  # A block has three ReLUs.
    for source, target in (pairs[int(place)] for place in rng.permutation(len(pairs))[:100]):
        child = Skip(source, target).child(graph)
        assert child.shapes == {**child.shapes, **graph.shapes}


@pytest.mark.parametrize("make", THIN)
def test_skips_between_all_stages_of_resnet50_keep_the_function(
    make: Callable[[], Graph],
) -> None:
    """Also in training mode, for images whose sides do not halve evenly too."""
    graph, rng = make(), np.random.default_rng(6)
    weights = trained_weights(graph, rng)
    ends = ["stem_relu", "s1b3_relu", "s2b4_relu", "s3b6_relu", "s4b3_relu"]
    starts = ["stem_relu", "s1b1_a_relu", "s2b1_relu", "s3b2_b_relu", "s4b1_relu"]
    inputs = images(graph, rng, samples=8)
    for place, target in enumerate(ends):
        for source in starts[: place + 1]:
            if source != target:
                child = grow_with_weights(graph, weights, [Skip(source, target)], rng)
                for training in (False, True):
                    changed = difference(
                        (graph, weights), child, inputs, torch.float64, training=training
                    )
                    assert changed <= EXACT


def test_what_skip_adds_can_learn() -> None:
    """The zeros that it starts with have a gradient."""
    graph, rng = residual(), np.random.default_rng(13)
    weights = trained_weights(graph, rng)
    inputs = images(graph, rng, samples=8)
    labels = torch.from_numpy(rng.integers(0, 4, 8))
    chain = [Deeper("one_relu", 1), Skip("one_relu", "one_relu_deep1_relu"),
             Skip("one_relu", "two_relu")]  # fmt: skip
    child, child_weights = grow_with_weights(graph, weights, chain, rng)
    tensors = to_tensors(child, child_weights, torch.float64)
    loss = functional.cross_entropy(logits(child, tensors, inputs, training=True), labels)
    names = ["one_relu_deep1_relu_skip1_branch/gamma", "two_relu_skip1_branch/kernel"]
    for gradient in torch.autograd.grad(loss, [tensors[name] for name in names]):
        assert gradient.abs().max() > 1e-6
