"""The four morphisms: places, children, weights and records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.networks import (
    SMALL,
    THIN,
    plain,
    residual,
    rng,
    sequential,
    trained_weights,
    two_stems,
    volumes,
)
from tests.support.torch_network import logits, to_tensors

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Add, BatchNorm, Conv2D, Graph, Input, Node, ReLU
from aiperf_hpc.morphism.operators.morphisms import (
    MORPHISMS,
    Deeper,
    KernelSize,
    Morphism,
    Skip,
    Wider,
    from_data,
    grow_with_weights,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.calibration import channel_moments
from aiperf_hpc.morphism.weights.channels import channel_groups
from aiperf_hpc.morphism.weights.weight_file import Weights, check_weights

KINDS = sorted(MORPHISMS)
MAKERS = [*SMALL, *THIN]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_child(kind: str) -> None:
    def child(seed: int) -> tuple[Morphism, Graph, Weights]:
        graph, generator = residual(), rng(seed)
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
    """Parents stay as they were: to write into their weights would raise."""
    graph, before = make(), make()
    weights = trained_weights(graph, rng())
    for array in weights.values():
        array.setflags(write=False)

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
    assert graph == before


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


def test_without_noise_nothing_is_drawn_for_it() -> None:
    graph, generator = residual(), rng()
    before = generator.bit_generator.state
    morphism = Deeper("stem_relu", 1)
    morphism.weights(graph, trained_weights(graph, rng()), generator)
    assert generator.bit_generator.state == before


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
        (Deeper("hidden_relu", 3), "deeper: 'hidden_relu' is not an image"),
        (Deeper("one_relu", 9), "deeper: kernel 9 is not one of"),
        (Wider("one_conv_b", 8), "wider: 'one_conv_b' is not the first of its channels"),
        (Wider("image", 8), "wider: 'image' is not the first of its channels"),
        (Wider("logits", 10), "wider: the dataset fixes the channels of 'logits'"),
        (Wider("hidden", 8), "wider: 8 is less than 1.25 x the 7 channels of 'hidden'"),
        (Skip("stem_conv", "one_relu"), "'stem_conv' is conv2d, not relu"),
        (Skip("stem_relu", "one_add"), "'one_add' is add, not relu"),
        (Skip("one_relu", "one_relu"), "skip: 'one_relu' is not before 'one_relu'"),
        (Skip("two_relu", "one_relu"), "skip: 'two_relu' is not before 'one_relu'"),
        (Skip("one_relu", "hidden_relu"), "skip: no stride maps"),
        (KernelSize("nowhere", 3), "the graph has no node 'nowhere'"),
        (KernelSize("one_relu", 3), "'one_relu' is relu, which has no kernel that can grow"),
        (KernelSize("two_conv", 3), "kernel: 'two_conv' has kernel 5"),
        (KernelSize("two_conv", 5), "kernel: 'two_conv' has kernel 5"),
        (KernelSize("two_conv", 9), "kernel: 'two_conv' has kernel 5"),
    ],
)
def test_a_wrong_use_is_refused_by_name(morphism: Morphism, message: str) -> None:
    with pytest.raises(MorphismError, match=message):
        morphism.child(residual())


@pytest.mark.parametrize("kind", KINDS)
def test_a_morphism_comes_back_from_its_record(kind: str) -> None:
    morphism = MORPHISMS[kind].sample(residual(), rng())
    data = json.loads(json.dumps(morphism.to_data()))
    assert data["kind"] == kind
    assert from_data(data) == morphism
    assert data == morphism.to_data()  # As it was.


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "shrink"},
        {"kind": ["wider"]},
        {"kind": "wider"},
        {"kind": "wider", "producer": "conv", "channels": "8"},
        {"kind": "wider", "producer": "conv", "channels": True},
        {"kind": "wider", "producer": 3, "channels": 8},
        {"kind": "wider", "producer": "conv", "channels": 8, "noise": 0.1},
        {"kind": "skip", "source": ["relu"], "target": "relu"},
    ],
)
def test_data_that_is_no_morphism_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(MorphismError, match="morphism"):
        from_data(data)


def test_deeper_puts_its_block_between_a_relu_and_all_its_readers() -> None:
    graph = two_stems()
    child = Deeper("relu", 3).child(graph)
    new = ("relu_deep1_conv", "relu_deep1_norm", "relu_deep1_relu")
    assert child.by_name[new[0]] == Node(new[0], Conv2D(3, 3), ("relu",), inserted=True)
    assert child.by_name[new[1]] == Node(new[1], BatchNorm(), (new[0],), inserted=True)
    assert child.by_name[new[2]] == Node(new[2], ReLU(), (new[1],), inserted=True)
    assert child.consumers["relu"] == (new[0],)
    assert child.by_name["loop_add"].inputs == (new[2], "loop_norm", new[2])
    assert child.by_name["loop_conv"].inputs == (new[2],)
    assert child.depth == graph.depth + 1


def test_deeper_avoids_a_name_that_another_node_has() -> None:
    graph = residual()
    taken = Graph(
        tuple(
            replace(
                node,
                name="one_relu_deep1_norm" if node.name == "pool" else node.name,
                inputs=tuple("one_relu_deep1_norm" if i == "pool" else i for i in node.inputs),
            )
            for node in graph.nodes
        )
    )
    assert "one_relu_deep2_conv" in Deeper("one_relu", 1).child(taken).by_name


def test_deeper_behind_the_output_makes_a_new_output() -> None:
    graph = Graph((*plain().nodes, Node("relu", ReLU(), ("conv",))))
    assert Deeper("relu", 1).child(graph).output.name == "relu_deep1_relu"


def test_deeper_starts_as_the_identity_and_its_inverse_normalisation() -> None:
    graph = residual()
    weights = trained_weights(graph, rng())
    _, child = grow_with_weights(graph, weights, [Deeper("one_relu", 5)], rng())
    kernel = child["one_relu_deep1_conv/kernel"]
    np.testing.assert_array_equal(kernel[2, 2], np.eye(4, dtype=np.float32))
    assert np.count_nonzero(kernel) == 4
    mean, variance, gamma, beta = (
        child[f"one_relu_deep1_norm/{key}"] for key in ("mean", "variance", "gamma", "beta")
    )
    np.testing.assert_array_equal(beta, mean)
    np.testing.assert_allclose(gamma, np.sqrt(variance + 1e-5), rtol=1e-6)
    assert (mean > 0).all()  # Of what a ReLU gives.
    moments = channel_moments(graph, weights, "one_relu")
    np.testing.assert_allclose(mean, moments.mean, rtol=1e-6)
    np.testing.assert_allclose(variance, moments.variance, rtol=1e-6)


def test_skip_between_equal_shapes_is_a_normalisation_of_scale_zero() -> None:
    graph = two_stems()
    morphism = Skip("relu", "loop_relu")
    child = morphism.child(graph)
    branch, total = "loop_relu_skip1_branch", "loop_relu_skip1_add"
    assert child.by_name[branch] == Node(branch, BatchNorm(), ("relu",), inserted=True)
    assert child.by_name[total] == Node(total, Add(), ("loop_relu", branch), inserted=True)
    assert child.by_name["down_conv"].inputs == (total,)
    assert child.consumers["loop_relu"] == (total,)
    parent = trained_weights(graph, rng())
    weights = morphism.weights(graph, parent, rng())
    assert not weights[f"{branch}/gamma"].any()
    assert not weights[f"{branch}/beta"].any()
    moments = channel_moments(graph, parent, "relu")
    np.testing.assert_allclose(weights[f"{branch}/mean"], moments.mean, rtol=1e-6)
    np.testing.assert_allclose(weights[f"{branch}/variance"], moments.variance, rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "target", "layer"),
    [
        ("one_relu_a", "one_relu", Conv2D(4, 1, 1)),  # Other channels.
        ("one_relu", "two_relu", Conv2D(8, 1, 2)),  # Other channels and size.
        ("stem_relu", "one_relu", Conv2D(4, 1, 2)),  # Another size, across a max-pool.
        ("stem_relu", "two_relu", Conv2D(8, 1, 4)),  # 9 x 8 to 3 x 2.
    ],
)
def test_skip_between_other_shapes_is_a_strided_projection_of_zeros(
    source: str, target: str, layer: Conv2D
) -> None:
    graph = residual()
    morphism = Skip(source, target)
    branch = f"{target}_skip1_branch"
    assert morphism.child(graph).by_name[branch].layer == layer
    weights = morphism.weights(graph, trained_weights(graph, rng()), rng())
    assert not weights[f"{branch}/kernel"].any()


def test_skip_may_end_where_only_the_width_is_left_to_stride_over() -> None:
    graph = sequential(
        image=Input((2, 8, 3)),
        first=ReLU(),
        half=Conv2D(3, 3, 2),
        conv=Conv2D(3, 3, 4),
        second=ReLU(),
    )
    child = Skip("first", "second").child(graph)
    assert graph.shapes["second"] == (1, 1, 3)
    assert child.by_name["second_skip1_branch"].layer == Conv2D(3, 1, 8)


def test_skip_is_drawn_between_all_pairs_that_fit() -> None:
    graph = residual()
    drawn = {Skip.sample(graph, rng(seed)) for seed in range(200)}
    relus = ["stem_relu", "one_relu_a", "one_relu", "two_relu"]
    pairs = [(s, t) for place, t in enumerate(relus) for s in relus[:place]]
    assert {(skip.source, skip.target) for skip in drawn} == set(pairs)


@pytest.mark.parametrize("name", ["one_conv_a", "two_shortcut"])
def test_kernels_grow_from_1_to_3_to_5_to_7_around_their_middle(name: str) -> None:
    graph = residual()
    weights = trained_weights(graph, rng())
    before = weights[f"{name}/kernel"]
    for size in (3, 5, 7):
        graph, weights = grow_with_weights(graph, weights, [KernelSize(name, size)], rng())
        kernel = weights[f"{name}/kernel"]
        assert kernel.shape == (size, size, *before.shape[2:])
        np.testing.assert_array_equal(kernel[size // 2, size // 2], before[0, 0])
        assert np.count_nonzero(kernel) == np.count_nonzero(before)
    assert graph.shapes == residual().shapes


def test_the_largest_kernels_are_not_drawn() -> None:
    graph = two_stems()
    for name in ("left_conv", "right_conv", "third_conv", "loop_conv"):
        graph = KernelSize(name, 7).child(graph)
    assert {KernelSize.sample(graph, rng(seed)) for seed in range(10)} == {
        KernelSize("down_conv", 5)
    }


def test_wider_widens_all_that_is_tied_through_an_addition() -> None:
    child = Wider("stem_conv", 7).child(residual())
    assert [child.shapes[name][-1] for name in ("stem_conv", "one_conv_b", "one_relu")] == [7] * 3
    assert child.parameters["one_conv_a/kernel"] == (1, 1, 7, 5)
    assert child.parameters["two_conv/kernel"] == (5, 5, 7, 8)
    assert child.statistics["one_norm_b/variance"] == (7,)
    assert child.shapes["two_relu"] == residual().shapes["two_relu"]


@pytest.mark.parametrize("make", MAKERS)
def test_wider_draws_at_least_a_quarter_more(make: Callable[[], Graph]) -> None:
    graph = make()
    for seed in range(30):
        morphism = Wider.sample(graph, rng(seed))
        now = graph.shapes[morphism.producer][-1]
        assert 1.25 * now <= morphism.channels <= 2 * now + 1
        assert morphism.child(graph).shapes[morphism.producer][-1] == morphism.channels


def test_wider_by_exactly_a_quarter_is_allowed() -> None:
    graph = resnet50((32, 32, 3), 10, stem="cifar", base_width=4)
    assert Wider("s1b1_a_conv", 5).child(graph).shapes["s1b1_a_relu"][-1] == 5


def test_wider_copies_channels_and_splits_what_reads_them() -> None:
    graph = residual()
    weights = trained_weights(graph, rng(1))
    child = Wider("stem_conv", 9).weights(graph, weights, rng(2))
    old, new = weights["stem_conv/kernel"], child["stem_conv/kernel"]
    origin = [int(np.flatnonzero((new[..., [c]] == old).all(axis=(0, 1, 2)))[0]) for c in range(9)]
    assert origin[:4] == [0, 1, 2, 3]
    for name in ("stem_norm/gamma", "one_norm_b/mean", "one_norm_b/variance"):
        np.testing.assert_array_equal(child[name], weights[name][origin])
    for name in ("one_conv_a/kernel", "two_conv/kernel", "two_shortcut/kernel"):
        total = np.zeros_like(weights[name])
        for channel, source in enumerate(origin):
            total[..., source, :] += child[name][..., channel, :]
        np.testing.assert_allclose(total, weights[name], rtol=1e-6)
    # What both makes and reads these channels is copied along one axis and split along the other.
    looped = two_stems()
    loop = Wider("left_conv", 4).weights(looped, trained_weights(looped, rng(3)), rng(4))
    assert loop["loop_conv/kernel"].shape == (3, 3, 4, 4)


@pytest.mark.parametrize("producer", ["one", "two", "hidden"])
def test_wider_keeps_the_function_of_a_network_of_volumes(producer: str) -> None:
    graph = volumes()
    weights = trained_weights(graph, rng())
    morphism = Wider(producer, 2 * graph.shapes[producer][-1])
    child, grown = morphism.child(graph), morphism.weights(graph, weights, rng())
    assert child.shapes[producer][-1] == 2 * graph.shapes[producer][-1]
    inputs = torch.from_numpy(rng(1).standard_normal((3, 2, 7, 6, 9)))
    found, wanted = (
        logits(g, to_tensors(g, w, torch.float64), inputs)
        for g, w in ((child, grown), (graph, weights))
    )
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()
