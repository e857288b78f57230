"""The published networks' operations a sample, counted anew where they are executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from tests.support.deepcam import DeepCAM
from tests.support.torch_counts import counted, executed
from torch.utils.flop_counter import FlopCounterMode

from aiperf_hpc.analysis.sections.valid_flops import known_count
from aiperf_hpc.graph import Conv2D, Graph, Node
from aiperf_hpc.morphism.networks.resnet import resnet50


def resnet50_v15() -> Graph:
    """ResNet-50 whose strides are in the 3x3 convolutions: our v1 with each stride moved up."""
    nodes = {node.name: node for node in resnet50().nodes}
    for name, node in list(nodes.items()):
        if name.endswith("_a_conv") and isinstance(node.layer, Conv2D) and node.layer.stride > 1:
            above = f"{name.removesuffix('_a_conv')}_b_conv"
            nodes[name] = _strided(node, 1)
            nodes[above] = _strided(nodes[above], node.layer.stride)
    return Graph(tuple(nodes.values()))


def _strided(node: Node, stride: int) -> Node:
    assert isinstance(node.layer, Conv2D)
    return replace(node, layer=replace(node.layer, stride=stride))


def test_resnet50_as_pytorch_and_our_own_counter_count_it() -> None:
    known = known_count("resnet", None).operations
    graph = resnet50_v15()
    assert graph.parameter_count == 25_557_032
    assert executed(graph) == counted(graph) == known == 24_299_077_632


def _backward(
    gradient: Sequence[int], images: Sequence[int], weights: Sequence[int], *arguments: object,
    **_: object,
) -> int:  # fmt: skip
    """Count a convolution's gradients, of each group apart, as PyTorch 2.13 does not.

    Each is as many products as the forward pass: the weights, at every place of the output or, of
    a transposed convolution, of the input.
    """
    transposed, mask = arguments[4], arguments[7]
    assert isinstance(mask, Sequence)
    places = images if transposed else gradient
    once = 2 * places[0] * prod(places[2:]) * prod(weights)
    return once * sum(bool(wanted) for wanted in mask[:2])


def test_deepcam_as_pytorch_counts_it() -> None:
    """56,454,720 parameters are published; the first layer's input has no gradient."""
    with torch.device("meta"):
        network, images = DeepCAM(), torch.empty(1, 16, 768, 1152)
    assert sum(parameter.numel() for parameter in network.parameters()) == 56_454_720
    mapping = {torch.ops.aten.convolution_backward: _backward}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        logits = network(images)
        assert logits.shape == (1, 3, 768, 1152)
        forward = counter.get_total_flops()
        logits.sum().backward()
    first = 2 * 384 * 576 * 9 * 16 * 32
    assert counter.get_total_flops() == 3 * forward - first
    assert counter.get_total_flops() == known_count("deepcam", None).operations
