from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.networks import SMALL, THIN, plain, residual, rng, trained_weights

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Deeper, KernelSize, Skip, Wider
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.channels import channel_groups
from aiperf_hpc.morphism.weights.checkpoint import Weights, check_weights

KINDS = sorted(MORPHISMS)
MAKERS = [*SMALL, *THIN]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_parents_stay_as_they_were(kind: str, make: Callable[[], Graph]) -> None:
    graph, before = make(), make()
    weights = trained_weights(graph, rng())
    copies = {name: array.copy() for name, array in weights.items()}
    for array in weights.values():
        array.setflags(write=False)  # Writing in place would raise.
    for seed in range(5):
        morphism = MORPHISMS[kind].sample(graph, rng(seed))
        grow_with_weights(graph, weights, [morphism], rng(seed))
    assert graph == before
    assert weights.keys() == copies.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, copies[name])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_child(kind: str, make: Callable[[], Graph]) -> None:
    def child(seed: int) -> tuple[Morphism, Graph, Weights]:
        graph, generator = make(), rng(seed)
        morphism = MORPHISMS[kind].sample(graph, generator)
        weights = trained_weights(graph, rng(1))
        return morphism, *grow_with_weights(graph, weights, [morphism], generator)

    for seed in range(3):
        one, other = child(seed), child(seed)
        assert one[:2] == other[:2]
        for name, array in one[2].items():
            np.testing.assert_array_equal(array, other[2][name])
    assert len({child(seed)[0] for seed in range(20)}) > 1


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_fit_the_child_and_change_only_where_it_grew(
    kind: str, make: Callable[[], Graph]
) -> None:
    graph = make()
    weights = trained_weights(graph, rng())

    def touched(morphism: Morphism) -> set[str]:
        match morphism:
            case KernelSize(conv=conv):
                return {conv}
            case Wider(producer=producer):
                group = channel_groups(graph)[producer]
                return {*group.members, *group.readers}
            case _:
                return set()

    for seed in range(5):
        morphism = MORPHISMS[kind].sample(graph, rng(seed))
        child, inherited = grow_with_weights(graph, weights, [morphism], rng(seed))
        check_weights(child, inherited)
        assert child.hash != graph.hash
        assert inherited.keys() >= weights.keys()
        changed = {n for n in weights if not np.array_equal(weights[n], inherited[n])}
        assert {name.split("/")[0] for name in changed} <= touched(morphism)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_on_the_kernels_that_a_morphism_makes_or_changes(kind: str) -> None:
    """As large as asked for, in the deviation that He's initialisation gives them."""
    graph = resnet50((16, 16, 3), 10, stem="cifar", base_width=16)
    weights = trained_weights(graph, rng())
    kernels = 0
    for seed in range(10):
        morphism = MORPHISMS[kind].sample(graph, rng(seed))
        exact, noisy = (morphism.weights(graph, weights, rng(seed), n) for n in (0.0, 0.1))
        again = morphism.weights(graph, dict(reversed([*weights.items()])), rng(seed), 0.1)
        for name, array in exact.items():
            np.testing.assert_array_equal(again[name], noisy[name])
            difference = noisy[name] - array
            if array is weights.get(name) or not name.endswith("/kernel"):
                assert not difference.any()
                continue
            kernels += 1
            he = np.sqrt(2 / np.prod(array.shape[:-1]))
            # Five standard errors of a deviation from so many samples.
            assert abs(difference.std() / (0.1 * he) - 1) < 5 / np.sqrt(2 * array.size)
    assert kernels > 0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("deeper", "deeper: the graph has no place for it"),
        ("wider", "wider: the graph has no place for it"),
        ("kernel", "kernel: the graph has no place for it"),
        ("skip", "skip: no ReLU has another one before it"),
    ],
)
def test_a_graph_without_a_place_is_refused(kind: str, message: str) -> None:
    with pytest.raises(MorphismError, match=message):
        MORPHISMS[kind].sample(plain(), rng())


@pytest.mark.parametrize(
    ("morphism", "message"),
    [
        (Deeper("nowhere", 3), "the graph has no node 'nowhere'"),
        (Deeper("stem_conv", 3), "'stem_conv' is conv2d, not relu"),
        (Deeper("hidden_relu", 3), "deeper: 'hidden_relu' is no image"),
        (Deeper("one_relu", 2), "deeper: kernel 2 is not one of"),
        (Deeper("one_relu", 9), "deeper: kernel 9 is not one of"),
        (Wider("nowhere", 8), "wider: 'nowhere' is not the first of its channels"),
        (Wider("one_conv_b", 8), "wider: 'one_conv_b' is not the first of its channels"),
        (Wider("stem_norm", 8), "wider: 'stem_norm' is not the first of its channels"),
        (Wider("image", 8), "wider: 'image' is not the first of its channels"),
        (Wider("logits", 10), "wider: the dataset fixes the channels of 'logits'"),
        (Wider("stem_conv", 4), "wider: 4 is less than 1.25 x the 4 channels of 'stem_conv'"),
        (Wider("hidden", 8), "wider: 8 is less than 1.25 x the 7 channels of 'hidden'"),
        (Skip("nowhere", "one_relu"), "the graph has no node 'nowhere'"),
        (Skip("one_relu", "nowhere"), "the graph has no node 'nowhere'"),
        (Skip("stem_conv", "one_relu"), "'stem_conv' is conv2d, not relu"),
        (Skip("stem_relu", "one_add"), "'one_add' is add, not relu"),
        (Skip("one_relu", "one_relu"), "skip: 'one_relu' is not before 'one_relu'"),
        (Skip("two_relu", "one_relu"), "skip: 'two_relu' is not before 'one_relu'"),
        (Skip("one_relu", "hidden_relu"), "skip: no stride takes"),
        (KernelSize("nowhere", 3), "the graph has no node 'nowhere'"),
        (KernelSize("one_relu", 3), "'one_relu' is relu, which has no kernel that grows"),
        (KernelSize("hidden", 3), "'hidden' is dense, which has no kernel that grows"),
        (KernelSize("two_conv", 5), "kernel: 'two_conv' has kernel 5"),
        (KernelSize("two_conv", 3), "kernel: 'two_conv' has kernel 5"),
        (KernelSize("two_conv", 6), "kernel: 'two_conv' has kernel 5"),
        (KernelSize("two_conv", 9), "kernel: 'two_conv' has kernel 5"),
    ],
)
def test_a_wrong_use_is_refused_by_name(morphism: Morphism, message: str) -> None:
    with pytest.raises(MorphismError, match=message):
        morphism.child(residual())
