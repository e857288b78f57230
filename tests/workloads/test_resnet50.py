"""ResNet-50 v1.5: its sizes and operations, what it computes, and how it is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.engine_steps import (
    ENGINES,
    assert_trains_by,
    hyperparameters,
    labelled,
)
from tests.support.torch_counts import counted, counted_apart, executed
from tests.support.torch_network import gradients_of, to_tensors
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.config import load_config
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import V1_5, resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.trial import DatasetInfo, TensorSpec
from aiperf_hpc.workloads.registry import initial_graph
from aiperf_hpc.workloads.resnet50 import WORKLOAD

DECAY = 3.0517578125e-05


def network(side: int = 224, outputs: int = 1000) -> Graph:
    return resnet50((side, side, 3), outputs, version=V1_5)


@pytest.mark.parametrize(
    ("side", "outputs", "parameters", "forward", "training"),
    [
        (224, 1000, 25_557_032, 8_178_368_512, 24_299_077_632),
        (224, 1001, 25_559_081, 8_178_372_608, 24_299_089_920),
        (64, 1000, 25_557_032, 671_383_552, 1_994_883_072),
    ],
)
def test_sizes_and_operations_are_the_published_ones(
    side: int, outputs: int, parameters: int, forward: int, training: int
) -> None:
    """25,557,032 parameters are published; the rest is PyTorch's count of the same network."""
    graph = network(side, outputs)
    assert graph.parameter_count == parameters
    assert counted_apart(graph) == (forward, training)
    assert len(graph.parameters) == 161


@pytest.mark.parametrize(
    "graph",
    [
        network(),
        resnet50((97, 130, 4), 17, base_width=12, version=V1_5),
        resnet50((33, 32, 1), 10, stem="cifar", base_width=5, blocks=(1, 2, 1, 3), version=V1_5),
    ],
    ids=["official", "odd", "small images"],
)
def test_operations_of_any_size_are_pytorchs(graph: Graph) -> None:
    assert executed(graph) == counted(graph)


def test_it_is_v1_with_other_strides_and_another_beginning() -> None:
    """Names, shapes of kernels and widths are those of the network that a search begins with."""
    first, second = resnet50(), network()
    assert [(n.name, n.inputs) for n in first.nodes] == [(n.name, n.inputs) for n in second.nodes]
    assert first.parameters == second.parameters
    strides = {
        node.name: (getattr(node.layer, "stride", 1), getattr(other.layer, "stride", 1))
        for node, other in zip(first.nodes, second.nodes, strict=True)
    }
    moved = {name: pair for name, pair in strides.items() if pair[0] != pair[1]}
    assert moved == {
        f"s{stage}b1_{part}_conv": pair
        for stage in (2, 3, 4)
        for part, pair in (("a", (2, 1)), ("b", (1, 2)))
    }


def test_samples_without_classes_are_refused() -> None:
    info = DatasetInfo.of_labelled_images("imagenet", "", (8, 8, 3), 2, 1, 1)
    numbers = info.model_copy(
        update={"classes": None, "targets": {"values": TensorSpec(shape=(2,))}}
    )
    with pytest.raises(GraphError, match="dataset 'imagenet' has no classes"):
        initial_graph(load_config("resnet50_v15"), numbers)


BLOCKS = (1, 2, 1, 1)
SIDE = 38


def small() -> Graph:
    """Five blocks of widths from 3 on, and 7 outputs; no axis but the last stage's is even."""
    return resnet50((SIDE, SIDE, 3), 7, base_width=3, blocks=BLOCKS, version=V1_5)


def reference(images: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """The logits as the benchmark writes the network, by PyTorch's functions, in training mode.

    A convolution with a stride pads (k - 1) // 2 on each side and then nowhere; the pooling behind
    the stem pads as SAME does, here a row behind.
    """

    def conv(x: Tensor, name: str, stride: int, relu: bool = True) -> Tensor:
        kernel = tensors[f"{name}_conv/kernel"]
        edge = (kernel.shape[-1] - 1) // 2
        x = functional.conv2d(functional.pad(x, (edge,) * 4), kernel, stride=stride)
        gamma, beta = tensors[f"{name}_norm/gamma"], tensors[f"{name}_norm/beta"]
        x = functional.batch_norm(x, None, None, gamma, beta, training=True, eps=1e-5)
        return functional.relu(x) if relu else x

    x = conv(images, "stem", 2)
    behind = x.shape[-1] % 2 == 0
    edges = (0, 1, 0, 1) if behind else (1, 1, 1, 1)
    x = functional.max_pool2d(functional.pad(x, edges, value=-torch.inf), 3, 2)
    for stage, blocks in enumerate(BLOCKS, 1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"s{stage}b{block}"
            shortcut = conv(x, f"{name}_shortcut", stride, relu=False) if block == 1 else x
            y = conv(conv(x, f"{name}_a", 1), f"{name}_b", stride)
            x = functional.relu(conv(y, f"{name}_c", 1, relu=False) + shortcut)
    return x.mean(dim=(2, 3)) @ tensors["logits/kernel"] + tensors["logits/bias"]


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_the_references(engine: str) -> None:
    """Of the smoothed cross-entropy over all outputs, and half the decay times all squares.

    No activation comes so close to zero that rounding makes the slope of a ReLU another.
    """
    graph = small()
    weights = initial_weights(graph, np.random.default_rng(0))
    used = hyperparameters(
        momentum=0.875,
        label_smoothing=0.1,
        weight_decay=100 * DECAY,
        weight_decay_of="all",
        weight_decay_in="loss",
    )
    batch = labelled(graph, 16)
    tensors = to_tensors(graph, weights)
    logits = reference(torch.from_numpy(batch.inputs["image"]).permute(0, 3, 1, 2), tensors)
    spread = functional.one_hot(torch.from_numpy(batch.targets["label"]).long(), 7) * 0.9 + 0.1 / 7
    loss = -(spread * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()
    squares = sum(tensors[name].square().sum() for name in graph.parameters)
    wanted = gradients_of(loss + 50 * DECAY * squares, graph, tensors)
    built = load_engine(engine, 2).build(NetworkState(graph, weights, used))
    assert_trains_by(built, batch, loss.item(), wanted, 2e-4)


def test_a_preset_trains_as_the_benchmarks_code() -> None:
    """The rules on a preset (``test_rules.py``) leave its learning rate and target open."""
    one, other = (load_config(name).training for name in WORKLOAD.presets[:2])
    assert one == other
    assert (one.weight_decay, one.target) == (DECAY, 0.763)
    assert one.learning_rate * one.batch_size / 256 == 0.256 * 4
