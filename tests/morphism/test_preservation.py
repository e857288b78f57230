"""A child computes what its parent computes, as PyTorch sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.graph import Conv2D, Dense, Graph, ReLU
from aiperf_hpc.morphism.channels import channel_groups
from aiperf_hpc.morphism.morphs import (
    MORPHISMS,
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    Wider,
    grow_with_weights,
)
from aiperf_hpc.morphism.weights import Weights, check_weights

from .networks import SMALL, THIN, random_chain, residual, trained_weights, two_stems
from .torch_network import logits, run, to_tensors

FP32_TOLERANCE = 1e-5
ROUNDING = 2e-6
"""In fp64: what rounding the children's weights to float32 changes; no more."""
EXACT = 1e-12
"""In fp64: of the morphisms that only add zeros and so round nothing."""


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
) -> float:
    """The largest difference of logits over the largest logit."""
    with torch.no_grad():
        one, other = (
            logits(graph, to_tensors(graph, weights, dtype), inputs.to(dtype), training=training)
            for graph, weights in (parent, child)
        )
    assert one.std(dim=0).max() > 1e-3 * one.abs().max()  # The logits do depend on the images.
    return float((one - other).abs().max() / one.abs().max())


def assert_preserved(graph: Graph, chain: Sequence[Morphism], rng: np.random.Generator) -> None:
    weights = trained_weights(graph, rng)
    child = grow_with_weights(graph, weights, chain, rng)
    check_weights(*child)
    inputs = images(graph, rng)
    rounds = any(isinstance(morphism, Wider | Deeper) for morphism in chain)
    assert difference((graph, weights), child, inputs, torch.float32) <= FP32_TOLERANCE
    in_fp64 = difference((graph, weights), child, inputs, torch.float64)
    assert in_fp64 <= (ROUNDING if rounds else EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_random_chains_keep_the_function(seed: int) -> None:
    """30 in each of 10: 20 of small networks, 10 of thin ResNet-50s; depths 1 to 8."""
    rng = np.random.default_rng(seed)
    for number in range(30):
        graph = (SMALL if number < 20 else THIN)[number % 2]()
        assert_preserved(graph, random_chain(graph, int(rng.integers(1, 9)), rng), rng)


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
    ],
)
def test_morphisms_upon_morphisms_keep_the_function(chain: list[Morphism]) -> None:
    for seed in range(3):
        assert_preserved(residual(), chain, np.random.default_rng(seed))


def test_morphisms_around_a_relu_that_several_read_keep_the_function() -> None:
    chain = [
        Deeper("relu", 3),
        Skip("relu", "relu_deep1_relu"),
        Deeper("relu_deep1_relu", 1),
        Wider("relu_deep1_conv", 5),
        Deeper("image_relu", 3),
        Skip("image_relu", "loop_relu"),
        Wider("left_conv", 4),
    ]
    for seed in range(3):
        assert_preserved(two_stems(), chain, np.random.default_rng(seed))


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


@pytest.mark.parametrize("make", [*SMALL, *THIN])
def test_the_witness_has_the_shapes_of_the_graph(make: Callable[[], Graph]) -> None:
    graph, rng = make(), np.random.default_rng(17)
    weights = trained_weights(graph, rng)
    with torch.no_grad():
        outputs = run(graph, to_tensors(graph, weights), images(graph, rng).float())
    for name, output in outputs.items():
        channels_last = (*output.shape[2:], output.shape[1])
        assert channels_last == graph.shapes[name]
