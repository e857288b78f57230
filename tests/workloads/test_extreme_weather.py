"""Extreme Weather Analytics' networks: their sizes and operations."""

from __future__ import annotations

import pytest
from tests.support.detectors import detector
from tests.support.torch_counts import counted_apart

from aiperf_hpc.config import ExtremeWeatherConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph, Proposals
from aiperf_hpc.replica.engines.torch.operation_count import matrix_operations
from aiperf_hpc.workloads.networks.extreme_weather import extreme_weather


def network(shape: tuple[int, ...] = (768, 1152, 16), /, **settings: object) -> Graph:
    return extreme_weather(shape, (15, 5), 4, ExtremeWeatherConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("graph", "parameters", "forward", "training"),
    [
        (network(variant="c4"), 33_115_108, 1_028_103_864_320, 3_062_115_336_192),
        (network(), 41_408_424, 364_098_588_672, 1_070_099_509_248),
        (network((192, 288, 16), regions_per_image=64), 41_408_424, 23_648_773_632, 69_559_054_848),
    ],
    ids=["c4", "fpn", "fpn of a quarter"],
)
def test_sizes_and_operations_are_those_of_tensorpacks_networks(
    graph: Graph, parameters: int, forward: int, training: int
) -> None:
    """Of 16 channels and 5 classes, counted by PyTorch for networks that were written for that."""
    assert graph.parameter_count == parameters
    assert counted_apart(graph) == (forward, training)


@pytest.mark.parametrize("variant", ["fpn", "c4"])
@pytest.mark.parametrize("shape", [(64, 96, 16), (100, 151, 3), (65, 64, 1)])
def test_operations_of_any_size_are_pytorchs(variant: str, shape: tuple[int, ...]) -> None:
    graph = detector(shape, variant=variant)
    found = matrix_operations(graph)
    assert counted_apart(graph) == (found.forward, found.training)


def test_anchors_are_those_of_all_levels() -> None:
    (fpn,), (c4,) = (
        [node.layer for node in network(variant=v).nodes if isinstance(node.layer, Proposals)]
        for v in ("fpn", "c4")
    )
    assert fpn.anchors == (165_888, 41_472, 10_368, 2_592, 648)
    assert c4.anchors == (48 * 72 * 15,)
    assert c4.of_a_level == ((32, 64, 128, 256, 512),)


def test_maps_smaller_than_a_stride_are_refused() -> None:
    with pytest.raises(GraphError, match="a map of .*at least 64"):
        network((63, 96, 16))
